"""Right answers written another way: jitted, other blocks, other axes, other spellings."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


@functools.partial(jax.jit, static_argnames="block")
def stream(x, block=128):
    def kernel(x_ref, out_ref):
        values = x_ref[:].astype(jnp.float32)
        largest = jnp.maximum(values.max(axis=-1), -values.min(axis=-1))
        largest = jnp.where(largest < 1e-6, 1e-6, largest)
        out_ref[:] = (values * (1.0 / largest)[:, None]).astype(jnp.bfloat16)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.bfloat16),
        grid=((x.shape[0] + block - 1) // block,),
        in_specs=[pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)


def gemv_batched(vectors, matrices, taken=2):
    """One batched product over the block, the batch of the block in front."""
    batch, k, n = matrices.shape

    def kernel(vector_ref, matrix_ref, out_ref):
        out_ref[...] = lax.dot_general(
            vector_ref[...],
            matrix_ref[...],
            (((2,), (1,)), ((0,), (0,))),
            preferred_element_type=jnp.float32,
        )

    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((batch, 1, n), jnp.float32),
        grid=(batch // taken,),
        in_specs=[
            pl.BlockSpec((taken, 1, k), lambda b: (b, 0, 0)),
            pl.BlockSpec((taken, k, n), lambda b: (b, 0, 0)),
        ],
        out_specs=pl.BlockSpec((taken, 1, n), lambda b: (b, 0, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(vectors[:, None, :], matrices)
    return out[:, 0, :]


def int8_weights(x, weights, scale):
    """A grid over n and k with an accumulator; the first step stores, the others add."""
    (m, k), n = x.shape, weights.shape[1]
    block_n = next(size for size in (1024, 512, 256, 128) if n % size == 0)
    block_k = next(size for size in (2048, 1024, 512, 256, 128) if k % size == 0)

    def kernel(x_ref, weights_ref, scale_ref, out_ref, acc_ref):
        step = pl.program_id(1)
        product = lax.dot_general(
            x_ref[...],
            weights_ref[...].astype(x_ref.dtype),
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )

        @pl.when(step == 0)
        def _():
            acc_ref[...] = product

        @pl.when(step > 0)
        def _():
            acc_ref[...] += product

        @pl.when(step == k // block_k - 1)
        def _():
            out_ref[...] = (scale_ref[0, :] * acc_ref[...]).astype(jnp.bfloat16)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        grid=(n // block_n, k // block_k),
        in_specs=[
            pl.BlockSpec((m, block_k), lambda j, s: (0, s)),
            pl.BlockSpec((block_k, block_n), lambda j, s: (s, j)),
            pl.BlockSpec((1, block_n), lambda j, s: (0, j)),
        ],
        out_specs=pl.BlockSpec((m, block_n), lambda j, s: (0, j)),
        scratch_shapes=[pltpu.VMEM((m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x, weights, scale)


def reread(x, weights, block_n=256):
    """n outermost, then strips of rows: the block of weights stays while the strips go by."""
    (m, k), n = x.shape, weights.shape[1]
    block_m = m

    def kernel(x_ref, weights_ref, out_ref):
        out_ref[...] = jnp.dot(
            x_ref[...], weights_ref[...], preferred_element_type=jnp.float32
        ).astype(jnp.bfloat16)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        grid=(pl.cdiv(n, block_n), m // block_m),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda j, i: (i, 0)),
            pl.BlockSpec((k, block_n), lambda j, i: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda j, i: (i, j)),
    )(x, weights)
