"""A submitted file as cells. It is only ever read, and any state of it gives a sentence."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulab.errors import TpulabError

#: No lab with all its outputs comes near; a larger file is not read at all.
MAX_FILE_BYTES = 64 << 20
#: The longest cell that is looked at; Python's parser needs about a kilobyte a byte at its worst.
MAX_CELL_CHARACTERS = 200_000
_PERCENT = re.compile(r"^# %%(.*)$")
_PERCENT_ID = re.compile(r'"grade_id":\s*"([A-Za-z0-9_-]+)"')


class UnreadableError(TpulabError):
    """A submitted file that cannot be graded as it is."""


@dataclass(frozen=True)
class Cell:
    """One cell of a submission.

    Attributes:
        number: position among all cells, from 1.
        kind: ``"code"``, ``"markdown"`` or ``"raw"``.
        source: its text; lone surrogates and NULs are replaced, so that any file can hold it.
        grade_id: nbgrader's name of the cell, empty when it has none.
        points: nbgrader's points, None for a cell that is not graded.
        first_line: of the cell in its file, counted from 1; 1 in a notebook.
    """

    number: int
    kind: str
    source: str
    grade_id: str = ""
    points: float | None = None
    first_line: int = 1


@dataclass(frozen=True)
class Submission:
    """One submitted file.

    Attributes:
        path: the file.
        kind: ``"notebook"`` or ``"module"``.
        sha256: of its bytes.
        cells: its cells; a module without ``# %%`` lines is one cell.
        claimed_lab: the lab that it says it is a copy of, empty when it does not say.
        claimed_release: the release that it says it is a copy of.
        notes: sentences on what had to be overlooked.
    """

    path: Path
    kind: str
    sha256: str
    cells: tuple[Cell, ...]
    claimed_lab: str = ""
    claimed_release: str = ""
    notes: tuple[str, ...] = ()


def read_bytes(path: Path) -> bytes:
    """The bytes of a regular file of bearable size.

    Raises:
        UnreadableError: it is none.
    """
    try:
        # a pipe or a device would be waited for, or never end
        kind = os.stat(path)
        if stat.S_ISDIR(kind.st_mode):
            raise UnreadableError(f"{path.name} is a folder, not a file")
        if not stat.S_ISREG(kind.st_mode):
            raise UnreadableError(f"{path.name} is not a regular file")
        if kind.st_size > MAX_FILE_BYTES:
            raise UnreadableError(
                f"{path.name} has {kind.st_size / 1e6:,.0f} MB; at most "
                f"{MAX_FILE_BYTES / 1e6:.0f} MB are read",
                hint="clear the outputs of its cells and hand it in again",
            )
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UnreadableError(f"there is no file {path}") from error
    except OSError as error:
        raise UnreadableError(f"{path.name} cannot be read: {error.strerror}") from error


def read(path: Path) -> Submission:
    """A submission from its file.

    Raises:
        UnreadableError: nothing in it can be graded; the sentence says why.
    """
    data = read_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if not data.strip():
        raise UnreadableError(f"{path.name} is empty")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableError(
            f"{path.name} is not text", hint="hand in the notebook itself (.ipynb) or a .py file"
        ) from None
    if path.suffix == ".py":
        return Submission(path, "module", digest, _cells_of_module(text))
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableError(
            f"{path.name} is not a notebook: it is not JSON",
            hint="was it cut off, or saved from a browser as a page? Hand in the .ipynb file",
        ) from None
    if not isinstance(notebook, Mapping) or not isinstance(notebook.get("cells"), list):
        raise UnreadableError(
            f"{path.name} is JSON, and no notebook of format 4: it has no list of cells",
            hint="open it in JupyterLab and save it again",
        )
    cells, notes = cells_of(notebook)
    if not any(cell.source.strip() for cell in cells):
        raise UnreadableError(f"{path.name} is a notebook without a filled cell")
    own = _mapping(_mapping(notebook.get("metadata")).get("tpulab"))
    return Submission(
        path,
        "notebook",
        digest,
        cells,
        _text(own.get("lab")),
        _text(own.get("release")),
        notes,
    )


def cells_of(notebook: Mapping[str, Any]) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """(cells, sentences on those that were left out) of a notebook of any origin."""
    cells, notes = [], []
    for number, item in enumerate(notebook["cells"], 1):
        cell = _mapping(item)
        source = cell.get("source", "")
        if isinstance(source, list):
            source = "".join(part for part in source if isinstance(part, str))
        if not isinstance(source, str) or cell.get("cell_type") not in ("code", "markdown", "raw"):
            notes.append(f"cell {number} is not a cell of a notebook and was left out")
            continue
        if len(source) > MAX_CELL_CHARACTERS:
            notes.append(
                f"cell {number} has {len(source):,} characters, more than "
                f"{MAX_CELL_CHARACTERS:,}, and was left out"
            )
            continue
        nbgrader = _mapping(_mapping(cell.get("metadata")).get("nbgrader"))
        points = nbgrader.get("points")
        graded = isinstance(points, int | float) and not isinstance(points, bool)
        cells.append(
            Cell(
                number,
                str(cell["cell_type"]),
                _clean(source),
                _text(nbgrader.get("grade_id")),
                float(points) if graded else None,  # type: ignore[arg-type]
            )
        )
    return tuple(cells), tuple(notes)


def _cells_of_module(text: str) -> tuple[Cell, ...]:
    """A Python file, cut at its ``# %%`` lines as Jupytext's py:percent files are."""
    pieces: list[tuple[int, str, list[str]]] = [(1, "", [])]
    for number, line in enumerate(_clean(text).splitlines(), 1):
        marker = _PERCENT.match(line)
        if marker:
            pieces.append((number + 1, marker[1], []))
        else:
            pieces[-1][2].append(line)
    cells: list[Cell] = []
    for first_line, heading, lines in pieces:
        source = "\n".join(lines)
        if source.strip():
            named = _PERCENT_ID.search(heading)
            kind = "markdown" if "[markdown]" in heading else "code"
            cells.append(
                Cell(len(cells) + 1, kind, source, named[1] if named else "", first_line=first_line)
            )
    return tuple(cells)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return _clean(value)[:200] if isinstance(value, str) else ""


def _clean(text: str) -> str:
    # for Python every kind of line end is one, and so lines are counted
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return (
        text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")
    )
