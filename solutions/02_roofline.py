# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Roofline
#
# **The question.** A decode step of Llama 3 8B multiplies 32 tokens by MLP weights of 4096 × 14336
# ([*The Llama 3 Herd of Models*, table 3](https://arxiv.org/abs/2407.21783)). The matrix unit of a TPU v5e
# would need 19 µs. With `bfloat16` weights no kernel takes less than **145 µs**: 13 % of the chip, whoever
# writes it. What is in the way, and what gets the same 32 tokens through in less than those 145 µs?
#
# | | |
# |---|---|
# | You need | lab 00: Refs, grids, block specs |
# | You learn | intensity and ridge, bytes that move, dtypes of operands, re-reads, when each decides |
# | Time | 60–75 minutes, alone or in a pair |
# | Target chip | TPU v5e; two checks also ask a v6e |

# %% tags=["parameters"]
chip = "v5e"  # your kernels are compiled and predicted for this one
device = "cpu"  # "tpu" on a machine that has one: checks then measure as well
effort = "full"  # "quick" asks no second chip

# %% tags=["imports"]
import jax
import jax.numpy as jnp
from IPython.display import display
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import tpulab
from tpulab import grading, roofline, visual
from tpulab.classroom import Predictions, show_ladder, when_written

jax.config.update("jax_platforms", device)
chips = [chip] if effort == "quick" else list(dict.fromkeys([chip, "v6e"]))
grading.warm()

# %% [markdown]
# ## Predict
#
# Two rates bound every kernel: how fast the matrix unit multiplies, and how fast HBM delivers. `tpulab
# chips v5e` prints each figure with its source.

# %%
for name in ("v4", "v5e", "v5p", "v6e"):
    figures = tpulab.get_chip(name)
    teraflops, gigabytes = figures.peak("bfloat16") / 1e12, figures.hbm_bandwidth() / 1e9
    print(f"{name:4} {teraflops:4.0f} TFLOP/s in bfloat16 {gigabytes:6.0f} GB/s of HBM")

# %% [markdown]
# A product of m × k by k × n takes 2·m·k·n operations. Its **intensity** is those operations per byte of
# HBM traffic; at the **ridge** of a chip both rates take the same time. Commit to numbers for the product
# of the question, m = 32, k = 4096, n = 14336, with `bfloat16` tokens and result. They can be worked out, so
# they count within 3 %.
#
# For the *critical batch*, the tokens from which the matrix unit decides, count the bytes of the weights
# only.

# %% nbgrader={"grade": false, "grade_id": "roofline-predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
ridge = None  # TODO(learner): operations per byte where a v5e's two limits meet
bf16_microseconds = None  # TODO(learner): least time on a v5e, bfloat16 weights
int8_microseconds = None  # TODO(learner): least time on a v5e, int8 weights
batch_v5e = None  # TODO(learner): critical batch on a v5e, bfloat16 weights
batch_v5e_int8 = None  # TODO(learner): critical batch on a v5e, int8 weights, bfloat16 tokens
batch_v4 = None  # TODO(learner): critical batch on a v4, bfloat16 weights
batch_v5p = None  # TODO(learner): on a v5p
batch_v6e = None  # TODO(learner): on a v6e
### BEGIN SOLUTION
ridge = 197e12 / 819e9
token_bytes = 32 * 4096 * 2 + 32 * 14336 * 2
bf16_microseconds = (4096 * 14336 * 2 + token_bytes) / 819e9 * 1e6
int8_microseconds = (4096 * 14336 + 14336 * 4 + token_bytes) / 819e9 * 1e6
batch_v5e = 197e12 / 819e9  # 2 operations and 2 bytes for each weight and token
batch_v5e_int8 = batch_v5e / 2
batch_v4 = 275e12 / 1200e9
batch_v5p = 459e12 / 2765e9
batch_v6e = 918e12 / 1638e9
### END SOLUTION

predictions = Predictions(
    {
        "ridge of a v5e (FLOP/byte)": ridge,
        "least time, bfloat16 weights (µs)": bf16_microseconds,
        "least time, int8 weights (µs)": int8_microseconds,
        "critical batch, v5e, bfloat16 weights": batch_v5e,
        "critical batch, v5e, int8 weights": batch_v5e_int8,
        "critical batch, v4": batch_v4,
        "critical batch, v5p": batch_v5p,
        "critical batch, v6e": batch_v6e,
    },
    tolerance=0.03,
)
predictions

# %% [markdown]
# And a word for each of these, all in `bfloat16` on v5e unless they say otherwise: what decides its time,
# `"compute"`, `"memory"` or `"links"`?

