# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 30 · Remote DMA
#
# Whatever chips do together (gather weights, add gradients, hand tokens to experts) is made of one
# instruction: *copy a piece of my memory into another chip's memory*. Nothing on the other side asks for
# it, and nothing there says no.
#
# **The question.** Eight TPU v5e hand 4 MiB to a neighbour. A link carries 45 GB/s each way
# ([*How to Scale Your Model*, TPUs](https://jax-ml.github.io/scaling-book/tpus/)), so that takes **94 µs**.
# Then every chip must give its 4 MiB to *both* neighbours. Your first idea takes 188 µs; it can be done in
# **94 µs**. And how do you know that a neighbour is ready when your bytes arrive?
#
# | | |
# |---|---|
# | You need | lab 00: Refs, `pallas_call`, how a check works |
# | You learn | remote copies, send and receive semaphores, device ids, barriers |
# | Time | 60 minutes, alone or in a pair |
# | Target chips | slices of eight TPU v5e and v6e, on this machine |
#
# **Who judges.** Your machine pretends to be eight chips. *correct* and *safe* come from an interpreter
# that simulates every chip's memories, copies and semaphores, and lets each copy arrive as late as it
# may. *compiles* comes from the real TPU compiler, for a slice of eight chips. *fast* comes from a **model of
# the links**: in each round the busiest link's bytes at its bandwidth, and 1 µs a hop. That model knows
# nothing of memories and arithmetic; it is the judge until many chips are simulated, and the verdict says so.

# %% tags=["parameters"]
chip = "v5e"  # your kernels are compiled and predicted for slices of this one
device = "cpu"  # the chips of this lab are simulated
effort = "full"  # "quick" asks no second chip

# %% tags=["imports"]
import dataclasses
import functools
import re

import tpulab

tpulab.start_host_devices(8)  # before anything else of JAX: eight devices instead of one CPU

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpulab import grading, visual
from tpulab.classroom import Predictions, when_written
from tpulab.roofline.links import link_time

jax.config.update("jax_platforms", device)
chips = [chip] if effort == "quick" else list(dict.fromkeys([chip, "v6e"]))
grading.warm()

# %% [markdown]
# ## Predict
#
# A shard is `float32[8192, 128]`. One way, a link carries 45 GB/s on a v5e and 90 GB/s on a v6e; a hop takes
# 1 µs more. Commit to five numbers. They can be worked out, so they count within 3 %.

# %% nbgrader={"grade": false, "grade_id": "remote_dma-predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
shard_megabytes = None  # TODO(learner): 10^6 bytes of a shard
one_neighbour_microseconds = None  # TODO(learner): v5e, every device to its right neighbour
in_turn_microseconds = None  # TODO(learner): v5e, to the right and, once that has come, to the left
at_once_microseconds = None  # TODO(learner): v5e, to the right and to the left at the same time
v6e_microseconds = None  # TODO(learner): v6e, both at the same time
### BEGIN SOLUTION
shard_megabytes = 8192 * 128 * 4 / 1e6
one_neighbour_microseconds = shard_megabytes / 45e9 * 1e12 + 1
in_turn_microseconds = 2 * one_neighbour_microseconds
at_once_microseconds = one_neighbour_microseconds
v6e_microseconds = shard_megabytes / 90e9 * 1e12 + 1
### END SOLUTION

predictions = Predictions(
    {
        "a shard (MB)": shard_megabytes,
        "v5e, one neighbour (µs)": one_neighbour_microseconds,
        "v5e, both in turn (µs)": in_turn_microseconds,
        "v5e, both at once (µs)": at_once_microseconds,
        "v6e, both at once (µs)": v6e_microseconds,
    },
    tolerance=0.03,
)
predictions

