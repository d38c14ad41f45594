"""The rounds of a ring in words and as a table."""

from __future__ import annotations

from dataclasses import replace

from tpulab.hardware import Chip
from tpulab.roofline.links import link_time
from tpulab.units import bytes_text, seconds_text
from tpulab.visual.journeys import Journeys, Sent, letter, place_text

_MOST_ROWS = 64


def round_sentence(found: Journeys, step: int) -> str:
    """One round in words."""
    if step == 0:
        if not found.follows_chunks:
            return "Before the first round nothing has arrived anywhere."
        parts = [f"device {d} holds {held_letters(found, d, 0)}" for d in range(found.devices)]
        return f"Before the first round {', '.join(parts)}."
    transfers = found.rounds[step - 1]
    what = "; ".join(_together(found, transfers)) or "nothing is sent"
    text = f"Round {step} of {len(found.rounds)}: {what}."
    return text + (
        f" The links of {found.chip} need {time_text(found, step)}." if found.chip else ""
    )


def timed(found: Journeys, chip: str | Chip) -> Journeys:
    """The same rounds with the time that the links of a chip need for each."""
    taken = link_time((one for transfers in found.rounds for one in transfers), chip, found.devices)
    seconds = {one.number: one.seconds for one in taken.rounds}
    rounds = range(1, len(found.rounds) + 1)
    return replace(
        found, chip=taken.chip, seconds=tuple(seconds.get(number, 0.0) for number in rounds)
    )


def time_text(found: Journeys, step: int) -> str:
    """What the links need for a round."""
    return seconds_text(found.seconds[step - 1])


def _together(found: Journeys, transfers: tuple[Sent, ...]) -> list[str]:
    """Transfers in words; what every device does alike is said once."""
    groups: dict[tuple[int, int], list[Sent]] = {}
    for one in transfers:
        hop = (one.target - one.source) % found.devices
        groups.setdefault((hop, one.size_bytes), []).append(one)
    parts = []
    into = "chunk" if found.follows_chunks else "into"
    for (hop, size), group in groups.items():
        if sorted(one.source for one in group) == list(range(found.devices)):
            each = ", ".join(f"{one.source} sends {found.letter(one)}" for one in group)
            parts.append(
                f"every device sends {bytes_text(size)} to {_hop_text(hop, found.devices)} ({each})"
            )
            continue
        parts += [
            f"device {one.source} sends {bytes_text(size)} to device {one.target}, "
            f"{into} {found.letter(one)}"
            for one in group
        ]
    return parts


def _hop_text(hop: int, devices: int) -> str:
    if devices == 2:
        return "the other one"
    if hop == 1:
        return "the next one"
    return "the one before it" if hop == devices - 1 else f"the one {hop} further on"


def table(found: Journeys, step: int | None) -> tuple[tuple[str, ...], ...]:
    """A row for each copy, of one round or of all; the first ones of many."""
    shown = found.rounds if step is None else (found.rounds[step - 1],)
    rows: list[tuple[str, ...]] = [
        (
            str(number),
            f"device {one.source}",
            f"device {one.target}",
            f"{one.size_bytes:,}",
            found.letter(one),
            place_text(one.target_index),
        )
        for number, transfers in enumerate(shown, start=step or 1)
        for one in transfers
    ]
    if len(rows) > _MOST_ROWS:
        left = len(rows) - _MOST_ROWS
        rows = [*rows[:_MOST_ROWS], (f"and {plural(left, 'transfer')} more", "", "", "", "", "")]
    return tuple(rows)


def sentence(found: Journeys) -> str:
    """The whole run in words."""
    copies = sum(len(transfers) for transfers in found.rounds)
    moved = sum(one.size_bytes for transfers in found.rounds for one in transfers)
    text = (
        f"{found.devices} devices send each other {bytes_text(moved)} in "
        f"{plural(copies, 'copy', 'copies')} and {plural(len(found.rounds), 'round')}"
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
    if found.chip:
        text += f"; the links of {found.chip} need {seconds_text(sum(found.seconds))}"
    return text + "."


def held_letters(found: Journeys, device: int, after: int) -> str:
    """What a device holds after some rounds: ``"A, B and D"``."""
    names = [letter(position) for position in sorted(found.held(device, after))]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "none"


def plural(count: int, word: str, words: str = "") -> str:
    """A number and its noun."""
    return f"{count} {word if count == 1 else words or word + 's'}"
