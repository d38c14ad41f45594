"""Kernels that the tests of this room trace, run and judge: right ones, and one per mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

VMEM = pl.BlockSpec(memory_space=pltpu.VMEM)
ANY = pl.BlockSpec(memory_space=pl.ANY)
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


def like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def semantics(*kinds: str) -> Any:
    return pltpu.CompilerParams(dimension_semantics=kinds)


def matmul(
    block_m: int,
    block_k: int,
    block_n: int,
    *,
    order: str = "mnk",
    kinds: tuple[str, str, str] = ("parallel", "parallel", "arbitrary"),
    clear: bool = True,
    out_dtype: Any = None,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A blocked matmul; ``order`` names the grid axes from outermost to innermost."""
    axis = order.index("k")

    def kernel(lhs: Any, rhs: Any, out: Any, acc: Any) -> None:
        if clear:

            @pl.when(pl.program_id(axis) == 0)
            def _() -> None:
                acc[...] = jnp.zeros_like(acc)

        acc[...] += jnp.dot(lhs[...], rhs[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(axis) == pl.num_programs(axis) - 1)
        def _() -> None:
            out[...] = acc[...].astype(out.dtype)

    def pick(*names: str) -> Callable[..., tuple[Any, ...]]:
        return lambda *ids: tuple(ids[order.index(name)] for name in names)

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        (m, k), n = x.shape, y.shape[1]
        counts = {"m": m // block_m, "k": k // block_k, "n": n // block_n}
        return pl.pallas_call(
            kernel,
            grid=tuple(counts[name] for name in order),
            in_specs=[
                pl.BlockSpec((block_m, block_k), pick("m", "k")),
                pl.BlockSpec((block_k, block_n), pick("k", "n")),
            ],
            out_specs=pl.BlockSpec((block_m, block_n), pick("m", "n")),
            out_shape=jax.ShapeDtypeStruct((m, n), out_dtype or x.dtype),
            scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
            compiler_params=semantics(*kinds),
        )(x, y)

    return multiply


def copy_blocks(
    block: tuple[Any, ...],
    grid: tuple[int, ...],
    index_map: Callable[..., Any],
    out_map: Callable[..., Any] | None = None,
    **options: Any,
) -> Callable[[jax.Array], jax.Array]:
    """A copy whose input and output are windowed as told."""

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

    def copy(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=[pl.BlockSpec(block, index_map)],
            out_specs=pl.BlockSpec(block, out_map or index_map),
            out_shape=like(x),
            **options,
        )(x)

    return copy


def add_one(x: jax.Array) -> jax.Array:
    """f32[16,128] in two blocks."""

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] + 1

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[spec],
        out_specs=spec,
        out_shape=like(x),
        compiler_params=semantics("parallel"),
    )(x)