# %% nbgrader={"grade": false, "grade_id": "roofline-classes", "locked": false, "schema_version": 3, "solution": true, "task": false}
decides = {
    "a product of 4096³": None,  # TODO(learner): a word for each
    "32 tokens by weights of 4096 × 14336": None,
    "the same with int8 weights": None,
    "128 vectors, each by a matrix of its own of 1024 × 512": None,
    "attention of a prompt: 8192 queries and keys, heads of 128": None,
    "attention of one token: 4 queries share 8192 cached keys and values": None,
    "a product of 4096³ split along k over two chips, partial sums exchanged": None,
}
### BEGIN SOLUTION
words = ("compute", "memory", "memory", "memory", "compute", "memory", "links")
decides = dict(zip(decides, words, strict=True))
### END SOLUTION

# %% [markdown]
# ## See
#
# Left of the ridge the slanted roof, the memory, decides; right of it the flat one, the matrix unit. More
# tokens use each weight more often and walk to the right. Weights of half the bytes do the same.


# %%
def intensity(tokens, weight_dtype="bfloat16"):
    """Operations per byte of `tokens` rows by weights of 4096 × 14336, each array once."""
    return roofline.Work.matmul(tokens, 4096, 14336, rhs_dtype=weight_dtype).intensity


visual.roofline(
    [chip],
    {
        "1 token": intensity(1),
        "32 tokens": intensity(32),
        "32 tokens, int8 weights": intensity(32, "int8"),
        "512 tokens": intensity(512),
    },
)

# %% [markdown]
# Play with it. How many tokens does a v6e need before its matrix unit decides? What if the *tokens* were
# int8 as well? (`tpulab roofline --matmul 32 4096 14336 --rhs-dtype int8` is the same calculator in a shell.)

# %%
visual.roofline_calculator(32, 4096, 14336, chips=(chip, "v6e"))

# %% [markdown]
# ## Write
#
# Four kernels. Each of them has a bound of its own, and a plain way to write it that falls far below.
#
# ### 1 · One pass over HBM
#
# A kernel without products has one number: its bytes. Here each row is divided by its largest magnitude,
# which must be known before the first division. Two kernels would read the array twice: three transfers
# instead of two. Do it in one pass. A row of zeros stays zero.
#
# The check may count *register spills*: values that did not fit into the 64 vector registers, put into VMEM
# and fetched again. Large blocks do that. It is in the predicted time already, so judge by the time.


