"""What each lab asks: its exercises with their points, from the released notebook's metadata.

Points always come from the release. A learner's copy has them as well, where they can be edited.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tpulab.classroom.submissions.reading import Cell, Submission, cells_of
from tpulab.errors import UnknownNameError
from tpulab.exercises import exercises

_CHECK = "-check"


@dataclass(frozen=True)
class Task:
    """One exercise of a lab.

    Attributes:
        exercise: its name, such as ``"matmul.tiled"``.
        grade_id: of the cell that is written.
        check_id: of the cell below it that checks it, empty when the lab has none.
        points: for an answer at the top rung.
    """

    exercise: str
    grade_id: str
    check_id: str
    points: float

    @property
    def function(self) -> str:
        """The function to write."""
        return self.exercise.partition(".")[2]


@dataclass(frozen=True)
class ByHand:
    """A question that a person grades."""

    grade_id: str
    points: float
    blank: str


@dataclass(frozen=True)
class LabSpec:
    """One released lab.

    Attributes:
        name: such as ``"10_matmul_ladder"``.
        releases: the digests that copies carry: of the released notebook, and of the solved one.
        tasks: its exercises in order.
        by_hand: questions with points that no machine can grade.
        cells: the released cells.
    """

    name: str
    releases: tuple[str, ...]
    tasks: tuple[Task, ...]
    by_hand: tuple[ByHand, ...]
    cells: tuple[Cell, ...]

    @property
    def points(self) -> float:
        """Points that the machine gives at most."""
        return sum(task.points for task in self.tasks)


@cache
def lab_specs() -> dict[str, LabSpec]:
    """All released labs by name.

    Raises:
        LabError: the labs are missing from this installation.
    """
    from tpulab.classroom.lab import labs_folder

    found = {}
    folder = labs_folder()
    for path in sorted(folder.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        found[path.stem] = spec_of(notebook, path.stem)
        solved = folder.parent / "solutions" / path.name
        with contextlib.suppress(OSError, ValueError):
            also = _release(json.loads(solved.read_text(encoding="utf-8")))
            found[path.stem] = replace(
                found[path.stem], releases=(*found[path.stem].releases, also)
            )
    return found


def _release(notebook: Mapping[str, Any]) -> str:
    return str(notebook.get("metadata", {}).get("tpulab", {}).get("release", ""))


def spec_of(notebook: Mapping[str, Any], name: str) -> LabSpec:
    """What a released notebook asks."""
    cells, _ = cells_of(notebook)
    known = {exercise.name for exercise in exercises()}
    tasks, by_hand = [], []
    for cell in cells:
        if cell.points is None:
            continue
        base = cell.grade_id.removesuffix(_CHECK)
        exercise = base.replace("-", ".", 1)
        if base != cell.grade_id and exercise in known:
            tasks.append(Task(exercise, base, cell.grade_id, cell.points))
        else:
            by_hand.append(ByHand(cell.grade_id, cell.points, cell.source))
    return LabSpec(name, (_release(notebook),), tuple(tasks), tuple(by_hand), cells)


def find_lab(name: str) -> LabSpec:
    """A lab by its name or number.

    Raises:
        UnknownNameError: there is none.
    """
    known = lab_specs()
    for candidate in (name, *(full for full in known if full[:2] == name)):
        if candidate in known:
            return known[candidate]
    raise UnknownNameError("lab", name, known)


def lab_of(submission: Submission) -> LabSpec | None:
    """The lab that a submission answers, None when nothing in it tells.

    What the copy says of itself counts first, then the exercises its cells are named after, then
    the functions it defines, and last the name of the file.
    """
    known = lab_specs()
    if submission.claimed_lab in known:
        return known[submission.claimed_lab]
    ids = {cell.grade_id for cell in submission.cells if cell.grade_id}
    best = _most(
        (spec.name, sum(bool({task.grade_id, task.check_id} & ids) for task in spec.tasks))
        for spec in known.values()
    )
    if best is None:
        text = "\n".join(cell.source for cell in submission.cells)
        best = _most(
            (spec.name, sum(f'"{task.exercise}"' in text for task in spec.tasks))
            for spec in known.values()
        ) or _most(
            (spec.name, sum(f"def {task.function}(" in text for task in spec.tasks))
            for spec in known.values()
        )
    if best is None:
        stem = submission.path.stem
        best = next((name for name in known if name in stem), None)
    return known[best] if best else None


def _most(counts: Iterable[tuple[str, int]]) -> str | None:
    """The one name with the highest count; None when there is none or more than one."""
    ranked = Counter(dict(counts)).most_common(2)
    if not ranked or ranked[0][1] == 0:
        return None
    if len(ranked) > 1 and ranked[1][1] == ranked[0][1]:
        return None
    return ranked[0][0]
