"""Right answers in the style of the statements: one BlockSpec per operand, one kernel each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_CARRIED = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary"))


def whole(lhs, rhs):
    def kernel(lhs_ref, rhs_ref, out_ref):
        out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    shape = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), jnp.float32)
    return pl.pallas_call(kernel, out_shape=shape)(lhs, rhs)


def strips(lhs, rhs):
    def kernel(lhs_ref, rhs_ref, out_ref):
        out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    (m, k), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(m, 256),),
        in_specs=[
            pl.BlockSpec((256, k), lambda i: (i, 0)),
            pl.BlockSpec((k, n), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((256, n), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
    )(lhs, rhs)


def grid(lhs, rhs):
    def kernel(lhs_ref, rhs_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _clear():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    (m, k), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        kernel,
        grid=(m // 128, n // 128, k // 128),
        in_specs=[
            pl.BlockSpec((128, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        compiler_params=_CARRIED,
    )(lhs, rhs)


def _scratch_matmul(lhs, rhs, block_m, block_k, block_n):
    (m, depth), n = lhs.shape, rhs.shape[1]

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _clear():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        lhs_block, rhs_block = lhs_ref[...], rhs_ref[...]
        if depth % block_k:
            left = depth - step * block_k
            column = jax.lax.broadcasted_iota(jnp.int32, lhs_block.shape, 1)
            row = jax.lax.broadcasted_iota(jnp.int32, rhs_block.shape, 0)
            lhs_block = jnp.where(column < left, lhs_block, jnp.zeros_like(lhs_block))
            rhs_block = jnp.where(row < left, rhs_block, jnp.zeros_like(rhs_block))
        acc_ref[...] += jnp.dot(lhs_block, rhs_block, preferred_element_type=jnp.float32)

        @pl.when(step == pl.num_programs(2) - 1)
        def _store():
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(depth, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.bfloat16),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=_CARRIED,
    )(lhs, rhs)


def bf16_scratch(lhs, rhs):
    return _scratch_matmul(lhs, rhs, 128, 128, 128)


def tiled(lhs, rhs):
    (m, k), n = lhs.shape, rhs.shape[1]
    return _scratch_matmul(lhs, rhs, min(512, m), min(512, k), min(512, n))


def best(lhs, rhs):
    (m, k), n = lhs.shape, rhs.shape[1]
    return _scratch_matmul(lhs, rhs, min(512, m), min(1024, k), min(1024, n))
