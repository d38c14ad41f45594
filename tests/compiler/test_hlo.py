from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.compiler.hlo import parse_module
from tpulab.compiler.program import parse_deduplication
from tpulab.compiler.reports import parse_slot_use, parse_vmem_report
from tpulab.compiler.shapes import ArrayShape, parse_shapes

LOOP = """HloModule jit_f, is_scheduled=true

%body (arg: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %step = s32[]{{:T(128)}} constant({step})
  %arg = (s32[]{{:T(128)}}, f32[8]{{0:T(128)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%arg), index=0
  %x = f32[8]{{0:T(128)}} get-tuple-element(%arg), index=1
  %work = f32[8]{{0:T(128)}} fusion(%x), kind=kLoop, calls=%inside
  %next = s32[]{{:T(128)}} add(%i, %step)
  ROOT %out = (s32[]{{:T(128)}}, f32[8]{{0:T(128)}}) tuple(%next, %work)
}}

%condition (arg.1: (s32[], f32[8])) -> pred[] {{
  %limit = s32[]{{:T(128)}} constant({limit})
  %arg.1 = (s32[]{{:T(128)}}, f32[8]{{0:T(128)}}) parameter(0)
  %i.1 = s32[]{{:T(128)}} get-tuple-element(%arg.1), index=0
  ROOT %less = pred[]{{:T(512)}} compare(%i.1, %limit), direction={direction}
}}

ENTRY %main (x.1: f32[8]) -> f32[8] {{
  %x.1 = f32[8]{{0:T(128)}} parameter(0)
  %start = s32[]{{:T(128)}} constant({start})
  %copy = s32[]{{:T(128)}} copy(%start)
  %init = (s32[]{{:T(128)}}, f32[8]{{0:T(128)}}) tuple(%copy, %x.1)
  %while.1 = (s32[]{{:T(128)}}, f32[8]{{0:T(128)}}) while(%init), condition=%condition, body=%body
  ROOT %result = f32[8]{{0:T(128)}} get-tuple-element(%while.1), index=1
}}
"""


@given(
    st.integers(-50, 50),
    st.integers(1, 7),
    st.integers(-50, 50),
    st.sampled_from(["LT", "LE"]),
)
def test_a_counted_loop_runs_as_often_as_python_says(start, step, limit, direction):
    text = LOOP.format(start=start, step=step, limit=limit, direction=direction)
    stop = limit + 1 if direction == "LE" else limit
    expected = len(range(start, stop, step))
    work = [entry for entry in parse_module(text).scheduled() if entry[0].name == "work"]
    assert [(calls, exact) for _, _, calls, exact in work] == [(expected, True)]


def test_a_loop_that_can_not_be_counted_is_said_to_be_a_guess():
    text = LOOP.format(start=0, step=1, limit=9, direction="NE")
    (found,) = [entry for entry in parse_module(text).scheduled() if entry[0].name == "work"]
    assert found[2:] == (1, False)


def test_a_noted_trip_count_is_believed():
    text = LOOP.format(start=0, step=1, limit=9, direction="NE").replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"12"}}'
    )
    (found,) = [entry for entry in parse_module(text).scheduled() if entry[0].name == "work"]
    assert found[2:] == (12, True)


SCAN = """HloModule jit_scan, is_scheduled=true

%body (arg: (s32[], f32[8], s32[], s32[])) -> (s32[], f32[8], s32[], s32[]) {
  %arg = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%arg), index=0
  %i.copy = s32[]{:T(128)S(6)} copy(%i)
  %step = s32[]{:T(128)} get-tuple-element(%arg), index=2
  %next = s32[]{:T(128)} add(%step, %i.copy)
  %limit = s32[]{:T(128)} get-tuple-element(%arg), index=3
  %x = f32[8]{0:T(128)} get-tuple-element(%arg), index=1
  %work = f32[8]{0:T(128)} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"a\\": 1"
}}, metadata={op_name="f"}
  %after = f32[8]{0:T(128)} fusion(%work), kind=kLoop, calls=%inside
  ROOT %out = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}, s32[]{:T(128)}) tuple(%next, %after, %step, LIMIT)
}

%condition (arg.1: (s32[], f32[8], s32[], s32[])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  %limit.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=3
  ROOT %less = pred[]{:T(512)} compare(%i.1, %limit.1), direction=LT
}

ENTRY %main (x.1: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0:T(128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %one = s32[]{:T(128)} constant(1)
  %many = s32[]{:T(128)} constant(16)
  %copy = s32[]{:T(128)} copy(%zero)
  %init = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}, s32[]{:T(128)}) tuple(%copy, %x.1, %one, %many)
  %while.1 = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}, s32[]{:T(128)}) while(%init), condition=%condition, body=%body
  ROOT %result = f32[8]{0:T(128)} get-tuple-element(%while.1), index=1
}, execution_thread="main"
"""  # noqa: E501 - as the compiler writes it


