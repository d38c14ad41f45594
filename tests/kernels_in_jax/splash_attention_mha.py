"""jax.experimental.pallas.ops.tpu.splash_attention: many heads, causal mask, batch by vmap.

The mask becomes scalar-prefetch tables (which block next, is it empty, full or partial) that are
constants of the function, so the arguments are shapes only.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash

BATCH, HEADS, SEQUENCE, HEAD = 2, 8, 4096, 128
BLOCK = 512


def _kernel(backward: bool) -> splash.splash_attention_kernel.SplashAttentionKernel:
    blocks = {"block_q": BLOCK, "block_kv": BLOCK, "block_kv_compute": BLOCK}
    if backward:
        blocks |= {"block_q_dkv": BLOCK, "block_kv_dkv": BLOCK, "block_kv_dkv_compute": BLOCK}
        blocks |= {"block_q_dq": BLOCK, "block_kv_dq": BLOCK}
    mask = splash.splash_attention_mask.MultiHeadMask(
        [splash.CausalMask((SEQUENCE, SEQUENCE)) for _ in range(HEADS)]
    )
    return splash.make_splash_mha_single_device(mask, block_sizes=splash.BlockSizes(**blocks))


def splash_attention_mha(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention; empty blocks are neither fetched nor computed."""
    return jax.vmap(_kernel(backward=False))(q, k, v)


def splash_attention_mha_backward(
    q: jax.Array, k: jax.Array, v: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The same with its gradient: forward, dq and dkv kernels."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.vmap(_kernel(backward=True))(q, k, v).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def make_args() -> tuple[jax.ShapeDtypeStruct, ...]:
    """q, k and v as bf16[2, 8, 4096, 128]."""
    heads = jax.ShapeDtypeStruct((BATCH, HEADS, SEQUENCE, HEAD), jnp.bfloat16)
    return heads, heads, heads
