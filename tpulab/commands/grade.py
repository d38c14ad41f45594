"""``tpulab grade``: submissions of a class, each in processes of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tpulab.errors import UsageError

#: Environment variable with the text that hidden cases are derived from.
SECRET_VARIABLE = "TPULAB_GRADING_SECRET"


def grade(options: argparse.Namespace) -> int:
    """Grade files into a folder; 0 when all could be graded, whatever their points."""
    from tpulab.classroom.submissions import GradeOptions
    from tpulab.classroom.submissions import grade as grade_files
    from tpulab.classroom.submissions.judging import Bounds
    from tpulab.commands.options import chip_names

    bounds = Bounds()
    if options.deadline or options.memory:
        memory = int(options.memory * 2**30) if options.memory else None
        bounds = Bounds(options.deadline or bounds.seconds, memory)
    done = (0, 0)

    def say(result: dict[str, Any], number: int, count: int) -> None:
        nonlocal done
        done = (number, count)
        _say(result, number, count)

    settings = GradeOptions(
        lab=options.lab,
        chips=tuple(chip_names(options.chip)) if options.chip else None,
        hidden_file=Path(options.hidden) if options.hidden else None,
        secret=_secret(options.secret_file),
        credit_file=Path(options.credit) if options.credit else None,
        again=options.again,
        jobs=options.jobs,
        bounds=bounds,
    )
    try:
        report = grade_files(options.files, options.out, settings, say=say)
    except KeyboardInterrupt:
        print(_stopped(*done), file=sys.stderr, flush=True)
        return 130
    if options.json:
        summary = json.loads((report.folder / "summary.json").read_text(encoding="utf-8"))
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print(f"results: {report.folder / 'index.html'}")
    return 0 if report.complete else 1


def _secret(file: str | None) -> str | None:
    """What hidden cases are derived from; never a word of the command line, which all can list."""
    # taken out: what is graded inherits the environment
    from_environment = os.environ.pop(SECRET_VARIABLE, "").strip()
    if file is None:
        return from_environment or None
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(
            f"the secret cannot be read from {file}",
            why=why,
            hint=f"name a text file, or set {SECRET_VARIABLE}",
        ) from error
    if not text:
        raise UsageError(f"{file} is empty: there is no secret in it")
    return text


def _stopped(number: int, count: int) -> str:
    """What an interrupted run leaves, and how it goes on."""
    if not count:
        return "\ntpulab: stopped before the first submission was done."
    return (
        f"\ntpulab: stopped. {number} of {count} submissions are done, with their pages and a "
        "summary;\n  the same command goes on with the rest."
    )


def _say(result: dict[str, Any], number: int, count: int) -> None:
    """One line for a submission, on the error stream: the output may be JSON."""
    points = result["status"]
    if result["max_points"] is not None:
        points = f"{result['points']:g} of {result['max_points']:g} points"
        points += f", {result['status']}" if result["status"] != "graded" else ""
    how = "unchanged, kept" if result["kept"] else f"{result['seconds']:.0f} s"
    lines = [f"[{number}/{count}] {result['submission']}: {points} ({how})"]
    lines += [f"    {text}" for text in result["messages"]]
    text = "\n".join(lines)
    # a file's name may hold what a terminal obeys
    print("".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text),
          file=sys.stderr, flush=True)  # fmt: skip
