"""jax.experimental.pallas.ops.tpu.random: counter-based generators with the key in SMEM."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.random import philox, threefry

SHAPE = (2048, 2048)


def threefry_bits(key: jax.Array) -> jax.Array:
    """20 rounds of Threefry-2x32 for u32[2048, 2048]: all vector ALU, one write to HBM."""
    return threefry.plthreefry_random_bits(key, 32, SHAPE)


def threefry_bits_padded(key: jax.Array) -> jax.Array:
    """A shape that is no multiple of the kernel's 256 x 256 block, cut to size afterwards."""
    return threefry.plthreefry_random_bits(key, 32, (1000, 2000))


def philox_bits(key: jax.Array) -> jax.Array:
    """10 rounds of Philox-4x32, which builds 32 x 32 -> 64 bit products out of 16-bit halves."""
    return philox.philox_random_bits(key, 32, SHAPE)


def make_args() -> tuple[jax.ShapeDtypeStruct]:
    """The key as u32[2]; its value decides nothing but the bits."""
    return (jax.ShapeDtypeStruct((2,), jnp.uint32),)
