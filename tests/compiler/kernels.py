"""Kernels that compile, for the tests of the compiler's room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

F32, BF16 = jnp.float32, jnp.bfloat16


def spec(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def add_one(x: Any) -> Any:
    """A kernel without a grid; compiles in a tenth of a second."""

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def scaled(factor: float) -> Callable[..., Any]:
    """A family of different kernels."""

    def scale(x: Any) -> Any:
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...] * factor

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    return scale


def matmul(size: int, block: int, dtype: Any = BF16) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A tiled matrix multiply with a float32 accumulator."""

    def kernel(x_ref, y_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    def tiled(x, y):
        n = size // block
        return pl.pallas_call(
            kernel,
            grid=(n, n, n),
            in_specs=[
                pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
                pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
            out_shape=spec(size, size, dtype=dtype),
            scratch_shapes=[pltpu.VMEM((block, block), F32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary")
            ),
        )(x, y)

    return tiled, (spec(size, size, dtype=dtype), spec(size, size, dtype=dtype))


def slow_to_compile(count: int = 192) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Matrix multiplies unrolled in Python: the compiler needs seconds."""

    def kernel(x_ref, y_ref, o_ref):
        acc = jnp.zeros((128, 128), F32)
        for _ in range(count):
            acc = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32) + acc * 0.5
        o_ref[...] = acc

    def unrolled(x, y):
        return pl.pallas_call(kernel, out_shape=spec(128, 128))(x, y)

    return unrolled, (spec(128, 128), spec(128, 128))


def many_pieces(x, w):
    """Kernels, fusions, a counted loop, a scan, a branch and a sort."""
    y = add_one(jnp.sin(add_one(x).T) @ w)
    y = lax.fori_loop(0, 7, lambda i, c: add_one(c) * 1.5 + jnp.sum(c), y)
    y = lax.cond(y[0, 0] > 0, add_one, jnp.cos, y)
    y, _ = lax.scan(lambda c, e: (add_one(c) + e, c.sum()), y, jnp.stack([w] * 5))
    return jnp.sort(y, axis=0)


def rank_one_blocks(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((1024,), lambda i: (i,))
    return pl.pallas_call(
        kernel, grid=(4,), in_specs=[block], out_specs=block, out_shape=spec(4096)
    )(x)


def asks_for_chip(x):
    lanes = pltpu.get_tpu_info().num_lanes

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * lanes

    return pl.pallas_call(kernel, out_shape=spec(8, 128))(x)


def pipeline_inside(x):
    def step(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def kernel(x_hbm, o_hbm):
        block = pl.BlockSpec((128, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(step, grid=(8,), in_specs=[block], out_specs=[block])(x_hbm, o_hbm)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel, in_specs=[anywhere], out_specs=anywhere, out_shape=spec(1024, 128)
    )(x)


def ring_step(x):
    """Every device sends its part to the right neighbour by remote DMA; axis ``x`` of size 4."""

    def kernel(x_ref, o_ref, send, receive):
        right = lax.rem(lax.axis_index("x") + 1, 4)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, receive, device_id=right)
        copy.start()
        copy.wait()

    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        kernel,
        in_specs=[hbm],
        out_specs=hbm,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
    )(x)


def ring_on(mesh: Any) -> Callable[..., Any]:
    """``ring_step`` under ``shard_map``; ``mesh`` None takes it from the context."""
    return jax.shard_map(
        ring_step, mesh=mesh, in_specs=P("x", None), out_specs=P("x", None), check_vma=False
    )
