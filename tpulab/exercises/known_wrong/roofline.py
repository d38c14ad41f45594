"""Wrong answers to the exercises of lab 02; each function's first line says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

# ---- stream


def _rows(x: jax.Array, body: Callable[[Any], Any], block: int = 128, steps: int | None = None):  # type: ignore[no-untyped-def]
    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = body(x_ref[...].astype(jnp.float32)).astype(out_ref.dtype)

    rows = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block) if steps is None else steps,),
        in_specs=[rows],
        out_specs=rows,
    )(x)


def _normalised(values: Any) -> Any:
    peak = jnp.max(jnp.abs(values), axis=1, keepdims=True)
    return values / jnp.maximum(peak, 1e-6)


def stream_two_passes(x: jax.Array) -> jax.Array:
    """One kernel finds the largest magnitudes, a second one reads x again to divide."""
    block = 256

    def find(x_ref, peak_ref):  # type: ignore[no-untyped-def]
        values = x_ref[...].astype(jnp.float32)
        peak_ref[...] = jnp.max(jnp.abs(values), axis=1, keepdims=True)

    def divide(x_ref, peak_ref, out_ref):  # type: ignore[no-untyped-def]
        values = x_ref[...].astype(jnp.float32)
        out_ref[...] = (values / jnp.maximum(peak_ref[...], 1e-6)).astype(out_ref.dtype)

    grid = (pl.cdiv(x.shape[0], block),)
    rows = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    column = pl.BlockSpec((block, 1), lambda i: (i, 0))
    peaks = jax.ShapeDtypeStruct((x.shape[0], 1), jnp.float32)
    peak = pl.pallas_call(find, out_shape=peaks, grid=grid, in_specs=[rows], out_specs=column)(x)
    return pl.pallas_call(
        divide,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=grid,
        in_specs=[rows, column],
        out_specs=rows,
    )(x, peak)


def stream_outside(x: jax.Array) -> jax.Array:
    """XLA finds the largest magnitudes, the kernel divides."""

    def kernel(x_ref, peak_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = (x_ref[...].astype(jnp.float32) / peak_ref[...]).astype(out_ref.dtype)

    peak = jnp.maximum(jnp.max(jnp.abs(x.astype(jnp.float32)), axis=1, keepdims=True), 1e-6)
    block = 128
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        in_specs=[
            pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec((block, 1), lambda i: (i, 0)),
        ],
        out_specs=pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0)),
    )(x, peak)


def stream_signed(x: jax.Array) -> jax.Array:
    """The largest value in place of the largest magnitude."""

    def body(values: Any) -> Any:
        return values / jnp.maximum(jnp.max(values, axis=1, keepdims=True), 1e-6)

    return _rows(x, body)


def stream_whole_block(x: jax.Array) -> jax.Array:
    """One largest magnitude for all rows of a block."""
    return _rows(x, lambda values: values / jnp.maximum(jnp.max(jnp.abs(values)), 1e-6))


def stream_zero_rows(x: jax.Array) -> jax.Array:
    """Nothing keeps the divisor from zero."""
    return _rows(x, lambda values: values / jnp.max(jnp.abs(values), axis=1, keepdims=True))


def stream_floor(x: jax.Array) -> jax.Array:
    """The grid is rounded down."""
    return _rows(x, _normalised, 128, x.shape[0] // 128)


# ---- gemv_batched


def _gemv(  # type: ignore[no-untyped-def]
    vectors: jax.Array,
    matrices: jax.Array,
    *,
    taken: int = 1,
    dtype=jnp.float32,
    vector_map=lambda i: (i, 0, 0),
    change=lambda block: block,
) -> jax.Array:
    batch, k, n = matrices.shape

    def kernel(vector_ref, matrix_ref, out_ref):  # type: ignore[no-untyped-def]
        for index in range(taken):
            product = jnp.dot(
                change(vector_ref[index]), matrix_ref[index], preferred_element_type=jnp.float32
            )
            out_ref[index] = product.astype(dtype).astype(jnp.float32)

    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((batch, 1, n), jnp.float32),
        grid=(batch // taken,),
        in_specs=[
            pl.BlockSpec((taken, 1, k), vector_map),
            pl.BlockSpec((taken, k, n), lambda i: (i, 0, 0)),
        ],
        out_specs=pl.BlockSpec((taken, 1, n), lambda i: (i, 0, 0)),
    )(vectors.reshape(batch, 1, k), matrices)
    return out.reshape(batch, n)


def _gemv_blocks(  # type: ignore[no-untyped-def]
    vectors: jax.Array, matrices: jax.Array, *, k_last: bool = True,
    dtype=jnp.float32,
) -> jax.Array:  # fmt: skip
    """Blocks of 128 × 128 of one matrix a step."""
    batch, k, n = matrices.shape
    axis = 2 if k_last else 1

    def kernel(vector_ref, matrix_ref, out_ref, acc_ref):  # type: ignore[no-untyped-def]
        @pl.when(pl.program_id(axis) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        product = jnp.dot(vector_ref[0], matrix_ref[0], preferred_element_type=jnp.float32)
        acc_ref[...] += product.astype(dtype)
        out_ref[0] = acc_ref[...].astype(jnp.float32)

    def order(place):  # type: ignore[no-untyped-def]
        return (lambda b, j, s: place(b, j, s)) if k_last else (lambda b, s, j: place(b, j, s))

    steps = (n // 128, k // 128) if k_last else (k // 128, n // 128)
    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((batch, 1, n), jnp.float32),
        grid=(batch, *steps),
        in_specs=[
            pl.BlockSpec((1, 1, 128), order(lambda b, j, s: (b, 0, s))),
            pl.BlockSpec((1, 128, 128), order(lambda b, j, s: (b, s, j))),
        ],
        out_specs=pl.BlockSpec((1, 1, 128), order(lambda b, j, s: (b, 0, j))),
        scratch_shapes=[pltpu.VMEM((1, 128), dtype)],
    )(vectors.reshape(batch, 1, k), matrices)
    return out.reshape(batch, n)


def gemv_float32_outside(vectors: jax.Array, matrices: jax.Array) -> jax.Array:
    """XLA casts the matrices to float32 first: they cross HBM five times over."""
    return _gemv(vectors.astype(jnp.float32), matrices.astype(jnp.float32))


def gemv_first_vector(vectors: jax.Array, matrices: jax.Array) -> jax.Array:
    """The vectors' index map ignores the batch."""
    return _gemv(vectors, matrices, vector_map=lambda i: (0, 0, 0))


