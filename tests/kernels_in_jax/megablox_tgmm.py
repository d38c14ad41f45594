"""megablox's transposed product alone: lhs[:, group] @ rhs[group, :] for every group."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm as jax_tgmm

ROWS, DEPTH, COLUMNS = 4096, 2048, 2048
TILING = (512, 512, 512)
GROUP_SIZES = (1100, 37, 0, 900, 256, 703, 1, 1099)


def tgmm(transposed_rows: jax.Array, columns: jax.Array, group_sizes: jax.Array) -> jax.Array:
    """One bf16[2048, 2048] product a group; the empty one is written as zeros."""
    return jax_tgmm(transposed_rows, columns, group_sizes, jnp.bfloat16, TILING)


def make_args() -> tuple[Any, ...]:
    """lhs bf16[2048, 4096], rhs bf16[4096, 2048], group sizes i32[8] as values."""
    lhs = jax.ShapeDtypeStruct((DEPTH, ROWS), jnp.bfloat16)
    rhs = jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.bfloat16)
    return lhs, rhs, np.asarray(GROUP_SIZES, np.int32)
