"""Hand-written programs whose times follow from the rules by hand."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulator.helpers import core, load, program, store, take, wait
from tpulab.simulator import Options, SimulationRefused, Timeline, simulate_listing


def run(*bundles: str, constants=None, **kwargs) -> Timeline:
    return simulate_listing(program(bundles), constants or core(), **kwargs)


def accounted(timeline: Timeline) -> float:
    return timeline.bundles_issued + sum(timeline.stall_cycles.values())


def test_one_bundle_a_cycle() -> None:
    timeline = run("%s1_s1 = smov 1", "", "%v1_v1 = vmov 0.0", "")
    assert timeline.cycles == 4
    assert timeline.bundles_issued == 4
    assert timeline.seconds == pytest.approx(4e-9)


def test_a_vector_result_is_ready_two_cycles_later() -> None:
    chain = run(*[f"%v{i}_v1 = vadd.f32 %v{i - 1}_v1, %v0_v2" for i in range(1, 11)])
    # Ten bundles, each after the first waits one cycle for the one before.
    assert chain.cycles == 10 + 9
    assert chain.stall_cycles == {"vector result": 9}
    free = run(*[f"%v{i}_v{i} = vadd.f32 %v0_v0, %v0_v0" for i in range(1, 11)])
    assert free.cycles == 10


def test_a_transcendental_is_popped_after_its_latency() -> None:
    timeline = run("%5 = vpow2.f32 %v1_v1", "%v2_v2 = vpop.eup %5", "%v3_v3 = vmov %v2_v2")
    # Issue 0, pop at 7, use at 8, end at 9.
    assert timeline.cycles == 9
    assert timeline.stall_cycles == {"transcendental result": 6}


def test_a_cross_lane_unit_takes_a_new_one_every_eight_cycles() -> None:
    pushes = [f"%{i} = vadd.xlane.f32.xlu0 %v1_v1" for i in range(4)]
    timeline = run(*pushes, "%v2_v2 = vpop.xlane.xlu0 %3")
    # Pushes at 0, 8, 16, 24; the last result comes at 124, popped then.
    assert timeline.cycles == 125
    assert timeline.stall_cycles["cross-lane unit busy"] == 3 * 7
    assert timeline.busy_cycles["xlu"] == pytest.approx(4 * 8 / 2)


def test_matrix_unit_occupancy_and_result_latency() -> None:
    matmuls = [f"%{i} = vmatmul.bf16.gmra.mxu0 %v1_v1" for i in range(10)]
    pops = [f"%v{i}_v{i + 10} = vpop.f32.mrf.mxu0" for i in range(20)]
    timeline = run(*matmuls, *pops)
    # The tenth issues at 9 x 16 = 144; its second result comes at 144 + 100 + 8, the end is one on.
    assert timeline.cycles == 144 + 100 + 8 + 1
    assert timeline.stall_cycles["matrix unit busy"] == 9 * 15
    assert timeline.busy_cycles["mxu"] == pytest.approx(160 / 4)
    assert accounted(timeline) == timeline.cycles


def test_two_matrix_units_work_side_by_side() -> None:
    both = [
        f"%{i} = vmatmul.bf16.gmra.mxu0 %v1_v1  ;;  %{i + 50} = vmatmul.bf16.gmra.mxu1 %v1_v1"
        for i in range(10)
    ]
    assert run(*both).cycles == 145


def test_results_accumulated_in_the_result_buffer() -> None:
    timeline = run(
        "%1 = vmatmul.mubr.bf16.gmra.mrb[0].mxu0 %v1_v1",
        "%2 = vmatmul.mubr.bf16.gmra.mrb[4].mxu0 %v1_v1",
        "%v3_v3 = vpop.f32.mrb[0].mxu0",
        "%v4_v4 = vpop.f32.mrb[4].mxu0",
    )
    assert timeline.cycles == 16 + 100 + 1


def test_weights_go_in_while_the_unit_multiplies() -> None:
    pushes = [f"%{i} = vmatpush.bf16.msrb.mxu0 %v1_v1" for i in range(8)]
    matmuls = [f"%{i + 20} = vmatmul.bf16.gmra.mxu0 %v1_v1" for i in range(4)]
    mixed = [
        f"{push}  ;;  {matmuls[i // 2]}" if i % 2 == 0 else push for i, push in enumerate(pushes)
    ]
    timeline = run(*mixed)
    # Matrix products at 0, 16, 32, 48; pushes every 4 cycles fit between them.
    assert timeline.cycles == 48 + 4 + 1


LOOP = [
    "%s1_s1 = smov 0",
    "%s2_s1 = sadd.s32 1, %s1_s1  ;;  %s1_s1 = sphi %s9_s1, %s2_s1 /* Start region 7 */",
    "%p1_p1 = scmp.lt.s32.totalorder %s2_s1, {count}",
    "%9 = sbr.rel (%p1_p1) target = $region7",
    "",
    "",
    "",
    "%v1_v1 = vmov 0.0",
]


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_loop_of_n_iterations(count: int) -> None:
    timeline = run(*[line.replace("{count}", str(count)) for line in LOOP])
    # Each iteration: seven bundles and one cycle until the comparison's result can be branched on.
    assert timeline.cycles == 1 + count * 8
    assert timeline.steps == count
    assert timeline.bundles_issued == 1 + count * 7


def test_the_floor_of_an_empty_loop() -> None:
    # AML-021 measured 9 cycles per iteration of an empty fori_loop on v5e; the bundles of one are
    # an addition, a comparison, a branch and its four delay slots.
    timeline = run(*[line.replace("{count}", "100") for line in LOOP])
    assert timeline.cycles / 100 == pytest.approx(9, abs=1.1)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_delay_slots_are_issued_before_the_branch(slots: int) -> None:
    bundles = [
        "%s1_s1 = smov 0  ;;  %p1_p1 = scmp.eq.s32.totalorder %s0_s0, 0",
        "%9 = sbr.rel (%p1_p1) target = $region3",
        *["%s2_s1 = sadd.s32 %s1_s1, 1"] * slots,
        "%s3_s1 = sadd.s32 %s1_s1, 100",
        load(granules=1)
        .replace(" 1,", "%s9_s1,")
        .replace("/*size_in_granules=*/1", "/*size_in_granules=*/%s9_s1")
        + " /* Start region 3 */",
    ]
    timeline = run(*bundles, constants=core(branch_delay_slots=slots))
    assert timeline.hbm_read_bytes == slots * 32


def size_after(*bundles: str) -> int:
    """The value of %s9_s9 at the end, read off a transfer of as many granules."""
    last = load(granules=1).replace("/*size_in_granules=*/1", "/*size_in_granules=*/%s9_s9")
    return run(*bundles, last).hbm_read_bytes // 32


def test_int32_overflow_wraps() -> None:
    assert size_after("%s1_s1 = smov 2147483647", "%s2_s9 = sadd.s32 %s1_s1, 1") == -(2**31)
    assert size_after("%s1_s1 = smov 65537", "%s2_s9 = smul.u32 %s1_s1, %s1_s1") == 131073
    assert size_after("%s1_s1 = smov 4294967295", "%s2_s9 = ssub.s32 5, %s1_s1") == 6
    assert size_after("%s1_s1 = smov 3", "%s2_s9 = sshll.u32 %s1_s1, 31") == -(2**31)


def test_a_bundle_reads_what_was_there_before_it() -> None:
    # Both operations of the second bundle see the old value of s1.
    assert (
        size_after(
            "%s1_s1 = smov 5",
            "%s2_s1 = smov 7  ;;  %s3_s9 = sadd.s32 %s1_s1, 1",
        )
        == 6
    )
    # A name defined in the same bundle is a view of the same value.
    assert (
        size_after(
            "%s1_s1 = smov 5", "%s2_s9 = sadd.s32 %s1_s1, 1  ;;  %s3_s9 = int_to_ptr.hbm %s2_s9"
        )
        == 6
    )


def test_a_predicate_keeps_the_old_value() -> None:
    setup = ["%s1_s9 = smov 5  ;;  %s0_s0 = smov 0"]
    yes = "%p1_p1 = scmp.eq.s32.totalorder %s0_s0, 0"
    assert size_after(*setup, yes, "%s2_s9 = smov (%p1_p1, %s1_s9), 8") == 8
    assert size_after(*setup, yes, "%s2_s9 = smov (!%p1_p1, %s1_s9), 8") == 5
    assert size_after(*setup, yes, "%s2_s9 = scalar_select %p1_p1, 3, 4") == 3


def test_spilled_scalars_come_back() -> None:
    assert (
        size_after(
            "%s1_s1 = smov 11",
            "%5 = sst [smem:[#allocation7_spill]] %s1_s1",
            "%s2_s1 = smov 0",
            "%s3_s9 = sld [smem:[#allocation7_spill]]",
        )
        == 11
    )


def test_smem_through_a_pointer() -> None:
    assert (
        size_after(
            "%s1_s1 = smov [#allocation3]  ;;  %s5_s5 = smov 2",
            "%5 = sst [smem:[%s1_s1 + %s5_s5]] %s5_s5",
            "%6 = sst [smem:[#allocation3 + $0x1]] 9",
            "%s3_s3 = sld [smem:[#allocation3 + %s5_s5]]",
            "%s4_s4 = sld [smem:[%s1_s1 + $0x1]]",
            "%s6_s9 = sadd.s32 %s3_s3, %s4_s4",
        )
        == 11
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 31),
)
def test_scalar_arithmetic_is_that_of_int32(a: int, b: int, shift: int) -> None:
    with numpy.errstate(over="ignore"):
        x, y = numpy.int32(a), numpy.int32(b)
        cases = {
            f"sadd.s32 {a}, {b}": x + y,
            f"ssub.s32 {a}, {b}": x - y,
            f"smul.u32 {a}, {b}": x * y,
            f"sand.u32 {a}, {b}": x & y,
            f"sor.u32 {a}, {b}": x | y,
            f"sxor.u32 {a}, {b}": x ^ y,
            f"sshll.u32 {a}, {shift}": numpy.left_shift(x, shift),
            f"sshra.s32 {a}, {shift}": numpy.right_shift(x, shift),
            f"sshrl.u32 {a}, {shift}": numpy.right_shift(numpy.uint32(a & 0xFFFFFFFF), shift),
            f"smin.s32 {a}, {b}": min(x, y),
            f"smax.u32 {a}, {b}": max(x.view(numpy.uint32), y.view(numpy.uint32)),
        }
        signed = {
            text: int(numpy.uint32(int(value) & 0xFFFFFFFF).view(numpy.int32))
            for text, value in cases.items()
        }
    bundles = []
    for number, text in enumerate(signed):
        bundles.append(f"%s{number}_s9 = {text}")
        bundles.append(
            load(granules=1).replace(
                "/*size_in_granules=*/1", f"/*size_in_granules=*/%s{number}_s9"
            )
        )
    timeline = run(*bundles, options=Options(free_dma=True))
    assert timeline.hbm_read_bytes == 32 * sum(signed.values())


# ---- transfers -----------------------------------------------------------------------------------


def test_one_transfer_takes_its_bytes_and_its_latency() -> None:
    timeline = run(load(granules=64), wait(granules=64), take())
    # Issued at 0, 2048 bytes at 64 a cycle, 100 cycles of latency; one bundle after the wait.
    assert timeline.cycles == 32 + 100 + 1
    assert timeline.hbm_read_bytes == 2048
    assert timeline.load_count == 1
    assert accounted(timeline) == timeline.cycles


def test_two_transfers_share_the_bandwidth() -> None:
    timeline = run(
        load("[#allocation4]", 64) + "  ;;  " + load("[#allocation6]", 128, 1),
        wait("[#allocation4]", 64),
        wait("[#allocation6]", 128),
    )
    # Together from 0: the small one is served at 64, the large one alone from there: 64 + 32 = 96.
    assert timeline.cycles == 96 + 100
    first = [event for event in timeline.events if event.unit == "dma_in"]
    assert [event.end_cycle for event in first] == [164, 196]


def test_a_single_stream_can_be_slower_than_the_memory() -> None:
    slow = core(single_stream_fraction=0.5)
    assert run(load(), wait(), constants=slow).cycles == 64 + 100
    both = run(
        load("[#allocation4]", 64) + "  ;;  " + load("[#allocation6]", 64, 1),
        wait("[#allocation4]", 64),
        wait("[#allocation6]", 64),
        constants=slow,
    )
    # The second wait is a bundle of its own.
    assert both.cycles == 64 + 100 + 1


DOUBLE = [
    "%s1_s3 = smov 0  ;;  %s5_s7 = smov 0",
    load("[#allocation4]", 64),
    # s3 counts, s7 is the buffer in use; the flags of the two buffers are neighbours.
    "%s2_s3 = sadd.s32 1, %s1_s3  ;;  %s6_s8 = sxor.u32 1, %s5_s7 /* Start region 7 */",
    "%p1_p1 = scmp.lt.s32.totalorder %s2_s3, 50  ;;  "
    "%s7_s9 = scalar_lea.sflag [#allocation4], %s6_s8",
    "%800 = dma.hbm_to_vmem [thread:$0]  (%p1_p1), /*hbm=*/%s1_s1, /*size_in_granules=*/64, "
    "/*vmem=*/%s2_s2, /*dst_syncflagno=*/%s7_s9  ;;  "
    "%s8_s10 = scalar_lea.sflag [#allocation4], %s5_s7",
    "%700 = dma.done.wait %s8_s10, 64",
    "%701 = vsyncadd %s8_s10, 4294967232  ;;  %s9_s7 = smov %s6_s8",
    *["%v1_v1 = vmov 0.0"] * 200,
    "%9 = sbr.rel (%p1_p1) target = $region7",
    "",
    "",
    "",
    "",
]


def test_double_buffering_hides_transfers_behind_work() -> None:
    timeline = run(*DOUBLE)
    # 200 bundles of work hide 132 cycles of transfer, except for the first one.
    per_step = 5 + 200 + 5
    stalls = timeline.stall_cycles
    assert timeline.load_count == 50
    assert timeline.hbm_read_bytes == 50 * 2048
    waits = sum(cycles for cause, cycles in stalls.items() if "DMA" in cause or "epilogue" in cause)
    # The first transfer is alone for 3 cycles, then shares with the second; the wait begins at 8.
    assert waits == pytest.approx(1 + 3 + (2048 - 3 * 64) / 32 + 100 - 8, abs=1)
    assert timeline.cycles == pytest.approx(2 + 50 * (per_step + 1) + waits, abs=60)


def test_double_buffering_is_bound_by_bandwidth_when_work_is_short() -> None:
    short = [line for line in DOUBLE if "vmov 0.0" not in line]
    timeline = run(*short, constants=core(hbm_bytes_per_second=4e9))
    # 2048 bytes at 4 a cycle: 512 cycles a step, latency hidden except once.
    assert timeline.cycles >= 50 * 512
    assert timeline.limiting_unit == "hbm"


def test_free_transfers() -> None:
    timeline = run(load(), wait(), take(), options=Options(free_dma=True))
    assert timeline.cycles == 3
    assert timeline.hbm_read_bytes == 2048


def test_a_predicated_transfer_and_wait_that_do_not_happen() -> None:
    never = "%p1_p1 = scmp.lt.s32.totalorder 1, 0"
    timeline = run(
        never,
        load().replace("[thread:$0]  ", "[thread:$0]  (%p1_p1), "),
        wait().replace("wait ", "wait (%p1_p1), "),
    )
    assert timeline.dma_count == 0
    assert timeline.cycles == 4


def test_a_wait_for_nothing_is_refused() -> None:
    with pytest.raises(SimulationRefused, match="waits for ever"):
        run(wait())
    with pytest.raises(SimulationRefused, match="waits for ever"):
        run(load(granules=63), wait(granules=64))


def test_a_branch_on_vector_data_is_refused() -> None:
    with pytest.raises(SimulationRefused, match="only the chip would know") as refusal:
        run(
            "%5 = vpush %v1_v1",
            "%s1_s1 = spop %5",
            "%p1_p1 = scmp.gt.s32.totalorder %s1_s1, 0",
            "%9 = sbr.rel (%p1_p1) target = $region3",
            *[""] * 4,
            " /* Start region 3 */",
        )
    assert "vector unit" in str(refusal.value)


def test_vector_data_that_decides_nothing_is_no_reason_to_refuse() -> None:
    timeline = run(
        "%5 = vpush %v1_v1",
        "%s1_s1 = spop %5",
        "%s2_s1 = sadd.s32 %s1_s1, 1",
        "%6 = sst [smem:[#allocation3]] %s2_s1",
        "%v3_v3 = vstv %s2_s1",
    )
    assert timeline.bundles_issued == 5


def test_scalars_from_operands() -> None:
    listing = program(
        [
            "%s1_s9 = inlined_call_operand.smem "
            "[shape: s32[4], index: 0, kind: input, shape index: {}]",
            "%s2_s8 = sld [smem:[%s1_s9 + $0x2]]",
            load(granules=1).replace("/*size_in_granules=*/1", "/*size_in_granules=*/%s2_s8"),
        ]
    )
    timeline = simulate_listing(listing, core(), scalars={0: [5, 6, 7, 8]})
    assert timeline.hbm_read_bytes == 7 * 32
    with pytest.raises(SimulationRefused, match="only the chip would know"):
        simulate_listing(listing, core())


def test_unknown_operations() -> None:
    timeline = run("%v1_v1 = vfrobnicate.f32 %v2_v2", "%v3_v3 = vmov %v1_v1")
    assert timeline.cycles == 3
    assert any("vfrobnicate.f32" in sentence for sentence in timeline.warnings)
    with pytest.raises(SimulationRefused, match="sfrobnicate"):
        run("%s1_s1 = sfrobnicate.s32 %s2_s2")
    with pytest.raises(SimulationRefused, match="dma.sideways"):
        run("%1 = dma.sideways %s1_s1, 4")
    with pytest.raises(SimulationRefused, match="delay slots"):
        run(
            "%9 = sbr.rel target = $region3",
            "%8 = sbr.rel target = $region3",
            *[""] * 5,
            " /* Start region 3 */",
        )


def test_an_endless_loop_is_given_up() -> None:
    endless = ["%9 = sbr.rel target = $region1 /* Start region 1 */", "", "", "", "", ""]
    with pytest.raises(SimulationRefused, match="takes longer|more than"):
        run(*endless, options=Options(deadline_seconds=0.3))


# ---- invariants ----------------------------------------------------------------------------------

_TRANSFERS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 5000), st.integers(0, 40)), min_size=1, max_size=8
)


def _traffic(transfers: list[tuple[bool, int, int]]) -> list[str]:
    bundles: list[str] = []
    for position, (reads, granules, gap) in enumerate(transfers):
        flag = f"[#allocation4 + $0x{position:x}]"
        bundles.append(load(flag, granules) if reads else store(flag, granules))
        bundles.extend([""] * gap)
    for position, (_, granules, _) in enumerate(transfers):
        bundles.append(wait(f"[#allocation4 + $0x{position:x}]", granules))
    return bundles


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_TRANSFERS, st.floats(1.1, 8))
def test_more_bandwidth_is_never_slower(
    transfers: list[tuple[bool, int, int]], scale: float
) -> None:
    bundles = _traffic(transfers)
    slow = run(*bundles)
    fast = run(*bundles, options=Options(bandwidth_scale=scale))
    free = run(*bundles, options=Options(free_dma=True))
    assert free.cycles <= fast.cycles <= slow.cycles + 1e-6


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_TRANSFERS)
def test_no_faster_than_the_bytes_allow_and_nothing_lost(
    transfers: list[tuple[bool, int, int]],
) -> None:
    timeline = run(*_traffic(transfers))
    moved = sum(granules * 32 for _, granules, _ in transfers)
    assert timeline.hbm_read_bytes + timeline.hbm_written_bytes == moved
    assert timeline.cycles >= moved / 64 + 100 - 1e-6
    assert accounted(timeline) == pytest.approx(timeline.cycles)
    assert timeline.dma_count == timeline.load_count + timeline.store_count == len(transfers)


def test_chrome_trace() -> None:
    import json

    timeline = run(*DOUBLE)
    trace = json.loads(json.dumps(timeline.to_chrome_trace()))
    rows = trace["traceEvents"]
    assert {row["ph"] for row in rows} <= {"M", "X", "b", "e"}
    begins = {row["id"]: row for row in rows if row["ph"] == "b"}
    ends = {row["id"]: row for row in rows if row["ph"] == "e"}
    assert begins.keys() == ends.keys()
    assert len(begins) == 50
    assert all(ends[key]["ts"] >= row["ts"] for key, row in begins.items())
    complete = [row for row in rows if row["ph"] == "X"]
    assert all(row["dur"] >= 0 and row["ts"] >= 0 for row in complete)
    named = {row["tid"] for row in rows if row["name"] == "thread_name"}
    assert {row["tid"] for row in complete} <= named


def test_events_are_bounded() -> None:
    timeline = run(*DOUBLE, options=Options(max_events=20))
    assert not timeline.events_complete
    assert len(timeline.events) <= 30
    assert run(*DOUBLE).events_complete
    assert run(*DOUBLE).cycles == timeline.cycles


def test_a_semaphore_of_the_core_itself() -> None:
    # pl.semaphore_signal adds; pl.semaphore_wait takes first and waits until nothing is owed.
    signal = "%1 = vsyncadd [#allocation8], 2"
    wait_for_two = ["%2 = vsyncadd [#allocation8], 4294967294", "%3 = vwait.ge [#allocation8], 0"]
    assert run(signal, *wait_for_two).cycles == 3
    with pytest.raises(SimulationRefused, match="waits for ever"):
        run(*wait_for_two)


def test_what_leaves_the_chip_is_refused() -> None:
    with pytest.raises(SimulationRefused, match="other chips"):
        run("%1 = vsyncadd.remote %s1_s1, 1")
    with pytest.raises(SimulationRefused, match="other chips"):
        run(
            "%384 = dma.general /*src=*/%s1_s1, /*size_in_granules=*/16, /*dst=*/%s1_s1, "
            "/*dst_syncflagno=*/%s2_s2, /*src_syncflagno=*/%s3_s3, "
            "/*stridedescaddr=*/[#allocation15], /*overrides=*/%s4_s4, /*dst_syncflagno_1=*/0"
        )
