"""What devices send each other: from what each of them did, in its order, to transfers in rounds.

The interpreter runs the devices as threads, in an order that is never the same. What one device
does, though, is always the same sequence of starts, signals and waits; the sequences are played
again here, one device after the other, so that the result does not depend on the threads.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpulab.kernel.faults import Fault, copied_again, not_received, shared_semaphore

#: (device, core of the device)
Core = tuple[int, int]
#: (start, size) of each dimension
Index = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Transfer:
    """One copy from a device to another.

    Attributes:
        order: position among all transfers: by round, then by sending device.
        round: 1 + the latest round of those that the sending device had waited for when it sent,
            itself or through a signal of a device that had. Transfers of one round can be under
            way together; one of the next round has to wait for them.
        source, target: devices by their position on the mesh.
        size_bytes: bytes that are sent.
        target_index: (start, size) of each dimension of the target buffer that is written, None
            for the whole buffer.
        where: file:line of the start, "" when it is not known.
    """

    order: int
    round: int
    source: int
    target: int
    size_bytes: int
    target_index: Index | None = None
    where: str = ""


@dataclass(frozen=True)
class Start:
    """A device starts a copy; ``target`` is itself for a local one."""

    target: Core
    send_semaphore: int | None
    recv_semaphore: int
    size_bytes: int
    target_index: Index | None
    where: str
    source: Place | None = None
    into: Place | None = None


@dataclass(frozen=True)
class Place:
    """Where a copy reads or writes: part of a buffer of one device.

    Attributes:
        space: memory space in lower case. buffer: the interpreter's number for it, which is the
            same on each device. index: (start, size) of its first dimensions, () for all of it.
        name: what the kernel calls it, "" when that is not known.
    """

    space: str
    buffer: int
    index: Index = ()
    name: str = ""

    def overlaps(self, other: Place) -> bool:
        """Whether the two have elements in common."""
        return (self.space, self.buffer) == (other.space, other.buffer) and all(
            a < b + size_b and b < a + size_a
            for (a, size_a), (b, size_b) in zip(self.index, other.index, strict=False)
        )

    def __str__(self) -> str:
        parts = [str(a) if size == 1 else f"{a}:{a + size}" for a, size in self.index]
        # dimensions at the end that are whole do not tell places apart
        while len(parts) > 1 and parts[-1].startswith("0:"):
            parts.pop()
        inside = f"[{', '.join(parts)}]" if parts and not parts[0].startswith("0:") else ""
        return f"{self.name or 'the buffer in ' + self.space.upper()}{inside}"


@dataclass(frozen=True)
class Signal:
    """A device adds to a semaphore, its own or another's."""

    target: Core
    semaphore: int
    amount: int
    where: str


@dataclass(frozen=True)
class Wait:
    """A device waits for a semaphore of its own: bytes for a copy's, a count for others."""

    semaphore: int
    amount: int
    copies: bool
    where: str


@dataclass(frozen=True)
class End:
    """A device ends a kernel; the next kernel has new semaphores."""


@dataclass(frozen=True)
class Meet:
    """A device waits until all devices are in the kernel, as before one without a barrier."""


Event = Start | Signal | Wait | End | Meet


@dataclass(frozen=True)
class Unmet:
    """A device sends to another that need not have entered the kernel yet.

    Attributes:
        source, target: devices. where: file:line of the start, "" when it is not known.
    """

    source: int
    target: int
    where: str

    def __str__(self) -> str:
        return (
            f"device {self.source} copies to device {self.target} without knowing that it has "
            "entered the kernel; its buffer may still hold something else"
        )


@dataclass(frozen=True)
class Unwaited:
    """A copy whose end a device does not wait for before it leaves the kernel.

    Attributes:
        source, target: devices. at_target: whether it is the target that does not wait.
        where: file:line of the start, "" when it is not known.
    """

    source: int
    target: int
    at_target: bool
    where: str

    def __str__(self) -> str:
        one = self.target if self.at_target else self.source
        if self.source == self.target:
            return f"device {one} does not wait for a copy of its own"
        what = (
            f"for the copy that device {self.source} sends to it"
            if self.at_target
            else f"until its copy to device {self.target} has left"
        )
        return f"device {one} does not wait {what}"


