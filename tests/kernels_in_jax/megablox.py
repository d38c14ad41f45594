"""jax.experimental.pallas.ops.tpu.megablox: matrix products over ragged groups of rows.

The group sizes are concrete: how many grid steps run, and which block each one fetches, is
computed from them before the kernel starts.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.megablox import gmm as jax_gmm

ROWS, DEPTH, COLUMNS = 4096, 2048, 2048
TILING = (512, 512, 512)
# tokens routed to eight experts: unequal, one empty, one inside a single tile, none aligned
GROUP_SIZES = (1100, 37, 0, 900, 256, 703, 1, 1099)


def gmm(rows: jax.Array, weights: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """Each group of rows times its own weights."""
    return jax_gmm(rows, weights, group_sizes, jnp.bfloat16, TILING)


def gmm_backward(
    rows: jax.Array, weights: jax.Array, group_sizes: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """A training step's loss and gradients: gmm, gmm with transposed weights, and tgmm."""

    def loss(rows: jax.Array, weights: jax.Array) -> jax.Array:
        return gmm(rows, weights, group_sizes).astype(jnp.float32).sum()

    return jax.value_and_grad(loss, argnums=(0, 1))(rows, weights)


def make_args() -> tuple[Any, ...]:
    """rows bf16[4096, 2048], weights bf16[8, 2048, 2048], group sizes i32[8] as values."""
    groups = np.asarray(GROUP_SIZES, np.int32)
    rows = jax.ShapeDtypeStruct((ROWS, DEPTH), jnp.bfloat16)
    weights = jax.ShapeDtypeStruct((len(groups), DEPTH, COLUMNS), jnp.bfloat16)
    return rows, weights, groups
