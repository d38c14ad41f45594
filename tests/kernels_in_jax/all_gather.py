"""jax.experimental.pallas.ops.tpu.all_gather: a two-way ring of remote copies between chips."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import all_gather as ring

DEVICES = 4


def all_gather(x: jax.Array) -> jax.Array:
    """bf16[4096, 512] sharded by rows over four chips, gathered to all of them."""
    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((DEVICES,), ("x",), axis_types=automatic)
    return ring.all_gather(x, mesh=mesh, axis_name="x")


def make_args() -> tuple[jax.ShapeDtypeStruct]:
    """The whole array, 4 MiB."""
    return (jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16),)
