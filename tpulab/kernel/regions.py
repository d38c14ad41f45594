"""Which part of an array blocks or copies touch at least once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tpulab.kernel.instructions import Indexer

#: Different boxes, and cells between their edges, beyond which only the largest box counts.
MOST_BOXES = 1 << 18
MOST_CELLS = 1 << 24


def elements_touched(shape: Sequence[int], starts: np.ndarray, sizes: Sequence[int]) -> int:
    """Elements of an array that lie in at least one of several boxes of equal size.

    Args:
        shape: of the array. starts: int array [n, rank], where the boxes begin; what sticks out of
            the array does not count. sizes: of a box.

    Returns:
        The exact number; for very many boxes that overlap, that of the largest one.
    """
    if not shape:
        return 1 if len(starts) else 0
    boxes = np.unique(np.asarray(starts, np.int64), axis=0)
    low = np.clip(boxes, 0, np.asarray(shape))
    high = np.clip(boxes + np.asarray(sizes), 0, np.asarray(shape))
    return _union(np.unique(np.concatenate([low, high], axis=1), axis=0), len(shape))


def _union(boxes: np.ndarray, rank: int) -> int:
    """Volume of the union of boxes, int array [n, 2 rank]: lower corners, then upper ones."""
    boxes = boxes[(boxes[:, rank:] > boxes[:, :rank]).all(axis=1)]
    if not len(boxes):
        return 0
    volumes = (boxes[:, rank:] - boxes[:, :rank]).prod(axis=1)
    edges = [np.unique(boxes[:, [axis, rank + axis]]) for axis in range(rank)]
    # each axis is cut into intervals that no box overlaps another in: then nothing is shared
    if all(_is_tiling(boxes[:, axis], boxes[:, rank + axis]) for axis in range(rank)):
        return int(volumes.sum())
    if len(boxes) > MOST_BOXES or math.prod(len(edge) for edge in edges) > MOST_CELLS:
        return int(volumes.max())
    covered = np.zeros([len(edge) - 1 for edge in edges], bool)
    for box in boxes:
        covered[
            tuple(
                slice(
                    int(np.searchsorted(edges[axis], box[axis])),
                    int(np.searchsorted(edges[axis], box[rank + axis])),
                )
                for axis in range(rank)
            )
        ] = True
    for axis, edge in enumerate(edges):
        widths = np.diff(edge).reshape([-1 if a == axis else 1 for a in range(rank)])
        covered = covered * widths
    return int(covered.sum())


def _is_tiling(low: np.ndarray, high: np.ndarray) -> bool:
    """Whether different intervals have nothing in common."""
    intervals = np.unique(np.stack([low, high], axis=1), axis=0)
    return bool((intervals[1:, 0] >= intervals[:-1, 1]).all())


class Touched:
    """What a kernel's own copies touch of one array.

    Args:
        shape: of the array.

    Attributes:
        unplaced: elements of copies whose place in the array is not known.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)
        self._boxes: set[tuple[int, ...]] = set()
        self.unplaced = 0

    def copy(
        self, indexer: Indexer, values: Sequence[object], weight: np.ndarray, count: np.ndarray
    ) -> None:
        """Take note of a copy.

        Args:
            indexer: which part of the array. values: of the copy's flat operands.
            weight: int array [lanes] or [1], how often each grid step does it.
            count: int array [lanes] or [1], elements of the copy, for when its place is not known.
        """
        place = self._place(indexer, values)
        if place is None or len(self._boxes) > MOST_BOXES:
            self.unplaced += int((np.broadcast_arrays(weight, count)[0] * count).sum())
            return
        starts, sizes = place
        if len(starts) == len(weight):
            starts = starts[weight > 0]
        for start in np.unique(starts, axis=0).tolist():
            edges = [min(max(at, 0), size) for at, size in zip(start, self.shape, strict=True)]
            ends = [
                min(max(at + extent, 0), size)
                for at, extent, size in zip(start, sizes, self.shape, strict=True)
            ]
            self._boxes.add((*edges, *ends))

    def _place(
        self, indexer: Indexer, values: Sequence[object]
    ) -> tuple[np.ndarray, tuple[int, ...]] | None:
        """Corner int array [lanes, rank] and size of what several indexings leave of the array."""
        if indexer is None:
            return None
        starts: list[np.ndarray] = [np.zeros(1, np.int64) for _ in self.shape]
        sizes = list(self.shape)
        left = list(range(len(self.shape)))
        for transform in indexer:
            if len(transform) != len(left):
                return None
            kept = []
            for axis, item in zip(left, transform, strict=True):
                start: object = np.array([item.value])
                if item.position is not None:
                    start = values[item.position]
                if item.size_position is not None or item.stride != 1:
                    return None
                if not isinstance(start, np.ndarray) or start.ndim != 1:
                    return None
                starts[axis] = starts[axis] + start.astype(np.int64)
                sizes[axis] = 1 if item.size is None else item.size
                if item.is_slice:
                    kept.append(axis)
            left = kept
        if not starts:
            return np.zeros((1, 0), np.int64), ()
        return np.stack(np.broadcast_arrays(*starts), axis=1), tuple(sizes)

    @property
    def elements(self) -> int:
        """Elements that are copied at least once.

        Copies to or from places that are not known count as different ones, up to the whole array.
        """
        return min(math.prod(self.shape), self._known() + self.unplaced)

    @property
    def is_a_guess(self) -> bool:
        """Whether copies to or from places that are not known make the difference.

        Copies that together are as large as the array, once or several times, sweep over it.
        """
        known = self._known()
        swept = (known + self.unplaced) % max(1, math.prod(self.shape)) == 0
        return self.elements > known and not swept

    def _known(self) -> int:
        if not self._boxes:
            return 0
        boxes = np.array(sorted(self._boxes), np.int64)
        return _union(boxes, len(self.shape)) if self.shape else 1
