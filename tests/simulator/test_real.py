"""Programs of the real compiler: what moves is known exactly, and no time beats the bounds."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tpulab.simulator import Options, SimulationRefused, constants_for, simulate
from tpulab.simulator.accuracy import matmul, predict, rows

pytestmark = pytest.mark.needs_libtpu

CHIPS = ["v4", "v5e", "v5p", "v6e", "7x"]


def compiled(function: Any, *arguments: Any, chip: str) -> Any:
    from tpulab.compiler import compile as compile_for_chip

    return compile_for_chip(function, *arguments, chip=chip)


def traced(function: Any, *arguments: Any) -> Any:
    from tpulab.kernel import trace

    return trace(function, *arguments)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_matmul_on_every_generation(chip: str) -> None:
    function, arguments = matmul(4096, (512, 512, 512))
    program = compiled(function, *arguments, chip=chip)
    timeline = simulate(program, options=Options(max_events=500))
    constants = constants_for(chip)
    # 8 x 8 x 8 steps, two blocks of 512 KiB each; 64 blocks of the result.
    assert timeline.load_count == 1024
    assert timeline.hbm_read_bytes == 512 * 2**20
    assert timeline.store_count == 64
    assert timeline.hbm_written_bytes == 32 * 2**20
    cores = timeline.cores
    compute = 2 * 4096**3 / cores / constants.peak_flops_per_second["bfloat16"]
    traffic = 544 * 2**20 / cores / constants.hbm_bytes_per_second
    assert max(compute, traffic) < timeline.seconds < 2 * max(compute, traffic)
    assert timeline.steps == 512
    # The pipeline's first and last round on each core are not steps of the grid.
    assert timeline.rounds == 512 + 2 * cores
    assert timeline.kernel_hbm_bytes == 544 * 2**20
    assert timeline.xla_hbm_bytes == 0
    assert not timeline.warnings
    total = timeline.bundles_issued + sum(timeline.stall_cycles.values())
    assert total == pytest.approx(timeline.cycles, rel=0.001)
    schedule = simulate(program, options=Options(free_dma=True, max_events=0))
    assert schedule.seconds <= timeline.seconds
    assert schedule.hbm_read_bytes == timeline.hbm_read_bytes


def test_published_times_of_the_jax_documentation() -> None:
    chosen = {"JAX-001", "JAX-005", "JAX-014", "JAX-016", "JAX-020"}
    for row in rows():
        if row.id in chosen:
            result = predict(row, Options(max_events=0, deadline_seconds=120))
            assert abs(result.error) < 0.10, f"{row.id}: {result.error:+.1%}"


@pytest.mark.slow
def test_all_published_times() -> None:
    for row in rows():
        result = predict(row, Options(max_events=0, deadline_seconds=250))
        assert abs(result.error_with_dispatch) < 0.10, (
            f"{row.id}: {result.error_with_dispatch:+.1%}"
        )
        # Where nearly all of the published time is dispatch, what is left of it says little.
        if row.dispatch_share < 0.5:
            assert abs(result.error) < 0.10, f"{row.id}: {result.error:+.1%}"


def _double_buffered() -> tuple[Any, tuple[Any, ...]]:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x: Any, o: Any, buffer: Any, semaphores: Any, total: Any) -> None:
        def copy(i: Any, slot: Any) -> Any:
            rows_of_block = pl.ds(pl.multiple_of(i * 128, 128), 128)
            return pltpu.make_async_copy(
                x.at[rows_of_block, :], buffer.at[slot], semaphores.at[slot]
            )

        copy(0, 0).start()
        total[...] = jnp.zeros_like(total)

        def body(i: Any, carry: Any) -> Any:
            slot = lax.rem(i, 2)

            @pl.when(i + 1 < 32)
            def _() -> None:
                copy(i + 1, 1 - slot).start()

            copy(i, slot).wait()
            total[...] += jnp.exp(buffer[slot])
            return carry

        lax.fori_loop(0, 32, body, 0)
        o[...] = total[...]

    def run(x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
            scratch_shapes=[
                pltpu.VMEM((2, 128, 512), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.VMEM((128, 512), jnp.float32),
            ],
            out_shape=jax.ShapeDtypeStruct((128, 512), jnp.float32),
        )(x)

    return run, (jax.ShapeDtypeStruct((65536, 512), jnp.float32),)


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_hand_written_double_buffering(chip: str) -> None:
    function, arguments = _double_buffered()
    timeline = simulate(compiled(function, *arguments, chip=chip))
    # Only 32 blocks of the array are read.
    assert timeline.load_count == 32
    assert timeline.hbm_read_bytes == 32 * 128 * 512 * 4
    assert timeline.steps == 32


def test_emit_pipeline() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    spec = pl.BlockSpec((256, 256), lambda i, j: (i, j))

    def outer(x: Any, y: Any, o: Any) -> None:
        def inner(x_block: Any, y_block: Any, o_block: Any) -> None:
            o_block[...] = x_block[...] * y_block[...]

        pltpu.emit_pipeline(inner, grid=(8, 4), in_specs=[spec, spec], out_specs=[spec])(x, y, o)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    array = jax.ShapeDtypeStruct((2048, 1024), jnp.float32)

    def run(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            outer, in_specs=[anywhere, anywhere], out_specs=anywhere, out_shape=array
        )(x, y)

    timeline = simulate(compiled(run, array, array, chip="v5e"))
    assert timeline.hbm_read_bytes == 2 * 2048 * 1024 * 4
    assert timeline.hbm_written_bytes == 2048 * 1024 * 4
    assert timeline.load_count == 64
    assert timeline.store_count == 32


def _prefetched(idx: Any, x: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(idx_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2.0

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(16,),
            in_specs=[pl.BlockSpec((128, 256), lambda i, idx: (idx[i], 0))],
            out_specs=pl.BlockSpec((128, 256), lambda i, idx: (i, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((2048, 256), jnp.float32),
    )(idx, x)


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
@pytest.mark.parametrize(
    ("indices", "loads"), [(range(16), 16), ([3] * 16, 1), ([0] * 8 + [1] * 8, 2)]
)
def test_scalar_prefetch_decides_what_moves(chip: str, indices: Any, loads: int) -> None:
    import jax
    import jax.numpy as jnp

    values = numpy.array(list(indices), numpy.int32)
    array = jax.ShapeDtypeStruct((65536, 256), jnp.float32)
    program = compiled(_prefetched, values, array, chip=chip)
    kernel = traced(_prefetched, values, array)
    timeline = simulate(program, kernel=kernel)
    block = 128 * 256 * 4
    assert timeline.hbm_read_bytes // block == loads
    assert timeline.hbm_written_bytes == 16 * block


def test_scalar_prefetch_without_values_is_refused() -> None:
    import jax
    import jax.numpy as jnp

    indices = jax.ShapeDtypeStruct((16,), jnp.int32)
    array = jax.ShapeDtypeStruct((65536, 256), jnp.float32)
    program = compiled(_prefetched, indices, array, chip="v5e")
    with pytest.raises(SimulationRefused, match="only the chip would know") as refusal:
        simulate(program)
    assert "make_args" in str(refusal.value)


def test_a_branch_on_a_sum_is_refused() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

        @pl.when(jnp.sum(x_ref[...]) > 0)
        def _() -> None:
            o_ref[...] = x_ref[...] * 2.0

    array = jax.ShapeDtypeStruct((64, 256), jnp.float32)

    def run(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=array)(x)

    program = compiled(run, array, chip="v5e")
    with pytest.raises(SimulationRefused, match="only the chip would know"):
        simulate(program)


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_flash_attention_of_jax(chip: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

    array = jax.ShapeDtypeStruct((1, 4, 1024, 128), jnp.bfloat16)

    def run(q: Any, k: Any, v: Any) -> Any:
        return flash_attention(q, k, v, causal=True)

    timeline = simulate(compiled(run, array, array, array, chip=chip))
    constants = constants_for(chip)
    blocks = 4 * 8 * 9 // 2  # heads x causal pairs of blocks of 128
    flops = blocks * 2 * 2 * 128**3
    assert timeline.seconds > flops / constants.peak_flops_per_second["bfloat16"]
    assert timeline.hbm_written_bytes == 4 * 1024 * 128 * 2
    assert timeline.busy_cycles["mxu"] > 0
    assert timeline.busy_cycles["eup"] > 0


def test_pieces_of_xla_around_a_kernel() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    array = jax.ShapeDtypeStruct((2048, 512), jnp.float32)
    spec = pl.BlockSpec((256, 512), lambda i: (i, 0))

    def run(x: Any, y: Any) -> Any:
        doubled = pl.pallas_call(
            kernel, grid=(8,), in_specs=[spec], out_specs=spec, out_shape=array
        )(x + y)
        return jnp.sin(doubled).sum(0)

    timeline = simulate(compiled(run, array, array, chip="v5e"))
    kinds = [piece.kind for piece in timeline.pieces]
    assert kinds.count("kernel") == 1
    assert kinds.count("xla") >= 2
    ends = [piece.end_cycle for piece in timeline.pieces]
    assert ends == sorted(ends)
    assert timeline.cycles == ends[-1]


def _blocked(kernel: Any, shape: tuple[int, int], rows_of_block: int, **more: Any) -> Any:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    array = jax.ShapeDtypeStruct(shape, jnp.float32)
    spec = pl.BlockSpec((rows_of_block, shape[1]), lambda i: (i, 0))

    def run(x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(shape[0] // rows_of_block,),
            in_specs=[spec],
            out_specs=spec,
            out_shape=array,
            **more,
        )(x)

    return run, array


def test_stalls_carry_the_names_of_the_kernels_arguments() -> None:
    def kernel(left_ref: Any, out_ref: Any) -> None:
        out_ref[...] = left_ref[...] + 1

    function, array = _blocked(kernel, (4096, 512), 256)
    program = compiled(function, array, chip="v5e")
    named = simulate(program, kernel=traced(function, array))
    assert "waiting for DMA: input left_ref" in named.stall_cycles
    assert "waiting for DMA: output out_ref" in named.stall_cycles
    assert {event.name for event in named.events if event.unit == "dma_in"} == {"input left_ref"}
    plain = simulate(program)
    assert "waiting for DMA: input 0" in plain.stall_cycles
    assert plain.cycles == named.cycles
    assert named.steps == plain.steps == 16
    assert not named.warnings


@pytest.mark.parametrize("chip", ["v5e", "v5p"])
def test_scratch_in_smem(chip: str) -> None:
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental.pallas import tpu as pltpu

    def counted(x_ref: Any, o_ref: Any, count: Any) -> None:
        count[0] = 5
        unwritten(x_ref, o_ref, count)

    def unwritten(x_ref: Any, o_ref: Any, count: Any) -> None:
        def body(_: Any, carry: Any) -> Any:
            o_ref[...] += x_ref[...]
            return carry

        lax.fori_loop(0, count[0], body, None)

    scratch = [pltpu.SMEM((1,), jnp.int32)]
    function, array = _blocked(counted, (64, 256), 8, scratch_shapes=scratch)
    assert simulate(compiled(function, array, chip=chip)).steps == 8
    function, array = _blocked(unwritten, (64, 256), 8, scratch_shapes=scratch)
    program = compiled(function, array, chip=chip)
    with pytest.raises(SimulationRefused, match="only the chip would know") as refusal:
        simulate(program)
    assert "SMEM that was never written" in str(refusal.value)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_copy_inside_the_hbm(chip: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, o_ref, semaphore)
        copy.start()
        copy.wait()

    array = jax.ShapeDtypeStruct((2048, 1024), jnp.float32)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)

    def run(x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            in_specs=[anywhere],
            out_specs=anywhere,
            out_shape=array,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )(x)

    timeline = simulate(compiled(run, array, chip=chip))
    size = 2048 * 1024 * 4
    assert timeline.hbm_read_bytes == timeline.hbm_written_bytes == size
    constants = constants_for(chip)
    reachable = constants.hbm_bytes_per_cycle * constants.clock_hertz
    assert timeline.seconds >= 2 * size / reachable


def test_two_cores_share_a_parallel_axis_and_a_lone_one_says_so() -> None:
    from jax.experimental.pallas import tpu as pltpu

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + 1

    found = {}
    for semantics in ("parallel", "arbitrary"):
        parameters = pltpu.CompilerParams(dimension_semantics=(semantics,))
        function, array = _blocked(kernel, (4096, 512), 256, compiler_params=parameters)
        found[semantics] = simulate(
            compiled(function, array, chip="v5p"), kernel=traced(function, array)
        )
    both, lone = found["parallel"], found["arbitrary"]
    assert (both.cores, lone.cores) == (2, 1)
    assert both.steps == lone.steps == 16
    assert both.hbm_read_bytes == lone.hbm_read_bytes == 4096 * 512 * 4
    assert lone.seconds > 1.5 * both.seconds
    assert not both.warnings
    assert any("only one of two cores works" in text for text in lone.warnings)
    assert "waiting for DMA: lone core's part of the HBM bandwidth" in lone.stall_cycles


def _counted(chip: str) -> tuple[Any, Any]:
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def kernel(count: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

        def body(_: Any, carry: Any) -> Any:
            o_ref[...] += x_ref[...]
            return carry

        lax.fori_loop(0, count[0], body, 0)

    array = jax.ShapeDtypeStruct((64, 256), jnp.float32)

    def run(count: Any, x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            in_specs=[
                pl.BlockSpec(memory_space=pltpu.SMEM),
                pl.BlockSpec(memory_space=pltpu.VMEM),
            ],
            out_specs=pl.BlockSpec(memory_space=pltpu.VMEM),
            out_shape=array,
        )(count, x)

    return run, array


def test_a_trip_count_from_smem() -> None:
    function, array = _counted("v5e")
    times = []
    for count in (10, 20, 40):
        values = numpy.array([count], numpy.int32)
        program = compiled(function, values, array, chip="v5e")
        kernel = traced(function, values, array)
        timeline = simulate(program, kernel=kernel, arguments=(values, array))
        assert timeline.steps == count
        times.append(timeline.cycles)
    # Every iteration costs the same.
    assert (times[2] - times[1]) == pytest.approx(2 * (times[1] - times[0]), abs=2)


def test_a_grid_whose_bound_is_data() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.megablox import gmm

    left = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)
    right = jax.ShapeDtypeStruct((4, 256, 256), jnp.bfloat16)

    def run(x: Any, y: Any, sizes: Any) -> Any:
        return gmm(x, y, sizes, tiling=(128, 128, 128))

    steps = {}
    for sizes in ([128, 128, 128, 128], [100, 156, 128, 128]):
        values = numpy.array(sizes, numpy.int32)
        program = compiled(run, left, right, values, chip="v5e")
        kernel = traced(run, left, right, values)
        timeline = simulate(program, kernel=kernel)
        assert timeline.steps == kernel.calls[0].steps
        steps[tuple(sizes)] = timeline.steps
    # A group that does not end with a block costs its block twice.
    assert steps[100, 156, 128, 128] > steps[128, 128, 128, 128]
