"""Chunks on a ring of devices: what is sent in which round, and who holds what after it."""

from __future__ import annotations

import math
from typing import Any

from tpulab.errors import UsageError
from tpulab.hardware import Chip
from tpulab.units import bytes_text
from tpulab.visual.figure import Figure
from tpulab.visual.journeys import Journeys, Sent, hanging, journeys, letter
from tpulab.visual.ring_words import (
    held_letters,
    plural,
    round_sentence,
    sentence,
    table,
    time_text,
    timed,
)
from tpulab.visual.svg import (
    BLUE,
    GREEN,
    ON_FILL,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Drawing,
    number,
    text_width,
)

#: Rounds that one static picture shows; of more, the first ones and the last.
MOST_ROUNDS = 8
#: Devices that one picture shows.
MOST_DEVICES = 16
# of all rows together; more would make the notebook heavy and nobody would read them
_MOST_CELLS = 600
_CELL, _ACROSS, _GAP = 18.0, 4, 46.0
_LEFT, _MARGIN = 92.0, 34.0
_FILLS = (SKY, ORANGE, YELLOW, PURPLE, GREEN, VERMILLION, "#CCCCCC", BLUE)


def ring_in_motion(
    source: Any,
    devices: int | None = None,
    step: int | None = None,
    *,
    chip: str | Chip | None = None,
) -> Figure:
    """Draw what the devices of a ring send each other.

    Without ``step``, time goes down: a row of devices before the first round and after every
    round, with an arrow for each copy between them. With ``step``, the devices stand on a ring and
    the arrows are those of one round.

    Every part of the target buffer that is written has a letter. When the parts are passed on
    unchanged, as in an all-gather, a device shows all that it holds; otherwise it shows what was
    written last into each part.

    Args:
        source: a `RunReport` of the faithful interpreter, or its ``transfers``.
        devices: how many there are; as many as the transfers name unless given.
        step: the round to draw, from 1; 0 for what is held before the first one.
        chip: on whose links the rounds are timed (`tpulab.roofline.link_time`); no times unless
            given.

    Raises:
        UsageError: there are no transfers, or too many devices to draw, or no such round.
    """
    found = journeys(source, devices)
    if chip is not None:
        found = timed(found, chip)
    if found.devices > MOST_DEVICES:
        raise UsageError(
            f"{found.devices} devices are too many for a picture, which shows {MOST_DEVICES}",
            hint="run a smaller ring: the pattern is the same",
        )
    alt = sentence(found)
    if step is None:
        drawing = _rows_of_devices(found)
    elif 0 <= step <= len(found.rounds):
        alt = round_sentence(found, step)
        drawing = round_picture(found, step)
    else:
        raise UsageError(f"there is no round {step}: rounds go from 1 to {len(found.rounds)}")
    title = f"{found.devices} devices in {plural(len(found.rounds), 'round')}"
    stuck = hanging(source)
    if stuck and step in (None, len(found.rounds)):
        title += ", then the kernel hangs"
        alt += f" Then the kernel hangs: {stuck.rstrip('.')}."
        _say_below(drawing, "the kernel hangs here: it waits for what never comes")
    if step == 0:
        header: tuple[str, ...] = ("device", "holds")
        rows: tuple[tuple[str, ...], ...] = tuple(
            (f"device {d}", held_letters(found, d, 0)) for d in range(found.devices)
        )
    else:
        header = ("round", "from", "to", "bytes", "chunk" if found.follows_chunks else "into", "at")
        rows = table(found, step)
    return Figure(
        title=title,
        alt=alt,
        svg=drawing.render(alt),
        header=header,
        rows=rows,
    )


def _say_below(drawing: Drawing, text: str) -> None:
    base = drawing.height + 14
    drawing.text(0, base, text, size=12, bold=True)
    drawing.width = max(drawing.width, text_width(text, 12, bold=True))
    drawing.height = base + 8


