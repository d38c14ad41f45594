"""jax.experimental.pallas.ops.tpu.flash_attention, forward, causal and with its gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as flash

BATCH, HEADS, SEQUENCE, HEAD = 4, 8, 2048, 128
BLOCK = 512
SCALE = HEAD**-0.5
BLOCK_SIZES = flash.BlockSizes(
    block_b=1,
    block_q=BLOCK,
    block_k_major=BLOCK,
    block_k=BLOCK,
    block_q_major_dkv=BLOCK,
    block_k_major_dkv=BLOCK,
    block_q_dkv=BLOCK,
    block_k_dkv=BLOCK,
    block_q_dq=BLOCK,
    block_k_major_dq=BLOCK,
    block_k_dq=BLOCK,
)


def flash_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Every query sees every key."""
    return flash.flash_attention(q, k, v, sm_scale=SCALE, block_sizes=BLOCK_SIZES)


def flash_attention_causal(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Blocks above the diagonal are skipped by a branch on the grid position."""
    return flash.flash_attention(q, k, v, causal=True, sm_scale=SCALE, block_sizes=BLOCK_SIZES)


def flash_attention_default_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """What a first call gets: `BlockSizes.get_default`, 128 everywhere, 8192 grid steps."""
    return flash.flash_attention(q, k, v, sm_scale=SCALE)


def flash_attention_backward(
    q: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Forward with residuals, then the dkv and dq kernels, as a training step calls them."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return flash_attention_causal(q, k, v).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def make_args() -> tuple[jax.ShapeDtypeStruct, ...]:
    """q, k and v as bf16[4, 8, 2048, 128]."""
    heads = jax.ShapeDtypeStruct((BATCH, HEADS, SEQUENCE, HEAD), jnp.bfloat16)
    return heads, heads, heads
