"""Wrong answers to the exercises of lab 20; each function's first line says what is wrong."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def _scores(query: jax.Array, key: jax.Array, dtype=jnp.float32) -> jax.Array:  # type: ignore[no-untyped-def]
    return jax.lax.dot_general(query, key, (((1,), (1,)), ((), ())), preferred_element_type=dtype)


def _dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return jnp.dot(lhs.astype(rhs.dtype), rhs, preferred_element_type=jnp.float32)


def _rows(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    *,
    block_q: int = 128,
    scale_power: float = 0.5,
    weigh=lambda scores: jnp.exp(scores - scores.max(axis=1, keepdims=True)),
    axis: int = 1,
    divide: bool = True,
    floor: bool = False,
    scores_dtype=jnp.float32,
):
    """Whole rows of scores; what differs from the plain answer is what is wrong."""
    (m, depth), n = query.shape, key.shape[0]
    block_q = min(block_q, m)

    def kernel(query_ref, key_ref, value_ref, out_ref):  # type: ignore[no-untyped-def]
        weights = weigh(_scores(query_ref[...], key_ref[...], scores_dtype) * depth**-scale_power)
        total = weights.sum(axis=axis, keepdims=True)
        if axis == 0:
            weights, total = weights / total, 1
        out = _dot(weights, value_ref[...])
        out_ref[...] = (out / total if divide else out).astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        grid=(m // block_q if floor else pl.cdiv(m, block_q),),
        in_specs=[
            pl.BlockSpec((block_q, depth), lambda i: (i, 0)),
            pl.BlockSpec((n, depth), lambda i: (0, 0)),
            pl.BlockSpec((n, depth), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block_q, depth), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
    )(query, key, value)


def rows_not_shifted(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The exponential of the scores as they are."""
    return _rows(query, key, value, weigh=jnp.exp)