# %% [markdown]
# ## See
#
# You write what **one** device does; every device runs it. `lax.axis_index("ring")` says which one it is. Here
# device 0 hands its shard to device 2 of four, and the others keep their own.
#
# A remote copy has **two semaphores**, counters that a kernel can wait for. On the device that sends, the
# *send semaphore* says: it has left, you may overwrite the source. On the device that receives, the *receive
# semaphore* says: it is there, you may read it. `out_ref` and `recv_sem` are named by the sender, and are
# those of the **receiver**: both run the same kernel, so they have buffers of the same names.


# %%
def hand_over(shard, wait_for_arrival=True):
    """Device 0's shard on device 2, everybody else's own: float32[rows, 128] -> float32[rows, 128]."""

    def kernel(shard_ref, out_ref, local_sem, send_sem, recv_sem):
        me = lax.axis_index("ring")
        copy = pltpu.make_async_remote_copy(
            shard_ref, out_ref, send_sem, recv_sem, device_id={"ring": 2}
        )

        @pl.when(me == 0)
        def _():
            copy.start()
            copy.wait_send()

        @pl.when(me == 2)
        def _():
            if wait_for_arrival:
                copy.wait_recv()

        @pl.when(me != 2)
        def _():
            own = pltpu.make_async_copy(shard_ref, out_ref, local_sem)
            own.start()
            own.wait()

    in_hbm = pl.BlockSpec(memory_space=pl.ANY)  # stays where it is: only copies touch it
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shard.shape, shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 3,
    )(shard)


def run_on(devices, function, shape=(16, 128)):
    """Every device's result, and what the interpreter saw; device i holds a shard full of i."""
    shards = jnp.broadcast_to(
        jnp.arange(devices, dtype=jnp.float32)[:, None, None], (devices, *shape)
    )
    return tpulab.run(tpulab.on_devices(function, devices), shards, mode="faithful")


results, report = run_on(4, hand_over)
print("device 0 to 3 end with the shard of", [int(result[0, 0]) for result in results])
visual.ring_in_motion(report, devices=4)

# %% [markdown]
# On a real chip nothing makes a device wait for what it did not ask for. Leave out one wait, and the
# interpreter says what would be read, and what is left over. Read both messages: you will meet them again.

# %%
_, report = run_on(4, lambda shard: hand_over(shard, wait_for_arrival=False))
for message in report.messages:
    print("-", re.sub(r" \([^()]*:\d+\)", "", message))  # without the line it is in

# %% [markdown]
# ## Write
#
# ### 1 · To the right
#
# Eight devices form a ring. Each sends its shard to device (i + 1) % devices and ends with what its left
# neighbour held. Here *every* device sends and receives, so each waits for both: `copy.wait()` is
# `copy.wait_send()` and `copy.wait_recv()`. Note what the second one means: not that *your* shard has arrived
# over there, but that as many bytes have arrived *here*.
#
# The call is there; the kernel is yours. `lax.axis_size("ring")` is the number of devices.


# %% nbgrader={"grade": false, "grade_id": "remote_dma-shift", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def shift_kernel(shard_ref, out_ref, send_sem, recv_sem):
    # TODO(learner): send shard_ref into the right neighbour's out_ref; wait until both copies are done
    ### BEGIN SOLUTION
    right = (lax.axis_index("ring") + 1) % lax.axis_size("ring")
    copy = pltpu.make_async_remote_copy(
        shard_ref, out_ref, send_sem, recv_sem, device_id={"ring": right}
    )
    copy.start()
    copy.wait()
    ### END SOLUTION


def shift(shard: jax.Array) -> jax.Array:
    """The left neighbour's shard: dtype[rows, 128] on each device -> dtype[rows, 128]."""
    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        shift_kernel,
        out_shape=jax.ShapeDtypeStruct(shard.shape, shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
    )(shard)


# %% nbgrader={"grade": true, "grade_id": "remote_dma-shift-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("remote_dma.shift", shift, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# `pl.ANY` leaves it to the compiler where the arrays lie. Here it keeps the result in VMEM, which is what the
# verdict counts; a larger one stays in HBM. The copy does not care.
#
# Your copies, on four devices. Who sends to device 0?

