"""What the tests of pictures share: small kernels, made-up runs, and what holds for any picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from tpulab.kernel import PallasCall, trace
from tpulab.simulator.timeline import Event, PieceTime, Timeline
from tpulab.visual.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"
#: of a figure in a notebook: HTML, SVG and text together
MOST_BYTES = 200_000
Box = tuple[float, float, float, float]


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


def long_names_call() -> PallasCall:
    """Eight operands with names as long as a careful author's."""
    names = [f"accumulated_statistics_of_head_{number}_ref" for number in range(7)]

    def kernel(*refs: Any) -> None:
        refs[-1][...] = sum(ref[...] for ref in refs[:-1])

    arguments = ", ".join([*names, "result_of_everything_ref"])
    scope: dict[str, Any] = {"kernel": kernel}
    exec(f"def many_operands_kernel({arguments}): kernel({arguments})", scope)

    def many(*arrays: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((256, 512), lambda i, j: (i, j))
        return pl.pallas_call(
            scope["many_operands_kernel"],
            grid=(8, 64),
            in_specs=[spec] * len(arrays),
            out_specs=spec,
            out_shape=jax.ShapeDtypeStruct(arrays[0].shape, jnp.float32),
        )(*arrays)

    return trace(many, *[jax.ShapeDtypeStruct((2048, 32768), jnp.float32)] * 7).calls[0]


def made_up(steps: int, events: tuple[Event, ...] | None = None) -> Timeline:
    """A pipeline in which every step copies for 100 cycles and computes for 60."""
    if events is None:
        made = []
        for step in range(steps):
            made.append(Event("dma_in", "input 0", 100 * step, 100 * step + 100, step + 1))
            made.append(Event("mxu", "matmul", 100 * step + 100, 100 * step + 160, step + 2))
        events = tuple(made)
    cycles = 100.0 * steps + 60
    return Timeline(
        chip="v5e",
        compiler_version="libtpu test",
        clock_hertz=1e9,
        cycles=cycles,
        seconds=cycles / 1e9,
        pieces=(PieceTime("kernel", "kernel", 0, cycles),),
        events=events,
        events_complete=True,
        busy_cycles={"dma_in": 100.0 * steps, "mxu": 60.0 * steps},
        stall_cycles={"waiting for DMA: input 0": cycles - 60 * steps},
        hbm_read_bytes=4096 * steps,
        hbm_written_bytes=0,
        dma_count=steps,
        load_count=steps,
        store_count=0,
        bundles_issued=60 * steps,
        steps=1,
        limiting_unit="dma_in",
    )


@dataclass(frozen=True)
class Sent:
    """A transfer, as the faithful interpreter reports one."""

    round: int
    source: int
    target: int
    size_bytes: int
    target_index: tuple[tuple[int, int], ...] | None


def gathered(devices: int, size_bytes: int = 65536) -> list[Sent]:
    """An all-gather one way round: in round r, device d passes on the chunk of d - r + 1."""
    return [
        Sent(r, d, (d + 1) % devices, size_bytes, (((d - r + 1) % devices * 128, 128), (0, 512)))
        for r in range(1, devices)
        for d in range(devices)
    ]


def through_slots(devices: int) -> list[Sent]:
    """Partial sums one way round through two buffers, used in turn."""
    return [
        Sent(r, d, (d + 1) % devices, 4096, ((r % 2, 1), (0, 128)))
        for r in range(1, devices)
        for d in range(devices)
    ]


def check_figure(figure: Figure) -> ET.Element:
    """What holds for every figure; returns its parsed SVG."""
    root = ET.fromstring(figure.svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == figure.alt
    assert figure.alt.endswith(".")
    bundle = figure._repr_mimebundle_()
    assert set(bundle) == {"text/html", "image/svg+xml", "text/plain"}
    assert sum(len(text.encode()) for text in bundle.values()) < MOST_BYTES
    assert figure.alt in bundle["text/plain"]
    assert figure.rows
    for row in figure.rows:
        assert len(row) == len(figure.header)
    assert "nan" not in figure.svg
    assert not re.search(r"\d us\b", bundle["text/plain"])
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for rectangle in root.iter(f"{SVG}rect"):
        if rectangle.get("x") is None:
            continue
        right = float(rectangle.get("x", 0)) + float(rectangle.get("width", 0))
        bottom = float(rectangle.get("y", 0)) + float(rectangle.get("height", 0))
        assert -0.01 <= right <= width + 0.01
        assert -0.01 <= bottom <= height + 0.01
    unreadable = list(unreadable_texts(root))
    assert not unreadable
    return root


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def contrast(one: str, other: str) -> float:
    """Of two colours, by WCAG 2: from 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    if len(colour) == 4:
        colour = "#" + "".join(2 * digit for digit in colour[1:])
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def unreadable_texts(root: ET.Element) -> Iterator[str]:
    """Texts with a colour of their own on an area that is too alike, and texts in the page's colour
    on any area: that one is readable on a light page or on a dark one, not on both.
    """
    areas: list[tuple[Box, str]] = []
    for element, x, y, fill in _walk(root, 0.0, 0.0, "currentColor"):
        if element.tag == f"{SVG}text":
            at_x = x + float(element.get("x", 0))
            at_y = y + float(element.get("y", 0)) - 4
            if element.get("text-anchor", "") == "start":
                at_x += 2
            if element.get("text-anchor", "") == "end":
                at_x -= 2
            below = [c for box, c in areas if box[0] < at_x < box[2] and box[1] < at_y < box[3]]
            colour = fill
            if colour == "currentColor" and below:
                yield f"{element.text!r} in the page's colour on {below[-1]}"
            elif colour != "currentColor" and not below:
                yield f"{element.text!r} in {colour} on the page"
            elif below and contrast(colour, below[-1]) < 4.5:
                yield f"{element.text!r} in {colour} on {below[-1]}"
        elif fill.startswith("#"):
            box = _box(element)
            if box is not None:
                left, top, right, bottom = box
                areas.append(((x + left, y + top, x + right, y + bottom), fill))


def _walk(
    element: ET.Element, x: float, y: float, fill: str
) -> Iterator[tuple[ET.Element, float, float, str]]:
    """Elements in the order in which they are painted, where they are, and their fill."""
    moved = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    fill = element.get("fill", fill)
    yield element, x, y, fill
    for child in element:
        yield from _walk(child, x, y, fill)


def _box(element: ET.Element) -> Box | None:
    if element.tag == f"{SVG}rect":
        left, top = float(element.get("x", 0)), float(element.get("y", 0))
        width, height = float(element.get("width", 0)), float(element.get("height", 0))
        return left, top, left + width, top + height
    square = re.fullmatch(r"M([-\d.]+) ([-\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z", element.get("d", ""))
    if element.tag == f"{SVG}path" and square:
        left, top, width, height = map(float, square.groups())
        return left, top, left + width, top + height
    return None
