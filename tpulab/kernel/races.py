"""Races that the faithful interpreter prints: which accesses, of which device, and what to try."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tpulab.kernel.faults import BACK_PRESSURE
from tpulab.kernel.transfers import Core, Start

_RACE = re.compile(
    r"RACE DETECTED\n"
    r"\s*(read|write) of (.*?)\[.*? from [^\n]*?, [^\n ,]+?, ?(\S+)([^\n]*)\n"
    r"\s*clock:[^\n]*(?:\n(?!\s*(?:read|write) of)[^\n]*)*\n"
    r"\s*(read|write) of .*? from [^\n]*?, [^\n ,]+?,? (\S+)([^\n]*)\n"
    r"\s*clock:[^\n]*(?:\n[^\n]*\])?\n?"
)
_KEY = re.compile(r"\('(\w+)', (\d+), (\d+), \d+\)")


@dataclass(frozen=True)
class Race:
    """Two accesses to one buffer of which at least one writes and neither waits for the other.

    Attributes:
        buffer: memory space of the buffer. first, second: "read" or "write".
        first_where, second_where: file:line, or "the pipeline" for a block copy that
            ``pallas_call`` makes itself.
        device: whose buffer it is, of several; None with one device.
        name: what the kernel calls the buffer, "" when that is not known.
        first_from, second_from: the device whose copy makes the access, None for any other access.
    """

    buffer: str
    first: str
    first_where: str
    second: str
    second_where: str
    device: int | None = None
    name: str = ""
    first_from: int | None = None
    second_from: int | None = None

    def __str__(self) -> str:
        article = "an" if self.buffer[:1] in "HS" else "a"
        whose = f" of device {self.device}" if self.device is not None else ""
        name = f", {self.name}" if self.name else ""
        return (
            f"race on {article} {self.buffer} buffer{whose}{name}: "
            f"{self._access(self.first, self.first_where, self.first_from)} and "
            f"{self._access(self.second, self.second_where, self.second_from)} are not ordered "
            "by a wait"
        )

    def _access(self, kind: str, where: str, sender: int | None) -> str:
        if sender is None:
            return f"the {kind} at {where}"
        if kind == "read":
            return f"the copy that device {sender} sends from it at {where}"
        return f"the write at {where} by a copy from device {sender}"

    def hint(self, grid: bool) -> str:
        """What to try.

        Args:
            grid: whether a kernel of the function has a grid.
        """
        remote = [sender not in (None, self.device) for sender in self._senders]
        if self.device is not None and all(remote):
            return (
                "two copies write one place: give each sender and each step a slot of its own, or "
                "send the second when the first has been used"
            )
        if self.device is not None and any(remote):
            return f"{BACK_PRESSURE}; what comes is used after wait_recv()"
        wait = "wait for a copy before its buffer is used again"
        if not grid:
            return wait
        return f"{wait}; mark a grid axis 'arbitrary' when steps along it share a buffer"

    @property
    def _senders(self) -> tuple[int | None, int | None]:
        return self.first_from, self.second_from


def races_in(text: str, starts: Sequence[tuple[Core, Start]], devices: int) -> tuple[Race, ...]:
    """The races of an interpreter's output, each kind once.

    Args:
        text: what it printed.
        starts: the copies that the devices made, which say whose an access is.
        devices: how many ran the function.
    """
    found: dict[Race, None] = {}
    for match in _RACE.finditer(text):
        first, key, first_place, _, second, second_place, _ = match.groups()
        places = _place(first_place), _place(second_place)
        race = Race(_space(key), first, places[0], second, places[1])
        found[_with_devices(race, key, starts) if devices > 1 else race] = None
    if "RACE DETECTED" in text and not found:
        unknown = "a place the interpreter did not name"
        return (Race("memory", "access", unknown, "access", "?"),)
    if devices == 1:
        return tuple(found)
    # each device has the same race, and threads decide which is seen first: one of each kind
    kinds: dict[tuple[str, ...], Race] = {}
    for race in sorted(found, key=lambda one: (one.device or 0, str(one))):
        sides = sorted([f"{race.first} {race.first_where}", f"{race.second} {race.second_where}"])
        kinds.setdefault((race.buffer, race.name, *sides), race)
    return tuple(kinds[kind] for kind in sorted(kinds))


def without_races(text: str) -> str:
    """What else the interpreter printed."""
    return _RACE.sub("", text)


def _with_devices(race: Race, key: str, starts: Sequence[tuple[Core, Start]]) -> Race:
    """The race with what the starts of copies tell of it."""
    match = _KEY.search(key)
    if match is None:
        return race
    buffer, device = int(match[2]), int(match[3])
    space = "hbm" if match[1] in ("any", "hbm") else match[1]
    name, sides = "", []
    for kind, where in ((race.first, race.first_where), (race.second, race.second_where)):
        sender = None
        for core, start in starts:
            place = start.into if kind == "write" else start.source
            owner = start.target[0] if kind == "write" else core[0]
            if place is None or (place.space, place.buffer) != (space, buffer):
                continue
            name = name or place.name
            if owner == device and _place(start.where) == where and sender is None:
                sender = core[0]
        sides.append(sender)
    return Race(
        race.buffer,
        race.first,
        race.first_where,
        race.second,
        race.second_where,
        device,
        name,
        sides[0],
        sides[1],
    )


def _space(key: str) -> str:
    for name in ("vmem", "smem", "hbm", "any", "cmem"):
        if name in key.lower():
            return "HBM" if name == "any" else name.upper()
    return "memory"


def _place(text: str) -> str:
    """file:line from the interpreter's file:line:column (function)."""
    if text.startswith("pallas_call"):
        return "the pipeline's block copy"
    match = re.match(r"(.+?:\d+)(?::\d+)?$", text)
    return match.group(1) if match else text
