"""``tpulab list``, ``check``, ``hint``, ``solution`` and ``reset``."""

from __future__ import annotations

import argparse
import json

from tpulab.errors import UnknownNameError


def list_exercises(options: argparse.Namespace) -> int:
    """Print the exercises with how far the learner has come."""
    from tpulab.grading import progress

    found = progress(options.track)
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
        return 0
    print(found)
    print("\ncheck an answer:  tpulab check NAME FILE.py      stuck?  tpulab hint NAME")
    return 0


def check(options: argparse.Namespace) -> int:
    """Check an answer; 0 when it passed, 1 when it did not."""
    from tpulab.commands.options import check_target
    from tpulab.exercises import get_exercise
    from tpulab.grading import check_file

    exercise = get_exercise(options.name)
    file, colon, function = options.answer.rpartition(":")
    if not colon or not function.isidentifier():
        file, function = options.answer, exercise.function_name
    check_target(f"{file}:{function}")
    verdict = check_file(
        exercise.name, file, function=function, chips=options.chip, quiet=options.json
    )
    if options.json:
        print(verdict.to_json(indent=2))
    if verdict.interrupted:
        return 130  # as after any Ctrl-C; the verdict has said so already
    return 0 if verdict.passed else 1


def hint(options: argparse.Namespace) -> int:
    """Print the next hint, or the one of a number."""
    from tpulab.grading import hint as next_hint

    print(next_hint(options.name, options.number))
    return 0


def solution(options: argparse.Namespace) -> int:
    """Print a solution."""
    from tpulab.grading import solution as solution_of

    print(solution_of(options.name, reveal=options.reveal))
    return 0


def reset(options: argparse.Namespace) -> int:
    """Forget an exercise, or put a fresh copy of a lab beside the old one."""
    from tpulab.exercises import exercises

    name = options.name.removesuffix(".ipynb")
    names = [exercise.name for exercise in exercises()]
    if name in names:
        from tpulab.grading import reset as forget

        print(forget(name))
        return 0
    if "." in name:
        raise UnknownNameError("exercise", name, names)
    from tpulab.classroom import reset_lab

    fresh, backup = reset_lab(name, options.folder)
    print(f"fresh copy: {fresh}")
    if backup is not None:
        print(f"what you had: {backup}")
    return 0
