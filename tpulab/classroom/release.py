"""Releases labs: one reviewed Python source becomes the learner's and the solved notebook.

The source of a lab is ``solutions/NN_name.py`` in py:percent form. It uses nbgrader's markers and
cell metadata (schema version 3), so that a class that grades with nbgrader can take it as it is.
From it this module writes

``labs/NN_name.ipynb``
    what learners get: the text between ``### BEGIN SOLUTION`` and ``### END SOLUTION`` replaced by
    a scaffold that runs, hidden tests gone, no outputs;
``solutions/NN_name.ipynb``
    every cell as written, and the outputs of the last execution, which nbval compares.

Both are a pure function of the source: cell ids come from the exercise or the heading that a cell
stands under, metadata has a fixed order, and nothing of the machine that wrote them goes in.

Reading py:percent needs jupytext, which belongs to the people who write labs and to the tests. A
learner's installation only ever sees the finished notebooks.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpulab.errors import TpulabError, UnknownNameError, UsageError

_BEGIN_SOLUTION = "### BEGIN SOLUTION"
_END_SOLUTION = "### END SOLUTION"
_BEGIN_HIDDEN = "### BEGIN HIDDEN TESTS"
_END_HIDDEN = "### END HIDDEN TESTS"
_HIDDEN_TAG = "hidden-test"
_NBGRADER_KEYS = {
    "grade",
    "grade_id",
    "locked",
    "points",
    "schema_version",
    "solution",
    "task",
}
_WRITE_HERE = "*Write your answer here.*"
_KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
_GRADE_ID = re.compile(r"[A-Za-z0-9_-]+")
_SOURCE_NAME = re.compile(r"(\d\d)_[a-z0-9_]+")

Cell = dict[str, Any]
Notebook = dict[str, Any]


class ReleaseError(TpulabError):
    """A lab's source that cannot be released as it stands."""


@dataclass(frozen=True)
class Lab:
    """One lab of the repository.

    Attributes:
        name: file name without suffix, such as ``"10_matmul_ladder"``.
        source: the py:percent file.
        solution: the solved notebook beside it.
        release: the learner's notebook.
    """

    name: str
    source: Path
    solution: Path
    release: Path

    @property
    def number(self) -> str:
        """The two digits that order the labs."""
        return self.name[:2]


@dataclass
class ReleaseReport:
    """What a release wrote, or would have written.

    Attributes:
        written: files that were new or different, relative to the repository.
        unchanged: files that were already as they should be.
        executed: labs whose solutions were run to refresh the stored outputs, with seconds.
    """

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    executed: dict[str, float] = field(default_factory=dict)

    def summary(self) -> str:
        """One line for a terminal."""
        text = f"{len(self.written)} written, {len(self.unchanged)} unchanged"
        if self.written:
            text += ": " + ", ".join(self.written)
        for name, seconds in self.executed.items():
            text += f"\n{name} ran in {seconds:.0f} s"
        return text


def repository_root(start: Path | None = None) -> Path:
    """The clone that this package is imported from.

    Raises:
        UsageError: tpulab was installed from a wheel, which has no lab sources.
    """
    root = start or Path(__file__).resolve().parents[2]
    if not (root / "solutions").is_dir():
        raise UsageError(
            "labs are released from a clone of the repository, and this is not one",
            where=str(root),
            hint="run the command inside the clone, after `python3 -m tpulab lab` has set it up",
        )
    return root


def labs(root: Path | None = None, names: Iterable[str] | None = None) -> tuple[Lab, ...]:
    """The labs of a clone in their order.

    Args:
        root: the clone; by default the one this package is imported from.
        names: only these, each given in full or by its number (``"10"``).

    Raises:
        UnknownNameError: a name that no lab has.
    """
    root = repository_root(root)
    found = tuple(
        Lab(
            path.stem,
            path,
            path.with_suffix(".ipynb"),
            root / "labs" / f"{path.stem}.ipynb",
        )
        for path in sorted((root / "solutions").glob("*.py"))
        if _SOURCE_NAME.fullmatch(path.stem)
    )
    if names is None:
        return found
    chosen = []
    for name in names:
        match = [lab for lab in found if name in (lab.name, lab.number)]
        if not match:
            raise UnknownNameError("lab", name, [lab.name for lab in found])
        chosen.extend(match)
    return tuple(chosen)


def solution_notebook(lab: Lab) -> Notebook:
    """The solved notebook without outputs.

    Raises:
        ReleaseError: unbalanced markers, markers without nbgrader metadata, two cells of one name.
    """
    cells = _read_source(lab.source)
    _name_cells(cells, lab)
    for cell in cells:
        _check_cell(cell, lab)
    return _notebook(cells, lab)


