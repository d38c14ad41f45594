"""Parts of an array that are touched at least once, against a mask."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tpulab.kernel.instructions import Index
from tpulab.kernel.regions import Touched, elements_touched

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(st.data(), SHAPES)
def test_equal_boxes(data: st.DataObject, shape: list[int]) -> None:
    sizes = [data.draw(st.integers(1, size)) for size in shape]
    starts = data.draw(
        st.lists(st.tuples(*(st.integers(-2, size + 1) for size in shape)), min_size=1, max_size=12)
    )
    mask = np.zeros(shape, bool)
    for start in starts:
        mask[
            tuple(slice(max(at, 0), max(at + n, 0)) for at, n in zip(start, sizes, strict=True))
        ] = True
    assert elements_touched(shape, np.array(starts), sizes) == mask.sum()


@given(st.data(), SHAPES)
def test_copies_of_any_size(data: st.DataObject, shape: list[int]) -> None:
    touched, mask = Touched(shape), np.zeros(shape, bool)
    for _ in range(data.draw(st.integers(1, 6))):
        sizes = [data.draw(st.integers(1, size)) for size in shape]
        starts = [data.draw(st.integers(0, n - size)) for n, size in zip(shape, sizes, strict=True)]
        # the first axis is indexed by a lane value, and once more inside of what that leaves
        indexer = [
            [Index(position=0, size=sizes[0])]
            + [Index(value=at, size=n) for at, n in zip(starts[1:], sizes[1:], strict=True)],
            [Index(value=0, size=1)] + [Index(value=0, size=n) for n in sizes[1:]],
        ]
        touched.copy(indexer, [np.array([starts[0]])], np.ones(1, np.int64), np.ones(1, np.int64))
        corner = [slice(at, at + n) for at, n in zip(starts, sizes, strict=True)]
        corner[0] = slice(starts[0], starts[0] + 1)
        mask[tuple(corner)] = True
    assert touched.elements == mask.sum()
    assert touched.unplaced == 0


def test_places_that_are_not_known_count_as_different_up_to_the_whole() -> None:
    touched = Touched((10, 10))
    for _ in range(3):
        touched.copy([[Index(position=0, size=2), Index(size=10)]], [None], *_once(20))
    assert touched.elements == 60
    for _ in range(3):
        touched.copy(None, [], *_once(20))
    assert touched.elements == 100


def _once(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(1, np.int64), np.array([count])
