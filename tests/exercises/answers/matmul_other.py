"""Right answers written another way: jitted, partial kernels, other blocks, padding."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _dot(lhs, rhs):
    return lax.dot_general(lhs, rhs, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


@jax.jit
def whole(lhs, rhs):
    def kernel(lhs_ref, rhs_ref, out_ref):
        out_ref[...] = _dot(lhs_ref[...], rhs_ref[...])

    out = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), jnp.float32)
    return pl.pallas_call(kernel, out_shape=out, grid=(1,))(lhs, rhs)


def strips(lhs, rhs, block_m=128):
    (m, k), n = lhs.shape, rhs.shape[1]

    def kernel(lhs_ref, rhs_ref, out_ref):
        out_ref[...] = _dot(lhs_ref[...], rhs_ref[...])

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i: (i, 0)),
            pl.BlockSpec(memory_space=pltpu.VMEM),
        ],
        out_specs=pl.BlockSpec((block_m, n), lambda i: (i, 0)),
        grid=((m + block_m - 1) // block_m,),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(lhs, rhs)


def _product(lhs, rhs, blocks, dtype, *, order=("i", "j"), mask=False):
    """The first step stores, the others add; the outer axes in either order."""
    (m, k), n = lhs.shape, rhs.shape[1]
    bm, bk, bn = (min(block, size) for block, size in zip(blocks, (m, k, n)))
    steps = {"i": pl.cdiv(m, bm), "j": pl.cdiv(n, bn)}
    depth_steps = pl.cdiv(k, bk)

    def place(*names):
        def index(first, second, step):
            where = {order[0]: first, order[1]: second, "k": step}
            return tuple(where[name] for name in names)

        return index

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):
        step = pl.program_id(2)
        lhs_block, rhs_block = lhs_ref[...], rhs_ref[...]
        if mask and k % bk:
            inside = step * bk + lax.broadcasted_iota(jnp.int32, (bm, bk), 1) < k
            lhs_block = jnp.where(inside, lhs_block, 0).astype(lhs_block.dtype)
            inside = step * bk + lax.broadcasted_iota(jnp.int32, (bk, bn), 0) < k
            rhs_block = jnp.where(inside, rhs_block, 0).astype(rhs_block.dtype)
        part = _dot(lhs_block, rhs_block)

        @pl.when(step == 0)
        def _first():
            acc_ref[...] = part

        @pl.when(step > 0)
        def _next():
            acc_ref[...] += part

        @pl.when(step == depth_steps - 1)
        def _last():
            out_ref[...] = acc_ref[...].astype(dtype)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(steps[order[0]], steps[order[1]], depth_steps),
            in_specs=[
                pl.BlockSpec((bm, bk), place("i", "k")),
                pl.BlockSpec((bk, bn), place("k", "j")),
            ],
            out_specs=pl.BlockSpec((bm, bn), place("i", "j")),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((m, n), dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=64 << 20,
        ),
    )(lhs, rhs)


grid = jax.jit(functools.partial(_product, blocks=(128, 128, 128), dtype=jnp.float32))


def bf16_scratch(lhs, rhs):
    return _product(lhs, rhs, (128, 128, 128), jnp.bfloat16, order=("j", "i"))


def tiled(lhs, rhs):
    return _product(lhs, rhs, (512, 1024, 512), jnp.bfloat16, mask=True)


def best(lhs, rhs):
    return _product(lhs, rhs, (1024, 512, 1024), jnp.bfloat16, order=("j", "i"))
