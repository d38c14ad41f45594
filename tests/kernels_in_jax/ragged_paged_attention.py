"""jax.experimental.pallas.ops.tpu.ragged_paged_attention: prefill and decoding in one batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import ragged_paged_attention as ragged

# one chip's share of 32 query and 8 key/value heads over four chips
QUERY_HEADS, KV_HEADS, HEAD = 8, 2, 128
TOKENS, SEQUENCES = 1024, 16
PAGE, CONTEXT = 64, 8192
PAGES_PER_SEQUENCE = CONTEXT // PAGE
PAGES_PER_BLOCK, QUERIES_PER_BLOCK = 8, 32
# two prompts being read in (one whole, one in its second chunk), then single-token decoding
QUERY_LENGTHS = (500, 300, 1, 1, 1, 1, 1, 1)
KV_LENGTHS = (500, 1300, 8192, 4000, 1, 2048, 777, 6001)


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lengths: jax.Array,
    pages: jax.Array,
    query_offsets: jax.Array,
    sequences: jax.Array,
) -> jax.Array:
    """While loops over sequences and key blocks whose bounds are prefetched scalars."""
    return ragged.ragged_paged_attention(
        q,
        kv_pages,
        kv_lengths,
        pages,
        query_offsets,
        sequences,
        sm_scale=HEAD**-0.5,
        num_kv_pages_per_block=PAGES_PER_BLOCK,
        num_queries_per_block=QUERIES_PER_BLOCK,
    )


def ragged_paged_attention_tuned(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lengths: jax.Array,
    pages: jax.Array,
    query_offsets: jax.Array,
    sequences: jax.Array,
) -> jax.Array:
    """Without block sizes the wrapper looks its own table up by the device that is attached."""
    return ragged.ragged_paged_attention(
        q, kv_pages, kv_lengths, pages, query_offsets, sequences, sm_scale=HEAD**-0.5
    )


def make_args() -> tuple[Any, ...]:
    """q and the combined k/v pages as shapes; lengths, page table, offsets, count as values."""
    q = jax.ShapeDtypeStruct((TOKENS, QUERY_HEADS, HEAD), jnp.bfloat16)
    total_pages = SEQUENCES * PAGES_PER_SEQUENCE
    kv = jax.ShapeDtypeStruct((total_pages, PAGE, 2 * KV_HEADS, HEAD), jnp.bfloat16)
    used = len(KV_LENGTHS)
    kv_lengths = np.zeros(SEQUENCES, np.int32)
    kv_lengths[:used] = KV_LENGTHS
    offsets = np.full(SEQUENCES + 1, sum(QUERY_LENGTHS), np.int32)
    offsets[: used + 1] = np.cumsum((0, *QUERY_LENGTHS))
    pages = np.random.default_rng(0).permutation(total_pages).astype(np.int32)
    table = pages.reshape(SEQUENCES, PAGES_PER_SEQUENCE)
    return q, kv, kv_lengths, table, offsets, np.asarray([used], np.int32)
