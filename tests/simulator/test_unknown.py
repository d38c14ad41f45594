"""Values that nobody knows: they may move about, but they decide nothing."""

from __future__ import annotations

import pytest

from tests.simulator.helpers import core, load, program
from tpulab.simulator import SimulationRefused, Timeline, simulate_listing
from tpulab.simulator.scalar import UNKNOWN, UnknownDecision


def run(*bundles: str, **kwargs) -> Timeline:
    return simulate_listing(program(bundles), core(), **kwargs)


def moved(size: str) -> str:
    return load(granules=1).replace("/*size_in_granules=*/1", f"/*size_in_granules=*/{size}")


NEVER_WRITTEN = "a word of SMEM that was never written"


@pytest.mark.parametrize(
    "place", ["[smem:[#allocation2]]", "[smem:[#allocation2 + $0x3]]", "[smem:[%s5_s5 + $0x1]]"]
)
def test_scratch_that_was_never_written_decides_nothing(place: str) -> None:
    setup = "%s5_s5 = smov [#allocation2]"
    read = f"%s1_s9 = sld {place}"
    with pytest.raises(SimulationRefused, match="only the chip would know") as refusal:
        run(setup, read, moved("%s1_s9"))
    assert NEVER_WRITTEN in str(refusal.value)
    branch = ["%9 = sbr.rel (%p1_p1) target = $region3", *[""] * 4, " /* Start region 3 */"]
    for comparison in ("lt", "eq", "ne"):
        with pytest.raises(SimulationRefused, match="only the chip would know"):
            run(setup, read, f"%p1_p1 = scmp.{comparison}.s32.totalorder %s1_s9, 4", *branch)
    written = f"%7 = sst {place} 3"
    assert run(setup, written, read, moved("%s1_s9")).hbm_read_bytes == 3 * 32
    # It may be read, computed with and thrown away.
    assert run(setup, read, "%s2_s8 = sadd.s32 %s1_s9, 1", load()).hbm_read_bytes == 64 * 32


def test_a_flag_number_out_of_unwritten_scratch_is_refused() -> None:
    with pytest.raises(SimulationRefused, match="only the chip would know"):
        run("%s1_s9 = sld [smem:[#allocation2]]", "%3 = vsyncadd %s1_s9, 1")


def test_what_is_and_ed_with_false_stays_known() -> None:
    timeline = run(
        "%s1_s1 = sld [smem:[#allocation2]]",
        "%p1_p1 = scmp.lt.s32.totalorder %s1_s1, 4  ;;  %p2_p2 = scmp.lt.s32.totalorder 1, 0",
        "%p3_p3 = pand %p1_p1, %p2_p2",
        load().replace("[thread:$0]  ", "[thread:$0]  (%p3_p3), "),
    )
    assert timeline.dma_count == 0


def test_a_store_to_an_unknown_place_makes_its_allocation_unknown() -> None:
    bundles = [
        "%5 = vpush %v1_v1",
        "%s1_s1 = spop %5  ;;  %s4_s4 = smov 2",
        "%6 = sst [smem:[#allocation3 + %s4_s4]] 7",
        "%8 = sst [smem:[#allocation6 + %s4_s4]] 9",
        "%7 = sst [smem:[#allocation3 + %s1_s1]] 1",
    ]
    known = run(*bundles, "%s2_s9 = sld [smem:[#allocation6 + %s4_s4]]", moved("%s2_s9"))
    assert known.hbm_read_bytes == 9 * 32
    with pytest.raises(SimulationRefused, match="only the chip would know") as refusal:
        run(*bundles, "%s2_s9 = sld [smem:[#allocation3 + %s4_s4]]", moved("%s2_s9"))
    assert "vector unit" in str(refusal.value)


def test_no_decision_passes_unnoticed() -> None:
    for decide in (
        bool,
        lambda x: x == 1,
        lambda x: x != 1,
        lambda x: x > 1,
        lambda x: min(1, x),
        lambda x: [0, 1][x],
    ):
        with pytest.raises(UnknownDecision):
            decide(UNKNOWN)
    assert (UNKNOWN + 1) * 2 << 3 is UNKNOWN


def test_quotient_and_remainder_are_popped_in_this_order() -> None:
    division = "%5 = sdivrem.u32 %s1_s1, 6 /* kDivAndRem */"
    setup = "%s1_s1 = smov 45"
    pops = ["%s2_s2 = spop.drf %5", "%s3_s3 = spop.drf %5"]
    size = "%s4_s4 = sshll.u32 %s2_s2, 4"
    both = "%s5_s9 = sadd.s32 %s4_s4, %s3_s3"
    timeline = run(setup, division, *pops, size, both, moved("%s5_s9"))
    assert timeline.hbm_read_bytes == (7 * 16 + 3) * 32
    rest = run(
        setup, division.replace("kDivAndRem", "kRem"), "%s2_s9 = spop.drf %5", moved("%s2_s9")
    )
    assert rest.hbm_read_bytes == 3 * 32
