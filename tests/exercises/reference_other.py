"""Right answers written another way: jitted, partial kernels, other blocks, padding."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _add_kernel(*refs):
    *inputs, out_ref = refs
    total = inputs[0][:]
    for ref in inputs[1:]:
        total = total + ref[:]
    out_ref[:] = total


@jax.jit
def add(x, y):
    spec = pl.BlockSpec(memory_space=pltpu.VMEM)
    return pl.pallas_call(
        _add_kernel, out_shape=x, in_specs=[spec, spec], out_specs=spec, name="add"
    )(x, y)


@functools.partial(jax.jit, static_argnames=("block_rows",))
def add_blocks(x, y, block_rows=256):
    """Copies by hand out of HBM, waits for them, and lets the pipeline write the output."""
    rows, cols = x.shape

    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = jnp.add(y_ref[...], x_ref[...])

    index = lambda i: (i, 0)  # noqa: E731
    return pl.pallas_call(
        kernel,
        grid_spec=pl.GridSpec(
            grid=(math.ceil(rows / block_rows),),
            in_specs=[pl.BlockSpec((block_rows, cols), index)] * 2,
            out_specs=pl.BlockSpec((block_rows, cols), index),
        ),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, y)


def scale_add(a, x, y):
    """The scalar is prefetched."""
    rows, cols = x.shape

    def kernel(a_ref, x_ref, y_ref, out_ref):
        out_ref[...] = y_ref[...] + x_ref[...] * a_ref[0]

    block = pl.BlockSpec((256, cols), lambda i, a_ref: (i, 0))
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(rows, 256),),
            in_specs=[block, block],
            out_specs=block,
        ),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(a, x, y)


def column_sum(x):
    """Pads outside, which only moves data, and accumulates in scratch, eight rows at a time."""
    rows, cols = x.shape
    block_rows = 256
    padded = jnp.pad(x, ((0, -rows % block_rows), (0, 0)))

    def kernel(x_ref, out_ref, acc_ref):
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _clear():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...].reshape(block_rows // 8, 8, cols).sum(axis=0)

        @pl.when(step == pl.num_programs(0) - 1)
        def _store():
            out_ref[...] = acc_ref[...].sum(axis=0, keepdims=True)

    return pl.pallas_call(
        kernel,
        grid=(padded.shape[0] // block_rows,),
        in_specs=[pl.BlockSpec((block_rows, cols), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, cols), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((1, cols), x.dtype),
        scratch_shapes=[pltpu.VMEM((8, cols), x.dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(padded)


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
