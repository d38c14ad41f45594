"""Roofline: what memory and matrix unit allow at a given arithmetic intensity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tpulab.errors import UsageError
from tpulab.hardware import Chip, get_chip
from tpulab.units import rate_text
from tpulab.visual.figure import Figure
from tpulab.visual.rungs import Climb, Version, versions
from tpulab.visual.svg import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    Drawing,
    number,
    shortened,
    text_width,
)

Point = float | tuple[float, float]

_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 700.0, 16.0, 330.0
_LIST_WIDTH = 300.0
#: points that the sentence names
_MOST_SAID = 6
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


@dataclass(frozen=True)
class _Mark:
    """Something under the roof: its name on the plot, its name, and where it stands."""

    sign: str
    name: str
    chip: int
    intensity: float
    reached: float
    layer: str


def roofline(
    chips: Iterable[str | Chip],
    points: Mapping[str, Point] | None = None,
    *,
    climb: Climb = (),
    dtype: str = "bfloat16",
) -> Figure:
    """Draw the roofs of some chips and where pieces of work stand under them.

    Args:
        chips: names of chips, at most five.
        points: name → operations per byte of HBM traffic, drawn at the height the first chip
            allows; or name → (operations per byte, operations per second reached).
        climb: versions of one kernel in the order in which they were written, joined by a line:
            (name, operations per byte, operations per second on the first chip) each, the last of
            them a mapping from chip to rate for several chips; or ladders, or name → ladder, which
            know all that.
        dtype: dtype whose matrix peak is the flat part of the roof.

    Raises:
        UsageError: no chip or too many, or an intensity that is not a positive number.
        UnknownNameError: a chip that is not known.
    """
    return _roofline(chips, points or {}, climb, dtype, layered=False)


def roofline_layers(
    chips: Iterable[str | Chip], points: Mapping[str, Point], climb: Climb, dtype: str
) -> Figure:
    """The same picture with a layer for every point and version, for a widget to switch off."""
    return _roofline(chips, points, climb, dtype, layered=True)


def layers(points: Mapping[str, Point], climb: Climb) -> dict[str, str]:
    """Name of a point or version → its layer in `roofline_layers`."""
    names = {name: f"point{place}" for place, name in enumerate(points)}
    found = versions(climb, "")
    return names | {version.name: f"rung{place}" for place, version in enumerate(found)}


def _roofline(
    chips: Iterable[str | Chip],
    points: Mapping[str, Point],
    climb: Climb,
    dtype: str,
    *,
    layered: bool,
) -> Figure:
    known = [chip if isinstance(chip, Chip) else get_chip(chip) for chip in chips]
    if not 1 <= len(known) <= len(_LINES):
        raise UsageError(f"a roofline shows one to {len(_LINES)} chips, not {len(known)}")
    climbed = versions(climb, known[0].name)
    marks = _point_marks(points, known[0], dtype) + _climb_marks(climbed, known)
    scale = _scale(known, marks, dtype)
    drawing = Drawing(_RIGHT + 24.0 + _LIST_WIDTH, _BOTTOM + 46.0)
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
    _paths(drawing, scale, marks, layered)
    _draw_marks(drawing, scale, marks)
    _list(drawing, known, marks, climbed, dtype)
    alt = _sentence(known, marks, climbed, dtype)
    return Figure(
        title=f"Roofline of {', '.join(chip.name for chip in known)} in {dtype}",
        alt=alt,
        svg=drawing.render(alt),
        header=("work", "FLOP/byte", "TFLOP/s", "of the peak", "limit", "chip"),
        rows=tuple(
            (
                mark.name,
                _intensity(mark),
                f"{mark.reached / 1e12:,.1f}",
                _share(mark.reached / known[mark.chip].peak(dtype)),
                _limit(mark.intensity, known[mark.chip], dtype),
                known[mark.chip].name,
            )
            for mark in marks
        ),
    )


def _point_marks(points: Mapping[str, Point], chip: Chip, dtype: str) -> list[_Mark]:
    marks = []
    for place, (name, point) in enumerate(points.items()):
        intensity, reached = point if isinstance(point, tuple) else (point, None)
        _check(name, intensity)
        allowed = min(intensity * chip.hbm_bandwidth(), chip.peak(dtype))
        height = float(allowed if reached is None else reached)
        marks.append(_Mark(_letter(place), name, 0, float(intensity), height, f"point{place}"))
    return marks


def _climb_marks(climbed: Sequence[Version], chips: Sequence[Chip]) -> list[_Mark]:
    """Where each version stands under each chip's roof; a chip that refused it has no mark."""
    marks = []
    for index, chip in enumerate(chips):
        for place, version in enumerate(climbed):
            if chip.name in version.on:
                intensity, reached = version.on[chip.name]
                _check(version.name, intensity)
                _check(version.name, reached)
                layer = f"rung{place}"
                sign = str(place + 1)
                marks.append(_Mark(sign, version.name, index, intensity, reached, layer))
    return marks


