# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Matmul ladder
#
# **The question.** A matrix product of 4096³ in `bfloat16` needs 0.70 ms on a TPU v5e. Pallas with
# blocks of 128³ takes 11.77 ms: **6 % of the chip**. The same kernel with other blocks takes 0.89 ms,
# 78 %, and XLA takes 0.83 ms, 84 % ([JAX documentation, *Matrix Multiplication*](
# https://docs.jax.dev/en/latest/pallas/tpu/matmul.html), host clock with about 0.1 ms of dispatch).
# Where do eleven milliseconds go, and what gets you past **75 %**?
#
# | | |
# |---|---|
# | You need | lab 00: Refs, grids, block specs, revisited blocks |
# | You learn | blocks for the matrix unit, accumulators, ragged edges, reading a ladder |
# | Time | 75–90 minutes, alone or in a pair |
# | Target chip | TPU v5e; the last check also asks a v6e |

# %% tags=["parameters"]
chip = "v5e"  # your kernels are compiled and predicted for this one
device = "cpu"  # "tpu" on a machine that has one: checks then measure as well
effort = "full"  # "quick" asks no second chip

# %% tags=["imports"]
import jax
import jax.numpy as jnp
from IPython.display import display
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.matmul import matmul as jax_matmul

import tpulab
from tpulab import grading, visual
from tpulab.classroom import Predictions, show_ladder

jax.config.update("jax_platforms", device)
chips = [chip] if effort == "quick" else list(dict.fromkeys([chip, "v6e"]))
grading.warm()

# %% [markdown]
# ## Predict
#
# A v5e multiplies 197 TFLOP/s in `bfloat16` and moves 819 GB/s
# ([Google Cloud, TPU v5e](https://cloud.google.com/tpu/docs/v5e)). A product of m × k by k × n
# takes 2·m·n·k operations. With a grid (i, j, k), each step fetches a block of `lhs` and a block of
# `rhs`; the output block goes home once all of k is in.
#
# Commit to four numbers for 4096³ with a `bfloat16` result. They can be worked out, so they count within
# 3 %.

# %% nbgrader={"grade": false, "grade_id": "matmul-predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
least_milliseconds = None  # TODO(learner): all operations at the chip's peak
small_traffic_gigabytes = None  # TODO(learner): 10^9 bytes moved with blocks of 128 x 128 x 128
small_traffic_milliseconds = None  # TODO(learner): that traffic at full bandwidth
large_traffic_gigabytes = None  # TODO(learner): the same with blocks of 512 x 512 x 512
### BEGIN SOLUTION
least_milliseconds = 2 * 4096**3 / 197e12 * 1e3
output_bytes = 4096 * 4096 * 2
small_traffic_gigabytes = (32**3 * 2 * 128 * 128 * 2 + output_bytes) / 1e9
small_traffic_milliseconds = small_traffic_gigabytes * 1e9 / 819e9 * 1e3
large_traffic_gigabytes = (8**3 * 2 * 512 * 512 * 2 + output_bytes) / 1e9
### END SOLUTION

predictions = Predictions(
    {
        "least time (ms)": least_milliseconds,
        "traffic, blocks of 128 (GB)": small_traffic_gigabytes,
        "its time (ms)": small_traffic_milliseconds,
        "traffic, blocks of 512 (GB)": large_traffic_gigabytes,
    },
    tolerance=0.03,
)
predictions

# %% [markdown]
# ## See
#
# JAX ships a Pallas matmul. Here it multiplies 512³ in blocks of 256 × 256 × 128; look at which block
# each step fetches, and which block stays. The output block waits in VMEM while k runs.


# %%
def shipped(block_m, block_n, block_k):
    """The kernel that ships inside JAX, lhs @ rhs, with these blocks."""
    return lambda lhs, rhs: jax_matmul(lhs, rhs, block_shape=(block_m, block_n), block_k=block_k)


def matrices(m, k, n):
    """Shapes of a bfloat16 product m × k by k × n."""
    return (
        jax.ShapeDtypeStruct((m, k), jnp.bfloat16),
        jax.ShapeDtypeStruct((k, n), jnp.bfloat16),
    )


visual.blocks_in_motion(tpulab.trace(shipped(256, 256, 128), *matrices(512, 512, 512)).calls[0])

