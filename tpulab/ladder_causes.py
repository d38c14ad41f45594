"""Where the time between two rungs goes: a sentence with numbers, and the advice that follows.

Works on anything with the attributes of ``Kernel``, ``Program`` and ``Timeline``.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tpulab.hardware import Chip, canonical_dtype, native_tile

# a gap below this share of the predicted time is not worth a person's attention
NEGLIGIBLE = 0.005


@dataclass(frozen=True)
class Cause:
    """Why a rung is above the one before.

    ``key`` names the kind of cause, such as ``"pipeline.wait_input"``; ``text`` is the sentence.
    """

    key: str
    text: str

    @property
    def advice(self) -> str:
        """What to try, from ``ladder_advice.toml``; empty when there is nothing to gain."""
        rung, _, kind = self.key.partition(".")
        return _advice()[rung][kind]


@functools.cache
def _advice() -> dict[str, dict[str, str]]:
    text = resources.files("tpulab").joinpath("ladder_advice.toml").read_text("utf-8")
    return tomllib.loads(text)


def time_text(seconds: float) -> str:
    """A time with four significant digits and a fitting unit."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def bytes_text(count: float) -> str:
    """A size with a fitting binary unit."""
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.0f} B"


def light_cause(work: Any, best: Any) -> Cause:
    """What the speed of light consists of: `best` is the ``Bound`` of `work`."""
    kinds = " + ".join(
        f"{flops / 1e9:.4g} G{'FLOP' if 'int' not in dtype else 'OP'} {dtype}"
        for dtype, flops in work.matmul_flops.items()
        if flops
    )
    parts = [
        f"{kinds} at peak take {time_text(best.compute_seconds)}"
        if kinds
        else "no matrix products",
        f"{bytes_text(work.hbm_bytes)} through HBM once take {time_text(best.hbm_seconds)}",
    ]
    if best.ici_seconds:
        parts.append(
            f"{bytes_text(work.ici_bytes)} over all links take {time_text(best.ici_seconds)}"
        )
    limit = "arithmetic" if best.limiting == "compute" else best.limiting
    return Cause("light", f"{limit} sets it: {', '.join(parts)} on one device of {best.chip}")


def traffic_cause(
    kernel: Any,
    gap_seconds: float,
    hbm_seconds: float,
    total_seconds: float,
    compute_seconds: float = 0.0,
) -> Cause:
    """Why blocks move more bytes than the arrays have, and whether it shows.

    Args:
        gap_seconds: what it costs. hbm_seconds: of all traffic. total_seconds: the rung.
        compute_seconds: of the arithmetic, behind which traffic hides when it takes longer.
    """
    extra = kernel.hbm_bytes - kernel.unique_bytes
    hidden = gap_seconds <= NEGLIGIBLE * total_seconds
    if extra <= 0:
        if hidden:
            return Cause("traffic.none", "every operand moves once")
        return Cause(
            "traffic.sequence",
            f"{len(kernel.calls)} kernels run one after the other, each at its own limit",
        )
    # what each kind of repetition adds, in bytes
    again = {"input": 0, "output": 0, "by_hand": 0}
    sentences = []
    for call in kernel.calls:
        repeated: dict[bool, list[str]] = {True: [], False: []}
        least = 0
        for operand in call.operands:
            if not operand.is_pipelined:
                least += operand.least_bytes
                continue
            more = operand.moved_bytes - operand.least_bytes
            if more > NEGLIGIBLE * call.hbm_bytes:
                again["input" if operand.is_input else "output"] += more * call.times
                times = operand.moved_bytes / max(1, operand.least_bytes)
                repeated[operand.is_input].append(f"{operand.name} {times:.3g} times")
        again["by_hand"] += (
            max(0, call.dma_read_bytes + call.dma_written_bytes - least) * call.times
        )
        clauses = [
            f"{verb} {_and(names)}"
            for verb, names in (
                ("reads input", repeated[True]),
                ("writes output", repeated[False]),
            )
            if names
        ]
        if clauses:
            sentences.append(f"kernel {call.name} {' and '.join(clauses)}")
    if again["by_hand"] > 0:
        sentences.append("the kernel's own copies move the same parts more than once")
    handed_on = getattr(kernel, "handed_on_bytes", 0)
    if handed_on > 0:
        sentences.append(
            f"{bytes_text(handed_on)} are arrays between kernels, unless XLA keeps them in VMEM"
        )
    moved = f"{bytes_text(kernel.hbm_bytes)} move where {bytes_text(kernel.unique_bytes)} would do"
    moved = "; ".join([moved, *list(dict.fromkeys(sentences))[:_MOST_SENTENCES]])
    if hidden and compute_seconds < hbm_seconds:
        cost = time_text(max(0.0, gap_seconds))
        return Cause("traffic.small", f"{moved}; the extra {bytes_text(extra)} cost {cost}")
    if hidden:
        return Cause(
            "traffic.hidden",
            f"{moved}; the {time_text(hbm_seconds)} of HBM time hide behind the arithmetic",
        )
    kind = max(again, key=lambda name: again[name])
    if again[kind] <= handed_on:
        kind = "sequence"
    return Cause(f"traffic.{kind}", moved)


