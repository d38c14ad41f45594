# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 20 · Flash attention
#
# **The question.** One head of attention over 16 384 tokens, `head_dim` 128, takes a TPU v5e 0.70 ms of
# matrix products. Its scores are a gigabyte in `float32`: to write them to HBM and read them back
# takes 2.6 ms more. The flash attention that ships inside JAX never writes them. In its default blocks of
# 128 × 128 it is predicted to take 7.9 ms all the same: **9 % of the chip**. Where does the time go, and what
# gets you past **60 %**?
#
# | | |
# |---|---|
# | You need | lab 10: blocks, accumulators in scratch, `pl.when`; what a softmax is |
# | You learn | online softmax, causal by diagonal, shared keys, which unit is in the way |
# | Time | 75–90 minutes, alone or in a pair |
# | Target chip | TPU v5e; the last check also asks a v6e |

# %% tags=["parameters"]
chip = "v5e"  # your kernels are compiled and predicted for this one
device = "cpu"  # "tpu" on a machine that has one: checks then measure as well
effort = "full"  # "quick" asks no second chip

# %% tags=["imports"]
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention as jax_flash

import tpulab
from tpulab import grading, visual
from tpulab.classroom import Predictions, show_ladder, when_written

jax.config.update("jax_platforms", device)
chips = [chip] if effort == "quick" else list(dict.fromkeys([chip, "v6e"]))
grading.warm()

# %% [markdown]
# ## Predict
#
# Attention compares every query with every key, and mixes the values by the softmax of these scores:
# softmax(query · keyᵀ / √d) · value. Each score takes part in two products, of d multiply-adds each, and in
# one exponential. Here are the rates, out of the same table that the rest of the lab uses.


# %%
def rates(name):
    """What a chip does in a second."""
    that = tpulab.get_chip(name)
    return (
        f"{name}: {that.peak('bfloat16') / 1e12:.0f} TFLOP/s in bfloat16, "
        f"{that.core.transcendentals_per_second / 1e12:.3f} · 10¹² exponentials, "
        f"{that.hbm_bandwidth() / 1e9:.0f} GB from HBM"
    )


for name in ("v5e", "v6e"):
    print(rates(name))

# %% [markdown]
# Commit to six numbers for the head of the question, 16 384 queries and keys of 128. The last one is about
# a causal mask: with 4096 queries and keys in blocks of 1024 × 1024, which share of the blocks holds a
# score that counts? All can be worked out, so they count within 3 %.

# %% nbgrader={"grade": false, "grade_id": "flash_attention-predict", "locked": false, "schema_version": 3, "solution": true, "task": false}
score_gigabytes = None  # TODO(learner): bytes of all scores in float32, in GB
products_v5e = None  # TODO(learner): ms for both products on a v5e
exponentials_v5e = None  # TODO(learner): ms for all exponentials on a v5e
products_v6e = None  # TODO(learner): the products on a v6e
exponentials_v6e = None  # TODO(learner): the exponentials on a v6e
live_percent = None  # TODO(learner): share of blocks that are live under a causal mask, in %
### BEGIN SOLUTION
scores = 16384**2
score_gigabytes = scores * 4 / 1e9
products_v5e = 4 * scores * 128 / 197e12 * 1e3
exponentials_v5e = scores / 1.536e12 * 1e3
products_v6e = 4 * scores * 128 / 918e12 * 1e3
exponentials_v6e = scores / 1.792e12 * 1e3
live_percent = 100 * (4 + 3 + 2 + 1) / 16
### END SOLUTION

predictions = Predictions(
    {
        "scores (GB)": score_gigabytes,
        "products, v5e (ms)": products_v5e,
        "exponentials, v5e (ms)": exponentials_v5e,
        "products, v6e (ms)": products_v6e,
        "exponentials, v6e (ms)": exponentials_v6e,
        "live blocks (%)": live_percent,
    },
    tolerance=0.03,
)
predictions

# %% [markdown]
# On which of the two chips would you worry about the exponentials?

