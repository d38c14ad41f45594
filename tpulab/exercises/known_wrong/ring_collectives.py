"""Wrong answers to the exercises of lab 31; each function's first line says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_ANY = pl.BlockSpec(memory_space=pl.ANY)


def _place() -> tuple[Any, Any, Any]:
    """This device and its neighbours on the left and on the right."""
    device, devices = lax.axis_index("ring"), lax.axis_size("ring")
    return device, (device - 1) % devices, (device + 1) % devices


def _meet(*, itself: bool = False) -> None:
    """Both neighbours have entered; ``itself`` signals nobody else, and so says nothing."""
    device, left, right = _place()
    if itself:
        left = right = device
    barrier = pltpu.get_barrier_semaphore()
    pl.semaphore_signal(barrier, device_id={"ring": left})
    pl.semaphore_signal(barrier, device_id={"ring": right})
    pl.semaphore_wait(barrier, 2)


def _copy(source: Any, target: Any, send_sem: Any, recv_sem: Any, device: Any) -> Any:
    return pltpu.make_async_remote_copy(
        source, target, send_sem, recv_sem, device_id={"ring": device}
    )


# all-gather --------------------------------------------------------------------------------------


def _gather(
    shard: jax.Array,
    *,
    steps: Callable[[int], int] = lambda devices: devices - 1,
    slot_of: Callable[[Any, int, int], Any] = lambda device, step, devices: (
        (device - step) % devices
    ),
    target_of: Callable[[Any, int, int], Any] | None = None,
    own_slot: Callable[[Any], Any] = lambda device: device,
    meets_itself: bool = False,
    wait_receive: bool = True,
    neighbour_of: Callable[[Any, int], Any] = lambda device, devices: (device + 1) % devices,
) -> jax.Array:
    """The plain all-gather to the right; what differs from it is what is wrong."""
    devices = lax.axis_size("ring")

    def kernel(shard_ref, out_ref, local_sem, send_sem, recv_sems):  # type: ignore[no-untyped-def]
        device = lax.axis_index("ring")
        _meet(itself=meets_itself)
        own = pltpu.make_async_copy(shard_ref, out_ref.at[own_slot(device)], local_sem)
        own.start()
        own.wait()
        started = []
        for step in range(steps(devices)):
            slot = slot_of(device, step, devices)
            target = slot if target_of is None else target_of(device, step, devices)
            copy = _copy(
                out_ref.at[slot],
                out_ref.at[target],
                send_sem,
                recv_sems.at[step],
                neighbour_of(device, devices),
            )
            copy.start()
            copy.wait_send()
            if wait_receive:
                copy.wait_recv()
            started.append(copy)
        if not wait_receive:
            for copy in started:
                copy.wait_recv()

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((devices, *shard.shape), shard.dtype),
        in_specs=[_ANY],
        out_specs=_ANY,
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((devices,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


def all_gather_one_step_short(shard: jax.Array) -> jax.Array:
    """Takes devices - 2 steps, and never gets the right neighbour's shard."""
    return _gather(shard, steps=lambda devices: devices - 2)


def all_gather_sends_its_own(shard: jax.Array) -> jax.Array:
    """Sends its own shard in every step in place of the one that came last."""
    return _gather(shard, slot_of=lambda device, step, devices: device)


def all_gather_on_two_devices(shard: jax.Array) -> jax.Array:
    """The neighbour is device ^ 1: pairs, not a ring."""
    return _gather(shard, neighbour_of=lambda device, devices: device ^ 1)


def all_gather_passes_on_too_early(shard: jax.Array) -> jax.Array:
    """Passes a slot on before what belongs there has come."""
    return _gather(shard, wait_receive=False)


def all_gather_without_barrier(shard: jax.Array) -> jax.Array:
    """Its signals name no device and come back to itself: nobody has met anybody."""
    return _gather(shard, meets_itself=True)


def all_gather_by_step(shard: jax.Array) -> jax.Array:
    """Slot s holds what came in step s, whoever's it is."""
    return _gather(
        shard,
        own_slot=lambda device: 0,
        slot_of=lambda device, step, devices: step,
        target_of=lambda device, step, devices: step + 1,
    )


def all_gather_outside(shard: jax.Array) -> jax.Array:
    """XLA gathers, the kernel copies."""

    def kernel(gathered_ref, out_ref, semaphore):  # type: ignore[no-untyped-def]
        copy = pltpu.make_async_copy(gathered_ref, out_ref, semaphore)
        copy.start()
        copy.wait()

    gathered = lax.all_gather(shard, "ring")
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(gathered.shape, gathered.dtype),
        in_specs=[_ANY],
        out_specs=_ANY,
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )(gathered)


# all-gather both ways ----------------------------------------------------------------------------


