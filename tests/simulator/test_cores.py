"""Two cores in one device, and copies that stay on the chip."""

from __future__ import annotations

import pytest

from tests.simulator.helpers import core, load, program, wait
from tpulab.simulator import Options, SimulationRefused, constants_for, simulate_listing

ASK = "%s1_s1 = sld [smem:[#allocation0]] /* core id */"
ASK_12 = "%s1_s1 = sld [smem:[#allocation0]] /* megacore core id :: core id */"


def moved(size: str, predicate: str = "") -> str:
    text = load(granules=1).replace("/*size_in_granules=*/1", f"/*size_in_granules=*/{size}")
    return text.replace("[thread:$0]  ", f"[thread:$0]  {predicate}")


@pytest.mark.parametrize("ask", [ASK, ASK_12])
def test_each_core_knows_its_number(ask: str) -> None:
    # Core 0 moves 10 granules, core 1 moves 11.
    listing = program([ask, "%s2_s9 = sadd.s32 %s1_s1, 10", moved("%s2_s9")])
    timeline = simulate_listing(listing, core(cores=2))
    assert timeline.hbm_read_bytes == 21 * 32
    assert timeline.cores == 2
    assert not timeline.warnings
    assert simulate_listing(listing, core()).hbm_read_bytes == 10 * 32


LONE = [
    ASK,
    "%p1_p1 = scmp.eq.s32.totalorder %s1_s1, 0",
    moved("6400", "(%p1_p1), "),
    wait(granules=6400).replace("wait ", "wait (%p1_p1), "),
]


def test_a_lone_core_says_so_and_what_it_costs() -> None:
    half = simulate_listing(program(LONE), core(cores=2, lone_core_fraction=0.5))
    whole = simulate_listing(program(LONE), core(cores=2, lone_core_fraction=1.0))
    assert half.cores == whole.cores == 1
    assert half.hbm_read_bytes == whole.hbm_read_bytes == 6400 * 32
    lost = 6400 * 32 / 64 - 6400 * 32 / 128
    assert half.cycles - whole.cycles == pytest.approx(lost)
    cause = "waiting for DMA: lone core's part of the HBM bandwidth"
    assert half.stall_cycles[cause] == pytest.approx(lost)
    assert cause not in whole.stall_cycles
    for timeline in (half, whole):
        total = timeline.bundles_issued + sum(timeline.stall_cycles.values())
        assert total == pytest.approx(timeline.cycles)
        assert any("only one of two cores works" in text for text in timeline.warnings)
    assert any("at most 50 % of the device's HBM bandwidth" in text for text in half.warnings)
    assert half.compute_cycles == pytest.approx(whole.compute_cycles)


def test_a_listing_that_asks_for_no_core_runs_on_one() -> None:
    timeline = simulate_listing(program([load(), wait()]), core(cores=2, lone_core_fraction=0.5))
    assert timeline.cores == 1
    assert timeline.hbm_read_bytes == 64 * 32
    assert any("only one of two cores works" in text for text in timeline.warnings)


def test_what_a_lone_core_may_draw_is_a_constant_with_its_source() -> None:
    constants = constants_for("v5p")
    assert constants.cores == 2
    assert constants.lone_core_fraction == 0.5
    assert "get_tpu_info" in constants.sources["dma.lone_core_fraction"]
    assert constants_for("v5e").cores == 1


# ---- copies between and inside the memories of one chip ----------------------------------------


def general(spaces: str, overrides: str, granules: int = 6400) -> list[str]:
    return [
        "%s3_s3 = smov [#allocation4]  ;;  %s4_s4 = smov [#allocation6]  ;;  %s5_s5 = smov 0",
        "%s6_s6 = smov [#allocation8]  ;;  %s8_s8 = sor.u32 134234112, %s7_s7",
        f"%19 = dma.general /*src=*/%s6_s6, /*size_in_granules=*/{granules}, /*dst=*/%s6_s6, "
        "/*dst_syncflagno=*/%s3_s3, /*src_syncflagno=*/%s4_s4, "
        f"/*stridedescaddr=*/[#allocation9], /*overrides=*/{overrides}, "
        f"/*dst_syncflagno_1=*/0 /* {spaces} */",
        wait("[#allocation4]", granules),
    ]


@pytest.mark.parametrize("overrides", ["%s5_s5", "0"])
def test_a_copy_inside_the_hbm_uses_it_in_both_directions(overrides: str) -> None:
    timeline = simulate_listing(program(general("hbm-to-hbm", overrides)), core())
    size = 6400 * 32
    assert timeline.hbm_read_bytes == timeline.hbm_written_bytes == size
    assert timeline.dma_count == 1
    # Issued at 2; both directions at 64 bytes a cycle, then the latency.
    assert timeline.cycles == 2 + 2 * size / 64 + 100
    assert timeline.limiting_unit == "hbm"


def test_a_copy_inside_the_vmem_leaves_the_hbm_alone() -> None:
    timeline = simulate_listing(program(general("vmem-to-vmem", "%s5_s5")), core())
    assert timeline.hbm_read_bytes == timeline.hbm_written_bytes == 0
    assert timeline.dma_count == 1
    assert timeline.cycles == 2 + 6400 * 32 / 512
    free = Options(free_dma=True)
    assert simulate_listing(program(general("vmem-to-vmem", "0")), core(), options=free).cycles == 4


def test_a_copy_to_another_chip_is_refused() -> None:
    with pytest.raises(SimulationRefused, match="exchanges data with other chips"):
        simulate_listing(program(general("vmem-to-vmem", "%s8_s8")), core())
