"""Splash attention with one key/value head and a sliding window of 1024 keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

HEADS, SEQUENCE, HEAD = 8, 4096, 128
WINDOW = 1024
BLOCK = 512


def splash_attention_mqa(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """q[8, 4096, 128] over one shared k, v[4096, 128]; the grid shrinks to the window."""
    local = splash.LocalMask((SEQUENCE, SEQUENCE), window_size=(WINDOW - 1, 0), offset=0)
    mask = splash.splash_attention_mask.MultiHeadMask([local for _ in range(HEADS)])
    sizes = splash.BlockSizes(block_q=BLOCK, block_kv=BLOCK, block_kv_compute=BLOCK)
    kernel = splash.make_splash_mqa_single_device(mask, block_sizes=sizes)
    return kernel(q, k, v)


def make_args() -> tuple[jax.ShapeDtypeStruct, ...]:
    """q as bf16[8, 4096, 128], k and v as bf16[4096, 128]."""
    q = jax.ShapeDtypeStruct((HEADS, SEQUENCE, HEAD), jnp.bfloat16)
    kv = jax.ShapeDtypeStruct((SEQUENCE, HEAD), jnp.bfloat16)
    return q, kv, kv
