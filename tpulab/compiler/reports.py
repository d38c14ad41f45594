"""Memory and slot reports that the compiler writes beside its listings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpulab.compiler.shapes import ArrayShape

_SCOPED_CONFIG = re.compile(r'"(used_)?scoped_memory_configs": ?\[([^\]]*)\]')
_SCOPED_SIZE = re.compile(r'"memory_space": ?"1".*?"size": ?"(\d+)"')


@dataclass(frozen=True)
class Allocation:
    """One block of vector memory that the compiler set aside.

    Attributes:
        tag: what it is for, in the compiler's words, e.g. ``"scratch operand"``.
        shape: array shape as text, or None.
        size_bytes: size of all its buffers together, with padding.
        buffers: how many buffers (2 when a window is double buffered).
        padding_bytes: how much of the size is padding to whole tiles.
        kind: ``"input window"``, ``"output window"``, ``"scratch"``, ``"spill"``, ``"array"``,
            ``"other"``.
    """

    tag: str
    shape: str | None
    size_bytes: int
    buffers: int
    padding_bytes: int
    kind: str


@dataclass(frozen=True)
class VmemReport:
    """Vector memory of one core.

    Attributes:
        used_bytes: the most that any Pallas kernel of the program uses at once, spills included.
            For a kernel that the compiler lists no memory for, the arrays that XLA put into VMEM:
            it works on them where they are.
        limit_bytes: what that kernel may use (its ``vmem_limit_bytes`` or the chip's default).
        capacity_bytes: what the core has; None when the compiler does not say.
        spill_bytes: what of it holds spilled registers.
        allocations: of the kernel that uses most.
        by_piece: used bytes of every kernel.
        reported: False when the compiler said nothing, so that the zeros mean nothing.
    """

    used_bytes: int
    limit_bytes: int
    capacity_bytes: int | None
    spill_bytes: int
    allocations: tuple[Allocation, ...]
    by_piece: Mapping[str, int] = field(default_factory=dict)
    reported: bool = True


@dataclass(frozen=True)
class SlotUse:
    """Static use of the instruction slots of a listing (every bundle counted once).

    Attributes:
        bundles: how many bundles.
        used: operations per slot kind: MXU, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE,
            VSTORE:SPILL, SALU, as the compiler prints them.
        capacity: slots per bundle of each kind.
    """

    bundles: int
    used: Mapping[str, int]
    capacity: Mapping[str, int]

    def fraction(self, slot: str) -> float:
        """Share of a slot kind's places that hold an operation, 0 to 1."""
        places = self.bundles * self.capacity.get(slot, 0)
        return self.used.get(slot, 0) / places if places else 0.0


NO_SLOTS = SlotUse(0, {}, {})
"""Of a piece without a listing."""


def parse_slot_use(text: str) -> SlotUse:
    """Total the compiler's per-bundle utilisation table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    header = next((line for line in lines if "," in line and "VALU" in line), None)
    if header is None:
        return NO_SLOTS
    names = [name.strip() for name in header.split(",")]
    rows = [line.split() for line in lines[lines.index(header) + 1 :] if line[0].isdigit()]
    if not rows:
        return NO_SLOTS
    capacity, *table = [[int(cell) for cell in row] for row in rows if len(row) == len(names)]
    totals = [sum(column) for column in zip(*table, strict=True)] or [0] * len(names)
    return SlotUse(
        len(table), dict(zip(names, totals, strict=True)), dict(zip(names, capacity, strict=True))
    )


def parse_vmem_report(
    html: str,
    kernels: Mapping[str, str],
    default_limit_bytes: int,
    arrays: Mapping[str, Sequence[ArrayShape]] | None = None,
) -> VmemReport:
    """Read the data of the compiler's VMEM page.

    Args:
        html: the page.
        kernels: HLO instruction text of every kernel, by name.
        default_limit_bytes: what a kernel may use when it asks for nothing else.
        arrays: what every kernel reads and makes, by name.
    """
    data = _page_data(html)
    capacity = (data.get("global_info") or {}).get("vmem_capacity")
    breakdowns = data.get("hlo_breakdowns") or {}
    worst: tuple[int, str] = (0, "")
    by_piece: dict[str, int] = {}
    in_place: dict[str, list[Allocation]] = {}
    for name in kernels:
        blocks = (breakdowns.get(name) or {}).get("blocks") or []
        used = sum(
            block.get("block_size", 0) for block in blocks if block.get("block_type") == "SCOPED"
        )
        if not used:
            in_place[name] = [
                _array_in_place(shape)
                for shape in (arrays or {}).get(name, ())
                if shape.memory_space == "vmem"
            ]
            used = sum(allocation.size_bytes for allocation in in_place[name])
        by_piece[name] = used
        worst = max(worst, (used, name))
    allocations: list[Allocation] = in_place.get(worst[1], [])
    for block in (breakdowns.get(worst[1]) or {}).get("blocks") or []:
        if block.get("block_type") == "SCOPED":
            allocations.extend(_allocation(entry) for entry in block.get("allocations") or [])
    return VmemReport(
        used_bytes=worst[0],
        limit_bytes=_asked_limit(kernels.get(worst[1], "")) or default_limit_bytes,
        capacity_bytes=int(capacity) if capacity else None,
        spill_bytes=sum(a.size_bytes for a in allocations if a.kind == "spill"),
        allocations=tuple(allocations),
        by_piece=by_piece,
        reported=bool(data),
    )


def _array_in_place(shape: ArrayShape) -> Allocation:
    size = shape.padded_bytes
    return Allocation(
        "array in VMEM", str(shape), size, 1, max(0, size - shape.size_bytes), "array"
    )


def _page_data(html: str) -> dict[str, Any]:
    start = html.find("const DATA")
    if start < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(html, html.index("{", start))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _asked_limit(hlo_instruction: str) -> int | None:
    """The ``vmem_limit_bytes`` that a kernel asked for."""
    sizes = [
        int(size)
        for _, config in _SCOPED_CONFIG.findall(hlo_instruction)
        for size in _SCOPED_SIZE.findall(config)
    ]
    return max(sizes, default=None)


def _allocation(entry: Mapping[str, Any]) -> Allocation:
    tag = str(entry.get("tag", ""))
    lowered = tag.lower()
    buffers = re.search(r"has (\d+) buffering levels", tag)
    kind = "other"
    for word, name in (
        ("spill", "spill"),
        ("input window", "input window"),
        ("output window", "output window"),
        ("scratch", "scratch"),
    ):
        if lowered.startswith(word):
            kind = name
    return Allocation(
        tag=tag,
        shape=entry.get("shape"),
        size_bytes=int(entry.get("size", 0)),
        buffers=int(buffers[1]) if buffers else 1,
        padding_bytes=int(entry.get("padding", 0)),
        kind=kind,
    )
