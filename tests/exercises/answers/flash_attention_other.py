"""Right answers written another way: statistics 128 lanes wide, base 2, unequal blocks, padding."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)
LAST_DIMENSIONS = (((1,), (1,)), ((), ()))


@jax.jit
def rows(query, key, value):
    n, depth = key.shape

    def kernel(query_ref, key_ref, value_ref, out_ref):
        scores = lax.dot_general(
            query_ref[...], key_ref[...], LAST_DIMENSIONS, preferred_element_type=jnp.float32
        )
        weights = jax.nn.softmax(scores * depth**-0.5, axis=-1)
        out_ref[...] = lax.dot(
            weights.astype(jnp.bfloat16), value_ref[...], preferred_element_type=jnp.float32
        ).astype(jnp.bfloat16)

    moving = pl.BlockSpec((128, depth), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=((query.shape[0] + 127) // 128,),
        in_specs=[moving, *2 * [pl.BlockSpec(memory_space=pltpu.VMEM)]],
        out_specs=moving,
        out_shape=jax.ShapeDtypeStruct(query.shape, jnp.bfloat16),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(query, key, value)


def _lanes(column, width):
    """Statistics that fill 128 lanes, for a block of another width."""
    if width < LANES:
        return column[:, :width]
    return jnp.tile(column, (1, width // LANES))


def _kernel(query_ref, key_ref, value_ref, out_ref, max_ref, sum_ref, acc_ref, *, keys, causal):
    block_q, depth = acc_ref.shape
    block_k = key_ref.shape[-2]
    i, j = pl.program_id(1), pl.program_id(2)
    first_row, first_key = i * block_q, j * block_k

    @pl.when(j == 0)
    def _clear():
        max_ref[...] = jnp.full(max_ref.shape, MASKED, jnp.float32)
        sum_ref[...] = jnp.zeros(sum_ref.shape, jnp.float32)
        acc_ref[...] = jnp.zeros(acc_ref.shape, jnp.float32)

    @pl.when(first_row + block_q > first_key if causal else j >= 0)
    def _add():
        scores = lax.dot_general(
            query_ref[0], key_ref[0], LAST_DIMENSIONS, preferred_element_type=jnp.float32
        )
        scores *= math.log2(math.e) / math.sqrt(depth)
        if causal:
            row = lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            column = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(row - column >= first_key - first_row, scores, MASKED)
        elif keys % block_k:
            column = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(column < keys - first_key, scores, MASKED)
        values = value_ref[0]
        if keys % block_k:
            row = lax.broadcasted_iota(jnp.int32, values.shape, 0)
            values = jnp.where(row < keys - first_key, values, 0).astype(values.dtype)
        before = max_ref[...]
        top = jnp.maximum(before, jnp.max(scores, axis=1)[:, None])
        weights = jnp.exp2(scores - _lanes(top, block_k))
        rescale = jnp.exp2(before - top)
        sum_ref[...] = rescale * sum_ref[...] + jnp.sum(weights, axis=1)[:, None]
        max_ref[...] = top
        acc_ref[...] = acc_ref[...] * _lanes(rescale, depth) + lax.dot(
            weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )

    @pl.when(j == pl.num_programs(2) - 1)
    def _store():
        out_ref[0] = (acc_ref[...] / _lanes(sum_ref[...], depth)).astype(out_ref.dtype)


@functools.partial(jax.jit, static_argnames=("causal", "block_q", "block_k"))
def _flash(query, key, value, *, causal, block_q, block_k):
    heads, queries, depth = query.shape
    key_heads, keys, _ = key.shape
    beyond = -queries % block_q
    padded = jnp.pad(query, ((0, 0), (0, beyond), (0, 0)))

    def place_of_keys(h, i, j):
        last = lax.div((i + 1) * block_q - 1, block_k) if causal else j
        return h * key_heads // heads, lax.min(j, last), 0

    moving = pl.BlockSpec((1, block_q, depth), lambda h, i, j: (h, i, 0))
    out = pl.pallas_call(
        functools.partial(_kernel, keys=keys, causal=causal),
        grid=(heads, padded.shape[1] // block_q, pl.cdiv(keys, block_k)),
        in_specs=[moving, *2 * [pl.BlockSpec((1, block_k, depth), place_of_keys)]],
        out_specs=moving,
        out_shape=jax.ShapeDtypeStruct(padded.shape, query.dtype),
        scratch_shapes=[
            *2 * [pltpu.VMEM((block_q, LANES), jnp.float32)],
            pltpu.VMEM((block_q, depth), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(padded, key, value)
    return out[:, :queries]


streaming = functools.partial(_flash, causal=False, block_q=512, block_k=512)
causal = functools.partial(_flash, causal=True, block_q=1024, block_k=512)
grouped = functools.partial(_flash, causal=True, block_q=1024, block_k=1024)
