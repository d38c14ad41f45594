"""One learner's function for each exercise, as the source of a module of its own."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tpulab.classroom.submissions.labs import LabSpec, Task
from tpulab.classroom.submissions.reading import Cell, Submission
from tpulab.classroom.submissions.slicing import BrokenCell, Slicer, Unit, units_of

_PROVIDED = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_FENCE = re.compile(r"^\s*```(?:python|py)?\s*\n(.*?)^\s*```\s*$", re.S | re.M)


@dataclass(frozen=True)
class Piece:
    """Lines of the submission that stand in an answer's module.

    Attributes:
        cell: the cell they come from; None for lines that the lab's own release provides.
        first_line: of the piece in that cell.
        text: the lines.
    """

    cell: Cell | None
    first_line: int
    text: str

    @property
    def last_line(self) -> int:
        """Of the piece in its cell."""
        return self.first_line + self.text.count("\n")


@dataclass(frozen=True)
class Answer:
    """What a submission says to one exercise.

    Attributes:
        task: the exercise.
        state: ``"written"`` (to be judged), ``"untouched"`` or ``"missing"``.
        function: the name that the answer goes by in ``pieces``.
        pieces: the code, in the order in which it runs.
        notes: sentences on what was found otherwise than the lab left it.
    """

    task: Task
    state: str
    function: str
    pieces: tuple[Piece, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The module's text."""
        return "\n\n".join(piece.text for piece in self.pieces) + "\n"

    def origin(self, line: int) -> tuple[Cell | None, int] | None:
        """(cell, line in it) of a line of :attr:`source`."""
        start = 1
        for piece in self.pieces:
            height = piece.text.count("\n") + 1
            if start <= line < start + height:
                return piece.cell, piece.first_line + line - start
            start += height + 1
        return None


