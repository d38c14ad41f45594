"""Wrong answers to the exercises of lab 30; each function's first line says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_ANY = pl.BlockSpec(memory_space=pl.ANY)


def _place() -> tuple[Any, Any, Any]:
    """This device and its neighbours on the left and on the right."""
    device, devices = lax.axis_index("ring"), lax.axis_size("ring")
    return device, (device - 1) % devices, (device + 1) % devices


def _meet(others: Sequence[Any], wait: int | None = None) -> None:
    """Signal these devices and wait for as many signals, or for another number of them."""
    barrier = pltpu.get_barrier_semaphore()
    for other in others:
        pl.semaphore_signal(barrier, device_id={"ring": other})
    pl.semaphore_wait(barrier, len(others) if wait is None else wait)


def _copy(source: Any, target: Any, send_sem: Any, recv_sem: Any, device: Any) -> Any:
    return pltpu.make_async_remote_copy(
        source, target, send_sem, recv_sem, device_id={"ring": device}
    )


def _call(
    kernel: Callable[..., None], shard: jax.Array, copies: int = 1, *, collective_id: int | None = 0
) -> jax.Array:
    """A kernel with one send and one receive semaphore for each copy."""
    semaphores = pltpu.SemaphoreType.DMA((copies,))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shard.shape, shard.dtype),
        in_specs=[_ANY],
        out_specs=_ANY,
        scratch_shapes=[semaphores, semaphores],
        compiler_params=pltpu.CompilerParams(collective_id=collective_id),
    )(shard)


# shift -------------------------------------------------------------------------------------------


def shift_to_the_left(shard: jax.Array) -> jax.Array:
    """Sends to the left neighbour."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        _, left, right = _place()
        _meet([right])
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], left)
        copy.start()
        copy.wait()

    return _call(kernel, shard)


def shift_on_two_devices(shard: jax.Array) -> jax.Array:
    """The neighbour is device ^ 1: right on two devices only."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        partner = lax.axis_index("ring") ^ 1
        _meet([partner])
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], partner)
        copy.start()
        copy.wait()

    return _call(kernel, shard)


def shift_past_the_end(shard: jax.Array) -> jax.Array:
    """The last device sends to device + 1, which does not exist."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        copy = _copy(
            shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], lax.axis_index("ring") + 1
        )
        copy.start()
        copy.wait()

    return _call(kernel, shard, collective_id=None)


def shift_without_receive_wait(shard: jax.Array) -> jax.Array:
    """Waits until its own shard has left, not until its neighbour's has come."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        _, left, right = _place()
        _meet([left])
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], right)
        copy.start()
        copy.wait_send()

    return _call(kernel, shard)


def shift_without_send_wait(shard: jax.Array) -> jax.Array:
    """Leaves the kernel while its own shard may still be on its way."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        _, left, right = _place()
        _meet([left])
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], right)
        copy.start()
        copy.wait_recv()

    return _call(kernel, shard)


def shift_outside(shard: jax.Array) -> jax.Array:
    """XLA permutes, the kernel copies."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        copy = pltpu.make_async_copy(shard_ref, out_ref, send_sems.at[0])
        copy.start()
        copy.wait()

    devices = lax.axis_size("ring")
    moved = lax.ppermute(shard, "ring", [(i, (i + 1) % devices) for i in range(devices)])
    return _call(kernel, moved, collective_id=None)


def shift_in_turn(shard: jax.Array) -> jax.Array:
    """Sends a piece at a time and waits for it before the next one starts."""
    rows = max(8, shard.shape[0] // 32)

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        _, left, right = _place()
        _meet([left])

        def send(piece, carry):  # type: ignore[no-untyped-def]
            part = pl.ds(pl.multiple_of(piece * rows, rows), rows)
            copy = _copy(
                shard_ref.at[part], out_ref.at[part], send_sems.at[0], recv_sems.at[0], right
            )
            copy.start()
            copy.wait()
            return carry

        lax.fori_loop(0, shard.shape[0] // rows, send, 0)

    return _call(kernel, shard)


# exchange ----------------------------------------------------------------------------------------


def exchange_meets_itself(shard: jax.Array) -> jax.Array:
    """The signal names no device, so it goes to the device itself: nobody has met anybody."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        partner = lax.axis_index("ring") ^ 1
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier)
        pl.semaphore_wait(barrier, 1)
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], partner)
        copy.start()
        copy.wait()

    return _call(kernel, shard)


