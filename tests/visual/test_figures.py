"""Figures: drawn from real kernels, the same every time, readable without seeing them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from tests.visual.helpers import call_of, check_figure, contrast, matmul_call, texts
from tpulab.errors import UsageError
from tpulab.kernel import trace
from tpulab.units import bytes_text, count_text, rate_text, seconds_text
from tpulab.visual import blocks_in_motion, roofline, step_through
from tpulab.visual.blocks import FRAMES, shown_steps
from tpulab.visual.svg import Drawing, number
from tpulab.visual.windows import frames


def test_moves_of_a_matmul_are_the_known_ones() -> None:
    lhs, rhs, out = frames(matmul_call(512, 128))
    # k innermost: both operands move at all 64 steps, an output block leaves once k is through
    assert (lhs.moves, rhs.moves, out.moves) == (64, 64, 16)
    assert lhs.corners[5] == (0, 128)
    assert rhs.corners[5] == (128, 128)
    assert out.corners[5] == (0, 128)
    figure = blocks_in_motion(matmul_call(512, 128))
    check_figure(figure)
    assert [row[3] for row in figure.rows] == ["64", "64", "16"]


def test_the_same_call_gives_the_same_bytes() -> None:
    first, second = (blocks_in_motion(matmul_call(256, 128)) for _ in range(2))
    assert first._repr_mimebundle_() == second._repr_mimebundle_()


def test_long_grids_show_first_and_last_steps() -> None:
    assert shown_steps(FRAMES) == list(range(FRAMES))
    assert shown_steps(1000) == [0, 1, 2, 3, 4, 5, 6, 999]
    check_figure(blocks_in_motion(call_of((8192, 128), (8, 128), (1024,), lambda i: (i, 0))))


@pytest.mark.parametrize(
    ("shape", "block", "grid", "index_map"),
    [
        ((100, 256), (32, 256), (4,), lambda i: (i, 0)),
        ((4, 64, 128), (None, 32, 128), (4, 2), lambda i, j: (i, j, 0)),
        ((256, 128), (256, 128), (), lambda: (0, 0)),
    ],
)
def test_ragged_squeezed_and_gridless(
    shape: tuple[int, ...], block: Any, grid: tuple[int, ...], index_map: Callable[..., Any]
) -> None:
    check_figure(blocks_in_motion(call_of(shape, block, grid, index_map)))


def test_without_blocks_there_is_a_sentence() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        pass

    def nothing(x: jax.Array) -> jax.Array:
        anywhere = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            kernel,
            in_specs=[anywhere],
            out_specs=anywhere,
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        )(x)

    call = trace(nothing, jax.ShapeDtypeStruct((8, 128), jnp.float32)).calls[0]
    with pytest.raises(UsageError, match="no operand that the pipeline moves"):
        blocks_in_motion(call)


def test_roofline_places_work_where_the_datasheet_says() -> None:
    figure = roofline(["v5e", "v6e"], {"half": 120.27, "deep": 10_000.0, "real": (300.0, 98.5e12)})
    check_figure(figure)
    # v5e: 197 TFLOP/s and 819 GB/s, so half the ridge of 240.5 allows half of the peak
    shares = [row[3] for row in figure.rows]
    assert shares == ["50%", "100%", "50%"]
    assert [row[4] for row in figure.rows] == ["memory", "compute", "compute"]


def test_roofline_refuses_what_it_cannot_draw() -> None:
    with pytest.raises(UsageError, match="not a positive number"):
        roofline(["v5e"], {"nothing": 0.0})
    with pytest.raises(UsageError, match="one to"):
        roofline([], {"a": 1.0})


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.floats(0.01, 1e6), max_size=6))
def test_roofline_of_anything_is_valid_svg(points: dict[str, float]) -> None:
    printable = {re.sub(r"[^ -~<>&\"'äµ³]", "?", name): value for name, value in points.items()}
    ET.fromstring(roofline(["v5p"], printable).svg)


@given(st.floats(-1e6, 1e6))
def test_coordinates_are_short_and_near(value: float) -> None:
    text = number(value)
    assert abs(float(text) - value) <= 0.005001
    assert text != "-0"
    assert len(text.partition(".")[2]) <= 2


def test_units() -> None:
    assert seconds_text(0.000889) == "889 µs"
    assert seconds_text(0.00089) == "890 µs"
    assert seconds_text(0.0117) == "11.7 ms"
    assert seconds_text(2.5e-9) == "2.50 ns"
    assert bytes_text(96 * 2**20) == "96 MiB"
    assert bytes_text(1536) == "1.5 KiB"
    assert bytes_text(1023 * 2**10) == "1023 KiB"
    assert seconds_text(0) == "0 s"
    assert rate_text(819e9, "B/s") == "819 GB/s"
    assert rate_text(2765e9, "B/s") == "2,765 GB/s"
    assert rate_text(18.432e12, "B/s") == "18.4 TB/s"
    assert rate_text(2307e12, "FLOP/s") == "2,307 TFLOP/s"
    assert rate_text(6.144e12, "FLOP/s") == "6.14 TFLOP/s"
    assert count_text(2 * 4096**3) == "137 billion"
    assert count_text(268435456) == "268 million"
    assert count_text(4096) == "4,096"


def test_a_saved_figure_is_readable_on_white(tmp_path: Any) -> None:
    path = blocks_in_motion(matmul_call(256, 128)).save(tmp_path / "figure.svg")
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    assert "background:#ffffff" in (root.get("style") or "")


def test_areas_stand_out_from_light_and_dark_pages() -> None:
    from tpulab.visual import svg

    # WCAG 1.4.11 asks 3:1 of graphics; outlines in currentColor carry the rest for light fills
    for colour in (svg.BLUE, svg.GREEN, svg.VERMILLION):
        for page in ("#ffffff", "#111111"):
            assert contrast(colour, page) >= 3.0, (colour, page)


def test_drawing_escapes_text() -> None:
    drawing = Drawing(10, 10)
    drawing.text(0, 0, "<script>&")
    drawing.rectangle(0, 0, 1, 1, tooltip="a < b")
    ET.fromstring(drawing.render('say "x" & <y>'))


def _copies(out_map, shape=(1024, 1536), out_shape=(1536, 1024), grid=(2, 3)):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...].T

    def call(x):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(out_shape, jnp.float32),
            grid=grid,
            in_specs=[pl.BlockSpec((512, 512), lambda i, j: (i, j))],
            out_specs=pl.BlockSpec((512, 512), out_map),
        )(x)

    return trace(call, jax.ShapeDtypeStruct(shape, jnp.float32)).calls[0]


def test_a_block_outside_the_array_is_drawn_outside_and_named() -> None:
    wrong = blocks_in_motion(_copies(lambda i, j: (i, j)))
    root = check_figure(wrong)
    assert "Steps 3 and 6 ask for a block of out_ref that lies outside the array" in wrong.alt
    assert "x_ref that lies" not in wrong.alt
    shown = texts(root)
    assert shown.count("!") == 2
    assert "! outside the array" in shown
    right = blocks_in_motion(_copies(lambda i, j: (j, i)))
    assert "outside" not in right.alt
    assert "! outside the array" not in texts(check_figure(right))
    (_, out) = frames(_copies(lambda i, j: (i, j)))
    assert [step for step, outside in enumerate(out.outside) if outside] == [2, 5]
    assert out.movement(2) == "outside the array"


@pytest.mark.parametrize(
    ("out_map", "steps"),
    [
        (lambda i, j: (j + 1, i), "Steps 3 and 6 ask"),
        (lambda i, j: (j - 1, i), "Steps 1 and 4 ask"),
        (lambda i, j: (j, i - 1), "Steps 1, 2 and 3 ask"),
        (lambda i, j: (j + 3, i + 2), "Steps 1, 2, 3, 4 and 2 more ask"),
    ],
)
def test_blocks_beyond_any_edge_are_seen(out_map, steps) -> None:
    call = _copies(out_map)
    figure = blocks_in_motion(call)
    check_figure(figure)
    assert steps in figure.alt
    check_figure(step_through(call).figure)


def test_a_block_that_hangs_over_the_edge_is_no_mistake() -> None:
    figure = blocks_in_motion(call_of((1000, 384), (512, 256), (2, 2), lambda i, j: (i, j)))
    assert "outside" not in figure.alt


def test_an_index_outside_of_a_folded_dimension_is_seen() -> None:
    call = call_of((2, 8, 128), (None, 8, 128), (2,), lambda i: (i + 1, 0, 0))
    assert "Step 2 asks for a block of x_ref" in blocks_in_motion(call).alt