# %%
when_written(lambda: visual.ring_in_motion(run_on(4, shift)[1]))

# %% [markdown]
# ### 2 · Meet first
#
# You write into the neighbour's buffer. Is the neighbour already in this kernel? If it is still busy with
# what comes before, that memory holds something else, and you destroy it. So far you were lucky: in front of a
# kernel that copies to others and says nothing about it, the compiler puts a barrier over *all* devices
# ([JAX documentation, *Distributed Computing in Pallas*](
# https://docs.jax.dev/en/latest/pallas/tpu/distributed.html#barrier-semaphores)). That is right, and more
# than you need: you only care about those that you talk to.
#
# Meet them yourself. `pltpu.get_barrier_semaphore()` is a semaphore that exists outside of the kernel, under the
# kernel's `collective_id`. `pl.semaphore_signal(barrier, device_id={"ring": other})` adds 1 to the *other* device's;
# `pl.semaphore_wait(barrier, n)` waits until yours has reached n, and takes n off. A kernel must leave all
# its semaphores at zero.
#
# Now 0 and 1 swap their shards, 2 and 3, and so on. Meet your partner, then copy. Write kernel and call;
# `compiler_params=pltpu.CompilerParams(collective_id=0)`.


# %% nbgrader={"grade": false, "grade_id": "remote_dma-exchange", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def exchange(shard: jax.Array) -> jax.Array:
    """The partner's shard: dtype[rows, 128] on each device -> dtype[rows, 128]."""
    # TODO(learner): write the kernel, with its own barrier, and the call
    ### BEGIN SOLUTION

    def kernel(shard_ref, out_ref, send_sem, recv_sem):
        partner = lax.axis_index("ring") ^ 1
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, device_id={"ring": partner})
        pl.semaphore_wait(barrier, 1)
        copy = pltpu.make_async_remote_copy(
            shard_ref, out_ref, send_sem, recv_sem, device_id={"ring": partner}
        )
        copy.start()
        copy.wait()

    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shard.shape, shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "remote_dma-exchange-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("remote_dma.exchange", exchange, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 3 · Both neighbours at once
#
# A stencil, a convolution cut over its width, attention with a sliding window: each device needs what its left
# *and* its right neighbour hold. The result has three slots: left, own, right. A link carries both directions
# at the same time, so both copies must be under way before you wait for either.
#
# `out_ref.at[0]` names a slot without reading it. Which slot is it that your *right* neighbour must find your
# shard in? How many signals must you wait for, and from whom?


# %% nbgrader={"grade": false, "grade_id": "remote_dma-both_neighbours", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def both_neighbours(shard: jax.Array) -> jax.Array:
    """Shards of left neighbour, own, right neighbour: dtype[rows, 128] -> dtype[3, rows, 128]."""
    # TODO(learner): write the kernel and the call: a barrier, one local copy, two remote ones
    ### BEGIN SOLUTION

    def kernel(shard_ref, out_ref, local_sem, send_sems, recv_sems):
        device, devices = lax.axis_index("ring"), lax.axis_size("ring")
        left, right = (device - 1) % devices, (device + 1) % devices
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, device_id={"ring": left})
        pl.semaphore_signal(barrier, device_id={"ring": right})
        pl.semaphore_wait(barrier, 2)

        own = pltpu.make_async_copy(shard_ref, out_ref.at[1], local_sem)
        to_right = pltpu.make_async_remote_copy(
            shard_ref, out_ref.at[0], send_sems.at[0], recv_sems.at[0], device_id={"ring": right}
        )
        to_left = pltpu.make_async_remote_copy(
            shard_ref, out_ref.at[2], send_sems.at[1], recv_sems.at[1], device_id={"ring": left}
        )
        for copy in (to_right, to_left, own):
            copy.start()
        for copy in (to_right, to_left, own):
            copy.wait()

    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    semaphores = pltpu.SemaphoreType.DMA((2,))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((3, *shard.shape), shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA, semaphores, semaphores],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "remote_dma-both_neighbours-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("remote_dma.both_neighbours", both_neighbours, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Two arrows leave every device in the same round. Cells that are framed have just arrived.