@dataclass(frozen=True)
class Account:
    """What the devices did, put together.

    Attributes:
        transfers: copies between devices, in rounds.
        unmet: copies to devices that need not have entered the kernel, one for each pair.
        unwaited: copies that are not waited for; empty when the devices did not come to an end.
        faults: what may explain a race; no fault by themselves.
        starts: every copy's start with the core that makes it.
    """

    transfers: tuple[Transfer, ...]
    unmet: tuple[Unmet, ...]
    unwaited: tuple[Unwaited, ...]
    faults: tuple[Fault, ...] = ()
    starts: tuple[tuple[Core, Start], ...] = ()


@dataclass
class _Player:
    core: Core
    events: Sequence[Event]
    position: int = 0
    kernel: int = 0
    round: int = 0
    # devices that are in this kernel for sure
    met: frozenset[int] = frozenset()
    # the copies to this device that it has waited for in this kernel
    arrived: list[tuple[int, Start]] = field(default_factory=list)
    # a semaphore held more than was waited for, until the next event: what came, what is left
    semaphore: int | None = None
    came: Start | None = None
    left: _Amount | None = None


@dataclass
class _Amount:
    """Part of what a semaphore holds: what is left of it, and what its giver knew."""

    left: int
    round: int
    met: frozenset[int]
    unwaited: Unwaited | None = None
    start: Start | None = None


