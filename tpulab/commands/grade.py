"""``tpulab grade``: submissions of a class, each in processes of its own."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


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
    report = grade_files(
        options.files,
        options.out,
        GradeOptions(
            lab=options.lab,
            chips=tuple(chip_names(options.chip)) if options.chip else None,
            hidden_file=Path(options.hidden) if options.hidden else None,
            secret=options.secret,
            credit_file=Path(options.credit) if options.credit else None,
            again=options.again,
            jobs=options.jobs,
            bounds=bounds,
        ),
        say=_say,
    )
    if options.json:
        summary = json.loads((report.folder / "summary.json").read_text(encoding="utf-8"))
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print(f"results: {report.folder / 'index.html'}")
    return 0 if report.complete else 1


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
