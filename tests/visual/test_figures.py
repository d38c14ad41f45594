"""Figures: drawn from real kernels, the same every time, readable without seeing them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from tpulab.errors import UsageError
from tpulab.kernel import PallasCall, trace
from tpulab.visual import blocks_in_motion, roofline
from tpulab.visual.blocks import FRAMES, frames, shown_steps
from tpulab.visual.figure import Figure, bytes_text, seconds_text
from tpulab.visual.svg import Drawing, number

MOST_BYTES = 300_000


def call_of(
    shape: tuple[int, ...],
    block: tuple[int, ...],
    grid: tuple[int, ...],
    index_map: Callable[..., tuple[Any, ...]],
) -> PallasCall:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    def copy(x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec(block, index_map)
        return pl.pallas_call(
            kernel,
            grid=grid,
            in_specs=[spec],
            out_specs=spec,
            out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
        )(x)

    return trace(copy, jax.ShapeDtypeStruct(shape, jnp.float32)).calls[0]


def matmul_call(size: int, block: int) -> PallasCall:
    def kernel(lhs_ref: Any, rhs_ref: Any, out_ref: Any) -> None:
        out_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    def matmul(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(size // block,) * 3,
            in_specs=[
                pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
                pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((size, size), jnp.float32),
        )(lhs, rhs)

    array = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    return trace(matmul, array, array).calls[0]


def check_figure(figure: Figure) -> ET.Element:
    """What holds for every figure; returns its parsed SVG."""
    root = ET.fromstring(figure.svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == figure.alt
    assert figure.alt.endswith(".")
    bundle = figure._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/svg+xml", "text/plain"}
    assert sum(map(len, bundle.values())) < MOST_BYTES
    assert figure.alt in bundle["text/plain"]
    for row in figure.rows:
        assert len(row) == len(figure.header)
    assert "nan" not in figure.svg
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for rectangle in root.iter("{http://www.w3.org/2000/svg}rect"):
        if rectangle.get("x") is None:
            continue
        right = float(rectangle.get("x", 0)) + float(rectangle.get("width", 0))
        bottom = float(rectangle.get("y", 0)) + float(rectangle.get("height", 0))
        assert -0.01 <= right <= width + 0.01
        assert -0.01 <= bottom <= height + 0.01
    return root


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


def test_a_saved_figure_is_readable_on_white(tmp_path: Any) -> None:
    path = blocks_in_motion(matmul_call(256, 128)).save(tmp_path / "figure.svg")
    root = ET.fromstring(path.read_text(encoding="utf-8"))
    assert "background:#ffffff" in (root.get("style") or "")


def _luminance(colour: str) -> float:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_areas_stand_out_from_light_and_dark_pages() -> None:
    from tpulab.visual import svg

    # WCAG 1.4.11 asks 3:1 of graphics; outlines in currentColor carry the rest for light fills
    for colour in (svg.BLUE, svg.GREEN, svg.VERMILLION):
        for page in ("#ffffff", "#111111"):
            low, high = sorted((_luminance(colour), _luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= 3.0, (colour, page)


def test_drawing_escapes_text() -> None:
    drawing = Drawing(10, 10)
    drawing.text(0, 0, "<script>&")
    drawing.rectangle(0, 0, 1, 1, tooltip="a < b")
    ET.fromstring(drawing.render('say "x" & <y>'))