# %%
when_written(lambda: visual.ring_in_motion(run_on(4, both_neighbours)[1]))

# %% [markdown]
# ## Climb
#
# Every version you checked, how far it came, and what the links take on each chip. Check a changed version and
# run this cell again.

# %%
grading.climb("remote_dma")

# %% [markdown]
# ## Break
#
# Two kernels that look like yours. Their source is folded away, and `diagnose=False` makes a check tell the
# symptoms only: diagnose from these and write down what you think. To reveal: unfold a cell (the **…** in
# it, or *View › Expand Selected Code*), then take `diagnose=False` out and run it once more.
#
# **Patient A** never comes back. On a slice that means eight chips that hang until somebody kills the job.


# %% jupyter={"source_hidden": true}
def patient_a(shard):
    def kernel(shard_ref, out_ref, send_sem, recv_sem):
        partner = lax.axis_index("ring") ^ 1
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_wait(barrier, 1)
        pl.semaphore_signal(barrier, device_id={"ring": partner})
        copy = pltpu.make_async_remote_copy(
            shard_ref, out_ref, send_sem, recv_sem, device_id={"ring": partner}
        )
        copy.start()
        copy.wait()

    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(shard.shape, shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


tpulab.check("remote_dma.exchange", patient_a, chips=[chip], seed=0, record=False, diagnose=False)

# %% [markdown]
# **Patient B** gives the right numbers on every input, every time.


# %% jupyter={"source_hidden": true}
def patient_b(shard):
    def kernel(shard_ref, out_ref, local_sem, send_sems, recv_sems):
        device, devices = lax.axis_index("ring"), lax.axis_size("ring")
        left, right = (device - 1) % devices, (device + 1) % devices
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, device_id={"ring": left})
        pl.semaphore_signal(barrier, device_id={"ring": left})
        pl.semaphore_wait(barrier, 2)
        copies = [
            pltpu.make_async_copy(shard_ref, out_ref.at[1], local_sem),
            pltpu.make_async_remote_copy(
                shard_ref,
                out_ref.at[0],
                send_sems.at[0],
                recv_sems.at[0],
                device_id={"ring": right},
            ),
            pltpu.make_async_remote_copy(
                shard_ref, out_ref.at[2], send_sems.at[1], recv_sems.at[1], device_id={"ring": left}
            ),
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    in_hbm = pl.BlockSpec(memory_space=pl.ANY)
    semaphores = pltpu.SemaphoreType.DMA((2,))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((3, *shard.shape), shard.dtype),
        in_specs=[in_hbm],
        out_specs=in_hbm,
        scratch_shapes=[pltpu.SemaphoreType.DMA, semaphores, semaphores],
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )(shard)


tpulab.check(
    "remote_dma.both_neighbours", patient_b, chips=[chip], seed=0, record=False, diagnose=False
)

# %% [markdown] nbgrader={"grade": true, "grade_id": "remote_dma-diagnosis", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# **A** waits for its partner's signal before it gives its own, and so does the partner: each waits for what
# the other would do next. Signal first, then wait.
#
# **B** signals its left neighbour twice and its right neighbour never. Every barrier semaphore reaches 2 and
# returns to zero, so nothing is left over and nothing hangs. But both signals come from the *right* neighbour:
# that the left one has entered, nobody knows, and its buffer is written all the same. Where all devices
# arrive at nearly the same time, as in a test, that does no harm. Counting signals is not enough; they have to
# come from everyone that you send to.

