"""jax.experimental.pallas.ops.tpu.example_kernel: no grid, everything in VMEM at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import example_kernel


def double(x: jax.Array) -> jax.Array:
    """2 * x for f32[1024, 1024]: one 4 MiB block in, one out, nothing overlapped."""
    return example_kernel.double(x)


def make_args() -> tuple[jax.ShapeDtypeStruct]:
    """One float32 matrix."""
    return (jax.ShapeDtypeStruct((1024, 1024), jnp.float32),)
