"""Around the check: hints one by one, solutions, progress, reset, the list of exercises."""

from __future__ import annotations

import ast
import html
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tpulab.errors import TpulabError
from tpulab.exercises import Exercise, exercises, get_exercise
from tpulab.grading.progress_store import State, progress_store


class SolutionLockedError(TpulabError):
    """The solution is shown after passing, or when asked for outright."""


class Text(str):
    """Text that shows itself in a notebook as it is, not as a quoted string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre style='white-space:pre-wrap'>{html.escape(str(self))}</pre>"


def hint(name: str, number: int | None = None) -> Text:
    """The next hint for an exercise; the last one again when all are known.

    Args:
        name: the exercise.
        number: one hint by its number, counted from 1; does not count as asking for the next.

    Raises:
        UnknownNameError: there is no such exercise.
        TpulabError: there is no hint of that number.
    """
    exercise = get_exercise(name)
    total = len(exercise.hints)
    if total == 0:
        return Text(f"{name} has no hints")
    if number is not None:
        if not 1 <= number <= total:
            raise TpulabError(f"{name} has hints 1 to {total}, not {number}")
        return Text(f"hint {number} of {total}: {exercise.hints[number - 1]}")
    store = progress_store()
    shown = min(store.hints_shown(name) + 1, total)
    store.show_hints(name, shown)
    ask = f"{name!r}" if store.state(name).passed else f"{name!r}, reveal=True"
    after = "" if shown < total else f"\nThat was the last one; next: tpulab.solution({ask})"
    return Text(f"hint {shown} of {total}: {exercise.hints[shown - 1]}{after}")


def solution(name: str, reveal: bool = False) -> Text:
    """Source of an exercise's solution, after passing or when ``reveal`` is true.

    Raises:
        UnknownNameError: there is no such exercise.
        SolutionLockedError: not passed yet, and not asked for outright.
        TpulabError: the solutions are not part of this installation.
    """
    exercise = get_exercise(name)
    store = progress_store()
    if not reveal and not store.state(name).passed:
        raise SolutionLockedError(
            f"you have not passed {name} yet",
            hint=f"take a hint first, or ask outright: tpulab.solution({name!r}, reveal=True); "
            f"`tpulab solution {name} --reveal` in a shell",
        )
    source = solution_source(exercise)
    store.show_solution(name)
    return Text(source)


def solution_file(exercise: Exercise) -> Path | None:
    """The file that holds an exercise's solution, None when it is not installed."""
    file = exercise.solution.partition(":")[0]
    package = Path(str(resources.files("tpulab")))
    for folder in (
        package.parent / "solutions",
        package / "solutions",
        package / "classroom" / "solutions",
    ):
        if (folder / file).is_file():
            return folder / file
    return None


def solution_source(exercise: Exercise) -> str:
    """The cell of the solution file that defines the function, imports left out.

    Raises:
        TpulabError: the file is not installed or has no such function.
    """
    file = solution_file(exercise)
    function = exercise.solution.partition(":")[2] or exercise.function_name
    if file is None:
        raise TpulabError(
            f"the solution of {exercise.name} is not installed here",
            hint="it is in the folder solutions/ of a clone of tpulab",
        )
    text = file.read_text("utf-8")
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
            end = node.end_lineno or node.lineno
            # py:percent: the whole cell, with the kernel that stands above the function
            first = next((i + 1 for i in range(start, -1, -1) if lines[i].startswith("# %%")), 0)
            last = next(
                (i for i in range(end, len(lines)) if lines[i].startswith("# %%")), len(lines)
            )
            marks = ("### ", "# TODO(learner)")
            cell = [line for line in lines[first:last] if not line.lstrip().startswith(marks)]
            return "\n".join(cell).strip() + "\n"
    raise TpulabError(f"{file.name} has no function {function}")


def _below_top(exercise: Exercise, state: State) -> bool:
    return state.passed and not state.top_rung and state.rung is not None


def _mark(exercise: Exercise, state: State) -> str:
    if _below_top(exercise, state):
        return "◐ passed"
    return {"passed": "✓ passed", "started": "· started", "open": "  open"}[state.word]


def _reached(exercise: Exercise, state: State) -> str:
    """The best rung with its number, or the highest step."""
    names = [rung.name for rung in exercise.rungs]
    if state.rung in names and len(names) > 1:
        return f"rung {names.index(state.rung) + 1} of {len(names)}: {state.rung}"
    return state.rung or state.highest or ""


