"""Wrong answers to the exercises of lab 00; each function's first line says what is wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _add_kernel(x_ref, y_ref, out_ref):  # type: ignore[no-untyped-def]
    out_ref[...] = x_ref[...] + y_ref[...]


def _copy_kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
    out_ref[...] = x_ref[...]


def _same(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def add_outside(x: jax.Array, y: jax.Array) -> jax.Array:
    """The kernel copies; XLA adds."""
    return pl.pallas_call(_copy_kernel, out_shape=_same(x))(x) + y


def add_without_kernel(x: jax.Array, y: jax.Array) -> jax.Array:
    """No kernel at all."""
    return x + y


def add_constant_luck(x: jax.Array, y: jax.Array) -> jax.Array:
    """Subtracts: right on zeros."""

    def kernel(x_ref, y_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = x_ref[...] - y_ref[...]

    return pl.pallas_call(kernel, out_shape=_same(x))(x, y)


def add_in_bf16(x: jax.Array, y: jax.Array) -> jax.Array:
    """Adds in bfloat16."""

    def kernel(x_ref, y_ref, out_ref):  # type: ignore[no-untyped-def]
        total = x_ref[...].astype(jnp.bfloat16) + y_ref[...].astype(jnp.bfloat16)
        out_ref[...] = total.astype(jnp.float32)

    return pl.pallas_call(kernel, out_shape=_same(x))(x, y)


def add_wrong_dtype(x: jax.Array, y: jax.Array) -> jax.Array:
    """Returns bfloat16."""

    def kernel(x_ref, y_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = (x_ref[...] + y_ref[...]).astype(jnp.bfloat16)

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.bfloat16))(x, y)


def _by_hand(kernel, x: jax.Array, y: jax.Array) -> jax.Array:  # type: ignore[no-untyped-def]
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        out_shape=_same(x),
        in_specs=[hbm, pl.BlockSpec()],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x, y)


def add_never_waits(x: jax.Array, y: jax.Array) -> jax.Array:
    """Starts the copy of x and reads the buffer at once."""

    def kernel(x_hbm, y_ref, out_ref, x_vmem, semaphore):  # type: ignore[no-untyped-def]
        pltpu.make_async_copy(x_hbm, x_vmem, semaphore).start()
        out_ref[...] = x_vmem[...] + y_ref[...]

    return _by_hand(kernel, x, y)


def add_waits_without_start(x: jax.Array, y: jax.Array) -> jax.Array:
    """Copies x properly, then waits for a second copy that nobody started."""

    def kernel(x_hbm, y_ref, out_ref, x_vmem, semaphore):  # type: ignore[no-untyped-def]
        copy = pltpu.make_async_copy(x_hbm, x_vmem, semaphore)
        copy.start()
        copy.wait()
        out_ref[...] = x_vmem[...] + y_ref[...]
        copy.wait()

    return _by_hand(kernel, x, y)


def add_semaphore_left(x: jax.Array, y: jax.Array) -> jax.Array:
    """Signals a semaphore once more than it waits."""

    def kernel(x_ref, y_ref, out_ref, semaphore):  # type: ignore[no-untyped-def]
        pl.semaphore_signal(semaphore, 2)
        pl.semaphore_wait(semaphore, 1)
        out_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(kernel, out_shape=_same(x), scratch_shapes=[pltpu.SemaphoreType.REGULAR])(
        x, y
    )


def _add_blocks(  # type: ignore[no-untyped-def]
    x: jax.Array, y: jax.Array, block_rows: int, *, y_map=None, x_map=None, steps=None
) -> jax.Array:
    rows, cols = x.shape
    plain = lambda i: (i, 0)  # noqa: E731 - index maps are written as lambdas
    return pl.pallas_call(
        _add_kernel,
        grid=(pl.cdiv(rows, block_rows) if steps is None else steps,),
        in_specs=[
            pl.BlockSpec((block_rows, cols), x_map or plain),
            pl.BlockSpec((block_rows, cols), y_map or plain),
        ],
        out_specs=pl.BlockSpec((block_rows, cols), plain),
        out_shape=_same(x),
    )(x, y)


def add_blocks_whole(x: jax.Array, y: jax.Array) -> jax.Array:
    """No grid: the whole arrays at once."""
    return pl.pallas_call(_add_kernel, out_shape=_same(x))(x, y)


def add_blocks_odd_block(x: jax.Array, y: jax.Array) -> jax.Array:
    """Blocks of 100 rows."""
    return _add_blocks(x, y, 100)


def add_blocks_swapped(x: jax.Array, y: jax.Array) -> jax.Array:
    """Y is read from the end."""
    last = pl.cdiv(x.shape[0], 256) - 1
    return _add_blocks(x, y, 256, y_map=lambda i: (last - i, 0))


def add_blocks_first_only(x: jax.Array, y: jax.Array) -> jax.Array:
    """Both inputs stay at the first block."""
    return _add_blocks(x, y, 256, x_map=lambda i: (0, 0), y_map=lambda i: (0, 0))


def add_blocks_floor(x: jax.Array, y: jax.Array) -> jax.Array:
    """The grid is rounded down."""
    return _add_blocks(x, y, 256, steps=x.shape[0] // 256)


def add_blocks_tiny(x: jax.Array, y: jax.Array) -> jax.Array:
    """Blocks of 8 rows and 128 columns."""
    rows, cols = x.shape
    block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
    return pl.pallas_call(
        _add_kernel,
        grid=(pl.cdiv(rows, 8), pl.cdiv(cols, 128)),
        in_specs=[block, block],
        out_specs=block,
        out_shape=_same(x),
    )(x, y)


def add_blocks_out_of_range(x: jax.Array, y: jax.Array) -> jax.Array:
    """Y is read one block further down."""
    return _add_blocks(x, y, 256, y_map=lambda i: (i + 1, 0))


def _scale_add(kernel, a: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:  # type: ignore[no-untyped-def]
    rows, cols = x.shape
    block = pl.BlockSpec((512, cols), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, 512),),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), block, block],
        out_specs=block,
        out_shape=_same(x),
    )(a, x, y)


def scale_add_scaled_outside(a: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """XLA scales, the kernel adds."""
    return _add_blocks(x * a, y, 512)


def scale_add_scales_both(a: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """A * (x + y)."""

    def kernel(a_ref, x_ref, y_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = a_ref[0] * (x_ref[...] + y_ref[...])

    return _scale_add(kernel, a, x, y)


def scale_add_forgets_scale(a: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """X + y, with as much arithmetic as asked for."""

    def kernel(a_ref, x_ref, y_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = (x_ref[...] + y_ref[...]) * 1.0

    return _scale_add(kernel, a, x, y)


def scale_add_vector_from_smem(a: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """Reads the SMEM Ref as a vector."""

    def kernel(a_ref, x_ref, y_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = a_ref[...] * x_ref[...] + y_ref[...]

    return _scale_add(kernel, a, x, y)


def _column_sum(kernel, x: jax.Array, **parameters) -> jax.Array:  # type: ignore[no-untyped-def]
    rows, cols = x.shape
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, 512),),
        in_specs=[pl.BlockSpec((512, cols), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, cols), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((1, cols), x.dtype),
        **parameters,
    )(x)


def _masked(x_ref, rows: int) -> jax.Array:  # type: ignore[no-untyped-def]
    row = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
    return jnp.where(row < rows - pl.program_id(0) * x_ref.shape[0], x_ref[...], 0.0)


def column_sum_uninitialised(x: jax.Array) -> jax.Array:
    """Nobody clears the output block."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] += jnp.sum(_masked(x_ref, x.shape[0]), axis=0, keepdims=True)

    return _column_sum(kernel, x)


