# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 00 · First kernel
#
# XLA adds two arrays for you, and does it well. Why write the addition yourself? Because it is the
# smallest kernel that meets everything a large one meets: memory that is too small, blocks that
# arrive while others are worked on, a compiler with rules, and a clock.
#
# **The question.** Two arrays of 8192 × 1024 `float32` lie in the chip's main memory (HBM). Reading
# both and writing their sum takes a TPU v5e at least 123 µs. A careless kernel takes three times
# as long. Get yours past **80 % of the memory bandwidth**: a plain streaming kernel has been measured
# at 82 % on a v5e, and XLA's own at 80 % ([AMLeng/tpu-kernels](https://github.com/AMLeng/tpu-kernels),
# scale ×2 of a 16384 × 16384 array).
#
# | | |
# |---|---|
# | You need | Python, NumPy-style indexing, `jax.numpy`; no TPU and no Pallas |
# | You learn | Refs, grids and blocks, SMEM, revisited blocks, and how a lab works |
# | Time | 45–60 minutes, alone or in a pair |
# | Target chip | TPU v5e, compiled by the real TPU compiler on this machine |

# %% [markdown]
# ## How a lab works
#
# You write a function; the cell below it checks it. A check gives up to five verdicts, in order:
#
# 1. **legal** – blocks and memory spaces obey the chip's rules.
# 2. **correct** – equals a float64 oracle on every case, ragged edges included.
# 3. **safe** – no race, no uninitialised read, every copy waited for.
# 4. **compiles** – the TPU compiler accepts it for each chip, within its vector memory.
# 5. **fast** – the compiled program, run in a simulator, comes near the chip's limit.
#
# A check stops at the first verdict that fails, says why, and gives one thing to try. *fast* has
# rungs: from the first one on a kernel passes, is shown amber, and is told the next rung; below it,
# a kernel that is right is too slow to pass. A function you have not written yet is *not attempted*;
# that is no error, so you can run all cells at any time. Stuck? `tpulab.hint("first_kernel.add")`
# gives the next hint.
#
# Two of you? `tpulab pair` opens a lab on two screens. One drives and types; the other navigates: reads
# along, asks, thinks a step ahead. In a cell of your own, `from tpulab.classroom import turns; turns()`
# shows both of you whose turn it is, and hands over.

# %% tags=["parameters"]
chip = "v5e"  # your kernels are compiled and predicted for this one
device = "cpu"  # "tpu" on a machine that has one: checks then measure as well
effort = "full"  # "quick" asks no second chip

# %% tags=["imports"]
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import tpulab
from tpulab import grading, visual
from tpulab.classroom import Predictions, show_ladder, when_written

jax.config.update("jax_platforms", device)
chips = [chip] if effort == "quick" else list(dict.fromkeys([chip, "v6e"]))
grading.warm()

# %% [markdown]
# ## Predict
#
# Commit to three numbers before you run anything. You add `x` and `y`, both `float32[8192, 1024]`,
# in blocks of 512 rows. Write them into the cell (or run `predictions.form()` in a cell of your own for
# fields to fill in); at the end they stand beside the outcome. The v5e reads and writes HBM at 819 GB/s
# ([Google Cloud, TPU v5e](https://cloud.google.com/tpu/docs/v5e)). All three can be worked out, so they
# count within 3 %.

# %% nbgrader={"grade": false, "grade_id": "first_kernel-predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
traffic_megabytes = None  # TODO(learner): bytes read plus bytes written, in 10^6 bytes
grid_steps = None  # TODO(learner): how often the kernel's body runs
least_microseconds = None  # TODO(learner): the time that this traffic takes at full bandwidth
### BEGIN SOLUTION
traffic_megabytes = 3 * 8192 * 1024 * 4 / 1e6
grid_steps = 8192 // 512
least_microseconds = traffic_megabytes * 1e6 / 819e9 * 1e6
### END SOLUTION

predictions = Predictions(
    {
        "HBM traffic (MB)": traffic_megabytes,
        "grid steps": grid_steps,
        "least time (µs)": least_microseconds,
    },
    tolerance=0.03,
)
predictions

