"""Chunks on a ring of devices: what is sent in which round, and who holds what after it."""

from __future__ import annotations

import math
from typing import Any

from tpulab.errors import UsageError
from tpulab.units import bytes_text
from tpulab.visual.figure import Figure
from tpulab.visual.journeys import Journeys, Sent, journeys, letter, place_text
from tpulab.visual.svg import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Drawing,
    text_width,
)

#: Rounds that one static picture shows; of more, the first ones and the last.
MOST_ROUNDS = 8
#: Devices that one picture shows.
MOST_DEVICES = 16
_MOST_ROWS = 64
_CELL, _ACROSS, _GAP = 18.0, 4, 46.0
_LEFT, _MARGIN = 92.0, 34.0
_FILLS = (SKY, ORANGE, YELLOW, PURPLE, GREEN, VERMILLION, "#CCCCCC", BLUE)


def ring_in_motion(source: Any, devices: int | None = None, step: int | None = None) -> Figure:
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

    Raises:
        UsageError: there are no transfers, or too many devices to draw, or no such round.
    """
    found = journeys(source, devices)
    if found.devices > MOST_DEVICES:
        raise UsageError(
            f"{found.devices} devices are too many for a picture, which shows {MOST_DEVICES}",
            hint="run a smaller ring: the pattern is the same",
        )
    alt = _sentence(found)
    if step is None:
        drawing = _rows_of_devices(found)
    elif 0 <= step <= len(found.rounds):
        alt = round_sentence(found, step)
        drawing = _one_round(found, step)
    else:
        raise UsageError(f"there is no round {step}: rounds go from 1 to {len(found.rounds)}")
    shown = found.rounds if step is None else found.rounds[max(step - 1, 0) : step]
    first = 1 if step is None else max(step, 1)
    return Figure(
        title=f"{found.devices} devices in {_plural(len(found.rounds), 'round')}",
        alt=alt,
        svg=drawing.render(alt),
        header=("round", "from", "to", "bytes", "chunk" if found.follows_chunks else "into", "at"),
        rows=_table(found, shown, first),
    )


def round_sentence(found: Journeys, step: int) -> str:
    """One round in words."""
    if step == 0:
        if not found.follows_chunks:
            return "Before the first round nothing has arrived anywhere."
        parts = [f"device {d} holds {_letters(found, d, 0)}" for d in range(found.devices)]
        return f"Before the first round {', '.join(parts)}."
    parts = [
        f"device {one.source} sends {bytes_text(one.size_bytes)} to device {one.target}, "
        f"{'chunk' if found.follows_chunks else 'into'} {found.letter(one)}"
        for one in found.rounds[step - 1]
    ]
    return f"Round {step} of {len(found.rounds)}: " + ("; ".join(parts) or "nothing is sent") + "."


def _table(
    found: Journeys, shown: tuple[tuple[Sent, ...], ...], first: int
) -> tuple[tuple[str, ...], ...]:
    rows = [
        (
            str(number),
            f"device {one.source}",
            f"device {one.target}",
            f"{one.size_bytes:,}",
            found.letter(one),
            place_text(one.target_index),
        )
        for number, transfers in enumerate(shown, start=first)
        for one in transfers
    ]
    if len(rows) > _MOST_ROWS:
        left = len(rows) - _MOST_ROWS
        rows = [*rows[:_MOST_ROWS], (f"and {_plural(left, 'transfer')} more", *[""] * 5)]
    return tuple(rows)


def _sentence(found: Journeys) -> str:
    copies = sum(len(transfers) for transfers in found.rounds)
    moved = sum(one.size_bytes for transfers in found.rounds for one in transfers)
    text = (
        f"{found.devices} devices send each other {bytes_text(moved)} in "
        f"{_plural(copies, 'copy', 'copies')} and {_plural(len(found.rounds), 'round')}"
    )
    hops = {
        (one.target - one.source) % found.devices for transfers in found.rounds for one in transfers
    }
    if hops == {1}:
        text += ", each to the next device"
    elif hops == {found.devices - 1}:
        text += ", each to the device before it"
    elif hops <= {1, found.devices - 1}:
        text += ", to both neighbours"
    if found.follows_chunks:
        last = len(found.rounds)
        counts = {len(found.held(device, last)) for device in range(found.devices)}
        if counts == {len(found.places)}:
            text += f"; in the end every device holds all {len(found.places)} chunks"
        else:
            low, high = min(counts), max(counts)
            many = f"{low}" if low == high else f"{low} to {high}"
            text += f"; in the end a device holds {many} of {len(found.places)} chunks"
    return text + "."


def _letters(found: Journeys, device: int, after: int) -> str:
    names = [letter(position) for position in sorted(found.held(device, after))]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "none"


def _rows_of_devices(found: Journeys) -> Drawing:
    """Time downwards: states of the devices and the copies between them."""
    shown = _shown_rounds(len(found.rounds))
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
    for number in shown:
        if number != before + 1:
            skipped = number - before - 1
            drawing.text(0, y + height + 26, f"… {_plural(skipped, 'round')} not shown", size=11.5)
            y += 36.0
        top, bottom = y + height + 3, y + height + _GAP - 3
        drawing.text(0, (top + bottom) / 2 + 4, f"round {number}", bold=True, size=11.5)
        copied = sum(one.size_bytes for one in found.rounds[number - 1])
        drawing.text(0, (top + bottom) / 2 + 18, bytes_text(copied), size=11)
        for one in found.rounds[number - 1]:
            _copy(drawing, found, one, centres, top, bottom, right)
        y += height + _GAP
        for device, x in enumerate(centres):
            _state(drawing, found, device, number, x - width / 2, y)
        before = number
    _legend(drawing, found, y + height + 22)
    drawing.height = y + height + 32
    return drawing


def _shown_rounds(rounds: int) -> list[int]:
    if rounds <= MOST_ROUNDS:
        return list(range(1, rounds + 1))
    return [*range(1, MOST_ROUNDS), rounds]


def _state_size(found: Journeys) -> tuple[float, float]:
    across = min(len(found.places), _ACROSS)
    return _CELL * max(across, 2), _CELL * -(-len(found.places) // _ACROSS)


def _state(drawing: Drawing, found: Journeys, device: int, after: int, x: float, y: float) -> None:
    """A device's cells: filled where something is held, framed where it has just arrived."""
    held = found.held(device, after)
    for position in range(len(found.places)):
        left, top = x + _CELL * (position % _ACROSS), y + _CELL * (position // _ACROSS)
        arrived = held.get(position)
        name = letter(position)
        if arrived is None:
            drawing.rectangle(left, top, _CELL, _CELL, stroke="currentColor", opacity=0.3)
            continue
        when = f"arrived in round {arrived}" if arrived else "there from the start"
        drawing.rectangle(
            left,
            top,
            _CELL,
            _CELL,
            fill=_FILLS[position % len(_FILLS)],
            stroke="currentColor",
            tooltip=f"device {device}, {name}: {when}",
        )
        dark = _FILLS[position % len(_FILLS)] == BLUE
        drawing.text(
            left + _CELL / 2,
            top + _CELL - 5,
            name,
            anchor="middle",
            size=11 if len(name) == 1 else 9,
            fill="#ffffff" if dark else "#000000",
            bold=bool(after) and arrived == after,
        )
        if after and arrived == after:
            drawing.rectangle(
                left + 1.5, top + 1.5, _CELL - 3, _CELL - 3, stroke="#000000", width_of_line=2.0
            )


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
    last = found.devices - 1
    seam = found.devices > 2 and {one.source, one.target} == {0, last}
    start, end = centres[one.source], centres[one.target]
    side = 6.0 if one.target > one.source else -6.0
    if not seam:
        drawing.arrow(start + side, top, end - side, bottom, tooltip=tip)
        _label(drawing, name, start + 0.72 * (end - start), top + 0.72 * (bottom - top), side)
        return
    middle = (top + bottom) / 2
    if one.source == last:
        out, back = right + _MARGIN - 6, _LEFT + 6
    else:
        out, back = _LEFT + 6, right + _MARGIN - 6
    drawing.line(start + (6 if out > start else -6), top, out, middle, width=1.5)
    drawing.arrow(back, middle, end + (-6 if back < end else 6), bottom, tooltip=tip)
    _label(drawing, name, back + 0.5 * (end - back), middle + 0.5 * (bottom - middle), end - back)


def _label(drawing: Drawing, name: str, x: float, y: float, side: float) -> None:
    offset = 7.0 if side > 0 else -7.0
    anchor = "start" if side > 0 else "end"
    drawing.text(x + offset, y - 4, name, anchor=anchor, size=11, bold=True)


def _legend(drawing: Drawing, found: Journeys, y: float) -> None:
    x = 0.0
    drawing.rectangle(x, y - 11, 14, 14, stroke="currentColor", fill=SKY)
    drawing.rectangle(x + 1.5, y - 9.5, 11, 11, stroke="#000000", width_of_line=2.0)
    first = "arrived in this round" if found.follows_chunks else "written in this round"
    second = "held from before" if found.follows_chunks else "written before"
    drawing.text(x + 20, y, first, size=11)
    x += 34 + text_width(first, 11)
    drawing.rectangle(x, y - 11, 14, 14, stroke="currentColor", fill=SKY)
    drawing.text(x + 20, y, second, size=11)
    drawing.width = max(drawing.width, x + 24 + text_width(second, 11))


def _one_round(found: Journeys, step: int) -> Drawing:
    """The devices on a ring and the copies of one round."""
    width, height = _state_size(found)
    box_width, box_height = max(width + 12, 72.0), height + 30.0
    # room for an arrow and its letter between two boxes
    around = found.devices * (math.hypot(box_width, box_height) + 26.0)
    radius = max(around / (2 * math.pi), 96.0)
    side = 2 * radius + math.hypot(box_width, box_height) + 8
    drawing = Drawing(max(side, 360.0), side + 34)
    middle_x, middle_y = drawing.width / 2, side / 2 + 4
    centres = []
    for device in range(found.devices):
        angle = 2 * math.pi * device / found.devices - math.pi / 2
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
    drawing.text(middle_x, middle_y, title, anchor="middle", bold=True)
    if step:
        for one in found.rounds[step - 1]:
            _chord(drawing, found, one, centres, (box_width, box_height))
        copied = sum(one.size_bytes for one in found.rounds[step - 1])
        drawing.text(middle_x, middle_y + 17, bytes_text(copied), anchor="middle", size=11)
    _legend(drawing, found, side + 20)
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


def _plural(count: int, word: str, words: str = "") -> str:
    return f"{count} {word if count == 1 else words or word + 's'}"
