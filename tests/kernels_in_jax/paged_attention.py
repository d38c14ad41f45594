"""jax.experimental.pallas.ops.tpu.paged_attention: decoding over a paged cache of 8k contexts.

Lengths and page table are concrete: they are prefetched scalars that decide which pages the
kernel copies, by its own double-buffered DMA.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as jax_paged_attention

# 32 query heads over 8 key/value heads of 128, as in an 8-billion-parameter model
BATCH, QUERY_HEADS, KV_HEADS, HEAD = 8, 32, 8, 128
PAGE, CONTEXT = 64, 8192
PAGES_PER_SEQUENCE = CONTEXT // PAGE
PAGES_PER_BLOCK = 8
# one full context, one that ends inside a page, one of a single token, one on a block's edge
LENGTHS = (8192, 8191, 4096, 5000, 1, 512, 7777, 2048)


def page_table() -> np.ndarray:
    """A shuffled i32[batch, pages per sequence]: neighbours in a sequence lie apart in HBM."""
    pages = np.random.default_rng(0).permutation(BATCH * PAGES_PER_SEQUENCE)
    return pages.reshape(BATCH, PAGES_PER_SEQUENCE).astype(np.int32)


def paged_attention(
    q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, lengths: jax.Array, pages: jax.Array
) -> jax.Array:
    """One grid step per sequence and head; a data-dependent loop over its blocks of pages."""
    return jax_paged_attention(
        q, k_pages, v_pages, lengths, pages, pages_per_compute_block=PAGES_PER_BLOCK
    )


def paged_attention_grid(
    q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, lengths: jax.Array, pages: jax.Array
) -> jax.Array:
    """The same with the blocks of pages as a fourth grid axis, skipped past the end."""
    return jax_paged_attention(
        q,
        k_pages,
        v_pages,
        lengths,
        pages,
        pages_per_compute_block=PAGES_PER_BLOCK,
        inline_seq_dim=False,
    )


def make_args() -> tuple[Any, ...]:
    """q, k pages, v pages as shapes; lengths and page table as values."""
    q = jax.ShapeDtypeStruct((BATCH, QUERY_HEADS, HEAD), jnp.bfloat16)
    cache = (KV_HEADS, BATCH * PAGES_PER_SEQUENCE, PAGE, HEAD)
    kv = jax.ShapeDtypeStruct(cache, jnp.bfloat16)
    return q, kv, kv, np.asarray(LENGTHS, np.int32), page_table()
