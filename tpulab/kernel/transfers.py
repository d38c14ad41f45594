"""What devices send each other: from what each of them did, in its order, to transfers in rounds.

The interpreter runs the devices as threads, in an order that is never the same. What one device
does, though, is always the same sequence of starts, signals and waits; the sequences are played
again here, one device after the other, so that the result does not depend on the threads.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """

    transfers: tuple[Transfer, ...]
    unmet: tuple[Unmet, ...]
    unwaited: tuple[Unwaited, ...]


@dataclass
class _Player:
    core: Core
    events: Sequence[Event]
    position: int = 0
    kernel: int = 0
    round: int = 0
    # devices that are in this kernel for sure
    met: frozenset[int] = frozenset()


@dataclass
class _Amount:
    """Part of what a semaphore holds: what is left of it, and what its giver knew."""

    left: int
    round: int
    met: frozenset[int]
    unwaited: Unwaited | None = None


@dataclass
class _Replay:
    devices: frozenset[int]
    # what a semaphore holds, oldest first
    pools: dict[tuple[int, int, Core], deque[_Amount]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    sent: list[tuple[int, Core, int, Start]] = field(default_factory=list)
    unmet: dict[Unmet, None] = field(default_factory=dict)

    def put(
        self,
        player: _Player,
        semaphore: int | None,
        core: Core,
        amount: int,
        at: int,
        copy: Unwaited | None = None,
    ) -> None:
        if semaphore is not None:
            known = player.met | {player.core[0]}
            self.pools[player.kernel, semaphore, core].append(_Amount(amount, at, known, copy))

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

    def step(self, player: _Player) -> bool:
        """Play one event; False when it has to wait."""
        event = player.events[player.position]
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
            self.put(player, event.recv_semaphore, event.target, size, arrival, arrived)
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
        player.position += 1
        return True


def replay(events: Mapping[Core, Sequence[Event]]) -> Account:
    """What the devices did, put together from what each of them did.

    Args:
        events: what each core of each device did, in its order. It may end early, as in a kernel
            that deadlocked: a wait that nothing ends is then taken as over.
    """
    stage = _Replay(frozenset(device for device, _ in events))
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
    return Account(transfers, tuple(unmet), tuple(unwaited))
