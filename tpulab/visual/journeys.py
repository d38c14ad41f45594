"""Which part of an array travels from device to device, and who holds it after which round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tpulab.errors import UsageError
from tpulab.roofline.links import Transfer

Place = tuple[tuple[int, int], ...] | None


class Sent(Transfer, Protocol):
    """A copy from one device to another, as the faithful interpreter reports it.

    ``round`` counts from 1; ``target_index`` is (start, size) per dimension of the buffer that the
    copy is written into, None for the whole buffer.
    """

    @property
    def target_index(self) -> Place:
        """Where it is written."""


@dataclass(frozen=True)
class Journeys:
    """The transfers of a run, round by round.

    Attributes:
        devices: how many take part.
        rounds: the transfers of each round, in the order in which they were started.
        places: the different parts of the target buffer that were written, in the buffer's order.
        follows_chunks: whether a place is a chunk of data that is passed on unchanged, as in an
            all-gather: every place starts at one device. Otherwise the places are buffers, which
            may hold something else in every round.
        chip: on whose links the rounds are timed, empty when they are not.
        seconds: what the links need for each round.
    """

    devices: int
    rounds: tuple[tuple[Sent, ...], ...]
    places: tuple[Place, ...]
    follows_chunks: bool
    chip: str = ""
    seconds: tuple[float, ...] = ()

    def letter(self, transfer: Sent) -> str:
        """The name of the place that a transfer is written into: A, B, C, …"""
        return letter(self.places.index(transfer.target_index))

    def held(self, device: int, after: int) -> dict[int, int]:
        """What a device holds: position of the place → the round in which it arrived.

        Args:
            device: its number.
            after: rounds that are over; 0 for the start. Of buffers, nothing is held at the start.
        """
        found: dict[int, int] = {}
        if self.follows_chunks:
            for position, place in enumerate(self.places):
                if _owner(self.rounds, place) == device:
                    found[position] = 0
        for number, transfers in enumerate(self.rounds[:after], start=1):
            for transfer in transfers:
                if transfer.target == device:
                    found[self.places.index(transfer.target_index)] = number
        return found


def journeys(source: Any, devices: int | None = None) -> Journeys:
    """Sort the transfers of a run into rounds.

    Args:
        source: a `RunReport`, whose ``transfers`` are taken, or the transfers themselves.
        devices: how many there are; those of the report, or as many as the transfers name, unless
            given.

    Raises:
        UsageError: there are no transfers, perhaps because the kernel hangs before the first; or
            they name a device beyond the last.
    """
    found = source.transfers if hasattr(source, "transfers") else source
    if not isinstance(found, Iterable):
        raise UsageError(
            f"{type(source).__name__} holds no transfers between devices",
            hint='pass the report of tpulab.run(..., mode="faithful"), or its transfers',
        )
    transfers: list[Sent] = list(found)
    if devices is None and getattr(source, "devices", 1) > 1:
        devices = int(source.devices)
    if not transfers:
        stuck = hanging(source)
        if stuck:
            raise UsageError(
                f"the kernel hangs before anything is sent: {stuck}",
                hint=source.hint,
                where=source.deadlock.where,
            )
        raise UsageError(
            "no device sent anything to another one",
            why="a ring is drawn from the copies that the faithful interpreter saw",
            hint='run the function on several devices with tpulab.run(..., mode="faithful")',
        )
    named = 1 + max(max(one.source, one.target) for one in transfers)
    if devices is not None and devices < named:
        raise UsageError(f"a transfer names device {named - 1}, and there are {devices} devices")
    last = max(one.round for one in transfers)
    rounds = tuple(
        tuple(one for one in transfers if one.round == number) for number in range(1, last + 1)
    )
    places = tuple(sorted({one.target_index for one in transfers}, key=_order))
    return Journeys(devices or max(named, 2), rounds, places, _follows(rounds, places))


def hanging(source: Any) -> str:
    """What a run waits for in vain, as its report says it; empty when it came to an end."""
    deadlock = getattr(source, "deadlock", None)
    return str(deadlock) if deadlock else ""


def letter(position: int) -> str:
    """A, B, …, Z, AA, AB, …"""
    name = ""
    position += 1
    while position:
        position, rest = divmod(position - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def place_text(place: Place) -> str:
    """A place as one would index it: ``[128:256, :512]``."""
    if place is None:
        return "the whole buffer"
    return "[" + ", ".join(f"{start or ''}:{start + size}" for start, size in place) + "]"


def _order(place: Place) -> tuple[Any, ...]:
    return (0,) if place is None else (1, len(place), *place)


def _follows(rounds: Sequence[Sequence[Sent]], places: Sequence[Place]) -> bool:
    """Every place starts at one device, is sent only by who has it, and never arrives twice."""
    if None in places:
        return False
    for place in places:
        owner = _owner(rounds, place)
        if owner is None:
            return False
        holders = {owner}
        for transfers in rounds:
            arriving = [one for one in transfers if one.target_index == place]
            if any(one.source not in holders or one.target in holders for one in arriving):
                return False
            targets = [one.target for one in arriving]
            if len(set(targets)) != len(targets):
                return False
            holders.update(targets)
    return True


def _owner(rounds: Sequence[Sequence[Sent]], place: Place) -> int | None:
    """The device whose copy of a place was sent first; None if several sent it at once."""
    for transfers in rounds:
        senders = {one.source for one in transfers if one.target_index == place}
        if senders:
            return senders.pop() if len(senders) == 1 else None
    return None