# %% [markdown]
# ## See
#
# ### A softmax that does not wait for all scores
#
# A softmax needs the maximum and the sum of a whole row. So it seems that a row must be finished before its
# first weight is known. It is not so. For some of the keys, keep three things per query: the maximum *m* of
# their scores, the sum *l* of exp(score − *m*), and *a*, the sum of exp(score − *m*) · value. The result
# is *a* / *l*, and *m* cancels out of it. When more keys arrive:
#
# 1. *m′* = max(*m*, largest new score)
# 2. *r* = exp(*m* − *m′*): every weight counted so far was too large by 1/*r*
# 3. *l′* = *r* · *l* + Σ exp(score − *m′*)
# 4. *a′* = *r* · *a* + Σ exp(score − *m′*) · value
#
# Start with *m* = −∞ and *l* = *a* = 0. Check it: 1000 keys in blocks of 64, against all keys at once.

# %%
rng = np.random.default_rng(0)
all_scores, all_values = 5 * rng.standard_normal(1000), rng.standard_normal(1000)

m, total, a = -np.inf, 0.0, 0.0
for start in range(0, 1000, 64):
    block_scores, block_values = all_scores[start : start + 64], all_values[start : start + 64]
    new = max(m, block_scores.max())
    r = np.exp(m - new)
    total = r * total + np.exp(block_scores - new).sum()
    a = r * a + (np.exp(block_scores - new) * block_values).sum()
    m = new

weights = np.exp(all_scores - all_scores.max())
print("block by block:", a / total)
print("all at once:   ", (weights * all_values).sum() / weights.sum())

# %% [markdown]
# Three numbers and a row of `head_dim` for each query, however many keys there are: that fits into VMEM,
# and no score has to leave it. This is the online softmax ([Milakov and Gimelshein, 2018](
# https://arxiv.org/abs/1805.02867)); FlashAttention streams blocks of keys through it
# ([Dao et al., 2022](https://arxiv.org/abs/2205.14135)).
#
# ### The pipeline of such a kernel
#
# JAX ships one. Its time at the size of the question is predicted from the program that the TPU compiler
# makes of it, in its default blocks and in larger ones.


# %%
def shipped(block_q, block_k, causal=False):
    """The flash attention that ships inside JAX, [heads, tokens, head_dim], with these blocks."""
    sizes = jax_flash.BlockSizes(block_q=block_q, block_k_major=block_k, block_k=block_k, block_b=1)

    def attention(query, key, value):
        scale = 1 / math.sqrt(query.shape[-1])
        one_batch = (item[None] for item in (query, key, value))
        return jax_flash.flash_attention(
            *one_batch, causal=causal, sm_scale=scale, block_sizes=sizes
        )[0]

    return attention


def tokens(heads, length, depth=128, key_heads=None):
    """Shapes of query, key and value in bfloat16."""
    key = jax.ShapeDtypeStruct((key_heads or heads, length, depth), jnp.bfloat16)
    return jax.ShapeDtypeStruct((heads, length, depth), jnp.bfloat16), key, key


def predicted(version, name, heads=1, length=16384):
    """Predicted time, share of the matrix unit's peak, and the busiest unit."""
    tpulab.trace(version, *tokens(heads, length))  # a blank exercise ends here
    climbed = tpulab.ladder(version, *tokens(heads, length), chip=name)
    least = 4 * heads * length**2 * 128 / tpulab.get_chip(name).peak("bfloat16")
    unit, share = climbed.timeline.limiting_unit, climbed.timeline.limiting_share
    names = {"mxu": "matrix unit", "vpu": "vector unit", "xlu": "cross-lane unit", "hbm": "memory"}
    return (
        f"{name}: {climbed.predicted_seconds * 1e3:.2f} ms, "
        f"{least / climbed.predicted_seconds:.0%} of the chip; "
        f"busiest: {names.get(unit, unit)}, {share:.0%} of the time"
    )


# %% tags=["nbval-ignore-output"]
for block in (128, 512):
    print(f"blocks of {block}, {predicted(shipped(block, block), chip)}")

# %% [markdown]
# Here are the first steps in blocks of 512 × 512. Which lanes are full, and what moves from HBM meanwhile?

# %% tags=["nbval-ignore-output"]
show_ladder(visual.pipeline_timeline, shipped(512, 512), *tokens(1, 16384), chip=chip)

# %% [markdown]
# The copies are short: a block of keys serves a whole block of queries. The rest is a contest inside
# the core. The matrix unit multiplies; the vector unit takes maxima, subtracts and adds up; another
# unit makes exponentials. They can work at the same time, if the compiler finds work for each.

