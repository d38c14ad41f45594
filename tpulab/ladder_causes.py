"""Where the time between two rungs goes: a sentence with numbers, and the advice that follows.

Works on anything with the attributes of ``Kernel``, ``Program`` and ``Timeline``.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tpulab.hardware import Chip, canonical_dtype, native_tile

# a gap below this share of the predicted time is not worth a person's attention
NEGLIGIBLE = 0.005
# a grid step shorter than this many latencies of a transfer has no time to hide one
_SHORT_STEP = 4.0


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
    kernel: Any, gap_seconds: float, hbm_seconds: float, total_seconds: float
) -> Cause:
    """Why blocks move more bytes than the arrays have, and whether it shows."""
    extra = kernel.hbm_bytes - kernel.unique_bytes
    worst: tuple[int, Any, Any] | None = None
    by_hand = 0
    for call in kernel.calls:
        listed = 0
        for operand in call.operands:
            if not operand.is_pipelined:
                listed += operand.array_bytes
                continue
            more = (operand.moved_bytes - operand.array_bytes) * call.times
            if more > 0 and (worst is None or more > worst[0]):
                worst = (more, call, operand)
        copied = call.dma_read_bytes + call.dma_written_bytes
        by_hand += max(0, copied - listed) * call.times
    hidden = gap_seconds <= NEGLIGIBLE * total_seconds
    if extra <= 0:
        if hidden:
            return Cause("traffic.none", "every operand moves once")
        return Cause(
            "traffic.sequence",
            f"{len(kernel.calls)} kernels run one after the other, each at its own limit",
        )
    moved = f"{bytes_text(kernel.hbm_bytes)} move where {bytes_text(kernel.unique_bytes)} would do"
    if worst is not None and worst[0] >= by_hand:
        _, call, operand = worst
        times = operand.moved_bytes / max(1, operand.array_bytes)
        verb = "read" if operand.is_input else "written"
        moved += f"; {operand.name} of {call.name} is {verb} {times:.3g} times"
        key = "traffic.input" if operand.is_input else "traffic.output"
    elif by_hand:
        moved += "; the kernel's own copies bring arrays in more than once"
        key = "traffic.by_hand"
    else:
        key = "traffic.sequence"
    if hidden:
        return Cause(
            "traffic.hidden",
            f"{moved}, {time_text(hbm_seconds)} of HBM time that hides behind the arithmetic",
        )
    return Cause(key, moved)


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
    kernel: Any, chip: Chip, gap_seconds: float, total_seconds: float, compute_bound: bool
) -> Cause:
    """Why shapes that do not fill tiles cost time, and whether it shows."""
    _, product, efficiency, kind = padded_products(kernel, chip)
    padded_bytes = sum(call.hbm_bytes_padded * call.times for call in kernel.calls)
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


_DMA_WAITS = (
    "waiting for DMA",
    "waiting for a copy",
    "prologue/epilogue",
    "XLA operation",
    "semaphore",
)


def is_transfer_stall(cause: str) -> bool:
    """Whether a stall belongs to the pipeline rung and not to the instruction schedule."""
    return cause.startswith(_DMA_WAITS)


def schedule_cause(program: Any, timeline: Any, chip: Chip, gap_seconds: float) -> Cause:
    """Why the compiled instructions take longer than the matrix unit alone would."""
    seconds = timeline.seconds
    if gap_seconds <= NEGLIGIBLE * seconds:
        return Cause("schedule.none", "the instructions keep up with the slower side")
    if timeline.cores < chip.cores_per_device:
        return Cause(
            "schedule.one_core",
            f"{timeline.cores} of {chip.cores_per_device} cores works: the grid has no parallel "
            "axis that could be split",
        )
    clock = timeline.clock_hertz
    stalls = {
        name: cycles
        for name, cycles in timeline.stall_cycles.items()
        if not is_transfer_stall(name)
    }
    busy = dict(timeline.busy_cycles)
    issued = timeline.bundles_issued
    mxu = busy.get("mxu", 0.0)
    issue = max(0.0, issued - mxu)
    worst = max(stalls, key=lambda name: stalls[name]) if stalls else ""
    if worst and stalls[worst] >= issue:
        share = stalls[worst] / clock / seconds
        text = f"waiting for {worst}: {time_text(stalls[worst] / clock)} ({share:.0%} of the run)"
        if worst.endswith("busy"):
            text = text.replace("waiting for ", "the next operation comes too early, ")
        return Cause(f"schedule.{_STALL_KEYS.get(worst, 'other')}", text)
    side = max(
        (unit for unit in busy if not unit.startswith("dma")),
        key=lambda unit: busy[unit],
        default="scalar",
    )
    unit = f"the busiest unit is {side}, {busy.get(side, 0.0) / max(1.0, timeline.cycles):.0%}"
    text = f"{issued:,} bundles are issued"
    if mxu:
        text += f" where the matrix unit needs {mxu:,.0f} cycles"
    text += f"; {unit} of the run"
    spills = getattr(program, "spills", 0)
    bundles = sum(piece.slots.bundles for piece in getattr(program, "kernels", ()))
    if bundles and spills > 0.1 * bundles:
        return Cause("schedule.spills", f"{text}; {spills:,} spills and reloads in {bundles:,}")
    return Cause(f"schedule.{_UNIT_KEYS.get(side, 'issue')}", text)


_STALL_KEYS = {
    "matrix result": "matrix_result",
    "matrix weights": "matrix_weights",
    "matrix unit busy": "matrix_busy",
    "vector result": "vector",
    "vector load": "issue",
    "vector store": "issue",
    "cross-lane result": "cross_lane",
    "cross-lane unit busy": "cross_lane",
    "transcendental result": "transcendental",
    "EUP busy": "transcendental",
    "scalar result": "scalar",
    "scalar load": "scalar",
    "vector to scalar": "scalar",
}
_UNIT_KEYS = {
    "mxu": "issue",
    "load": "issue",
    "store": "issue",
    "vpu": "vector",
    "xlu": "cross_lane",
    "eup": "transcendental",
    "scalar": "scalar",
}


def pipeline_cause(
    kernel: Any,
    timeline: Any,
    gap_seconds: float,
    xla_seconds: float,
    efficiency_seconds: float,
    latency_seconds: float,
) -> Cause:
    """Why transfers and the pipeline's ends are not hidden behind the instructions.

    Args:
        gap_seconds: between schedule and predicted time.
        xla_seconds: XLA's own operations around the kernels.
        efficiency_seconds: what HBM's real bandwidth costs against the data sheet's.
        latency_seconds: the latency of one transfer in each grid step.
    """
    seconds = timeline.seconds
    if gap_seconds <= NEGLIGIBLE * seconds:
        return Cause("pipeline.none", "transfers hide behind the instructions")
    stalls = {
        name: cycles / timeline.clock_hertz
        for name, cycles in timeline.stall_cycles.items()
        if is_transfer_stall(name)
    }
    parts: dict[str, float] = {}
    for name, lost in stalls.items():
        if name.startswith("XLA operation"):
            continue  # part of xla_seconds
        parts[_readable(name, kernel)] = parts.get(_readable(name, kernel), 0.0) + lost
    if xla_seconds > 0:
        parts["XLA operations around the kernel"] = xla_seconds
    ranked = sorted(parts.items(), key=lambda item: -item[1])[:2]
    text = "; ".join(f"{name}: {time_text(lost)}" for name, lost in ranked)

    def told(key: str, sentence: str) -> Cause:
        return Cause(f"pipeline.{key}", sentence + (f"; {text}" if text else ""))

    waits = sum(lost for name, lost in stalls.items() if name.startswith("waiting for DMA"))
    if xla_seconds <= 0.5 * gap_seconds and waits > 0.5 * gap_seconds:
        if kernel is not None and all(math.prod(call.grid) <= 1 for call in kernel.calls):
            return told("one_step", "one grid step: fetch, work and write-back follow one another")
        if efficiency_seconds > 0.5 * gap_seconds:
            return told(
                "bandwidth",
                "HBM streams reach less than the data sheet's bandwidth, which costs "
                f"{time_text(efficiency_seconds)}",
            )
        steps = max(1, timeline.steps)
        if (
            seconds / steps < _SHORT_STEP * latency_seconds / steps
            and latency_seconds > 0.5 * gap_seconds
        ):
            return told(
                "steps",
                f"{steps:,} steps of {time_text(seconds / steps)} are too short to hide a "
                f"transfer's latency of {time_text(latency_seconds / steps)}",
            )
    key = "other"
    if ranked:
        first = ranked[0][0]
        key = (
            "xla"
            if first.startswith("XLA")
            else "prologue"
            if first.startswith("first and last")
            else "wait_output"
            if "output" in first or "written" in first
            else "wait_input"
            if "input" in first or "fetched" in first
            else "by_hand"
        )
    return Cause(f"pipeline.{key}", text or "transfers are not hidden")


def _readable(stall: str, kernel: Any) -> str:
    """The simulator's name of a transfer stall with the operand's own name in it."""
    if stall == "prologue/epilogue":
        return "first and last blocks, not covered by work"
    if not stall.startswith("waiting for DMA: "):
        return stall
    label = stall.removeprefix("waiting for DMA: ")
    kind, _, number = label.partition(" ")
    if kind in ("input", "output") and number.isdigit() and kernel is not None:
        index = int(number)
        for call in kernel.calls:
            # operands are numbered as the program takes them: scalar prefetch, inputs, outputs
            position = index - len(call.scalar_prefetch)
            operands = call.operands
            if 0 <= position < len(operands) and operands[position].is_input == (kind == "input"):
                verb = "fetched" if kind == "input" else "written"
                return f"waiting for {kind} {operands[position].name} to be {verb}"
    return f"waiting for {label}"


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
