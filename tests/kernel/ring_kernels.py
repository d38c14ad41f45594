"""Kernels for a ring of devices, right and wrong ones; each is what one device does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

AXIS = "ring"
ANYWHERE = pl.BlockSpec(memory_space=pl.ANY)


def neighbours() -> tuple[Any, Any, Any, int]:
    """(own number, left, right, how many)."""
    count = lax.axis_size(AXIS)
    me = lax.axis_index(AXIS)
    return me, lax.rem(me + count - 1, count), lax.rem(me + 1, count), count


def meet(*peers: Any) -> None:
    """Wait until every peer has come in."""
    barrier = pltpu.get_barrier_semaphore()
    for peer in peers:
        pl.semaphore_signal(barrier, 1, device_id={AXIS: peer})
    pl.semaphore_wait(barrier, len(peers))


def call(
    kernel: Callable[..., None],
    shard: jax.Array,
    shape: tuple[int, ...],
    scratch: Any,
    **params: Any,
) -> jax.Array:
    """One call without a grid, whole arrays in HBM."""
    return pl.pallas_call(
        kernel,
        in_specs=[ANYWHERE],
        out_specs=ANYWHERE,
        out_shape=jax.ShapeDtypeStruct(shape, shard.dtype),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(**{"collective_id": 0, **params}),
    )(shard)


def shift(shard: jax.Array) -> jax.Array:
    """f32[r, 128] → the left neighbour's."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, left, right, _ = neighbours()
        meet(left, right)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={AXIS: right})
        copy.start()
        copy.wait()

    return call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2)


def all_gather(shard: jax.Array) -> jax.Array:
    """f32[r, 128] → f32[n, r, 128], one way round, n − 1 rounds."""

    def kernel(x_ref: Any, o_ref: Any, local: Any, send: Any, recv: Any) -> None:
        me, left, right, count = neighbours()
        meet(left, right)
        mine = pltpu.make_async_copy(x_ref, o_ref.at[me], local)
        mine.start()
        mine.wait()
        for step in range(count - 1):
            slot = lax.rem(me - step + count, count)
            copy = pltpu.make_async_remote_copy(
                o_ref.at[slot],
                o_ref.at[slot],
                send.at[step],
                recv.at[step],
                device_id={AXIS: right},
            )
            copy.start()
            copy.wait()

    count = lax.axis_size(AXIS)
    semaphores = pltpu.SemaphoreType.DMA((count,))
    return call(
        kernel, shard, (count, *shard.shape), [pltpu.SemaphoreType.DMA, semaphores, semaphores]
    )


def all_gather_both_ways(shard: jax.Array) -> jax.Array:
    """f32[r, 128] → f32[n, r, 128], both ways round, n / 2 rounds."""

    def kernel(x_ref: Any, o_ref: Any, local: Any, send: Any, recv: Any) -> None:
        me, left, right, count = neighbours()
        meet(left, right)
        mine = pltpu.make_async_copy(x_ref, o_ref.at[me], local)
        mine.start()
        mine.wait()

        def copy(step: int, way: int) -> Any:
            slot = lax.rem(me + (-step if way else step) + 2 * count, count)
            return pltpu.make_async_remote_copy(
                o_ref.at[slot],
                o_ref.at[slot],
                send.at[way, step],
                recv.at[way, step],
                device_id={AXIS: right if way else left},
            )

        to_right, to_left = count // 2, (count - 1) // 2
        for step in range(to_right):
            copies = [copy(step, 1)] + ([copy(step, 0)] if step < to_left else [])
            for one in copies:
                one.start()
            for one in copies:
                one.wait()

    count = lax.axis_size(AXIS)
    semaphores = pltpu.SemaphoreType.DMA((2, count))
    return call(
        kernel, shard, (count, *shard.shape), [pltpu.SemaphoreType.DMA, semaphores, semaphores]
    )
