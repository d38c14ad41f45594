"""Right answers in the style of the statements: one BlockSpec per operand, one kernel each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def broadcast_add(x, bias):
    def kernel(x_ref, bias_ref, out_ref):
        out_ref[...] = x_ref[...] + bias_ref[...]

    rows, cols = x.shape
    block = pl.BlockSpec((512, 512), lambda i, j: (i, j))
    return pl.pallas_call(
        kernel,
        grid=(rows // 512, cols // 512),
        in_specs=[block, pl.BlockSpec((1, 512), lambda i, j: (0, j))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, bias)


def transpose(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...].T

    rows, cols = x.shape
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, 512), pl.cdiv(cols, 512)),
        in_specs=[pl.BlockSpec((512, 512), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((512, 512), lambda i, j: (j, i)),
        out_shape=jax.ShapeDtypeStruct((cols, rows), x.dtype),
    )(x)


def batched_matmul(lhs, rhs):
    def kernel(lhs_ref, rhs_ref, out_ref):
        out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    (batch, m, k), n = lhs.shape, rhs.shape[2]
    return pl.pallas_call(
        kernel,
        grid=(batch,),
        in_specs=[
            pl.BlockSpec((None, m, k), lambda b: (b, 0, 0)),
            pl.BlockSpec((None, k, n), lambda b: (b, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, m, n), lambda b: (b, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, m, n), jnp.float32),
    )(lhs, rhs)


def row_sums(x):
    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(1) == 0)
        def _clear():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)

    rows, cols = x.shape
    return pl.pallas_call(
        kernel,
        grid=(rows // 512, cols // 512),
        in_specs=[pl.BlockSpec((512, 512), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((512, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
    )(x)


def row_max(x):
    rows, cols = x.shape

    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(1) == 0)
        def _clear():
            out_ref[...] = jnp.full_like(out_ref, -jnp.inf)

        column = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        inside = column < cols - pl.program_id(1) * x_ref.shape[1]
        block = jnp.where(inside, x_ref[...], -jnp.inf)
        out_ref[...] = jnp.maximum(out_ref[...], jnp.max(block, axis=1, keepdims=True))

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, 512), pl.cdiv(cols, 1024)),
        in_specs=[pl.BlockSpec((512, 1024), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((512, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
    )(x)


def add_positions(x, table):
    def kernel(x_ref, table_ref, out_ref):
        out_ref[...] = x_ref[...] + table_ref[...]

    batch, length, features = x.shape
    block = pl.BlockSpec((None, 512, features), lambda i, b: (b, i, 0))
    return pl.pallas_call(
        kernel,
        grid=(length // 512, batch),
        in_specs=[block, pl.BlockSpec((512, features), lambda i, b: (i, 0))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, table)