def _rows_of_devices(found: Journeys) -> Drawing:
    """Time downwards: states of the devices and the copies between them."""
    shown = _shown_rounds(found)
    width, height = _state_size(found)
    column = width + 36.0
    right = _LEFT + _MARGIN + column * found.devices
    drawing = Drawing(right + _MARGIN)
    centres = [_LEFT + _MARGIN + column * d + column / 2 for d in range(found.devices)]
    for device, x in enumerate(centres):
        drawing.text(x, 14, f"device {device}", anchor="middle", bold=True, size=11.5)
    y = 24.0
    drawing.text(0, y + height / 2 + 4, "at the start", size=11.5)
    for device, x in enumerate(centres):
        _state(drawing, found, device, 0, x - width / 2, y)
    before = 0
    for number_of in shown:
        if number_of != before + 1:
            left_out = f"… rounds {before + 1} to {number_of - 1} are not shown"
            drawing.text(0, y + height + 24, left_out, size=11.5)
            y += height + 36.0
            for device, x in enumerate(centres):
                _state(drawing, found, device, number_of - 1, x - width / 2, y)
        top, bottom = y + height + 3, y + height + _GAP - 3
        drawing.text(0, (top + bottom) / 2 + 4, f"round {number_of}", bold=True, size=11.5)
        copied = sum(one.size_bytes for one in found.rounds[number_of - 1])
        drawing.text(0, (top + bottom) / 2 + 18, bytes_text(copied), size=11)
        if found.chip:
            drawing.text(0, (top + bottom) / 2 + 32, time_text(found, number_of), size=11)
        for one in found.rounds[number_of - 1]:
            _copy(drawing, found, one, centres, top, bottom, right)
        y += height + _GAP
        for device, x in enumerate(centres):
            _state(drawing, found, device, number_of, x - width / 2, y)
        before = number_of
    at = _legend(drawing, found, y + height + 22)
    drawing.height = y + height + 32
    if any(_over_the_seam(found, one) for transfers in found.rounds for one in transfers):
        note = "an arrow that leaves at one edge comes back at the other"
        at, base = (at, y + height + 22) if at + 300 < drawing.width else (0.0, y + height + 40)
        drawing.text(at, base, note, size=11)
        drawing.width = max(drawing.width, at + text_width(note, 11))
        drawing.height = base + 10
    return drawing


