"""Moves and bytes against a plain Python walk over the grid, on random grids and index maps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from tests.kernel import sample_kernels as samples
from tpulab.hardware import native_tile as hardware_tile
from tpulab.kernel import trace
from tpulab.kernel.model import array_bytes, dtype_bits, native_tile, padded_bytes
from tpulab.kernel.traffic import moving_steps


def walk(
    grid: tuple[int, ...], index_map: Any, block: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], list[bool], list[bool], list[int]]:
    """(block index, fetched, written back, elements inside the array) at every step, in a loop."""
    indices = [
        tuple(int(v) for v in index_map(*step))
        for step in itertools.product(*(range(bound) for bound in grid))
    ]
    fetched, written, inside = [], [], []
    for position, index in enumerate(indices):
        fetched.append(position == 0 or indices[position - 1] != index)
        written.append(position == len(indices) - 1 or indices[position + 1] != index)
        sizes = []
        for i, b, s in zip(index, block, shape, strict=True):
            sizes.append(min(b, s - i * b) if 0 <= i * b < s else b)
        inside.append(math.prod(sizes))
    return indices, fetched, written, inside


# every way in which index maps usually combine grid coordinates
TERMS = [
    lambda ids: ids[0],
    lambda ids: ids[-1],
    lambda ids: 0,
    lambda ids: ids[0] // 2,
    lambda ids: ids[-1] % 2,
    lambda ids: (ids[0] + ids[-1]) % 3,
    lambda ids: 2 - ids[0] % 3,
    lambda ids: jnp.minimum(ids[0], 1) if not isinstance(ids[0], int) else min(ids[0], 1),
    lambda ids: (
        jnp.where(ids[0] > ids[-1], ids[0], 0)
        if not isinstance(ids[0], int)
        else (ids[0] if ids[0] > ids[-1] else 0)
    ),
]


@settings(max_examples=60, deadline=None)
@given(
    grid=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    row=st.sampled_from(TERMS),
    column=st.sampled_from(TERMS),
    ragged=st.booleans(),
)
def test_moves_and_bytes_equal_a_plain_walk(
    grid: tuple[int, ...], row: Any, column: Any, ragged: bool
) -> None:
    block = (8, 128)
    shape = (8 * 6 - 4 * ragged, 128 * 6 - 28 * ragged)

    def index_map(*ids: Any) -> tuple[Any, Any]:
        return row(ids), column(ids)

    function = samples.copy_blocks(block, grid, index_map)
    (call,) = trace(function, jax.ShapeDtypeStruct(shape, jnp.bfloat16)).calls
    indices, fetched, written, inside = walk(grid, index_map, block, shape)
    assert call.block_indices("x").tolist() == [list(index) for index in indices]
    assert call.moves("x").tolist() == fetched
    assert call.moves("out").tolist() == written
    read = sum(2 * size for size, moves in zip(inside, fetched, strict=True) if moves)
    write = sum(2 * size for size, moves in zip(inside, written, strict=True) if moves)
    assert call.hbm_read_bytes == read
    assert call.hbm_written_bytes == write


@settings(max_examples=60, deadline=None)
@given(keys=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_moving_steps(keys: list[tuple[int, int]]) -> None:
    array = np.array(keys)
    fetched = moving_steps(array, True).tolist()
    written = moving_steps(array, False).tolist()
    assert fetched == [i == 0 or keys[i] != keys[i - 1] for i in range(len(keys))]
    last = len(keys) - 1
    assert written == [i == last or keys[i] != keys[i + 1] for i in range(len(keys))]
    # as many blocks leave as arrive
    assert sum(fetched) == sum(written)


@settings(max_examples=40, deadline=None)
@given(
    table=st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
def test_prefetched_tables_equal_a_plain_walk(table: list[int]) -> None:
    values = np.array(table, np.int32)
    (call,) = trace(samples.gather_blocks, values, "f32[32,128]").calls
    expected = [i == 0 or table[i] != table[i - 1] for i in range(len(table))]
    assert call.moves("x").tolist() == expected


@settings(max_examples=50, deadline=None)
@given(a=st.integers(-50, 50), b=st.integers(-7, 7).filter(bool), grid=st.integers(1, 9))
def test_integer_arithmetic_is_that_of_the_chip(a: int, b: int, grid: int) -> None:
    """Division truncates and remainders take the dividend's sign in lax; jnp's // and % floor."""

    def index_map(i: Any) -> tuple[Any, Any]:
        quotient = jax.lax.div(i + a, jnp.int32(b))
        rest = jax.lax.rem(i + a, jnp.int32(b))
        floor = (i + a) // b + (i + a) % b
        return jnp.abs(quotient + rest + floor) * 0 + quotient, rest

    (call,) = trace(samples.copy_blocks((8, 128), (grid,), index_map), "f32[64,256]").calls
    expected = [[int(math.trunc((i + a) / b)), int(math.fmod(i + a, b))] for i in range(grid)]
    assert call.block_indices("x").tolist() == expected


def test_index_map_that_needs_jax_itself() -> None:
    table = np.array([4, 2, 0, 1], np.int32)

    def index_map(i: Any) -> tuple[Any, Any]:
        # population count has no numpy twin here
        return jax.lax.population_count(i), 0

    (call,) = trace(samples.copy_blocks((8, 128), (8,), index_map), "f32[64,128]").calls
    assert call.block_indices("x")[:, 0].tolist() == [bin(i).count("1") for i in range(8)]
    assert table.size == 4


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "int8", "int4", "float8_e4m3fn", "int32", "uint16"]
)
def test_native_tile_is_that_of_the_hardware_room(dtype: str) -> None:
    assert native_tile(dtype) == hardware_tile(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((512, 512), "bfloat16", 512 * 512 * 2),
        ((8, 128), "float32", 4096),
        ((8, 8), "float32", 4096),
        ((8192, 8), "float32", 8192 * 128 * 4),  # padded to 128 lanes: 16 times
        ((100, 200), "int8", 128 * 256),
        ((1, 128), "float32", 512),
        ((3, 8, 64), "bfloat16", 3 * 8 * 128 * 2),
        ((64, 128), "int4", 64 * 128 // 2),
        ((), "float32", 4),
    ],
)
def test_padded_bytes(shape: tuple[int, ...], dtype: str, expected: int) -> None:
    assert padded_bytes(shape, dtype) == expected


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(1, 300), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "bfloat16", "int8", "int4"]),
)
def test_padding_never_loses_bytes(shape: tuple[int, ...], dtype: str) -> None:
    exact = array_bytes(shape, dtype)
    padded = padded_bytes(shape, dtype)
    assert padded >= exact
    if len(shape) >= 2 and shape[-1] % 128 == 0 and shape[-2] % native_tile(dtype)[0] == 0:
        assert padded == math.prod(shape) * dtype_bits(dtype) // 8


def test_pipeline_mode_sets_the_buffers() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

    def function(x: jax.Array) -> jax.Array:
        once = pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(1))
        return pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[once],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=samples.like(x),
        )(x)

    (call,) = trace(function, "f32[32,128]").calls
    assert [operand.buffer_count for operand in call.operands] == [1, 2]
    assert call.vmem_bytes == 3 * 8 * 128 * 4