def gemv_bf16_sum(vectors: jax.Array, matrices: jax.Array) -> jax.Array:
    """The accumulator holds bfloat16."""
    return _gemv_blocks(vectors, matrices, dtype=jnp.bfloat16)


def gemv_reduction_first(vectors: jax.Array, matrices: jax.Array) -> jax.Array:
    """The axis of k is not the last: an output block is left and visited again."""
    return _gemv_blocks(vectors, matrices, k_last=False)


def gemv_constant_luck(vectors: jax.Array, matrices: jax.Array) -> jax.Array:
    """Multiplies by |vectors|: right on ones."""
    return _gemv(vectors, matrices, change=jnp.abs)


# ---- int8_weights


def _int8(  # type: ignore[no-untyped-def]
    x: jax.Array,
    weights: jax.Array,
    scale: jax.Array,
    *,
    block_k: int = 512,
    block_n: int = 512,
    multiply=None,
    scale_map=lambda j, s: (0, j),
    scale_block: int | None = None,
    clear: bool = True,
    finish=lambda total, scale: total * scale,
    dtype=jnp.float32,
) -> jax.Array:
    (m, k), n = x.shape, weights.shape[1]
    block_k, block_n = _divisor(k, block_k), _divisor(n, block_n)

    def plain(x_block, weight_block, scale_block):  # type: ignore[no-untyped-def]
        cast = weight_block.astype(jnp.bfloat16)
        return jnp.dot(x_block, cast, preferred_element_type=jnp.float32)

    def kernel(x_ref, weights_ref, scale_ref, out_ref, acc_ref):  # type: ignore[no-untyped-def]
        if clear:

            @pl.when(pl.program_id(1) == 0)
            def _() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

        product = (multiply or plain)(x_ref[...], weights_ref[...], scale_ref[...])
        acc_ref[...] += product.astype(dtype)

        @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
        def _() -> None:
            total = acc_ref[...].astype(jnp.float32)
            out_ref[...] = finish(total, scale_ref[...]).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(n // block_n, k // block_k),
        in_specs=[
            pl.BlockSpec((m, block_k), lambda j, s: (0, s)),
            pl.BlockSpec((block_k, block_n), lambda j, s: (s, j)),
            pl.BlockSpec((1, scale_block or block_n), scale_map),
        ],
        out_specs=pl.BlockSpec((m, block_n), lambda j, s: (0, j)),
        scratch_shapes=[pltpu.VMEM((m, block_n), dtype)],
    )(x, weights, scale)


