"""Each rule on a kernel that breaks it and on one that doesn't; the compiler's lowering agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tests.kernel import sample_kernels as samples
from tpulab.hardware import get_chip
from tpulab.kernel import illegalities, trace
from tpulab.kernel.jax_internals import tracing_for


def rules(function: Callable[..., Any], *arguments: Any, chip: str = "v5e") -> set[str]:
    found = illegalities(trace(function, *arguments, chip=chip), chip, warnings=True)
    return {item.rule for item in found}


def lowers(function: Callable[..., Any], *shapes: Any) -> bool:
    """Whether JAX lowers a function for a TPU; block rules are checked there."""
    with tracing_for("v5e"):
        try:
            jax.jit(function).trace(*shapes).lower(lowering_platforms=("tpu",))
        except (ValueError, NotImplementedError):
            return False
    return True


def test_a_right_kernel_breaks_no_rule() -> None:
    for function, arguments in (
        (samples.matmul(512, 512, 512), ["bf16[4096,4096]"] * 2),
        (samples.add_one, ["f32[16,128]"]),
        (samples.double_buffered, ["f32[64,128]"]),
        (samples.pipelined_double(4), ["f32[32,256]"]),
        (samples.sum_rows("arbitrary"), ["f32[64,128]"]),
        (samples.gather_blocks, [np.array([1, 0], np.int32), "f32[16,128]"]),
    ):
        for chip in ("v4", "v5e", "v5p", "v6e", "7x"):
            assert rules(function, *arguments, chip=chip) == set()


@pytest.mark.parametrize(
    ("block", "shape", "legal"),
    [
        ((8, 128), (64, 512), True),
        ((12, 128), (60, 512), False),
        ((8, 100), (64, 500), False),
        ((60, 500), (60, 500), True),
        ((60, 256), (60, 512), True),
        ((1, 128), (64, 512), False),
        ((1, 128), (1, 512), True),
    ],
)
def test_block_divisibility(block: tuple[int, int], shape: tuple[int, int], legal: bool) -> None:
    grid = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    function = samples.copy_blocks(block, grid, lambda i, j: (i, j))
    specs = jax.ShapeDtypeStruct(shape, jnp.float32)
    assert ("block-divisibility" not in rules(function, specs)) is legal
    assert lowers(function, specs) is legal


def test_the_sentence_of_a_broken_rule() -> None:
    function = samples.copy_blocks((12, 128), (5, 4), lambda i, j: (i, j))
    found = illegalities(trace(function, "f32[60,512]"), get_chip("v5e"))[0]
    assert found.rule == "block-divisibility"
    assert "x has blocks of [12, 128] of [60, 512]" in found.what
    assert "multiple of 8" in found.what
    assert found.where is not None
    assert found.where.startswith(__file__)
    assert found.severity == "error"
    assert "try:" in str(found)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.sampled_from([1, 4, 8, 12, 16, 24]),
    columns=st.sampled_from([64, 128, 200, 256]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16, jnp.int8]),
)
def test_divisibility_agrees_with_the_lowering(rows: int, columns: int, dtype: Any) -> None:
    function = samples.copy_blocks((rows, columns), (2, 2), lambda i, j: (i, j))
    specs = jax.ShapeDtypeStruct((48, 512), dtype)
    refused = {"block-divisibility"} & rules(function, specs)
    assert lowers(function, specs) is not bool(refused)


@settings(max_examples=30, deadline=None)
@given(
    size=st.sampled_from([64, 128, 256, 384, 512, 1024, 1536, 2048, 3072]),
    dtype=st.sampled_from([jnp.float32, jnp.bfloat16, jnp.int8]),
)
def test_rank_one_agrees_with_the_lowering(size: int, dtype: Any) -> None:
    function = samples.copy_blocks((size,), (2,), lambda i: (i,))
    specs = jax.ShapeDtypeStruct((6144,), dtype)
    refused = {"rank-1-block"} & rules(function, specs)
    assert lowers(function, specs) is not bool(refused)


def test_scalar_operand() -> None:
    def kernel(scale: Any, x: Any, out: Any) -> None:
        out[...] = x[...] * scale[...]

    function = samples.whole(kernel, samples.VMEM, samples.VMEM)
    assert "scalar-operand" in rules(function, "f32[]", "f32[8,128]")


def test_block_index_out_of_range() -> None:
    function = samples.copy_blocks((8, 128), (4,), lambda i: (i + 1, 0), lambda i: (i, 0))
    found = illegalities(trace(function, "f32[32,128]"))[0]
    assert found.rule == "block-out-of-range"
    assert "returns 4 along dimension 0 at grid step (3,); there are 4 blocks" in found.what
    clamped = samples.copy_blocks(
        (8, 128), (4,), lambda i: (jnp.minimum(i + 1, 3), 0), lambda i: (i, 0)
    )
    assert rules(clamped, "f32[32,128]") == set()


def test_output_revisited() -> None:
    arbitrary = ("arbitrary", "arbitrary", "arbitrary")
    function = samples.matmul(128, 128, 128, order="kmn", kinds=arbitrary)
    found = illegalities(trace(function, "f32[256,256]", "f32[256,256]"))[0]
    assert found.rule == "output-revisited"
    assert "put grid axis 0 last" in found.hint
    inner = samples.matmul(128, 128, 128, order="mnk", kinds=arbitrary)
    assert rules(inner, "f32[256,256]", "f32[256,256]") == set()


@pytest.mark.parametrize("kind", ["parallel", "arbitrary"])
def test_value_carried_along_a_parallel_axis(kind: str) -> None:
    wrong = {"parallel-carry"} if kind == "parallel" else set()
    # a scratch accumulator (pitfall 43) and an output block (pitfall 44)
    assert rules(samples.running_sum(kind), "f32[64,128]") == wrong
    assert rules(samples.sum_rows(kind), "f32[64,128]") == wrong
    function = samples.matmul(128, 128, 128, kinds=("parallel", "parallel", kind))
    assert rules(function, "f32[256,256]", "f32[256,256]") == wrong


def test_state_reset_in_every_step_may_be_parallel() -> None:
    def kernel(x: Any, out: Any, acc: Any) -> None:
        acc[...] = jnp.zeros_like(acc)
        acc[...] += x[...]
        out[...] = acc[...]

    def function(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[spec],
            out_specs=spec,
            out_shape=samples.like(x),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
            compiler_params=samples.semantics("parallel"),
        )(x)

    assert rules(function, "f32[32,128]") == set()


def test_hbm_is_not_loaded_directly() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

    function = samples.whole(kernel, samples.ANY)
    found = illegalities(trace(function, "f32[8,128]"))[0]
    assert found.rule == "hbm-access"
    assert found.where is not None
    assert found.where.startswith(__file__)


def test_smem_vectors_and_vmem_scalars() -> None:
    def vector(table: Any, out: Any) -> None:
        out[...] = jnp.broadcast_to(table[...], (8, 128)).astype(jnp.float32)

    def scalar(x: Any, out: Any) -> None:
        out[...] = x[...]
        out[0, 0] = 1.0

    def call(x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        return pl.pallas_call(
            vector, in_specs=[samples.SMEM], out_specs=samples.VMEM, out_shape=shape
        )(x)

    assert "smem-vector" in rules(call, "i32[128]")
    assert "vmem-scalar-store" in rules(samples.whole(scalar), "f32[8,128]")


def test_vmem_budget_is_a_warning_and_depends_on_the_chip() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    # 16 MiB in and 16 MiB out: refused on v4, v5e and v5p, compiled on v6e and 7x (pitfall 24)
    function = samples.whole(kernel)
    for chip, fits in (("v4", False), ("v5e", False), ("v5p", False), ("v6e", True), ("7x", True)):
        kernel_ = trace(function, "f32[4096,1024]", chip=chip)
        assert illegalities(kernel_, chip) == ()
        found = illegalities(kernel_, chip, warnings=True)
        assert [item.rule for item in found] == ([] if fits else ["vmem-budget"])


def test_smem_budget() -> None:
    table = jax.ShapeDtypeStruct((400_000,), jnp.int32)
    assert "smem-budget" in rules(samples.gather_blocks, table, "f32[32,128]")


def test_waits_are_balanced() -> None:
    assert "copy-not-waited" in rules(samples.no_wait, "f32[8,128]")

    def kernel(x: Any, out: Any, buffer: Any, semaphore: Any) -> None:
        pltpu.make_async_copy(x, buffer, semaphore).wait()
        out[...] = buffer[...]

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            in_specs=[samples.ANY],
            out_specs=samples.VMEM,
            out_shape=samples.like(x),
            scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
        )(x)

    assert "wait-without-copy" in rules(function, "f32[8,128]")


def test_output_never_written() -> None:
    def kernel(x: Any, out: Any) -> None:
        x[...] = x[...] + 1

    assert "output-never-written" in rules(samples.whole(kernel), "f32[8,128]")


def test_blocks_without_a_grid_and_hbm_blocks() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

    def windowed(space: Any) -> Callable[[jax.Array], jax.Array]:
        def function(x: jax.Array) -> jax.Array:
            spec = pl.BlockSpec((8, 128), lambda *_: (0, 0), memory_space=space)
            return pl.pallas_call(
                kernel,
                in_specs=[spec],
                out_specs=samples.VMEM,
                out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
            )(x)

        return function

    assert "block-without-grid" in rules(windowed(pltpu.VMEM), "f32[32,128]")
    assert "hbm-block" in rules(windowed(pl.ANY), "f32[32,128]")


def test_element_windows_start_on_tiles() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[pl.ds(0, 8), :]

    def windows(stride: int) -> Callable[[jax.Array], jax.Array]:
        def function(x: jax.Array) -> jax.Array:
            spec = pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (i * stride, 0))
            return pl.pallas_call(
                kernel,
                grid=(3,),
                in_specs=[spec],
                out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
                out_shape=jax.ShapeDtypeStruct((24, 128), x.dtype),
            )(x)

        return function

    assert "element-alignment" in rules(windows(3), "f32[64,128]")
    assert rules(windows(8), "f32[64,128]") == set()


def test_skipped_output_blocks() -> None:
    def kernel(x: Any, out: Any) -> None:
        @pl.when(pl.program_id(0) % 2 == 0)
        def _() -> None:
            out[...] = x[...]

    def function(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, grid=(6,), in_specs=[spec], out_specs=spec, out_shape=samples.like(x)
        )(x)

    found = illegalities(trace(function, "f32[48,128]"), warnings=True)
    assert [item.rule for item in found] == ["output-block-skipped"]
    assert "block [1, 0] (grid step (1,))" in found[0].what
    assert "3 of 6" in found[0].what


def test_read_before_anything_was_written() -> None:
    function = samples.matmul(128, 128, 128, clear=False)
    found = illegalities(trace(function, "f32[256,256]", "f32[256,256]"), warnings=True)
    assert {item.rule for item in found} == {"uninitialised-read"} | {"parallel-carry"}
    arbitrary = samples.matmul(128, 128, 128, clear=False, kinds=("arbitrary",) * 3)
    assert rules(arbitrary, "f32[256,256]", "f32[256,256]") == {"uninitialised-read"}