def released_notebook(lab: Lab) -> Notebook:
    """The learner's notebook: solutions replaced by scaffolds, hidden tests left out.

    Raises:
        ReleaseError: as for `solution_notebook`.
    """
    cells = []
    for cell in solution_notebook(lab)["cells"]:
        if _HIDDEN_TAG in cell["metadata"].get("tags", ()):
            continue
        if cell["cell_type"] == "code":
            cell = dict(cell, source=scaffold(cell["source"]))
            if not cell["source"].strip():
                continue
        elif cell["metadata"].get("nbgrader", {}).get("solution"):
            cell = dict(cell, source=_WRITE_HERE)
        cells.append(cell)
    return _notebook(cells, lab)


def scaffold(source: str) -> str:
    """Take the solutions and hidden tests out of a cell and leave code that runs.

    A block inside a function becomes ``raise NotImplementedError``, which a check reports as *not
    attempted*; a block at the left margin disappears, because the line above it already gives its
    names a value (``answer = None``).

    Args:
        source: a cell's code with nbgrader's markers.

    Returns:
        the code a learner starts from.

    Raises:
        ReleaseError: a marker without its partner.
    """
    kept: list[str] = []
    inside: str | None = None
    for line in source.split("\n"):
        text = line.strip()
        if text in (_BEGIN_SOLUTION, _BEGIN_HIDDEN):
            if inside:
                raise ReleaseError(f"{text!r} inside a block that has not ended: {inside!r}")
            inside = text
            indent = line[: len(line) - len(line.lstrip())]
            if text == _BEGIN_SOLUTION and indent:
                kept.append(f"{indent}raise NotImplementedError")
        elif text in (_END_SOLUTION, _END_HIDDEN):
            if inside is None or inside.split()[2:] != text.split()[2:]:
                raise ReleaseError(f"{text!r} ends no block that was begun")
            inside = None
        elif inside is None:
            kept.append(line)
    if inside:
        raise ReleaseError(f"{inside!r} has no end in its cell")
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(kept)).strip("\n")


