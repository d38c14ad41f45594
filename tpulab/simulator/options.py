"""How to simulate, and how it is said that it can't be done."""

from __future__ import annotations

from dataclasses import dataclass

from tpulab.errors import TpulabError


class SimulationRefused(TpulabError):
    """A program that can't be run without guessing; ``reason`` says why in one sentence."""

    def __init__(self, reason: str, *, why: str | None = None, hint: str | None = None) -> None:
        super().__init__(reason, why=why, hint=hint)
        self.reason = reason


@dataclass(frozen=True)
class Options:
    """How to simulate.

    Attributes:
        free_dma: transfers take no time, so that only the schedule counts.
        max_events: how many events a timeline keeps.
        remove: causes of stalls to leave out: ``"dma"`` is the same as ``free_dma``.
        deadline_seconds: wall-clock time after which the simulation is given up.
        bandwidth_scale: factor on the HBM bandwidth, for what-if questions.
        max_cycles: simulated time after which the simulation is given up.
    """

    free_dma: bool = False
    max_events: int = 20_000
    remove: frozenset[str] = frozenset()
    deadline_seconds: float = 60.0
    bandwidth_scale: float = 1.0
    max_cycles: float = 1e12