def column_sum_overwrites(x: jax.Array) -> jax.Array:
    """Each step stores its own sum."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = jnp.sum(_masked(x_ref, x.shape[0]), axis=0, keepdims=True)

    return _column_sum(kernel, x)


def column_sum_reads_padding(x: jax.Array) -> jax.Array:
    """The rows beyond the end are summed too."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        @pl.when(pl.program_id(0) == 0)
        def _clear() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.sum(x_ref[...], axis=0, keepdims=True)

    return _column_sum(kernel, x)


def column_sum_parallel(x: jax.Array) -> jax.Array:
    """The axis that carries the sum is marked parallel."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        @pl.when(pl.program_id(0) == 0)
        def _clear() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.sum(_masked(x_ref, x.shape[0]), axis=0, keepdims=True)

    return _column_sum(
        kernel, x, compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",))
    )


def column_sum_bf16(x: jax.Array) -> jax.Array:
    """The running sum is rounded to bfloat16."""

    def kernel(x_ref, out_ref):  # type: ignore[no-untyped-def]
        @pl.when(pl.program_id(0) == 0)
        def _clear() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        total = out_ref[...] + jnp.sum(_masked(x_ref, x.shape[0]), axis=0, keepdims=True)
        out_ref[...] = total.astype(jnp.bfloat16).astype(jnp.float32)

    return _column_sum(kernel, x)
