"""Lab 03: grids, blocks and index maps."""

from __future__ import annotations

from tpulab.exercises.model import Exercise

EXERCISES: tuple[Exercise, ...] = ()
