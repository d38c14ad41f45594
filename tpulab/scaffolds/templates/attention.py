"""scaffold: flash attention, softmax(q @ k.T) @ v, its scores never in HBM.

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

BLOCK_Q, BLOCK_KV = 512, 512


def scaffold_kernel(q_ref, k_ref, v_ref, out_ref, max_ref, sum_ref, acc_ref):
    """One block of keys and values for one block of queries: the online softmax, in float32."""
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _clear():
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    q, k, v = q_ref[...], k_ref[...], v_ref[...]
    contract_features = (((1,), (1,)), ((), ()))
    scores = jax.lax.dot_general(q, k, contract_features, preferred_element_type=jnp.float32)
    scores *= q.shape[1] ** -0.5
    largest = jnp.maximum(max_ref[...], jnp.max(scores, axis=1, keepdims=True))
    weights = jnp.exp(scores - largest)
    # what was summed so far was relative to a smaller maximum
    rescale = jnp.exp(max_ref[...] - largest)
    max_ref[...] = largest
    sum_ref[...] = sum_ref[...] * rescale + jnp.sum(weights, axis=1, keepdims=True)
    values = jnp.dot(weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    acc_ref[...] = acc_ref[...] * rescale + values

    @pl.when(step == pl.num_programs(2) - 1)
    def _store():
        out_ref[...] = (acc_ref[...] / sum_ref[...]).astype(out_ref.dtype)


def scaffold(q, k, v):
    """Attention of each head: bfloat16[heads, length, features] three times -> the same shape."""
    heads, length, features = q.shape
    block_q, block_kv = min(BLOCK_Q, length), min(BLOCK_KV, length)
    if length % block_q or length % block_kv:
        raise ValueError(f"a length of {length} is no multiple of the blocks: pad it, or mask")
    rows = pl.BlockSpec((None, block_q, features), lambda head, i, j: (head, i, 0))
    columns = pl.BlockSpec((None, block_kv, features), lambda head, i, j: (head, j, 0))
    return pl.pallas_call(
        scaffold_kernel,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        # keys and values last: the block of the result stays in VMEM while they run
        grid=(heads, length // block_q, length // block_kv),
        in_specs=[rows, columns, columns],
        out_specs=rows,
        scratch_shapes=[
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, features), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(q, k, v)


def oracle(q, k, v):
    """The same in NumPy and float64: what is right."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[2])
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return weights @ v / weights.sum(axis=2, keepdims=True)


def make_args():
    """Shapes that the time is for; `tpulab ladder` asks here too."""
    array = jax.ShapeDtypeStruct((8, 4096, 128), jnp.bfloat16)
    return array, array, array


def small_inputs():
    """Arrays to check with: one block, and several with scores that grow from block to block."""
    rng = np.random.default_rng(0)
    for heads, length in ((2, 128), (1, 1024)):
        growing = np.linspace(0.5, 2.0, length)[:, None]
        q = rng.standard_normal((heads, length, 128)).astype(jnp.bfloat16)
        k = (rng.standard_normal((heads, length, 128)) * growing).astype(jnp.bfloat16)
        yield q, k, rng.standard_normal((heads, length, 128)).astype(jnp.bfloat16)


def check(chip):
    """Right in both interpreters, and accepted by the chip's compiler."""
    for inputs in small_inputs():
        want = oracle(*inputs)
        # weights and result are bfloat16, right to 8 bits of mantissa
        workbench.agree(scaffold, inputs, want, rtol=2**-6, atol=2**-7)
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