# %% [markdown]
# ## What you said, and what it is
#
# The interpreter runs your kernels on small shards; their transfers, with the bytes of the question, go
# through the link model. A line says *not yet* while the kernel it needs does not run.


# %%
@functools.cache
def on_links(function, chip):
    """What the links between eight chips take for this function and shards of 4 MiB."""
    _, report = run_on(8, function, shape=(16, 128))
    if report.deadlock:
        raise RuntimeError("it hangs, and has no time")
    scale = (8192 * 128) // (16 * 128)
    sent = [dataclasses.replace(one, size_bytes=one.size_bytes * scale) for one in report.transfers]
    return link_time(sent, chip, devices=8)


predictions.compare(
    {
        "a shard (MB)": 8192 * 128 * 4 / 1e6,
        "v5e, one neighbour (µs)": lambda: on_links(shift, "v5e").seconds * 1e6,
        "v5e, both in turn (µs)": lambda: 2 * on_links(shift, "v5e").seconds * 1e6,
        "v5e, both at once (µs)": lambda: on_links(both_neighbours, "v5e").seconds * 1e6,
        "v6e, both at once (µs)": lambda: on_links(both_neighbours, "v6e").seconds * 1e6,
    }
)

# %% [markdown]
# ## Talk
#
# In a pair, hand the keyboard over after exercise 1 and again after exercise 2. The navigator asks; alone,
# answer in writing below.
#
# 1. `copy.wait_recv()` in exercise 1: whose copy ends it? What happens if that device sends fewer bytes?
# 2. In exercise 1 a device writes to the right only. Whom must it have met, and who must signal whom?
# 3. A reviewer asks: the kernel is called twice in a row, with the same `collective_id`. Your left neighbour
#    is quick, finishes the first call and signals again, for the second. Can you take that signal for your
#    *right* neighbour's, and start too early? For `both_neighbours`, and for a shift with a barrier over both?
# 4. Device 0 sends to device 4 of 8. Over which links does that go, and who else must wait for it?

# %% [markdown] nbgrader={"grade": true, "grade_id": "remote_dma-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# 1. The left neighbour's. The receive semaphore counts bytes, so with fewer of them it never gets there: the
#    device hangs.
# 2. It writes to its right neighbour, so it must know that *that* one has entered: every device signals its
#    left neighbour and waits for one signal, which comes from the right.
# 3. In `both_neighbours` it cannot: to finish, the left neighbour needs the shard that you only send after your
#    barrier. In a shift to the right it can: the left neighbour needs nothing of yours. That is the race of
#    [jax#27963](https://github.com/jax-ml/jax/pull/27963); a second barrier on a semaphore of the kernel's own ends it.
# 4. Four links, half of the bytes each way round as both ways are equally long in the model; all neighbours'
#    messages on these links share them. Copies to neighbours keep every link's load in your hand.

# %% [markdown]
# ## Go on
#
# - A plain shift is `lax.ppermute`, and XLA does it as well as you can: it starts the copy early and waits late,
#   with other work in between. Write your own when the copy must start in the *middle* of a kernel, as soon as a
#   piece is ready, or when you choose what goes over which link (lab 31).
# - A v5e reaches only devices at a distance of a power of two directly, and messages that pass through share
#   links with everyone on the way ([same page](https://docs.jax.dev/en/latest/pallas/tpu/distributed.html#routing)).
#   Neighbours are the safe choice.
# - Meshes have more than one axis: `device_id={"x": …, "y": …}` names one along each, and an axis that you leave
#   out stays your own. `pl.DeviceIdType.LOGICAL` counts devices instead, and is a common way to reach the wrong one.
# - Look up `pltpu.async_remote_copy`, `pl.semaphore_read`, `pl.delay` (to make a device late on purpose on
#   real chips), and the *async operations* design note of Pallas, on starting a copy in one kernel and waiting for
#   it in another.
# - Next: **31 · Ring collectives**, where what arrives is passed on.
