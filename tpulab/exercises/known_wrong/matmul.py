"""Wrong answers to the exercises of lab 10; each function's first line says what is wrong."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_LAST_CARRIES = ("parallel", "parallel", "arbitrary")


def _dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    return jnp.dot(lhs, rhs, preferred_element_type=jnp.float32)


def _out(lhs: jax.Array, rhs: jax.Array, dtype) -> jax.ShapeDtypeStruct:  # type: ignore[no-untyped-def]
    return jax.ShapeDtypeStruct((lhs.shape[0], rhs.shape[1]), dtype)


def whole_outside(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """XLA multiplies, the kernel copies."""

    def kernel(product_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = product_ref[...]

    return pl.pallas_call(kernel, out_shape=_out(lhs, rhs, jnp.float32))(_dot(lhs, rhs))


def whole_constant_luck(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Multiplies by |lhs|: right on an identity."""

    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = _dot(jnp.abs(lhs_ref[...]), rhs_ref[...])

    return pl.pallas_call(kernel, out_shape=_out(lhs, rhs, jnp.float32))(lhs, rhs)


def whole_rounded(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The product passes through bfloat16."""

    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = _dot(lhs_ref[...], rhs_ref[...]).astype(jnp.bfloat16).astype(jnp.float32)

    return pl.pallas_call(kernel, out_shape=_out(lhs, rhs, jnp.float32))(lhs, rhs)


def whole_bf16_accumulator(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Asks the matrix unit for a bfloat16 sum, in a way that happens to be exact on a CPU."""

    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        lhs_block, rhs_block = lhs_ref[...], rhs_ref[...]
        jnp.dot(lhs_block, rhs_block)
        unused = jnp.dot(lhs_block, rhs_block, preferred_element_type=jnp.bfloat16)
        exact = _dot(lhs_block, rhs_block)
        out_ref[...] = jnp.where(jnp.isnan(unused.astype(jnp.float32)), exact, exact)

    return pl.pallas_call(kernel, out_shape=_out(lhs, rhs, jnp.float32))(lhs, rhs)


def whole_wrong_shape(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Returns the transpose."""

    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = _dot(lhs_ref[...], rhs_ref[...]).T

    shape = jax.ShapeDtypeStruct((rhs.shape[1], lhs.shape[0]), jnp.float32)
    return pl.pallas_call(kernel, out_shape=shape)(lhs, rhs)


def _strips(  # type: ignore[no-untyped-def]
    lhs: jax.Array, rhs: jax.Array, block_m: int, *, lhs_map=None, steps=None
) -> jax.Array:
    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = _dot(lhs_ref[...], rhs_ref[...])

    (m, k), n = lhs.shape, rhs.shape[1]
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(m, block_m) if steps is None else steps,),
        in_specs=[
            pl.BlockSpec((block_m, k), lhs_map or (lambda i: (i, 0))),
            pl.BlockSpec((k, n), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((block_m, n), lambda i: (i, 0)),
        out_shape=_out(lhs, rhs, jnp.float32),
    )(lhs, rhs)


def strips_first_only(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Every step multiplies the first strip."""
    return _strips(lhs, rhs, 128, lhs_map=lambda i: (0, 0))


def strips_floor(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The grid is rounded down."""
    return _strips(lhs, rhs, 128, steps=lhs.shape[0] // 128)


def strips_odd_block(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Strips of 100 rows."""
    return _strips(lhs, rhs, 100)


def _grid(  # type: ignore[no-untyped-def]
    kernel,
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    block: tuple[int, int, int] = (128, 128, 128),
    order: str = "ijk",
    lhs_map=None,
    rhs_map=None,
    out_map=None,
    semantics=_LAST_CARRIES,
    dtype=jnp.float32,
    scratch=(),
    floor: bool = False,
    vmem_limit_bytes=None,
) -> jax.Array:
    """The plain three-axis product; what differs from it is what is wrong."""
    (m, k), n = lhs.shape, rhs.shape[1]
    block_m, block_k, block_n = (min(size, axis) for size, axis in zip(block, (m, k, n)))
    count = (lambda a, b: max(1, a // b)) if floor else pl.cdiv
    steps = {"i": count(m, block_m), "j": count(n, block_n), "k": pl.cdiv(k, block_k)}

    def by_name(axes: str):  # type: ignore[no-untyped-def]
        return lambda *ids: tuple(ids[order.index(axis)] for axis in axes)

    return pl.pallas_call(
        kernel,
        grid=tuple(steps[axis] for axis in order),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lhs_map or by_name("ik")),
            pl.BlockSpec((block_k, block_n), rhs_map or by_name("kj")),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), out_map or by_name("ij")),
        out_shape=_out(lhs, rhs, dtype),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), s) for s in scratch],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=semantics, vmem_limit_bytes=vmem_limit_bytes
        ),
    )(lhs, rhs)


def _accumulate(axis: int = 2):  # type: ignore[no-untyped-def]
    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        @pl.when(pl.program_id(axis) == 0)
        def _clear() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += _dot(lhs_ref[...], rhs_ref[...])

    return kernel


