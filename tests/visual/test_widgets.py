"""Widgets: the pictures they hold, their states, their size, and what stands in for them."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import tpulab
from tests.visual.helpers import (
    SVG,
    call_of,
    gathered,
    long_names_call,
    made_up,
    matmul_call,
    texts,
)
from tpulab.errors import UsageError
from tpulab.simulator.timeline import Event
from tpulab.visual import choose_chip, choose_roofline, ring_in_motion, step_through
from tpulab.visual.blocks import blocks_in_motion
from tpulab.visual.player import MOST_CHARACTERS, Frame, within_budget
from tpulab.visual.windows import frames

MOST_BYTES = 200_000
CLIMB = [("one", 60.0, {"v5e": 12e12, "v6e": 13e12}), ("two", 205.0, {"v6e": 196e12})]


MARKS = (f"{SVG}circle", f"{SVG}polygon")


def weight(widget: Any) -> int:
    """Bytes of a widget in a notebook file: what it displays, and its state."""
    bundle, _ = widget._repr_mimebundle_()
    state = {key: value for key, value in widget.get_state().items() if not key.startswith("_")}
    return len(str(bundle).encode()) + len(str(state).encode())


def groups_of(frame: dict[str, str]) -> list[ET.Element]:
    return list(ET.fromstring(frame["svg"]).iter(f"{SVG}g"))


def check_fallback(widget: Any) -> None:
    bundle, _ = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == widget.figure.text == repr(widget)
    assert "<svg" in bundle["text/html"]
    assert widget.figure.alt in bundle["text/plain"]


def test_the_blocks_of_every_step() -> None:
    call = matmul_call(256, 128)
    widget = step_through(call)
    check_fallback(widget)
    assert len(widget.frames) == 8
    text = "Step 4 of 8 at (0, 1, 1): lhs_ref fetched, rhs_ref fetched, out_ref written back."
    assert widget.frames[3]["text"] == text
    assert "stays in VMEM" in widget.frames[0]["text"]
    ET.fromstring(f"<g>{widget.frames[3]['svg']}</g>")
    scene = ET.fromstring(widget.scene)
    assert scene.find(f".//{SVG}g[@data-frame]") is not None
    widget.step = 99
    assert widget.step == 7
    widget.step = -1
    assert widget.step == 0


def test_the_blocks_lie_where_the_index_maps_say() -> None:
    call = matmul_call(512, 128)
    operands = frames(call)
    widget = step_through(call)
    for step in (0, 5, 63):
        shapes = ET.fromstring(f"<g>{widget.frames[step]['svg']}</g>")
        solid = [r for r in shapes.iter("rect") if r.get("fill") in ("#56B4E9", "#E69F00")]
        row, column = operands[0].corners[step]
        # panels are 150 pixels for 512 elements, the first one pixel right of the edge
        assert float(solid[0].get("x", 0)) == pytest.approx(1 + 150 * column / 512, abs=0.01)
        assert float(solid[0].get("y", 0)) == pytest.approx(45 + 150 * row / 512, abs=0.01)


def test_long_grids_and_many_operands_stay_small_and_say_what_is_missing() -> None:
    widget = step_through(call_of((8192, 128), (8, 128), (1024,), lambda i: (i, 0)))
    assert weight(widget) < MOST_BYTES
    shown = len(widget.frames)
    assert 50 < shown < 1024
    assert widget.note.startswith(f"The first {shown} of 1,024 steps are here")
    assert weight(step_through(long_names_call())) < MOST_BYTES
    assert step_through(matmul_call(256, 128)).note == ""


def test_the_rounds_of_a_ring() -> None:
    widget = step_through(gathered(8))
    check_fallback(widget)
    assert widget.unit == "round"
    assert len(widget.frames) == 8
    assert widget.note == ""
    for step in (0, 3, 7):
        figure = ring_in_motion(gathered(8), step=step)
        assert widget.frames[step]["text"] == figure.alt
        shown = ET.fromstring(widget.frames[step]["svg"])
        assert texts(shown) == texts(ET.fromstring(figure.svg))
    assert weight(widget) < MOST_BYTES
    large = step_through(gathered(16))
    assert 2 < len(large.frames) < 16
    assert "are left out to keep the notebook small" in large.note


def test_a_run_to_scroll() -> None:
    widget = step_through(made_up(10))
    check_fallback(widget)
    assert widget.lanes == ["copies in", "matrix unit"]
    assert len(widget.spans) == 20
    # the matrix unit starts on step n when its copy has ended
    assert widget.starts == [0.0, *(100.0 * step + 100 for step in range(1, 10))]
    assert widget.note == ""
    assert widget.zooms == [1, 2, 4, 8, 10]
    lane, first, after, step, name = widget.spans[3]
    assert (lane, first, after, step, widget.names[name]) == (0, 300.0, 400.0, 3, "input 0")
    for name, value, kept in (
        ("start", 99, 9), ("start", -3, 0), ("zoom", 3, 2), ("zoom", 50, 10), ("cursor", 2.0, 1.0),
    ):  # fmt: skip
        setattr(widget, name, value)
        assert getattr(widget, name) == kept


def test_a_long_run_is_cut_and_says_so() -> None:
    widget = step_through(made_up(5000))
    assert len(widget.starts) <= 64
    assert weight(widget) < MOST_BYTES
    assert widget.note.startswith("The first ")
    assert "of 500 µs are here" in widget.note
    busy = tuple(Event("load", "vld", i, i + 0.4, i // 1000 + 2) for i in range(20_000))
    assert weight(step_through(made_up(200, busy))) < MOST_BYTES


def test_the_bars_of_the_strip_are_where_the_spans_say() -> None:
    widget = step_through(made_up(4))
    inner = ET.fromstring(widget.picture).find(f".//{SVG}svg[@data-strip]")
    assert inner is not None
    bars = [r for r in inner.iter(f"{SVG}rect") if r.get("fill") == "#56B4E9"]
    even = [span for span in widget.spans if span[3] % 2 == 0]
    drawn = [(float(bar.get("x", 0)), float(bar.get("width", 0))) for bar in bars]
    expected = [(s[1] * widget.scale, (s[2] - s[1]) * widget.scale) for s in even]
    for one, other in zip(sorted(drawn), sorted(expected), strict=True):
        assert one == pytest.approx(other, abs=0.02)


def test_another_chip() -> None:
    widget = choose_chip(matmul_call(512, 128), chip="v6e")
    check_fallback(widget)
    labels = [frame["label"] for frame in widget.frames]
    assert labels == ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]
    assert labels[widget.step] == "v6e"
    for frame in widget.frames:
        assert frame["text"].startswith(f"A {frame['label']} chip has ")
        assert ET.fromstring(frame["svg"]).get("aria-label") == frame["text"]
    assert weight(widget) < MOST_BYTES
    with pytest.raises(UsageError, match="not among"):
        choose_chip(chips=["v4"], chip="v5e")


def test_layers_of_a_roofline() -> None:
    widget = choose_roofline({"streaming": (1.0, 0.5e12)}, climb=CLIMB, chips=["v5e", "v6e"])
    check_fallback(widget)
    assert [toggle["label"] for toggle in widget.toggles] == ["streaming", "one", "two"]
    layers = [toggle["layer"] for toggle in widget.toggles]
    widget.hidden = ["rung0", "nonsense"]
    assert widget.hidden == ["rung0"]
    for frame, versions in zip(widget.frames, (["point0", "rung0"], layers), strict=True):
        marked = {
            g.get("data-layers") for g in groups_of(frame) if g.find(f"{SVG}text") is not None
        }
        # a version without a prediction is still listed
        assert marked == set(layers)
        dots = {g.get("data-layers") for g in groups_of(frame) if len(g) > 1 and g[0].tag in MARKS}
        assert dots == set(versions)
    # the rate of a point is of the first chip; on another one it stands where memory allows
    assert "streaming at 1 FLOP/byte stands at 0.25% of v5e" in widget.frames[0]["text"]
    assert "streaming at 1 FLOP/byte stands at 0.18% of v6e" in widget.frames[1]["text"]


def test_chips_without_the_dtype_are_not_offered() -> None:
    widget = choose_roofline({"work": 100.0}, dtype="int4")
    assert [frame["label"] for frame in widget.frames] == ["v5e", "v5p", "v6e", "7x"]


def test_a_budget_keeps_the_first_frames() -> None:
    drawn = []

    def frames_of(count: int) -> Any:
        for number in range(count):
            drawn.append(number)
            yield Frame("x" * 40_000, "text")

    assert len(within_budget(frames_of(100))) == MOST_CHARACTERS // 40_004
    assert len(drawn) == 3
    assert len(within_budget(frames_of(1), used=10**6)) == 1


def test_nothing_to_step_through_is_said() -> None:
    with pytest.raises(UsageError, match="no device sent anything"):
        step_through([])
    with pytest.raises(UsageError, match="no events"):
        step_through(made_up(3, ()))


def test_a_kernel_with_one_call_stands_for_it() -> None:
    call = call_of((256, 128), (128, 128), (2,), lambda i: (i, 0))

    def twice(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, out_ref: Any) -> None:
            out_ref[...] = x_ref[...]

        once = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))
        return once(once(x))

    array = jax.ShapeDtypeStruct((256, 128), jnp.float32)
    kernel = dataclasses.replace(tpulab.trace(twice, array), calls=(call,))
    assert blocks_in_motion(kernel).svg == blocks_in_motion(call).svg
    assert len(step_through(kernel).frames) == 2
    with pytest.raises(UsageError, match="twice has 2 kernels"):
        step_through(tpulab.trace(twice, array))
    with pytest.raises(UsageError, match="not of str"):
        blocks_in_motion("kernel")
    with pytest.raises(UsageError, match="int holds no transfers"):
        step_through(3)


def test_figures_and_widgets_use_the_same_data() -> None:
    call = matmul_call(256, 128)
    moves = [row[3] for row in blocks_in_motion(call).rows]
    widget = step_through(call)
    assert moves[:2] == [
        str(sum(f"{name} fetched" in frame["text"] for frame in widget.frames))
        for name in ("lhs_ref", "rhs_ref")
    ]