# %% [markdown]
# ## See
#
# A kernel does not see arrays. It sees **Refs**: windows of fast memory (VMEM) that hold one block
# of each array. `pallas_call` walks a **grid**; before each step it copies the blocks of that step
# from HBM into VMEM, and after it copies results back. A **BlockSpec** says how large a block is,
# and its index map says *which* block a step needs, counted in blocks.
#
# Here is a complete kernel that doubles an array in blocks of 256 rows. Read it, then step through its
# grid with the slider or the arrow keys, and watch the blocks move.


# %%
def double_kernel(x_ref, out_ref):
    out_ref[...] = 2 * x_ref[...]


def double(x):
    """2 * x for float32[rows, columns], in blocks of 256 rows."""
    rows, columns = x.shape
    block = pl.BlockSpec((256, columns), lambda i: (i, 0))
    return pl.pallas_call(
        double_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, 256),),
        in_specs=[block],
        out_specs=block,
    )(x)


small = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
visual.step_through(tpulab.trace(double, small).calls[0])

# %% [markdown]
# On this machine there is no TPU, so `double(x)` itself would be refused. `tpulab.run` runs the same
# function through an interpreter. You never change the kernel for that.

# %%
x = jnp.arange(1024 * 1024, dtype=jnp.float32).reshape(1024, 1024)
doubled = tpulab.run(double, x)
bool((doubled == 2 * x).all())

# %% [markdown]
# ## Write
#
# ### 1 · Add in one block
#
# The call is there; the kernel is yours. Without a grid the kernel runs once and each Ref holds its
# whole array. `x_ref[...]` reads all of it, `out_ref[...] = value` writes all of it.


# %% nbgrader={"grade": false, "grade_id": "first_kernel-add", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def add_kernel(x_ref, y_ref, out_ref):
    # TODO(learner): read both blocks and store their sum
    ### BEGIN SOLUTION
    out_ref[...] = x_ref[...] + y_ref[...]
    ### END SOLUTION