def gather_blocks(table: jax.Array, x: jax.Array) -> jax.Array:
    """Blocks of 8 rows in the order that a scalar-prefetched table gives."""

    def kernel(table: Any, x: Any, out: Any) -> None:
        out[...] = x[...]

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(table.shape[0],),
            in_specs=[pl.BlockSpec((8, 128), lambda i, table: (table[i], 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, table: (i, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((table.shape[0] * 8, 128), x.dtype),
    )(table, x)


def pipelined_double(rows: int) -> Callable[[jax.Array], jax.Array]:
    """f32[8·rows, 256] doubled by ``emit_pipeline`` in (8, 128) blocks."""

    def body(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def kernel(x: Any, out: Any) -> None:
        spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        pltpu.emit_pipeline(body, grid=(rows, 2), in_specs=[spec], out_specs=[spec])(x, out)

    def double(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, in_specs=[ANY], out_specs=ANY, out_shape=like(x))(x)

    return double


def double_buffered(x: jax.Array) -> jax.Array:
    """f32[64,128] doubled 8 rows at a time with two hand-written buffers."""

    def kernel(x: Any, out: Any, buffers: Any, semaphores: Any) -> None:
        def fetch(step: Any) -> Any:
            slot = step % 2
            return pltpu.make_async_copy(
                x.at[pl.ds(step * 8, 8)], buffers.at[slot], semaphores.at[slot]
            )

        fetch(0).start()

        def step(index: Any, carry: Any) -> Any:
            @pl.when(index + 1 < 8)
            def _() -> None:
                fetch(index + 1).start()

            fetch(index).wait()
            out[pl.ds(index * 8, 8), :] = buffers[index % 2] * 2
            return carry

        jax.lax.fori_loop(0, 8, step, 0)

    return pl.pallas_call(
        kernel,
        in_specs=[ANY],
        out_specs=VMEM,
        out_shape=like(x),
        scratch_shapes=[pltpu.VMEM((2, 8, 128), x.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def late_wait(x: jax.Array) -> jax.Array:
    """Uses a buffer while the copy into it is still on its way."""

    def kernel(x: Any, out: Any, buffer: Any, semaphore: Any) -> None:
        copy = pltpu.make_async_copy(x, buffer, semaphore)
        copy.start()
        out[...] = buffer[...] * 2  # the race
        copy.wait()

    return pl.pallas_call(
        kernel,
        in_specs=[ANY],
        out_specs=VMEM,
        out_shape=like(x),
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def no_wait(x: jax.Array) -> jax.Array:
    """Never waits for the copy at all."""

    def kernel(x: Any, out: Any, buffer: Any, semaphore: Any) -> None:
        pltpu.make_async_copy(x, buffer, semaphore).start()
        out[...] = buffer[...] * 2

    return pl.pallas_call(
        kernel,
        in_specs=[ANY],
        out_specs=VMEM,
        out_shape=like(x),
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def semaphore_left(x: jax.Array) -> jax.Array:
    """Signals twice and waits once."""

    def kernel(x: Any, out: Any, semaphore: Any) -> None:
        pl.semaphore_signal(semaphore, 2)
        pl.semaphore_wait(semaphore, 1)
        out[...] = x[...]

    return pl.pallas_call(
        kernel,
        in_specs=[VMEM],
        out_specs=VMEM,
        out_shape=like(x),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x)


def sum_rows(kind: str) -> Callable[[jax.Array], jax.Array]:
    """f32[8·n,128] summed into one block, along an axis of the given kind."""

    def kernel(x: Any, out: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            out[...] = jnp.zeros_like(out)

        out[...] += x[...]

    def total(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(x.shape[0] // 8,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
            out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
            compiler_params=semantics(kind),
        )(x)

    return total


def running_sum(kind: str) -> Callable[[jax.Array], jax.Array]:
    """f32[8·n,128]: each block is the sum of those up to it, carried in scratch."""

    def kernel(x: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += x[...]
        out[...] = total[...]

    def scan(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            grid=(x.shape[0] // 8,),
            in_specs=[spec],
            out_specs=spec,
            out_shape=like(x),
            scratch_shapes=[pltpu.VMEM((8, 128), x.dtype)],
            compiler_params=semantics(kind),
        )(x)

    return scan


def whole(kernel: Callable[..., None], *specs: Any, out: Any = VMEM) -> Callable[..., jax.Array]:
    """A kernel without a grid whose output is like its last argument."""

    def call(*arguments: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            in_specs=list(specs) or [VMEM] * len(arguments),
            out_specs=out,
            out_shape=like(arguments[-1]),
        )(*arguments)

    return call


def on_cores(cores: int) -> Callable[[jax.Array], jax.Array]:
    """f32[8·cores,128] doubled by ``pl.kernel``, eight rows on each core of a mesh."""
    make = getattr(pltpu, "TensorCoreMesh", None)
    mesh = (
        make(axis_name="core", num_cores=cores)
        if make is not None
        else pltpu.create_tensorcore_mesh("core", num_cores=cores)
    )

    def kernel(x: Any, out: Any, buffer: Any) -> None:
        rows = pl.ds(pl.multiple_of(jax.lax.axis_index("core") * 8, 8), 8)
        pltpu.sync_copy(x.at[rows], buffer)
        buffer[...] = buffer[...] * 2
        pltpu.sync_copy(buffer, out.at[rows])

    def double(x: jax.Array) -> jax.Array:
        scratch = [pltpu.VMEM((8, 128), x.dtype)]
        return pl.kernel(kernel, out_type=like(x), mesh=mesh, scratch_types=scratch)(x)

    return double


def repeats(counts: Any, x: Any) -> Any:
    """Adds a block to itself as often as a number in SMEM says."""

    def body(counts_ref: Any, x_ref: Any, out_ref: Any) -> None:
        def again(_: Any, total: Any) -> Any:
            return total + x_ref[...]

        out_ref[...] = jax.lax.fori_loop(0, counts_ref[1], again, jnp.zeros_like(x_ref[...]))

    return pl.pallas_call(
        body,
        grid=(4,),
        in_specs=[
            pl.BlockSpec(memory_space=pltpu.SMEM),
            pl.BlockSpec((8, 128), lambda i: (i, 0)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(counts, x)
