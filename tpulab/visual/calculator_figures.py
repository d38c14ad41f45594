"""What the calculators draw: a product under its roof, blocks beside it, a collective's time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tpulab.errors import UsageError
from tpulab.hardware import Chip, canonical_dtype, get_chip
from tpulab.roofline import (
    KINDS,
    Links,
    Tilings,
    Work,
    balanced_bytes,
    bound,
    collective,
    critical_batch,
    links_in_use,
    matmul_tilings,
)
from tpulab.units import bytes_text, seconds_text
from tpulab.visual.figure import Figure
from tpulab.visual.roof import roofline
from tpulab.visual.svg import BLUE, ORANGE, VERMILLION, Drawing

_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 560.0, 16.0, 290.0


def matmul_roofline(
    m: int,
    k: int,
    n: int,
    *,
    dtype: Any = "bfloat16",
    rhs_dtype: Any = None,
    chips: Sequence[str | Chip] = ("v5e",),
) -> Figure:
    """Where a product [m, k] × [k, n] stands under the roofs of some chips, at best.

    Each array crosses HBM once; the result has `dtype`. The table has the least time on each chip,
    what sets it, and the rows m from which compute would.

    Raises:
        TpulabError: a size, dtype or chip that does not exist.
    """
    known = [get_chip(chip) for chip in chips]
    work = Work.matmul(m, k, n, dtype, rhs_dtype=rhs_dtype)
    (wider,) = work.matmul_flops
    picture = roofline(known, {f"{m} × {k} × {n}": work.intensity}, dtype=wider)
    bounds = [bound(work, chip, per="chip") for chip in known]
    parts, rows = [], []
    for chip, one in zip(known, bounds, strict=True):
        rows_needed = critical_batch(
            one.peak_flops_per_second,
            one.hbm_bytes_per_second,
            weight_dtype=rhs_dtype or dtype,
            activation_dtype=dtype,
            k=k,
            n=n,
        )
        share = one.flops_per_second / one.peak_flops_per_second
        needed = f"{math.ceil(rows_needed):,}" if math.isfinite(rows_needed) else "never"
        limit = "memory" if one.limiting == "HBM" else one.limiting
        parts.append(
            f"{chip.name}: at least {seconds_text(one.seconds)}, bound by {limit}, "
            f"{share:.0%} of peak"
        )
        rows.append(
            (
                chip.name,
                seconds_text(one.seconds),
                limit,
                f"{share:.1%}",
                f"{one.intensity:,.1f}",
                f"{one.ridge_point:,.1f}",
                needed,
            )
        )
    kinds = wider if rhs_dtype is None else f"{dtype} × {rhs_dtype}"
    return dataclasses.replace(
        picture,
        title=f"Least time of [{m}, {k}] × [{k}, {n}] in {kinds}: a bound, not a prediction",
        alt="; ".join(parts) + ". Every array crosses HBM once; no program is faster.",
        header=(
            "chip",
            "least time",
            "bound by",
            "of peak",
            "FLOP/byte",
            "ridge",
            "compute from m",
        ),
        rows=tuple(rows),
    )


def tiling_roofline(
    m: int,
    k: int,
    n: int,
    block_m: int,
    block_k: int,
    block_n: int,
    *,
    dtype: Any = "bfloat16",
    rhs_dtype: Any = None,
    order: str = "mnk",
    chip: str | Chip = "v5e",
) -> Figure:
    """What blocks make of a product [m, k] × [k, n]: traffic, VMEM and the time they allow.

    Two points under the roof of the chip: every array once, and what these blocks move. See
    :func:`tpulab.roofline.matmul_tilings` for the model.

    Raises:
        TpulabError: a size, dtype or chip that does not exist.
    """
    tilings = matmul_tilings(
        m, k, n, block_m, block_k, block_n,
        chip=chip, dtype=dtype, rhs_dtype=rhs_dtype, order=order,
    )  # fmt: skip
    return tiling_figure(tilings)


def tiling_figure(tilings: Tilings) -> Figure:
    """The picture of one choice of blocks; see :func:`tiling_roofline`."""
    (entry,) = tilings.to_json()["tilings"]
    chip = get_chip(tilings.chip)
    m, k, n = tilings.m, tilings.k, tilings.n
    work = Work.matmul(m, k, n, tilings.dtype, rhs_dtype=tilings.rhs_dtype)
    (wider,) = work.matmul_flops
    moved = entry["hbm_read_bytes"] + entry["hbm_written_bytes"]
    seconds = entry["estimate_seconds"] * chip.cores_per_device / chip.cores_per_chip
    sizes = ", ".join(str(size) for size in entry["block"])
    points: dict[str, float | tuple[float, float]] = {
        "each array once": work.intensity,
        f"blocks {sizes}": (work.flops / moved, work.flops / seconds),
    }
    picture = roofline([chip], points, dtype=canonical_dtype(wider))
    verdict = _fit(tilings, entry)
    least = tilings.speed_of_light_seconds
    return dataclasses.replace(
        picture,
        title=f"Blocks {sizes} (m, k, n) for [{m}, {k}] × [{k}, {n}] on {chip.name}: an estimate",
        alt=(
            f"These blocks move {bytes_text(moved)} through HBM where {bytes_text(work.hbm_bytes)} "
            f"would do, and take about {seconds_text(entry['estimate_seconds'])}; at best it is "
            f"{seconds_text(least)}. {verdict}"
        ),
        header=("", "these blocks", "at best"),
        rows=(
            ("HBM traffic", bytes_text(moved), bytes_text(work.hbm_bytes)),
            ("FLOP/byte", f"{work.flops / moved:,.1f}", f"{work.intensity:,.1f}"),
            ("ridge of the chip", f"{chip.ridge_point(wider):,.1f}", ""),
            ("time of the traffic", seconds_text(entry["memory_seconds"]), ""),
            ("time of the arithmetic", seconds_text(entry["compute_seconds"]), ""),
            ("estimate", seconds_text(entry["estimate_seconds"]), seconds_text(least)),
            ("limited by", "memory" if entry["limiting"] == "HBM" else "compute", ""),
            ("VMEM", bytes_text(entry["vmem_bytes"]), bytes_text(tilings.vmem_limit_bytes)),
            ("grid steps", f"{entry['steps']:,}", ""),
        ),
    )


def _fit(tilings: Tilings, entry: dict[str, Any]) -> str:
    if not entry["legal"]:
        return (
            "They are not legal: block_m must be a multiple of 8, block_k and block_n of 128, or "
            "the whole dimension, and k must be walked last."
        )
    need, limit = bytes_text(entry["vmem_bytes"]), bytes_text(tilings.vmem_limit_bytes)
    if not entry["fits"]:
        return f"They do not fit: {need} of VMEM, and a kernel may take {limit} by default."
    return f"They take {need} of {limit} of VMEM."


def collective_times(
    kind: str,
    total_bytes: float,
    axis_sizes: Sequence[int],
    *,
    chip: str | Chip = "v5e",
    wraparound: bool | Sequence[bool] | None = None,
) -> Figure:
    """Time of a collective against the size of its array: flat where hops decide, then a slope.

    Args:
        kind: one of :data:`tpulab.roofline.KINDS`.
        total_bytes: of the whole array over all chips.
        axis_sizes: chips along the axes the collective runs over.
        chip: whose links.
        wraparound: which axes are rings; None for what a slice of just these axes has.

    Raises:
        TpulabError: a kind, chip or slice that does not exist.
    """
    chip = get_chip(chip)
    links = Links.of(chip, tuple(axis_sizes), wraparound=wraparound)
    cost = collective(kind, total_bytes, links)
    if links.chips < 2:
        raise UsageError("a collective needs at least two chips", hint="try 4, or 4x4")
    alt = (
        f"{kind} of {bytes_text(total_bytes)} over {_shape(links)} of {chip.name} takes at least "
        f"{seconds_text(cost.seconds)}, set by {cost.limiting}: {links_in_use(kind, links)}. Below "
        f"{bytes_text(balanced_bytes(kind, links))} the hops set the time, above it the bytes."
    )
    costs = [collective(each, total_bytes, links) for each in KINDS]
    return Figure(
        title=f"{kind} on {_shape(links)} of {chip.name}: a bound from links and hops",
        alt=alt,
        svg=_draw_times(kind, total_bytes, links, alt),
        header=("collective", "bytes", "latency", "bandwidth", "least time", "set by"),
        rows=tuple(
            (
                each.kind,
                bytes_text(total_bytes),
                seconds_text(each.latency_seconds),
                seconds_text(each.bandwidth_seconds),
                seconds_text(each.seconds),
                each.limiting,
            )
            for each in costs
        ),
    )


def _shape(links: Links) -> str:
    return " × ".join(
        f"{size}{' (ring)' if ring and size > 2 else ''}"
        for size, ring in zip(links.axis_sizes, links.wraparound, strict=True)
    )


def _draw_times(kind: str, total_bytes: float, links: Links, alt: str) -> str:
    turn = balanced_bytes(kind, links)
    low = math.floor(math.log10(min(total_bytes, turn))) - 1
    high = math.ceil(math.log10(max(total_bytes, turn))) + 1
    ends = [collective(kind, 10.0**exponent, links) for exponent in (low, high)]
    y_low = math.floor(math.log10(ends[0].seconds)) - 0.3
    y_high = math.log10(ends[1].seconds) + 0.1

    def x(size: float) -> float:
        return _LEFT + (math.log10(size) - low) / (high - low) * (_RIGHT - _LEFT)

    def y(seconds: float) -> float:
        share = (math.log10(seconds) - y_low) / (y_high - y_low)
        return _BOTTOM - share * (_BOTTOM - _TOP)

    drawing = Drawing(_RIGHT + 250.0, _BOTTOM + 46.0)
    drawing.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM)
    drawing.line(_LEFT, _TOP, _LEFT, _BOTTOM)
    for exponent in range(low, high + 1):
        drawing.line(x(10.0**exponent), _TOP, x(10.0**exponent), _BOTTOM, opacity=0.2, width=0.7)
        if (high - low) <= 8 or (exponent - low) % 2 == 0:
            label = _decimal_bytes(10.0**exponent)
            drawing.text(x(10.0**exponent), _BOTTOM + 17, label, anchor="middle", size=11)
    for exponent in range(math.ceil(y_low), math.floor(y_high) + 1):
        drawing.line(_LEFT, y(10.0**exponent), _RIGHT, y(10.0**exponent), opacity=0.2, width=0.7)
        label = seconds_text(10.0**exponent).replace(".00", "").replace(".0", "")
        drawing.text(_LEFT - 6, y(10.0**exponent) + 4, label, anchor="end", size=11)
    middle = (_LEFT + _RIGHT) / 2
    drawing.text(middle, _BOTTOM + 36, "bytes of the whole array", anchor="middle")
    floor, slope = ends[0].seconds, ends[1].seconds
    drawing.polyline([(_LEFT, y(floor)), (x(turn), y(floor))], stroke=VERMILLION, dashes="7 3")
    drawing.polyline([(x(turn), y(floor)), (_RIGHT, y(slope))], stroke=BLUE)
    cost = collective(kind, total_bytes, links)
    px, py = x(total_bytes), y(cost.seconds)
    drawing.polygon([(px, py - 6), (px + 6, py), (px, py + 6), (px - 6, py)], fill=ORANGE)
    drawing.text(px + 8, py + 17, "A", bold=True)
    _time_list(drawing, kind, cost, turn)
    return drawing.render(alt)


def _time_list(drawing: Drawing, kind: str, cost: Any, turn: float) -> None:
    left, line = _RIGHT + 24, _TOP + 14
    for colour, dashes, text in (
        (VERMILLION, "7 3", f"latency: {cost.hops} hops in a row"),
        (BLUE, "", "bandwidth of the busiest links"),
    ):
        drawing.polyline([(left, line - 4), (left + 30, line - 4)], stroke=colour, dashes=dashes)
        drawing.text(left + 38, line, text, size=11)
        line += 19
    drawing.text(left, line, f"they meet at {bytes_text(turn)}", size=11)
    drawing.text(left, line + 27, "A", bold=True)
    drawing.text(left + 16, line + 27, f"{kind}: {seconds_text(cost.seconds)}", size=11)


def _decimal_bytes(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:g} {unit}"
    return f"{count:g} B"
