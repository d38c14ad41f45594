# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · Grids and blocks
#
# **The question.** A table of positions is added to each of 16 sequences, all `float32`: 2048 positions
# of 1024 features. Everything that has to move, moved once, takes a TPU v5e 338 µs. Two kernels
# have the same body, the same blocks and the same 64 steps. One of them takes nearly one and a half times
# as long as the other. The calls differ in nothing but an order. Which? Get yours past **75 %** of the
# bandwidth, and learn to say how many blocks move *before* anything runs.
#
# | | |
# |---|---|
# | You need | lab 00: Refs, one-dimensional grids, block specs |
# | You learn | grids of several axes, index maps, blocks that stay, blocks you come back to, ragged edges |
# | Time | 60–75 minutes, alone or in a pair |
# | Target chip | TPU v5e; every check also asks a v6e |

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
# A grid is a nest of loops, and **the last axis runs fastest**. Each operand has an index map: from the
# grid's indices to the block it needs. Before a step the pipeline asks each map, and it copies a block only
# if the answer differs from the one before. After the last step that wants it, a block of the result goes
# home.
#
# That is all you need to count copies on paper. Here are two calls; read only the grids and the maps.


# %%
def product_plus_bias(lhs, rhs, bias, block_k):
    """lhs @ rhs + bias in blocks of 128 × 128; k is cut into blocks of block_k."""
    (m, k), n = lhs.shape, rhs.shape[1]

    def kernel(lhs_ref, rhs_ref, bias_ref, out_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out_ref[...] = jnp.broadcast_to(bias_ref[...], out_ref.shape)

        out_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
        grid=(m // 128, n // 128, k // block_k),
        in_specs=[
            pl.BlockSpec((128, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, 128), lambda i, j, k: (k, j)),
            pl.BlockSpec((1, 128), lambda i, j, k: (0, j)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
    )(lhs, rhs, bias)


def shape(*sizes, dtype=jnp.float32):
    """An array's shape and dtype, which is all that counting needs."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def quiz(block_k):
    """The call for lhs 256 × 512 and rhs 512 × 384."""
    arrays = shape(256, 512), shape(512, 384), shape(1, 384)
    return tpulab.trace(lambda *a: product_plus_bias(*a, block_k), *arrays).calls[0]


cut, whole = quiz(block_k=128), quiz(block_k=512)
print("k cut:  ", cut.grid, " k whole:", whole.grid)

# %% [markdown]
# Commit to six numbers. They are counts, so only the exact one is right.

# %% nbgrader={"grade": false, "grade_id": "grids-predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
cut_lhs = None  # TODO(learner): how often is a block of lhs fetched, with the grid (2, 3, 4)?
cut_bias = None  # TODO(learner): and a block of bias?
cut_out = None  # TODO(learner): how often does a block of the result go home?
whole_lhs = None  # TODO(learner): a block of lhs, with the grid (2, 3, 1)?
whole_rhs = None  # TODO(learner): a block of rhs?
whole_bias = None  # TODO(learner): a block of bias?
### BEGIN SOLUTION
cut_lhs = 2 * 3 * 4  # its map uses k, which changes at every step
cut_bias = 2 * 3  # it stays while k runs
cut_out = 2 * 3  # and so does the result
whole_lhs = 2  # k does not change any more, and lhs ignores j
whole_rhs = 2 * 3  # j changes at every step, and starts over for each i
whole_bias = 2 * 3
### END SOLUTION

predictions = Predictions(
    {
        "k cut: lhs fetched": cut_lhs,
        "k cut: bias fetched": cut_bias,
        "k cut: out written": cut_out,
        "k whole: lhs fetched": whole_lhs,
        "k whole: rhs fetched": whole_rhs,
        "k whole: bias fetched": whole_bias,
    },
    tolerance=0,
)
predictions

# %% [markdown]
# ## See
#
# Step through the first call with the slider or the arrow keys. A solid block moves at this step, a hatched
# one is still there from before. Find a step at which nothing but `lhs` and `rhs` moves, one at which
# `bias` moves too, and one at which the result goes home. Why are the last two never the same step here?

# %%
visual.step_through(cut)

# %% [markdown]
# ## Write
#
# In four of the six exercises the kernel is there, and you write **only the call**: grid, block specs,
# result. All blocks have to be ones the chip takes: the last dimension a multiple of 128 or whole, the one
# before it a multiple of 8 or whole.
#
# ### 1 · An operand that does not follow
#
# `x` is cut along both dimensions, so the grid has two axes. `bias` has only one row of blocks. Which axis
# does it follow, and what does its map return for the other dimension?


# %% nbgrader={"grade": false, "grade_id": "grids-broadcast_add", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def broadcast_kernel(x_ref, bias_ref, out_ref):
    out_ref[...] = x_ref[...] + bias_ref[...]


def broadcast_add(x: jax.Array, bias: jax.Array) -> jax.Array:
    """x + bias: float32[rows, cols] + float32[1, cols]; rows and cols are multiples of 512."""
    # TODO(learner): write the call of broadcast_kernel, over a grid of two axes
    ### BEGIN SOLUTION
    rows, cols = x.shape
    block = pl.BlockSpec((512, 512), lambda i, j: (i, j))
    return pl.pallas_call(
        broadcast_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(rows // 512, cols // 512),
        in_specs=[block, pl.BlockSpec((1, 512), lambda i, j: (0, j))],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x, bias)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "grids-broadcast_add-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("grids.broadcast_add", broadcast_add, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 2 · Blocks change places
#
# The kernel turns one block. You say where it belongs. Mind the result's block: its columns are the rows
# of the block you read, and both blocks must be legal. The array may be ragged; what sticks out of the
# result is cut off when a block is written, so here the edge costs you nothing but `pl.cdiv`.


# %% nbgrader={"grade": false, "grade_id": "grids-transpose", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def transpose_kernel(x_ref, out_ref):
    out_ref[...] = x_ref[...].T


def transpose(x: jax.Array) -> jax.Array:
    """x.T: float32[rows, cols] -> float32[cols, rows], block by block."""
    # TODO(learner): write the call of transpose_kernel
    ### BEGIN SOLUTION
    rows, cols = x.shape
    block = 512
    return pl.pallas_call(
        transpose_kernel,
        out_shape=jax.ShapeDtypeStruct((cols, rows), x.dtype),
        grid=(pl.cdiv(rows, block), pl.cdiv(cols, block)),
        in_specs=[pl.BlockSpec((block, block), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((block, block), lambda i, j: (j, i)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "grids-transpose-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("grids.transpose", transpose, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Follow one block from its place above to its place below.

# %%
when_written(lambda: visual.blocks_in_motion(tpulab.trace(transpose, shape(1024, 1536)).calls[0]))

# %% [markdown]
# ### 3 · A dimension that the kernel does not see
#
# A batch of matrix products. The kernel multiplies two matrices and knows nothing of a batch, so take the
# batch away from its Refs: `None` in a block's shape takes one slice and squeezes the dimension out. The
# index map still returns one number for each dimension of the *array*.


# %% nbgrader={"grade": false, "grade_id": "grids-batched_matmul", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def product_kernel(lhs_ref, rhs_ref, out_ref):
    out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)


def batched_matmul(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """lhs @ rhs: bfloat16[batch, m, k] × bfloat16[batch, k, n] -> float32[batch, m, n].

    m, k and n are at most 512.
    """
    # TODO(learner): write the call of product_kernel, one step for each pair of matrices
    ### BEGIN SOLUTION
    (batch, m, k), n = lhs.shape, rhs.shape[2]
    return pl.pallas_call(
        product_kernel,
        out_shape=jax.ShapeDtypeStruct((batch, m, n), jnp.float32),
        grid=(batch,),
        in_specs=[
            pl.BlockSpec((None, m, k), lambda b: (b, 0, 0)),
            pl.BlockSpec((None, k, n), lambda b: (b, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, m, n), lambda b: (b, 0, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(lhs, rhs)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "grids-batched_matmul-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("grids.batched_matmul", batched_matmul, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 4 · Come back to a block, in the right order
#
# Now the kernel is yours too. The sum of each row, with `x` cut along both dimensions: several steps add to
# one block of the result. The pipeline keeps a block of the result only while the *next* step wants the
# same one. Once it is gone, it is never fetched back. What does that say about the order of your axes? And
# who clears the sum, and when? Say in `dimension_semantics` which axis carries it.


# %% nbgrader={"grade": false, "grade_id": "grids-row_sums", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def row_sums(x: jax.Array) -> jax.Array:
    """Sum along rows: float32[rows, cols] -> float32[rows, 1]; multiples of 512, two axes."""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    rows, cols = x.shape
    block = 512

    def kernel(x_ref, sum_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        grid=(rows // block, cols // block),
        in_specs=[pl.BlockSpec((block, block), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((block, 1), lambda i, j: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "grids-row_sums-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("grids.row_sums", row_sums, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# The result's block is hatched while it stays, and solid when it goes home: once for each block of rows.

# %%
when_written(lambda: visual.blocks_in_motion(tpulab.trace(row_sums, shape(1024, 2048)).calls[0]))

# %% [markdown]
# ### 5 · Over the edge
#
# The largest number of each row, for *any* number of rows and columns. Two edges, and they differ:
#
# - Below, whole rows of your block lie outside. Their maxima are written nowhere. Nothing to do.
# - On the right, columns outside meet columns inside in one maximum. They hold anything. Mask them.
#
# With what? In lab 00 a zero was harmless. Is it here?


# %% nbgrader={"grade": false, "grade_id": "grids-row_max", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def row_max(x: jax.Array) -> jax.Array:
    """Maximum along rows: float32[rows, cols] -> float32[rows, 1], any shape."""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    rows, cols = x.shape
    block_rows, block_cols = 512, 1024

    def kernel(x_ref, max_ref):
        j = pl.program_id(1)

        @pl.when(j == 0)
        def _():
            max_ref[...] = jnp.full_like(max_ref, -jnp.inf)

        column = lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        block = jnp.where(column < cols - j * block_cols, x_ref[...], -jnp.inf)
        max_ref[...] = jnp.maximum(max_ref[...], jnp.max(block, axis=1, keepdims=True))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        grid=(pl.cdiv(rows, block_rows), pl.cdiv(cols, block_cols)),
        in_specs=[pl.BlockSpec((block_rows, block_cols), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((block_rows, 1), lambda i, j: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "grids-row_max-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("grids.row_max", row_max, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 6 · The order of the grid
#
# Back to the question. Every sequence gets the same table added. Two loops, over blocks of the length and
# over the batch, and both orders are right. Count the fetches of the table for each before you write.


# %% nbgrader={"grade": false, "grade_id": "grids-add_positions", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def positions_kernel(x_ref, table_ref, out_ref):
    out_ref[...] = x_ref[...] + table_ref[...]


def add_positions(x: jax.Array, table: jax.Array) -> jax.Array:
    """x + table: float32[batch, length, features] + float32[length, features].

    The length is a multiple of 512; one block holds 512 rows of one sequence.
    """
    # TODO(learner): write the call of positions_kernel: two axes, in the better order
    ### BEGIN SOLUTION
    batch, length, features = x.shape
    block = pl.BlockSpec((None, 512, features), lambda i, b: (b, i, 0))
    return pl.pallas_call(
        positions_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(length // 512, batch),
        in_specs=[block, pl.BlockSpec((512, features), lambda i, b: (i, 0))],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x, table)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "grids-add_positions-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("grids.add_positions", add_positions, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# The ladder of your call. The second rung counts traffic: is it as short as the first?

# %% tags=["nbval-ignore-output"]
sequences, table = shape(16, 2048, 1024), shape(2048, 1024)
show_ladder(visual.ladder_waterfall, add_positions, sequences, table, chip=chip)

# %% [markdown]
# ## Climb
#
# Every version you checked, how far it came, and what it would take on each chip. Check a changed
# version and run this cell again.

# %%
grading.climb("grids")

# %% [markdown]
# ## Break
#
# Three kernels by people in a hurry. Their source is folded away, and `diagnose=False` makes a check tell
# the symptoms only: diagnose from these and write down what you think. To reveal: unfold a cell (the
# **…** in it, or *View › Expand Selected Code*), then take `diagnose=False` out and run it once more.
#
# **Patient A** sums rows. A CPU finds the right sums. Look at the picture first: what is odd about the
# block of the result?


# %% jupyter={"source_hidden": true}
def patient_a(x):
    rows, cols = x.shape
    block = 512

    def kernel(x_ref, sum_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        grid=(cols // block, rows // block),
        in_specs=[pl.BlockSpec((block, block), lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((block, 1), lambda j, i: (i, 0)),
    )(x)


visual.blocks_in_motion(tpulab.trace(patient_a, shape(1024, 2048)).calls[0])

# %%
tpulab.check("grids.row_sums", patient_a, chips=[chip], seed=0, record=False, diagnose=False)


# %% [markdown]
# **Patient B** adds positions.


# %% jupyter={"source_hidden": true}
def patient_b(x, table):
    batch, length, features = x.shape
    block = pl.BlockSpec((None, 512, features), lambda b, i: (b, i, 0))

    def kernel(x_ref, table_ref, out_ref):
        out_ref[...] = x_ref[...] + table_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(batch, length // 512),
        in_specs=[block, pl.BlockSpec((512, features), lambda b, i: (i, 0))],
        out_specs=block,
    )(x, table)


tpulab.check("grids.add_positions", patient_b, chips=[chip], seed=0, record=False, diagnose=False)

# %% [markdown]
# **Patient C** finds the largest number of each row. Its author tested it on a thousand random arrays.


# %% jupyter={"source_hidden": true}
def patient_c(x):
    rows, cols = x.shape
    block_rows, block_cols = 512, 1024

    def kernel(x_ref, max_ref):
        @pl.when(pl.program_id(1) == 0)
        def _():
            max_ref[...] = jnp.full_like(max_ref, -jnp.inf)

        column = lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        inside = column < cols - pl.program_id(1) * block_cols
        block = jnp.where(inside, x_ref[...], 0.0)
        max_ref[...] = jnp.maximum(max_ref[...], jnp.max(block, axis=1, keepdims=True))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        grid=(pl.cdiv(rows, block_rows), pl.cdiv(cols, block_cols)),
        in_specs=[pl.BlockSpec((block_rows, block_cols), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((block_rows, 1), lambda i, j: (i, 0)),
    )(x)


tpulab.check("grids.row_max", patient_c, chips=[chip], seed=0, record=False, diagnose=False)

# %% [markdown] nbgrader={"grade": true, "grade_id": "grids-diagnosis", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# **A** walks over the columns first. Every step wants another block of the result than the one before, so
# each goes home at every step, eight times in all for two blocks. When its turn comes again, the block is
# not fetched back: what was summed before is lost. A CPU that keeps the whole array shows nothing of it.
#
# **B** runs the length fastest, so the block of the table changes at every step: 64 fetches in place of
# 4. That is nearly half as much traffic again as needed. Swap the two sizes of the grid, and the two names in
# front of the maps; nothing else changes.
#
# **C** masks with zero. In a row of negative numbers zero is the largest. Among 1300 random numbers of both
# signs there is always a positive one.

# %% [markdown]
# ## What you said, and what it is
#
# The counts come from the trace of the two calls: `moves` has one entry for each step. Where yours differs,
# `visual.step_through(whole)` in a cell of your own shows at which steps a block moves: whenever its map returns
# something else than one step before, also when that block was there earlier.


# %%
def moves(call, operand):
    """How many of a call's steps move a block of the operand."""
    return int(call.moves(operand).sum())


predictions.compare(
    {
        "k cut: lhs fetched": moves(cut, "lhs_ref"),
        "k cut: bias fetched": moves(cut, "bias_ref"),
        "k cut: out written": moves(cut, "out_ref"),
        "k whole: lhs fetched": moves(whole, "lhs_ref"),
        "k whole: rhs fetched": moves(whole, "rhs_ref"),
        "k whole: bias fetched": moves(whole, "bias_ref"),
    }
)

# %% [markdown]
# ## Talk
#
# In a pair, hand the keyboard over after exercises 2 and 4. The navigator asks; alone, answer in
# writing below.
#
# 1. With k whole, `lhs` is fetched twice and `rhs` six times. Swap i and j in the grid: how often is each
#    fetched now? When is that better?
# 2. An index map returns `(i, 0)` on a grid `(i, j)`. How often does its block move? And on a grid `(j, i)`?
# 3. In `row_max`, why is it no mistake that the rows below the edge hold anything?
# 4. A reviewer sees `("parallel", "parallel")` on your `row_sums`. What breaks, and on which chip first?

# %% [markdown] nbgrader={"grade": true, "grade_id": "grids-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# 1. On the grid (3, 2, 1) rhs moves three times and lhs six times. It pays when a block of rhs is the larger
#    one, or when there are more blocks of rows than of columns.
# 2. Once for each i: it stays while j runs. On (j, i) it moves at every step, unless i has one block only.
# 3. Each row has a maximum of its own, and what is outside the result is not written. No row inside ever
#    meets a row outside.
# 4. Steps over columns may then run in any order and on two cores. On a v4 or v5p both cores add into
#    blocks of their own, and one half of each sum is lost. A v5e has one core and would not show it.

# %% [markdown]
# ## Go on
#
# - Do not ship these kernels alone. XLA fuses an addition with a broadcast operand into its neighbours, and
#   often does a transpose for nothing, by choosing a layout. What you learned is how to feed a kernel that
#   XLA does not have.
# - When the map must depend on *data* (pages of a cache, experts, blocks that are not zero), look up
#   `pltpu.PrefetchScalarGridSpec`: its scalars are there before the first map is asked.
# - Windows that overlap, such as those of a stencil: `pl.Element`. More than two buffers for blocks that
#   come late: `pl.Buffered`.
# - Next: **10 · Matmul ladder**, where grid order and blocks decide between 6 % and 78 % of a chip.
