"""Transfers between memories: concurrent transfers share the HBM's bandwidth, each has a latency.

All streams that are under way get an equal part of the bandwidth, and none gets more than a single
stream can take. Service begins when the transfer is issued; the sync flag changes one latency
after the last byte was served. Time is in cycles of the core's clock.

Equal sharing makes one number enough to find every end: the *virtual* bytes that each stream has
been served since the beginning. A stream of ``n`` bytes that starts at virtual time ``v`` ends at
``v + n``, whatever joins or leaves in between.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class DeadlockError(Exception):
    """A wait that no transfer under way will ever satisfy."""


class DmaEngine:
    """The transfers of one core.

    Args:
        bytes_per_cycle: what all transfers together can move per cycle.
        stream_bytes_per_cycle: what one transfer alone can move per cycle.
        on_end: called as ``on_end(token, start_cycle, end_cycle)`` when a transfer is complete.
    """

    def __init__(
        self,
        bytes_per_cycle: float,
        stream_bytes_per_cycle: float,
        on_end: Callable[[object, float, float], None] | None = None,
    ) -> None:
        if bytes_per_cycle <= 0 or stream_bytes_per_cycle <= 0:
            raise ValueError("bandwidth must be positive")
        self._bandwidth = bytes_per_cycle
        self._single = min(stream_bytes_per_cycle, bytes_per_cycle)
        self._now = 0.0
        self._virtual = 0.0
        # (virtual end, number, latency, flag, amount, token, start)
        self._running: list[tuple[float, int, float, int, int, object, float]] = []
        # (time when the flag changes, number, flag, amount)
        self._landing: list[tuple[float, int, int, int]] = []
        self._number = 0
        self._on_end = on_end
        self.flags: dict[int, int] = {}
        self.busy_cycles = 0.0

    def _rate(self) -> float:
        return min(self._single, self._bandwidth / len(self._running))

    def _serve_until(self, time: float) -> None:
        """Serve all streams up to a time and note which flags will change when."""
        running = self._running
        while running:
            rate = self._bandwidth / len(running)
            if rate > self._single:
                rate = self._single
            end = self._now + (running[0][0] - self._virtual) / rate
            if end > time:
                if time > self._now:
                    self._virtual += (time - self._now) * rate
                    self.busy_cycles += time - self._now
                    self._now = time
                return
            self._finish_first(end)
        if time > self._now:
            self._now = time

    def _finish_first(self, end: float) -> None:
        virtual, number, latency, flag, amount, token, start = heapq.heappop(self._running)
        self.busy_cycles += end - self._now
        self._now = end
        self._virtual = virtual
        heapq.heappush(self._landing, (end + latency, number, flag, amount))
        if token is not None and self._on_end is not None:
            self._on_end(token, start, end + latency)

    def start(
        self,
        time: float,
        served_bytes: float,
        latency_cycles: float,
        flag: int,
        amount: int,
        token: object = None,
    ) -> None:
        """Begin a transfer at ``time`` that adds ``amount`` to ``flag`` when it is complete."""
        self._serve_until(time)
        self._number += 1
        heapq.heappush(
            self._running,
            (
                self._virtual + served_bytes,
                self._number,
                latency_cycles,
                flag,
                amount,
                token,
                time,
            ),
        )

    def start_local(self, time: float, cycles: float, flag: int, amount: int) -> None:
        """Begin a move that does not touch the HBM and takes a known time."""
        self._number += 1
        heapq.heappush(self._landing, (time + cycles, self._number, flag, amount))

    def _land_until(self, time: float) -> None:
        landing = self._landing
        while landing and landing[0][0] <= time:
            _, _, flag, amount = heapq.heappop(landing)
            self.flags[flag] = self.flags.get(flag, 0) + amount

    def read(self, time: float, flag: int) -> int:
        """The value of a flag at a time."""
        self._serve_until(time)
        self._land_until(time)
        return self.flags.get(flag, 0)

    def wait(self, time: float, flag: int, amount: int) -> float:
        """The first time, not before ``time``, at which the flag holds at least ``amount``.

        Raises:
            DeadlockError: no transfer under way will bring it there.
        """
        flags = self.flags
        if flags.get(flag, 0) >= amount:
            # It was reached before; later transfers can only have added.
            return time
        self._serve_until(time)
        self._land_until(time)
        while flags.get(flag, 0) < amount:
            if self._running and (
                not self._landing
                or self._now + (self._running[0][0] - self._virtual) / self._rate()
                < self._landing[0][0]
            ):
                end = self._now + (self._running[0][0] - self._virtual) / self._rate()
                self._finish_first(end)
                continue
            if not self._landing:
                raise DeadlockError
            when = self._landing[0][0]
            if when > time:
                time = when
            self._land_until(when)
        return time

    def add(self, flag: int, amount: int) -> None:
        """Add to a flag at once, as the core itself does."""
        self.flags[flag] = self.flags.get(flag, 0) + amount

    def drain(self) -> float:
        """Let every transfer end; gives the time when the last flag has changed."""
        while self._running:
            rate = self._rate()
            self._finish_first(self._now + (self._running[0][0] - self._virtual) / rate)
        last = max((when for when, *_ in self._landing), default=self._now)
        self._land_until(last)
        return last
