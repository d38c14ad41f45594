"""The verdict: five steps, how far the answer came, and one next thing to try."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tpulab.exercises.model import STEPS

_ANSWERS = {True: "passed", False: "failed", None: "not judged"}


@dataclass(frozen=True)
class StepResult:
    """What one step said.

    Attributes:
        name: one of ``legal``, ``correct``, ``safe``, ``compiles``, ``fast``.
        passed: None when it was not judged, for the reason in ``summary``.
        summary: one sentence.
        detail: what was seen, more than one line where that helps.
        hint: one thing to try, empty when passed.
        where: the place in the learner's code, ``file:line``.
        data: figures, plain values only.
        symptom: what was seen without what it means, for a reader who is to find that out.
        below_top: passed, with a higher rung to reach; ``detail`` says what is in the way.
    """

    name: str
    passed: bool | None
    summary: str
    detail: str = ""
    hint: str = ""
    where: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    symptom: str = ""
    below_top: bool = False

    @property
    def undiagnosed(self) -> StepResult:
        """The step with what was seen, and without the mistake's name, its place and remedy."""
        if self.passed is False:
            summary = self.symptom or "fails; what exactly is for you to find out"
            # words and figures of tools may stay; sentences of ours would give it away
            return replace(
                self, summary=summary, detail=self.detail if self._plain else "", hint="", where=""
            )
        return replace(self, detail="", hint="", data=_without_causes(self.data))

    @property
    def _plain(self) -> bool:
        """Whether the detail is a tool's own words or figures."""
        return self.name in ("correct", "compiles") and bool(self.symptom)


def _without_causes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of the ladder without the sentences that explain them."""
    return {
        key: {
            name: [rung | {"cause": "", "advice": ""} for rung in value]
            if name == "rungs"
            else value
            for name, value in row.items()
        }
        if isinstance(row, Mapping)
        else row
        for key, row in data.items()
    }


@dataclass(frozen=True)
class Verdict:
    """How far an answer came.

    Attributes:
        exercise: its name.
        title: its title.
        steps: the steps in order, up to the first that failed; then those not judged.
        attempted: False for an untouched scaffold.
        interrupted: Ctrl-C ended the check.
        rung: name of the speed band that was reached, None before ``fast``.
        top_rung: whether that is the highest band, on the leading chip.
        rung_number, rung_count: its place, counted from 1, and how many bands there are.
        next_rung: the next band and the share of the bound it takes, empty at the top.
        predicted: seconds by chip.
        measured_seconds: on a TPU, the measured time; never in place of a prediction.
        output: what the learner's code printed.
        compiler_version: the compiler the last two steps depend on.
        from_cache: the same code passed before, and nothing was run again.
    """

    exercise: str
    title: str
    steps: tuple[StepResult, ...]
    attempted: bool = True
    interrupted: bool = False
    rung: str | None = None
    top_rung: bool = False
    rung_number: int = 0
    rung_count: int = 0
    next_rung: str = ""
    predicted: Mapping[str, float] = field(default_factory=dict)
    measured_seconds: float | None = None
    output: str = ""
    compiler_version: str | None = None
    from_cache: bool = False

    @property
    def highest(self) -> str | None:
        """The last step passed before any failed."""
        name = None
        for step in self.steps:
            if step.passed is False:
                break
            if step.passed:
                name = step.name
        return name

    @property
    def failed(self) -> StepResult | None:
        """The first step that failed."""
        return next((step for step in self.steps if step.passed is False), None)

    @property
    def passed(self) -> bool:
        """Whether nothing failed and everything that can be judged here was judged and passed."""
        return (
            self.attempted
            and not self.interrupted
            and self.failed is None
            and any(step.passed for step in self.steps)
        )

    @property
    def at_top(self) -> bool:
        """All five passed, with the highest rung on the leading chip."""
        return self.passed and self.top_rung and all(step.passed for step in self.steps)

    @property
    def unavailable(self) -> tuple[StepResult, ...]:
        """Steps that this machine cannot judge."""
        if self.failed is not None or not self.attempted or self.interrupted:
            return ()
        return tuple(step for step in self.steps if step.passed is None)

    @property
    def undiagnosed(self) -> Verdict:
        """The verdict with symptoms only; see :attr:`StepResult.undiagnosed`."""
        return replace(self, steps=tuple(step.undiagnosed for step in self.steps))

    def step(self, name: str) -> StepResult:
        """The step of that name.

        Raises:
            KeyError: there is no such step.
        """
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    @property
    def headline(self) -> str:
        """One line that says it all."""
        if not self.attempted:
            return f"{self.exercise}: not attempted"
        if self.interrupted:
            return f"{self.exercise}: interrupted; nothing was lost, check again when you like"
        failed = self.failed
        if failed is not None:
            return f"{self.exercise}: {failed.name} failed"
        names = [step.name for step in self.steps if step.passed]
        if len(names) == len(STEPS):
            if self.next_rung:
                return (
                    f"{self.exercise}: passed, not yet at the top: rung {self.rung_number} of "
                    f"{self.rung_count}, {self.rung}; next: {self.next_rung}"
                )
            top = f" at the top, rung {self.rung_number} of {self.rung_count}"
            at = top if self.top_rung and self.rung_count > 1 else ""
            rung = f": {self.rung}" if self.rung else ""
            return f"{self.exercise}: all five passed{at}{rung}"
        rest = "; the rest is not available here" if self.unavailable else ""
        return f"{self.exercise}: passed {', '.join(names)}{rest}"

    def to_json(self, **options: Any) -> str:
        """The verdict as JSON text; ``options`` go to :func:`json.dumps`."""
        return json.dumps(self.to_dict(), **options)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as plain values."""
        failed = self.failed
        return {
            "exercise": self.exercise,
            "attempted": self.attempted,
            "interrupted": self.interrupted,
            "passed": self.passed,
            "highest": self.highest,
            "failed": failed.name if failed else None,
            "rung": self.rung,
            "top_rung": self.top_rung,
            "rung_number": self.rung_number,
            "rung_count": self.rung_count,
            "next_rung": self.next_rung,
            "predicted_seconds": dict(self.predicted),
            "measured_seconds": self.measured_seconds,
            "compiler_version": self.compiler_version,
            "steps": [
                {
                    "name": step.name,
                    "answer": _ANSWERS[step.passed],
                    "summary": step.summary,
                    "detail": step.detail,
                    "hint": step.hint,
                    "where": step.where,
                    "data": dict(step.data),
                    "below_top": step.below_top,
                }
                for step in self.steps
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], title: str) -> Verdict:
        """The reverse of :meth:`to_dict`."""
        answers = {text: value for value, text in _ANSWERS.items()}
        return cls(
            exercise=data["exercise"],
            title=title,
            steps=tuple(
                StepResult(
                    step["name"],
                    answers[step["answer"]],
                    step["summary"],
                    step["detail"],
                    step["hint"],
                    step["where"],
                    step["data"],
                    below_top=step["below_top"],
                )
                for step in data["steps"]
            ),
            attempted=data["attempted"],
            interrupted=data["interrupted"],
            rung=data["rung"],
            top_rung=data["top_rung"],
            rung_number=data["rung_number"],
            rung_count=data["rung_count"],
            next_rung=data["next_rung"],
            predicted=data["predicted_seconds"],
            measured_seconds=data["measured_seconds"],
            compiler_version=data["compiler_version"],
        )

    def __str__(self) -> str:
        from tpulab.grading.render import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from tpulab.grading.render import as_html

        return as_html(self)

    def _ipython_display_(self) -> None:
        from tpulab.grading.display import show_once

        show_once(self)
