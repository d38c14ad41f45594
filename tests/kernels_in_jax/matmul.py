"""jax.experimental.pallas.ops.tpu.matmul at the block shape JAX's documentation settles on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.matmul import matmul as jax_matmul

SIZE = 4096


def matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    """bf16[4096, 4096] @ bf16[4096, 4096] in blocks of 512 x 1024, 1024 deep."""
    return jax_matmul(x, y, block_shape=(512, 1024), block_k=1024)


def matmul_small_blocks(x: jax.Array, y: jax.Array) -> jax.Array:
    """The same product with the kernel's own default depth of 256 and 256 x 256 blocks."""
    return jax_matmul(x, y, block_shape=(256, 256))


def make_args() -> tuple[jax.ShapeDtypeStruct, ...]:
    """Two square bf16 matrices; nothing in this kernel depends on values."""
    square = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
    return square, square