def _gather_halves(
    shard: jax.Array,
    *,
    signs: tuple[int, int] = (1, -1),
    swapped: bool = False,
    one_receive_semaphore: bool = False,
    own_last: bool = False,
) -> jax.Array:
    """The plain all-gather of two halves in two directions; what differs is what is wrong."""
    devices = lax.axis_size("ring")
    rows = shard.shape[0] // 2

    def kernel(shard_ref, out_ref, local_sem, send_sems, recv_sems):  # type: ignore[no-untyped-def]
        device = lax.axis_index("ring")
        _meet()
        own = pltpu.make_async_copy(shard_ref, out_ref.at[device], local_sem)
        own.start()
        if not own_last:
            own.wait()
        for step in range(devices - 1):
            copies = []
            for way, sign in enumerate(signs):
                # the slot that came last in this direction, or in the other one
                slot = (device - (-sign if swapped else sign) * step) % devices
                half = pl.ds(way * rows, rows)
                copies.append(
                    _copy(
                        out_ref.at[slot, half],
                        out_ref.at[slot, half],
                        send_sems.at[way],
                        recv_sems.at[0 if one_receive_semaphore else way, step],
                        (device + sign) % devices,
                    )
                )
            for copy in copies:
                copy.start()
            if one_receive_semaphore:
                # two halves count as much as one whole
                for copy in copies:
                    copy.wait_send()
                copies[0].wait_recv()
            else:
                for copy in copies:
                    copy.wait()
        if own_last:
            own.wait()

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((devices, *shard.shape), shard.dtype),
        in_specs=[_ANY],
        out_specs=_ANY,
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, devices - 1)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


def all_gather_both_ways_one_way(shard: jax.Array) -> jax.Array:
    """Both halves go to the right."""
    return _gather_halves(shard, signs=(1, 1))


def all_gather_both_ways_wrong_slot(shard: jax.Array) -> jax.Array:
    """Each direction passes on what came from the other one."""
    return _gather_halves(shard, swapped=True)


def all_gather_both_ways_waits_once(shard: jax.Array) -> jax.Array:
    """Both directions count on one receive semaphore, and it is waited for once."""
    return _gather_halves(shard, one_receive_semaphore=True)


def all_gather_both_ways_own_too_late(shard: jax.Array) -> jax.Array:
    """Sends from its own slot while the copy into it is still under way."""
    return _gather_halves(shard, own_last=True)


# reduce-scatter ----------------------------------------------------------------------------------


