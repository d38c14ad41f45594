"""The verdicts of one submission as plain values; ``result_schema.json`` documents them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulab.classroom.submissions import credit as credits
from tpulab.classroom.submissions import hidden as hiding
from tpulab.classroom.submissions.answers import Answer, Answers, Piece, named
from tpulab.classroom.submissions.beside import beside
from tpulab.classroom.submissions.finding import what_it_holds
from tpulab.classroom.submissions.judging import Bounds, Judged, judge
from tpulab.classroom.submissions.labs import LabSpec, find_lab, lab_of
from tpulab.classroom.submissions.reading import Submission, UnreadableError, read
from tpulab.errors import TpulabError
from tpulab.exercises import Case, get_exercise

#: Changes when a reader of the JSON would have to change.
FORMAT = "tpulab-grade-1"
_SHOWN_ANSWER = 4000


@dataclass(frozen=True)
class Job:
    """Everything that grading one file needs; it goes to another process.

    Attributes:
        path: the submitted file.
        name: how it is told from the others.
        lab: the lab that it must answer, None to find out.
        chips: chips to judge on, None for each exercise's own.
        secret: what hidden cases are derived from.
        hidden_file: TOML file with more of them.
        credit_file: TOML file with the shares of the points.
        bounds: what one answer may take.
    """

    path: str
    name: str
    lab: str | None = None
    chips: tuple[str, ...] | None = None
    secret: str = ""
    hidden_file: str | None = None
    credit_file: str | None = None
    bounds: Bounds = Bounds()


def grade_one(job: Job) -> dict[str, Any]:
    """Grade one submission; whatever is wrong with it is told in the result."""
    import time

    begin = time.monotonic()
    result = empty_result(job.name, job.path)
    if Path(job.path).is_dir():
        return refused(result, "skipped", what_it_holds(Path(job.path)))
    try:
        submission = read(Path(job.path))
    except UnreadableError as error:
        return refused(result, "unreadable", sentence(error))
    result["sha256"], result["kind"] = submission.sha256, submission.kind
    lab = lab_of(submission)
    wanted = find_lab(job.lab) if job.lab else None
    if wanted is not None and lab is not None and lab.name != wanted.name:
        result["lab"], result["max_points"] = wanted.name, wanted.points
        what = f"this is an answer to {lab.name}, and {wanted.name} was asked for"
        return refused(result, "wrong lab", what)
    lab = wanted or lab
    if lab is None:
        what = "nothing in it belongs to a lab: no cell and no function of any exercise"
        if submission.claimed_lab:
            what = f"it is a copy of {submission.claimed_lab}, a lab that is not installed here"
        return refused(result, "unknown lab", what)
    result["lab"] = lab.name
    result["max_points"] = lab.points
    answers = Answers(submission, lab)
    result["messages"] = list(answers.notes)
    graders = _Graders(job, submission)
    result["exercises"] = [graders.exercise(answer) for answer in answers.all()]
    result["points"] = round(sum(item["points"] for item in result["exercises"]), 4)
    result["by_hand"] = _by_hand(submission, lab)
    versions = [item["compiler_version"] for item in result["exercises"]]
    result["compiler_version"] = next(filter(None, versions), None)
    complete = all(item["complete"] for item in result["exercises"])
    result["status"] = "graded" if complete else "not judged"
    result["seconds"] = round(time.monotonic() - begin, 3)
    return result


class _Graders:
    """What the exercises of one submission are graded with."""

    def __init__(self, job: Job, submission: Submission) -> None:
        self.job = job
        self.submission = submission
        self.credit = credits.load(Path(job.credit_file) if job.credit_file else None)
        self.by_hand = hiding.from_file(Path(job.hidden_file)) if job.hidden_file else {}

    def exercise(self, answer: Answer) -> dict[str, Any]:
        """The entry of one exercise."""
        task = answer.task
        exercise = get_exercise(task.exercise)
        entry: dict[str, Any] = {
            "exercise": task.exercise,
            "title": exercise.title,
            "grade_id": task.grade_id,
            "status": "missing" if answer.state == "missing" else "not attempted",
            "complete": True,
            "points": 0.0,
            "max_points": task.points,
            "messages": list(answer.notes),
            "verdict": None,
            "rung": None,
            "predicted_seconds": {},
            "compiler_version": None,
            "hidden": {"cases": [], "wrong": [], "only_hidden_wrong": False},
            "code": [_code(piece) for piece in answer.pieces],
            "output": "",
            "seconds": 0.0,
        }
        if answer.state != "written":
            return entry
        hidden = hiding.hidden_cases(exercise, self.job.secret, self.by_hand)
        entry["hidden"]["cases"] = [
            {"name": case.name, "arguments": str(case), "fills": list(case.fills)}
            for case in hidden
        ]
        try:
            judged = judge(
                answer,
                self.submission,
                hidden,
                seed=hiding.seed_of(self.job.secret, task.exercise),
                chips=self.job.chips,
                bounds=self.job.bounds,
            )
        except TpulabError as error:
            return _not_judged(entry, sentence(error))
        except Exception as error:  # noqa: BLE001 - the other exercises are still graded
            return _not_judged(entry, f"the grader failed: {type(error).__name__}: {error}"[:500])
        self._fill(entry, judged, hidden)
        entry["messages"] += [
            f"{name} is a submission of its own and could not be imported"
            for name in beside(self.submission, answer.pieces).submissions
        ]
        return entry

    def _fill(self, entry: dict[str, Any], judged: Judged, hidden: tuple[Case, ...]) -> None:
        verdict = judged.verdict
        share = self.credit.share(verdict)
        unjudged = [step["name"] for step in verdict["steps"] if step["answer"] == "not judged"]
        entry.update(
            points=round(share * entry["max_points"], 4),
            verdict=verdict,
            rung=verdict["rung"],
            predicted_seconds=verdict["predicted_seconds"],
            compiler_version=verdict["compiler_version"],
            output=judged.output,
            seconds=round(judged.seconds, 3),
        )
        entry["hidden"]["wrong"] = list(judged.hidden_wrong)
        entry["hidden"]["only_hidden_wrong"] = judged.hidden_only
        if not verdict["attempted"]:
            return
        entry["status"] = "passed" if verdict["passed"] else "failed"
        if judged.hidden_only:
            shapes = [str(case) for case in hidden if case.name in judged.hidden_wrong]
            ran = any(step["data"].get("wrong") for step in verdict["steps"])
            # values are compared on all cases; an earlier fault ends it before that
            what = "right on every case that the lab shows, wrong on hidden ones: "
            entry["messages"].append(
                (what if ran else "this fault shows on hidden shapes only: ") + "; ".join(shapes)
            )
        if verdict["passed"] and unjudged:
            entry["complete"] = False
            entry["messages"].append(
                f"{' and '.join(unjudged)} could not be judged on this machine; "
                "the points are those of the steps before"
            )
        if verdict["interrupted"]:
            _not_judged(entry, "grading was interrupted")


def empty_result(name: str, path: str) -> dict[str, Any]:
    """A result with nothing in it."""
    import tpulab

    return {
        "format": FORMAT,
        "submission": name,
        "file": path,
        "sha256": None,
        "kind": None,
        "lab": None,
        "status": "not judged",
        "points": 0.0,
        "max_points": None,
        "messages": [],
        "exercises": [],
        "by_hand": [],
        "tpulab_version": tpulab.__version__,
        "compiler_version": None,
        "fingerprint": "",
        "seconds": 0.0,
    }


def refused(result: dict[str, Any], status: str, what: str) -> dict[str, Any]:
    """A result for a file in which nothing can be graded."""
    result["status"] = status
    result["messages"] = [what]
    return result


def sentence(error: TpulabError) -> str:
    """An error in one line."""
    parts = [error.what, error.why, f"try: {error.hint}" if error.hint else None]
    return "; ".join(part for part in parts if part)


def _not_judged(entry: dict[str, Any], what: str) -> dict[str, Any]:
    entry.update(status="not judged", complete=False, points=0.0)
    entry["messages"].append(what)
    return entry


def _code(piece: Piece) -> dict[str, Any]:
    if piece.cell is None:
        return {"cell": None, "name": "the lab's own cell", "first_line": 1, "source": piece.text}
    first = piece.cell.first_line + piece.first_line - 1
    return {
        "cell": piece.cell.number,
        "name": named(piece.cell),
        "first_line": first,
        "source": piece.text,
    }


def _by_hand(submission: Submission, lab: LabSpec) -> list[dict[str, Any]]:
    """Questions that a person grades, with what was answered."""
    found = []
    for question in lab.by_hand:
        texts = [c.source for c in submission.cells if c.grade_id == question.grade_id]
        text = "\n\n".join(texts)[:_SHOWN_ANSWER]
        answered = bool(text.strip()) and text.strip() != question.blank.strip()
        found.append(
            {
                "grade_id": question.grade_id,
                "max_points": question.points,
                "answered": answered,
                "text": text,
            }
        )
    return found