def add(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y, both float32[rows, columns], in one block."""
    return pl.pallas_call(add_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


# %% nbgrader={"grade": true, "grade_id": "first_kernel-add-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("first_kernel.add", add, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 2 · Add block by block
#
# VMEM is small. At 8192 × 1024 the three arrays are 96 MiB, and a v5e kernel gets 16 MiB of VMEM
# unless it asks for more. So cut the arrays into blocks of rows. The kernel's body stays as it is; only
# the call changes: a grid, and a `BlockSpec` for every array.
#
# The pipeline keeps **two** buffers of every block, one to work on and one to fill. How many rows may
# a block have at most? And what is wrong with blocks of 8 rows?
#
# You may also say how the steps of an axis depend on each other:
# `compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",))`, one word for every axis of
# the grid. `"parallel"` promises that its steps can run in any order, and a chip with two cores to a
# device (v4, v5p) may then share them out. `"arbitrary"` keeps their order, and holds if you say
# nothing. A v5e has one core; there it changes nothing.


# %% nbgrader={"grade": false, "grade_id": "first_kernel-add_blocks", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def add_blocks(x: jax.Array, y: jax.Array) -> jax.Array:
    """x + y, both float32[rows, columns], over a grid of blocks of rows."""
    # TODO(learner): the same kernel as before, called over a grid of blocks
    ### BEGIN SOLUTION
    rows, columns = x.shape
    block_rows = 512
    block = pl.BlockSpec((block_rows, columns), lambda i: (i, 0))

    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[block, block],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, y)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "first_kernel-add_blocks-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("first_kernel.add_blocks", add_blocks, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Look at when your blocks move and when the units work. The first block has nothing to hide behind,
# and neither has the last one on its way back; in between, copies and additions overlap.

# %% tags=["nbval-ignore-output"]
large = jax.ShapeDtypeStruct((8192, 1024), jnp.float32)
show_ladder(visual.pipeline_timeline, add_blocks, large, large, chip=chip)

# %% [markdown]
# ### 3 · A scalar beside the arrays
#
# `a * x + y`, where `a` is `float32[1]`. VMEM moves tiles of 8 × 128 words; one number would fill a
# tile for nothing. Scalars belong in **SMEM**, next to the scalar core, which reads them one by one:
# `a_ref[0]`. A `BlockSpec` may name a memory space instead of a block:
# `pl.BlockSpec(memory_space=pltpu.SMEM)`.
#
# The check also takes a kernel that leaves `a` in VMEM, because the chip does; here it costs little.
# SMEM becomes a must when a number steers: an index, a loop's end, a branch. Learn it where it is easy.


# %% nbgrader={"grade": false, "grade_id": "first_kernel-scale_add", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def scale_add(a: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """a * x + y; a: float32[1], for SMEM; x and y: float32[rows, columns], in blocks of rows."""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    rows, columns = x.shape
    block_rows = 512
    block = pl.BlockSpec((block_rows, columns), lambda i: (i, 0))

    def kernel(a_ref, x_ref, y_ref, out_ref):
        out_ref[...] = a_ref[0] * x_ref[...] + y_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), block, block],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(a, x, y)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "first_kernel-scale_add-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("first_kernel.scale_add", scale_add, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 4 · Carry a sum from step to step
#
# Sum each column. Every step adds to the *same* output block: its index map returns `(0, 0)` at
# every step, so the block stays in VMEM and goes home once, after the last step. Two traps:
#
# - Nobody clears the block before the first step. `@pl.when(pl.program_id(0) == 0)` runs a piece of
#   code in the first step only.
# - If the rows do not divide by your block, the last block hangs over the edge. What lies there is
#   **not** zero. Mask it: compare row numbers (`jax.lax.broadcasted_iota`) with the rows there are.
#
# The steps now depend on each other: this axis is `"arbitrary"`, never `"parallel"`.


# %% nbgrader={"grade": false, "grade_id": "first_kernel-column_sum", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def column_sum(x: jax.Array) -> jax.Array:
    """Sum over rows: float32[rows, columns] -> float32[1, columns]."""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    rows, columns = x.shape
    block_rows = 512

    def kernel(x_ref, sum_ref):
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        block = x_ref[...]
        if rows % block_rows:
            row = lax.broadcasted_iota(jnp.int32, block.shape, 0)
            block = jnp.where(row < rows - step * block_rows, block, 0.0)
        sum_ref[...] += jnp.sum(block, axis=0, keepdims=True)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1, columns), x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[pl.BlockSpec((block_rows, columns), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, columns), lambda i: (0, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(x)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "first_kernel-column_sum-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("first_kernel.column_sum", column_sum, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Compare the two pictures: which block stays?

# %%
tall = jax.ShapeDtypeStruct((2048, 256), jnp.float32)
when_written(lambda: visual.blocks_in_motion(tpulab.trace(column_sum, tall).calls[0]))

# %% [markdown]
# ## Climb
#
# Every version you checked, how far it came, and what it would take on each chip. Check a changed
# version and run this cell again.

# %%
grading.climb("first_kernel")

# %% [markdown]
# ## Break
#
# Three kernels by a tired colleague. Each gives a right answer on somebody's laptop. Their source is
# folded away, and `diagnose=False` makes a check tell the symptoms only: diagnose from these and write
# down what you think. To reveal: unfold a cell (the **…** in it, or *View › Expand Selected Code*), then
# take `diagnose=False` out and run it once more.
#
# **Patient A** is an `add_blocks`.


# %% jupyter={"source_hidden": true}
def patient_a(x, y):
    block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))

    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[block, block],
        out_specs=block,
    )(x, y)


tpulab.check(
    "first_kernel.add_blocks", patient_a, chips=[chip], seed=0, record=False, diagnose=False
)

# %% [markdown]
# **Patient B** is an `add_blocks` too.


# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
def patient_b(x, y):
    block = pl.BlockSpec((4096, x.shape[1]), lambda i: (i, 0))

    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], 4096),),
        in_specs=[block, block],
        out_specs=block,
    )(x, y)


tpulab.check(
    "first_kernel.add_blocks", patient_b, chips=[chip], seed=0, record=False, diagnose=False
)

# %% [markdown]
# **Patient C** is a `column_sum`.


# %% jupyter={"source_hidden": true}
def patient_c(x):
    rows, columns = x.shape
    block_rows = 512

    def kernel(x_ref, sum_ref):
        row = lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        inside = row < rows - pl.program_id(0) * block_rows
        block = jnp.where(inside, x_ref[...], 0.0)
        sum_ref[...] += jnp.sum(block, axis=0, keepdims=True)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((1, columns), x.dtype),
        grid=(pl.cdiv(rows, block_rows),),
        in_specs=[pl.BlockSpec((block_rows, columns), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, columns), lambda i: (0, 0)),
    )(x)


tpulab.check(
    "first_kernel.column_sum", patient_c, chips=[chip], seed=0, record=False, diagnose=False
)

# %% [markdown] nbgrader={"grade": true, "grade_id": "first_kernel-diagnosis", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# **A** uses blocks of 8 rows: 32 KiB each, 1024 steps. Every step costs a fixed time to start copies
# and wait for them, and so small a copy does not pay for it.
#
# **B** asks for six buffers of 16 MiB. The compiler counts VMEM and refuses. On a CPU nothing counts.
#
# **C** never clears its accumulator. VMEM holds whatever the last kernel left there. An interpreter
# that happens to hand out zeros hides the mistake.

# %% [markdown]
# ## What you said, and what it is


# %% [markdown]
# The outcome belongs to the blocks of the question, 512 rows, whichever your kernel took.

# %% jupyter={"source_hidden": true}
rows, columns = large.shape
traffic = 3 * rows * columns * large.dtype.itemsize  # two arrays in, one out, each once
bandwidth = tpulab.get_chip(chip).hbm_bandwidth(per="chip")
predictions.compare(
    {
        "HBM traffic (MB)": traffic / 1e6,
        "grid steps": pl.cdiv(rows, 512),
        "least time (µs)": traffic / bandwidth * 1e6,
    }
)

# %% [markdown]
# ## Talk
#
# In a pair, the navigator asks and the driver answers; hand the keyboard over after exercise 2. Alone,
# answer in writing below.
#
# 1. You doubled the rows of a block. What happened to the traffic, to the number of steps, to the
#    time of one step? Which of the three made it faster?
# 2. `x` is read once and never again. Would a cache help? What would it cost?
# 3. A reviewer asks: "why 512 rows and not 1024?" Answer with a number from the machine.
# 4. In `column_sum`, which dimension could two cores share, and which could they not?

# %% [markdown] nbgrader={"grade": true, "grade_id": "first_kernel-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# 1. The traffic stays, the steps halve, a step's copies take twice as long. The fixed cost of a step
#    is paid half as often; that is the gain.
# 2. No. A cache pays when data comes again. Here each byte is used once, and only bandwidth counts.
# 3. Six buffers of 1024 × 1024 `float32` are 24 MiB, more than the 16 MiB a v5e kernel gets.
# 4. The columns: they do not meet. The rows carry the sum; shared, they would need a final addition.

# %% [markdown]
# ## Go on
#
# - Do not ship this kernel. XLA fuses an addition into whatever stands before or after it, and then
#   its traffic is gone altogether. A streaming kernel is worth writing when XLA makes two passes
#   where one would do: normalisations, softmax, quantisation.
# - Look up `pltpu.emit_pipeline` (a pipeline inside a kernel), `pl.Buffered` (more buffers for late
#   blocks), `input_output_aliases` (update in place).
# - Next: **02 · Roofline**, which says beforehand whether the memory or the arithmetic decides; then
#   **03 · Grids and blocks**, which teaches the grids of several axes that every later lab uses. Labs are
#   numbered by subject (0x Pallas, 1x products, 2x attention, 3x several chips), with room between.
