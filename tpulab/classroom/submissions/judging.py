"""One answer to its verdict: in a process of its own, against hidden cases, within a deadline."""

from __future__ import annotations

import dataclasses
import re
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpulab.classroom.submissions.answers import Answer
from tpulab.classroom.submissions.beside import beside
from tpulab.classroom.submissions.reading import Submission
from tpulab.exercises import Case, get_exercise

if TYPE_CHECKING:
    from tpulab.grading import StepResult

_FILE = "answer.py"
_SHOWN_OUTPUT = 4000


@dataclass(frozen=True)
class Bounds:
    """What one answer may take.

    Attributes:
        seconds: wall-clock time for the answer's own code, in all steps that run it.
        memory_bytes: address space of the process that runs it; None for the checker's own limit.
    """

    seconds: float = 180.0
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Judged:
    """A verdict as plain values.

    Attributes:
        verdict: as :meth:`tpulab.grading.Verdict.to_dict`, places given by cell and line.
        output: the end of what the answer printed.
        hidden_wrong: names of hidden cases that it failed on.
        hidden_only: what failed shows on hidden cases only.
        seconds: what judging took.
        overtime: it was stopped at the deadline.
    """

    verdict: dict[str, Any]
    output: str
    hidden_wrong: tuple[str, ...]
    hidden_only: bool
    seconds: float
    overtime: bool


def judge(
    answer: Answer,
    submission: Submission,
    hidden: Sequence[Case],
    *,
    seed: int,
    chips: Sequence[str] | None = None,
    bounds: Bounds | None = None,
) -> Judged:
    """Judge one answer by the exercise's own cases and hidden ones.

    Args:
        answer: a written one.
        submission: where it comes from.
        hidden: cases that the learner does not know.
        seed: of the random values.
        chips: chips to judge it on, by default the exercise's own.
        bounds: time and memory.

    Raises:
        TpulabError: the checker itself cannot work here; never because of the answer.
    """
    from tpulab.grading import Limits, warm
    from tpulab.grading.display import Silent
    from tpulab.grading.judge import Judge
    from tpulab.grading.shipping import ship_file

    bounds = bounds or Bounds()
    exercise = get_exercise(answer.task.exercise)
    graded = dataclasses.replace(exercise, cases=(*exercise.cases, *hidden))
    limits = Limits()
    limits = dataclasses.replace(
        limits,
        stage_seconds=min(limits.stage_seconds, bounds.seconds),
        memory_bytes=bounds.memory_bytes or limits.memory_bytes,
    )
    # the first answer meets processes that are up, and a compiler that has started
    warm()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tpulab-grade-") as folder:
        file = Path(folder) / _FILE
        head = _preamble(answer, submission, Path(folder) / "beside")
        file.write_text(head + answer.source, encoding="utf-8")
        # the name is looked up where the file runs: one that it lacks is the verdict's news
        shipment = dataclasses.replace(ship_file(file, None), name=answer.function)
        over = threading.Event()

        def stop() -> None:
            over.set()
            # its processes end, and with them the step; the compiler has a deadline of its own
            judge_.inquiry.close()

        timer = threading.Timer(bounds.seconds, stop)
        timer.daemon = True
        # the compiler's time is not the answer's
        judge_ = Judge(graded, shipment, _chips(exercise.chips, chips), Silent(), limits=limits,
                       seed=seed, answered=timer.cancel)  # fmt: skip
        timer.start()
        try:
            verdict = judge_.run()
        finally:
            timer.cancel()
        if over.is_set():
            verdict = dataclasses.replace(
                verdict, steps=_stopped_steps(verdict.steps, bounds.seconds)
            )
        places = _Places(answer, str(file), head.count("\n"))
        plain = places.told(verdict.to_dict())
        output = places.told(verdict.output[-_SHOWN_OUTPUT:])
    wrong, only = _hidden_failures(plain, exercise.cases, hidden)
    return Judged(plain, output, wrong, only, time.monotonic() - begin, over.is_set())


