"""Wrong answers to the exercises of lab 03; each function's first line says what is wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _add(x_ref, other_ref, out_ref):  # type: ignore[no-untyped-def]
    out_ref[...] = x_ref[...] + other_ref[...]


def _broadcast_add(  # type: ignore[no-untyped-def]
    x: jax.Array,
    bias: jax.Array,
    *,
    block=(512, 512),
    bias_map=lambda i, j: (0, j),
) -> jax.Array:
    rows, cols = x.shape
    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    return pl.pallas_call(
        _add,
        grid=(rows // block[0], cols // block[1]),
        in_specs=[spec, pl.BlockSpec((1, block[1]), bias_map)],
        out_specs=spec,
        out_shape=_like(x),
    )(x, bias)


def broadcast_add_follows_rows(x: jax.Array, bias: jax.Array) -> jax.Array:
    """The block of bias follows the rows, of which it has one."""
    return _broadcast_add(x, bias, bias_map=lambda i, j: (i, j))


def broadcast_add_first_only(x: jax.Array, bias: jax.Array) -> jax.Array:
    """The block of bias never moves."""
    return _broadcast_add(x, bias, bias_map=lambda i, j: (0, 0))


def broadcast_add_odd_block(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Blocks of 500 columns, which are no whole tiles."""
    return _broadcast_add(x, bias, block=(512, 500))


def broadcast_add_elements(x: jax.Array, bias: jax.Array) -> jax.Array:
    """The index map of bias returns elements."""
    return _broadcast_add(x, bias, bias_map=lambda i, j: (0, 512 * j))