# %% [markdown]
# A block that is fetched once is used once per row (or column) of the block it meets. That is the
# *arithmetic intensity* of your blocks: operations per byte moved. Left of the ridge the memory
# decides, right of it the matrix unit. Find blocks of 128³ and of 512³.


# %%
def intensity(block_m, block_n, block_k, size=4096):
    """Operations per byte of HBM traffic for bfloat16 blocks, k innermost."""
    steps = (size // block_m) * (size // block_n) * (size // block_k)
    traffic = steps * (block_m * block_k + block_k * block_n) * 2 + size * size * 2
    return 2 * size**3 / traffic


blocks = {f"{size}³": (size, size, size) for size in (128, 256, 512)}
visual.roofline([chip], {name: intensity(*sizes) for name, sizes in blocks.items()})

# %% [markdown]
# Blocks of 128³ lose a factor of four to the memory. They lose a factor of sixteen in all. Keep that
# difference in mind.

# %% [markdown]
# ## Write
#
# ### 1 · The whole product in one block
#
# Small matrices fit into VMEM whole. The matrix unit multiplies `bfloat16` and adds in `float32`;
# you ask for that with `preferred_element_type`.
#
# The check may count *register spills*: values that did not fit into the 64 vector registers, put into VMEM
# and fetched again. Large blocks do that. It is in the predicted time already, so judge by the time.


# %% nbgrader={"grade": false, "grade_id": "matmul-whole", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def whole_kernel(lhs_ref, rhs_ref, out_ref):
    # TODO(learner): multiply the two blocks into out_ref
    ### BEGIN SOLUTION
    out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)
    ### END SOLUTION