def _shown_rounds(found: Journeys) -> list[int]:
    rounds = len(found.rounds)
    cells = found.devices * max(len(found.places), 8)
    most = min(max(_MOST_CELLS // cells, 2), MOST_ROUNDS)
    if rounds <= most:
        return list(range(1, rounds + 1))
    return [*range(1, most), rounds]


def _state_size(found: Journeys) -> tuple[float, float]:
    across = min(len(found.places), _ACROSS)
    return _CELL * max(across, 2), _CELL * -(-len(found.places) // _ACROSS)


def _state(drawing: Drawing, found: Journeys, device: int, after: int, x: float, y: float) -> None:
    """A device's cells: filled where something is held, framed where it has just arrived.

    Hundreds of cells are in one picture, so they are written as shortly as SVG allows.
    """
    held = found.held(device, after)
    side = f"{_CELL:g}"
    square = f"h{side}v{side}h-{side}z"
    corners = [
        (_CELL * (position % _ACROSS), _CELL * (position // _ACROSS))
        for position in range(len(found.places))
    ]
    outlines = "".join(f"M{left:g} {top:g}{square}" for left, top in corners)
    shapes = [
        f'<g transform="translate({number(x)} {number(y)})" text-anchor="middle" font-size="11"'
        f' fill="{ON_FILL}">'
        f'<path d="{outlines}" fill="none" stroke="currentColor" opacity="0.6"/>'
    ]
    for position in held:
        left, top = corners[position]
        fill = _FILLS[position % len(_FILLS)]
        shapes.append(f'<path d="M{left:g} {top:g}{square}" fill="{fill}"/>')
    for position, arrived in held.items():
        left, top = corners[position]
        look = ' fill="#ffffff"' if _FILLS[position % len(_FILLS)] == BLUE else ""
        if after and arrived == after:
            frame = f"M{left + 2:g} {top + 2:g}h{_CELL - 4:g}v{_CELL - 4:g}h-{_CELL - 4:g}z"
            shapes.append(f'<path d="{frame}" fill="none" stroke="#000000" stroke-width="2"/>')
            look += ' font-weight="600"'
        at = f'x="{left + _CELL / 2:g}" y="{top + _CELL - 5:g}"'
        shapes.append(f"<text {at}{look}>{letter(position)}</text>")
    drawing.insert("".join([*shapes, "</g>"]))


def _copy(
    drawing: Drawing,
    found: Journeys,
    one: Sent,
    centres: list[float],
    top: float,
    bottom: float,
    right: float,
) -> None:
    """An arrow from a device down to another; over the ring's seam it leaves and comes back."""
    name = found.letter(one)
    tip = f"device {one.source} to device {one.target}: {bytes_text(one.size_bytes)} into {name}"
    start, end = centres[one.source], centres[one.target]
    side = 6.0 if one.target > one.source else -6.0
    if not _over_the_seam(found, one):
        drawing.arrow(start + side, top, end - side, bottom, tooltip=tip)
        _label(drawing, name, start + 0.72 * (end - start), top + 0.72 * (bottom - top), side)
        return
    middle = (top + bottom) / 2
    if one.source:
        out, back = right + _MARGIN - 6, _LEFT + 6
    else:
        out, back = _LEFT + 6, right + _MARGIN - 6
    drawing.line(start + (6 if out > start else -6), top, out, middle, width=1.5)
    drawing.arrow(back, middle, end + (-6 if back < end else 6), bottom, tooltip=tip)
    _label(drawing, name, back + 0.5 * (end - back), middle + 0.5 * (bottom - middle), end - back)


def _over_the_seam(found: Journeys, one: Sent) -> bool:
    """Whether a copy goes between the last and the first device, which the rows draw far apart."""
    return found.devices > 2 and {one.source, one.target} == {0, found.devices - 1}


def _label(drawing: Drawing, name: str, x: float, y: float, side: float) -> None:
    offset = 7.0 if side > 0 else -7.0
    anchor = "start" if side > 0 else "end"
    drawing.text(x + offset, y - 4, name, anchor=anchor, size=11, bold=True)


def _legend(drawing: Drawing, found: Journeys, y: float) -> float:
    """What the cells mean; returns where the line ends."""
    x = 0.0
    drawing.rectangle(x, y - 11, 14, 14, stroke="currentColor", fill=SKY)
    drawing.rectangle(x + 2.5, y - 8.5, 9, 9, stroke="#000000", width_of_line=2.0)
    first = "arrived in this round" if found.follows_chunks else "written in this round"
    second = "held from before" if found.follows_chunks else "written before"
    drawing.text(x + 20, y, first, size=11)
    x += 34 + text_width(first, 11)
    drawing.rectangle(x, y - 11, 14, 14, stroke="currentColor", fill=SKY)
    drawing.text(x + 20, y, second, size=11)
    drawing.width = max(drawing.width, x + 24 + text_width(second, 11))
    return x + 34 + text_width(second, 11)


def round_picture(found: Journeys, step: int, *, tooltips: bool = True) -> Drawing:
    """The devices on a ring and the copies of one round."""
    width, height = _state_size(found)
    box_width, box_height = max(width + 12, 72.0), height + 30.0
    # room for an arrow and its letter between two boxes
    around = found.devices * (math.hypot(box_width, box_height) + 26.0)
    radius = max(around / (2 * math.pi), 84.0)
    # two devices stand side by side, more of them from the top clockwise
    first = math.pi if found.devices == 2 else -math.pi / 2
    high = 2 * (radius * max(abs(math.sin(first)), found.devices > 2)) + box_height + 8
    wide = max(2 * radius + box_width + 8, 380.0)
    drawing = Drawing(wide, high + 62, tooltips=tooltips)
    middle_x, middle_y = wide / 2, high / 2 + 28
    centres = []
    for device in range(found.devices):
        angle = first + 2 * math.pi * device / found.devices
        x, y = middle_x + radius * math.cos(angle), middle_y + radius * math.sin(angle)
        centres.append((x, y))
        drawing.rectangle(
            x - box_width / 2, y - box_height / 2, box_width, box_height, stroke="currentColor"
        )
        drawing.text(
            x, y - box_height / 2 + 15, f"device {device}", anchor="middle", bold=True, size=11.5
        )
        _state(drawing, found, device, step, x - width / 2, y - box_height / 2 + 22)
    title = f"round {step} of {len(found.rounds)}" if step else "at the start"
    if step:
        for one in found.rounds[step - 1]:
            _chord(drawing, found, one, centres, (box_width, box_height))
        copied = sum(one.size_bytes for one in found.rounds[step - 1])
        title += f": {bytes_text(copied)}"
        title += f", {time_text(found, step)} on {found.chip}" if found.chip else ""
    drawing.text(0, 14, title, bold=True)
    _legend(drawing, found, high + 50)
    return drawing


def _chord(
    drawing: Drawing,
    found: Journeys,
    one: Sent,
    centres: list[tuple[float, float]],
    box: tuple[float, float],
) -> None:
    (x1, y1), (x2, y2) = centres[one.source], centres[one.target]
    length = math.hypot(x2 - x1, y2 - y1)
    if not length:
        return
    along, across = (x2 - x1) / length, (y2 - y1) / length
    # copies in opposite directions run side by side
    shift = 5.0
    x1, y1 = x1 - across * shift, y1 + along * shift
    x2, y2 = x2 - across * shift, y2 + along * shift
    reach = min(
        (box[0] / 2) / abs(along) if along else math.inf,
        (box[1] / 2) / abs(across) if across else math.inf,
    )
    reach = min(reach + 3, length / 2 - 8)
    drawing.arrow(
        x1 + along * reach,
        y1 + across * reach,
        x2 - along * reach,
        y2 - across * reach,
        width=2.0,
        tooltip=f"{bytes_text(one.size_bytes)} into {found.letter(one)}",
    )
    x, y = (x1 + x2) / 2 - across * 12, (y1 + y2) / 2 + along * 12
    drawing.text(x, y + 4, found.letter(one), anchor="middle", size=12, bold=True)
