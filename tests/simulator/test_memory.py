"""How arrays lie in memory, against plain loops over the layout's definition."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulator.helpers import load, program, store
from tpulab.simulator.layout import words
from tpulab.simulator.memory import needed_operands, operands_of, origins, transfer_of


def test_without_a_layout_words_follow_each_other() -> None:
    assert words(numpy.array([1, -2, 3], numpy.int32)) == [1, -2, 3]
    assert words(numpy.float32(1.0)) == [0x3F800000]
    assert words([5, 6]) == [5, 6]


def test_a_one_dimensional_array_is_not_moved_by_its_tile() -> None:
    found = words(numpy.arange(5, dtype=numpy.int32), "{0:T(128)S(6)}")
    assert found[:5] == [0, 1, 2, 3, 4]
    assert found[5:] == [None] * 123


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 20), st.integers(1, 300))
def test_rows_of_tiles(rows: int, columns: int) -> None:
    values = numpy.arange(rows * columns, dtype=numpy.int32).reshape(rows, columns)
    found = words(values, "{1,0:T(8,128)}")
    tiles_across = -(-columns // 128)
    for row in (0, rows - 1):
        for column in (0, columns - 1):
            tile = (row // 8) * tiles_across + column // 128
            place = tile * 1024 + (row % 8) * 128 + column % 128
            assert found[place] == values[row, column]
    assert sum(word is not None for word in found) == values.size


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 16), st.integers(1, 128))
def test_bytes_are_packed_four_rows_to_a_word(rows: int, columns: int) -> None:
    values = (numpy.arange(rows * columns) % 127).astype(numpy.int8).reshape(1, rows, columns)
    found = words(values, "{2,1,0:T(8,128)(4,1)S(6)}")
    for row in range(rows):
        for column in (0, columns - 1):
            word = found[(row // 8) * 256 + (row % 8) // 4 * 128 + column]
            assert word is not None
            assert (word >> 8 * (row % 4)) & 0xFF == values[0, row, column]


def test_the_minor_dimension_comes_first_in_the_layout() -> None:
    values = numpy.array([[1, 2, 3], [4, 5, 6]], numpy.int32)
    assert words(values, "{0,1}") == [1, 4, 2, 5, 3, 6]


def test_transfers_are_understood() -> None:
    listing = program(
        [
            "%s9_s1 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input, "
            "shape index: {}]  ;;  %s8_s4 = inlined_call_operand.hbm [shape: f32[8,128], index: 1,"
            " kind: output, shape index: {}]",
            "%5 = sst [smem:[#allocation7_spill]] %s9_s1",
            "%s7_s2 = sld [smem:[#allocation7_spill]]",
            "%s6_s3 = scalar_lea.hbm %s7_s2, %s5_s5",
            load().replace("%s1_s1", "%s6_s3"),
            store().replace("%s1_s1", "%s8_s4"),
        ]
    )
    operands = operands_of(listing)
    assert [operand.label for operand in operands] == ["input 0", "output 1"]
    assert operands[0].address != operands[1].address
    known = origins(listing, operands)
    incoming = transfer_of(listing.bundles[4].ops[0], known)
    outgoing = transfer_of(listing.bundles[5].ops[0], known)
    assert incoming is not None
    assert outgoing is not None
    assert incoming.label == "input 0"
    assert incoming.reads_hbm
    assert not incoming.writes_hbm
    assert outgoing.label == "output 1"
    assert outgoing.writes_hbm
    # Nothing depends on where the bytes lie.
    assert needed_operands(listing.bundles[4].ops[0]) == {1, 3}


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "bool"])
def test_narrow_values_without_a_layout(dtype: str) -> None:
    values = numpy.array([1, 0, 1, 1, 1], dtype)
    found = words(values)
    data = numpy.array([0 if word is None else word for word in found], numpy.int32)
    width = numpy.dtype(dtype).itemsize
    narrow = numpy.int8 if width == 1 else numpy.int16
    assert data.view(narrow)[:5].tolist() == [1, 0, 1, 1, 1]
