"""Exercises as data: what to write, how it is judged, and which mistakes it must catch.

An exercise never contains the code that judges it. It names an oracle in float64, the cases, the
tolerance, the chips and the speed bands; :mod:`tpulab.grading` does the rest.
"""

from __future__ import annotations

from tpulab.exercises.model import (
    ArgumentSpec,
    Case,
    Exercise,
    KnownWrong,
    ResultSpec,
    Rung,
    Suspect,
    Tolerance,
    Work,
)
from tpulab.exercises.registry import exercises, get_exercise, tracks

__all__ = [
    "ArgumentSpec",
    "Case",
    "Exercise",
    "KnownWrong",
    "ResultSpec",
    "Rung",
    "Suspect",
    "Tolerance",
    "Work",
    "exercises",
    "get_exercise",
    "tracks",
]