def test_a_scan_whose_constants_travel_in_its_tuple():
    """Counter behind a copy, step and limit as elements that the body hands on unchanged."""
    found = list(parse_module(SCAN.replace("LIMIT", "%limit")).scheduled())
    called = {entry[0].name: entry[2:] for entry in found}
    assert called["work"] == called["after"] == (16, True)
    moved = list(parse_module(SCAN.replace("LIMIT", "%next")).scheduled())
    assert {entry[0].name: entry[2:] for entry in moved}["work"] == (1, False)


def test_a_loop_counted_from_outside():
    module = parse_module(SCAN.replace("LIMIT", "%next"))
    (found,) = [e for e in module.scheduled({"while.1": 5}) if e[0].name == "work"]
    assert found[2:] == (5, True)
    (found,) = [e for e in module.scheduled_in_loops() if e[0].name == "work"]
    assert found[2:] == (1, ("while.1",), True)


def test_attributes_over_several_lines_do_not_end_a_computation():
    body = parse_module(SCAN.replace("LIMIT", "%limit")).computations["body"]
    assert [instruction.name for instruction in body][-3:] == ["work", "after", "out"]
    assert body[-3].is_kernel


def test_bytes_with_padding():
    (narrow,) = parse_shapes("f32[4096,8]{1,0:T(8,128)S(1)}")
    assert narrow.padded_bytes == 4096 * 128 * 4
    (turned,) = parse_shapes("bf16[100,8]{0,1:T(8,128)(2,1)}")
    assert turned.padded_bytes == 8 * 128 * 2
    (scalar,) = parse_shapes("s32[]{:T(128)S(6)}")
    assert scalar.padded_bytes == 512
    assert ArrayShape("f32", (3, 5)).padded_bytes == 60


def test_a_kernel_on_arrays_in_vmem_does_not_use_zero_bytes():
    arrays = parse_shapes("f32[4096,8]{1,0:T(8,128)S(1)} f32[8,128]{1,0:T(8,128)}")
    page = 'const DATA = {"hlo_breakdowns": {}}'
    report = parse_vmem_report(page, {"f": ""}, 1 << 24, {"f": arrays})
    assert report.reported
    assert report.used_bytes == report.by_piece["f"] == 2 << 20
    assert [(a.kind, a.size_bytes) for a in report.allocations] == [("array", 2 << 20)]
    assert not parse_vmem_report("", {"f": ""}, 1 << 24).reported


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="entry"):
        parse_module("HloModule nothing\n")


def test_shapes():
    text = (
        "(bf16[4096,512]{1,0:T(8,128)(2,1)}, f32[]{:T(128)S(6)}, /*index=2*/pred[8]{0:T(512)S(1)})"
    )
    first, second, third = parse_shapes(text)
    assert first == ArrayShape("bf16", (4096, 512), "hbm", "{1,0:T(8,128)(2,1)}")
    assert (first.size_bytes, second.size_bytes, third.size_bytes) == (4096 * 512 * 2, 4, 8)
    assert (second.memory_space, third.memory_space) == ("smem", "vmem")
    assert str(first) == "bf16[4096,512]"
    assert ArrayShape("s4", (3,)).size_bytes == 2
    assert ArrayShape("f8e4m3fn", (3,)).size_bytes == 3
    assert ArrayShape("token", ()).size_bytes == 0


@given(st.text(alphabet="%=(){}[],abs \n012", max_size=300))
def test_no_text_breaks_the_reader(text):
    with pytest.raises(ValueError):
        parse_module(text)
    parse_module(LOOP.format(start=0, step=1, limit=3, direction="LT") + text)
    parse_deduplication(text)
    assert parse_slot_use(text).bundles == 0
    assert parse_vmem_report(text, {"f": text}, 5).limit_bytes == 5


def test_deduplication():
    text = "key:a\nordinal:1\nequivalent_hlos[size=2]:\n  a\n  b\nkey:c\nequivalent_hlos[size=0]:\n"
    assert parse_deduplication(text) == {"a": "a", "b": "a"}


def test_slot_use():
    text = (
        "== CAPACTIY:\nMXU, XLU, VALU, VLOAD:FILL\n    4     3     4   3\n== UTILIZATION:\n"
        "1 0 2 0\n3 1 4 1\n"
    )
    use = parse_slot_use(text)
    assert use.bundles == 2
    assert use.used == {"MXU": 4, "XLU": 1, "VALU": 6, "VLOAD:FILL": 1}
    assert use.fraction("MXU") == 0.5
    assert use.fraction("VALU") == 0.75
    assert use.fraction("nothing") == 0.0
