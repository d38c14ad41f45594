# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 31 · Ring collectives
#
# Weights that are cut over chips must be brought together before a layer can use them; gradients must be
# added up and cut again. Both are a ring of chips that pass something on, step by step.
#
# **The question.** Eight TPU v5e hold 2 MiB each, and every one needs all 16 MiB: an *all-gather*. The obvious
# ring takes **333 µs**. The same links can do it in **170 µs**. An *all-reduce* of 8 MiB takes **1.31 ms** when
# whole arrays go round, and can take **177 µs**. Get there, without a race.
#
# | | |
# |---|---|
# | You need | lab 30: remote copies, semaphores, barriers |
# | You learn | all-gather, reduce-scatter, all-reduce; both directions of a link; back-pressure |
# | Time | 90 minutes, alone or in a pair |
# | Target chips | slices of eight TPU v5e and v6e, on this machine |
#
# **Who judges.** As in lab 30: *correct* and *safe* come from an interpreter that simulates 2, 4 and 8 devices;
# *compiles* from the real compiler, for a slice of eight; *fast* from a **model of the links** (in each round the
# busiest link's bytes at 45 or 90 GB/s, one way, and 1 µs a hop: [*How to Scale Your Model*,
# TPUs](https://jax-ml.github.io/scaling-book/tpus/)). It counts neither memory nor additions; it is the judge
# until many chips are simulated, and the verdict says so.

# %% tags=["parameters"]
chip = "v5e"  # your kernels are compiled and predicted for slices of this one
device = "cpu"  # the chips of this lab are simulated
effort = "full"  # "quick" asks no second chip

# %% tags=["imports"]
import dataclasses
import functools
import math

import tpulab

tpulab.start_host_devices(8)  # before anything else of JAX: eight devices instead of one CPU

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.all_gather import all_gather as jax_all_gather

from tpulab import grading, visual
from tpulab.classroom import Predictions, when_written
from tpulab.roofline import Links, render_collectives
from tpulab.roofline import all_gather as all_gather_cost
from tpulab.roofline.links import collective_cost, link_time

jax.config.update("jax_platforms", device)
chips = [chip] if effort == "quick" else list(dict.fromkeys([chip, "v6e"]))
grading.warm()

# %% [markdown]
# ## Predict
#
# Eight v5e, 2 MiB each, all-gather. In every step each device passes to the right what came last from the
# left. Then the same with halves of the shards going both ways round. Then an all-reduce of 8 MiB. Commit to
# five numbers; they count within 3 %.

# %% nbgrader={"grade": false, "grade_id": "ring_collectives-predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
steps = None  # TODO(learner): of an all-gather one way round, on 8 devices
link_megabytes = (
    None  # TODO(learner): 10^6 bytes over one link in one direction, all steps together
)
one_way_microseconds = None  # TODO(learner): v5e: those bytes at 45 GB/s, and 1 µs a step
both_ways_microseconds = None  # TODO(learner): v5e, half of every shard in each direction
all_reduce_microseconds = None  # TODO(learner): v5e: 8 MiB, cut into chunks, both ways, two phases
### BEGIN SOLUTION
steps = 7
link_megabytes = 7 * 2 * 2**20 / 1e6
one_way_microseconds = link_megabytes / 45e9 * 1e12 + 7
both_ways_microseconds = link_megabytes / 2 / 45e9 * 1e12 + 7
half_chunk_megabytes = 8 * 2**20 / 8 / 2 / 1e6
all_reduce_microseconds = 2 * 7 * (half_chunk_megabytes / 45e9 * 1e12 + 1)
### END SOLUTION

predictions = Predictions(
    {
        "steps": steps,
        "over one link, one way (MB)": link_megabytes,
        "all-gather, one way (µs)": one_way_microseconds,
        "all-gather, both ways (µs)": both_ways_microseconds,
        "all-reduce, both ways (µs)": all_reduce_microseconds,
    },
    tolerance=0.03,
)
predictions

# %% [markdown]
# ## See
#
# JAX ships an all-gather for TPUs, written to teach (`jax.experimental.pallas.ops.tpu.all_gather`). Here it runs on
# four simulated devices. Every device starts with a shard of its own; halves of it travel in both directions.
# Follow one colour from row to row: how often is it passed on, and why does nobody ever need to ask for it?


