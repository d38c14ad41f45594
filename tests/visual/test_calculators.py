"""The calculators in a notebook: their numbers are the library's, and a slip costs nothing."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from typing import Any

import ipywidgets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpulab import visual
from tpulab.errors import TpulabError
from tpulab.roofline import Links, all_gather, matmul_tilings
from tpulab.units import seconds_text
from tpulab.visual.calculators import Calculator

MAKERS = (
    visual.roofline_calculator,
    visual.tiling_calculator,
    visual.collectives_calculator,
)


def shown(calculator: Calculator) -> str:
    """All text below the form, as the browser gets it."""
    return "".join(child.value for child in calculator.children if hasattr(child, "value"))


@pytest.mark.parametrize("make", MAKERS)
def test_every_field_has_a_label_and_the_figure_an_equivalent(make: Any) -> None:
    calculator = make()
    for field in calculator.fields.values():
        assert field.description
        assert isinstance(field, ipywidgets.Text | ipywidgets.Dropdown)
        # a drop-down without an index shows nothing
        assert getattr(field, "index", 0) is not None
    ET.fromstring(calculator.figure.svg)
    assert 'role="img"' in calculator.figure.svg
    assert calculator.figure.alt in calculator.figure.text
    assert repr(calculator) == calculator.figure.text
    assert calculator.figure.svg.split(">")[1][:40] in shown(calculator)
    assert make().figure == calculator.figure


@pytest.mark.parametrize("make", MAKERS)
def test_without_a_kernel_the_figure_of_the_last_state_is_there(make: Any) -> None:
    calculator = make()
    calculator.set(chip="v6e") if "chip" in calculator.fields else calculator.set(chips="v6e")
    bundle = calculator._repr_mimebundle_()
    data = bundle[0] if isinstance(bundle, tuple) else bundle
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<svg" in data["text/html"]
    assert "v6e" in data["text/plain"]
    assert "v5e" not in data["text/plain"]


def test_a_product_moves_with_its_rows_and_its_weights() -> None:
    form = visual.roofline_calculator(32, 4096, 14336, chips=("v5e",))
    assert form.figure.rows[0][:4] == ("v5e", "145 µs", "memory", "13.2%")
    form.fields["rhs_dtype"].value = "int8"
    assert form.figure.rows[0][:3] == ("v5e", "73.1 µs", "memory")
    # the book's 240 tokens, and what the tokens' own bytes add
    form.set(rhs_dtype="bfloat16", k="1000000", n="1000000")
    assert form.figure.rows[0][-1] == "241"
    form.fields["m"].value = "512"
    assert form.figure.rows[0][2] == "compute"
    form.fields["chips"].value = "v4, v5e,v5p, v6e, v6e"
    assert [row[0] for row in form.figure.rows] == ["v4", "v5e", "v5p", "v6e"]
    assert not form.problem


def test_blocks_are_those_of_the_library() -> None:
    form = visual.tiling_calculator(1024, 2048, 8192, block=(128, 2048, 512))
    cells = {row[0]: row[1] for row in form.figure.rows}
    found = matmul_tilings(1024, 2048, 8192, 128, 2048, 512)
    assert cells["limited by"] == "memory"
    assert cells["estimate"] == seconds_text(float(found.estimate_seconds))
    assert cells["grid steps"] == f"{int(found.steps):,}"
    form.set(block_m="1024")
    cells = {row[0]: row[1] for row in form.figure.rows}
    assert cells["limited by"] == "compute"
    form.set(block_n="1024")
    assert "do not fit" in form.figure.alt
    form.set(block_n="100")
    assert "not legal" in form.figure.alt


def test_a_collective_is_that_of_the_library() -> None:
    form = visual.collectives_calculator("all-gather", "bf16[2048,8192]", axes=(4,))
    cost = all_gather(2**25, Links.of("v5e", 4))
    assert form.figure.rows[0][4:] == (seconds_text(cost.seconds), "bandwidth")
    form.fields["wraparound"].value = "every axis a ring"
    ring = all_gather(2**25, Links.of("v5e", 4, wraparound=True))
    assert form.figure.rows[0][4] == seconds_text(ring.seconds)
    assert ring.seconds < cost.seconds
    form.fields["size"].value = "1 KiB"
    assert form.figure.rows[0][5] == "latency"
    assert "set by latency" in form.figure.alt


@pytest.mark.parametrize(
    ("make", "field", "value", "says"),
    [
        (visual.roofline_calculator, "m", "no", "m is 'no'"),
        (visual.roofline_calculator, "m", "", "m is ''"),
        (visual.roofline_calculator, "chips", "v5x", "v5e"),
        (visual.roofline_calculator, "chips", "", "one to"),
        (visual.tiling_calculator, "block_k", "-4", "block_k is '-4'"),
        (visual.tiling_calculator, "n", "9" * 30, "n is"),
        (visual.collectives_calculator, "size", "banana", "bf16[2048,8192]"),
        (visual.collectives_calculator, "size", "<b>", "'<b>' is not an amount"),
        (visual.collectives_calculator, "axes", "4x4x4", "2 axes"),
        (visual.collectives_calculator, "axes", "1", "two chips"),
    ],
)
def test_a_slip_gets_a_sentence_and_keeps_the_last_result(
    make: Any, field: str, value: str, says: str
) -> None:
    form = make()
    before, good = form.figure, form.fields[field].value
    form.fields[field].value = value
    assert form.problem
    assert form.figure is before
    status = re.search(r'<p role="status"[^>]*>(.*?)</p>', shown(form))
    assert status is not None
    assert says in html.unescape(status[1])
    assert "<b>" not in status[1]
    assert "last result" in status[1]
    assert before.alt.split(";")[0][:30] in shown(form)
    form.fields[field].value = good
    assert not form.problem
    assert form.figure == before


def test_bad_values_to_begin_with_are_errors() -> None:
    with pytest.raises(TpulabError):
        visual.tiling_calculator(0, 1, 1)
    with pytest.raises(TpulabError):
        visual.collectives_calculator("all-gather", "x")
    with pytest.raises(TpulabError):
        visual.roofline_calculator(chips=("v9",))
    form = visual.roofline_calculator()
    with pytest.raises(TpulabError, match="rows"):
        form.set(rows=3)
    with pytest.raises(TpulabError, match="dtype"):
        form.set(dtype="bf17")
    form.set(m="64")
    assert "[64, 4096]" in form.figure.title


sizes = st.integers(1, 2**20)


@settings(max_examples=25, deadline=None)
@given(sizes, sizes, sizes, sizes, sizes, sizes, st.sampled_from(["mnk", "nmk", "kmn"]))
def test_any_blocks_can_be_drawn(
    m: int, k: int, n: int, block_m: int, block_k: int, block_n: int, order: str
) -> None:
    figure = visual.tiling_roofline(m, k, n, block_m, block_k, block_n, order=order)
    ET.fromstring(figure.svg)
    assert "nan" not in figure.svg


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 2**45), st.lists(st.integers(1, 16), min_size=1, max_size=2))
def test_any_collective_can_be_drawn(size: int, axes: list[int]) -> None:
    if max(axes) == 1:
        return
    for kind in ("all-gather", "all-to-all"):
        figure = visual.collective_times(kind, size, axes, chip="v6e")
        ET.fromstring(figure.svg)
        x, y = map(float, re.findall(r'<polygon points="([\d.]+),([\d.-]+)', figure.svg)[0])
        assert 74 <= x <= 560
        assert 0 <= y <= 290
