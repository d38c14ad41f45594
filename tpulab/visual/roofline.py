"""Roofline: what memory and matrix unit allow at a given arithmetic intensity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpulab.errors import UsageError
from tpulab.hardware import Chip, get_chip
from tpulab.visual.figure import Figure
from tpulab.visual.svg import BLUE, GREEN, ORANGE, PURPLE, VERMILLION, Drawing

Point = float | tuple[float, float]

_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 700.0, 16.0, 330.0
# colour and dashes together tell chips apart; letters on the points refer to the list beside
_LINES = ((BLUE, ""), (VERMILLION, "7 3"), (GREEN, "2 3"), (PURPLE, "9 3 2 3"), (ORANGE, "4 2"))


@dataclass(frozen=True)
class _Scale:
    """Logarithmic axes of the plot, in decades."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, intensity: float) -> float:
        share = (math.log10(intensity) - self.x_low) / (self.x_high - self.x_low)
        return _LEFT + share * (_RIGHT - _LEFT)

    def y(self, flops_per_second: float) -> float:
        share = (math.log10(flops_per_second) - self.y_low) / (self.y_high - self.y_low)
        return _BOTTOM - share * (_BOTTOM - _TOP)


def roofline(
    chips: Iterable[str | Chip], points: Mapping[str, Point], *, dtype: str = "bfloat16"
) -> Figure:
    """Draw the roofs of some chips and where pieces of work stand under them.

    Args:
        chips: names of chips, at most five.
        points: name → operations per byte of HBM traffic, drawn at the height the first chip
            allows; or name → (operations per byte, operations per second reached).
        dtype: dtype whose matrix peak is the flat part of the roof.

    Raises:
        UsageError: no chip or too many, or an intensity that is not a positive number.
        UnknownNameError: a chip that is not known.
    """
    known = [chip if isinstance(chip, Chip) else get_chip(chip) for chip in chips]
    if not 1 <= len(known) <= len(_LINES):
        raise UsageError(f"a roofline shows one to {len(_LINES)} chips, not {len(known)}")
    placed = {name: _place(name, point, known[0], dtype) for name, point in points.items()}
    scale = _scale(known, placed, dtype)
    drawing = Drawing(_RIGHT + 240.0, _BOTTOM + 46.0)
    _axes(drawing, scale)
    for chip, (colour, dashes) in zip(known, _LINES, strict=False):
        ridge = chip.ridge_point(dtype)
        start, end = 10**scale.x_low, 10**scale.x_high
        drawing.polyline(
            [
                (scale.x(start), scale.y(start * chip.hbm_bandwidth())),
                (scale.x(ridge), scale.y(chip.peak(dtype))),
                (scale.x(end), scale.y(chip.peak(dtype))),
            ],
            stroke=colour,
            dashes=dashes,
        )
    _points(drawing, scale, placed)
    _list(drawing, known, placed, dtype)
    alt = _sentence(known, placed, dtype)
    return Figure(
        title=f"Roofline of {', '.join(chip.name for chip in known)} in {dtype}",
        alt=alt,
        svg=drawing.render(alt),
        header=("work", "FLOP/byte", "TFLOP/s", f"of {known[0].name}", "limit"),
        rows=tuple(
            (
                name,
                f"{intensity:,.0f}",
                f"{reached / 1e12:,.1f}",
                f"{reached / known[0].peak(dtype):.0%}",
                _limit(intensity, known[0], dtype),
            )
            for name, (intensity, reached) in placed.items()
        ),
    )


def _place(name: str, point: Point, chip: Chip, dtype: str) -> tuple[float, float]:
    intensity, reached = point if isinstance(point, tuple) else (point, None)
    if not intensity > 0 or not math.isfinite(intensity):
        raise UsageError(f"the intensity of {name!r} is {intensity}, not a positive number")
    allowed = min(intensity * chip.hbm_bandwidth(), chip.peak(dtype))
    return float(intensity), float(allowed if reached is None else reached)


