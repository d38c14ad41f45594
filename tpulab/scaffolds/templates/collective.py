"""scaffold: all-gather around a ring of devices, by copies from chip to chip.

Written by `tpulab new`; from here on it is yours. It is right and decent, not the best.

    python scaffold.py
        checks it, then says how long a TPU v5e's links take; --chip v6e asks another chip
    python -m tpulab ladder scaffold.py:scaffold
        its ladder alone

`python` is the one that has JAX and tpulab: `.venv/bin/python` where tpulab was cloned.
"""

import jax
import jax.numpy as jnp
import numpy as np
import tpulab
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from tpulab.scaffolds import workbench

AXIS = "ring"
DEVICES = 8


def scaffold_kernel(shard_ref, out_ref, own_copy, sent, received):
    """One device: keep the own shard, then pass on to the right what came from the left."""
    count = jax.lax.axis_size(AXIS)
    me = jax.lax.axis_index(AXIS)
    left, right = jax.lax.rem(me + count - 1, count), jax.lax.rem(me + 1, count)

    # nobody may write into a neighbour that has not entered the kernel yet
    barrier = pltpu.get_barrier_semaphore()
    for neighbour in (left, right):
        pl.semaphore_signal(barrier, 1, device_id={AXIS: neighbour})
    pl.semaphore_wait(barrier, 2)

    own = pltpu.make_async_copy(shard_ref, out_ref.at[me], own_copy)
    own.start()
    own.wait()
    for step in range(count - 1):
        slot = jax.lax.rem(me - step + count, count)
        shard = out_ref.at[slot]
        copy = pltpu.make_async_remote_copy(
            shard, shard, sent.at[step], received.at[step], device_id={AXIS: right}
        )
        copy.start()
        copy.wait()


def gather(shard):
    """What one device does: float32[rows, columns] -> float32[devices, rows, columns]."""
    count = jax.lax.axis_size(AXIS)
    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    copies = pltpu.SemaphoreType.DMA((count,))
    return pl.pallas_call(
        scaffold_kernel,
        out_shape=jax.ShapeDtypeStruct((count, *shard.shape), shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA, copies, copies],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


def scaffold(shards):
    """All devices: float32[devices, rows, columns] -> float32[devices, devices, rows, columns]."""
    return tpulab.on_devices(gather, shards.shape[0], AXIS)(shards)


def oracle(shards):
    """The same in NumPy: afterwards every device holds every shard."""
    return np.broadcast_to(shards, (shards.shape[0], *shards.shape)).astype(np.float64)


def make_args():
    """Shapes that the time is for; `tpulab ladder` asks here too."""
    return (jax.ShapeDtypeStruct((DEVICES, 512, 1024), jnp.float32),)


def small_inputs(devices):
    """Arrays to check with, the same at each call."""
    rng = np.random.default_rng(0)
    return (rng.standard_normal((devices, 16, 128)).astype(np.float32),)


def check(chip):
    """Right where copies, barriers and semaphores are simulated; accepted by the compiler."""
    for devices in (2, 4, DEVICES):
        inputs = small_inputs(devices)
        want = oracle(*inputs)
        # the plain interpreter has no copies between devices; nothing is added, so all is exact
        workbench.agree(scaffold, inputs, want, modes=("faithful",))
    workbench.accepted(scaffold, make_args(), chip)


def benchmark(chip):
    """Bounds, and the time on the links: several chips are not simulated yet."""
    print(tpulab.ladder(scaffold, *make_args(), chip=chip))
    small = small_inputs(DEVICES)
    print(workbench.time_on_links(scaffold, small, make_args(), chip))


def main(chip):
    """What `python scaffold.py` does."""
    tpulab.start_host_devices(DEVICES)
    check(chip)
    benchmark(chip)


if __name__ == "__main__":
    workbench.run(main)