# %% tags=["nbval-ignore-output"]
def run_shipped(devices):
    """What the interpreter sees of JAX's own all-gather, with shards float32[16, 128]."""
    mesh = jax.sharding.Mesh(jax.devices()[:devices], ("ring",))
    gather = functools.partial(jax_all_gather, mesh=mesh, axis_name="ring")
    return tpulab.run(gather, jnp.ones((devices * 16, 128)), mode="faithful")[1]


shipped = run_shipped(4)
visual.ring_in_motion(shipped)

# %% [markdown]
# A link is two one-way streets. What one way round leaves empty, the link model shows: bytes on every link of
# this run, in each direction. (The numbers of the devices are their places on the ring.)

# %%
for (source, target), size in link_time(shipped.transfers, chip, devices=4).bytes_per_link.items():
    print(f"{source} -> {target}   {size:8,.0f} bytes")

# %% [markdown]
# ## Write
#
# You write what one device does. Two helpers are there; both are about neighbours, as in lab 30.


# %%
def neighbours():
    """Left and right neighbour of this device on the ring."""
    device, devices = lax.axis_index("ring"), lax.axis_size("ring")
    return (device - 1) % devices, (device + 1) % devices


def meet_neighbours():
    """Wait until both neighbours have entered the kernel."""
    barrier = pltpu.get_barrier_semaphore()
    for neighbour in neighbours():
        pl.semaphore_signal(barrier, device_id={"ring": neighbour})
    pl.semaphore_wait(barrier, 2)


def run_on(devices, function, shape):
    """Every device's result, and what the interpreter saw; device i holds an array full of i + 1."""
    filled = jnp.arange(1.0, devices + 1).reshape(devices, *(1 for _ in shape))
    arrays = jnp.broadcast_to(filled, (devices, *shape))
    return tpulab.run(tpulab.on_devices(function, devices), arrays, mode="faithful")


# %% [markdown]
# ### 1 · All-gather, one way round
#
# Device i's shard belongs into slot i of everybody's result. In step 0 each device sends its own shard to the
# right; in step s, what it received in step s - 1. The slot is the same on both sides, so no slot is ever
# written twice, and nothing can be overwritten.
#
# One thing can still go wrong. Your neighbour may be a step ahead: then two copies are on their way to you at
# once, and which of them has come? Give every step a receive semaphore of its own:
# `pltpu.SemaphoreType.DMA((devices - 1,))`, `recv_sems.at[step]`. `lax.axis_size("ring")` is a number for Python,
# so `for step in range(devices - 1)` works inside the kernel.


