"""Run a compiled TPU program to predict its time: scalar core exactly, units and transfers timed.

``simulate(program, kernel=kernel)`` gives a :class:`Timeline`: cycles, what each unit did, what the
core waited for, bytes moved, and a trace for Perfetto.
"""

from __future__ import annotations

from tpulab.simulator.constants import Constants, constants_for
from tpulab.simulator.options import Options, SimulationRefused
from tpulab.simulator.running import simulate, simulate_listing
from tpulab.simulator.timeline import Event, PieceTime, Timeline

__all__ = [
    "Constants",
    "Event",
    "Options",
    "PieceTime",
    "SimulationRefused",
    "Timeline",
    "constants_for",
    "simulate",
    "simulate_listing",
]