def grid_uninitialised(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Nobody clears the output block."""

    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] += _dot(lhs_ref[...], rhs_ref[...])

    return _grid(kernel, lhs, rhs)


def grid_overwrites(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Each step of k stores its own product."""

    def kernel(lhs_ref, rhs_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = _dot(lhs_ref[...], rhs_ref[...])

    return _grid(kernel, lhs, rhs)


def grid_reduction_not_last(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """K is the first axis of the grid."""
    return _grid(
        _accumulate(0), lhs, rhs, order="kij", semantics=("arbitrary", "arbitrary", "arbitrary")
    )


def grid_rhs_swapped(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Rhs block (j, k)."""
    return _grid(_accumulate(), lhs, rhs, rhs_map=lambda i, j, k: (j, k))


def grid_output_swapped(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Output block (j, i)."""
    return _grid(_accumulate(), lhs, rhs, out_map=lambda i, j, k: (j, i))


def grid_same_block(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Neither input moves with k."""
    return _grid(
        _accumulate(),
        lhs,
        rhs,
        lhs_map=lambda i, j, k: (i, 0),
        rhs_map=lambda i, j, k: (0, j),
    )


def grid_parallel_k(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The axis that carries the sum is marked parallel."""
    return _grid(_accumulate(), lhs, rhs, semantics=("parallel", "parallel", "parallel"))


def grid_map_arity(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The index map of lhs takes two indices of a grid of three."""
    return _grid(_accumulate(), lhs, rhs, lhs_map=lambda i, j: (i, j))


def _scratch_kernel(  # type: ignore[no-untyped-def]
    *, clear=lambda k, last: k == 0, store=lambda k, last: k == last, axis=2
):
    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):  # type: ignore[no-untyped-def]
        step, last = pl.program_id(axis), pl.num_programs(axis) - 1
        if clear is not None:

            @pl.when(clear(step, last))
            def _clear() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += _dot(lhs_ref[...], rhs_ref[...]).astype(acc_ref.dtype)

        @pl.when(store(step, last))
        def _store() -> None:
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return kernel


def _scratch(kernel, lhs: jax.Array, rhs: jax.Array, **changes) -> jax.Array:  # type: ignore[no-untyped-def]
    settings = {"dtype": jnp.bfloat16, "scratch": (jnp.float32,)} | changes
    return _grid(kernel, lhs, rhs, **settings)


def scratch_uninitialised(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Nobody clears the accumulator."""
    return _scratch(_scratch_kernel(clear=None), lhs, rhs)


def scratch_initialised_once(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The accumulator is cleared for the first output block only."""

    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):  # type: ignore[no-untyped-def]
        first = (pl.program_id(0) == 0) & (pl.program_id(1) == 0) & (pl.program_id(2) == 0)

        @pl.when(first)
        def _clear() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += _dot(lhs_ref[...], rhs_ref[...])

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _store() -> None:
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return _scratch(kernel, lhs, rhs, semantics=("arbitrary", "arbitrary", "arbitrary"))


def scratch_in_bf16(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The accumulator is bfloat16."""
    return _scratch(_scratch_kernel(), lhs, rhs, scratch=(jnp.bfloat16,))


def scratch_stored_first(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The output is stored in the first step of k."""
    return _scratch(_scratch_kernel(store=lambda k, last: k == 0), lhs, rhs)


def scratch_k_first(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """K is the first axis: output blocks are revisited with others in between."""
    return _scratch(
        _scratch_kernel(axis=0),
        lhs,
        rhs,
        order="kij",
        semantics=("arbitrary", "arbitrary", "arbitrary"),
    )


def scratch_never_stored(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The sum stays in the accumulator."""
    return _scratch(_scratch_kernel(store=lambda k, last: k > last), lhs, rhs)


def _tiled_kernel(depth: int, block_k: int, *, mask_lhs: bool = True, mask_rhs: bool = True):  # type: ignore[no-untyped-def]
    def kernel(lhs_ref, rhs_ref, out_ref, acc_ref):  # type: ignore[no-untyped-def]
        step = pl.program_id(2)

        @pl.when(step == 0)
        def _clear() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        lhs_block, rhs_block = lhs_ref[...], rhs_ref[...]
        if depth % block_k:
            left = depth - step * block_k
            if mask_lhs:
                column = jax.lax.broadcasted_iota(jnp.int32, lhs_block.shape, 1)
                lhs_block = jnp.where(column < left, lhs_block, jnp.zeros_like(lhs_block))
            if mask_rhs:
                row = jax.lax.broadcasted_iota(jnp.int32, rhs_block.shape, 0)
                rhs_block = jnp.where(row < left, rhs_block, jnp.zeros_like(rhs_block))
        acc_ref[...] += _dot(lhs_block, rhs_block)

        @pl.when(step == pl.num_programs(2) - 1)
        def _store() -> None:
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    return kernel


def tiled_reads_padding(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """A ragged k is not masked."""
    kernel = _tiled_kernel(lhs.shape[1], 512, mask_lhs=False, mask_rhs=False)
    return _scratch(kernel, lhs, rhs, block=(512, 512, 512))


def tiled_masks_lhs_only(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Zero times what lies beyond rhs is not zero."""
    kernel = _tiled_kernel(lhs.shape[1], 512, mask_rhs=False)
    return _scratch(kernel, lhs, rhs, block=(512, 512, 512))


def tiled_floor(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The grid is rounded down in m and n."""
    kernel = _tiled_kernel(lhs.shape[1], 512)
    return _scratch(kernel, lhs, rhs, block=(512, 512, 512), floor=True)


def tiled_small_blocks(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Right, in blocks of 128."""
    return _scratch(_tiled_kernel(lhs.shape[1], 128), lhs, rhs)


def best_small_blocks(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Right, in blocks of 128."""
    return _scratch(_scratch_kernel(), lhs, rhs)


def best_over_vmem(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """Blocks of 4096 x 2048 x 4096: far more than VMEM holds."""
    return _scratch(_scratch_kernel(), lhs, rhs, block=(4096, 2048, 4096))


def best_in_bf16(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The accumulator is bfloat16."""
    return _scratch(_scratch_kernel(), lhs, rhs, block=(512, 512, 1024), scratch=(jnp.bfloat16,))


def best_by_xla(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """No kernel at all: XLA's product, which is fast, but not the exercise."""
    return _dot(lhs, rhs).astype(jnp.bfloat16)