def _divisor(size: int, most: int) -> int:
    """The largest multiple of 128 that divides size and is not above most."""
    return max(block for block in range(128, most + 1, 128) if size % block == 0)


def int8_cast_outside(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """XLA turns the weights into bfloat16: read once as int8, written and read once as bfloat16."""
    return _int8(x, weights.astype(jnp.bfloat16), scale, block_k=4096)


def int8_dequantised_outside(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """XLA scales the weights; the kernel multiplies."""
    ones = jnp.ones_like(scale)
    return _int8(x, (weights.astype(jnp.float32) * scale).astype(jnp.bfloat16), ones)


def int8_scale_along_k(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """The scale meets the rows of the weights."""
    block = _divisor(x.shape[1], 512)

    def multiply(x_block, weight_block, scale_block):  # type: ignore[no-untyped-def]
        rows = weight_block.astype(jnp.float32) * scale_block.reshape(-1, 1)
        return jnp.dot(x_block.astype(jnp.float32), rows, preferred_element_type=jnp.float32)

    return _int8(
        x, weights, scale, multiply=multiply, scale_map=lambda j, s: (0, s), scale_block=block,
        finish=lambda total, scale: total,
    )  # fmt: skip


def int8_weights_rounded(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """Scales the weights and rounds them to bfloat16."""

    def multiply(x_block, weight_block, scale_block):  # type: ignore[no-untyped-def]
        cast = (weight_block.astype(jnp.float32) * scale_block).astype(jnp.bfloat16)
        return jnp.dot(x_block, cast, preferred_element_type=jnp.float32)

    return _int8(x, weights, scale, multiply=multiply, finish=lambda total, scale: total)


def int8_activations_truncated(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """Casts the activations to int8 for an integer product."""

    def multiply(x_block, weight_block, scale_block):  # type: ignore[no-untyped-def]
        return jnp.dot(x_block.astype(jnp.int8), weight_block, preferred_element_type=jnp.int32)

    return _int8(x, weights, scale, multiply=multiply)


def int8_bf16_sum(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """The accumulator holds bfloat16."""
    return _int8(x, weights, scale, block_k=128, dtype=jnp.bfloat16)


def int8_uninitialised(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """Nobody clears the accumulator."""
    return _int8(x, weights, scale, block_k=128, clear=False)


# ---- reread


def _reread(  # type: ignore[no-untyped-def]
    x: jax.Array,
    weights: jax.Array,
    block_m: int,
    block_n: int,
    *,
    weight_map=lambda i, j: (0, j),
) -> jax.Array:
    def kernel(x_ref, weights_ref, out_ref):  # type: ignore[no-untyped-def]
        product = jnp.dot(x_ref[...], weights_ref[...], preferred_element_type=jnp.float32)
        out_ref[...] = product.astype(out_ref.dtype)

    (m, k), n = x.shape, weights.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n)),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block_n), weight_map),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x, weights)


def reread_strips(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Strips of 128 rows outermost: all weights are fetched for each of them."""
    return _reread(x, weights, 128, 512)


def reread_same_columns(x: jax.Array, weights: jax.Array) -> jax.Array:
    """The weights' index map ignores n."""
    return _reread(x, weights, x.shape[0], 256, weight_map=lambda i, j: (0, 0))


def reread_swapped(x: jax.Array, weights: jax.Array) -> jax.Array:
    """The weights' index map is swapped."""
    return _reread(x, weights, x.shape[0], 256, weight_map=lambda i, j: (j, 0))


def reread_by_xla(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Leaves the product to XLA."""
    return jnp.dot(x, weights)
