"""Lab 02: what limits a kernel, the matrix unit or the memory."""

from __future__ import annotations

from tpulab.exercises.model import Exercise

EXERCISES: tuple[Exercise, ...] = ()
