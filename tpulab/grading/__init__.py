"""Judge answers to exercises: ``check(name, function)`` and what belongs around it.

Learner code runs in a child process with limits; the verdict is computed here, where it cannot
reach. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpulab.grading.checking import check as check
    from tpulab.grading.checking import check_file as check_file
    from tpulab.grading.checking import warm as warm
    from tpulab.grading.learning import Climb as Climb
    from tpulab.grading.learning import Progress as Progress
    from tpulab.grading.learning import SolutionLockedError as SolutionLockedError
    from tpulab.grading.learning import attempts as attempts
    from tpulab.grading.learning import climb as climb
    from tpulab.grading.learning import hint as hint
    from tpulab.grading.learning import progress as progress
    from tpulab.grading.learning import reset as reset
    from tpulab.grading.learning import solution as solution
    from tpulab.grading.progress_store import ProgressStore as ProgressStore
    from tpulab.grading.sandbox import Limits as Limits
    from tpulab.grading.verdict import StepResult as StepResult
    from tpulab.grading.verdict import Verdict as Verdict

_EXPORTS = {
    "Climb": "learning",
    "Limits": "sandbox",
    "Progress": "learning",
    "ProgressStore": "progress_store",
    "SolutionLockedError": "learning",
    "StepResult": "verdict",
    "Verdict": "verdict",
    "attempts": "learning",
    "check": "checking",
    "check_file": "checking",
    "climb": "learning",
    "hint": "learning",
    "progress": "learning",
    "reset": "learning",
    "solution": "learning",
    "warm": "checking",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tpulab.grading' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tpulab.grading.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
