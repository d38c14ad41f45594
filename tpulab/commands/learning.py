"""``tpulab list``, ``check``, ``hint``, ``solution`` and ``reset``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tpulab.errors import UnknownNameError, UsageError


def list_exercises(options: argparse.Namespace) -> int:
    """Print the exercises with how far the learner has come."""
    from tpulab.exercises import exercises
    from tpulab.grading import progress

    done = progress()
    found = exercises(options.track)
    if options.json:
        rows = [
            {"name": e.name, "title": e.title, "chips": list(e.chips), **done.entry(e.name)}
            for e in found
        ]
        print(json.dumps(rows, indent=2))
        return 0
    width = max(len(exercise.name) for exercise in found)
    for exercise in found:
        print(f"{exercise.name:<{width}}  {done.summary(exercise.name):<24}  {exercise.title}")
    print("\ncheck an answer with  tpulab check NAME FILE.py; stuck?  tpulab hint NAME")
    return 0


def check(options: argparse.Namespace) -> int:
    """Check an answer; 0 when it passed, 1 when it did not."""
    from tpulab.exercises import get_exercise
    from tpulab.grading import check as check_answer

    exercise = get_exercise(options.name)
    file, function = _answer(options.answer, exercise.function_name)
    chips = None
    if options.chip:
        from tpulab.commands.options import chip_names

        chips = chip_names(options.chip)
    verdict = check_answer(exercise.name, f"{file}:{function}", chips=chips, quiet=options.json)
    if options.json:
        print(verdict.to_json(indent=2))
    if verdict.interrupted:
        return 130
    return 0 if verdict.passed else 1


def _answer(text: str, default_function: str) -> tuple[str, str]:
    file, colon, function = text.rpartition(":")
    if not colon or not function.isidentifier():
        file, function = text, default_function
    from tpulab.commands.options import check_target

    check_target(f"{file}:{function}")
    return file, function


def hint(options: argparse.Namespace) -> int:
    """Print the next hint, or the one of a number."""
    from tpulab.grading import hint as next_hint

    print(next_hint(options.name, options.number))
    return 0


def solution(options: argparse.Namespace) -> int:
    """Print a solution."""
    from tpulab.grading import solution as show

    print(show(options.name))
    return 0


def reset(options: argparse.Namespace) -> int:
    """Forget an exercise, or put a fresh copy of a lab beside the old one."""
    from tpulab.classroom.release import labs as _  # noqa: F401
    from tpulab.exercises import exercises

    names = [exercise.name for exercise in exercises()]
    if options.name in names:
        from tpulab.grading import progress

        progress().reset(options.name)
        print(f"{options.name}: forgotten")
        return 0
    if "." in options.name and not Path(options.name).suffix == ".ipynb":
        raise UnknownNameError("exercise", options.name, names)
    from tpulab.classroom import reset_lab

    fresh, backup = reset_lab(options.name.removesuffix(".ipynb"), options.folder)
    print(f"fresh copy: {fresh}")
    if backup is not None:
        print(f"yours, kept: {backup}")
    return 0


__all__ = ["check", "hint", "list_exercises", "reset", "solution", "UsageError"]