def _check(name: str, figure: float) -> None:
    if not figure > 0 or not math.isfinite(figure):
        raise UsageError(f"the intensity of {name!r} is {figure}, not a positive number")


def _scale(chips: list[Chip], marks: Sequence[_Mark], dtype: str) -> _Scale:
    intensities = [mark.intensity for mark in marks]
    intensities += [chip.ridge_point(dtype) for chip in chips]
    x_low = math.floor(math.log10(min(intensities)) - 0.3)
    x_high = math.ceil(math.log10(max(intensities)) + 0.3)
    reached = [mark.reached for mark in marks]
    lowest = min([*reached, *(10**x_low * chip.hbm_bandwidth() for chip in chips)])
    highest = max([*(chip.peak(dtype) for chip in chips), *reached])
    return _Scale(x_low, x_high, math.floor(math.log10(lowest)), math.log10(highest) + 0.15)


def _axes(drawing: Drawing, scale: _Scale) -> None:
    drawing.line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM)
    drawing.line(_LEFT, _TOP, _LEFT, _BOTTOM)
    # of many decades, every second or third has a number
    each = -(-int(scale.x_high - scale.x_low) // 8)
    for decade in range(int(scale.x_low), int(scale.x_high) + 1):
        x = scale.x(10.0**decade)
        drawing.line(x, _TOP, x, _BOTTOM, opacity=0.2, width=0.7)
        if (decade - int(scale.x_low)) % each == 0:
            drawing.text(x, _BOTTOM + 17, f"{10.0**decade:,g}", anchor="middle", size=11)
    for decade in range(int(scale.y_low), math.floor(scale.y_high) + 1):
        y = scale.y(10.0**decade)
        drawing.line(_LEFT, y, _RIGHT, y, opacity=0.2, width=0.7)
        # the uppermost number may meet the axis' name
        if y > _TOP + 18:
            drawing.text(_LEFT - 6, y + 4, f"{10.0 ** (decade - 12):,g}", anchor="end", size=11)
    middle = (_LEFT + _RIGHT) / 2
    drawing.text(middle, _BOTTOM + 36, "operations per byte of HBM traffic", anchor="middle")
    drawing.text(0, _TOP + 4, "TFLOP/s")


def _paths(drawing: Drawing, scale: _Scale, marks: Sequence[_Mark], layered: bool) -> None:
    """Lines from version to version; with layers also those that leave out versions."""
    for chip in {mark.chip for mark in marks}:
        way = [mark for mark in marks if mark.chip == chip and mark.layer.startswith("rung")]
        for first, start in enumerate(way):
            last = len(way) if layered else first + 2
            for second, stop in enumerate(way[first + 1 : last], start=first + 1):
                between = [mark.layer for mark in way[first + 1 : second]]
                data = {"layers": f"{start.layer} {stop.layer}"}
                if between:
                    data["without"] = " ".join(between)
                _group(drawing, data, hidden=bool(between))
                drawing.line(
                    scale.x(start.intensity),
                    scale.y(start.reached),
                    scale.x(stop.intensity),
                    scale.y(stop.reached),
                    width=1.2,
                    dashes=_LINES[chip][1] or None,
                )
                drawing.close_group()


def _group(drawing: Drawing, data: Mapping[str, str], *, hidden: bool = False) -> None:
    if hidden:
        attributes = "".join(f' data-{name}="{value}"' for name, value in data.items())
        drawing.insert(f'<g{attributes} style="display:none">')
    else:
        drawing.open_group(**data)


def _draw_marks(drawing: Drawing, scale: _Scale, marks: Sequence[_Mark]) -> None:
    """Diamonds for points, circles for versions; signs where they cover nothing."""
    places = [(scale.x(mark.intensity), scale.y(mark.reached)) for mark in marks]
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in places]
    for mark, (x, y) in zip(marks, places, strict=True):
        drawing.open_group(layers=mark.layer)
        if mark.layer.startswith("rung"):
            colour = _LINES[mark.chip][0]
            drawing.insert(
                f'<circle cx="{number(x)}" cy="{number(y)}" r="5" fill="{colour}"'
                ' stroke="currentColor"/>'
            )
        else:
            drawing.polygon([(x, y - 6), (x + 6, y), (x, y + 6), (x - 6, y)], fill=ORANGE)
        box = _free(x, y, text_width(mark.sign, bold=True), taken)
        taken.append(box)
        drawing.text(box[0], box[3] - 2, mark.sign, bold=True)
        drawing.close_group()


Box = tuple[float, float, float, float]