# %% nbgrader={"grade": false, "grade_id": "ring_collectives-all_gather", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def all_gather(shard: jax.Array) -> jax.Array:
    """All shards, by device: float32[rows, 128] -> float32[devices, rows, 128]."""
    # TODO(learner): write the kernel and the call: meet, copy your own shard, devices - 1 steps
    ### BEGIN SOLUTION
    devices = lax.axis_size("ring")

    def kernel(shard_ref, out_ref, local_sem, send_sem, recv_sems):
        device = lax.axis_index("ring")
        _, right = neighbours()
        meet_neighbours()
        own = pltpu.make_async_copy(shard_ref, out_ref.at[device], local_sem)
        own.start()
        for step in range(devices - 1):
            slot = (device - step) % devices
            copy = pltpu.make_async_remote_copy(
                shard_ref if step == 0 else out_ref.at[slot],
                out_ref.at[slot],
                send_sem,
                recv_sems.at[step],
                device_id={"ring": right},
            )
            copy.start()
            copy.wait()
        own.wait()

    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        kernel,
        out_shape=pltpu.HBM((devices, *shard.shape), shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((devices - 1,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ring_collectives-all_gather-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("ring_collectives.all_gather", all_gather, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Your ring, on four devices. Which direction of the links carries nothing?

# %%
when_written(lambda: visual.ring_in_motion(run_on(4, all_gather, (16, 128))[1]))

# %% [markdown]
# ### 2 · All-gather, both ways round
#
# One way round is half of the bound, whatever you do: every link is busy, but in one direction only. So cut every
# shard in two: upper half to the right, lower half to the left, in the same step. Half of the bytes in each
# step, as many steps. rows is a multiple of 16.
#
# Each direction has a send semaphore and receive semaphores of its own. Which slot do you pass on to the left
# in step s?


# %% nbgrader={"grade": false, "grade_id": "ring_collectives-all_gather_both_ways", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def all_gather_both_ways(shard: jax.Array) -> jax.Array:
    """All shards, by device: float32[rows, 128] -> float32[devices, rows, 128]."""
    # TODO(learner): write the kernel and the call: two copies in each step, then wait for both
    ### BEGIN SOLUTION
    devices = lax.axis_size("ring")
    half_rows = shard.shape[0] // 2

    def kernel(shard_ref, out_ref, local_sem, send_sems, recv_sems):
        device = lax.axis_index("ring")
        left, right = neighbours()
        meet_neighbours()
        own = pltpu.make_async_copy(shard_ref, out_ref.at[device], local_sem)
        own.start()
        for step in range(devices - 1):
            copies = []
            for way, (sign, neighbour) in enumerate([(1, right), (-1, left)]):
                slot = (device - sign * step) % devices
                half = pl.ds(way * half_rows, half_rows)
                copies.append(
                    pltpu.make_async_remote_copy(
                        shard_ref.at[half] if step == 0 else out_ref.at[slot, half],
                        out_ref.at[slot, half],
                        send_sems.at[way],
                        recv_sems.at[way, step],
                        device_id={"ring": neighbour},
                    )
                )
            for copy in copies:
                copy.start()
            for copy in copies:
                copy.wait()
        own.wait()

    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        kernel,
        out_shape=pltpu.HBM((devices, *shard.shape), shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, devices - 1)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ring_collectives-all_gather_both_ways-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("ring_collectives.all_gather_both_ways", all_gather_both_ways, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 3 · Reduce-scatter, adding on the way
#
# Each device holds `devices` chunks, and device i must end with the sum of everybody's chunk i. A running sum
# travels round the ring, and each device adds its own part as it passes: the sum of chunk i starts at device
# i + 1 and comes home to device i.
#
# Only VMEM can be added in, and VMEM is small: **two slots**, send from one, receive into the other, then swap.
# Now slots are used again, and a fast left neighbour could write into the slot that you still send from. It has
# to ask. `free_sem` is a semaphore of the `REGULAR` kind: when your slot has been sent, *signal your left
# neighbour*; before you send, *wait for the signal of your right one*. The first step needs none (both have met),
# and after the last nobody sends: as many signals as waits, or it does not end at zero.
#
# While a copy is under way, fetch your own chunk from HBM. Everything is `float32`, on the links as well.


# %% nbgrader={"grade": false, "grade_id": "ring_collectives-reduce_scatter", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def reduce_scatter(partials: jax.Array) -> jax.Array:
    """Own chunk of the sum: float32[devices, rows, cols] -> float32[rows, cols]."""
    # TODO(learner): write the kernel and the call: two slots, a receive semaphore each, back-pressure
    ### BEGIN SOLUTION
    devices = lax.axis_size("ring")
    chunk = partials.shape[1:]

    def kernel(partials_ref, out_ref, sum_ref, own_ref, local_sem, send_sem, recv_sems, free_sem):
        device = lax.axis_index("ring")
        left, right = neighbours()

        def fetch(index, target):
            copy = pltpu.make_async_copy(partials_ref.at[index % devices], target, local_sem)
            copy.start()
            return copy

        first = fetch(device - 1, sum_ref.at[0])
        meet_neighbours()
        first.wait()
        for step in range(devices - 1):
            source, target = step % 2, (step + 1) % 2
            if step > 0:
                pl.semaphore_wait(free_sem, 1)  # the right neighbour has emptied its slot
            copy = pltpu.make_async_remote_copy(
                sum_ref.at[source],
                sum_ref.at[target],
                send_sem,
                recv_sems.at[target],
                device_id={"ring": right},
            )
            copy.start()
            own = fetch(device - 2 - step, own_ref)
            copy.wait()
            if step < devices - 2:
                pl.semaphore_signal(free_sem, device_id={"ring": left})
            own.wait()
            sum_ref[target] += own_ref[...]
        out_ref[...] = sum_ref[(devices - 1) % 2]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(chunk, partials.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        scratch_shapes=[
            pltpu.VMEM((2, *chunk), partials.dtype),
            pltpu.VMEM(chunk, partials.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.REGULAR,
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(partials)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ring_collectives-reduce_scatter-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("ring_collectives.reduce_scatter", reduce_scatter, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# The letters are now the two slots, and what was written last. Between two writes of a slot there must be a
# signal; the picture does not show it, the interpreter looks for it.

# %%
when_written(lambda: visual.ring_in_motion(run_on(4, reduce_scatter, (4, 8, 128))[1]))

# %% [markdown]
# ### 4 · All-reduce
#
# Everybody needs the whole sum. Passing whole arrays round and adding them up is right, and needs eight times as
# long as it must. Reduce-scatter, then all-gather the chunks, in one kernel: that is the first rung. Both ways
# round is the second: half of each chunk to the right, half to the left, in both phases. rows is a multiple of
# 16 × devices.
#
# `pl.ds(pl.multiple_of(start, size), size)` tells the compiler that a computed start lies on a tile. Write one
# direction as a function of its sign and its two neighbours, and you have both.


# %% nbgrader={"grade": false, "grade_id": "ring_collectives-all_reduce", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def all_reduce(partial: jax.Array) -> jax.Array:
    """The sum over all devices: float32[rows, columns] -> float32[rows, columns]."""
    # TODO(learner): write the kernel and the call: reduce-scatter, then all-gather, both ways
    ### BEGIN SOLUTION
    devices = lax.axis_size("ring")
    rows, columns = partial.shape
    piece = rows // (2 * devices)  # half of a chunk: one for each way round

    def kernel(partial_ref, out_ref, sum_ref, own_ref, local_sems, send_sems, recv_sems, free_sems):
        device = lax.axis_index("ring")
        left, right = neighbours()
        ways = [(0, 1, left, right), (1, -1, right, left)]  # number, sign, behind, ahead

        def half(way, chunk):
            return pl.ds(pl.multiple_of((chunk % devices * 2 + way) * piece, piece), piece)

        def fetch(way, chunk, target):
            source = partial_ref.at[half(way, chunk)]
            copy = pltpu.make_async_copy(source, target, local_sems.at[way])
            copy.start()
            return copy

        def send(way, source, target, arrived, ahead):
            copy = pltpu.make_async_remote_copy(
                source, target, send_sems.at[way], arrived, device_id={"ring": ahead}
            )
            copy.start()
            return copy

        firsts = [fetch(way, device - sign, sum_ref.at[way, 0]) for way, sign, _, _ in ways]
        meet_neighbours()
        for first in firsts:
            first.wait()

        # reduce-scatter: this device ends with its own chunk of the sum
        for step in range(devices - 1):
            source, target = step % 2, (step + 1) % 2
            copies, owns = [], []
            for way, sign, _, ahead in ways:
                if step > 0:
                    pl.semaphore_wait(free_sems.at[way], 1)
                arrived = recv_sems.at[way, step]
                copies.append(
                    send(way, sum_ref.at[way, source], sum_ref.at[way, target], arrived, ahead)
                )
                owns.append(fetch(way, device - sign * (2 + step), own_ref.at[way]))
            for way, _, behind, _ in ways:
                copies[way].wait()
                if step < devices - 2:
                    pl.semaphore_signal(free_sems.at[way], device_id={"ring": behind})
                owns[way].wait()
                sum_ref[way, target] += own_ref[way]

        # all-gather: no part of the output is written twice, so nobody has to ask
        done = (devices - 1) % 2
        stores = [
            pltpu.make_async_copy(
                sum_ref.at[way, done], out_ref.at[half(way, device)], local_sems.at[way]
            )
            for way, _, _, _ in ways
        ]
        for store in stores:
            store.start()
        for step in range(devices - 1):
            copies = []
            for way, sign, _, ahead in ways:
                place = out_ref.at[half(way, device - sign * step)]
                source = sum_ref.at[way, done] if step == 0 else place
                arrived = recv_sems.at[way, devices - 1 + step]
                copies.append(send(way, source, place, arrived, ahead))
            for copy in copies:
                copy.wait()
        for store in stores:
            store.wait()

    in_hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        kernel,
        out_shape=pltpu.HBM(partial.shape, partial.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[
            pltpu.VMEM((2, 2, piece, columns), partial.dtype),
            pltpu.VMEM((2, piece, columns), partial.dtype),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2,)),
            pltpu.SemaphoreType.DMA((2, 2 * devices - 2)),
            pltpu.SemaphoreType.REGULAR((2,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(partial)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ring_collectives-all_reduce-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("ring_collectives.all_reduce", all_reduce, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ## Climb
#
# Every version you checked, how far it came, and what the links take on each chip. Check a changed version and
# run this cell again.

# %%
grading.climb("ring_collectives")

# %% [markdown]
# ## Break
#
# **Patient A** is a reduce-scatter whose author found the signals between neighbours a waste of time. On two
# devices it is always right, and on four it was, whenever its author looked. Its source is folded away, and
# `diagnose=False` makes the check tell the symptoms only. Diagnose, write down what you think, then unfold the
# cell (the **…** in it) and take `diagnose=False` out.


# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
def patient_a(partials):
    devices = lax.axis_size("ring")
    chunk = partials.shape[1:]

    def kernel(partials_ref, out_ref, sum_ref, own_ref, local_sem, send_sem, recv_sems):
        device = lax.axis_index("ring")
        _, right = neighbours()

        def fetch(index, target):
            copy = pltpu.make_async_copy(partials_ref.at[index % devices], target, local_sem)
            copy.start()
            return copy

        first = fetch(device - 1, sum_ref.at[0])
        meet_neighbours()
        first.wait()
        for step in range(devices - 1):
            source, target = step % 2, (step + 1) % 2
            copy = pltpu.make_async_remote_copy(
                sum_ref.at[source],
                sum_ref.at[target],
                send_sem,
                recv_sems.at[target],
                device_id={"ring": right},
            )
            copy.start()
            own = fetch(device - 2 - step, own_ref)
            copy.wait()
            own.wait()
            sum_ref[target] += own_ref[...]
        out_ref[...] = sum_ref[(devices - 1) % 2]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(chunk, partials.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
        scratch_shapes=[
            pltpu.VMEM((2, *chunk), partials.dtype),
            pltpu.VMEM(chunk, partials.dtype),
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA,
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(partials)


tpulab.check(
    "ring_collectives.reduce_scatter", patient_a, chips=[chip], seed=0, record=False, diagnose=False
)

# %% [markdown]
# **Patient B** you know already: it is the kernel that ships inside JAX, from the beginning of this lab. On two
# devices the interpreter has nothing to say about it. Ask again on four. It is a kernel to learn from, and a real
# chip may never show what is found here, but it does not *guarantee* what it needs. Read its 60 lines
# (`jax.experimental.pallas.ops.tpu.all_gather`) and compare them with yours: what is shared that you keep apart?

# %%
for devices in (2, 4):
    seen = run_shipped(devices)
    print(devices, "devices:", "clean" if seen.ok else "a copy and a wait do not belong together")

# %% [markdown] nbgrader={"grade": true, "grade_id": "ring_collectives-diagnosis", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# **A** never asks whether a slot is free. A device waits for its own copies only, and these say nothing about how
# far its *right* neighbour is. One that is a step ahead writes into the slot that its neighbour still sends from or
# adds to. Devices that keep in step, as they do in a quiet test, hide it.
#
# **B** has one receive semaphore for all steps of a direction. A neighbour that is a step ahead has two copies under
# way, and a semaphore only counts bytes: the second copy can end the wait for the first, and the slot is passed on
# before what belongs there has come. JAX's own tutorial gives every step a semaphore for this reason
# ([*Distributed Computing in Pallas*](https://docs.jax.dev/en/latest/pallas/tpu/distributed.html), all-gather).
# With two devices there is one step only.

# %% [markdown]
# ## What you said, and what it is
#
# Steps and bytes are those of your kernels: their transfers on eight devices, with the bytes of the question. A
# line says *not yet* while the kernel it needs does not run.


# %%
@functools.cache
def on_links(function, shape, bytes_of_one_device):
    """What the links between eight v5e take for this function, with arrays of so many bytes."""
    _, report = run_on(8, function, shape)
    if report.deadlock:
        raise RuntimeError("it hangs, and has no time")
    scale = bytes_of_one_device / (4 * math.prod(shape))
    sent = [dataclasses.replace(t, size_bytes=int(t.size_bytes * scale)) for t in report.transfers]
    return link_time(sent, "v5e", devices=8)


def gathered(function):
    return on_links(function, (16, 128), 2 * 2**20)


def one_link_megabytes():
    one_way = gathered(all_gather)
    return one_way.bytes_per_link[one_way.busiest] / 1e6


predictions.compare(
    {
        "steps": lambda: len(gathered(all_gather).rounds),
        "over one link, one way (MB)": one_link_megabytes,
        "all-gather, one way (µs)": lambda: gathered(all_gather).seconds * 1e6,
        "all-gather, both ways (µs)": lambda: gathered(all_gather_both_ways).seconds * 1e6,
        "all-reduce, both ways (µs)": lambda: (
            on_links(all_reduce, (128, 128), 8 * 2**20).seconds * 1e6
        ),
    }
)

# %% [markdown]
# ## Talk
#
# In a pair, hand the keyboard over after exercises 1 and 3. The navigator asks; alone, answer in writing below.
#
# 1. The all-gather needs no back-pressure and the reduce-scatter does. What is the difference?
# 2. Could the reduce-scatter do without, with more slots? How many, and what do they cost at 2 MiB a chunk?
# 3. Seven steps of 1 µs: below which size of a shard is your all-gather limited by latency on a v5e? What would you
#    do for an array of 8 KiB?
# 4. A reviewer wants `bfloat16` on the links, "half of the bytes". For which of the four kernels is that harmless?

# %% [markdown] nbgrader={"grade": true, "grade_id": "ring_collectives-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# 1. In the all-gather every slot is written once. In the reduce-scatter two slots are written again and again, so
#    somebody must say when one is free.
# 2. With one slot for each step, `devices` of them, nothing is written twice: 16 MiB of VMEM on eight devices, all
#    that a v5e kernel gets unless it asks for more. Two slots and a signal cost 4 MiB.
# 3. 45 GB/s × 1 µs = 45 kB a step: below shards of 45 kB (90 kB both ways) the hops take longer than the bytes. For
#    8 KiB send to everybody directly, in one round: the longest way is 4 hops, not 7.
# 4. For the two all-gathers, which only hand on what they got (if `bfloat16` is good enough for the array itself).
#    In the other two the running sum is rounded at every device.

# %% [markdown]
# ## Go on
#
# - Ship `lax.all_gather`, `lax.psum_scatter` and `lax.psum` for a plain collective: XLA does all of this, on every axis
#   of a slice at once. A ring of yours uses two links of a chip; a v5e has four, and on 16 × 16 chips XLA can use
#   them all. The calculator says what that is worth for 16 MiB:

# %%
print(
    render_collectives(
        [
            collective_cost("all-gather", 16 * 2**20, chip, 256),
            all_gather_cost(16 * 2**20, Links.of(chip, (16, 16))),
        ]
    )
)

# %% [markdown]
# - Write a ring when something happens to the chunks on their way: a product that overlaps with the communication
#   (a *collective matmul*), a sum in another precision, quantised gradients.
# - There is another way to use both directions: whole shards, each half way round. Four rounds instead of seven;
#   the shard from the far side comes in two halves, one from each side. Try it, and look at its picture.
# - Look up: `lax.all_gather(..., tiled=True)`, *async collectives* and the latency-hiding scheduler of XLA,
#   *windowed einsum*, `pltpu.emit_pipeline` inside a ring (the last part of JAX's tutorial cuts a chunk that is too
#   large for VMEM into blocks).
