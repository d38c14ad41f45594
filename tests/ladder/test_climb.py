"""Rungs and causes from small made-up kernels, programs and timelines with known losses."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.hardware import get_chip
from tpulab.ladder import RUNGS, ChipLadder, Ladder, Refusal, climb, compare, refused_entry
from tpulab.ladder_causes import _advice, bytes_text, padded_products, time_text
from tpulab.ladder_climb import prediction_error

V5E = get_chip("v5e")
SCHEMA = json.loads(resources.files("tpulab").joinpath("ladder_schema.json").read_text("utf-8"))
MIB = 2**20


def fake_operand(
    name: str, array_bytes: int, moved_bytes: int, *, is_input: bool, is_pipelined: bool = True
) -> SimpleNamespace:
    return SimpleNamespace(
        name=name,
        array_bytes=array_bytes,
        least_bytes=min(array_bytes, moved_bytes) if is_pipelined else array_bytes,
        moved_bytes=moved_bytes,
        is_input=is_input,
        is_pipelined=is_pipelined,
    )


def fake_product(m: int, k: int, n: int, count: int = 1, **changes: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "m": m, "k": k, "n": n, "batch": 1, "count": count, "lhs_dtype": "bfloat16",
        "rhs_dtype": "bfloat16", "dtype": "bfloat16", "precision": None,
        "flops": 2 * m * k * n * count,
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changes})


def fake_call(
    *operands: SimpleNamespace,
    products: tuple[SimpleNamespace, ...] = (),
    grid: tuple[int, ...] = (4,),
    semantics: tuple[str, ...] = ("parallel",),
    padding: float = 1.0,
    **changes: Any,
) -> SimpleNamespace:
    moved = sum(each.moved_bytes for each in operands)
    fields: dict[str, Any] = {
        "name": "body",
        "grid": grid,
        "dimension_semantics": semantics,
        "operands": operands,
        "scalar_prefetch": (),
        "matmuls": products,
        "times": 1,
        "vpu_flops": 0,
        "transcendentals": 0,
        "remote_bytes": 0,
        "dma_read_bytes": 0,
        "dma_written_bytes": 0,
        "hbm_bytes": moved,
        "hbm_bytes_padded": moved * padding,
        "unique_bytes": sum(min(each.array_bytes, each.moved_bytes) for each in operands),
    }
    return SimpleNamespace(**{**fields, **changes})


def fake_kernel(*calls: SimpleNamespace, **changes: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "name": "f",
        "calls": calls,
        "notes": (),
        "hbm_bytes": sum(each.hbm_bytes * each.times for each in calls),
        "unique_bytes": sum(each.unique_bytes * each.times for each in calls),
        "arguments": ("bfloat16[8,128]",),
    }
    return SimpleNamespace(**{**fields, **changes})


def fake_program(**changes: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "compiler_version": "libtpu 1.2.3",
        "vmem": SimpleNamespace(used_bytes=1 << 20),
        "spills": 0,
        "kernels": (SimpleNamespace(slots=SimpleNamespace(bundles=1000)),),
    }
    return SimpleNamespace(**{**fields, **changes})


def fake_timeline(
    seconds: float,
    *,
    clock: float = 1.5e9,
    stalls: dict[str, float] | None = None,
    busy: dict[str, float] | None = None,
    xla: float = 0.0,
    **changes: Any,
) -> SimpleNamespace:
    """`stalls` in seconds; the rest of the time issues bundles."""
    stalled = {name: lost * clock for name, lost in (stalls or {}).items()}
    cycles = seconds * clock
    waits = sum(
        lost for name, lost in stalled.items() if name.startswith(("waiting for DMA", "prologue"))
    )
    pieces = [
        SimpleNamespace(
            name="f.1",
            kind="kernel",
            start_cycle=0.0,
            end_cycle=cycles,
            hbm_read_bytes=changes.get("hbm_read_bytes", 1000),
            hbm_written_bytes=changes.get("hbm_written_bytes", 500),
        )
    ]
    if xla:
        pieces.append(
            SimpleNamespace(
                name="copy", kind="xla", start_cycle=cycles - xla * clock, end_cycle=cycles
            )
        )
    fields: dict[str, Any] = {
        "seconds": seconds,
        "cycles": cycles,
        "clock_hertz": clock,
        "stall_cycles": stalled,
        "busy_cycles": {"mxu": 0.5 * cycles, "vpu": 0.1 * cycles, **(busy or {})},
        "bundles_issued": int(cycles - sum(stalled.values())),
        "compute_cycles": cycles - waits,
        "pieces": tuple(pieces),
        "hbm_read_bytes": 1000,
        "hbm_written_bytes": 500,
        "steps": 4,
        "cores": 1,
        "limiting_unit": "mxu",
        "warnings": (),
    }
    return SimpleNamespace(**{**fields, **changes})


def _one(kernel, timeline, chip="v5e", program=None, **more) -> ChipLadder:
    return climb(kernel, program or fake_program(), timeline, chip=chip, **more)


def _ladder(*chips: ChipLadder) -> Ladder:
    return Ladder("f", ("bfloat16[8,128]",), "libtpu 1.2.3", {one.chip: one for one in chips})


def _matmul(extra_reads: int = 0, **changes):
    size = 32 * MIB
    return fake_kernel(
        fake_call(
            fake_operand("lhs", size, size * (1 + extra_reads), is_input=True),
            fake_operand("rhs", size, size, is_input=True),
            fake_operand("out", size, size, is_input=False),
            products=(fake_product(512, 512, 512, count=512),),
            **changes,
        )
    )


def _seconds(one: ChipLadder) -> dict[str, float]:
    return {rung.name: rung.seconds for rung in one.rungs}


def test_numbers_by_hand() -> None:
    kernel = _matmul()
    compute = 2 * 4096**3 / 197e12
    result = _one(kernel, fake_timeline(1e-3, stalls={"waiting for DMA: input 1": 1e-4}))
    seconds = _seconds(result)
    assert list(seconds) == list(RUNGS)
    assert seconds["speed of light"] == pytest.approx(compute)
    assert seconds["traffic"] == seconds["tile padding"] == seconds["speed of light"]
    assert seconds["schedule"] == pytest.approx(0.9e-3)
    assert seconds["pipeline"] == result.predicted_seconds == 1e-3
    assert result.bound_seconds == seconds["speed of light"]
    assert result.fraction_of_bound == pytest.approx(compute / 1e-3)
    assert result.hbm_bytes == 1500
    assert result.cycles == pytest.approx(1.5e6)
    assert result.stall_seconds == {"waiting for DMA: input 1": pytest.approx(1e-4)}


def test_hidden_rereads_cost_nothing_and_say_so() -> None:
    result = _one(_matmul(extra_reads=3), fake_timeline(1e-3))
    traffic = result.rungs[1]
    assert traffic.seconds == result.rungs[0].seconds
    assert "192 MiB move where 96 MiB would do" in traffic.cause
    assert "kernel body reads input lhs 4 times" in traffic.cause
    assert "hide behind the arithmetic" in traffic.cause


def test_a_little_more_traffic_does_not_hide_where_nothing_is_computed() -> None:
    size = 64 * MIB
    kernel = fake_kernel(
        fake_call(
            fake_operand("x", size, size, is_input=True),
            fake_operand("bias", MIB // 64, MIB // 8, is_input=True),
            fake_operand("out", size, size, is_input=False),
        )
    )
    traffic = _one(kernel, fake_timeline(1e-3)).rungs[1]
    assert "hide behind" not in traffic.cause
    assert f"the extra 112 KiB cost {112 * 1024 / 819e9 * 1e9:.3g} ns" in traffic.cause
    assert traffic.advice == ""


def test_rereads_that_show() -> None:
    kernel = _matmul(extra_reads=31)
    moved = 34 * 32 * MIB
    result = _one(kernel, fake_timeline(3e-3))
    assert _seconds(result)["traffic"] == pytest.approx(moved / 819e9)
    assert "kernel body reads input lhs 32 times" in result.rungs[1].cause
    assert result.rungs[1].advice == _advice()["traffic"]["input"]


def test_every_operand_that_is_read_again_is_named() -> None:
    size = 64 * MIB
    kernel = fake_kernel(
        fake_call(
            fake_operand("a", size, 16 * size, is_input=True),
            fake_operand("b", size, 3 * size, is_input=True),
            fake_operand("c", size, size, is_input=True),
            fake_operand("y", size, 2 * size, is_input=False),
            name="k",
        )
    )
    cause = _one(kernel, fake_timeline(5e-3)).rungs[1].cause
    assert "kernel k reads input a 16 times and b 3 times and writes output y 2 times" in cause


def test_arrays_between_kernels_are_named() -> None:
    size = 64 * MIB
    calls = [
        fake_call(
            fake_operand("x", size, size, is_input=True),
            fake_operand("y", size, size, is_input=False),
        )
        for _ in range(4)
    ]
    kernel = fake_kernel(*calls, unique_bytes=2 * size, handed_on_bytes=6 * size)
    result = _one(kernel, fake_timeline(2e-3))
    assert result.bound_seconds == pytest.approx(2 * size / 819e9)
    assert "384 MiB are arrays between kernels" in result.rungs[1].cause
    assert "Fuse them" in result.rungs[1].advice
    # XLA may keep them in VMEM: then the run is shorter than the count
    fast = _one(kernel, fake_timeline(3e-4))
    assert fast.refusal is None
    assert fast.rungs[1].seconds == 3e-4
    assert "counted so, 655.5 us; the program needs less" in fast.rungs[1].cause


def test_output_written_often() -> None:
    size = 64 * MIB
    kernel = fake_kernel(
        fake_call(
            fake_operand("x", size, size, is_input=True),
            fake_operand("y", size, 4 * size, is_input=False),
        )
    )
    result = _one(kernel, fake_timeline(1e-3))
    assert "kernel body writes output y 4 times" in result.rungs[1].cause
    assert "reduction axis last" in result.rungs[1].advice


def test_copies_by_hand() -> None:
    size = 64 * MIB
    kernel = fake_kernel(
        fake_call(
            fake_operand("pages", size, 0, is_input=True, is_pipelined=False),
            dma_read_bytes=3 * size,
            hbm_bytes=3 * size,
            hbm_bytes_padded=3 * size,
            unique_bytes=size,
        )
    )
    result = _one(kernel, fake_timeline(1e-3))
    assert result.rungs[1].advice == _advice()["traffic"]["by_hand"]


def test_a_sequence_of_kernels_is_no_faster_than_each() -> None:
    size = 256 * MIB
    move = fake_call(fake_operand("x", size, size, is_input=True))
    work = fake_call(
        fake_operand("y", MIB, MIB, is_input=True),
        products=(fake_product(512, 512, 512, count=512),),
    )
    result = _one(fake_kernel(move, work), fake_timeline(2e-3))
    compute, hbm = 2 * 4096**3 / 197e12, (size + MIB) / 819e9
    assert _seconds(result)["speed of light"] == pytest.approx(max(compute, hbm))
    assert _seconds(result)["traffic"] == pytest.approx(compute + size / 819e9, rel=1e-6)
    assert "2 kernels run one after the other" in result.rungs[1].cause


def test_padding_to_the_matrix_unit() -> None:
    kernel = fake_kernel(
        fake_call(
            fake_operand("q", MIB, MIB, is_input=True),
            products=(fake_product(512, 64, 512, count=4096),),
        )
    )
    result = _one(kernel, fake_timeline(5e-3))
    assert _seconds(result)["tile padding"] == pytest.approx(2 * _seconds(result)["traffic"])
    assert "fill 50% of the 128-wide matrix unit" in result.rungs[2].cause
    assert "merge small dimensions" in result.rungs[2].advice


def test_few_rows() -> None:
    products = (fake_product(1, 1024, 1024, count=100_000),)
    kernel = fake_kernel(fake_call(fake_operand("x", 8, 8, is_input=True), products=products))
    result = _one(kernel, fake_timeline(1.0))
    assert "rows at a time" in result.rungs[2].advice
    flops, worst, efficiency, kind = padded_products(kernel, V5E)
    assert flops["bfloat16"] == 16 * 2 * 1024**2 * 100_000
    assert worst is products[0]
    assert efficiency == pytest.approx(1 / 16)
    assert kind == "rows"


def test_the_narrow_operand_may_stream() -> None:
    # 8 columns: streaming them past the other operand pads 8 to 16, not to 128
    flops, *_ = padded_products(
        fake_kernel(fake_call(products=(fake_product(1024, 1024, 8),))), V5E
    )
    assert flops["bfloat16"] == 2 * 1024 * 1024 * 16


def test_padding_of_blocks() -> None:
    kernel = fake_kernel(
        fake_call(fake_operand("x", 64 * MIB, 64 * MIB, is_input=True), padding=16.0)
    )
    result = _one(kernel, fake_timeline(5e-3, hbm_read_bytes=1024 * MIB, hbm_written_bytes=0))
    assert "moves 16 times the bytes" in result.rungs[2].cause
    assert "multiple of 128" in result.rungs[2].advice
    # XLA has chosen a layout without padding for the arrays: it is not moved
    other = _one(kernel, fake_timeline(5e-3, hbm_read_bytes=64 * MIB, hbm_written_bytes=0))
    assert _seconds(other)["tile padding"] == _seconds(other)["traffic"]


@pytest.mark.parametrize(
    ("stall", "words"),
    [
        ("matrix result", "independent products"),
        ("matrix weights", "more rows"),
        ("matrix unit busy", "matrix unit is the limit"),
        ("cross-lane result", "across lanes"),
        ("EUP busy", "exp2"),
        ("scalar load", "scalar core"),
        ("something new", "timeline"),
    ],
)
def test_schedule_names_the_largest_stall(stall: str, words: str) -> None:
    result = _one(_matmul(), fake_timeline(2e-3, stalls={stall: 1.2e-3}))
    schedule = result.rungs[3]
    assert stall in schedule.cause
    assert words in schedule.advice
    assert result.largest_loss is schedule


@pytest.mark.parametrize(
    ("unit", "words"),
    [("vpu", "Do fewer operations"), ("store", "accumulator"), ("xlu", "across lanes")],
)
def test_schedule_names_the_busiest_unit(unit: str, words: str) -> None:
    result = _one(_matmul(), fake_timeline(2e-3, busy={unit: 2.5e6}))
    assert unit in result.rungs[3].cause
    assert words in result.rungs[3].advice


def test_schedule_names_spills() -> None:
    program = fake_program(spills=400)
    result = _one(_matmul(), fake_timeline(2e-3), program=program)
    assert "400 spills" in result.rungs[3].cause
    assert "vector registers" in result.rungs[3].advice
    assert result.spills == 400


def test_one_of_two_cores() -> None:
    alone = _one(_matmul(), fake_timeline(2e-3, clock=1.75e9), chip="v5p")
    assert "1 of 2 cores works" in alone.rungs[3].cause
    assert "as parallel" in alone.rungs[3].advice
    both = _one(_matmul(), fake_timeline(2e-3, clock=1.75e9, cores=2), chip="v5p")
    assert "cores" not in both.rungs[3].cause


@pytest.mark.parametrize(
    ("stall", "cause", "words"),
    [
        ("waiting for DMA: input 0", "waiting for input lhs to be fetched", "Its blocks arrive"),
        ("waiting for DMA: input 1", "waiting for input rhs to be fetched", "Its blocks arrive"),
        ("waiting for DMA: output 2", "waiting for output out to be written", "another buffer"),
        ("waiting for DMA: input rhs", "waiting for input rhs to be fetched", "Its blocks arrive"),
        ("waiting for DMA: output out", "waiting for output out to be written", "another buffer"),
        ("waiting for DMA: scratch", "waiting for scratch", "two buffers"),
        ("prologue/epilogue", "first and last blocks", "Smaller blocks shorten both"),
    ],
)
def test_pipeline_names_the_operand(stall: str, cause: str, words: str) -> None:
    result = _one(_matmul(), fake_timeline(2e-3, stalls={stall: 1.2e-3}))
    assert cause in result.rungs[4].cause
    assert words in result.rungs[4].advice


def test_scalar_prefetch_shifts_the_operands() -> None:
    kernel = _matmul(scalar_prefetch=(None,))
    result = _one(kernel, fake_timeline(2e-3, stalls={"waiting for DMA: input 1": 1.2e-3}))
    assert "input lhs" in result.rungs[4].cause


def _streaming(grid: tuple[int, ...], seconds: float, waits: float, **changes: Any) -> ChipLadder:
    """64 MiB through one input on v5e, whose streams reach about 82 % of 819 GB/s."""
    size = 64 * MIB
    kernel = fake_kernel(fake_call(fake_operand("x", size, size, is_input=True), grid=grid))
    run = fake_timeline(
        seconds,
        stalls={"waiting for DMA: input 0": waits},
        busy={"mxu": 0.0},
        hbm_read_bytes=size,
        hbm_written_bytes=0,
        **changes,
    )
    return _one(kernel, run)


def test_pipeline_names_short_steps() -> None:
    # 1024 steps with 100 ns of instructions and transfers of 98 ns, each of which has a latency
    result = _streaming((1024,), 600e-6, 500e-6, steps=1026)
    cause = result.rungs[4].cause
    assert "1,024 grid steps have 97.7 ns of instructions each" in cause
    assert "too short to hide transfers of 97.6 ns and their latency of 415 ns" in cause
    assert "Use larger blocks" in result.rungs[4].advice


def test_long_steps_are_not_called_too_short() -> None:
    """128 steps of 6 us hide a latency of 0.4 us, whatever else is waited for."""
    kernel = _matmul(grid=(8, 4, 4))
    waits = {"waiting for DMA: output 2": 15e-6, "prologue/epilogue": 7e-6}
    result = _one(kernel, fake_timeline(0.8e-3, stalls=waits, steps=130))
    cause = result.rungs[4].cause
    assert "too short" not in cause
    assert "waiting for input lhs" not in cause
    assert "waiting for output out to be written: 15 us" in cause
    assert "first and last blocks, not covered by work: 7 us" in cause


def test_pipeline_names_the_bandwidth_that_streams_reach() -> None:
    result = _streaming((64,), 104e-6, 90e-6)
    cause = result.rungs[4].cause
    assert cause.startswith("HBM streams reach less than the data sheet's bandwidth, 82% of it")
    assert "Only less traffic" in result.rungs[4].advice


def test_a_core_that_works_alone_draws_less_of_the_bandwidth() -> None:
    """On v5p both cores' shares make the device's bandwidth; marking an axis parallel helps."""
    size = 512 * MIB
    kernel = fake_kernel(fake_call(fake_operand("x", size, size, is_input=True), grid=(64,)))
    bytes_moved = {"hbm_read_bytes": size, "hbm_written_bytes": 0}
    lost = {"waiting for DMA: input 0": 300e-6}
    run = fake_timeline(480e-6, clock=1.75e9, stalls=lost, busy={"mxu": 0.0}, **bytes_moved)
    result = _one(kernel, run, chip="v5p")
    assert result.rungs[4].cause.startswith("one of 2 cores works and draws 50% of what HBM gives")
    assert "as parallel" in result.rungs[4].advice
    lost = {"waiting for DMA: lone core's part of the HBM bandwidth": 200e-6, **lost}
    run = fake_timeline(480e-6, clock=1.75e9, stalls=lost, busy={"mxu": 0.0}, **bytes_moved)
    assert "50% of what HBM gives: 200 us" in _one(kernel, run, chip="v5p").rungs[4].cause


def test_one_step_has_nothing_to_overlap() -> None:
    kernel = _matmul(grid=(), semantics=())
    result = _one(kernel, fake_timeline(2e-3, stalls={"waiting for DMA: input 0": 1e-3}, steps=1))
    assert "one grid step" in result.rungs[4].cause
    assert "a grid of several steps" in result.rungs[4].advice


def test_a_loop_of_the_kernels_own_is_not_one_step() -> None:
    """Without a grid, but with copies of its own that overlap."""
    size = 64 * MIB
    kernel = fake_kernel(
        fake_call(
            fake_operand("pages", size, 0, is_input=True, is_pipelined=False),
            grid=(),
            semantics=(),
            dma_read_bytes=size,
            hbm_bytes=size,
            hbm_bytes_padded=size,
            unique_bytes=size,
        )
    )
    run = fake_timeline(2e-3, stalls={"waiting for DMA: input 0": 1.5e-3}, steps=16)
    result = _one(kernel, run)
    assert "one grid step" not in result.rungs[4].cause
    assert "waiting for input pages to be fetched" in result.rungs[4].cause
    assert "two buffers" in result.rungs[4].advice


def test_the_schedule_adds_up_to_its_rung() -> None:
    run = fake_timeline(2e-3, stalls={"matrix result": 0.3e-3, "vector result": 0.1e-3})
    cause = _one(_matmul(), run).rungs[3].cause
    assert "the instructions take 2 ms: 2,400,000 bundles 1.6 ms" in cause
    assert "waits between them 400 us (most: matrix result 300 us)" in cause
    assert "the matrix unit alone needs 1 ms" in cause


def test_xla_operations_belong_to_the_pipeline() -> None:
    run = fake_timeline(2e-3, xla=1.1e-3)
    result = _one(_matmul(), run, compute_cycles=0.8e-3 * 1.5e9)
    assert _seconds(result)["schedule"] == pytest.approx(0.8e-3)
    assert "XLA operations around the kernel: 1.1 ms" in result.rungs[4].cause
    assert "inside the kernel" in result.rungs[4].advice


def test_a_run_that_cannot_have_done_the_work_is_refused() -> None:
    light = 2 * 4096**3 / 197e12
    result = _one(_matmul(), fake_timeline(0.5 * light))
    assert result.refusal.stage == "simulate"
    assert "it moved 1.465 KiB where the kernel's blocks move 96 MiB" in result.refusal.reason
    assert result.predicted_seconds is None
    assert result.bound_seconds == pytest.approx(light)
    assert result.vmem_bytes == MIB


def test_a_grid_without_steps_is_refused() -> None:
    result = _one(_matmul(grid=(0, 0, 0)), fake_timeline(1e-9))
    assert result.refusal.stage == "trace"
    assert "the grid (0, 0, 0) of kernel body has no steps" in result.refusal.reason
    assert result.predicted_seconds is None


def test_warnings_of_the_compile_reach_the_ladder() -> None:
    program = fake_program(warnings=("the compile cache can't be written",))
    result = _one(_matmul(), fake_timeline(1e-3), program=program)
    assert "the compile cache can't be written" in result.warnings


def test_a_v4_device_is_said_to_be_one_core() -> None:
    run = fake_timeline(2e-3, clock=1.05e9)
    assert any(
        "one core of v4" in sentence for sentence in _one(_matmul(), run, chip="v4").warnings
    )
    assert not any("one core of" in sentence for sentence in _one(_matmul(), run).warnings)


def test_unreported_vmem_is_not_zero() -> None:
    program = fake_program(vmem=SimpleNamespace(used_bytes=0, reported=False))
    assert _one(_matmul(), fake_timeline(1e-3), program=program).vmem_bytes is None


def test_late_vector_results_are_not_called_busy_vector_units() -> None:
    result = _one(_matmul(), fake_timeline(2e-3, stalls={"vector result": 1.2e-3}))
    assert "independent work" in result.rungs[3].advice


def test_two_clocks_may_differ_a_little() -> None:
    light = 2 * 4096**3 / 197e12
    result = _one(_matmul(), fake_timeline(0.99 * light))
    assert result.refusal is None
    assert all(rung.seconds == pytest.approx(0.99 * light) for rung in result.rungs)
    assert result.bound_seconds == pytest.approx(light)


def test_counts_that_do_not_agree_are_warnings() -> None:
    run = fake_timeline(1e-3, hbm_read_bytes=64 * MIB, hbm_written_bytes=32 * MIB)
    assert not _one(_matmul(), run).warnings
    idle = fake_timeline(
        1e-3, busy={"mxu": 1e5}, hbm_read_bytes=64 * MIB, hbm_written_bytes=32 * MIB
    )
    assert "busy for 100,000 cycles" in _one(_matmul(), idle).warnings[0]
    few = fake_timeline(1e-3, hbm_read_bytes=0, hbm_written_bytes=32 * MIB)
    (warning,) = _one(_matmul(), few).warnings
    assert "the program's kernels move 32 MiB, their blocks are 96 MiB" in warning
    # what XLA moves around the kernels is no disagreement
    around = fake_timeline(
        1e-3, hbm_read_bytes=999 * MIB, hbm_written_bytes=0, kernel_hbm_bytes=96 * MIB
    )
    assert not _one(_matmul(), around).warnings


def test_latency_is_what_limits_where_no_unit_is_busy() -> None:
    idle = _one(_matmul(), fake_timeline(1e-3, limiting_share=0.3))
    assert "limited by latency (the busiest unit, mxu, is busy 30% of the time)" in " ".join(
        str(idle).split()
    )
    assert "limited by mxu" in str(_one(_matmul(), fake_timeline(1e-3, limiting_share=0.9)))


def test_measured_rung() -> None:
    run = fake_timeline(1e-3)
    slower = _one(_matmul(), run, measured_seconds=1.2e-3)
    assert slower.rungs[-1].name == "measured"
    assert slower.rungs[-1].kind == "measured"
    assert "+20.0%" in slower.rungs[-1].cause
    assert "dispatch" in slower.rungs[-1].advice
    assert "prediction is wrong" in _one(_matmul(), run, measured_seconds=0.7e-3).rungs[-1].advice
    assert _one(_matmul(), run, measured_seconds=1.01e-3).rungs[-1].advice == ""
    assert slower.predicted_seconds == 1e-3
    jsonschema.validate(_ladder(slower).to_json(), SCHEMA)


def _named_seconds(cause: str) -> float:
    """The sum of the times that a cause gives to its parts."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    found = re.findall(r": ([\d.e+-]+) (s|ms|us|ns)(?=;|$| \()", cause)
    return sum(float(number) * units[unit] for number, unit in found)


STALL = st.sampled_from(
    ["waiting for DMA: input 0", "waiting for DMA: output 2", "prologue/epilogue", "matrix result",
     "vector result", "EUP busy", "scalar load"]
)  # fmt: skip


@given(
    st.floats(1e-4, 1.0),
    st.dictionaries(STALL, st.floats(0, 0.14), max_size=7),
    st.integers(0, 40),
    st.sampled_from(["v2", "v4", "v5e", "v5p", "v6e", "7x"]),
    st.integers(1, 300),
    st.floats(0, 0.5),
    st.one_of(st.none(), st.floats(1e-7, 1.0)),
)
def test_every_ladder_is_monotone_complete_and_valid(
    seconds: float,
    stalls: dict[str, float],
    extra: int,
    chip: str,
    inner: int,
    xla: float,
    measured: float | None,
) -> None:
    kernel = fake_kernel(
        fake_call(
            fake_operand("lhs", 1000, 1000 * (1 + extra), is_input=True),
            fake_operand("rhs", 5000, 5000, is_input=True),
            fake_operand("out", 700, 700, is_input=False),
            products=(fake_product(100, inner, 77, count=9),),
            padding=1.3,
        )
    )
    run = fake_timeline(
        seconds, stalls={name: share * seconds for name, share in stalls.items()}, xla=xla * seconds
    )
    result = _one(kernel, run, chip=chip, measured_seconds=measured)
    times = [rung.seconds for rung in result.rungs]
    predicted = times[: len(RUNGS)]
    assert predicted == sorted(predicted)
    assert predicted[-1] == result.predicted_seconds == seconds
    assert all(rung.cause for rung in result.rungs)
    assert _named_seconds(result.rungs[4].cause) <= (predicted[4] - predicted[3]) * 1.001
    assert [rung.name for rung in result.rungs][: len(RUNGS)] == list(RUNGS)
    jsonschema.validate(json.loads(json.dumps(_ladder(result).to_json())), SCHEMA)
    assert str(result)
    assert result._repr_html_()


def test_refusals_keep_what_is_known() -> None:
    refusal = Refusal("compile", "too much VMEM\n  why: 40 MiB")
    result = climb(_matmul(), None, None, chip="v5e", refusal=refusal)
    entry = result.to_json()
    assert entry["refusal"] == {"stage": "compile", "reason": "too much VMEM\n  why: 40 MiB"}
    assert entry["bound_seconds"] == pytest.approx(2 * 4096**3 / 197e12)
    assert entry["predicted_seconds"] is entry["cycles"] is entry["hbm_bytes"] is None
    assert entry["stall_seconds"] is entry["vmem_bytes"] is entry["spills"] is None
    assert [rung["name"] for rung in entry["rungs"]] == list(RUNGS)
    assert [rung["seconds"] is None for rung in entry["rungs"]] == [False] * 3 + [True] * 2
    assert result.rungs == ()
    assert len(result.known_rungs) == 3
    assert "refused at compile" in str(result)
    assert "too much VMEM" in result._repr_html_()
    jsonschema.validate(_ladder(result).to_json(), SCHEMA)


def test_refused_by_the_simulator_keeps_the_compilers_figures() -> None:
    result = climb(
        _matmul(), fake_program(), None, chip="v5e", refusal=Refusal("simulate", "data decides")
    )
    assert result.vmem_bytes == MIB
    assert result.predicted_seconds is None
    assert result.compiler_version == "libtpu 1.2.3"


def test_refused_entry() -> None:
    entry = refused_entry("load", "no such file")
    whole = {
        "function": "a.py:f",
        "arguments": [],
        "compiler_version": None,
        "chips": {"7x": entry},
    }
    jsonschema.validate(whole, SCHEMA)
    assert all(rung["seconds"] is None for rung in entry["rungs"])


def test_text_says_what_every_figure_is() -> None:
    text = str(_one(_matmul(extra_reads=9), fake_timeline(2e-3, stalls={"matrix result": 1e-3})))
    assert "f on v5e (libtpu 1.2.3)" in text
    for name in RUNGS:
        assert name in text
    for kind in ("bound", "predicted"):
        assert kind in text
    assert "How far to trust it" in text
    assert "Next (schedule)" in text
    assert max(map(len, text.splitlines())) <= 100


def test_html_escapes_and_labels() -> None:
    page = climb(
        _matmul(), fake_program(), fake_timeline(2e-3), chip="v5e", function="<script>"
    )._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert page.count('scope="row"') == 5
    assert "<caption>" in page


def test_html_is_well_formed() -> None:
    from xml.etree import ElementTree

    good = _one(_matmul(), fake_timeline(2e-3, stalls={"matrix result": 1e-3}))
    bad = climb(None, None, None, chip="v6e", refusal=Refusal("trace", "a < b & c"))
    for page in (good._repr_html_(), bad._repr_html_(), _ladder(good, bad)._repr_html_()):
        ElementTree.fromstring(f"<body>{page}</body>")
    comparison = compare(_ladder(good), _ladder(good))
    ElementTree.fromstring(f"<body>{comparison._repr_html_()}</body>")


def test_one_chip_shows_its_figures_on_the_ladder() -> None:
    one = _one(_matmul(), fake_timeline(2e-3))
    single = _ladder(one)
    assert single.predicted_seconds == 2e-3
    assert single.rungs is one.rungs
    assert single.chip == "v5e"
    assert single.fraction_of_bound == one.fraction_of_bound
    both = _ladder(one, _one(_matmul(), fake_timeline(1e-3), chip="v6e"))
    assert both["trillium"].predicted_seconds == 1e-3
    with pytest.raises(AttributeError, match="2 chips"):
        both.rungs
    with pytest.raises(AttributeError, match="no attribute"):
        single.nothing


def test_ladders_travel_between_processes() -> None:
    import copy

    single = _ladder(_one(_matmul(), fake_timeline(2e-3)))
    assert copy.deepcopy(single).to_json() == single.to_json()


def test_detail_adds_kind_and_advice() -> None:
    single = _ladder(_one(_matmul(), fake_timeline(2e-3, stalls={"matrix result": 1e-3})))
    plain = single.to_json()["chips"]["v5e"]["rungs"][3]
    detailed = single.to_json(detail=True)["chips"]["v5e"]["rungs"][3]
    assert set(plain) == {"name", "seconds", "cause"}
    assert detailed["kind"] == "predicted"
    assert "independent products" in detailed["advice"]


def test_compare() -> None:
    slow = _ladder(_one(_matmul(), fake_timeline(4e-3)))
    fast = _ladder(_one(_matmul(), fake_timeline(1e-3)))
    result = compare(slow, fast)
    assert result.speedup == {"v5e": pytest.approx(4.0)}
    assert "4 times as fast" in str(result)
    assert "4 times as slow" in str(compare(fast, slow))
    assert "as fast as before" in str(compare(fast, fast))
    assert "-75.0%" in str(result)
    refused = _ladder(climb(_matmul(), None, None, chip="v5e", refusal=Refusal("compile", "no")))
    assert compare(slow, refused).speedup == {"v5e": None}
    assert "refused at compile" in str(compare(slow, refused))


def test_advice_is_there_for_every_key_that_is_used() -> None:
    from tpulab import ladder_causes, ladder_losses

    keys = _advice()
    for name in (*ladder_losses._STALL_KEYS.values(), *ladder_losses._UNIT_KEYS.values()):
        assert keys["schedule"][name]
    source = "".join(Path(room.__file__).read_text() for room in (ladder_causes, ladder_losses))
    for rung, kinds in keys.items():
        for kind, sentence in kinds.items():
            names = (f'"{kind}"', f"'{kind}'", f"{rung}.{kind}", f'"{kind.partition("_")[0]}_')
            assert any(name in source for name in names), f"{rung}.{kind} is unused"
            assert sentence == "" or sentence.endswith(".")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.5 s"), (0.0123456, "12.35 ms"), (2e-6, "2 us"), (3e-10, "0.3 ns"), (0.0, "0 ns")],
)
def test_time_text(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_bytes_text() -> None:
    assert [bytes_text(n) for n in (12, 2048, 3 * MIB, 5 * 2**30)] == [
        "12 B", "2 KiB", "3 MiB", "5 GiB",
    ]  # fmt: skip


def test_every_prediction_says_how_far_it_can_be_trusted() -> None:
    v5e = prediction_error("v5e")
    assert "on v5e" in v5e
    assert "libtpu" in v5e
    v6e = prediction_error("v6e")
    assert v6e.startswith("no timing published for v6e")
    assert v5e in v6e


def test_the_stored_comparisons_are_consistent() -> None:
    import tomllib

    text = resources.files("tpulab").joinpath("ladder_accuracy.toml").read_text("utf-8")
    for entry in tomllib.loads(text).values():
        assert set(entry["fitted"]) <= set(entry["rows"])
        for name, row in entry["rows"].items():
            # both times are stored with three digits after the point of a millisecond
            slack = 0.0011 / row["published_ms"] + 0.001
            error = row["predicted_ms"] / row["published_ms"] - 1
            assert row["error"] == pytest.approx(error, abs=slack), name
