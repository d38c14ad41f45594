"""Whole submissions graded: notebooks and modules of a class, by the verdicts of ``tpulab.check``.

Modules, in the order of the work:
    finding: the files of a class, and who handed in none that can be graded.
    labs: what a lab asks and how many points each exercise has.
    reading: a submitted file as cells, whatever state it is in.
    slicing: the statements that a function needs, from cells in any order.
    answers: one learner's function for each exercise, as a module of its own.
    beside: modules that were handed in beside an answer.
    hidden: cases that are not in the learner's copy.
    judging: one answer to its verdict, within a deadline.
    results: the verdicts of one submission as JSON.
    pages: the same as HTML.
    summaries: all submissions in one table.
    running: many submissions in parallel, resumable.
"""

from __future__ import annotations

from typing import Any

_EXPORTS = {
    "GradeOptions": "running",
    "GradeReport": "running",
    "grade": "running",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name lazily."""
    import importlib

    if name in _EXPORTS:
        return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
