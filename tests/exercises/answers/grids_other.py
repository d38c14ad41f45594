"""Right answers written another way: other blocks, other orders, scratch, padding, reshapes."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


@jax.jit
def broadcast_add(x, bias):
    """Columns outermost: each block of bias stays while the rows run."""

    def kernel(x_ref, bias_ref, out_ref):
        out_ref[:] = bias_ref[:] + x_ref[:]

    rows, cols = x.shape
    return pl.pallas_call(
        kernel,
        grid_spec=pl.GridSpec(
            grid=(cols // 512, rows // 512),
            in_specs=[
                pl.BlockSpec((512, 512), lambda j, i: (i, j)),
                pl.BlockSpec((1, 512), lambda j, i: (0, j)),
            ],
            out_specs=pl.BlockSpec((512, 512), lambda j, i: (i, j)),
        ),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x, bias)


def transpose(x):
    """Walks over the blocks of the result, which are not square."""

    def kernel(x_ref, out_ref):
        out_ref[...] = jnp.transpose(x_ref[...], (1, 0))

    cols, rows = x.shape
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, 256), pl.cdiv(cols, 1024)),
        in_specs=[pl.BlockSpec((1024, 256), lambda i, j: (j, i))],
        out_specs=pl.BlockSpec((256, 1024), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((rows, cols), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x)


def batched_matmul(lhs, rhs):
    """Keeps the batch as a dimension of one in the block, and takes it off in the kernel."""

    def kernel(lhs_ref, rhs_ref, out_ref):
        out_ref[0] = jax.lax.dot_general(
            lhs_ref[0],
            rhs_ref[0],
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        )

    (batch, m, k), n = lhs.shape, rhs.shape[2]
    pick = lambda b: (b, 0, 0)  # noqa: E731
    return pl.pallas_call(
        kernel,
        grid=(batch,),
        in_specs=[pl.BlockSpec((1, m, k), pick), pl.BlockSpec((1, k, n), pick)],
        out_specs=pl.BlockSpec((1, m, n), pick),
        out_shape=jax.ShapeDtypeStruct((batch, m, n), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(lhs, rhs)


def row_sums(x):
    """Adds whole lane tiles up in scratch, and sums across lanes once a row of blocks."""
    rows, cols = x.shape
    block_rows, block_cols = 256, math.gcd(cols, 2048)

    def kernel(x_ref, out_ref, acc_ref):
        j = pl.program_id(1)
        part = functools.reduce(
            jnp.add, (x_ref[:, start : start + 128] for start in range(0, block_cols, 128))
        )
        acc_ref[...] = jnp.where(j == 0, part, acc_ref[...] + part)

        @pl.when(j == pl.num_programs(1) - 1)
        def _store():
            out_ref[...] = jnp.sum(acc_ref[...], axis=1, keepdims=True)

    return pl.pallas_call(
        kernel,
        grid=(rows // block_rows, cols // block_cols),
        in_specs=[pl.BlockSpec((block_rows, block_cols), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((block_rows, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        scratch_shapes=[pltpu.VMEM((block_rows, 128), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)


def row_max(x):
    """All columns of a strip in one block: no edge to the right, and nothing to come back to."""

    def kernel(x_ref, out_ref):
        out_ref[...] = jnp.max(x_ref[...], axis=1, keepdims=True)

    rows, cols = x.shape
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, 256),),
        in_specs=[pl.BlockSpec((256, cols), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((256, 1), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)


def add_positions(x, table):
    """Folds the batch into the rows; the table's block is kept while the sequences run."""

    def kernel(x_ref, table_ref, out_ref):
        out_ref[...] = table_ref[...] + x_ref[...]

    batch, length, features = x.shape
    blocks = length // 256
    block = pl.BlockSpec((256, features), lambda i, b: (b * blocks + i, 0))
    out = pl.pallas_call(
        kernel,
        grid=(blocks, batch),
        in_specs=[block, pl.BlockSpec((256, features), lambda i, b: (i, 0))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct((batch * length, features), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x.reshape(batch * length, features), table)
    return out.reshape(x.shape)