# %% [markdown]
# ## Write
#
# ### 1 · Whole rows of scores
#
# One head, and few enough keys to hold them all in VMEM. A one-dimensional grid walks down the queries.
# Each step makes the scores of its block with *all* keys, their softmax, and the product with the values.
#
# The matrix unit takes `bfloat16` and adds in `float32`. Keep scores, maximum and sum in `float32`; the
# weights may become `bfloat16` for the second product. Subtract the maximum: exp(89) is more than
# `float32` holds.
#
# The check may count *register spills*: values that did not fit into the 64 vector registers, put into VMEM
# and fetched again. Large blocks of scores do that. It is in the predicted time already, so judge by the time.


# %% nbgrader={"grade": false, "grade_id": "flash_attention-rows", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def rows(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """softmax(query @ keyᵀ / sqrt(d)) @ value: bfloat16[m, d], 2 × bfloat16[n, d] -> bfloat16[m, d]"""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    (m, depth), n = query.shape, key.shape[0]
    block_q = min(256, m)

    def kernel(query_ref, key_ref, value_ref, out_ref):
        scores = lax.dot_general(
            query_ref[...],
            key_ref[...],
            (((1,), (1,)), ((), ())),  # the last dimension of both: no transpose
            preferred_element_type=jnp.float32,
        )
        scores *= 1 / math.sqrt(depth)
        weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        out = jnp.dot(
            weights.astype(value_ref.dtype), value_ref[...], preferred_element_type=jnp.float32
        )
        out_ref[...] = (out / weights.sum(axis=1, keepdims=True)).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        grid=(pl.cdiv(m, block_q),),
        in_specs=[
            pl.BlockSpec((block_q, depth), lambda i: (i, 0)),
            pl.BlockSpec((n, depth), lambda i: (0, 0)),
            pl.BlockSpec((n, depth), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block_q, depth), lambda i: (i, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(query, key, value)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_attention-rows-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("flash_attention.rows", rows, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Fast enough; but how far does it go? A block of scores grows with the number of keys. How many keys fit
# into 16 MiB beside 256 queries, with scores, exponentials and weights of 4 + 4 + 2 bytes?

# %%
for keys in (1024, 4096, 16384, 65536):
    print(f"{keys:6} keys: {256 * keys * (4 + 4 + 2) / 2**20:5.1f} MiB")

# %% [markdown]
# ### 2 · Blocks of keys: online softmax
#
# Now there are heads, and more keys than fit. The grid is (heads, blocks of queries, blocks of keys), keys
# last. A block `(None, block_q, head_dim)` picks one head and drops its dimension, so that your kernel
# sees matrices. Maximum, sum and accumulator stay in `float32` scratch while the keys go by: the four lines
# from above, a block at a time.
#
# Queries and keys may be ragged. A key beyond the edge is no key with the score 0; what score must it have?
# And mind its value: 0 times NaN is NaN.
#
# The block sizes decide whether you see 8 % or 60 % of the chip. Write it with any, then look at the ladder.


# %% nbgrader={"grade": false, "grade_id": "flash_attention-streaming", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def streaming(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attention by blocks of keys: bfloat16[h, m, d], 2 × bfloat16[h, n, d] -> bfloat16[h, m, d]"""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    (heads, m, depth), n = query.shape, key.shape[1]
    block_q, block_k = min(1024, m), min(1024, n)

    def kernel(query_ref, key_ref, value_ref, out_ref, max_ref, sum_ref, acc_ref):
        j = pl.program_id(2)

        @pl.when(j == 0)
        def _():
            max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        scores = lax.dot_general(
            query_ref[...],
            key_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        scores *= 1 / math.sqrt(depth)
        value_block = value_ref[...]
        if n % block_k:  # decided in Python: whole shapes pay nothing
            column = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(column < n - j * block_k, scores, -jnp.inf)
            row = lax.broadcasted_iota(jnp.int32, value_block.shape, 0)
            value_block = jnp.where(row < n - j * block_k, value_block, jnp.zeros_like(value_block))

        old_max = max_ref[...]
        new_max = jnp.maximum(old_max, scores.max(axis=1, keepdims=True))
        rescale = jnp.exp(old_max - new_max)
        weights = jnp.exp(scores - new_max)
        max_ref[...] = new_max
        sum_ref[...] = rescale * sum_ref[...] + weights.sum(axis=1, keepdims=True)
        acc_ref[...] = rescale * acc_ref[...] + jnp.dot(
            weights.astype(value_block.dtype), value_block, preferred_element_type=jnp.float32
        )

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = (acc_ref[...] / sum_ref[...]).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        grid=(heads, pl.cdiv(m, block_q), pl.cdiv(n, block_k)),
        in_specs=[
            pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((None, block_k, depth), lambda h, i, j: (h, j, 0)),
            pl.BlockSpec((None, block_k, depth), lambda h, i, j: (h, j, 0)),
        ],
        out_specs=pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
        scratch_shapes=[
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, depth), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(query, key, value)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_attention-streaming-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("flash_attention.streaming", streaming, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Draw it like the kernel from JAX, at the size of the question. Compare the lanes when you change
# a block size. The units that reach across lanes take the maximum of a row and spread it over the row
# again: once for 8 rows, whatever the block's width. Wide blocks of keys do that less often.

# %% tags=["nbval-ignore-output"]
show_ladder(visual.pipeline_timeline, streaming, *tokens(1, 16384), chip=chip)

# %% [markdown]
# ### 3 · Causal: half of the work
#
# Token *i* sees the keys up to *i*. Look at what the kernel from JAX moves, 2048 tokens in blocks of 512:
# above the diagonal of (block of queries, block of keys) nothing should be computed, and nothing fetched.
# (The author named only one Ref: `q_tile_ref` is the query, `input1` the keys, `input2` the values,
# `output0` the result. You see the first seven of the 16 steps, and the last.)


# %%
visual.blocks_in_motion(tpulab.trace(shipped(512, 512, causal=True), *tokens(1, 2048)).calls[0])

# %% [markdown]
# A block of keys is *dead* for a block of queries when its first key lies behind the last query. Skip dead
# steps with `pl.when`. They still ask for a block; let the index map repeat the last live one, for what
# does not change is not fetched. A block that the diagonal crosses is live, and needs a mask by element.
# Compare positions and not block indices, so that `block_q` and `block_k` may differ.


# %% nbgrader={"grade": false, "grade_id": "flash_attention-causal", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def causal(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention: query, key, value bfloat16[h, n, d] -> bfloat16[h, n, d]"""
    # TODO(learner): write the kernel and the call
    ### BEGIN SOLUTION
    heads, n, depth = query.shape
    block_q, block_k = min(1024, n), min(1024, n)

    def kernel(query_ref, key_ref, value_ref, out_ref, max_ref, sum_ref, acc_ref):
        i, j = pl.program_id(1), pl.program_id(2)

        @pl.when(j == 0)
        def _():
            max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(j * block_k < (i + 1) * block_q)  # the first key is not behind the last query
        def _():
            scores = lax.dot_general(
                query_ref[...],
                key_ref[...],
                (((1,), (1,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            scores *= 1 / math.sqrt(depth)
            row = lax.broadcasted_iota(jnp.int32, scores.shape, 0) + i * block_q
            column = lax.broadcasted_iota(jnp.int32, scores.shape, 1) + j * block_k
            scores = jnp.where(column <= row, scores, -jnp.inf)
            value_block = value_ref[...]
            if n % block_k:  # the mask hides ragged keys; 0 times NaN is NaN all the same
                row = lax.broadcasted_iota(jnp.int32, value_block.shape, 0)
                inside = row < n - j * block_k
                value_block = jnp.where(inside, value_block, jnp.zeros_like(value_block))

            old_max = max_ref[...]
            new_max = jnp.maximum(old_max, scores.max(axis=1, keepdims=True))
            rescale = jnp.exp(old_max - new_max)
            weights = jnp.exp(scores - new_max)
            max_ref[...] = new_max
            sum_ref[...] = rescale * sum_ref[...] + weights.sum(axis=1, keepdims=True)
            acc_ref[...] = rescale * acc_ref[...] + jnp.dot(
                weights.astype(value_block.dtype), value_block, preferred_element_type=jnp.float32
            )

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = (acc_ref[...] / sum_ref[...]).astype(out_ref.dtype)

    def block_of_keys(h, i, j):
        last_live = ((i + 1) * block_q - 1) // block_k
        return h, jnp.minimum(j, last_live), 0

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        grid=(heads, pl.cdiv(n, block_q), pl.cdiv(n, block_k)),
        in_specs=[
            pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((None, block_k, depth), block_of_keys),
            pl.BlockSpec((None, block_k, depth), block_of_keys),
        ],
        out_specs=pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
        scratch_shapes=[
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, depth), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(query, key, value)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_attention-causal-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("flash_attention.causal", causal, chips=[chip])
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# Does your work follow the live blocks? This compares the matrix operations and the bytes of your two
# kernels for 8 heads of 4096 tokens.


# %%
def compared(full, masked):
    """Matrix operations and HBM reads of both, and the ratio."""
    full, masked = (tpulab.trace(version, *tokens(8, 4096)) for version in (full, masked))
    return (
        f"matrix operations: {full.mxu_flops / 1e9:.1f} and {masked.mxu_flops / 1e9:.1f} GFLOP, "
        f"{masked.mxu_flops / full.mxu_flops:.1%}\n"
        f"read from HBM:     {full.hbm_read_bytes / 1e6:.1f} and {masked.hbm_read_bytes / 1e6:.1f} "
        f"MB, {masked.hbm_read_bytes / full.hbm_read_bytes:.1%}"
    )


print(when_written(lambda: compared(streaming, causal)))

# %% [markdown]
# ### 4 · Groups of heads that share keys
#
# Most models of today have fewer heads of keys than of queries (grouped-query attention, [Ainslie et al.,
# 2023](https://arxiv.org/abs/2305.13245)): with 8 and 2, query heads 0…3 share key head 0. The cache
# of keys and values shrinks by four. `jnp.repeat` before the call would undo that. The index map can do
# better, and the kernel's body need not know.


# %% nbgrader={"grade": false, "grade_id": "flash_attention-grouped", "locked": false, "schema_version": 3, "solution": true, "task": false} tags=["solution"]
def grouped(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention, shared keys: bfloat16[h, n, d], 2 × bfloat16[g, n, d] -> bfloat16[h, n, d]"""
    # TODO(learner): change what has to change in your causal kernel
    ### BEGIN SOLUTION
    heads, n, depth = query.shape
    group = heads // key.shape[0]
    block_q, block_k = min(1024, n), min(1024, n)

    def kernel(query_ref, key_ref, value_ref, out_ref, max_ref, sum_ref, acc_ref):
        i, j = pl.program_id(1), pl.program_id(2)

        @pl.when(j == 0)
        def _():
            max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(j * block_k < (i + 1) * block_q)
        def _():
            scores = lax.dot_general(
                query_ref[...],
                key_ref[...],
                (((1,), (1,)), ((), ())),
                preferred_element_type=jnp.float32,
            )
            scores *= 1 / math.sqrt(depth)
            row = lax.broadcasted_iota(jnp.int32, scores.shape, 0) + i * block_q
            column = lax.broadcasted_iota(jnp.int32, scores.shape, 1) + j * block_k
            scores = jnp.where(column <= row, scores, -jnp.inf)
            value_block = value_ref[...]
            if n % block_k:
                row = lax.broadcasted_iota(jnp.int32, value_block.shape, 0)
                inside = row < n - j * block_k
                value_block = jnp.where(inside, value_block, jnp.zeros_like(value_block))

            old_max = max_ref[...]
            new_max = jnp.maximum(old_max, scores.max(axis=1, keepdims=True))
            rescale = jnp.exp(old_max - new_max)
            weights = jnp.exp(scores - new_max)
            max_ref[...] = new_max
            sum_ref[...] = rescale * sum_ref[...] + weights.sum(axis=1, keepdims=True)
            acc_ref[...] = rescale * acc_ref[...] + jnp.dot(
                weights.astype(value_block.dtype), value_block, preferred_element_type=jnp.float32
            )

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            out_ref[...] = (acc_ref[...] / sum_ref[...]).astype(out_ref.dtype)

    def block_of_keys(h, i, j):
        last_live = ((i + 1) * block_q - 1) // block_k
        return h // group, jnp.minimum(j, last_live), 0  # the only line that is new

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        grid=(heads, pl.cdiv(n, block_q), pl.cdiv(n, block_k)),
        in_specs=[
            pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((None, block_k, depth), block_of_keys),
            pl.BlockSpec((None, block_k, depth), block_of_keys),
        ],
        out_specs=pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
        scratch_shapes=[
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, depth), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(query, key, value)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_attention-grouped-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
verdict = tpulab.check("flash_attention.grouped", grouped, chips=chips)
### BEGIN HIDDEN TESTS
assert verdict.top_rung, str(verdict)
### END HIDDEN TESTS

# %% [markdown]
# ## Climb
#
# Every version you checked, how far it came, and what it would take on each chip. Check a changed
# version and run this cell again.

# %%
grading.climb("flash_attention")

# %% [markdown]
# And beside the kernel that ships inside JAX: causal, 8 heads of 4096 tokens, blocks of 512.


# %% tags=["nbval-ignore-output"]
def beside_jax(mine):
    """Predicted times of both on each chip."""
    tpulab.trace(mine, *tokens(8, 4096))  # a blank exercise ends here
    lines = []
    for name in chips:
        times = [
            tpulab.ladder(version, *tokens(8, 4096), chip=name).predicted_seconds * 1e6
            for version in (mine, shipped(512, 512, causal=True))
        ]
        lines.append(f"{name}: yours {times[0]:.0f} µs, JAX's {times[1]:.0f} µs")
    return "\n".join(lines)


print(when_written(lambda: beside_jax(causal)))

# %% [markdown]
# ## Break
#
# Two kernels that look like yours. Their source is folded away, and `diagnose=False` makes a check tell
# the symptoms only: diagnose from these and write down what you think. To reveal: unfold a cell (the
# **…** in it, or *View › Expand Selected Code*), then take `diagnose=False` out and run it once more.
#
# **Patient A** passed its author's test, in which all keys were equal.


# %% jupyter={"source_hidden": true}
def flawed(query, key, value, statistics, rescales):
    """Both patients; what differs from a healthy kernel is in the last two arguments."""
    (heads, m, depth), n = query.shape, key.shape[1]
    block_q, block_k = min(512, m), min(512, n)

    def kernel(query_ref, key_ref, value_ref, out_ref, max_ref, sum_ref, acc_ref):
        j = pl.program_id(2)

        @pl.when(j == 0)
        def _():
            max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        scores = lax.dot_general(
            query_ref[...],
            key_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        scores *= 1 / math.sqrt(depth)
        values = value_ref[...]
        if n % block_k:
            column = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(column < n - j * block_k, scores, -jnp.inf)
            row = lax.broadcasted_iota(jnp.int32, values.shape, 0)
            values = jnp.where(row < n - j * block_k, values, jnp.zeros_like(values))

        old_max = max_ref[...].astype(jnp.float32)
        new_max = jnp.maximum(old_max, scores.max(axis=1, keepdims=True))
        weights = jnp.exp(scores - new_max)
        rescale = jnp.exp(old_max - new_max) if rescales else 1.0
        product = jnp.dot(weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
        max_ref[...] = new_max.astype(statistics)
        sum_ref[...] = (rescale * sum_ref[...] + weights.sum(axis=1, keepdims=True)).astype(
            statistics
        )
        acc_ref[...] = (rescale * acc_ref[...] + product).astype(statistics)

        @pl.when(j == pl.num_programs(2) - 1)
        def _():
            out = acc_ref[...].astype(jnp.float32) / sum_ref[...].astype(jnp.float32)
            out_ref[...] = out.astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        grid=(heads, pl.cdiv(m, block_q), pl.cdiv(n, block_k)),
        in_specs=[
            pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((None, block_k, depth), lambda h, i, j: (h, j, 0)),
            pl.BlockSpec((None, block_k, depth), lambda h, i, j: (h, j, 0)),
        ],
        out_specs=pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
        scratch_shapes=[pltpu.VMEM((block_q, width), statistics) for width in (1, 1, depth)],
    )(query, key, value)


# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
def patient_a(query, key, value):
    return flawed(query, key, value, jnp.float32, rescales=False)


tpulab.check(
    "flash_attention.streaming", patient_a, chips=[chip], seed=0, record=False, diagnose=False
)

# %% [markdown]
# **Patient B** is right where its author looked, and nearly right elsewhere. Which inputs does it get
# wrong, and what do they have in common?


# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
def patient_b(query, key, value):
    return flawed(query, key, value, jnp.bfloat16, rescales=True)


tpulab.check(
    "flash_attention.streaming", patient_b, chips=[chip], seed=0, record=False, diagnose=False
)

# %% [markdown] nbgrader={"grade": true, "grade_id": "flash_attention-diagnosis", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# **A** forgets the rescale. With equal keys the first block's maximum is the maximum, *r* is 1, and nothing
# is missing. On anything else, what was added under a smaller maximum weighs too much.
#
# **B** keeps maximum, sum and accumulator in `bfloat16`. A maximum of 100 is stored to the nearest half: the
# next step rescales by e to an error of up to a quarter. Where scores are large, or the blocks of keys many, it
# shows; with a few equal keys every sum is exact.

# %% [markdown]
# ## What you said, and what it is
#
# The counts come out of the kernel that ships inside JAX, traced at the size of the question; the share of
# live blocks out of how many matrix operations its causal version saves. If that one surprises you, draw the
# four by four blocks: those that the diagonal crosses are live as a whole.


# %%
traced = tpulab.trace(shipped(1024, 1024), *tokens(1, 16384))
kernel_exponentials = 16384**2
full, live = (
    tpulab.trace(shipped(1024, 1024, causal=masked), *tokens(1, 4096)).mxu_flops
    for masked in (False, True)
)


def milliseconds(name):
    """(products, exponentials) of the question's head."""
    that = tpulab.get_chip(name)
    return (
        traced.mxu_flops / that.peak("bfloat16") * 1e3,
        kernel_exponentials / that.core.transcendentals_per_second * 1e3,
    )


predictions.compare(
    {
        "scores (GB)": kernel_exponentials * 4 / 1e9,
        "products, v5e (ms)": milliseconds("v5e")[0],
        "exponentials, v5e (ms)": milliseconds("v5e")[1],
        "products, v6e (ms)": milliseconds("v6e")[0],
        "exponentials, v6e (ms)": milliseconds("v6e")[1],
        "live blocks (%)": 100 * live / full,
    }
)

# %% [markdown]
# On a v5e the products take four times as long as the exponentials: the matrix unit can decide. On a v6e
# they take the same time, and the maxima, differences and sums of the vector unit come on top. Which unit is
# the busiest in your streaming kernel on each? (A busy *store* is the block of scores itself: it does not fit
# into the registers, and waits in VMEM between one step of the softmax and the next.)

# %% tags=["nbval-ignore-output"]
print(when_written(lambda: "\n".join(predicted(streaming, name) for name in chips)))

# %% [markdown]
# ## Talk
#
# In a pair, hand the keyboard over after exercises 1 and 2. The navigator asks; alone, answer in
# writing below.
#
# 1. The accumulator is divided by the sum once, at the end. What would it cost to keep it normalised?
# 2. Blocks of 128 × 128 read the keys and values 128 times, a gigabyte in 7.9 ms: a sixth of the bandwidth.
#    Why are they slow all the same?
# 3. A causal kernel does half of the work. Why not in half of the time?
# 4. A reviewer asks what happens to a query that sees no key at all. What does your kernel return?

# %% [markdown] nbgrader={"grade": true, "grade_id": "flash_attention-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# 1. A division of the whole accumulator for every block of keys, and a multiplication by the old sum to
#    undo the one before: more work on the vector unit, which is the one in the way on a v6e.
# 2. Every step reduces rows to a maximum and a sum, spreads both over the row again and rescales the
#    accumulator. With 128 keys that is paid for 128 scores a row, with 1024 for eight times as many.
# 3. Blocks that the diagonal crosses are computed whole: 10 of 16 live blocks where half would be 8. Each
#    has a mask to make and apply. And dead steps are steps: the grid walks over them.
# 4. Its maximum stays −∞, and −∞ − (−∞) is NaN. In causal attention every query sees itself. With padding
#    or windows it happens: use a large negative number in place of −∞, and give such a row a defined result.

# %% [markdown]
# ## Go on
#
# - **When not to write this.** `jax.nn.dot_product_attention` lets XLA fuse the softmax. While the scores of
#   your shapes are small beside keys and values, as in short sequences, that is enough: measure first.
# - Look up `splash_attention` in `jax.experimental.pallas.ops.tpu`: masks as data, dead blocks not even
#   in the grid, a kernel for each kind of mask, and the backward pass.
# - One query at a time, as in decoding, is another problem: bytes of the cache decide, and it lies in
#   pages. Look up `paged_attention` and `ragged_paged_attention`.
# - Keep maximum and sum 128 lanes wide and repeat them with `jnp.tile`; take powers of two in place of
#   exponentials, with log₂(e) in the scale. Which blocks do you need then for the same rung?
# - Next: **30 · Remote DMA**, where a kernel writes into the memory of another chip.
