"""What XLA does around a kernel: copies of the top level and operations that can't be run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulator.helpers import core, load, program, wait
from tpulab.compiler.hlo import ArrayShape
from tpulab.simulator.options import Options
from tpulab.simulator.pieces import Pieces
from tpulab.simulator.scalars import NO_CALL
from tpulab.simulator.timeline import Timeline

HBM, VMEM = "hbm", "vmem"


def array(megabytes: int, space: str) -> ArrayShape:
    return ArrayShape("s8", (megabytes, 1024, 1024), space)


FLAG = ArrayShape("u32", (), "sflag")


def piece(opcode: str, operands: list[ArrayShape], results: list[ArrayShape], **more: Any) -> Any:
    values = {
        "name": opcode,
        "kind": "xla",
        "opcode": opcode,
        "hlo_instruction": f"%{opcode} = … {opcode}(%x)",
        "calls": 1,
        "calls_exact": True,
        "operand_shapes": tuple(operands),
        "result_shapes": tuple(results),
        "has_listing": False,
    }
    return SimpleNamespace(**{**values, **more})


def done(start: Any) -> Any:
    opcode = start.opcode.replace("start", "done")
    return piece(opcode, [], [], hlo_instruction=f"%d = s8[] {opcode}(%{start.name})")


def ran(*pieces: Any, **options: Any) -> Timeline:
    total = Pieces(core(), Options(**options), None)
    for each in pieces:
        total.run_piece(each, NO_CALL)
    return total.timeline()


@pytest.mark.parametrize(
    ("opcode", "results"),
    [
        # A copy's result is where it goes, where it comes from, a flag.
        ("copy-start", [array(2, VMEM), array(2, HBM), FLAG]),
        # A slice's is its whole operand, the slice, a flag.
        ("slice-start", [array(32, HBM), array(2, VMEM), FLAG]),
    ],
)
def test_an_asynchronous_copy_moves_what_arrives(opcode: str, results: list[ArrayShape]) -> None:
    start = piece(opcode, [results[1] if opcode == "copy-start" else results[0]], results)
    timeline = ran(start, done(start))
    assert timeline.hbm_read_bytes == timeline.xla_hbm_bytes == 2 * 2**20
    assert timeline.hbm_written_bytes == timeline.kernel_hbm_bytes == 0
    # At 64 bytes a cycle, and 100 cycles of latency.
    assert timeline.cycles == 2 * 2**20 / 64 + 100
    assert timeline.stall_cycles == {"waiting for a copy of XLA": timeline.cycles}
    assert ran(start, done(start), free_dma=True).cycles == 0


def test_a_copy_out_of_the_vmem_is_written() -> None:
    start = piece("copy-start", [array(2, VMEM)], [array(2, HBM), array(2, VMEM), FLAG])
    timeline = ran(start, done(start))
    assert (timeline.hbm_read_bytes, timeline.hbm_written_bytes) == (0, 2 * 2**20)
    assert timeline.store_count == 1


def test_an_estimate_counts_the_bytes_in_the_hbm_and_says_why() -> None:
    unknown = program(["%s1_s1 = sfrobnicate.s32 %s2_s2"])
    stuck = [
        piece(
            "fusion",
            [array(1, HBM), array(8, VMEM)],
            [array(2, HBM)],
            name=name,
            has_listing=True,
            listing=unknown,
            calls=2,
        )
        for name in ("broadcast.1", "broadcast.2")
    ]
    timeline = ran(*stuck)
    assert timeline.hbm_read_bytes == 2 * 2 * 2**20
    assert timeline.hbm_written_bytes == 2 * 4 * 2**20
    assert timeline.cycles == 4 * (3 * 2**20 / 64 + 100)
    (warning,) = timeline.warnings
    assert "broadcast.1, broadcast.2 can't be run exactly" in warning
    assert "sfrobnicate" in warning
    # What lies in the VMEM takes time when there is more of it.
    local = ran(
        piece("fusion", [array(512, VMEM)], [FLAG], has_listing=True, listing=unknown, calls=1)
    )
    assert local.hbm_read_bytes == 0
    assert local.cycles == 512 * 2**20 / 512 + 100


def test_kernels_and_the_rest_are_counted_apart() -> None:
    listing = program([load(granules=64), wait(granules=64)])
    kernel = piece(
        "custom-call", [], [], kind="kernel", name="f.1", has_listing=True, listing=listing, calls=3
    )
    start = piece("copy-start", [array(2, HBM)], [array(2, VMEM), array(2, HBM), FLAG])
    timeline = ran(start, kernel, done(start))
    assert timeline.kernel_hbm_bytes == 3 * 64 * 32
    assert timeline.xla_hbm_bytes == 2 * 2**20
    assert timeline.hbm_read_bytes == timeline.kernel_hbm_bytes + timeline.xla_hbm_bytes
    assert [p.name for p in timeline.pieces if p.kind == "kernel"] == ["f.1"]
    assert timeline.steps == 3
    assert timeline.rounds == 0
    ends = [p.end_cycle for p in timeline.pieces]
    assert ends == sorted(ends)
    assert timeline.cycles == ends[-1]


def test_what_talks_to_other_devices_is_named() -> None:
    timeline = ran(piece("all-reduce-start", [array(1, HBM)], [array(1, HBM)]))
    assert any("talks to other devices" in sentence for sentence in timeline.warnings)