def _reduce(
    partials: jax.Array,
    *,
    back_pressure: bool = True,
    balanced: bool = True,
    first: int = -1,
    wire: Any = None,
    same_slot: bool = False,
    add_own: bool = True,
) -> jax.Array:
    """The plain reduce-scatter to the right; what differs from it is what is wrong."""
    devices = lax.axis_size("ring")
    chunk = partials.shape[1:]
    wire = partials.dtype if wire is None else wire

    def kernel(  # type: ignore[no-untyped-def]
        partials_ref, out_ref, sum_ref, own_ref, local_sem, send_sem, recv_sems, free_sem
    ):
        device, left, right = _place()

        def load(index):  # type: ignore[no-untyped-def]
            copy = pltpu.make_async_copy(partials_ref.at[index % devices], own_ref, local_sem)
            copy.start()
            copy.wait()

        load(device + first)
        sum_ref[0] = own_ref[...].astype(wire)
        _meet()
        for step in range(devices - 1):
            source = step % 2
            target = source if same_slot else 1 - source
            if step > 0 and back_pressure:
                pl.semaphore_wait(free_sem, 1)
            copy = _copy(
                sum_ref.at[source], sum_ref.at[target], send_sem, recv_sems.at[target], right
            )
            copy.start()
            copy.wait()
            if back_pressure and (step < devices - 2 or not balanced):
                pl.semaphore_signal(free_sem, device_id={"ring": left})
            load(device + first - 1 - step)
            if add_own:
                sum_ref[target] = sum_ref[target] + own_ref[...].astype(wire)
        out_ref[...] = sum_ref[(devices - 1) % 2].astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(chunk, partials.dtype),
        in_specs=[_ANY],
        scratch_shapes=[
            pltpu.VMEM((2, *chunk), wire),
            pltpu.VMEM(chunk, partials.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(partials)


def reduce_scatter_overwrites(partials: jax.Array) -> jax.Array:
    """Sends into the neighbour's slot without asking whether it has been emptied."""
    return _reduce(partials, back_pressure=False)


def reduce_scatter_leaves_a_signal(partials: jax.Array) -> jax.Array:
    """Says "free" after the last step too, and nobody waits for that."""
    return _reduce(partials, balanced=False)


def reduce_scatter_wrong_chunk(partials: jax.Array) -> jax.Array:
    """Starts with its own chunk, and ends with its neighbour's."""
    return _reduce(partials, first=0)


def reduce_scatter_in_bf16(partials: jax.Array) -> jax.Array:
    """Adds and sends in bfloat16: half of the bytes, and a wrong sum."""
    return _reduce(partials, wire=jnp.bfloat16)


def reduce_scatter_one_slot(partials: jax.Array) -> jax.Array:
    """Sends from slot s into slot s: what comes lands on what is being sent."""
    return _reduce(partials, same_slot=True)


def reduce_scatter_adds_nothing(partials: jax.Array) -> jax.Array:
    """Passes on without adding its own."""
    return _reduce(partials, add_own=False)


def reduce_scatter_outside(partials: jax.Array) -> jax.Array:
    """XLA adds and scatters, the kernel copies."""

    def kernel(sum_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = sum_ref[...]

    scattered = lax.psum_scatter(partials, "ring", scatter_dimension=0)
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(scattered.shape, scattered.dtype))(
        scattered
    )


# all-reduce --------------------------------------------------------------------------------------


def all_reduce_whole_arrays(partial: jax.Array) -> jax.Array:
    """Right, but every device's whole array goes all the way round the ring."""
    devices = lax.axis_size("ring")
    rows, columns = partial.shape[0] // devices, partial.shape[1]

    def kernel(  # type: ignore[no-untyped-def]
        partial_ref, out_ref, landing_ref, sum_ref, others_ref, send_sem, recv_sems
    ):
        _, _, right = _place()
        _meet()
        for step in range(devices - 1):
            copy = _copy(
                partial_ref if step == 0 else landing_ref.at[step - 1],
                landing_ref.at[step],
                send_sem,
                recv_sems.at[step],
                right,
            )
            copy.start()
            copy.wait()

        def add(strip, carry):  # type: ignore[no-untyped-def]
            place = pl.ds(pl.multiple_of(strip * rows, rows), rows)
            pltpu.sync_copy(partial_ref.at[place], sum_ref)
            pltpu.sync_copy(landing_ref.at[:, place], others_ref)
            sum_ref[...] += others_ref[...].sum(axis=0)
            pltpu.sync_copy(sum_ref, out_ref.at[place])
            return carry

        lax.fori_loop(0, devices, add, 0)

    return pl.pallas_call(
        kernel,
        out_shape=[
            jax.ShapeDtypeStruct(partial.shape, partial.dtype),
            jax.ShapeDtypeStruct((devices - 1, *partial.shape), partial.dtype),
        ],
        in_specs=[_ANY],
        out_specs=[_ANY, _ANY],
        scratch_shapes=[
            pltpu.VMEM((rows, columns), partial.dtype),
            pltpu.VMEM((devices - 1, rows, columns), partial.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((devices - 1,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(partial)[0]


def all_reduce_scatters_only(partial: jax.Array) -> jax.Array:
    """Ends after the first half: each device has one chunk of the sum."""
    return _two_phases(partial, gather=False)


def all_reduce_in_bf16(partial: jax.Array) -> jax.Array:
    """Adds and sends in bfloat16."""
    return _two_phases(partial, wire=jnp.bfloat16)


def all_reduce_outside(partial: jax.Array) -> jax.Array:
    """XLA adds, the kernel copies."""

    def kernel(sum_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = sum_ref[...]

    total = lax.psum(partial, "ring")
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(total.shape, total.dtype))(total)


def _two_phases(partial: jax.Array, *, gather: bool = True, wire: Any = None) -> jax.Array:
    """Reduce-scatter to the right, then all-gather; what differs from that is what is wrong."""
    devices = lax.axis_size("ring")
    rows = partial.shape[0] // devices
    wire = partial.dtype if wire is None else wire

    def kernel(partial_ref, out_ref, landing_ref, send_sem, recv_sems):  # type: ignore[no-untyped-def]
        device, _, right = _place()

        def chunk(index):  # type: ignore[no-untyped-def]
            return pl.ds(pl.multiple_of(index % devices * rows, rows), rows)

        _meet()
        # slot s of the landing holds what came in step s: no slot is used twice
        landing_ref[0] = partial_ref[chunk(device - 1)].astype(wire)
        for step in range(devices - 1):
            copy = _copy(
                landing_ref.at[step], landing_ref.at[step + 1], send_sem, recv_sems.at[step], right
            )
            copy.start()
            copy.wait()
            own = partial_ref[chunk(device - 2 - step)].astype(wire)
            landing_ref[step + 1] = landing_ref[step + 1] + own
        if not gather:
            out_ref[...] = partial_ref[...]
        out_ref[chunk(device)] = landing_ref[devices - 1].astype(out_ref.dtype)
        for step in range(devices - 1 if gather else 0):
            place = out_ref.at[chunk(device - step)]
            copy = _copy(place, place, send_sem, recv_sems.at[devices - 1 + step], right)
            copy.start()
            copy.wait()

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(partial.shape, partial.dtype),
        scratch_shapes=[
            pltpu.VMEM((devices, rows, partial.shape[1]), wire),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2 * devices - 2,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(partial)
