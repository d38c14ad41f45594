"""All exercises by name: the ones here, and those that installed packages add.

A package adds exercises with an entry point of the group ``tpulab.exercises`` whose value is a
module with a tuple ``EXERCISES``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from functools import cache

from tpulab.errors import UnknownNameError
from tpulab.exercises.model import Exercise

# in the order of the labs
_OWN_MODULES = (
    "tpulab.exercises.first_kernel",
    "tpulab.exercises.roofline",
    "tpulab.exercises.grids",
    "tpulab.exercises.matmul",
    "tpulab.exercises.flash_attention",
    "tpulab.exercises.remote_dma",
    "tpulab.exercises.ring_collectives",
)


@cache
def _registry() -> dict[str, Exercise]:
    found: dict[str, Exercise] = {}
    for module in _OWN_MODULES:
        for exercise in importlib.import_module(module).EXERCISES:
            found[exercise.name] = exercise
    for entry in importlib.metadata.entry_points(group="tpulab.exercises"):
        try:
            added = entry.load().EXERCISES
        except Exception as error:  # noqa: BLE001 - any fault of a foreign pack must not cost ours
            warnings.warn(f"exercise pack {entry.name} was left out: {error}", stacklevel=2)
            continue
        for exercise in added:
            if exercise.name in found:
                warnings.warn(
                    f"exercise pack {entry.name} also has a {exercise.name}; the first is kept",
                    stacklevel=2,
                )
                continue
            found[exercise.name] = exercise
    return found


def exercises(track: str | None = None) -> tuple[Exercise, ...]:
    """All exercises in the order in which they are meant to be done.

    Args:
        track: only those of one track, for example ``"matmul"``.

    Raises:
        UnknownNameError: there is no such track.
    """
    every = tuple(_registry().values())
    if track is None:
        return every
    if track not in tracks():
        raise UnknownNameError("track", track, tracks())
    return tuple(exercise for exercise in every if exercise.track == track)


def tracks() -> tuple[str, ...]:
    """Names of the tracks, in order."""
    return tuple(dict.fromkeys(exercise.track for exercise in _registry().values()))


def get_exercise(name: str) -> Exercise:
    """The exercise of that name.

    Raises:
        UnknownNameError: there is none; the nearest name is suggested.
    """
    registry = _registry()
    if not isinstance(name, str) or name not in registry:
        raise UnknownNameError("exercise", str(name), registry)
    return registry[name]