def whole(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> float32[m, n], in one block."""
    out_shape = jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), jnp.float32)
    return pl.pallas_call(whole_kernel, out_shape=out_shape)(lhs, rhs)


# %% nbgrader={"grade": true, "grade_id": "matmul-whole-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("matmul.whole", whole, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 2 · Strips of rows
#
# A one-dimensional grid walks down `lhs` in strips of rows; all of `rhs` stays in VMEM. The next strip
# arrives while this one is multiplied. m need not be a multiple of your strip: what sticks out of the last
# one is cut off when it is written. How large may `rhs` be before this stops working?


# %% nbgrader={"grade": false, "grade_id": "matmul-strips", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def strips(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> float32[m, n], by strips of rows of lhs."""
    # TODO(learner): write the call; the kernel's body is that of exercise 1
    ### BEGIN SOLUTION
    (m, k), n = lhs.shape, rhs.shape[1]
    block_m = 256

    def kernel(lhs_ref, rhs_ref, out_ref):
        out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(pl.cdiv(m, block_m),),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i: (i, 0)),
            pl.BlockSpec((k, n), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block_m, n), lambda i: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(lhs, rhs)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul-strips-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("matmul.strips", strips, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 3 · A grid of 128³ blocks
#
# Now cut all three dimensions, in blocks of 128. The output is `float32`, and its block stays in VMEM
# while k runs, so you can add up in it. k must be the last axis of the grid: the pipeline only keeps a
# block that the *next* step uses again. And somebody has to clear it first.
#
# Say what the axes allow: `compiler_params=pltpu.CompilerParams(dimension_semantics=(...))` takes a word
# for each. Blocks of the output don't depend on each other, so i and j are `"parallel"`, and a chip with
# two cores to a device may share them out. The steps of k add to one block: `"arbitrary"`.


# %% nbgrader={"grade": false, "grade_id": "matmul-grid", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def grid(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> float32[m, n], in blocks of 128."""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    (m, k), n = lhs.shape, rhs.shape[1]
    block = 128

    def kernel(lhs_ref, rhs_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(lhs, rhs)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul-grid-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("matmul.grid", grid, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# You are at the 6 % of the question, at its size. The ladder says why: each rung adds one reason why a
# real program is slower than the one above it.

# %% tags=["nbval-ignore-output"]
show_ladder(visual.ladder_waterfall, grid, *matrices(4096, 4096, 4096), chip=chip)

# %% [markdown]
# ### 4 · bfloat16 out, float32 inside
#
# A `bfloat16` result halves the bytes of the output. But a `bfloat16` block cannot hold the sum: with
# 8 bits of mantissa, what you add soon vanishes beside what is there. So add up in a `float32`
# **scratch** block, and cast once, in the last step of k.


# %% nbgrader={"grade": false, "grade_id": "matmul-bf16_scratch", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def bf16_scratch(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], float32 accumulator."""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    (m, k), n = lhs.shape, rhs.shape[1]
    block = 128

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block, block), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(lhs, rhs)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul-bf16_scratch-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("matmul.bf16_scratch", bf16_scratch, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 5 · Blocks that feed the matrix unit, and any shape
#
# Take blocks of the 512 class, so that each byte is used 512 times. Now m, n *and* k may be ragged.
# Rows and columns over the edge are cut off when a block is written. A ragged k is another matter:
# what lies beyond the edge goes into the sum. Mask **both** operands, for NaN times zero is NaN. Decide
# in Python whether k is ragged at all, and whole shapes pay nothing.


# %% nbgrader={"grade": false, "grade_id": "matmul-tiled", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def tiled(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], any m, k and n."""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    (m, k), n = lhs.shape, rhs.shape[1]
    block_m, block_n, block_k = min(512, m), min(512, n), min(512, k)

    def inside_k(block, axis):
        """The block with what lies beyond the edge of k set to zero."""
        position = lax.broadcasted_iota(jnp.int32, block.shape, axis)
        remaining = k - pl.program_id(2) * block_k
        return jnp.where(position < remaining, block, jnp.zeros_like(block))

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        lhs_block, rhs_block = lhs_ref[...], rhs_ref[...]
        if k % block_k:
            lhs_block, rhs_block = inside_k(lhs_block, axis=1), inside_k(rhs_block, axis=0)
        acc_ref[...] += jnp.dot(lhs_block, rhs_block, preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(lhs, rhs)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul-tiled-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("matmul.tiled", tiled, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 6 · Three quarters of the chip
#
# Only blocks are left to choose. Larger ones mean less traffic and fewer steps. But two buffers of
# every block and the accumulator must fit into 16 MiB of VMEM on a v5e, or into what you ask for with
# `vmem_limit_bytes`. m, n and k are multiples of 512; a small case must still run.


# %% nbgrader={"grade": false, "grade_id": "matmul-best", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def best(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], as fast as you can."""
    # TODO(learner): choose the blocks
    ### BEGIN SOLUTION
    (m, k), n = lhs.shape, rhs.shape[1]
    block_m, block_n, block_k = min(512, m), min(1024, n), min(1024, k)

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(m // block_m, n // block_n, k // block_k),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(lhs, rhs)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul-best-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("matmul.best", best, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Now the blocks of 128³ and your last kernel, both at 4096³. Which rungs became short?

# %% tags=["nbval-ignore-output"]
for version in (grid, best):
    display(show_ladder(visual.ladder_waterfall, version, *matrices(4096, 4096, 4096), chip=chip))

# %% [markdown]
# ## Climb
#
# Every version you checked, how far it came, and what it would take on each chip. Check a changed
# version and run this cell again.

# %%
grading.climb("matmul")

# %% [markdown]
# ## Break
#
# Two kernels that look like yours. Their source is folded away, and `diagnose=False` makes a check tell
# the symptoms only: diagnose from these and write down what you think. To reveal: unfold a cell (the
# **…** in it, or *View › Expand Selected Code*), then take `diagnose=False` out and run it once more.
#
# **Patient A** passes its author's own test, which multiplies matrices of ones.


# %% jupyter={"source_hidden": true}
def patient_a(lhs, rhs):
    (m, k), n = lhs.shape, rhs.shape[1]
    block = 128

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        product = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] += product.astype(acc_ref.dtype)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block, block), jnp.bfloat16)],
    )(lhs, rhs)


tpulab.check("matmul.bf16_scratch", patient_a, chips=[chip], seed=0, record=False, diagnose=False)

# %% [markdown]
# **Patient B** is right, its blocks are those of exercise 5, and no rung of its ladder loses much. All the
# same it takes more than five times as long.


# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
def patient_b(lhs, rhs):
    (m, k), n = lhs.shape, rhs.shape[1]
    block = 512

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(
            lhs_ref[...].astype(jnp.float32),
            rhs_ref[...].astype(jnp.float32),
            precision=lax.Precision.HIGHEST,
        )

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block, block), jnp.float32)],
    )(lhs, rhs)