# operands and kernels that one sentence lists
_MOST_SENTENCES = 3


def _and(names: list[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def padded_products(kernel: Any, chip: Chip) -> tuple[dict[str, float], Any, float, str]:
    """FLOP of all products padded to tiles, by dtype; and the product that wastes most.

    Rows pad to the sublanes of the left operand's tile; contraction and columns, which are the
    matrix unit's two sides, to its size.

    Returns:
        FLOP by dtype; the worst product or None; its efficiency 0..1; ``"rows"`` or ``"sides"``.
    """
    flops: dict[str, float] = {}
    worst: tuple[float, Any, float, str] = (0.0, None, 1.0, "sides")
    side = chip.core.mxu_size
    for call in kernel.calls:
        for product in call.matmuls:
            # the compiler may stream either operand past the other, so the cheaper way counts
            inner = _round_up(product.k, side)
            rows, columns = min(
                (
                    (
                        _round_up(product.m, native_tile(product.lhs_dtype)[0]),
                        _round_up(product.n, side),
                    ),
                    (
                        _round_up(product.m, side),
                        _round_up(product.n, native_tile(product.rhs_dtype)[0]),
                    ),
                ),
                key=lambda sides: sides[0] * sides[1],
            )
            padded = 2.0 * product.batch * product.count * rows * inner * columns * call.times
            name = canonical_dtype(product.dtype)
            flops[name] = flops.get(name, 0.0) + padded
            useful = product.flops * call.times
            if padded - useful > worst[0]:
                by_rows = rows / product.m > inner / product.k * columns / product.n
                kind = "rows" if by_rows else "sides"
                worst = (padded - useful, product, useful / padded, kind)
    return flops, worst[1], worst[2], worst[3]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def padding_cause(
    kernel: Any,
    chip: Chip,
    gap_seconds: float,
    total_seconds: float,
    compute_bound: bool,
    padded_bytes: float,
) -> Cause:
    """Why shapes that do not fill tiles cost time, and whether it shows.

    Args:
        padded_bytes: what moves, padding included.
    """
    _, product, efficiency, kind = padded_products(kernel, chip)
    hidden = gap_seconds <= NEGLIGIBLE * total_seconds
    sentences = []
    if product is not None and efficiency < 0.995:
        sentences.append(
            f"products of [{product.m}, {product.k}] x [{product.k}, {product.n}] fill "
            f"{efficiency:.0%} of the {chip.core.mxu_size}-wide matrix unit"
        )
    more = padded_bytes / max(1, kernel.hbm_bytes)
    if more > 1.005:
        sentences.append(f"padding to native tiles moves {more:.3g} times the bytes")
    if not sentences:
        return Cause("padding.none", "blocks and products fill their tiles")
    text = "; ".join(sentences)
    if hidden:
        return Cause("padding.hidden", f"{text}, hidden behind the slower side")
    if compute_bound and product is not None and efficiency < 0.995:
        return Cause("padding.rows" if kind == "rows" else "padding.matmul", text)
    return Cause("padding.blocks", text)


def measured_cause(predicted: float, measured: float) -> Cause:
    """How a measurement stands to the prediction."""
    change = measured / predicted - 1
    text = f"measured {time_text(measured)}, {change:+.1%} against the prediction"
    if abs(change) <= 0.02:
        return Cause("measured.none", text)
    return Cause("measured.slower" if change > 0 else "measured.faster", text)


def stall_seconds(timeline: Any) -> Mapping[str, float]:
    """Stalls in seconds by cause, largest first."""
    return {
        name: cycles / timeline.clock_hertz
        for name, cycles in sorted(timeline.stall_cycles.items(), key=lambda item: -item[1])
    }
