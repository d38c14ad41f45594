"""Lab 31: collectives on a ring of chips."""

from __future__ import annotations

from tpulab.exercises.model import Exercise

EXERCISES: tuple[Exercise, ...] = ()
