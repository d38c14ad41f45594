"""A slice of chips as a mesh or torus: neighbours, distances, links."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tpulab.errors import TpulabError
from tpulab.hardware.catalogue import get_chip
from tpulab.hardware.chip import Chip

Coordinate = tuple[int, ...]


@dataclass(frozen=True)
class Torus:
    """Chips on a grid of `shape`; an axis with `wraparound` closes to a ring.

    An axis of two chips has one link between them, whatever its wraparound says.
    """

    shape: tuple[int, ...]
    wraparound: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.wraparound):
            raise TpulabError(
                f"a torus of shape {self.shape} needs {len(self.shape)} wraparound flags, "
                f"not {len(self.wraparound)}"
            )
        if not self.shape or any(size < 1 for size in self.shape):
            raise TpulabError(f"a torus needs positive axis sizes, not {self.shape}")

    @classmethod
    def of_slice(cls, chip: str | Chip, shape: tuple[int, ...]) -> Torus:
        """The torus of a slice of this chip, with the wraparound links such a slice has."""
        ici = get_chip(chip).ici
        if len(shape) > ici.mesh_rank:
            raise TpulabError(
                f"a slice of {get_chip(chip).name} has {ici.mesh_rank} axes, not {len(shape)}"
            )
        wraps = [ici.wraps(size, axis) for axis, size in enumerate(shape)]
        if ici.wraparound == "multiple of 4" and not all(size % 4 == 0 for size in shape):
            # wraparound goes through optical switches, which only join whole 4x4x4 cubes
            wraps = [False] * len(shape)
        return cls(tuple(shape), tuple(wraps))

    @property
    def size(self) -> int:
        """Number of chips."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    def coordinates(self) -> Iterator[Coordinate]:
        """All chips, last axis fastest."""
        return itertools.product(*(range(length) for length in self.shape))

    def _inside(self, coordinate: Coordinate) -> None:
        if len(coordinate) != len(self.shape) or not all(
            0 <= value < length for value, length in zip(coordinate, self.shape, strict=True)
        ):
            raise TpulabError(f"chip {coordinate} is not in a torus of shape {self.shape}")

    def neighbours(self, coordinate: Coordinate) -> tuple[Coordinate, ...]:
        """Chips one link away, axis by axis, lower neighbour first."""
        self._inside(coordinate)
        found: list[Coordinate] = []
        for axis, length in enumerate(self.shape):
            for step in (-1, 1):
                value = coordinate[axis] + step
                if self.wraparound[axis]:
                    value %= length
                elif not 0 <= value < length:
                    continue
                other = (*coordinate[:axis], value, *coordinate[axis + 1 :])
                if other != coordinate and other not in found:
                    found.append(other)
        return tuple(found)

    def axis_hops(self, axis: int, start: int, end: int) -> int:
        """Links between two positions on one axis, the short way round a ring."""
        straight = abs(end - start)
        return min(straight, self.shape[axis] - straight) if self.wraparound[axis] else straight

    def hops(self, start: Coordinate, end: Coordinate) -> int:
        """Fewest links between two chips."""
        self._inside(start)
        self._inside(end)
        return sum(self.axis_hops(axis, start[axis], end[axis]) for axis in range(len(self.shape)))

    @property
    def diameter(self) -> int:
        """Fewest links between the two chips that are furthest apart."""
        return sum(
            length // 2 if wraps else length - 1
            for length, wraps in zip(self.shape, self.wraparound, strict=True)
        )

    @property
    def bisection_links(self) -> int:
        """Links cut when the longest axis is halved."""
        length = max(self.shape)
        if length == 1:
            return 0
        crossings = []
        for axis, size in enumerate(self.shape):
            if size == length:
                rings = 2 if self.wraparound[axis] and size > 2 else 1
                crossings.append(self.size // size * rings)
        return min(crossings)