def broadcast_add_tiny(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Blocks of 64 × 128: 2048 short steps."""
    return _broadcast_add(x, bias, block=(64, 128))


def _turn(x_ref, out_ref):  # type: ignore[no-untyped-def]
    out_ref[...] = x_ref[...].T


def _transpose(  # type: ignore[no-untyped-def]
    x: jax.Array,
    *,
    kernel=_turn,
    block=(512, 512),
    out_map=lambda i, j: (j, i),
    count=pl.cdiv,
) -> jax.Array:
    rows, cols = x.shape
    return pl.pallas_call(
        kernel,
        grid=(count(rows, block[0]), count(cols, block[1])),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec(block[::-1], out_map),
        out_shape=jax.ShapeDtypeStruct((cols, rows), x.dtype),
    )(x)


def transpose_not_moved(x: jax.Array) -> jax.Array:
    """Every block stays where it was."""
    return _transpose(x, out_map=lambda i, j: (i, j))


def transpose_blocks_only(x: jax.Array) -> jax.Array:
    """Blocks change places and are not turned."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = x_ref[...]

    return _transpose(x, kernel=kernel)


def transpose_flat_blocks(x: jax.Array) -> jax.Array:
    """Blocks of 8 rows to read, hence of 8 columns to write."""
    return _transpose(x, block=(8, 512))


def transpose_floor(x: jax.Array) -> jax.Array:
    """The grid is rounded down."""
    return _transpose(x, count=lambda size, block: size // block)


def transpose_outside(x: jax.Array) -> jax.Array:
    """XLA transposes, the kernel copies."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = x_ref[...]

    block = pl.BlockSpec((512, 512), lambda i, j: (i, j))
    turned = x.T * 1.0
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(turned.shape[0], 512), pl.cdiv(turned.shape[1], 512)),
        in_specs=[block],
        out_specs=block,
        out_shape=_like(turned),
    )(turned)


def transpose_whole(x: jax.Array) -> jax.Array:
    """One block, 32 MiB at full size."""
    shape = jax.ShapeDtypeStruct((x.shape[1], x.shape[0]), x.dtype)
    return pl.pallas_call(_turn, out_shape=shape)(x)


def transpose_small(x: jax.Array) -> jax.Array:
    """Blocks of 128 × 8 would be illegal; those of 128 × 128 are merely slow."""
    return _transpose(x, block=(128, 128))


def _product(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
    out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)


def _batched(  # type: ignore[no-untyped-def]
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    one=None,
    rhs_map=lambda b: (b, 0, 0),
    out_map=lambda b: (b, 0, 0),
) -> jax.Array:
    (batch, m, k), n = lhs.shape, rhs.shape[2]
    return pl.pallas_call(
        _product,
        grid=(batch,),
        in_specs=[
            pl.BlockSpec((one, m, k), lambda b: (b, 0, 0)),
            pl.BlockSpec((one, k, n), rhs_map),
        ],
        out_specs=pl.BlockSpec((one, m, n), out_map),
        out_shape=jax.ShapeDtypeStruct((batch, m, n), jnp.float32),
    )(lhs, rhs)


def batched_matmul_one(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The batch is still there in the kernel, as a dimension of one."""
    return _batched(lhs, rhs, one=1)


def batched_matmul_same_rhs(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Every lhs meets the first rhs."""
    return _batched(lhs, rhs, rhs_map=lambda b: (0, 0, 0))


def batched_matmul_two_indices(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The squeezed dimension gets no index."""
    return _batched(lhs, rhs, out_map=lambda b: (b, 0))


def batched_matmul_backwards(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Rhs comes from the other end of the batch."""
    last = lhs.shape[0] - 1
    return _batched(lhs, rhs, rhs_map=lambda b: (last - b, 0, 0))


def batched_matmul_eight(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Eight pairs in one block."""
    (batch, m, k), n = lhs.shape, rhs.shape[2]
    pairs = min(8, batch)

    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        @pl.loop(0, pairs)
        def _pair(b) -> None:  # type: ignore[no-untyped-def]
            out_ref[b] = jnp.dot(lhs_ref[b], rhs_ref[b], preferred_element_type=jnp.float32)

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(batch, pairs),),
        in_specs=[
            pl.BlockSpec((pairs, m, k), lambda b: (b, 0, 0)),
            pl.BlockSpec((pairs, k, n), lambda b: (b, 0, 0)),
        ],
        out_specs=pl.BlockSpec((pairs, m, n), lambda b: (b, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, m, n), jnp.float32),
    )(lhs, rhs)


def batched_matmul_refetches(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The batch runs fastest: rhs is fetched anew for every quarter of the rows of lhs."""
    (batch, m, k), n = lhs.shape, rhs.shape[2]
    rows = m // 4 if m % 32 == 0 else m
    return pl.pallas_call(
        _product,
        grid=(m // rows, batch),
        in_specs=[
            pl.BlockSpec((None, rows, k), lambda i, b: (b, i, 0)),
            pl.BlockSpec((None, k, n), lambda i, b: (b, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, rows, n), lambda i, b: (b, i, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, m, n), jnp.float32),
    )(lhs, rhs)


def _reduce(  # type: ignore[no-untyped-def]
    kernel,
    x: jax.Array,
    *,
    block=(512, 512),
    columns_first: bool = False,
    x_map=lambda i, j: (i, j),
    count=(pl.cdiv, pl.cdiv),
    semantics=("arbitrary", "arbitrary"),
) -> jax.Array:
    """Rows, then columns; or the other way round."""
    rows, cols = x.shape
    steps = count[0](rows, block[0]), count[1](cols, block[1])

    def ordered(index_map):  # type: ignore[no-untyped-def]
        return (lambda j, i: index_map(i, j)) if columns_first else index_map

    return pl.pallas_call(
        kernel,
        grid=steps[::-1] if columns_first else steps,
        in_specs=[pl.BlockSpec(block, ordered(x_map))],
        out_specs=pl.BlockSpec((block[0], 1), ordered(lambda i, j: (i, 0))),
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )(x)


def _sum_kernel(clear):  # type: ignore[no-untyped-def]
    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        if clear is not None:

            @pl.when(clear())
            def _clear() -> None:
                out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)

    return kernel


def _at_first_column() -> jax.Array:
    return pl.program_id(1) == 0


def row_sums_columns_first(x: jax.Array) -> jax.Array:
    """The axis over columns is the first: blocks of the result are left and come back to."""
    return _reduce(_sum_kernel(lambda: pl.program_id(0) == 0), x, columns_first=True)


def row_sums_uninitialised(x: jax.Array) -> jax.Array:
    """Nobody clears the sum."""
    return _reduce(_sum_kernel(None), x)


def row_sums_cleared_once(x: jax.Array) -> jax.Array:
    """Only the first block of the result is cleared."""
    return _reduce(_sum_kernel(lambda: (pl.program_id(0) == 0) & (pl.program_id(1) == 0)), x)


def row_sums_overwrites(x: jax.Array) -> jax.Array:
    """Each step stores its own sum."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = jnp.sum(x_ref[...], axis=1, keepdims=True)

    return _reduce(kernel, x)


def row_sums_first_block(x: jax.Array) -> jax.Array:
    """The map of x ignores the columns."""
    return _reduce(_sum_kernel(_at_first_column), x, x_map=lambda i, j: (i, 0))


def row_sums_swapped(x: jax.Array) -> jax.Array:
    """Block (j, i) is read where (i, j) belongs."""
    return _reduce(_sum_kernel(_at_first_column), x, block=(256, 512), x_map=lambda i, j: (j, i))


def row_sums_parallel(x: jax.Array) -> jax.Array:
    """The axis that carries the sum is marked parallel."""
    return _reduce(_sum_kernel(_at_first_column), x, semantics=("parallel", "parallel"))


def _max_kernel(  # type: ignore[no-untyped-def]
    cols: int, *, mask=-jnp.inf, start=-jnp.inf, axis: int = 1, accumulate: bool = True
):
    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        j = pl.program_id(axis)
        if accumulate:

            @pl.when(j == 0)
            def _clear() -> None:
                out_ref[...] = jnp.full_like(out_ref, start)

        block = x_ref[...]
        if mask is not None:
            column = jax.lax.broadcasted_iota(jnp.int32, block.shape, 1)
            block = jnp.where(column < cols - j * block.shape[1], block, mask)
        largest = jnp.max(block, axis=1, keepdims=True)
        out_ref[...] = jnp.maximum(out_ref[...], largest) if accumulate else largest

    return kernel


_WIDE = (512, 1024)


def row_max_reads_padding(x: jax.Array) -> jax.Array:
    """Nothing is masked."""
    return _reduce(_max_kernel(x.shape[1], mask=None), x, block=_WIDE)


def row_max_masks_with_zero(x: jax.Array) -> jax.Array:
    """A zero wins where all numbers are negative."""
    return _reduce(_max_kernel(x.shape[1], mask=0.0), x, block=_WIDE)


def row_max_starts_at_zero(x: jax.Array) -> jax.Array:
    """The maximum starts at zero, as a sum would."""
    return _reduce(_max_kernel(x.shape[1], start=0.0), x, block=_WIDE)


def row_max_floor_columns(x: jax.Array) -> jax.Array:
    """The axis over columns is rounded down."""
    count = (pl.cdiv, lambda size, block: size // block)
    return _reduce(_max_kernel(x.shape[1]), x, block=_WIDE, count=count)


def row_max_overwrites(x: jax.Array) -> jax.Array:
    """Each step stores its own maximum."""
    return _reduce(_max_kernel(x.shape[1], accumulate=False), x, block=_WIDE)


def row_max_columns_first(x: jax.Array) -> jax.Array:
    """The axis over columns is the first."""
    return _reduce(_max_kernel(x.shape[1], axis=0), x, block=_WIDE, columns_first=True)


def row_max_small(x: jax.Array) -> jax.Array:
    """Blocks of 64 × 128: 2560 steps, each one a few bundles."""
    return _reduce(_max_kernel(x.shape[1]), x, block=(64, 128))


def _positions(  # type: ignore[no-untyped-def]
    x: jax.Array,
    table: jax.Array,
    *,
    rows: int = 512,
    batch_first: bool = False,
    x_map=lambda i, b: (b, i, 0),
    table_map=lambda i, b: (i, 0),
) -> jax.Array:
    batch, length, features = x.shape
    steps = length // rows, batch

    def ordered(index_map):  # type: ignore[no-untyped-def]
        return (lambda b, i: index_map(i, b)) if batch_first else index_map

    block = pl.BlockSpec((None, rows, features), ordered(x_map))
    return pl.pallas_call(
        _add,
        grid=steps[::-1] if batch_first else steps,
        in_specs=[block, pl.BlockSpec((rows, features), ordered(table_map))],
        out_specs=block,
        out_shape=_like(x),
    )(x, table)


def add_positions_batch_first(x: jax.Array, table: jax.Array) -> jax.Array:
    """The whole table is fetched for each sequence."""
    return _positions(x, table, batch_first=True)


def add_positions_by_batch(x: jax.Array, table: jax.Array) -> jax.Array:
    """The table's block follows the batch."""
    return _positions(x, table, table_map=lambda i, b: (b, 0))


def add_positions_first_only(x: jax.Array, table: jax.Array) -> jax.Array:
    """The table's block never moves."""
    return _positions(x, table, table_map=lambda i, b: (0, 0))


def add_positions_swapped(x: jax.Array, table: jax.Array) -> jax.Array:
    """X and the result at (i, b) where (b, i) belongs."""
    return _positions(x, table, x_map=lambda i, b: (i, b, 0))


def add_positions_whole(x: jax.Array, table: jax.Array) -> jax.Array:
    """Whole sequences as blocks: 48 MiB with two buffers each."""
    return _positions(x, table, rows=x.shape[1])
