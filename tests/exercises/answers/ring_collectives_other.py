"""Right answers to lab 31 written another way: loops, half a ring, a landing slot for each step."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

RING = "ring"
_HBM = pl.BlockSpec(memory_space=pltpu.HBM)


def _neighbours():
    device, devices = lax.axis_index(RING), lax.axis_size(RING)
    left = jnp.where(device == 0, devices - 1, device - 1)
    right = jnp.where(device == devices - 1, 0, device + 1)
    return device, left, right


def _enter(left, right):
    barrier = pltpu.get_barrier_semaphore()
    for neighbour in (left, right):
        pl.semaphore_signal(barrier, inc=1, device_id=(neighbour,))
    pl.semaphore_wait(barrier, 2)


@jax.jit
def all_gather(shard):
    """A rolled loop to the left; one receive semaphore for each slot."""
    devices = lax.axis_size(RING)

    def kernel(shard_ref, out_ref, own_sem, send_sem, recv_sems):
        device, left, right = _neighbours()
        _enter(left, right)
        pltpu.async_copy(shard_ref, out_ref.at[device], own_sem).wait()

        def pass_on(step, slot):
            copy = pltpu.make_async_remote_copy(
                out_ref.at[slot],
                out_ref.at[slot],
                send_sem,
                recv_sems.at[step],
                device_id={RING: left},
            )
            copy.start()
            copy.wait()
            return jnp.where(slot == devices - 1, 0, slot + 1)

        lax.fori_loop(0, devices - 1, pass_on, device)

    return pl.pallas_call(
        kernel,
        out_shape=pltpu.HBM((devices, *shard.shape), shard.dtype),
        in_specs=[_HBM],
        out_specs=_HBM,
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((devices - 1,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=1),
    )(shard)


def all_gather_both_ways(shard):
    """Whole shards half way round in each direction; the one opposite comes in two halves."""
    devices = lax.axis_size(RING)
    steps, rows = devices // 2, shard.shape[0]

    def kernel(shard_ref, out_ref, own_sem, send_sems, recv_sems):
        device, left, right = _neighbours()
        _enter(left, right)
        own = pltpu.async_copy(shard_ref, out_ref.at[device], own_sem)
        for step in range(steps):
            copies = []
            for way, sign in enumerate((1, -1)):
                slot = lax.rem(device - sign * step + devices, devices)
                part = pl.ds(way * rows // 2, rows // 2) if step == steps - 1 else pl.ds(0, rows)
                copies.append(
                    pltpu.async_remote_copy(
                        shard_ref.at[part] if step == 0 else out_ref.at[slot, part],
                        out_ref.at[slot, part],
                        send_sems.at[way],
                        recv_sems.at[way, step],
                        device_id={RING: right if sign > 0 else left},
                    )
                )
            for copy in copies:
                copy.wait()
        own.wait()

    return pl.pallas_call(
        kernel,
        out_shape=pltpu.HBM((devices, *shard.shape), shard.dtype),
        in_specs=[_HBM],
        out_specs=_HBM,
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, steps)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


def _scatter_kernel(partials_ref, out_ref, landing_ref, own_ref, own_sem, send_sem, recv_sems):
    """Slot s holds what came in step s, and none is used twice: no back-pressure is needed."""
    device, left, right = _neighbours()
    devices = lax.axis_size(RING)
    _enter(left, right)
    pltpu.sync_copy(partials_ref.at[lax.rem(device + devices - 1, devices)], landing_ref.at[0])
    for step in range(devices - 1):
        copy = pltpu.async_remote_copy(
            landing_ref.at[step],
            landing_ref.at[step + 1],
            send_sem,
            recv_sems.at[step],
            device_id={RING: right},
        )
        own = lax.rem(device + 2 * devices - 2 - step, devices)
        pltpu.async_copy(partials_ref.at[own], own_ref, own_sem).wait()
        copy.wait_recv()
        landing_ref[step + 1] = landing_ref[step + 1] + own_ref[...]
        copy.wait_send()
    pltpu.sync_copy(landing_ref.at[devices - 1], out_ref)


def reduce_scatter(partials):
    devices, chunk = lax.axis_size(RING), partials.shape[1:]
    return pl.pallas_call(
        _scatter_kernel,
        out_shape=pltpu.HBM(chunk, partials.dtype),
        in_specs=[_HBM],
        out_specs=_HBM,
        scratch_shapes=[
            pltpu.VMEM((devices, *chunk), jnp.float32),
            pltpu.VMEM(chunk, jnp.float32),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((devices - 1,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0, vmem_limit_bytes=64 * 2**20),
    )(partials)


def _all_reduce_kernel(
    partial_ref, out_ref, landing_ref, own_ref, own_sems, send_sems, recv_sems, *, rows
):
    """Both ways, with a landing slot for each step; the sums are gathered in the output."""
    device, left, right = _neighbours()
    devices = lax.axis_size(RING)
    ways = [(0, 1, right), (1, -1, left)]
    _enter(left, right)

    def place(way, chunk):
        chunk = lax.rem(chunk + 2 * devices, devices)
        return pl.ds(pl.multiple_of((2 * chunk + way) * rows, rows), rows)

    for way, sign, _ in ways:
        pltpu.sync_copy(partial_ref.at[place(way, device - sign)], landing_ref.at[way, 0])
    for step in range(devices - 1):
        copies = [
            pltpu.async_remote_copy(
                landing_ref.at[way, step],
                landing_ref.at[way, step + 1],
                send_sems.at[way],
                recv_sems.at[way, 0, step],
                device_id={RING: neighbour},
            )
            for way, _, neighbour in ways
        ]
        for way, sign, _ in ways:
            own = partial_ref.at[place(way, device - sign * (step + 2))]
            pltpu.async_copy(own, own_ref, own_sems.at[way]).wait()
            copies[way].wait()
            landing_ref[way, step + 1] = landing_ref[way, step + 1] + own_ref[...]
    for way, _, _ in ways:
        pltpu.sync_copy(landing_ref.at[way, devices - 1], out_ref.at[place(way, device)])
    for step in range(devices - 1):
        copies = []
        for way, sign, neighbour in ways:
            part = out_ref.at[place(way, device - sign * step)]
            copies.append(
                pltpu.async_remote_copy(
                    part,
                    part,
                    send_sems.at[way],
                    recv_sems.at[way, 1, step],
                    device_id={RING: neighbour},
                )
            )
        for copy in copies:
            copy.wait()


def all_reduce(partial):
    devices, (rows, columns) = lax.axis_size(RING), partial.shape
    half = rows // (2 * devices)
    return pl.pallas_call(
        functools.partial(_all_reduce_kernel, rows=half),
        out_shape=pltpu.HBM(partial.shape, partial.dtype),
        in_specs=[_HBM],
        out_specs=_HBM,
        scratch_shapes=[
            pltpu.VMEM((2, devices, half, columns), jnp.float32),
            pltpu.VMEM((half, columns), jnp.float32),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, 2, devices - 1)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=5, vmem_limit_bytes=64 * 2**20),
    )(partial)