# %% nbgrader={"grade": false, "grade_id": "roofline-stream", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def stream(x: jax.Array) -> jax.Array:
    """x / max(row's largest |x|, 1e-6): bfloat16[rows, cols] -> bfloat16[rows, cols]."""
    # TODO(learner): write the kernel and the call; the last block of rows may stick out
    ### BEGIN SOLUTION
    block_rows = 256

    def kernel(x_ref, out_ref):
        values = x_ref[...].astype(jnp.float32)
        largest = jnp.max(jnp.abs(values), axis=1, keepdims=True)
        out_ref[...] = (values / jnp.maximum(largest, 1e-6)).astype(out_ref.dtype)

    strip = pl.BlockSpec((block_rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block_rows),),
        in_specs=[strip],
        out_specs=strip,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline-stream-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("roofline.stream", stream, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Why not 100 %? No stream reaches the data sheet's bandwidth; about four fifths of it is what kernels reach
# on a v5e. The ladder calls that rung *pipeline*.

# %% [markdown]
# ### 2 · A batch that does not help
#
# Batching helped the tokens above because all of them share the weights. In decode attention every
# sequence brings its *own* keys and values: `out[b] = vectors[b] @ matrices[b]`. Each matrix element is used
# once, so the intensity is 1 operation per byte, whatever the batch. Be a good stream, then: read each
# matrix once, and enough of them in a step.


# %% nbgrader={"grade": false, "grade_id": "roofline-gemv_batched", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def gemv_batched(vectors: jax.Array, matrices: jax.Array) -> jax.Array:
    """out[b] = vectors[b] @ matrices[b].

    bfloat16[batch, k] × bfloat16[batch, k, n] -> float32[batch, n].
    """
    # TODO(learner): write the kernel and the call; the batch is a multiple of 4
    ### BEGIN SOLUTION
    batch, k, n = matrices.shape
    block_batch = 4

    def kernel(vectors_ref, matrices_ref, out_ref):
        for index in range(block_batch):
            out_ref[index] = jnp.dot(
                vectors_ref[index], matrices_ref[index], preferred_element_type=jnp.float32
            )

    # the last two dimensions of a block are tiles: give each vector a dimension of one row
    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((batch, 1, n), jnp.float32),
        grid=(batch // block_batch,),
        in_specs=[
            pl.BlockSpec((block_batch, 1, k), lambda b: (b, 0, 0)),
            pl.BlockSpec((block_batch, k, n), lambda b: (b, 0, 0)),
        ],
        out_specs=pl.BlockSpec((block_batch, 1, n), lambda b: (b, 0, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(vectors.reshape(batch, 1, k), matrices)
    return out.reshape(batch, n)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline-gemv_batched-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("roofline.gemv_batched", gemv_batched, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ### 3 · Half the bytes
#
# Now the product of the question. You cannot beat a bound, but you can move it: `int8` weights with a
# `float32` scale for each column, `(x @ weights) * scale`. The arithmetic stays in `bfloat16`; only what
# crosses HBM is halved. So the cast belongs *inside* the kernel, on a block that has arrived. Outside, XLA
# would write the whole `bfloat16` matrix to HBM and your kernel would read it again.


# %% nbgrader={"grade": false, "grade_id": "roofline-int8_weights", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def int8_weights(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:
    """(x @ weights) * scale.

    bfloat16[m, k] × int8[k, n] × float32[1, n] -> bfloat16[m, n], m small.
    """
    # TODO(learner): write the kernel and the call; k and n are multiples of 128
    ### BEGIN SOLUTION
    (m, k), n = x.shape, weights.shape[1]
    block_n = 512 if n % 512 == 0 else 128

    def kernel(x_ref, weights_ref, scale_ref, out_ref):
        # int8 fits into bfloat16 exactly; the scale belongs to columns, so the sum can wait for it
        block = weights_ref[...].astype(jnp.bfloat16)
        total = jnp.dot(x_ref[...], block, preferred_element_type=jnp.float32)
        out_ref[...] = (total * scale_ref[...]).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(n // block_n,),
        in_specs=[
            pl.BlockSpec((m, k), lambda j: (0, 0)),
            pl.BlockSpec((k, block_n), lambda j: (0, j)),
            pl.BlockSpec((1, block_n), lambda j: (0, j)),
        ],
        out_specs=pl.BlockSpec((m, block_n), lambda j: (0, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, weights, scale)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline-int8_weights-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("roofline.int8_weights", int8_weights, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Compare its predicted time with the 145 µs that no `bfloat16` kernel can beat.

# %% [markdown]
# ### 4 · Each weight once
#
# A prompt of 1024 tokens instead of 32, by weights of 2048 × 8192: far right of the ridge, so the matrix
# unit should decide. Should: the roofline counts every byte *once*, and your blocks may move it more
# often. The form has strips of 128 rows, all of k, and 512 columns. Change blocks and order until the
# traffic no longer decides, and everything still fits.

# %%
visual.tiling_calculator(1024, 2048, 8192, block=(128, 2048, 512), chip=chip)


# %% nbgrader={"grade": false, "grade_id": "roofline-reread", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def reread(x: jax.Array, weights: jax.Array) -> jax.Array:
    """x @ weights: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], each weight read once."""
    # TODO(learner): write the kernel and the call; m ≤ 1024, k ≤ 2048, and n may be ragged
    ### BEGIN SOLUTION
    (m, k), n = x.shape, weights.shape[1]
    block_n = 512

    def kernel(x_ref, weights_ref, out_ref):
        total = jnp.dot(x_ref[...], weights_ref[...], preferred_element_type=jnp.float32)
        out_ref[...] = total.astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(n, block_n),),
        in_specs=[
            pl.BlockSpec((m, k), lambda j: (0, 0)),  # all rows stay while the weights pass by
            pl.BlockSpec((k, block_n), lambda j: (0, j)),
        ],
        out_specs=pl.BlockSpec((m, block_n), lambda j: (0, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, weights)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline-reread-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("roofline.reread", reread, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ## Climb
#
# Every version you checked, how far it came, and what it would take on each chip. Below it, your kernels
# under the roof: to the right by the bytes they *move*, up by what they are predicted to reach.

# %%
grading.climb("roofline")


# %% tags=["nbval-ignore-output"]
def shape(dtype, *sizes):
    """An argument by its shape."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def standing(function, *arguments):
    """Operations per byte moved, and operations per second as predicted."""
    kernel = tpulab.trace(function, *arguments)
    seconds = tpulab.ladder(function, *arguments, chip=chip).rungs[-1].seconds
    return kernel.flops / (kernel.hbm_read_bytes + kernel.hbm_written_bytes), kernel.flops / seconds


bf16, int8 = jnp.bfloat16, jnp.int8
work = {
    "batched GEMV": (gemv_batched, shape(bf16, 128, 1024), shape(bf16, 128, 1024, 512)),
    "int8 weights, 32 tokens": (
        int8_weights,
        shape(bf16, 32, 4096),
        shape(int8, 4096, 14336),
        shape(jnp.float32, 1, 14336),
    ),
    "1024 tokens": (reread, shape(bf16, 1024, 2048), shape(bf16, 2048, 8192)),
}
when_written(
    lambda: visual.roofline([chip], {name: standing(*call) for name, call in work.items()})
)

# %% [markdown]
# ## Break
#
# Two kernels that are right, and slow for a reason that a roofline shows. Their source is folded away and
# `diagnose=False` keeps the verdict to symptoms. Work out how many bytes would explain the time, then say
# what moves them. To reveal: unfold a cell (the **…** in it, or *View › Expand Selected Code*), then take
# `diagnose=False` out and run it once more.
#
# **Patient A** multiplies by int8 weights. Its blocks of weights are 2 MiB, and it casts them in the kernel.


# %% jupyter={"source_hidden": true}
def patient_a(x, weights, scale):
    (m, k), n = x.shape, weights.shape[1]
    block_n = 512 if n % 512 == 0 else 128
    block_m = 8

    def kernel(x_ref, weights_ref, scale_ref, out_ref):
        block = weights_ref[...].astype(jnp.bfloat16)
        total = jnp.dot(x_ref[...], block, preferred_element_type=jnp.float32)
        out_ref[...] = (total * scale_ref[...]).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // block_m, n // block_n),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
            pl.BlockSpec((1, block_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
    )(x, weights, scale)


tpulab.check("roofline.int8_weights", patient_a, chips=[chip], seed=0, record=False, diagnose=False)

# %% [markdown]
# **Patient B** divides rows by their largest magnitude, all in one `pallas_call`.


# %% jupyter={"source_hidden": true}
def patient_b(x):
    block_rows = 256
    blocks = pl.cdiv(x.shape[0], block_rows)

    def kernel(x_ref, out_ref, largest_ref):
        phase, block = pl.program_id(0), pl.program_id(1)
        rows = pl.ds(block * block_rows, block_rows)
        values = x_ref[...].astype(jnp.float32)

        @pl.when(phase == 0)
        def _():
            largest_ref[rows, :] = jnp.max(jnp.abs(values), axis=1, keepdims=True)

        @pl.when(phase == 1)
        def _():
            out_ref[...] = (values / jnp.maximum(largest_ref[rows, :], 1e-6)).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(2, blocks),
        in_specs=[pl.BlockSpec((block_rows, x.shape[1]), lambda phase, i: (i, 0))],
        # nothing is written in phase 0: the first block waits
        out_specs=pl.BlockSpec((block_rows, x.shape[1]), lambda phase, i: (i * phase, 0)),
        scratch_shapes=[pltpu.VMEM((blocks * block_rows, 1), jnp.float32)],
    )(x)


tpulab.check("roofline.stream", patient_b, chips=[chip], seed=0, record=False, diagnose=False)

# %% tags=["nbval-ignore-output"]
display(
    visual.roofline(
        [chip],
        {
            "int8 weights, each byte once": intensity(32, "int8"),
            "patient A": standing(patient_a, *work["int8 weights, 32 tokens"][1:]),
        },
    )
)
show_ladder(
    lambda ladder: visual.ladder_waterfall(ladder, diagnose=False),
    patient_b,
    shape(bf16, 8192, 4096),
    chip=chip,
)

# %% [markdown] nbgrader={"grade": true, "grade_id": "roofline-diagnosis", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# **A** cuts the 32 tokens into strips of 8, outermost in the grid. All weights are fetched for each strip:
# four times 58.7 MB at 819 GB/s are 287 µs. Its point stands at a quarter of the intensity. Take all rows
# in one block, or put the strips innermost so that a block of weights stays for all four.
#
# **B** has one call but two passes: its outer grid axis goes over the array once for the maxima and once
# more to divide. Two reads and a write at 819 GB/s are 246 µs, where 164 µs would do, and the ladder shows
# them at *traffic*. With the grid the other way round, blocks outermost, each block would stay for both
# phases. What counts is when a block index changes, not how many calls there are.

# %% [markdown]
# ## What you said, and what it is

# %%
figures = {name: tpulab.get_chip(name) for name in ("v4", "v5e", "v5p", "v6e")}


def critical(name, weight_dtype="bfloat16"):
    """Tokens from which the matrix unit of a chip decides."""
    return roofline.critical_batch(
        figures[name].peak("bfloat16"), figures[name].hbm_bandwidth(), weight_dtype=weight_dtype
    )


bf16_weights = roofline.Work.matmul(32, 4096, 14336)
int8_weights_work = roofline.Work.matmul(32, 4096, 14336, rhs_dtype="int8")
predictions.compare(
    {
        "ridge of a v5e (FLOP/byte)": figures["v5e"].ridge_point("bfloat16"),
        "least time, bfloat16 weights (µs)": roofline.bound(bf16_weights, "v5e").seconds * 1e6,
        "least time, int8 weights (µs)": roofline.bound(int8_weights_work, "v5e").seconds * 1e6,
        "critical batch, v5e, bfloat16 weights": critical("v5e"),
        "critical batch, v5e, int8 weights": critical("v5e", "int8"),
        "critical batch, v4": critical("v4"),
        "critical batch, v5p": critical("v5p"),
        "critical batch, v6e": critical("v6e"),
    }
)

# %% [markdown]
# The book *How To Scale Your Model* has 240 tokens for a v5e
# ([part 1](https://jax-ml.github.io/scaling-book/roofline/)). The words come from the same calculator; a
# split product sends its partial sums over one link, at 45 GB/s one way.

# %%
keys, heads, head = 8192, 4, 128
pieces = [
    roofline.Work.matmul(4096, 4096, 4096),
    bf16_weights,
    int8_weights_work,
    roofline.Work.matmul(1, 1024, 512, batch=128),
    roofline.Work.of(roofline.attention_flops(keys, keys, 1, head), 4 * keys * head * 2),
    roofline.Work.of(roofline.attention_flops(1, keys, heads, head), 2 * keys * head * 2),
]
bounds = [roofline.bound(piece, "v5e") for piece in pieces]
words = ["memory" if one.limiting == "HBM" else one.limiting for one in bounds]
half = roofline.bound(roofline.Work.matmul(4096, 2048, 4096), "v5e").seconds
exchange = roofline.transfer(4096 * 4096 * 2, roofline.Links.of("v5e", 2), ports=1, hops=1).seconds
words.append("links" if exchange > half else "compute")

for (piece, said), word in zip(decides.items(), words, strict=True):
    print(f"{piece}: " + (f"{word}, you said {said}" if said else "no word yet"))

# %% [markdown]
# ## Talk
#
# In a pair, hand the keyboard over after exercises 2 and 3. The navigator asks; alone, answer in writing
# below.
#
# 1. A v6e has 4.7 times the matrix unit of a v5e and twice its bandwidth. Which of your kernels gains how
#    much, and why?
# 2. Your colleague wants int8 weights for a prompt of 4096 tokens, "because they are twice as fast". What
#    do you say?
# 3. In exercise 2, eight queries share each matrix (grouped-query attention). What happens to the bound?
# 4. When does it pay to *re-read* on purpose?

# %% [markdown] nbgrader={"grade": true, "grade_id": "roofline-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# 1. The three streams gain a factor of two, what the bandwidth gains. The 1024 tokens gain most, up to the
#    4.7 of the matrix unit, as long as the traffic does not decide: the v6e's ridge is at 560, so it takes
#    more reuse to stay to the right of it.
# 2. At 4096 tokens the matrix unit decides with either, and the arithmetic is bfloat16 in both. The cast
#    costs vector work on top. It saves HBM capacity. Time is saved by int8 *tokens* as well: then the
#    matrix unit runs at its int8 rate.
# 3. The bytes stay, the operations grow eightfold: the same time for eight queries, 8 operations per byte,
#    still far left of the ridge.
# 4. When what would have to stay does not fit into VMEM, and the re-read hides behind arithmetic anyway:
#    right of the ridge, traffic is free up to the ridge.

# %% [markdown]
# ## Go on
#
# - Chips have a third roof: their links. The form below is for collectives; find the size from which the
#   bytes decide and not the hops, and what a ring saves over a line. `tpulab collectives` does it in a shell.
# - Do not write exercise 1 for production: XLA fuses a reduction and the division after it by itself. Nor a
#   plain int8-weight product, if XLA fuses the cast in your case: look at the HLO first. Write it
#   when a scale is for groups of k, when weights are int4, or when an epilogue follows.
# - Look up `jax.experimental.roofline`, the *arithmetic intensity* chapters of *How To Scale Your Model*,
#   AWQ and GPTQ for weight-only quantisation, and grouped-query and latent attention, which raise the
#   intensity of decode attention by design.
# - Next: **03 · Grids and blocks**, where you decide how often each byte is fetched.

# %%
visual.collectives_calculator("all-gather", "bf16[2048,8192]", axes="4", wraparound=True, chip=chip)