@dataclass(frozen=True)
class Progress:
    """How far every exercise is; shows itself as a table.

    Attributes:
        notice: what is wrong with the progress file; it was said when that was found.
    """

    rows: tuple[tuple[Exercise, State], ...]
    notice: str | None = None

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain values, one entry an exercise."""
        return [
            {
                "name": exercise.name,
                "title": exercise.title,
                "state": state.word,
                "attempts": state.attempts,
                "highest": state.highest,
                "rung": state.rung,
                "top_rung": state.top_rung,
                "hints_shown": state.hints_shown,
                "hints": len(exercise.hints),
                "solution_shown": state.solution_shown,
            }
            for exercise, state in self.rows
        ]

    def _cells(self) -> list[tuple[str, str, str, str]]:
        return [
            (exercise.name, _mark(exercise, state), _reached(exercise, state), exercise.title)
            for exercise, state in self.rows
        ]

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max((len(row[i]) for row in cells), default=0) for i in range(3)]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}"
            for row in cells
        ]
        done = sum(state.passed for _, state in self.rows)
        below = sum(_below_top(exercise, state) for exercise, state in self.rows)
        lines.append(
            f"{done} of {len(self.rows)} passed"
            + (f", {below} not at the top yet" if below else "")
        )
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th scope='col' style='text-align:left'>{name}</th>"
            for name in ("exercise", "state", "reached", "")
        )
        body = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in self._cells()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def progress(track: str | None = None) -> Progress:
    """How far every exercise is, in the order in which they are meant to be done.

    Raises:
        UnknownNameError: there is no such track.
    """
    store = progress_store()
    rows = tuple((exercise, store.state(exercise.name)) for exercise in exercises(track))
    return Progress(rows, store.notice)


def attempts(name: str | None = None, track: str | None = None) -> list[dict[str, Any]]:
    """Every recorded attempt, oldest first.

    Keys: ``name``, ``when`` (seconds since 1970), ``passed``, ``highest``, ``failed``, ``rung``,
    ``top_rung``, ``predicted`` (seconds by chip), ``label``, ``learner``.
    """
    return progress_store().attempts(name, track)


@dataclass(frozen=True)
class Climb:
    """The attempts of a track as a table: what each version reached and its predicted times."""

    track: str
    rows: tuple[dict[str, Any], ...]

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                str(row["name"]),
                str(row["label"]),
                _outcome(row),
                row["rung"] or "",
                ", ".join(f"{chip} {1e3 * s:.3g} ms" for chip, s in row["predicted"].items()),
            )
            for row in self.rows
        ]

    def __str__(self) -> str:
        if not self.rows:
            return f"nothing of {self.track} has been checked yet"
        cells = [("exercise", "function", "verdict", "rung", "predicted"), *self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        return "\n".join(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip()
            for row in cells
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{html.escape(str(self))}</p>"
        head = "".join(
            f"<th scope='col' style='text-align:left'>{name}</th>"
            for name in ("exercise", "function", "verdict", "rung", "predicted")
        )
        body = "".join(
            "<tr>"
            + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in self._cells()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _outcome(row: dict[str, Any]) -> str:
    if row["failed"]:
        return f"{row['failed']} failed"
    if row["highest"] != "fast":
        return f"up to {row['highest']}"
    return "all five" if row["top_rung"] or row["rung"] is None else "below the top"


def climb(track: str) -> Climb:
    """The attempts of a track, oldest first, one row for each different outcome of a function.

    Raises:
        UnknownNameError: there is no such track.
    """
    exercises(track)
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in attempts(track=track):
        key = (row["name"], row["label"], row["failed"], tuple(row["predicted"].items()))
        rows.setdefault(key, row)
    return Climb(track, tuple(rows.values()))


def reset(name: str | None = None) -> Text:
    """Forget attempts, hints and the solution of an exercise, or of all of them.

    Raises:
        UnknownNameError: there is no such exercise.
    """
    if name is not None:
        get_exercise(name)
    count = progress_store().reset(name)
    what = name or "all exercises"
    return Text(f"{what}: {count} attempt{'s' if count != 1 else ''} forgotten, hints start anew")
