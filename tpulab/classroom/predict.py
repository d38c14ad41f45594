"""The learner's numbers: written down before anything runs, shown beside the outcome at the end."""

from __future__ import annotations

import html
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpulab.classroom.showing import Sentence, is_a_scaffold, reason
from tpulab.errors import UsageError

#: How near a prediction must come to count, unless a lab says otherwise.
TOLERANCE = 0.10

Number = float | int
Outcome = Number | Callable[[], Number]


@dataclass(frozen=True)
class Comparison:
    """Predictions beside what came out.

    Attributes:
        rows: question, prediction (None when none was made), outcome, within the tolerance?
            An outcome is shown once there is a prediction to set beside it; it is None while
            the kernel it comes from does not run.
        tolerance: relative distance that counts as right; 0 for counts.
    """

    rows: tuple[tuple[str, Number | None, Number | None, bool | None], ...]
    tolerance: float

    @property
    def made(self) -> int:
        """How many predictions were made at all."""
        return sum(guess is not None for _, guess, _, _ in self.rows)

    @property
    def right(self) -> int:
        """How many came near enough."""
        return sum(bool(near) for *_, near in self.rows)

    def _cells(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                question,
                _text(guess),
                "not yet"
                if guess is not None and outcome is None
                else _text(None if guess is None else outcome),
                _nearness(question, guess, outcome, near),
            )
            for question, guess, outcome, near in self.rows
        ]

    def _heading(self) -> tuple[str, str, str, str]:
        return ("", "you said", "it is", self._measure())

    def _measure(self) -> str:
        return f"within {self.tolerance:.0%}" if self.tolerance else "exactly right"

    def __str__(self) -> str:
        table = [self._heading(), *self._cells()]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in table
        ]
        return "\n".join([*lines, self._sentence()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in self._heading())
        body = "".join(
            f'<tr><th scope="row" style="text-align:left">{html.escape(row[0])}</th>'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self._cells()
        )
        return f"<table><tr>{head}</tr>{body}</table><p>{html.escape(self._sentence())}</p>"

    def _sentence(self) -> str:
        if not self.made:
            return (
                "not attempted: write your predictions into the cell near the top, run it, "
                "and then this one"
            )
        text = f"{self.right} of {len(self.rows)} {self._measure()}"
        if self.made < len(self.rows):
            text += "; an outcome shows once its prediction is written down"
        if any(guess is not None and outcome is None for _, guess, outcome, _ in self.rows):
            text += "; not yet: the outcome needs a kernel that runs, written above"
        return text


class Predictions:
    """Numbers that a learner commits to.

    Args:
        answers: question (with its unit) → number, or None while there is none.
        tolerance: relative distance from the outcome that counts as right.

    An answer that is not a number counts as none, and the object says so when it is shown: a slip
    here must not keep the cells below from running.
    """

    def __init__(
        self, answers: Mapping[str, Number | None], *, tolerance: float = TOLERANCE
    ) -> None:
        self._problems = {
            question: f"{question}: {_shown(answer)} is not a number; write one, or None while "
            "you think"
            for question, answer in answers.items()
            if not _is_an_answer(answer)
        }
        self._answers = {
            question: None if question in self._problems else answer
            for question, answer in answers.items()
        }
        self.tolerance = tolerance

    @property
    def answers(self) -> dict[str, Number | None]:
        """The answers as they stand."""
        return dict(self._answers)

    def compare(
        self, outcome: Mapping[str, Outcome] | Callable[[], Mapping[str, Outcome]]
    ) -> Comparison | str:
        """Put the outcome beside the predictions.

        Args:
            outcome: question → number, or a function that computes it from code that the learner
                has written by then; or such a function for all questions at once. The function
                of a question is called only if there is a prediction.

        Returns:
            the comparison, in which a question waits while its function's code does not run; a
            sentence while that of all questions does not.

        Raises:
            UsageError: the outcome answers other questions than were asked.
        """
        if callable(outcome):
            try:
                outcome = outcome()
            except Exception as error:  # noqa: BLE001 - whatever a learner wrote
                if not is_a_scaffold(error):
                    return Sentence(
                        f"not yet: the outcome needs a kernel that runs ({reason(error)})"
                    )
                return Sentence("not attempted: the outcome needs the kernel you have yet to write")
        if set(outcome) != set(self._answers):
            raise UsageError(
                "outcome and predictions have different questions",
                why=", ".join(sorted(set(outcome) ^ set(self._answers))),
            )
        rows = []
        for question, guess in self._answers.items():
            number = _computed(outcome[question], guess)
            rows.append((question, guess, number, self._near(guess, number)))
        return Comparison(tuple(rows), self.tolerance)

    def form(self) -> object:
        """The questions as fields to fill in, for those who like that better than editing a cell.

        Returns:
            an ipywidgets form; without ipywidgets, a sentence.
        """
        try:
            import ipywidgets
        except ImportError:
            return Sentence("forms need ipywidgets; edit the numbers in the cell above")
        fields = []
        for question, answer in self._answers.items():
            field = ipywidgets.Text(
                value="" if answer is None else f"{answer:g}",
                description=question,
                placeholder="a number",
                style={"description_width": "initial"},
                layout={"width": "32em"},
            )
            field.observe(lambda change, q=question: self._take(q, change["new"]), names="value")
            fields.append(field)
        return ipywidgets.VBox(fields)

    def _take(self, question: str, text: str) -> None:
        try:
            self._answers[question] = float(text) if text.strip() else None
        except ValueError:
            self._answers[question] = None

    def _near(self, guess: Number | None, outcome: Number | None) -> bool | None:
        if guess is None or outcome is None:
            return None
        return abs(guess - outcome) <= self.tolerance * abs(outcome)

    def __str__(self) -> str:
        made = [f"{q}: {_text(a)}" for q, a in self._answers.items() if a is not None]
        if self._problems:
            made += [line for q, line in self._problems.items() if self._answers[q] is None]
            return "\n".join(made)
        if not made:
            return "not attempted: write your numbers into the cell above, before you read on"
        return "\n".join(["written down:", *(f"  {line}" for line in made)])

    __repr__ = __str__


def _is_an_answer(answer: object) -> bool:
    if answer is None:
        return True
    if isinstance(answer, bool) or not isinstance(answer, numbers.Real):
        return False
    return math.isfinite(answer)


def _shown(answer: object) -> str:
    """A wrong answer in a sentence, however long it is."""
    text = repr(answer)
    return text if len(text) <= 40 else text[:39] + "…"


def _computed(outcome: Outcome, guess: Number | None) -> Number | None:
    """An outcome; None while its kernel does not run, of which the check tells the reason."""
    if not callable(outcome):
        return outcome
    if guess is None:
        return None
    try:
        return outcome()
    except Exception:  # noqa: BLE001 - the check tells what it is
        return None


def _nearness(
    question: str, guess: Number | None, outcome: Number | None, near: bool | None
) -> str:
    if guess is None or outcome is None or near is None:
        return "–"
    if near:
        return "yes"
    for decimal, binary, factor in (("MB", "MiB", 2**20 / 1e6), ("GB", "GiB", 2**30 / 1e9)):
        if f"({decimal})" in question and abs(guess * factor - outcome) < 0.005 * abs(outcome):
            return f"no: these are {binary}"
    return "no"


def _text(number: Number | None) -> str:
    if number is None:
        return "–"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"