def _stopped_steps(steps: Sequence[StepResult], seconds: float) -> tuple[StepResult, ...]:
    """The steps of an answer that was stopped at the deadline: the one that it ended says so."""
    place = next((n for n, step in enumerate(steps) if step.passed is False), None)
    if place is None or steps[place].name == "compiles":
        return tuple(steps)
    what = f"the answer was stopped: it took more than {seconds:g} s in all"
    hint = "look for a loop that does not end"
    # what is right, safe and accepted by the compiler has not failed for want of time
    passed = None if steps[place].name == "fast" else False
    if passed is None:
        what, hint = f"not judged: {what}", ""
    late = type(steps[place])(steps[place].name, passed, what, hint=hint)
    return (*steps[:place], late, *steps[place + 1 :])


def _chips(own: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    from tpulab.hardware import get_chip

    return tuple(dict.fromkeys(get_chip(chip).name for chip in wanted or own))


def _preamble(answer: Answer, submission: Submission, folder: Path) -> str:
    """Lets an answer import the modules that were handed in beside it, from copies."""
    found = beside(submission, answer.pieces)
    if not found.helpers or any("__future__" in piece.text for piece in answer.pieces):
        return ""
    found.copy_to(folder)
    return f"import sys; sys.path.append({str(folder)!r})\n"


class _Places:
    """Puts cells and lines where the checker speaks of a file that nobody else knows."""

    def __init__(self, answer: Answer, file: str, skipped_lines: int) -> None:
        self.answer = answer
        self.skipped_lines = skipped_lines
        self.lines = answer.source.split("\n")
        # the checker shortens paths in sentences, and may resolve links in them
        self._pattern = re.compile(
            rf"(?:[^\s'\"(]*[/\\])?\b{re.escape(_FILE)}\b(?:(?::|, line )(\d+))?"
        )

    def told(self, value: Any) -> Any:
        """A value of a verdict, with every place in it translated."""
        if isinstance(value, str):
            return self._pattern.sub(self._place, value)
        if isinstance(value, Mapping):
            return {
                key: self._where(item) if key == "where" else self.told(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.told(item) for item in value]
        return value

    def _place(self, found: re.Match[str]) -> str:
        return self._origin(int(found[1])) if found[1] else "the submission"

    def _where(self, place: Any) -> Any:
        """A place with its line of code behind it."""
        found = self._pattern.fullmatch(place) if isinstance(place, str) else None
        if not found or not found[1]:
            return self.told(place)
        number = int(found[1]) - self.skipped_lines
        code = self.lines[number - 1].strip() if 1 <= number <= len(self.lines) else ""
        return f"{self._origin(int(found[1]))}: {code}" if code else self._origin(int(found[1]))

    def _origin(self, number: int) -> str:
        origin = self.answer.origin(number - self.skipped_lines)
        if origin is None:
            return "the submission"
        cell, line = origin
        if cell is None:
            return f"the lab's own cell, line {line}"
        if cell.first_line > 1:
            return f"line {cell.first_line + line - 1}"
        return f"cell {cell.number}, line {line}"


def _hidden_failures(
    verdict: Mapping[str, Any], shown: Sequence[Case], hidden: Sequence[Case]
) -> tuple[tuple[str, ...], bool]:
    """(hidden cases that the answer fails on, whether it fails on nothing else)."""
    failed = next((step for step in verdict["steps"] if step["answer"] == "failed"), None)
    if failed is None:
        return (), False
    names = {case.name for case in hidden}
    data = failed["data"]
    if failed["name"] == "correct" and data.get("wrong"):
        wrong = [str(item).rpartition(": ")[0] for item in data["wrong"]]
        missed = tuple(dict.fromkeys(name for name in wrong if name in names))
        return missed, bool(missed) and all(name in names for name in wrong)
    # a step that stops at the first fault names its shapes; the shown cases come first
    text = f"{failed['summary']} {failed['detail']} {data.get('arguments', '')}"
    known = {word for case in shown for word in _shape_words(case)}
    missed = tuple(
        case.name
        for case in hidden
        if any(re.search(rf"(?<![\d×,]){re.escape(word)}(?![\d×,])", text)
               for word in _shape_words(case) - known)
    )  # fmt: skip
    return missed, bool(missed)


def _shape_words(case: Case) -> set[str]:
    """How a sentence may write the shapes of a case."""
    words = {str(case)}
    for spec in case.arguments:
        if len(spec.shape) > 1:
            words |= {str(spec), "×".join(map(str, spec.shape))}
    return words
