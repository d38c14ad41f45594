"""``trace`` against figures worked out by hand."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tests.kernel import sample_kernels as samples
from tpulab.errors import UsageError
from tpulab.kernel import Kernel, NoPallasCall, TraceError, illegalities, trace

HERE = Path(__file__).resolve()
SAMPLES = str(HERE.parent / "sample_kernels.py")


@pytest.fixture(scope="module")
def published() -> Kernel:
    """4096³ in bf16 with 512³ blocks: 1,024 loads, 512 MiB read, 32 MiB written."""
    return trace(samples.matmul(512, 512, 512), "bf16[4096,4096]", "bf16[4096,4096]")


def test_published_traffic(published: Kernel) -> None:
    (call,) = published.calls
    loads = sum(int(call.moves(operand).sum()) for operand in call.inputs)
    assert loads == 1024
    assert published.hbm_read_bytes == 512 * 2**20
    assert published.hbm_written_bytes == 32 * 2**20
    assert call.moves("out").sum() == 64
    assert published.unique_bytes == 3 * 32 * 2**20


def test_work_is_two_m_n_k(published: Kernel) -> None:
    (call,) = published.calls
    assert published.mxu_flops == 2 * 4096**3
    # one add per accumulator element and step
    assert published.vpu_flops == 512 * 512 * 512
    (product,) = call.matmuls
    assert (product.m, product.k, product.n, product.count) == (512, 512, 512, 512)
    assert product.dtype == "bfloat16"
    assert product.flops == 2 * 4096**3


def test_description(published: Kernel) -> None:
    (call,) = published.calls
    assert call.grid == (8, 8, 8)
    assert call.steps == 512
    assert call.dimension_semantics == ("parallel", "parallel", "arbitrary")
    assert [operand.name for operand in call.operands] == ["lhs", "rhs", "out"]
    assert [operand.buffer_count for operand in call.operands] == [2, 2, 2]
    # three double-buffered bf16 blocks and an f32 accumulator
    assert call.vmem_bytes == 3 * 2 * 512 * 512 * 2 + 512 * 512 * 4
    assert call.source is not None
    assert call.source.startswith(SAMPLES)
    assert published.notes == ()
    assert "512 times" in str(published)


def test_flops_at_each_step_add_up(published: Kernel) -> None:
    (call,) = published.calls
    assert call.mxu_flops_at_step.shape == (512,)
    assert (call.mxu_flops_at_step == 2 * 512**3).all()


def test_32768_steps_are_fast() -> None:
    function = samples.matmul(128, 128, 128)
    trace(function, "bf16[256,256]", "bf16[256,256]")
    began = time.process_time()
    kernel = trace(function, "bf16[4096,4096]", "bf16[4096,4096]")
    assert time.process_time() - began < 1.0
    assert kernel.steps == 32768
    assert kernel.hbm_read_bytes == 2 * 2**30


def test_when_is_counted_on_the_steps_that_take_it() -> None:
    def kernel(x: Any, out: Any) -> None:
        @pl.when(pl.program_id(0) % 3 == 1)
        def _() -> None:
            out[...] = jnp.exp(x[...])

        @pl.when((pl.program_id(1) == 0) | (pl.program_id(0) > 7))
        def _() -> None:
            out[...] = x[...] + x[...]

    def function(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
        return pl.pallas_call(
            kernel, grid=(10, 4), in_specs=[spec], out_specs=spec, out_shape=samples.like(x)
        )(x)

    (call,) = trace(function, "f32[80,512]").calls
    exponentials = sum(i % 3 == 1 for i in range(10) for _ in range(4))
    additions = sum(j == 0 or i > 7 for i in range(10) for j in range(4))
    assert call.transcendentals == exponentials * 8 * 128
    assert call.vpu_flops == additions * 8 * 128
    expected = [8 * 128 * (j == 0 or i > 7) for i in range(10) for j in range(4)]
    assert call.vpu_flops_at_step.tolist() == expected


def test_loops_with_known_bounds_are_counted() -> None:
    def kernel(x: Any, out: Any) -> None:
        step = pl.program_id(0)

        def add(_: Any, total: Any) -> Any:
            return total + x[...]

        # a different number of iterations at every step: 0, 1, 2, ...
        out[...] = jax.lax.fori_loop(0, step, add, jnp.zeros((8, 128), jnp.float32))
        out[...] = jax.lax.fori_loop(0, 5, add, out[...])

    def function(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, grid=(6,), in_specs=[spec], out_specs=spec, out_shape=samples.like(x)
        )(x)

    (call,) = trace(function, "f32[48,128]").calls
    assert call.vpu_flops_at_step.tolist() == [(i + 5) * 8 * 128 for i in range(6)]
    assert call.notes == ()


def test_condition_on_data_counts_as_taken_and_says_so() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

        @pl.when(x[0, 0] > 0)
        def _() -> None:
            out[...] = x[...] * 2

    (call,) = trace(samples.whole(kernel), "f32[8,128]").calls
    assert call.vpu_flops == 8 * 128
    assert any("depends on data" in note for note in call.notes)


def test_scalar_prefetch_decides_the_moves() -> None:
    table = np.array([3, 3, 0, 1, 1, 1], np.int32)
    (call,) = trace(samples.gather_blocks, table, "f32[32,128]").calls
    assert call.block_indices("x")[:, 0].tolist() == table.tolist()
    assert call.moves("x").tolist() == [True, False, True, True, False, False]
    assert call.moves("out").all()
    assert call.scalar_prefetch[0].tolist() == table.tolist()
    assert call.notes == ()


def test_scalar_prefetch_computed_before_the_call_is_evaluated() -> None:
    def function(order: jax.Array, x: jax.Array) -> jax.Array:
        @jax.jit
        def table_of(order: jax.Array) -> jax.Array:
            return jnp.argsort(order).astype(jnp.int32) // 2

        return samples.gather_blocks(table_of(order), x)

    order = np.array([2, 0, 3, 1], np.int32)
    (call,) = trace(function, order, "f32[32,128]").calls
    assert call.block_indices("x")[:, 0].tolist() == (np.argsort(order) // 2).tolist()


def test_unknown_scalar_prefetch_moves_every_block() -> None:
    (call,) = trace(samples.gather_blocks, "i32[6]", "f32[32,128]").calls
    assert call.scalar_prefetch == (None,)
    assert call.block_indices("x") is None
    assert call.moves("x").all()
    assert any("not known" in note for note in call.notes)


def test_trip_count_from_scalar_prefetch() -> None:
    def kernel(lengths: Any, x: Any, out: Any) -> None:
        def add(_: Any, total: Any) -> Any:
            return total + x[...]

        count = lengths[pl.program_id(0)]
        out[...] = jax.lax.fori_loop(0, count, add, jnp.zeros((8, 128), jnp.float32))

    def function(lengths: jax.Array, x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i, lengths: (i, 0))
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1, grid=(4,), in_specs=[spec], out_specs=spec
            ),
            out_shape=samples.like(x),
        )(lengths, x)

    (call,) = trace(function, "i32[4]=[0,7,2,5]", "f32[32,128]").calls
    assert call.vpu_flops_at_step.tolist() == [n * 1024 for n in (0, 7, 2, 5)]


def test_dynamic_grid_bound_is_evaluated() -> None:
    def function(count: jax.Array, x: jax.Array) -> jax.Array:
        return samples.copy_blocks((8, 128), (count,), lambda i: (i, 0))(x)

    assert trace(function, np.int32(3), "f32[64,128]").calls[0].grid == (3,)
    unknown = trace(function, "i32[]", "f32[64,128]")
    assert unknown.calls[0].grid == (1,)
    assert any("grid dimension 0" in note for note in unknown.notes)


def test_state_in_smem_is_followed_from_step_to_step() -> None:
    def kernel(x: Any, out: Any, seen: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            seen[0] = 0

        # every third step, by a counter that is kept and not computed
        @pl.when(seen[0] == 2)
        def _() -> None:
            out[...] = x[...] + x[...]

        seen[0] = jnp.where(seen[0] == 2, 0, seen[0] + 1)

    def function(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            grid=(9,),
            in_specs=[spec],
            out_specs=spec,
            out_shape=samples.like(x),
            scratch_shapes=[pltpu.SMEM((1,), jnp.int32)],
        )(x)

    (call,) = trace(function, "f32[72,128]").calls
    assert call.vpu_flops_at_step.tolist() == [0, 0, 1024] * 3
    assert call.notes == ()


def test_hand_written_copies_are_traffic() -> None:
    (call,) = trace(samples.double_buffered, "f32[64,128]").calls
    assert call.dma_count == 8
    assert call.dma_read_bytes == 64 * 128 * 4
    assert call.dma_wait_count == 8
    assert call.hbm_read_bytes == call.hbm_written_bytes == 64 * 128 * 4
    assert call.vpu_flops >= 64 * 128
    assert [item.memory_space for item in call.scratch] == ["vmem", "semaphore"]


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "7x"])
def test_emit_pipeline_traces_for_every_chip(chip: str) -> None:
    (call,) = trace(samples.pipelined_double(4), "f32[32,256]", chip=chip).calls
    assert call.grid == ()
    assert call.dma_read_bytes == call.dma_written_bytes == 32 * 256 * 4
    assert call.dma_count == 16
    assert call.vpu_flops == 32 * 256


def test_without_grid_blocks_are_single_buffered() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    (call,) = trace(samples.whole(kernel), "f32[256,128]").calls
    assert call.grid == ()
    assert call.steps == 1
    assert call.vmem_bytes == 2 * 256 * 128 * 4
    assert call.hbm_bytes == 2 * 256 * 128 * 4


def test_ragged_edges_move_what_lies_inside() -> None:
    function = samples.copy_blocks((16, 128), (3, 2), lambda i, j: (i, j))
    (call,) = trace(function, "f32[40,200]").calls
    # 40 rows in blocks of 16, 16, 8; 200 columns in blocks of 128, 72
    assert call.hbm_read_bytes == 40 * 200 * 4
    assert call.inputs[0].moved_bytes_padded == 40 * 256 * 4
    assert call.inputs[0].block_counts == (3, 2)


def test_squeezed_dimension_and_smem_operand() -> None:
    def kernel(scale: Any, x: Any, out: Any) -> None:
        out[...] = x[...] * scale[0]

    def function(scale: jax.Array, x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((None, 8, 128), lambda b, i: (b, i, 0))
        return pl.pallas_call(
            kernel,
            grid=(3, 2),
            in_specs=[samples.SMEM, spec],
            out_specs=spec,
            out_shape=samples.like(x),
        )(scale, x)

    (call,) = trace(function, "f32[1]", "f32[3,16,128]").calls
    scale, x = call.inputs
    assert (scale.memory_space, scale.move_count) == ("smem", 1)
    assert x.block_shape == (None, 8, 128)
    assert x.block_bytes == 8 * 128 * 4
    assert call.block_indices(x).tolist() == [[b, i, 0] for b in range(3) for i in range(2)]


def test_element_windows() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[pl.ds(0, 8), :]

    def function(x: jax.Array) -> jax.Array:
        window = pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (i * 8, 0))
        return pl.pallas_call(
            kernel,
            grid=(3,),
            in_specs=[window],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((24, 128), x.dtype),
        )(x)

    (call,) = trace(function, "f32[32,128]").calls
    assert call.inputs[0].element_dims == (0, 1)
    assert call.block_indices("x")[:, 0].tolist() == [0, 8, 16]
    assert call.inputs[0].moved_bytes == 3 * 16 * 128 * 4


def test_vmap_adds_a_parallel_grid_axis() -> None:
    (call,) = trace(jax.vmap(samples.add_one), "f32[3,16,128]").calls
    assert call.grid == (3, 2)
    assert call.dimension_semantics == ("parallel", "parallel")
    assert call.vpu_flops == 3 * 16 * 128


def test_calls_in_jit_scan_loop_and_custom_vjp() -> None:
    @jax.custom_vjp
    def guarded(x: jax.Array) -> jax.Array:
        return samples.add_one(x)

    guarded.defvjp(lambda x: (guarded(x), None), lambda _, g: (samples.add_one(g),))

    def function(x: jax.Array) -> jax.Array:
        x = jax.jit(samples.add_one)(x)
        x, _ = jax.lax.scan(lambda c, _: (samples.add_one(c), None), x, None, length=7)
        x = jax.lax.fori_loop(0, 5, lambda _, c: samples.add_one(c), x)
        return guarded(x)

    kernel = trace(function, "f32[16,128]")
    assert [call.times for call in kernel.calls] == [1, 7, 5, 1]
    assert kernel.vpu_flops == (1 + 7 + 5 + 1) * 16 * 128
    assert len(trace(jax.value_and_grad(lambda x: guarded(x).sum()), "f32[16,128]").calls) == 2


def test_call_in_a_branch() -> None:
    def function(flag: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.cond(flag, samples.add_one, lambda x: x, x)

    assert len(trace(function, np.bool_(True), "f32[16,128]").calls) == 1
    with pytest.raises(NoPallasCall):
        trace(function, np.bool_(False), "f32[16,128]")
    assert any("branch" in note for note in trace(function, "bool[]", "f32[16,128]").notes)


def test_while_loop_with_known_and_unknown_bound() -> None:
    def function(x: jax.Array, count: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, count, lambda _, c: samples.add_one(c), x)

    assert trace(function, "f32[16,128]", np.int32(9)).calls[0].times == 9
    unknown = trace(function, "f32[16,128]", "i32[]")
    assert unknown.calls[0].times == 1
    assert any("how often" in note for note in unknown.notes)


def test_shard_map_counts_one_device() -> None:
    automatic = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((4,), ("x",), axis_types=automatic)
    spec = jax.sharding.PartitionSpec("x")
    function = jax.shard_map(
        samples.add_one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    kernel = trace(function, "f32[64,128]")
    assert kernel.calls[0].inputs[0].shape == (16, 128)
    assert any("first of 4" in note for note in kernel.notes)


def test_nested_arguments_and_results() -> None:
    def function(pair: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return samples.add_one(pair["a"]), samples.add_one(pair["b"])

    spec = jax.ShapeDtypeStruct((16, 128), jnp.float32)
    kernel = trace(function, {"a": spec, "b": np.zeros((16, 128), np.float32)})
    assert len(kernel.calls) == len(kernel.arguments) == len(kernel.results) == 2


def test_aliased_operands_name_each_other() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...]

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=samples.like(x), input_output_aliases={0: 0})(x)

    (call,) = trace(function, "f32[8,128]").calls
    assert call.inputs[0].aliased_with == 0
    assert call.outputs[0].aliased_with == 0


# -- what can go wrong --------------------------------------------------------------------------


def test_not_a_function() -> None:
    with pytest.raises(TraceError, match="not a function"):
        trace(3, "f32[8,128]")  # type: ignore[arg-type]


def test_wrong_arity_names_the_parameters() -> None:
    with pytest.raises(TraceError, match=r"takes \(x: .*was given 2 arguments") as caught:
        trace(samples.add_one, "f32[16,128]", "f32[16,128]")
    assert caught.value.where.startswith(SAMPLES)


def test_no_pallas_call() -> None:
    with pytest.raises(NoPallasCall, match="no pallas_call") as caught:
        trace(lambda x: x + 1, "f32[8,128]")
    assert caught.value.where.startswith(str(HERE))


def test_exception_inside_a_kernel_points_at_its_line() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] + jnp.ones((3, 5))  # the line that raises

    line = 1 + next(
        number
        for number, text in enumerate(HERE.read_text().splitlines())
        if "# the line that raises" in text and "enumerate" not in text
    )
    with pytest.raises(TraceError, match="TypeError") as caught:
        trace(samples.whole(kernel), "f32[8,128]")
    assert caught.value.where == f"{HERE}:{line}"
    assert isinstance(caught.value.__cause__, TypeError)


def test_argument_that_is_not_an_array() -> None:
    with pytest.raises(UsageError, match="not an array"):
        trace(samples.add_one, object())


def test_x64_is_named() -> None:
    program = (
        "import jax, sys\n"
        "jax.config.update('jax_enable_x64', True)\n"
        "import jax.numpy as jnp\n"
        "from jax.experimental import pallas as pl\n"
        "from tpulab.kernel import trace, illegalities\n"
        "def k(x, o):\n"
        "    o[...] = x[...] + jnp.sum(jnp.arange(3)).astype(jnp.float32)\n"
        "def f(x):\n"
        "    return pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)\n"
        "print([i.rule for i in illegalities(trace(f, 'f32[8,128]'))])\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=HERE.parents[2],
        check=False,
    )
    assert "64-bit" in done.stdout, done.stderr


@pytest.mark.parametrize("rows", [3, 40, 5000])
def test_long_pipelines_are_counted_exactly(rows: int) -> None:
    (call,) = trace(samples.pipelined_double(rows), f"f32[{8 * rows},256]").calls
    # each block comes once and goes once, waits included
    assert call.dma_count == call.dma_wait_count == 2 * rows * 2
    assert call.dma_read_bytes == call.dma_written_bytes == 8 * rows * 256 * 4
    assert call.vpu_flops == 8 * rows * 256
    assert call.dma_counts_exact
    assert call.notes == ()


def test_compiled_and_walked_loops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(x: Any, out: Any) -> None:
        step = pl.program_id(0)

        def body(i: Any, carry: Any) -> Any:
            @pl.when((i * 7 + step) % 5 < 2)
            def _() -> None:
                out[...] = x[...] + x[...]

            return (carry * 3 + i) % 11

        last = jax.lax.fori_loop(0, 300, body, step)

        @pl.when(last > 5)
        def _() -> None:
            out[...] = jnp.exp(x[...])

    def function(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, grid=(6,), in_specs=[spec], out_specs=spec, out_shape=samples.like(x)
        )(x)

    additions, exponentials = [], []
    for step in range(6):
        carry = step
        count = 0
        for i in range(300):
            count += (i * 7 + step) % 5 < 2
            carry = (carry * 3 + i) % 11
        additions.append(count * 1024)
        exponentials.append(1024 * (carry > 5))
    monkeypatch.setattr("tpulab.kernel.counting.COMPILE_FROM", 10**9)
    (walked,) = trace(function, "f32[48,128]").calls
    assert walked.vpu_flops_at_step.tolist() == additions
    monkeypatch.setattr("tpulab.kernel.counting.COMPILE_FROM", 0)
    monkeypatch.setattr("tpulab.kernel.counting.LOOP_BUDGET", 0)
    (compiled,) = trace(function, "f32[48,128]").calls
    assert compiled.vpu_flops_at_step.tolist() == additions
    assert not [note for note in compiled.notes if "too long" in note]
    # the carried value decides nothing within the loop, so only the walk knows it afterwards
    assert walked.transcendentals_at_step.tolist() == exponentials


@pytest.mark.parametrize("cores", [1, 2])
def test_kernel_over_a_mesh_of_cores(cores: int) -> None:
    (call,) = trace(samples.on_cores(cores), f"f32[{8 * cores},128]", chip="v5p").calls
    assert call.grid == (cores,)
    assert [operand.memory_space for operand in call.operands] == ["any", "any"]
    assert call.dma_read_bytes == call.dma_written_bytes == cores * 8 * 128 * 4
    assert call.vpu_flops == cores * 8 * 128
    assert call.notes == ()


def test_grid_without_steps_and_grid_with_too_many() -> None:
    empty = samples.copy_blocks((8, 128), (0,), lambda i: (i, 0))
    kernel = trace(empty, "f32[8,128]")
    assert kernel.steps == kernel.hbm_bytes == 0
    assert [item.rule for item in illegalities(kernel)] == ["empty-grid"]
    endless = samples.copy_blocks((8, 128), (3000, 3000), lambda i, j: (0, 0))
    with pytest.raises(TraceError, match="9,000,000 steps"):
        trace(endless, "f32[8,128]")


def test_a_kernel_can_be_sent_to_another_process(published: Kernel) -> None:
    copy = pickle.loads(pickle.dumps(published))
    assert copy.jaxpr is None
    assert copy.mxu_flops == published.mxu_flops
    assert copy.calls[0].moves("out").sum() == 64


def test_values_of_an_input_in_smem_decide_loops() -> None:
    known = trace(samples.repeats, "i32[2]=[9,3]", "f32[32,128]")
    assert known.vpu_flops == 3 * 32 * 128
    assert known.notes == ()
    unknown = trace(samples.repeats, "i32[2]", "f32[32,128]")
    assert unknown.vpu_flops == 32 * 128
    assert "depends on data" in unknown.notes[0]


def test_text_arguments_in_containers() -> None:
    kernel = trace(lambda pair: samples.repeats(*pair), ("i32[2]=[9,3]", "f32[32,128]"))
    assert kernel.vpu_flops == 3 * 32 * 128


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_changed_global_is_noticed_in_jitted_functions(wrapped: bool) -> None:
    """JAX keeps traces by function; a block size changed in another cell must not go unnoticed."""
    settings = {"block": 256, "terms": 1}

    def body(x_ref: Any, out_ref: Any) -> None:
        value = x_ref[...]
        for _ in range(settings["terms"]):
            value = value + 1.0
        out_ref[...] = value

    @jax.jit
    def jitted(x: Any) -> Any:
        rows = settings["block"]
        return pl.pallas_call(
            body,
            grid=(x.shape[0] // rows,),
            in_specs=[pl.BlockSpec((rows, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((rows, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        )(x)

    def outer(x: Any) -> Any:
        return jitted(x)

    function = outer if wrapped else jitted
    assert trace(function, "f32[1024,128]").calls[0].grid == (4,)
    settings["block"] = 64
    assert trace(function, "f32[1024,128]").calls[0].grid == (16,)
    settings["terms"] = 3
    assert trace(function, "f32[1024,128]").vpu_flops == 3 * 1024 * 128


def test_the_least_traffic_counts_no_block_twice() -> None:
    """Two of eight blocks are read, again and again; all that is written is eight blocks."""
    block = 8 * 128 * 4

    def body(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    def two(x: Any) -> Any:
        return pl.pallas_call(
            body,
            grid=(8,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i % 2, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((64, 128), x.dtype),
        )(x)

    kernel = trace(two, "f32[64,128]")
    assert kernel.hbm_bytes == 16 * block
    assert kernel.unique_bytes == kernel.calls[0].unique_bytes == (2 + 8) * block


def test_the_least_traffic_of_copies_by_hand() -> None:
    """Either of two arrays is copied from, the same part of it at every step."""

    def body(which_ref: Any, a_ref: Any, b_ref: Any, out_ref: Any, buffer: Any, done: Any) -> None:
        @pl.when(which_ref[0] == 0)
        def _() -> None:
            pltpu.make_async_copy(a_ref.at[pl.ds(8, 8)], buffer, done).start()

        @pl.when(which_ref[0] != 0)
        def _() -> None:
            pltpu.make_async_copy(b_ref.at[pl.ds(8, 8)], buffer, done).start()

        pltpu.make_async_copy(b_ref.at[pl.ds(0, 8)], buffer, done).wait()
        out_ref[...] = buffer[...]

    def either(which: Any, a: Any, b: Any) -> Any:
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(4,),
                in_specs=[anywhere, anywhere],
                out_specs=pl.BlockSpec((8, 128), lambda i, which: (i, 0)),
                scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
            ),
            out_shape=jax.ShapeDtypeStruct((32, 128), jnp.float32),
        )(which, a, b)

    known = trace(either, "i32[1]=[0]", "f32[64,128]", "f32[64,128]")
    assert known.unique_bytes == 4 + (1 + 4) * 8 * 128 * 4
    assert known.hbm_bytes == 4 + (4 + 4) * 8 * 128 * 4
    # neither copy must be made when it is not known which one will be
    unknown = trace(either, "i32[1]", "f32[64,128]", "f32[64,128]")
    assert unknown.unique_bytes == 4 + 4 * 8 * 128 * 4


def test_arrays_between_calls_may_stay_in_vmem() -> None:
    """Only the argument and the result must pass through HBM, whatever lies between."""

    def chain(x: Any) -> Any:
        for _ in range(4):
            x = samples.copy_blocks((8, 128), (8,), lambda i: (i, 0))(x)
        return x

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, y: chain(y), x)

    def scan(x: Any) -> Any:
        return jax.lax.scan(lambda carry, row: (carry, chain(row)), 0, x.reshape(2, 32, 128))[1]

    size = 64 * 128 * 4
    for function, calls in ((chain, 4), (loop, 20)):
        kernel = trace(function, "f32[64,128]")
        assert kernel.hbm_bytes == calls * 2 * size
        assert kernel.unique_bytes == 2 * size
        assert kernel.handed_on_bytes == (calls - 1) * 2 * size
    assert trace(scan, "f32[64,128]").unique_bytes >= 2 * size - size


def test_a_converted_argument_is_read_as_far_as_it_is_used() -> None:
    kernel = trace(
        lambda x: samples.copy_blocks((16, 128), (4,), lambda i: (i, 0))(x.astype(jnp.bfloat16)),
        "f32[64,128]",
    )
    assert kernel.unique_bytes == 2 * 64 * 128 * 2


def test_a_function_that_throws_its_kernel_away_is_described_as_written() -> None:
    copy = samples.copy_blocks((16, 128), (4,), lambda i: (i, 0))

    def decoy(x: Any) -> Any:
        copy(x)
        return jnp.zeros_like(x)

    def one_of_two(x: Any) -> Any:
        copy(x)
        return copy(x + 1)

    (thrown_away,) = trace(decoy, "f32[64,128]").calls
    assert thrown_away.grid == (4,)
    assert all(call.times == 1 for call in trace(one_of_two, "f32[64,128]").calls)
