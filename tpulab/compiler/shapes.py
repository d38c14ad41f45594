"""Shapes of arrays in HLO text: dtype, dimensions, layout and memory space."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,<=]*)\](?P<layout>\{[^{}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")
_MEMORY_SPACES = {0: "hbm", 1: "vmem", 2: "sflag", 5: "host", 6: "smem"}
_ORDER = re.compile(r"\{([\d,]*)")
_TILE = re.compile(r"T\(([\d,]+)\)")


@dataclass(frozen=True)
class ArrayShape:
    """An array in HLO text.

    Attributes:
        dtype: HLO's name, e.g. ``"bf16"``.
        shape: the dimensions.
        memory_space: ``"hbm"``, ``"vmem"``, ``"smem"``, ``"sflag"``, ``"host"`` or ``"S(n)"``.
        layout: the layout text, e.g. ``"{1,0:T(8,128)(2,1)}"``.
    """

    dtype: str
    shape: tuple[int, ...]
    memory_space: str = "hbm"
    layout: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the values, without the padding to tiles; sub-byte types are packed."""
        bits = dtype_bits(self.dtype)
        count = 1
        for extent in self.shape:
            count *= extent
        return (count * bits + 7) // 8

    @property
    def padded_bytes(self) -> int:
        """Bytes in memory, the dimensions that vary fastest rounded up to the layout's tile."""
        order = _ORDER.match(self.layout)
        tile = _TILE.search(self.layout)
        if tile is None:
            return self.size_bytes
        fastest = [int(axis) for axis in order[1].split(",") if axis] if order else []
        if sorted(fastest) != list(range(len(self.shape))):
            fastest = list(reversed(range(len(self.shape))))
        extents = [self.shape[axis] for axis in fastest]
        # the tile is written slowest first
        for position, unit in enumerate(reversed([int(size) for size in tile[1].split(",")])):
            if position == len(extents):
                extents.append(1)
            extents[position] = -(-extents[position] // unit) * unit
        return math.prod(extents) * dtype_bits(self.dtype) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def dtype_bits(name: str) -> int:
    """Bits of one element of an HLO type; ``pred`` takes a byte. 0 for tokens and opaque types."""
    if name == "pred":
        return 8
    match = re.match(r"[a-z]+(\d+)", name)
    return int(match[1]) if match else 0


def parse_shapes(text: str) -> tuple[ArrayShape, ...]:
    """The arrays in the text of a shape or tuple of shapes."""
    shapes = []
    for match in _ARRAY.finditer(text):
        dims = match["dims"]
        layout = match["layout"] or ""
        space = _SPACE.search(layout)
        number = int(space[1]) if space else 0
        shapes.append(
            ArrayShape(
                match["dtype"],
                tuple(int(part.lstrip("<=")) for part in dims.split(",") if part),
                _MEMORY_SPACES.get(number, f"S({number})"),
                layout,
            )
        )
    return tuple(shapes)
