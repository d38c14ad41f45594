"""scaffold: lhs @ rhs in bfloat16, for any shape, summed in float32.

Written by `tpulab new`; from here on it is yours. It is right and decent, not the best.

    python scaffold.py
        checks it, then says how fast it is on a TPU v5e; --chip v6e asks another chip
    python -m tpulab ladder scaffold.py:scaffold
        its ladder alone

`python` is the one that has JAX and tpulab: `.venv/bin/python` where tpulab was cloned.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import tpulab
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from tpulab.scaffolds import workbench

BLOCK_M, BLOCK_N, BLOCK_K = 512, 512, 512


def scaffold_kernel(lhs_ref, rhs_ref, out_ref, acc_ref, *, depth):
    """One step over k; the sum stays in acc_ref until the last one."""
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _clear():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    lhs, rhs = lhs_ref[...], rhs_ref[...]
    block_k = lhs.shape[1]
    if depth % block_k:
        # beyond a ragged k lies anything, and even zero times NaN is NaN: mask both operands
        inside = depth - step * block_k
        column = jax.lax.broadcasted_iota(jnp.int32, lhs.shape, 1)
        row = jax.lax.broadcasted_iota(jnp.int32, rhs.shape, 0)
        lhs = jnp.where(column < inside, lhs, jnp.zeros_like(lhs))
        rhs = jnp.where(row < inside, rhs, jnp.zeros_like(rhs))
    acc_ref[...] += jnp.dot(lhs, rhs, preferred_element_type=jnp.float32)

    @pl.when(step == pl.num_programs(2) - 1)
    def _store():
        out_ref[...] = acc_ref[...].astype(out_ref.dtype)


def scaffold(lhs, rhs):
    """Product of bfloat16[m, k] and bfloat16[k, n] -> bfloat16[m, n]."""
    (m, k), n = lhs.shape, rhs.shape[1]
    block_m, block_n, block_k = min(BLOCK_M, m), min(BLOCK_N, n), min(BLOCK_K, k)
    return pl.pallas_call(
        functools.partial(scaffold_kernel, depth=k),
        out_shape=jax.ShapeDtypeStruct((m, n), lhs.dtype),
        # k last: the block of the result stays in VMEM while it runs
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, k: (i, k)),
            pl.BlockSpec((block_k, block_n), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, k: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(lhs, rhs)


def oracle(lhs, rhs):
    """The same in NumPy and float64: what is right."""
    return lhs.astype(np.float64) @ rhs.astype(np.float64)


def make_args():
    """Shapes that the time is for; `tpulab ladder` asks here too."""
    square = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    return square, square


def small_inputs():
    """Arrays to check with: several blocks of k, and sizes that do not divide into blocks."""
    rng = np.random.default_rng(0)
    for m, k, n in ((256, 1024, 128), (96, 700, 640)):
        lhs = rng.standard_normal((m, k)).astype(jnp.bfloat16)
        yield lhs, rng.standard_normal((k, n)).astype(jnp.bfloat16)


def check(chip):
    """Right in both interpreters, and accepted by the chip's compiler."""
    for inputs in small_inputs():
        want = oracle(*inputs)
        # a bfloat16 result is right to 8 bits of mantissa; the sum itself is made in float32
        workbench.agree(scaffold, inputs, want, rtol=2**-7, atol=1e-3)
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