def _free(x: float, y: float, width: float, taken: Sequence[Box]) -> Box:
    """The nearest place beside a mark at which a sign covers neither marks nor other signs."""
    height = 12.0
    places = [
        (x + dx, y + dy)
        for ring in range(6)
        for dy in (6 + 13 * ring, -18 - 13 * ring, -6 + 13 * ring)
        for dx in (8.0, -8.0 - width, -width / 2 if ring or dy != -6 else 8.0)
    ]
    for left, top in places:
        box = (left, top, left + width, top + height)
        if box[0] < _LEFT or box[3] > _BOTTOM - 1 or box[1] < 0:
            continue
        if not any(
            box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
            for other in taken
        ):
            return box
    left, top = places[0]
    return left, top, left + width, top + height


def _list(
    drawing: Drawing,
    chips: list[Chip],
    marks: Sequence[_Mark],
    climbed: Sequence[Version],
    dtype: str,
) -> None:
    x, y = _RIGHT + 24, _TOP + 14
    for chip, (colour, dashes) in zip(chips, _LINES, strict=False):
        drawing.polyline([(x, y - 4), (x + 30, y - 4)], stroke=colour, dashes=dashes)
        ridge = f"{chip.name}: ridge at {chip.ridge_point(dtype):,.0f} FLOP/byte"
        drawing.text(x + 38, y, ridge, size=11)
        y += 19
    y += 8
    for mark in marks:
        if mark.layer.startswith("point"):
            share = f"{_share(mark.reached / chips[0].peak(dtype))} of {chips[0].name}"
            _entry(drawing, x, y, mark, f": {share}")
            y += 19
    for place, version in enumerate(climbed):
        own = [mark for mark in marks if mark.layer == f"rung{place}"]
        shares = [
            f"{_share(mark.reached / chips[mark.chip].peak(dtype))} of {chips[mark.chip].name}"
            for mark in own
        ]
        entry = own[0] if own else _Mark(str(place + 1), version.name, 0, 1, 1, f"rung{place}")
        _entry(drawing, x, y, entry, f": {', '.join(shares) or 'no prediction'}")
        y += 19
    drawing.height = max(drawing.height, y)


def _entry(drawing: Drawing, x: float, y: float, mark: _Mark, rest: str) -> None:
    drawing.open_group(layers=mark.layer)
    drawing.text(x, y, mark.sign, bold=True)
    indent = 8 + max(text_width(mark.sign, bold=True), 10.0)
    room = _LIST_WIDTH - indent - text_width(rest, 11)
    drawing.text(x + indent, y, shortened(mark.name, max(room, 60.0), 11) + rest, size=11)
    drawing.width = max(drawing.width, x + indent + 64 + text_width(rest, 11))
    drawing.close_group()


def _intensity(mark: _Mark) -> str:
    return f"{mark.intensity:,.0f}" if mark.intensity >= 10 else f"{mark.intensity:.3g}"


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{100 * share:.2g}%"


def _letter(place: int) -> str:
    """A … Z, then AA, AB, …"""
    head = _letter(place // 26 - 1) if place >= 26 else ""
    return head + chr(ord("A") + place % 26)


def _limit(intensity: float, chip: Chip, dtype: str) -> str:
    return "memory" if intensity < chip.ridge_point(dtype) else "compute"


def _sentence(
    chips: list[Chip], marks: Sequence[_Mark], climbed: Sequence[Version], dtype: str
) -> str:
    first = chips[0]
    parts = [
        f"{mark.name} at {_intensity(mark)} FLOP/byte stands at "
        f"{_share(mark.reached / first.peak(dtype))} of {first.name}, "
        f"{_limit(mark.intensity, first, dtype)}-bound"
        for mark in marks
        if mark.layer.startswith("point")
    ]
    if len(parts) > _MOST_SAID:
        parts = [*parts[:_MOST_SAID], f"{len(parts) - _MOST_SAID} more are in the table"]
    for index, chip in enumerate(chips):
        way = [mark for mark in marks if mark.chip == index and mark.layer.startswith("rung")]
        if len(way) == 1:
            share = way[0].reached / chip.peak(dtype)
            parts.append(f"{way[0].name} reaches {_share(share)} of the peak of {chip.name}")
        elif way:
            low, high = (mark.reached / chip.peak(dtype) for mark in (way[0], way[-1]))
            parts.append(
                f"{len(way)} versions climb from {_share(low)} of the peak of {chip.name} "
                f"({way[0].name}) to {_share(high)} ({way[-1].name}, "
                f"{rate_text(way[-1].reached, 'FLOP/s')})"
            )
        elif climbed:
            parts.append(f"none of the versions has a prediction for {chip.name}")
    ridges = ", ".join(f"{chip.name} {chip.ridge_point(dtype):,.0f}" for chip in chips)
    return (
        ". ".join([f"Ridge points in FLOP/byte: {ridges}", *(["; ".join(parts)] * bool(parts))])
        + "."
    )
