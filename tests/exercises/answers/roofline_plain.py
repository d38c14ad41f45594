"""Right answers, written the plain way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def stream(x):
    block = 256

    def kernel(x_ref, out_ref):
        values = x_ref[...].astype(jnp.float32)
        peak = jnp.max(jnp.abs(values), axis=1, keepdims=True)
        out_ref[...] = (values / jnp.maximum(peak, 1e-6)).astype(out_ref.dtype)

    rows = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        in_specs=[rows],
        out_specs=rows,
    )(x)


def gemv_batched(vectors, matrices):
    batch, k, n = matrices.shape
    taken = 4

    def kernel(vector_ref, matrix_ref, out_ref):
        for index in range(taken):
            out_ref[index] = jnp.dot(
                vector_ref[index], matrix_ref[index], preferred_element_type=jnp.float32
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
    )(vectors.reshape(batch, 1, k), matrices)
    return out.reshape(batch, n)


def int8_weights(x, weights, scale):
    (m, k), n = x.shape, weights.shape[1]
    block_n = 512 if n % 512 == 0 else 128

    def kernel(x_ref, weights_ref, scale_ref, out_ref):
        total = jnp.dot(
            x_ref[...], weights_ref[...].astype(jnp.bfloat16), preferred_element_type=jnp.float32
        )
        out_ref[...] = (total * scale_ref[...]).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(n // block_n,),
        in_specs=[
            pl.BlockSpec((m, k), lambda j: (0, 0)),
            pl.BlockSpec((k, block_n), lambda j: (0, j)),
            pl.BlockSpec((1, block_n), lambda j: (0, j)),
        ],
        out_specs=pl.BlockSpec((m, block_n), lambda j: (0, j)),
    )(x, weights, scale)


def reread(x, weights):
    (m, k), n = x.shape, weights.shape[1]
    block_n = 512

    def kernel(x_ref, weights_ref, out_ref):
        total = jnp.dot(x_ref[...], weights_ref[...], preferred_element_type=jnp.float32)
        out_ref[...] = total.astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(n, block_n),),
        in_specs=[
            pl.BlockSpec((m, k), lambda j: (0, 0)),
            pl.BlockSpec((k, block_n), lambda j: (0, j)),
        ],
        out_specs=pl.BlockSpec((m, block_n), lambda j: (0, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, weights)
