"""Lab 30: copies from one chip to another."""

from __future__ import annotations

from tpulab.exercises.model import Exercise

EXERCISES: tuple[Exercise, ...] = ()