def to_json(notebook: Notebook) -> str:
    """The notebook as Jupyter itself writes it: sorted keys, one space, a newline at the end."""
    lines = copy.deepcopy(notebook)
    for cell in lines["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
    return json.dumps(lines, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def release(
    root: Path | None = None,
    names: Sequence[str] | None = None,
    *,
    execute: bool = False,
    check: bool = False,
) -> ReleaseReport:
    """Write the notebooks of some or all labs from their sources.

    A solved notebook whose code did not change keeps its outputs; one that did change loses them
    until it is executed.

    Args:
        root: the clone; by default the one this package is imported from.
        names: labs to release, in full or by number; all by default.
        execute: run the solutions and store their outputs (minutes, needs the TPU compiler).
        check: write nothing; the report says what would change.

    Raises:
        ReleaseError: a source that cannot be released, or a solution that failed when executed.
        UnknownNameError: a name that no lab has.
    """
    root = repository_root(root)
    report = ReleaseReport()
    for lab in labs(root, names):
        solved = solution_notebook(lab)
        if execute and not check:
            solved, report.executed[lab.name] = _execute(solved, lab)
        else:
            solved = _with_stored_outputs(solved, lab.solution)
        for path, notebook in ((lab.release, released_notebook(lab)), (lab.solution, solved)):
            text = to_json(notebook)
            name = path.relative_to(root).as_posix()
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                report.unchanged.append(name)
                continue
            report.written.append(name)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return report


def _read_source(path: Path) -> list[Cell]:
    try:
        import jupytext
    except ImportError as error:
        raise ReleaseError(
            "reading a lab's source needs jupytext, which is not installed here",
            where=str(path),
            hint="`python3 -m tpulab test` installs what authors need",
        ) from error
    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    cells = []
    for cell in notebook.cells:
        metadata = dict(cell.metadata)
        metadata.pop("lines_to_next_cell", None)
        source = cell.source.rstrip("\n")
        cells.append({"cell_type": cell.cell_type, "metadata": metadata, "source": source})
    return cells


def _name_cells(cells: list[Cell], lab: Lab) -> None:
    """Give every cell an id that stays when other cells come and go."""
    section = lab.name.partition("_")[2]
    taken: dict[str, int] = {}
    for cell in cells:
        heading = re.match(r"#+ +(.+)", cell["source"]) if cell["cell_type"] == "markdown" else None
        if heading:
            section = heading.group(1)
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        name = re.sub(r"[^a-z0-9_]+", "-", (grade_id or section).lower()).strip("-")[:48]
        taken[name] = taken.get(name, 0) + 1
        if grade_id and taken[name] > 1:
            raise ReleaseError(f"two cells are named {grade_id!r}", where=str(lab.source))
        cell["id"] = name if taken[name] == 1 else f"{name}-{taken[name]}"


def _check_cell(cell: Cell, lab: Lab) -> None:
    where = f"{lab.source}, cell {cell['id']}"
    marked = _BEGIN_SOLUTION in cell["source"] or _BEGIN_HIDDEN in cell["source"]
    nbgrader = cell["metadata"].get("nbgrader")
    if marked and nbgrader is None:
        raise ReleaseError(
            "a cell has markers but no nbgrader metadata, which nbgrader refuses", where=where
        )
    if nbgrader is not None:
        missing = _NBGRADER_KEYS - {"points"} - set(nbgrader)
        if missing or set(nbgrader) - _NBGRADER_KEYS or nbgrader["schema_version"] != 3:
            raise ReleaseError("nbgrader metadata is not of schema version 3", where=where)
        if not _GRADE_ID.fullmatch(nbgrader["grade_id"]):
            raise ReleaseError("nbgrader takes letters, digits, - and _ in a grade_id", where=where)
        if nbgrader["grade"] != ("points" in nbgrader):
            raise ReleaseError("a graded cell has points, and only a graded cell", where=where)
    if cell["cell_type"] == "code":
        try:
            scaffold(cell["source"])
        except ReleaseError as error:
            raise ReleaseError(error.what, where=where) from None


def _notebook(cells: Iterable[Cell], lab: Lab) -> Notebook:
    complete = []
    for cell in cells:
        cell = {key: cell[key] for key in ("cell_type", "id", "metadata", "source")}
        if cell["cell_type"] == "code":
            cell.update(execution_count=None, outputs=[])
        complete.append(cell)
    digest = hashlib.sha256("\0".join(cell["source"] for cell in complete).encode()).hexdigest()
    metadata = {
        "kernelspec": dict(_KERNELSPEC),
        "language_info": {"name": "python"},
        "tpulab": {"lab": lab.name, "release": digest[:16]},
    }
    return {"cells": complete, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _with_stored_outputs(notebook: Notebook, path: Path) -> Notebook:
    """Carry outputs over from the file, if the code that made them is the code there is now."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return notebook
    same_code = [
        (cell["id"], "".join(cell["source"]))
        for cell in stored.get("cells", ())
        if cell["cell_type"] == "code"
    ] == [(cell["id"], cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if not same_code:
        return notebook
    outputs = {cell["id"]: cell for cell in stored["cells"]}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = outputs[cell["id"]]["outputs"]
            cell["execution_count"] = outputs[cell["id"]]["execution_count"]
    return notebook


def _execute(notebook: Notebook, lab: Lab) -> tuple[Notebook, float]:
    """Run a solution and keep what its cells put out, without a trace of when and where."""
    import tempfile

    from tpulab.classroom.notebooks import environment_variable, run_notebook

    with tempfile.TemporaryDirectory(prefix="tpulab-release-") as folder:
        unsolved = Path(folder) / f"{lab.name}.ipynb"
        unsolved.write_text(to_json(notebook), encoding="utf-8")
        # the table of attempts must show this run's and nobody else's
        with environment_variable("TPULAB_HOME", str(Path(folder) / "home")):
            run = run_notebook(
                unsolved, Path(folder) / "run.ipynb", working_folder=lab.solution.parent
            )
        if run.error:
            raise ReleaseError(
                f"the solution of {lab.name} fails in cell {run.error.cell_id}",
                where=str(lab.source),
                why=run.error.message,
            )
        executed = json.loads((Path(folder) / "run.ipynb").read_text(encoding="utf-8"))
    outputs = {cell["id"]: cell for cell in executed["cells"]}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            ran = outputs[cell["id"]]
            cell["outputs"] = [_plain_output(output) for output in ran["outputs"]]
            cell["execution_count"] = ran["execution_count"]
    return notebook, run.seconds


def _plain_output(output: dict[str, Any]) -> dict[str, Any]:
    # widget state belongs to a running kernel; the text and SVG beside it are what a file can keep
    data = output.get("data")
    if data and "application/vnd.jupyter.widget-view+json" in data and len(data) > 1:
        data = {k: v for k, v in data.items() if k != "application/vnd.jupyter.widget-view+json"}
        return dict(output, data=data)
    return output
