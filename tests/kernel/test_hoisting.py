"""Grid indices under ``pl.when``: the fast interpreter gives what NumPy gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from tpulab.kernel import run
from tpulab.kernel.hoisting import hoist_grid_indices


def _call(kernel):
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return lambda x: pl.pallas_call(
        kernel,
        grid=(x.shape[0] // 8,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x)


def _asks_in_branches(x_ref, out_ref):
    @pl.when(pl.program_id(0) % 2 == 0)
    def _even():
        out_ref[...] = x_ref[...] + pl.program_id(0).astype(jnp.float32)

        @pl.when(pl.program_id(0) > 1)
        def _late():
            count = 10 * pl.program_id(0) + pl.num_programs(0)
            out_ref[...] += count.astype(jnp.float32)

    @pl.when(pl.program_id(0) % 2 == 1)
    def _odd():
        out_ref[...] = 2 * x_ref[...]


def test_branches_may_ask_for_grid_indices():
    x = np.random.default_rng(0).standard_normal((40, 128)).astype(np.float32)
    want = x.reshape(5, 8, 128).copy()
    want[1::2] *= 2
    want[0::2] += np.array([0, 2, 4], np.float32)[:, None, None]
    # nested: 10 × index, and the number of steps
    want[2] += 25
    want[4] += 45
    np.testing.assert_allclose(run(_call(_asks_in_branches), x), want.reshape(x.shape), rtol=1e-6)


def test_a_result_of_a_branch_may_be_the_index():
    def kernel(x_ref, out_ref):
        index = jax.lax.cond(x_ref[0, 0] > 0, lambda: pl.program_id(0), lambda: -pl.program_id(0))
        out_ref[...] = jnp.full(out_ref.shape, index, jnp.float32)

    signs = np.array([1, -1, -1, 1], np.float32)
    out = run(_call(kernel), np.repeat(signs, 8)[:, None] * np.ones((32, 128), np.float32))
    assert np.asarray(out)[::8, 0].tolist() == [0, -1, -2, 3]


def test_kernels_that_ask_at_the_top_stay_as_they_are():
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.cond(x.sum() > 0, lambda: x, lambda: -x))(jnp.ones(3))
    assert hoist_grid_indices(jaxpr) is jaxpr
