"""Lab 20: attention that never writes its scores to memory."""

from __future__ import annotations

from tpulab.exercises.model import Exercise

EXERCISES: tuple[Exercise, ...] = ()