def exchange_barrier_after_the_copy(shard: jax.Array) -> jax.Array:
    """The copy starts first, then the devices meet."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        partner = lax.axis_index("ring") ^ 1
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], partner)
        copy.start()
        _meet([partner])
        copy.wait()

    return _call(kernel, shard)


def exchange_without_collective_id(shard: jax.Array) -> jax.Array:
    """A barrier semaphore without a collective_id."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        partner = lax.axis_index("ring") ^ 1
        _meet([partner])
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], partner)
        copy.start()
        copy.wait()

    return _call(kernel, shard, collective_id=None)


def exchange_waits_for_two(shard: jax.Array) -> jax.Array:
    """Waits for two signals and gets one: every device hangs."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        partner = lax.axis_index("ring") ^ 1
        _meet([partner], wait=2)
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], partner)
        copy.start()
        copy.wait()

    return _call(kernel, shard)


def exchange_waits_before_it_signals(shard: jax.Array) -> jax.Array:
    """Both partners wait for a signal that each would send afterwards."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        partner = lax.axis_index("ring") ^ 1
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_wait(barrier, 1)
        pl.semaphore_signal(barrier, device_id={"ring": partner})
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], partner)
        copy.start()
        copy.wait()

    return _call(kernel, shard)


def exchange_leaves_a_signal(shard: jax.Array) -> jax.Array:
    """Signals twice and waits once: the barrier semaphore is left at one."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        partner = lax.axis_index("ring") ^ 1
        _meet([partner, partner], wait=1)
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], partner)
        copy.start()
        copy.wait()

    return _call(kernel, shard)


def exchange_with_the_next(shard: jax.Array) -> jax.Array:
    """The partner is the right neighbour: right on two devices only."""

    def kernel(shard_ref, out_ref, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        _, left, right = _place()
        _meet([left])
        copy = _copy(shard_ref, out_ref, send_sems.at[0], recv_sems.at[0], right)
        copy.start()
        copy.wait()

    return _call(kernel, shard)


# both neighbours ---------------------------------------------------------------------------------


def _three(
    shard: jax.Array,
    *,
    slots: tuple[int, int] = (0, 2),
    in_turn: bool = False,
    meet_both: bool = True,
    left_twice: bool = False,
    ends_meet: bool = True,
) -> jax.Array:
    """The plain exchange with both neighbours; what differs from it is what is wrong."""

    def kernel(shard_ref, out_ref, local_sem, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        device, left, right = _place()
        _meet([left, left if left_twice else right], wait=2 if meet_both else 1)
        own = pltpu.make_async_copy(shard_ref, out_ref.at[1], local_sem)
        own.start()
        ways = ((right, slots[0]), (left, slots[1]))
        copies = [
            _copy(shard_ref, out_ref.at[slot], send_sems.at[way], recv_sems.at[way], neighbour)
            for way, (neighbour, slot) in enumerate(ways)
        ]
        if not ends_meet:
            last = lax.axis_size("ring") - 1
            starts, waits = (device < last, device > 0), (device > 0, device < last)
            for copy, start in zip(copies, starts):
                pl.when(start)(copy.start)
            for copy, start, wait in zip(copies, starts, waits):
                pl.when(start)(copy.wait_send)
                pl.when(wait)(copy.wait_recv)
        elif in_turn:
            for copy in copies:
                copy.start()
                copy.wait()
        else:
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
        own.wait()

    semaphores = pltpu.SemaphoreType.DMA((2,))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((3, *shard.shape), shard.dtype),
        in_specs=[_ANY],
        out_specs=_ANY,
        scratch_shapes=[pltpu.SemaphoreType.DMA, semaphores, semaphores],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


def both_neighbours_swapped(shard: jax.Array) -> jax.Array:
    """What comes from the left lies where the right belongs."""
    return _three(shard, slots=(2, 0))


def both_neighbours_one_slot(shard: jax.Array) -> jax.Array:
    """Both neighbours write into slot 0."""
    return _three(shard, slots=(0, 0))


def both_neighbours_meets_one(shard: jax.Array) -> jax.Array:
    """Signals both neighbours and waits for one."""
    return _three(shard, meet_both=False)


def both_neighbours_meets_the_left_twice(shard: jax.Array) -> jax.Array:
    """Signals its left neighbour twice: the right one may not have entered."""
    return _three(shard, left_twice=True)


def both_neighbours_on_a_line(shard: jax.Array) -> jax.Array:
    """The ends of the line do not meet: their outer slots are never written."""
    return _three(shard, ends_meet=False)


def both_neighbours_in_turn(shard: jax.Array) -> jax.Array:
    """To the right, wait, then to the left: one direction of every link idles."""
    return _three(shard, in_turn=True)
