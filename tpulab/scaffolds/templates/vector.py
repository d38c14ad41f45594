"""scaffold: RMSNorm of x + residual, in one pass over HBM.

Written by `tpulab new`; from here on it is yours. It is right and decent, not the best.

    python scaffold.py
        checks it, then says how fast it is on a TPU v5e; --chip v6e asks another chip
    python -m tpulab ladder scaffold.py:scaffold
        its ladder alone

`python` is the one that has JAX and tpulab: `.venv/bin/python` where tpulab was cloned.
"""

import jax
import jax.numpy as jnp
import numpy as np
import tpulab
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from tpulab.scaffolds import workbench

BLOCK_ROWS = 128
EPSILON = 1e-6


def scaffold_kernel(x_ref, residual_ref, weight_ref, out_ref):
    """Normalise one block of rows, in float32."""
    total = x_ref[...].astype(jnp.float32) + residual_ref[...].astype(jnp.float32)
    mean_square = jnp.mean(total * total, axis=1, keepdims=True)
    normalised = total * jax.lax.rsqrt(mean_square + EPSILON)
    out_ref[...] = (normalised * weight_ref[...]).astype(out_ref.dtype)


def scaffold(x, residual, weight):
    """RMSNorm: bfloat16[rows, features] twice, float32[1, features] -> bfloat16[rows, features]."""
    rows, features = x.shape
    block = pl.BlockSpec((BLOCK_ROWS, features), lambda i: (i, 0))
    # what sticks out of a ragged array meets nothing inside: every row is on its own
    return pl.pallas_call(
        scaffold_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, BLOCK_ROWS),),
        in_specs=[block, block, pl.BlockSpec((1, features), lambda i: (0, 0))],
        out_specs=block,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, residual, weight)


def oracle(x, residual, weight):
    """The same in NumPy and float64: what is right."""
    total = x.astype(np.float64) + residual.astype(np.float64)
    mean_square = np.mean(total * total, axis=1, keepdims=True)
    return total / np.sqrt(mean_square + EPSILON) * weight


def make_args():
    """Shapes that the time is for; `tpulab ladder` asks here too."""
    x = jax.ShapeDtypeStruct((8192, 2048), jnp.bfloat16)
    return x, x, jax.ShapeDtypeStruct((1, 2048), jnp.float32)


def small_inputs():
    """Arrays to check with: several blocks, and rows that do not divide into blocks."""
    rng = np.random.default_rng(0)
    for rows, features in ((256, 256), (200, 384)):
        x = rng.standard_normal((rows, features)).astype(jnp.bfloat16)
        residual = rng.standard_normal((rows, features)).astype(jnp.bfloat16)
        yield x, residual, rng.standard_normal((1, features)).astype(np.float32)


def check(chip):
    """Right in both interpreters, and accepted by the chip's compiler."""
    for inputs in small_inputs():
        want = oracle(*inputs)
        # a bfloat16 result is right to 8 bits of mantissa
        workbench.agree(scaffold, inputs, want, rtol=2**-7, atol=2**-9)
    workbench.accepted(scaffold, make_args(), chip)


def benchmark(chip):
    """Predicted anywhere; measured as well where this chip is at hand."""
    measured = workbench.measured_seconds(scaffold, make_args(), chip)
    print(tpulab.ladder(scaffold, *make_args(), chip=chip, measured=measured))


def main(chip):
    """What `python scaffold.py` does."""
    check(chip)
    benchmark(chip)


if __name__ == "__main__":
    workbench.run(main)
