"""Native tiles, packed sizes and the torus against brute force."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.hardware import Torus, bits, bytes_of, dtype_name, native_tile


@pytest.mark.parametrize(
    ("dtype", "tile"),
    [
        ("float32", (8, 128)),
        ("bf16", (16, 128)),
        ("int8", (32, 128)),
        ("int4", (64, 128)),
        ("int64", (8, 128)),
    ],
)
def test_native_tile(dtype: str, tile: tuple[int, int]) -> None:
    assert native_tile(dtype) == tile


def test_a_native_tile_fills_one_register() -> None:
    for dtype in ("float32", "bfloat16", "int8", "int4", "float8_e4m3fn", "int2"):
        sublanes, lanes = native_tile(dtype)
        assert bytes_of(sublanes * lanes, dtype) == 4096


def test_dtypes_of_numpy_and_jax() -> None:
    import jax.numpy as jnp
    import numpy as np

    assert dtype_name(np.float32) == "float32"
    assert dtype_name(np.dtype("int8")) == "int8"
    assert dtype_name(jnp.bfloat16) == "bfloat16"
    assert dtype_name(jnp.dtype("int4")) == "int4"
    assert bits(jnp.bool_) == 8
    with pytest.raises(UnknownNameError, match="bfloat16"):
        dtype_name("bfloat")


@given(st.integers(0, 10**6))
def test_packed_bytes(count: int) -> None:
    assert bytes_of(count, "int4") == (count + 1) // 2
    assert bytes_of(count, "bfloat16") == 2 * count


def _shapes() -> st.SearchStrategy[Torus]:
    return st.integers(1, 3).flatmap(
        lambda rank: st.builds(
            Torus,
            st.tuples(*[st.integers(1, 5)] * rank),
            st.tuples(*[st.booleans()] * rank),
        )
    )


@given(_shapes(), st.data())
def test_hops_are_shortest_paths(torus: Torus, data: st.DataObject) -> None:
    start = data.draw(st.sampled_from(list(torus.coordinates())))
    distance = {start: 0}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for there in torus.neighbours(here):
            if there not in distance:
                distance[there] = distance[here] + 1
                queue.append(there)
    assert set(distance) == set(torus.coordinates())
    for end, expected in distance.items():
        assert torus.hops(start, end) == expected
    assert max(distance.values()) <= torus.diameter


@given(_shapes())
def test_neighbourhood_is_symmetric(torus: Torus) -> None:
    chips = list(torus.coordinates())
    assert len(chips) == torus.size
    for chip in chips:
        for other in torus.neighbours(chip):
            assert chip in torus.neighbours(other)
            assert torus.hops(chip, other) == 1


def test_wraparound_of_real_slices() -> None:
    # published rules: v5e only along a full axis of 16, v5p on multiples of whole 4x4x4 cubes
    assert Torus.of_slice("v5e", (4, 4)).wraparound == (False, False)
    assert Torus.of_slice("v5e", (8, 16)).wraparound == (False, True)
    assert Torus.of_slice("v6e", (16, 16)).wraparound == (True, True)
    assert Torus.of_slice("v5p", (2, 2, 4)).wraparound == (False, False, False)
    assert Torus.of_slice("v5p", (4, 4, 8)).wraparound == (True, True, True)
    with pytest.raises(TpulabError, match="has 2 axes"):
        Torus.of_slice("v5e", (2, 2, 2))


def test_diameter_and_bisection() -> None:
    # a v5e pod: 16x16 torus, 16 + 16 links cut; the data sheet's 1.6 TB/s is
    # 32 links x 50 GB/s one way
    pod = Torus.of_slice("v5e", (16, 16))
    assert pod.diameter == 16
    assert pod.bisection_links * 50e9 == pytest.approx(1.6e12)
    assert Torus((4, 4), (False, False)).hops((0, 0), (3, 3)) == 6
    assert Torus((1,), (False,)).bisection_links == 0


def test_wrong_torus() -> None:
    with pytest.raises(TpulabError, match="wraparound flags"):
        Torus((2, 2), (True,))
    with pytest.raises(TpulabError, match="positive"):
        Torus((0, 2), (True, True))
    with pytest.raises(TpulabError, match="not in a torus"):
        Torus((2, 2), (True, True)).neighbours((2, 0))