def _scale(chips: list[Chip], placed: Mapping[str, tuple[float, float]], dtype: str) -> _Scale:
    ridges = [chip.ridge_point(dtype) for chip in chips]
    intensities = [intensity for intensity, _ in placed.values()] + ridges
    x_low = math.floor(math.log10(min(intensities)) - 0.3)
    x_high = math.ceil(math.log10(max(intensities)) + 0.3)
    reached = [value for _, value in placed.values()]
    lowest = min([*reached, *(10**x_low * chip.hbm_bandwidth() for chip in chips)])
    highest = max(chip.peak(dtype) for chip in chips)
    return _Scale(x_low, x_high, math.floor(math.log10(lowest)), math.log10(highest) + 0.15)


def _axes(drawing: Drawing, scale: _Scale) -> None:
    drawing.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM)
    drawing.line(_LEFT, _TOP, _LEFT, _BOTTOM)
    for decade in range(int(scale.x_low), int(scale.x_high) + 1):
        x = scale.x(10.0**decade)
        drawing.line(x, _TOP, x, _BOTTOM, opacity=0.2, width=0.7)
        drawing.text(x, _BOTTOM + 17, f"{10.0**decade:,g}", anchor="middle", size=11)
    for decade in range(int(scale.y_low), math.floor(scale.y_high) + 1):
        y = scale.y(10.0**decade)
        drawing.line(_LEFT, y, _RIGHT, y, opacity=0.2, width=0.7)
        drawing.text(_LEFT - 6, y + 4, f"{10.0 ** (decade - 12):,g}", anchor="end", size=11)
    middle = (_LEFT + _RIGHT) / 2
    drawing.text(middle, _BOTTOM + 36, "operations per byte of HBM traffic", anchor="middle")
    drawing.text(0, _TOP + 4, "TFLOP/s")


def _points(drawing: Drawing, scale: _Scale, placed: Mapping[str, tuple[float, float]]) -> None:
    for letter, (intensity, reached) in zip(_letters(), placed.values(), strict=False):
        x, y = scale.x(intensity), scale.y(reached)
        drawing.polygon([(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)], fill=ORANGE)
        drawing.text(x + 8, y + 17, letter, bold=True)


def _list(
    drawing: Drawing, chips: list[Chip], placed: Mapping[str, tuple[float, float]], dtype: str
) -> None:
    x, y = _RIGHT + 24, _TOP + 14
    for chip, (colour, dashes) in zip(chips, _LINES, strict=False):
        drawing.polyline([(x, y - 4), (x + 30, y - 4)], stroke=colour, dashes=dashes)
        ridge = f"{chip.name}: ridge at {chip.ridge_point(dtype):,.0f} FLOP/byte"
        drawing.text(x + 38, y, ridge, size=11)
        y += 19
    y += 8
    for letter, (name, (_, reached)) in zip(_letters(), placed.items(), strict=False):
        share = f"{reached / chips[0].peak(dtype):.0%} of {chips[0].name}"
        drawing.text(x, y, letter, bold=True)
        drawing.text(x + 16, y, f"{name}: {share}", size=11)
        y += 19
    drawing.height = max(drawing.height, y)


def _letters() -> list[str]:
    return [chr(ord("A") + index) for index in range(26)]


def _limit(intensity: float, chip: Chip, dtype: str) -> str:
    return "memory" if intensity < chip.ridge_point(dtype) else "compute"


def _sentence(chips: list[Chip], placed: Mapping[str, tuple[float, float]], dtype: str) -> str:
    first = chips[0]
    parts = [
        f"{name} at {intensity:,.0f} FLOP/byte stands at {reached / first.peak(dtype):.0%} of "
        f"{first.name}, {_limit(intensity, first, dtype)}-bound"
        for name, (intensity, reached) in placed.items()
    ]
    ridges = ", ".join(f"{chip.name} {chip.ridge_point(dtype):,.0f}" for chip in chips)
    return f"Ridge points in FLOP/byte: {ridges}. " + "; ".join(parts) + "."
