"""How an array lies in memory: dimension order and tiles, in the notation of HLO."""

from __future__ import annotations

import re
from typing import Any

_LAYOUT = re.compile(r"\{([\d,]*)(?::((?:T|\().*?))?\}")
_TILE = re.compile(r"\(([\d,*]+)\)")


def words(values: Any, layout: str = "") -> list[int | None]:
    """The 32-bit words of an array as it lies in memory, as int32; ``None`` where nothing lies.

    Args:
        values: the array; elements of 8 or 16 bits are packed as the layout says.
        layout: HLO layout, for example ``"{1,0:T(8,128)(4,1)S(6)}"``: dimensions from minor to
            major, then tiles. Without one the array lies in row-major order.
    """
    import numpy

    array = numpy.asarray(values)
    if array.dtype == bool:
        array = array.astype(numpy.int8)
    if array.dtype.itemsize == 8:
        array = array.astype(numpy.int32 if array.dtype.kind in "iu" else numpy.float32)
    order, tiles = _parse_layout(layout, array.ndim)
    place, size = _places(array.shape, order, tiles)
    width = array.dtype.itemsize
    count = max(1, -(-size * width // 4))
    data = numpy.zeros(count * 4, numpy.uint8)
    filled: Any = numpy.zeros(count * 4, bool)
    raw = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).reshape(-1, width)
    for byte in range(width):
        data[place * width + byte] = raw[:, byte]
        filled[place * width + byte] = True
    known = filled.reshape(-1, 4).any(axis=1).tolist()
    return [
        word if there else None
        for word, there in zip(data.view(numpy.int32).tolist(), known, strict=True)
    ]


def _parse_layout(layout: str, rank: int) -> tuple[list[int], list[tuple[int, ...]]]:
    """Dimensions from major to minor, and the tiles, outermost first."""
    row_major = list(range(rank))
    found = _LAYOUT.search(layout)
    if found is None:
        return row_major, []
    minor_to_major = [int(number) for number in found.group(1).split(",") if number]
    order = minor_to_major[::-1] if len(minor_to_major) == rank else row_major
    text = (found.group(2) or "").split("S(")[0]
    if not text.startswith("T") or rank == 0:
        return order, []
    tiles = []
    for tile in _TILE.findall(text):
        if "*" in tile:
            return order, []
        tiles.append(tuple(int(number) for number in tile.split(",")))
    return order, tiles


def _places(
    shape: tuple[int, ...], order: list[int], tiles: list[tuple[int, ...]]
) -> tuple[Any, int]:
    """Where each element (in row-major order) lies, counted in elements, and the padded size."""
    import numpy

    if not shape:
        return numpy.zeros(1, numpy.int64), 1
    indices = numpy.indices(shape).reshape(len(shape), -1)
    coordinates = [indices[dimension] for dimension in order]
    sizes = [shape[dimension] for dimension in order]
    for tile in tiles:
        rank = len(tile)
        if rank > len(sizes):
            tile = tile[rank - len(sizes) :]
            rank = len(tile)
        split = len(sizes) - rank
        outer = [c // t for c, t in zip(coordinates[split:], tile, strict=True)]
        inner = [c % t for c, t in zip(coordinates[split:], tile, strict=True)]
        outer_sizes = [-(-s // t) for s, t in zip(sizes[split:], tile, strict=True)]
        # The next tile divides the inside of this one.
        coordinates = coordinates[:split] + outer + inner
        sizes = sizes[:split] + outer_sizes + list(tile)
    place = numpy.zeros(indices.shape[1], numpy.int64)
    total = 1
    for coordinate, size in zip(reversed(coordinates), reversed(sizes), strict=True):
        place += coordinate * total
        total *= size
    return place, total
