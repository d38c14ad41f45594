"""An observer of the faithful interpreter: notes what devices do, and ends deadlocks.

Every device runs in a thread of its own. When each of them waits for something, or has ended, and
nothing that is under way can end a wait, no device will ever go on: that is a deadlock, and it is
ended with a sentence instead of waiting for the deadline of the process.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpulab.kernel import interpreter_internals
from tpulab.kernel.transfers import Account, Core, End, Event, Signal, Start, Wait, replay

#: How long nothing may move before a standstill counts as a deadlock, and how often is looked.
_STANDSTILL_SECONDS = 1.0
#: Where a device has several cores nobody says that one has ended, and one that computes is quiet.
_STANDSTILL_OF_CORES_SECONDS = 10.0
_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Deadlock:
    """Devices that wait for what never comes.

    Attributes:
        devices: those that wait, in order.
        sentence: about the first of them.
        where: file:line of its wait, None when it is not known.
    """

    devices: tuple[int, ...]
    sentence: str
    where: str | None

    def __str__(self) -> str:
        return self.sentence


class InterpreterStopped(RuntimeError):
    """Raised in the interpreter's threads to end a deadlock."""


class Observer:
    """Notes every start, signal and wait; watches for a standstill while it is entered.

    Args:
        cores: cores of each device.

    Attributes:
        devices: how many devices run the function, 1 until one has started.
        deadlock: the standstill that was ended. stranger: (sentence, place) of the first copy or
            signal to a device that there is none of.
    """

    def __init__(self, cores: int = 1) -> None:
        self.devices = 1
        self._patience = _STANDSTILL_SECONDS if cores == 1 else _STANDSTILL_OF_CORES_SECONDS
        self.deadlock: Deadlock | None = None
        self.stranger: tuple[str, str | None] | None = None
        self._events: dict[Core, list[Event]] = defaultdict(list)
        self._waiting: dict[Core, Wait] = {}
        self._idle: set[Core] = set()
        self._moves = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Observer:
        self._watch.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._watch.join()

    def account(self) -> Account:
        """What the devices sent each other, and what is wrong with it."""
        return replay(self._events)

    # called by the interpreter's threads, before and after what they do

    def begin(self, kind: str, core: Core, event: Event | None) -> None:
        """A device is about to do something; ``kind`` is the interpreter's name for it."""
        self._moves += 1
        self.devices = max(self.devices, interpreter_internals.interpreted_devices())
        if isinstance(event, (Start, Signal)) and not 0 <= event.target[0] < self.devices:
            self._stop_stranger(core, event)
            return
        if event is not None and not isinstance(event, End):
            self._events[core].append(event)
        if isinstance(event, Wait):
            self._waiting[core] = event
        elif kind in interpreter_internals.MEETINGS:
            self._idle.add(core)

    def end(self, kind: str, core: Core, event: Event | None) -> None:
        """It is done."""
        self._moves += 1
        self._waiting.pop(core, None)
        self._idle.discard(core)
        if isinstance(event, End):
            self._events[core].append(event)

    def _stop_stranger(self, core: Core, event: Start | Signal) -> None:
        does = "copies to" if isinstance(event, Start) else "signals"
        if self.stranger is None:
            self.stranger = (
                f"device {core[0]} {does} device {event.target[0]}, and the devices are 0 to "
                f"{self.devices - 1}",
                event.where or None,
            )
        interpreter_internals.stop_interpreter(InterpreterStopped(self.stranger[0]))

    # the watch

    def _look(self) -> None:
        seen, quiet = -1, 0.0
        while not self._over.wait(_LOOK_SECONDS):
            if self._moves != seen or not self._stuck():
                seen, quiet = self._moves, 0.0
                continue
            quiet += _LOOK_SECONDS
            if quiet >= self._patience:
                self.deadlock = self._describe()
                interpreter_internals.stop_interpreter(InterpreterStopped(self.deadlock.sentence))
                return

    def _stuck(self) -> bool:
        waiting = dict(self._waiting)
        if not waiting or len(waiting) + len(self._idle - waiting.keys()) < self.devices:
            return False
        for core, wait in waiting.items():
            count, pending = interpreter_internals.semaphore_state(wait.semaphore, core)
            if count >= wait.amount or pending:
                return False
        return True

    def _describe(self) -> Deadlock:
        waiting = dict(sorted(self._waiting.items()))
        core, wait = next(iter(waiting.items()))
        count, _ = interpreter_internals.semaphore_state(wait.semaphore, core)
        devices = tuple(sorted({device for device, _ in waiting}))
        return Deadlock(devices, self._sentence(core, wait, count, devices), wait.where or None)

    def _sentence(self, core: Core, wait: Wait, count: int, devices: Sequence[int]) -> str:
        who = f"device {core[0]} waits" if self.devices > 1 else "the kernel waits"
        other = "no device" if self.devices > 1 else "nothing"
        if not wait.copies:
            what = f"for a semaphore that {other} signals"
            if count or wait.amount > 1:
                what = (
                    f"for {wait.amount} signals on a semaphore, and {count} "
                    f"{'come' if count != 1 else 'comes'}"
                )
        elif count:
            what = f"for {wait.amount:,} bytes, and copies bring {count:,}"
        else:
            verb = "sends" if self.devices > 1 else "starts"
            what = f"for a copy that {other} {verb}"
        also = ""
        if len(devices) > 1:
            rest = len(devices) - 1
            also = f"; {rest} other device{'s' if rest > 1 else ''} wait{'s' * (rest == 1)} too"
        return f"{who} {what}{also}"