def rows_not_scaled(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """No factor 1/sqrt(head_dim)."""
    return _rows(query, key, value, scale_power=0.0)


def rows_scaled_twice(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The factor 1/head_dim."""
    return _rows(query, key, value, scale_power=1.0)


def rows_over_queries(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Maximum and sum over axis 0."""
    return _rows(
        query,
        key,
        value,
        weigh=lambda scores: jnp.exp(scores - scores.max(axis=0, keepdims=True)),
        axis=0,
    )


def rows_not_divided(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Weights that do not add up to 1."""
    return _rows(query, key, value, divide=False)


def rows_in_bfloat16(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The first product has no preferred_element_type: its scores are bfloat16."""
    return _rows(query, key, value, scores_dtype=jnp.bfloat16)


def rows_scores_outside(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """XLA makes the scores and writes them to HBM; the kernel reads them back."""
    (m, depth), n = query.shape, key.shape[0]
    scores = _scores(query, key) / math.sqrt(depth)

    def kernel(scores_ref, value_ref, out_ref):  # type: ignore[no-untyped-def]
        weights = jnp.exp(scores_ref[...] - scores_ref[...].max(axis=1, keepdims=True))
        out = _dot(weights, value_ref[...]) / weights.sum(axis=1, keepdims=True)
        out_ref[...] = out.astype(out_ref.dtype)

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(m, 128),),
        in_specs=[
            pl.BlockSpec((128, n), lambda i: (i, 0)),
            pl.BlockSpec((n, depth), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((128, depth), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
    )(scores, value)


def rows_floor(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The grid is rounded down."""
    return _rows(query, key, value, floor=True)


def rows_one_block(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Scores of 1024 × 4096 at once: 16 MiB before anything else is kept."""
    return _rows(query, key, value, block_q=1024)


def _flash(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    *,
    block_q: int = 512,
    block_k: int = 512,
    causal: bool = False,
    shift: bool = True,
    start: float = -math.inf,
    rescale_sum: bool = True,
    rescale_acc: bool = True,
    local_maximum: bool = False,
    clear=lambda h, i, j: j == 0,
    mask_keys: bool = True,
    mask_values: bool = True,
    fill: float = -math.inf,
    keep=lambda row, column: column <= row,
    offset: bool = True,
    live=lambda i, j, block_q, block_k: j * block_k < (i + 1) * block_q,
    last=lambda i, block_q, block_k: ((i + 1) * block_q - 1) // block_k,
    head=lambda h, group, key_heads: h // group,
    dtype=jnp.float32,
    semantics=("arbitrary", "arbitrary", "arbitrary"),
):
    """Online softmax, causal or not; what differs from the plain answer is what is wrong."""
    (heads, m, depth), (key_heads, n, _) = query.shape, key.shape
    block_q, block_k = min(block_q, m), min(block_k, n)
    group = heads // key_heads

    def update(query_ref, key_ref, value_ref, max_ref, sum_ref, acc_ref):  # type: ignore[no-untyped-def]
        i, j = pl.program_id(1), pl.program_id(2)
        scores = _scores(query_ref[...], key_ref[...]) * depth**-0.5
        column = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        row = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        if n % block_k and mask_keys and not causal:
            scores = jnp.where(column + j * block_k < n, scores, fill)
        if causal and keep is not None:
            if offset:
                row, column = row + i * block_q, column + j * block_k
            scores = jnp.where(keep(row, column), scores, fill)
        values = value_ref[...]
        if n % block_k and mask_values:
            inside = jax.lax.broadcasted_iota(jnp.int32, values.shape, 0) < n - j * block_k
            values = jnp.where(inside, values, jnp.zeros_like(values))
        old, top = max_ref[...].astype(jnp.float32), scores.max(axis=1, keepdims=True)
        new = top if local_maximum else jnp.maximum(old, top)
        if not shift:
            new = jnp.zeros_like(new)
        weights, factor = jnp.exp(scores - new), jnp.exp(old - new)
        if not shift:
            factor = jnp.ones_like(factor)
        total, acc = sum_ref[...].astype(jnp.float32), acc_ref[...].astype(jnp.float32)
        total = (total * factor if rescale_sum else total) + weights.sum(axis=1, keepdims=True)
        acc = (acc * factor if rescale_acc else acc) + _dot(weights, values)
        max_ref[...], sum_ref[...] = new.astype(dtype), total.astype(dtype)
        acc_ref[...] = acc.astype(dtype)

    def kernel(query_ref, key_ref, value_ref, out_ref, max_ref, sum_ref, acc_ref):  # type: ignore[no-untyped-def]
        h, i, j = (pl.program_id(axis) for axis in range(3))
        if clear is not None:

            @pl.when(clear(h, i, j))
            def _clear() -> None:
                max_ref[...] = jnp.full_like(max_ref, start)
                sum_ref[...] = jnp.zeros_like(sum_ref)
                acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(live(i, j, block_q, block_k) if causal else j >= 0)
        def _update() -> None:
            update(query_ref, key_ref, value_ref, max_ref, sum_ref, acc_ref)

        @pl.when(j == pl.num_programs(2) - 1)
        def _store() -> None:
            total = sum_ref[...].astype(jnp.float32)
            out_ref[...] = (acc_ref[...].astype(jnp.float32) / total).astype(out_ref.dtype)

    def place(h, i, j):  # type: ignore[no-untyped-def]
        if causal and last is not None:
            j = jnp.minimum(j, last(i, block_q, block_k))
        return head(h, group, key_heads), j, 0

    return pl.pallas_call(
        kernel,
        grid=(heads, pl.cdiv(m, block_q), pl.cdiv(n, block_k)),
        in_specs=[
            pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
            pl.BlockSpec((None, block_k, depth), place),
            pl.BlockSpec((None, block_k, depth), place),
        ],
        out_specs=pl.BlockSpec((None, block_q, depth), lambda h, i, j: (h, i, 0)),
        out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
        scratch_shapes=[pltpu.VMEM((block_q, width), dtype) for width in (1, 1, depth)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=semantics),
    )(query, key, value)


def streaming_no_rescale(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Neither sum nor accumulator follows the maximum."""
    return _flash(query, key, value, rescale_sum=False, rescale_acc=False)


def streaming_sum_only(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The sum follows the maximum, the accumulator does not."""
    return _flash(query, key, value, rescale_acc=False)


def streaming_local_maximum(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Each block of keys is shifted by its own maximum."""
    return _flash(query, key, value, local_maximum=True, rescale_sum=False, rescale_acc=False)


def streaming_not_shifted(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The exponential of the scores as they are."""
    return _flash(query, key, value, shift=False)


def streaming_from_zero(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The running maximum starts at 0."""
    return _flash(query, key, value, start=0.0)


def streaming_in_bfloat16(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Maximum, sum and accumulator in bfloat16 scratch."""
    return _flash(query, key, value, dtype=jnp.bfloat16)


def streaming_uncleared(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Nobody clears the scratch."""
    return _flash(query, key, value, clear=None)


def streaming_cleared_once(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The scratch is cleared for the first block of queries only."""
    return _flash(query, key, value, clear=lambda h, i, j: (h == 0) & (i == 0) & (j == 0))


def streaming_reads_padding(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Ragged keys and values are not masked."""
    return _flash(query, key, value, mask_keys=False, mask_values=False)


def streaming_padding_is_zero(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Keys beyond the edge have the score 0."""
    return _flash(query, key, value, fill=0.0)


def streaming_keys_parallel(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The axis that carries the sums is marked parallel."""
    return _flash(query, key, value, semantics=("parallel", "parallel", "parallel"))


def streaming_small_blocks(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Right, in blocks of 128."""
    return _flash(query, key, value, block_q=128, block_k=128)


def causal_block_index(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Block j is live up to block i, though blocks of keys are half as long."""
    return _flash(
        query,
        key,
        value,
        causal=True,
        block_k=256,
        live=lambda i, j, block_q, block_k: j <= i,
    )


def causal_mask_is_zero(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Scores above the diagonal are 0, in all blocks."""
    return _flash(query, key, value, causal=True, fill=0.0, live=lambda i, j, *_: j >= 0, last=None)


def causal_strict(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """A query does not see its own key; the first one sees none."""
    return _flash(query, key, value, causal=True, keep=lambda row, column: column < row)


def causal_no_offset(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The mask compares positions inside the blocks."""
    return _flash(query, key, value, causal=True, offset=False)


def causal_unmasked_diagonal(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Blocks are skipped, elements are not masked."""
    return _flash(query, key, value, causal=True, keep=None)


def causal_wrong_clamp(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The index map stops at block i, though blocks of keys are half as long."""
    return _flash(query, key, value, causal=True, block_k=256, last=lambda i, block_q, block_k: i)


def causal_reads_padding(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The diagonal hides ragged keys, and nothing their values."""
    return _flash(query, key, value, causal=True, mask_values=False)


def causal_dead_blocks(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Right, and every block above the diagonal is computed for nothing."""
    return _flash(query, key, value, causal=True, live=lambda i, j, *_: j >= 0, last=None)


def grouped_repeats(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Keys and values are written out once for every query head."""
    group = query.shape[0] // key.shape[0]
    key, value = (jnp.repeat(item, group, axis=0) for item in (key, value))
    return _flash(query, key, value, causal=True)


def grouped_modulo(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Query heads are dealt out to key heads like cards."""
    return _flash(query, key, value, causal=True, head=lambda h, group, key_heads: h % key_heads)


def grouped_first_head(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Every query head uses key head 0."""
    return _flash(query, key, value, causal=True, head=lambda h, group, key_heads: 0)


def grouped_no_division(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Query head h asks for key head h, which there is not."""
    return _flash(query, key, value, causal=True, head=lambda h, group, key_heads: h)


def grouped_small_blocks(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Right, in blocks of 128."""
    return _flash(query, key, value, causal=True, block_q=128, block_k=128)