@dataclass
class _Replay:
    devices: frozenset[int]
    # what a semaphore holds, oldest first
    pools: dict[tuple[int, int, Core], deque[_Amount]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    sent: list[tuple[int, Core, int, Start]] = field(default_factory=list)
    unmet: dict[Unmet, None] = field(default_factory=dict)
    unreceived: list[tuple[int, Core, Fault]] = field(default_factory=list)
    shared: list[tuple[Core, Fault]] = field(default_factory=list)
    # buffers that copies write
    written: frozenset[tuple[str, int]] = frozenset()

    def put(
        self,
        player: _Player,
        semaphore: int | None,
        core: Core,
        amount: int,
        at: int,
        copy: Unwaited | None = None,
        start: Start | None = None,
    ) -> None:
        if semaphore is not None:
            known = player.met | {player.core[0]}
            part = _Amount(amount, at, known, copy, start)
            self.pools[player.kernel, semaphore, core].append(part)

    def take(self, player: _Player, wait: Wait) -> bool:
        pool = self.pools[player.kernel, wait.semaphore, player.core]
        if sum(part.left for part in pool) < wait.amount:
            return False
        self.take_what_is_there(player, wait)
        return True

    def take_what_is_there(self, player: _Player, wait: Wait) -> None:
        pool = self.pools[player.kernel, wait.semaphore, player.core]
        wanted = wait.amount
        while wanted > 0 and pool:
            part = pool[0]
            used = min(wanted, part.left)
            wanted -= used
            part.left -= used
            player.round = max(player.round, part.round)
            player.met |= part.met
            if not part.left:
                pool.popleft()
                if part.start is not None and part.unwaited is not None:
                    player.arrived.append((part.unwaited.source, part.start))
                    player.came = part.start
        player.left = next((part for part in pool if part.start is not None), None)
        player.semaphore = wait.semaphore

    def look(self, player: _Player, event: Event) -> None:
        """Note what explains a race: before the event is played."""
        came, left, device = player.came, player.left, player.core[0]
        if not (isinstance(event, Wait) and event.semaphore == player.semaphore):
            # copies that are waited for in a row may come in any order
            sender = left.unwaited.source if left is not None and left.unwaited else device
            if came is not None and left is not None and sender != device:
                self.shared.append((player.core, _shared(device, sender, came, left)))
            player.came = None
        player.left = None
        if (
            isinstance(event, Start)
            and event.target[0] != player.core[0]
            and event.source is not None
            and event.source.space == "hbm"
            and (event.source.space, event.source.buffer) in self.written
        ):
            there = [start.into for _, start in player.arrived if start.into is not None]
            if not any(event.source.overlaps(place) for place in there):
                fault = _unreceived(player, event, event.source)
                self.unreceived.append((player.round + 1, player.core, fault))

    def step(self, player: _Player) -> bool:
        """Play one event; False when it has to wait."""
        event = player.events[player.position]
        self.look(player, event)
        if isinstance(event, Wait):
            if not self.take(player, event):
                return False
        elif isinstance(event, Signal):
            self.put(player, event.semaphore, event.target, event.amount, player.round)
        elif isinstance(event, Start):
            remote = event.target[0] != player.core[0]
            arrival = player.round + 1 if remote else player.round
            size, pair = event.size_bytes, (player.core[0], event.target[0])
            sent, arrived = (Unwaited(*pair, end, event.where) for end in (False, True))
            self.put(player, event.send_semaphore, player.core, size, player.round, sent)
            self.put(player, event.recv_semaphore, event.target, size, arrival, arrived, event)
            if remote:
                self.sent.append((arrival, player.core, player.position, event))
                if event.target[0] not in player.met:
                    found = Unmet(player.core[0], event.target[0], event.where)
                    self.unmet[found] = None
        elif isinstance(event, Meet):
            player.met = self.devices
        else:
            player.kernel += 1
            player.met = frozenset()
            player.arrived = []
        player.position += 1
        return True


def _shared(device: int, sender: int, came: Start, left: _Amount) -> Fault:
    later = left.start or came
    if came.into is not None and later.into is not None and came.into.overlaps(later.into):
        return copied_again(device, sender, str(later.into), later.where)
    return shared_semaphore(device, later.where)


def _unreceived(player: _Player, event: Start, source: Place) -> Fault:
    came = [
        str(start.into)
        for sender, start in player.arrived
        if sender != player.core[0] and start.into is not None
    ]
    pair = player.core[0], event.target[0]
    return not_received(player.round + 1, pair, str(source), came[-3:], event.where)


def replay(events: Mapping[Core, Sequence[Event]]) -> Account:
    """What the devices did, put together from what each of them did.

    Args:
        events: what each core of each device did, in its order. It may end early, as in a kernel
            that deadlocked: a wait that nothing ends is then taken as over.
    """
    starts = tuple(
        (core, event) for core in sorted(events) for event in events[core]
        if isinstance(event, Start)
    )  # fmt: skip
    into = frozenset((start.into.space, start.into.buffer) for _, start in starts if start.into)
    stage = _Replay(frozenset(device for device, _ in events), written=into)
    complete = True
    players = [_Player(core, events[core]) for core in sorted(events)]
    while waiting := [player for player in players if player.position < len(player.events)]:
        moved = False
        for player in waiting:
            while player.position < len(player.events) and stage.step(player):
                moved = True
        if not moved:
            stuck = waiting[0]
            event = stuck.events[stuck.position]
            assert isinstance(event, Wait)
            complete = False
            stage.take_what_is_there(stuck, event)
            stuck.position += 1
    ordered = sorted(stage.sent, key=lambda item: item[:3])
    transfers = tuple(
        Transfer(
            order,
            at,
            core[0],
            start.target[0],
            start.size_bytes,
            start.target_index,
            start.where,
        )
        for order, (at, core, _, start) in enumerate(ordered)
    )
    left = [part.unwaited for pool in stage.pools.values() for part in pool]
    unwaited = sorted(
        {copy for copy in left if copy is not None} if complete else (),
        key=lambda copy: (not copy.at_target, copy.source, copy.target, copy.where),
    )
    unmet = sorted(stage.unmet, key=lambda one: (one.source, one.target))
    faults = [fault for *_, fault in sorted(stage.unreceived, key=lambda one: one[:2])[:1]]
    faults += [fault for _, fault in sorted(stage.shared, key=lambda one: one[0])[:1]]
    return Account(transfers, tuple(unmet), tuple(unwaited), tuple(faults), starts)
