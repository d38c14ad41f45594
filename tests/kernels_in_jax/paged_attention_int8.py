"""Paged attention over an int8 cache with a float32 scale per token, 64 query heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as jax_paged_attention
from jax.experimental.pallas.ops.tpu.paged_attention import quantization_utils

BATCH, QUERY_HEADS, KV_HEADS, HEAD = 4, 64, 8, 128
PAGE, CONTEXT = 64, 8192
PAGES_PER_SEQUENCE = CONTEXT // PAGE
PAGES_PER_BLOCK = 8
LENGTHS = (8192, 1000, 4097, 6144)


def page_table() -> np.ndarray:
    """A shuffled i32[batch, pages per sequence]."""
    pages = np.random.default_rng(0).permutation(BATCH * PAGES_PER_SEQUENCE)
    return pages.reshape(BATCH, PAGES_PER_SEQUENCE).astype(np.int32)


def paged_attention_int8(
    q: jax.Array,
    k_pages: jax.Array,
    k_scales: jax.Array,
    v_pages: jax.Array,
    v_scales: jax.Array,
    lengths: jax.Array,
    pages: jax.Array,
) -> jax.Array:
    """The wrapper broadcasts the scales to the head size, so XLA works before the kernel does."""
    return jax_paged_attention(
        q,
        quantization_utils.QuantizedTensor(k_pages, k_scales),
        quantization_utils.QuantizedTensor(v_pages, v_scales),
        lengths,
        pages,
        pages_per_compute_block=PAGES_PER_BLOCK,
    )


def make_args() -> tuple[Any, ...]:
    """q, k pages, k scales, v pages, v scales as shapes; lengths and page table as values."""
    q = jax.ShapeDtypeStruct((BATCH, QUERY_HEADS, HEAD), jnp.bfloat16)
    cache = (KV_HEADS, BATCH * PAGES_PER_SEQUENCE, PAGE)
    weight = jax.ShapeDtypeStruct((*cache, HEAD), jnp.int8)
    scale = jax.ShapeDtypeStruct((*cache, 1), jnp.float32)
    return q, weight, scale, weight, scale, np.asarray(LENGTHS, np.int32), page_table()