def symptoms(ladder):
    """The ladder's times without its causes and its advice."""
    return visual.ladder_waterfall(ladder, diagnose=False)


show_ladder(symptoms, patient_b, *matrices(4096, 4096, 4096), chip=chip)

# %% [markdown] nbgrader={"grade": true, "grade_id": "matmul-diagnosis", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# **A** keeps its accumulator in `bfloat16`, so every block of k rounds the sum to 8 bits of mantissa.
# Small whole numbers survive that; a test with ones sees nothing. The error grows with the number of
# blocks, not with their size.
#
# **B** turns its operands into `float32` and asks for the highest precision. The matrix unit multiplies
# `bfloat16`, so the compiler splits every operand into parts and multiplies six times. Look at the *first*
# rung: a ladder compares a kernel with the best that its own work allows, and here the work itself is six
# times as long. Nothing on the rungs below can win that back.

# %% [markdown]
# ## What you said, and what it is


# %% [markdown]
# The traffic is counted on the kernel that ships inside JAX, with the blocks of the question; yours may
# have taken others.


# %%
def traffic_bytes(block_m, block_n, block_k):
    """HBM traffic of 4096³ in these blocks, as the pipeline moves them."""
    kernel = tpulab.trace(shipped(block_m, block_n, block_k), *matrices(4096, 4096, 4096))
    return kernel.hbm_read_bytes + kernel.hbm_written_bytes


flops_per_second = tpulab.get_chip(chip).peak("bfloat16", per="chip")
bandwidth = tpulab.get_chip(chip).hbm_bandwidth(per="chip")
predictions.compare(
    {
        "least time (ms)": 2 * 4096**3 / flops_per_second * 1e3,
        "traffic, blocks of 128 (GB)": traffic_bytes(128, 128, 128) / 1e9,
        "its time (ms)": traffic_bytes(128, 128, 128) / bandwidth * 1e3,
        "traffic, blocks of 512 (GB)": traffic_bytes(512, 512, 512) / 1e9,
    }
)

# %% [markdown]
# ## Talk
#
# In a pair, hand the keyboard over after exercises 2 and 4. The navigator asks; alone, answer in
# writing below.
#
# 1. Blocks of 128³ lost a factor of four to traffic and a factor of sixteen in all. Where did the rest go?
# 2. Swap the grid's i and j. Which operand is fetched less often now, and when does that pay?
# 3. `block_k` does not change how often a byte is used. Why does a larger one help all the same?
# 4. A reviewer asks what happens at m = 4097. Show them.

# %% [markdown] nbgrader={"grade": true, "grade_id": "matmul-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# 1. Into the steps: 32 768 of them, each with two copies to start and to wait for and a matrix unit that
#    fills and drains, for 128³ multiplications that take less time than that.
# 2. With k innermost both operands are fetched at every step, so nothing changes until a whole k fits into
#    one block. Then the operand whose index does not change between neighbours stays: put the index of
#    the *larger* block outermost.
# 3. Fewer steps, and fewer trips of the accumulator through the registers: it is read and written once per
#    step, whatever block_k is.
# 4. One more row of blocks, 1/9 more work for one row. Pad less by choosing block_m for the shape, or
#    leave the row to another kernel.

# %% [markdown]
# ## Go on
#
# - For one plain product, do not ship this kernel: XLA reaches 84 % at 4096³ and 92 % at 8192³ on the same
#   page of the JAX documentation, and fuses what comes after it. Write a matmul when you need what XLA
#   does not do: an epilogue that would cost an HBM pass, quantised weights, ragged groups, a product that
#   overlaps with communication.
# - Look up `jax.experimental.pallas.ops.tpu.megablox` (grouped matmul), `pltpu.emit_pipeline`, and
#   tokamax, whose tables of tuned block sizes show how far a search goes beyond a rule of thumb.
# - Raise `vmem_limit_bytes` and let blocks grow: where does the ladder stop moving?
# - Next: **20 · Flash attention**, two products with a softmax between them that must not go to HBM.
