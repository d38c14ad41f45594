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


# wrong ones


def _wrong_gather(shard: jax.Array, body: Callable[..., None], **params: Any) -> jax.Array:
    count = lax.axis_size(AXIS)
    semaphores = pltpu.SemaphoreType.DMA((count,))
    scratch = [pltpu.SemaphoreType.DMA, semaphores, semaphores]
    return call(body, shard, (count, *shard.shape), scratch, **params)


def _forward(o_ref: Any, send: Any, recv: Any, step: int) -> Any:
    me, _, right, count = neighbours()
    slot = lax.rem(me - step + count, count)
    return pltpu.make_async_remote_copy(
        o_ref.at[slot], o_ref.at[slot], send.at[step], recv.at[step], device_id={AXIS: right}
    )


def _keep_own(x_ref: Any, o_ref: Any, local: Any) -> None:
    mine = pltpu.make_async_copy(x_ref, o_ref.at[lax.axis_index(AXIS)], local)
    mine.start()
    mine.wait()


def gather_without_barrier(shard: jax.Array) -> jax.Array:
    """Nobody waits until its neighbour has come in."""

    def kernel(x_ref: Any, o_ref: Any, local: Any, send: Any, recv: Any) -> None:
        _keep_own(x_ref, o_ref, local)
        for step in range(lax.axis_size(AXIS) - 1):
            copy = _forward(o_ref, send, recv, step)
            copy.start()
            copy.wait()

    return _wrong_gather(shard, kernel)


def gather_without_waiting_for_arrival(shard: jax.Array) -> jax.Array:
    """Only waits until its own copies have left."""

    def kernel(x_ref: Any, o_ref: Any, local: Any, send: Any, recv: Any) -> None:
        _, left, right, count = neighbours()
        meet(left, right)
        _keep_own(x_ref, o_ref, local)
        for step in range(count - 1):
            copy = _forward(o_ref, send, recv, step)
            copy.start()
            copy.wait_send()

    return _wrong_gather(shard, kernel)


def gather_with_a_silent_device(shard: jax.Array) -> jax.Array:
    """Device 0 sends nothing, device 1 waits for it."""

    def kernel(x_ref: Any, o_ref: Any, local: Any, send: Any, recv: Any) -> None:
        me, left, right, count = neighbours()
        meet(left, right)
        _keep_own(x_ref, o_ref, local)
        for step in range(count - 1):
            copy = _forward(o_ref, send, recv, step)

            @pl.when(me != 0)
            def _(copy: Any = copy) -> None:
                copy.start()
                copy.wait_send()

            copy.wait_recv()

    return _wrong_gather(shard, kernel)


def shift_with_an_unsignalled_barrier(shard: jax.Array) -> jax.Array:
    """Waits for two signals at the barrier and gives none."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, _, right, _ = neighbours()
        pl.semaphore_wait(pltpu.get_barrier_semaphore(), 2)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={AXIS: right})
        copy.start()
        copy.wait()

    return call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2)


def shift_with_a_signal_too_many(shard: jax.Array) -> jax.Array:
    """Signals both neighbours and waits for one."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, left, right, _ = neighbours()
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id={AXIS: left})
        pl.semaphore_signal(barrier, 1, device_id={AXIS: right})
        pl.semaphore_wait(barrier, 1)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={AXIS: right})
        copy.start()
        copy.wait()

    return call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2)


def shift_without_collective_id(shard: jax.Array) -> jax.Array:
    """Asks for the barrier semaphore, which belongs to a collective_id, without one."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, left, right, _ = neighbours()
        meet(left, right)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={AXIS: right})
        copy.start()
        copy.wait()

    return call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2, collective_id=None)


def shift_without_barrier_and_id(shard: jax.Array) -> jax.Array:
    """No barrier at all, and no collective_id."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, _, right, _ = neighbours()
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={AXIS: right})
        copy.start()
        copy.wait()

    return call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2, collective_id=None)


def sum_with_one_buffer(shard: jax.Array) -> jax.Array:
    """All-reduce whose neighbour overwrites the one buffer while it is still read."""

    def kernel(x_ref: Any, o_ref: Any, buffer: Any, send: Any, recv: Any) -> None:
        _, left, right, count = neighbours()
        meet(left, right)
        o_ref[...] = x_ref[...]
        buffer[...] = x_ref[...]
        for _ in range(count - 1):
            copy = pltpu.make_async_remote_copy(buffer, buffer, send, recv, device_id={AXIS: right})
            copy.start()
            copy.wait()
            o_ref[...] += buffer[...]

    scratch = [pltpu.VMEM(shard.shape, shard.dtype), *[pltpu.SemaphoreType.DMA] * 2]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shard.shape, shard.dtype),
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


def shift_to_the_wrong_device(shard: jax.Array) -> jax.Array:
    """Everybody sends to device 0."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, left, right, _ = neighbours()
        meet(left, right)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={AXIS: 0})
        copy.start()
        copy.wait()

    return call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2)


def shift_beyond_the_last_device(shard: jax.Array) -> jax.Array:
    """The last device's right neighbour is a device that there is none of."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        me, left, right, _ = neighbours()
        meet(left, right)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={AXIS: me + 1})
        copy.start()
        copy.wait()

    return call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2)


def _gather_with(
    shard: jax.Array,
    way: int = 1,
    slot_sign: int = -1,
    one_semaphore: bool = False,
    itself: bool = False,
    keep_waits: bool = True,
) -> jax.Array:
    """The plain all-gather, with the mistakes that are asked for."""

    def kernel(x_ref: Any, o_ref: Any, local: Any, send: Any, recv: Any) -> None:
        me, left, right, count = neighbours()
        meet(left, right)
        if keep_waits:
            _keep_own(x_ref, o_ref, local)
        else:
            pltpu.make_async_copy(x_ref, o_ref.at[me], local).start()
        for step in range(count - 1):
            slot = lax.rem(me + slot_sign * step + count, count)
            copy = pltpu.make_async_remote_copy(
                o_ref.at[slot],
                o_ref.at[slot],
                send.at[step],
                recv.at[0 if one_semaphore else step],
                device_id={AXIS: me if itself else right if way > 0 else left},
            )
            copy.start()
            copy.wait()

    return _wrong_gather(shard, kernel)


def gather_to_the_wrong_neighbour(shard: jax.Array) -> jax.Array:
    """Slots go right, copies go left."""
    return _gather_with(shard, way=-1)


def gather_of_the_wrong_slot(shard: jax.Array) -> jax.Array:
    """Copies go right, slots go left."""
    return _gather_with(shard, slot_sign=1)


def gather_on_one_semaphore(shard: jax.Array) -> jax.Array:
    """All steps share one receive semaphore."""
    return _gather_with(shard, one_semaphore=True)


def gather_to_oneself(shard: jax.Array) -> jax.Array:
    """Every copy stays on its own device."""
    return _gather_with(shard, itself=True)


def gather_without_waiting_for_its_own(shard: jax.Array) -> jax.Array:
    """The copy of its own shard is not waited for."""
    return _gather_with(shard, keep_waits=False)