class Answers:
    """Finds the answers in one submission."""

    def __init__(self, submission: Submission, lab: LabSpec, *, is_release: bool = False) -> None:
        self.submission = submission
        self.lab = lab
        self.is_release = is_release
        self.notes: list[str] = []
        self.broken: list[BrokenCell] = []
        self._retyped: dict[int, str] = {}
        wanted = {task.grade_id for task in lab.tasks}
        units: list[Unit] = []
        for cell in submission.cells:
            if cell.kind != "code" and not (cell.grade_id in wanted and _as_code(cell)):
                continue
            if cell.kind != "code":
                self._retyped[cell.number] = cell.kind
                cell = _as_code(cell) or cell
            found = units_of(cell)
            if isinstance(found, BrokenCell):
                self.broken.append(found)
            else:
                units += found
        self.units = tuple(units)
        self._note_cells()

    @cached_property
    def _released(self) -> Answers:
        """The release's own cells, read the same way."""
        blank = Submission(Path(self.lab.name), "notebook", "", self.lab.cells)
        return Answers(blank, self.lab, is_release=True)

    def all(self) -> list[Answer]:
        """An answer for every exercise of the lab, in its order."""
        return [self.answer(task) for task in self.lab.tasks]

    def answer(self, task: Task) -> Answer:
        """What there is for one exercise."""
        notes: list[str] = []
        end = self._end(task)
        function, position = self._definition(task, end, notes)
        broken = self._broken_definition(task.function)
        if broken is not None and (position is None or self._is_blank(position, task)):
            cell = broken.cell
            notes.append(f"{named(cell)} is not valid Python ({broken.message})")
            piece = Piece(cell, 1, cell.source)
            return Answer(task, "written", task.function, (piece,), tuple(notes))
        if position is None:
            what = "its cell is gone and " if not self._has(task.grade_id) else ""
            notes.append(f"{what}no cell defines {task.function}: nothing to grade")
            return Answer(task, "missing", task.function, (), tuple(notes))
        if not self._has(task.grade_id) and self.submission.kind == "notebook":
            where = named(self.units[position].cell)
            notes.append(f"the lab's cell is gone; {function} was found in {where}")
        retyped = self._retyped.get(self.units[position].cell.number)
        if retyped:
            where = named(self.units[position].cell)
            notes.append(
                f"{where} had been turned into a {retyped} cell; its text was read as code"
            )
        if position >= end:
            end = len(self.units)
        slicer = Slicer(self.units, end)
        slicer.take(position)
        pieces = self._pieces(slicer, notes)
        answer = Answer(task, "written", function, tuple(pieces), tuple(notes))
        if self._shapes(slicer) == self._released_shapes(task):
            return Answer(task, "untouched", function, answer.pieces, tuple(notes))
        return answer

    # ---- which definition

    def _end(self, task: Task) -> int:
        """Position up to which a run from the top has come when the exercise is checked."""
        checks = re.compile(
            rf"check\(\s*['\"]{re.escape(task.exercise)}['\"]\s*,\s*{task.function}\b"
        )
        own = [n for n, unit in enumerate(self.units) if unit.cell.grade_id == task.check_id]
        others = [n for n, unit in enumerate(self.units) if checks.search(unit.text)]
        # the lab's own check cell is the one that counts, as for nbgrader
        found = (own if task.check_id else []) or others
        end = found[-1] + 1 if found else None
        if end is None:
            # as if it were checked right below the last definition
            bound = [n for n, unit in enumerate(self.units) if task.function in unit.binds]
            end = len(self.units)
            if bound:
                cell = self.units[bound[-1]].cell.number
                end = 1 + max(n for n, unit in enumerate(self.units) if unit.cell.number == cell)
                if self.submission.kind == "module":
                    end = len(self.units)
        return end

    def _definition(self, task: Task, end: int, notes: list[str]) -> tuple[str, int | None]:
        """(name, position) of the definition that counts."""
        bound = [n for n, unit in enumerate(self.units) if task.function in unit.binds]
        written = [n for n in bound if not self._is_blank(n, task)]
        before = [n for n in written if n < end]
        if len(written) > 1:
            places = ", ".join(dict.fromkeys(str(self.units[n].cell.number) for n in written))
            if "," in places:
                chosen = self.units[(before or written)[-1]].cell
                notes.append(
                    f"{task.function} is defined in cells {places}; {named(chosen)} counts, as "
                    "when the cells are run from the top to its check"
                )
        if written and not before:
            notes.append(
                f"{named(self.units[written[-1]].cell)} defines {task.function} below the cell "
                "that checks it"
            )
        if written:
            return task.function, (before or written)[-1]
        other = self._checked_instead(task)
        if other is not None:
            notes.append(
                f"the check names {other[0]} and not {task.function}: {other[0]} was graded"
            )
            return other
        earlier = [n for n in bound if n < end]
        return task.function, next(reversed(earlier or bound), None)

    def _checked_instead(self, task: Task) -> tuple[str, int] | None:
        """Another function that the exercise's own check cell was made to check."""
        call = re.compile(rf"check\(\s*['\"]{re.escape(task.exercise)}['\"]\s*,\s*([A-Za-z_]\w*)")
        for unit in reversed(self.units):
            if unit.cell.grade_id != task.check_id or not task.check_id:
                continue
            found = call.search(unit.text)
            if found and found[1] != task.function:
                bound = [n for n, unit in enumerate(self.units) if found[1] in unit.binds]
                if bound:
                    return found[1], bound[-1]
        return None

    def _is_blank(self, position: int, task: Task) -> bool:
        """Whether a definition is what the lab left to be written."""
        unit = self.units[position]
        cell = [u.shape for u in self.units if u.cell.number == unit.cell.number]
        released = [u for u in self._released.units if u.cell.grade_id == task.grade_id]
        if cell == [u.shape for u in released]:
            return True
        return "NotImplementedError" in unit.text and unit.shape in {u.shape for u in released}

    def _broken_definition(self, function: str) -> BrokenCell | None:
        pattern = re.compile(rf"^def\s+{re.escape(function)}\b", re.M)
        found = [cell for cell in self.broken if pattern.search(cell.cell.source)]
        return found[-1] if found else None

    # ---- what it needs

    def _pieces(self, slicer: Slicer, notes: list[str]) -> list[Piece]:
        star = {n for n, unit in enumerate(self.units) if unit.star}
        future = {n for n, unit in enumerate(self.units) if unit.future}
        missing = {name for name in slicer.missing if name not in _PROVIDED}
        pieces = []
        if missing and not star:
            pieces = self._from_release(missing, notes)
        borrowed = sorted(slicer.borrowed - future)
        if borrowed:
            names = sorted({name for n in borrowed for name in self.units[n].binds})
            cells = sorted({self.units[n].cell.number for n in borrowed})
            notes.append(
                f"{', '.join(names[:4])} is defined further down, in cell "
                f"{', '.join(map(str, cells))}: run from the top, the notebook would not find it"
            )
        rest = sorted((slicer.chosen | star) - set(borrowed) - future)
        order = [*borrowed, *rest]
        code = [Piece(u.cell, u.first_line, u.text) for u in (self.units[n] for n in order)]
        # Python wants these first in a file
        first = [
            Piece(self.units[n].cell, self.units[n].first_line, self.units[n].text)
            for n in sorted(future)
        ]
        return [*first, *pieces, *code]

    def _from_release(self, missing: set[str], notes: list[str]) -> list[Piece]:
        """Imports and constants of the lab whose cell the learner's copy has lost."""
        released = self._released
        answered = {task.grade_id for task in self.lab.tasks}
        slicer = Slicer(released.units, len(released.units))
        found = set()
        for name in sorted(missing):
            places = [
                n for n in slicer.bindings(name) if released.units[n].cell.grade_id not in answered
            ]
            if places:
                found.add(name)
                slicer.take(places[-1])
        if found:
            notes.append(
                f"no cell defines {', '.join(sorted(found))}; the lab's own cell was used, "
                "for it is missing here"
            )
        return [
            Piece(None, released.units[n].first_line, released.units[n].text)
            for n in sorted(slicer.chosen)
        ]

    @staticmethod
    def _shapes(slicer: Slicer) -> list[str]:
        units = (slicer.units[n] for n in sorted(slicer.chosen))
        return [unit.shape for unit in units if unit.kind != "import"]

    def _released_shapes(self, task: Task) -> list[str] | None:
        released = self._released
        end = released._end(task)
        bound = [n for n in range(len(released.units)) if task.function in released.units[n].binds]
        before = [n for n in bound if n < end] or bound
        if not before:
            return None
        slicer = Slicer(released.units, end)
        slicer.take(before[-1])
        return self._shapes(slicer)

    # ---- the notebook as a whole

    def _has(self, grade_id: str) -> bool:
        return any(cell.grade_id == grade_id for cell in self.submission.cells)

    def _note_cells(self) -> None:
        """Sentences on cells that are not as the lab left them."""
        submission, lab = self.submission, self.lab
        if self.is_release or submission.kind != "notebook":
            return
        if submission.claimed_release and submission.claimed_release not in lab.releases:
            self.notes.append(
                "this copy was made from another release of the lab; points are those of the "
                "release here"
            )
        for broken in self.broken:
            self.notes.append(
                f"{named(broken.cell)} is not valid Python (line {broken.line}: "
                f"{broken.message}); the other cells were read"
            )
        ids = [cell.grade_id for cell in submission.cells if cell.grade_id]
        ordered = [task.grade_id for task in lab.tasks]
        for name in dict.fromkeys(ids):
            if ids.count(name) > 1:
                self.notes.append(f"{ids.count(name)} cells are named {name}")
        firsts = [name for name in dict.fromkeys(ids) if name in ordered]
        if firsts != [name for name in ordered if name in firsts]:
            self.notes.append("the exercises' cells stand in another order than in the lab")
        self.notes += submission.notes


def named(cell: Cell) -> str:
    """How a cell is spoken of."""
    return f"cell {cell.number} ({cell.grade_id})" if cell.grade_id else f"cell {cell.number}"


def _as_code(cell: Cell) -> Cell | None:
    """A cell of text whose text is Python after all, as code."""
    for source in (cell.source, "\n".join(_FENCE.findall(cell.source))):
        candidate = Cell(cell.number, "code", source, cell.grade_id, cell.points, cell.first_line)
        found = units_of(candidate)
        if not isinstance(found, BrokenCell) and any(unit.kind == "definition" for unit in found):
            return candidate
    return None
