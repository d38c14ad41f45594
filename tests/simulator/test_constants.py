"""The constants: each with a unit and a source, and occupancies that agree with the compiler."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from tpulab.errors import TpulabError
from tpulab.simulator import constants_for
from tpulab.simulator.opcodes import Kind, classify

CHIPS = ["v4", "v5e", "v5p", "v6e", "7x"]


def _table() -> dict:
    text = files("tpulab.simulator").joinpath("constants.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def test_every_constant_says_how_it_was_got() -> None:
    table = _table()
    how = table.pop("how")
    used = set()
    for chip, parts in table.items():
        assert chip == "default" or chip in CHIPS
        for part, entries in parts.items():
            for name, entry in entries.items():
                assert set(entry) <= {"value", "unit", "how"}, (chip, part, name)
                assert entry["how"] in how, (chip, part, name)
                assert "unit" in entry or part.endswith("_cycles"), (chip, part, name)
                assert entry["value"] >= 0
                used.add(entry["how"])
    assert {name for name in how if name.startswith("fit")} <= used


@pytest.mark.parametrize("chip", CHIPS)
def test_constants_of_every_chip(chip: str) -> None:
    constants = constants_for(chip)
    assert constants.chip == chip
    assert 0.5 < constants.hbm_efficiency <= 1
    assert constants.clock_hertz > 9e8
    assert all(text.count(":") >= 1 for text in constants.sources.values())


# What the critical path leaves between two products on one matrix unit (on v6e and 7x the
# preparing half of the operand takes one of the cycles).
@pytest.mark.parametrize(
    ("chip", "opcode", "cycles"),
    [
        ("v4", "vmatmul.bf16.gmra.mxu0", 16),
        ("v4", "vmatmul.f32.gmra.mxu0", 8),
        ("v5e", "vmatmul.bf16.gmra.mxu1", 16),
        ("v5e", "vmatmul.bf16.vlgmr.msra.gmra.mxu1", 16),
        ("v5e", "vmatmul.f32.gmra.mxu0", 8),
        ("v5e", "vmatmul.s8.gmra.mxu0", 16),
        ("v5e", "vmatmul.msk.f8e4m3b11.bf16.gmra.mxu0", 32),
        ("v5p", "vmatmul.bf16.gmra.mxu0", 16),
        ("v5p", "vmatmul.s8.gmra.mxu0", 16),
        ("v6e", "vmatmul.mubr.bf16.gmra.mxu0", 8),
        ("v6e", "vmatmul.mubr.f32.gmra.mxu0", 4),
        ("v6e", "vmatmul.mubr.s8.gmra.mxu0", 8),
        ("v6e", "vmatmul.mubr.msk.f8e4m3b11.bf16.gmra.mxu0", 16),
        ("7x", "vmatmul.mubr.bf16.gmra.mrb[4].mxu0", 8),
        ("7x", "vmatmul.mubr.f8e4m3fn.gmra.mrb[4].mxu0", 8),
    ],
)
def test_occupancy_at_the_published_peak_is_the_compilers(
    chip: str, opcode: str, cycles: int
) -> None:
    assert constants_for(chip).matmul_occupancy(opcode) == cycles


def test_a_name_that_is_no_chip() -> None:
    with pytest.raises(TpulabError, match="v9"):
        constants_for("v9")


@pytest.mark.parametrize(
    ("opcode", "kind", "unit"),
    [
        ("vmatmul.bf16.gmra.mxu0", Kind.VECTOR, "mxu"),
        ("vmatpush1.bf16.msra.mxu1", Kind.VECTOR, "mxu_push"),
        ("vpop.f32.mrb[3].mxu1", Kind.VECTOR, "mxu_pop"),
        ("vexp2.f32", Kind.VECTOR, "eup"),
        ("vpow2.f32", Kind.VECTOR, "eup"),
        ("vadd.xlane.f32.xlu0", Kind.VECTOR, "xlu"),
        ("vxpose.xlu1.b32.cont", Kind.VECTOR, "xlu"),
        ("vrot.slane", Kind.VECTOR, "vpu"),
        ("vld", Kind.VECTOR, "load"),
        ("vst.msk", Kind.VECTOR, "store"),
        ("sadd.s32", Kind.SCALAR, "scalar"),
        ("scalar_lea.sflag", Kind.SCALAR, "scalar"),
        ("dma.hbm_to_vmem", Kind.DMA, "dma"),
        ("dma.done.wait", Kind.WAIT, "dma"),
        ("vsyncadd", Kind.SYNC, "scalar"),
        ("sbr.rel", Kind.BRANCH, "scalar"),
        ("shalt.err", Kind.CHECK, "scalar"),
        ("sphi", Kind.NOTHING, "scalar"),
        ("scall", Kind.UNKNOWN, "scalar"),
    ],
)
def test_classes(opcode: str, kind: Kind, unit: str) -> None:
    found = classify(opcode)
    assert found.kind is kind
    assert found.unit == unit
