"""The chip as blocks and paths: what there is, how fast it is, and what a kernel makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpulab.hardware import Chip
from tpulab.units import bytes_text, seconds_text
from tpulab.visual.figure import Figure
from tpulab.visual.machine import Machine, Part, Tenant, least_text, machine
from tpulab.visual.svg import (
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Drawing,
    shortened,
    text_width,
)

# left, top and width of the core; its height follows from what is in it
_CORE = (8.0, 28.0, 704.0)
_UNIT_TOP, _UNIT_HEIGHT, _UNIT_WIDTH = 42.0, 122.0, 128.0
_UNITS = ("scalar", "mxu", "vpu", "xlu", "eup")
# a colour and a direction of hatching each, so that a piece is known by either
_LOOKS: tuple[tuple[str, str | None], ...] = (
    (SKY, None),
    (ORANGE, "\\"),
    (GREEN, "|"),
    (PURPLE, "-"),
    (YELLOW, None),
    (VERMILLION, "/"),
)
_ROLES = {
    "scalar": "addresses, loops",
    "mxu": "matrix products",
    "vpu": "elementwise, 32 bits",
    "xlu": "across lanes",
    "eup": "exp, log, tanh, …",
}


def chip_map(chip: str | Chip, kernel: Any = None, timeline: Any = None) -> Figure:
    """Draw a chip: memories, units and links with their capacities and rates.

    Rates of a core's parts are of one core. With a kernel, every part tells what the kernel asks of
    it and how long that takes at least, and VMEM shows who takes it. With a timeline, every unit
    tells how much of the predicted run it is busy.

    Args:
        chip: a chip or its name.
        kernel: a traced `Kernel`, one of its `PallasCall`, a compiled `Program` (VMEM as the
            compiler reports it), or a ladder, which holds kernel, program and timeline.
        timeline: a `Timeline`, or a ladder of one chip that holds one.

    Raises:
        UnknownNameError: a chip that is not known.
        UsageError: something else was given as kernel or timeline, or a timeline of another chip.
    """
    found = machine(chip, kernel, timeline)
    drawing = _draw(found)
    alt = _sentence(found)
    columns = _columns(found)
    return Figure(
        title=f"Map of {found.chip.name}" + (f" with {found.kernel}" if found.kernel else ""),
        alt=alt,
        svg=drawing.render(alt),
        header=tuple(columns),
        rows=_rows(found, columns),
    )


def _columns(found: Machine) -> list[str]:
    columns = ["part", "there is", "rate"]
    if any(part.work for part in found.parts.values()):
        columns += ["the kernel's work", "takes at least"]
    if found.run_seconds is not None:
        columns.append("busy")
    return columns


def _rows(found: Machine, columns: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    rows = []
    for part in found.parts.values():
        row = [part.name, part.holds, part.rate]
        if "takes at least" in columns:
            least = seconds_text(part.least_seconds) if part.least_seconds else ""
            row += [part.work, least]
        if "busy" in columns:
            row.append("" if part.busy is None else f"{part.busy:.0%}")
        rows.append(tuple(row))
    for tenant in found.tenants:
        row = [f"VMEM: {tenant.name}", bytes_text(tenant.size_bytes), ""]
        row += [tenant.detail, ""] if "takes at least" in columns else []
        rows.append(tuple([*row, *[""] * (len(columns) - len(row))][: len(columns)]))
    return tuple(rows)


def _draw(found: Machine) -> Drawing:
    x, y, width = _CORE
    cores = found.chip.cores_per_chip
    drawing = Drawing(924.0)
    title = f"TensorCore{f', one of {cores}' if cores > 1 else ''}"
    drawing.text(x, 18, f"{found.chip.name}: {title}", bold=True)
    if found.run_seconds is not None:
        run = f"{found.kernel or 'the run'} takes {seconds_text(found.run_seconds)}, predicted"
        drawing.text(x + width, 18, shortened(run, 420, 11.5), anchor="end", size=11.5)
    columns = _unit_columns(x, width)
    for key, left in columns.items():
        _unit(drawing, found, key, left)
    registers = (columns["mxu"], _UNIT_TOP + _UNIT_HEIGHT + 24.0)
    right = columns["eup"] + _UNIT_WIDTH
    _bar(drawing, found.parts["registers"], *registers, right - registers[0])
    for key in ("mxu", "vpu", "xlu", "eup"):
        middle = columns[key] + _UNIT_WIDTH / 2
        _both_ways(drawing, middle, _UNIT_TOP + _UNIT_HEIGHT + 2, registers[1] - 2)
    memory_top = registers[1] + 28 + 34.0
    middle = columns["vpu"] + _UNIT_WIDTH / 2
    _both_ways(drawing, middle, registers[1] + 30, memory_top - 2)
    load = found.parts["load"]
    busy = "" if load.busy is None else f", busy {load.busy:.0%}"
    text = f"{load.rate}: {load.holds}{busy}"
    drawing.text(middle + 12, (registers[1] + 30 + memory_top) / 2 + 4, text, size=11)
    memory_height = 56.0 + 15 * min(-(-len(found.tenants) // 3), 2)
    _vmem(drawing, found, columns["mxu"], memory_top, right - columns["mxu"], memory_height)
    _smem(drawing, found, columns["scalar"], memory_top, memory_height)
    scalar = columns["scalar"] + _UNIT_WIDTH / 2
    _both_ways(drawing, scalar, _UNIT_TOP + _UNIT_HEIGHT + 2, memory_top - 2)
    bottom = memory_top + memory_height + 12
    drawing.rectangle(x, y, width, bottom - y, stroke="currentColor")
    _outside(drawing, found, bottom, scalar, middle)
    return drawing


def _unit_columns(x: float, width: float) -> dict[str, float]:
    gap = (width - 24 - len(_UNITS) * _UNIT_WIDTH) / (len(_UNITS) - 1)
    return {key: x + 12 + index * (_UNIT_WIDTH + gap) for index, key in enumerate(_UNITS)}


def _unit(drawing: Drawing, found: Machine, key: str, x: float) -> None:
    """A compute unit: its name, how many, its rate, its share of the work."""
    part = found.parts[key]
    top = _UNIT_TOP
    marked = found.slowest == key
    drawing.rectangle(
        x, top, _UNIT_WIDTH, _UNIT_HEIGHT, stroke="currentColor", width_of_line=3 if marked else 1
    )
    drawing.text(x + 8, top + 17, part.name, bold=True)
    lines = [_ROLES[key], part.holds if key != "scalar" else "", part.rate]
    y = top + 32
    for line in filter(None, lines):
        drawing.text(x + 8, y, line, size=10.5)
        y += 14
    for line in filter(None, [part.work, least_text(part)]):
        drawing.text(x + 8, y, line, size=10.5, bold=marked)
        y += 14
    if part.busy is not None:
        _busy(drawing, part.busy, x, top + _UNIT_HEIGHT - 6, _UNIT_WIDTH)
        share = f"busy {part.busy:.0%}"
        drawing.text(x + 8, top + _UNIT_HEIGHT - 11, share, size=10.5)


def _busy(drawing: Drawing, share: float, x: float, y: float, width: float) -> None:
    drawing.rectangle(x, y, width * min(share, 1.0), 6, fill=VERMILLION)
    drawing.rectangle(x, y, width, 6, stroke="currentColor")


def _bar(drawing: Drawing, part: Part, x: float, y: float, width: float) -> None:
    drawing.rectangle(x, y, width, 28, stroke="currentColor")
    drawing.text(x + 8, y + 18, part.name, bold=True)
    indent = 18 + text_width(part.name, 12, bold=True)
    drawing.text(x + indent, y + 18, f"{part.holds}, {part.rate}", size=11)


def _both_ways(drawing: Drawing, x: float, top: float, bottom: float) -> None:
    middle = (top + bottom) / 2
    drawing.arrow(x, middle, x, top, head=6)
    drawing.arrow(x, middle, x, bottom, head=6)


def _vmem(
    drawing: Drawing, found: Machine, x: float, y: float, width: float, height: float
) -> None:
    """VMEM: its size, and who takes it, to the scale of the whole."""
    drawing.rectangle(x, y, width, height, stroke="currentColor")
    part = found.parts["vmem"]
    drawing.text(x + 8, y + 17, f"{part.name} {part.holds}", bold=True)
    limit = found.vmem_limit_bytes
    heading = f"a kernel may take {bytes_text(limit)}"
    if found.vmem_bytes is not None:
        heading = f"{part.work} of {bytes_text(limit)} allowed, {found.vmem_source}"
    drawing.text(x + width - 8, y + 17, heading, anchor="end", size=10.5)
    capacity = found.chip.core.vmem.capacity_bytes
    inner, top = width - 16, y + 26
    scale = inner / max(capacity, found.vmem_bytes or 0)
    at = x + 8
    for index, tenant in enumerate(found.tenants):
        _tenant(drawing, tenant, index, at, top, tenant.size_bytes * scale, 18)
        at += tenant.size_bytes * scale
    drawing.rectangle(x + 8, top, capacity * scale, 18, stroke="currentColor")
    edge = x + 8 + limit * scale
    if limit < capacity:
        drawing.line(edge, top - 4, edge, top + 22, width=2, dashes="3 2")
    _tenant_list(drawing, found.tenants, x + 8, top + 36, inner)


def _tenant(
    drawing: Drawing,
    tenant: Tenant,
    index: int,
    x: float,
    y: float,
    width: float,
    height: float,
) -> None:
    colour, lines = _LOOKS[index % len(_LOOKS)]
    tip = f"{tenant.name}: {bytes_text(tenant.size_bytes)}, {tenant.detail}"
    place = (x, y, max(width, 1.0), height)
    if lines is None:
        drawing.rectangle(*place, fill=colour, tooltip=tip)
    else:
        drawing.hatched(*place, colour=colour, lines=lines, tooltip=tip)


def _tenant_list(
    drawing: Drawing, tenants: Sequence[Tenant], x: float, y: float, width: float
) -> None:
    """Names and sizes beside the colours, in two columns and at most two rows."""
    most = 6
    shown = list(enumerate(tenants))[:most]
    if len(tenants) > most:
        shown = shown[: most - 1]
    column = width / 3
    for place, (index, tenant) in enumerate(shown):
        left, base = x + column * (place % 3), y + 15 * (place // 3)
        _tenant(drawing, tenant, index, left, base - 9, 11, 11)
        text = f"{tenant.name} {bytes_text(tenant.size_bytes)}"
        drawing.text(left + 15, base, shortened(text, column - 18, 10.5), size=10.5)
    if len(tenants) > most:
        rest = tenants[most - 1 :]
        total = bytes_text(sum(tenant.size_bytes for tenant in rest))
        text = f"and {len(rest)} more: {total}"
        drawing.text(x + column * 2 + 15, y + 15, text, size=10.5)


def _smem(drawing: Drawing, found: Machine, x: float, y: float, height: float) -> None:
    part = found.parts["smem"]
    drawing.rectangle(x, y, _UNIT_WIDTH, height, stroke="currentColor")
    drawing.text(x + 8, y + 17, f"{part.name} {part.holds}", bold=True)
    for row, line in enumerate(filter(None, ["scalars, indices", part.work])):
        drawing.text(x + 8, y + 32 + 14 * row, line, size=10.5)


def _outside(drawing: Drawing, found: Machine, y: float, scalar: float, vector: float) -> None:
    """HBM below the core, links and other cores to the right."""
    x, top, width = _CORE
    chip, hbm = found.chip, found.parts["hbm"]
    below = y + 46.0
    _both_ways(drawing, scalar, y - 10, below - 2)
    _both_ways(drawing, vector, y - 10, below - 2)
    marked = found.slowest == "hbm"
    drawing.text(vector + 12, y + 28, f"copies (DMA): {hbm.rate}", size=11)
    drawing.rectangle(x, below, width, 44, stroke="currentColor", width_of_line=3 if marked else 1)
    drawing.text(x + 12, below + 18, f"{hbm.name} {hbm.holds}", bold=True)
    traffic = ", ".join(filter(None, [hbm.work, least_text(hbm)]))
    drawing.text(x + 12, below + 34, traffic or "arrays live here", size=11, bold=marked)
    if hbm.busy is not None:
        _busy(drawing, hbm.busy, x, below + 38, width)
        drawing.text(x + width - 8, below + 18, f"{hbm.busy:.0%} busy", anchor="end", size=10.5)
    right = x + width + 22
    others = chip.cores_per_chip - 1
    if others:
        drawing.rectangle(right, top, 182, 60, stroke="currentColor")
        drawing.text(
            right + 8, top + 18, f"{others} more TensorCore{'s' if others > 1 else ''}", bold=True
        )
        drawing.text(right + 8, top + 34, "the same again: units,", size=10.5)
        drawing.text(right + 8, top + 48, "VMEM and SMEM of its own", size=10.5)
    if chip.sparse_cores_per_chip:
        at = top + (76 if others else 0)
        drawing.rectangle(right, at, 182, 46, stroke="currentColor")
        count = chip.sparse_cores_per_chip
        drawing.text(right + 8, at + 18, f"{count} SparseCores", bold=True)
        drawing.text(right + 8, at + 34, "gather and scatter", size=10.5)
    ici = found.parts["ici"]
    marked = found.slowest == "ici"
    at = below - 46
    drawing.rectangle(right, at, 182, 90, stroke="currentColor", width_of_line=3 if marked else 1)
    drawing.text(right + 8, at + 18, f"{ici.name} {ici.holds}", bold=True)
    lines = [*ici.rate.split(", "), ici.work, least_text(ici)]
    for row, line in enumerate(filter(None, lines)):
        drawing.text(right + 8, at + 33 + 14 * row, line, size=10.5, bold=marked and row > 1)
    drawing.arrow(x + width + 11, below + 22, x + width, below + 22, head=6)
    drawing.arrow(x + width + 11, below + 22, right, below + 22, head=6)
    drawing.height = below + 52.0
    notes = []
    if found.slowest:
        notes.append("thick outline: what needs longest at full rate")
    if found.vmem_limit_bytes < chip.core.vmem.capacity_bytes:
        notes.append("dashed line in VMEM: what a kernel may take")
    if notes:
        drawing.text(x, below + 62, "; ".join(notes), size=11)
        drawing.height += 18


def _sentence(found: Machine) -> str:
    chip, parts = found.chip, found.parts
    cores = chip.cores_per_chip
    text = (
        f"A {chip.name} chip has {parts['hbm'].holds} of HBM at {parts['hbm'].rate}, and "
        f"{cores} TensorCore{'s, each' if cores > 1 else ''} with {parts['vmem'].holds} of VMEM, "
        f"{chip.core.mxu_count} matrix units of {chip.core.mxu_size}×{chip.core.mxu_size} "
        f"for {parts['mxu'].rate}, and {parts['load'].rate} from VMEM into registers"
    )
    if found.kernel and parts["hbm"].work:
        text += f". {found.kernel} {parts['hbm'].work} of HBM and takes "
        text += f"{bytes_text(found.vmem_bytes or 0)} of VMEM"
        if found.slowest:
            slowest = parts[found.slowest]
            text += f"; at full rate the {slowest.name} needs longest, "
            text += seconds_text(slowest.least_seconds or 0.0)
    if found.run_seconds is not None:
        text += f". The run is predicted to take {seconds_text(found.run_seconds)}"
    return text + "."
