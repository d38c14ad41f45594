"""Modules that were handed in beside a submission, for the answers that import them.

They are copied to where the answer runs. The folder of the submission itself is not on its path:
in a flat folder that would make every other submission importable.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpulab.classroom.submissions.answers import Piece
from tpulab.classroom.submissions.finding import has_exercise
from tpulab.classroom.submissions.reading import Submission, UnreadableError, read_bytes

_IMPORT = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", re.M)


@dataclass(frozen=True)
class Beside:
    """What an answer finds beside it.

    Attributes:
        helpers: modules and packages (folders) that it imports, and those that these import.
        submissions: names of modules that it asks for and that are submissions of their own.
    """

    helpers: tuple[Path, ...] = ()
    submissions: tuple[str, ...] = ()

    def copy_to(self, folder: Path) -> None:
        """Copy the helpers, Python files only."""
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.helpers:
            if path.is_dir():
                shutil.copytree(path, folder / path.name, ignore=_no_python)
            else:
                (folder / path.name).write_bytes(read_bytes(path))


def beside(submission: Submission, pieces: Sequence[Piece]) -> Beside:
    """What the code of an answer imports from the folder of its submission."""
    folder = submission.path.resolve().parent
    own = [piece.text for piece in pieces if piece.cell is not None]
    waiting = [name for text in own for name in _IMPORT.findall(text)]
    helpers: dict[Path, None] = {}
    others: dict[str, None] = {}
    while waiting:
        name = waiting.pop(0)
        file, package = folder / f"{name}.py", folder / name / "__init__.py"
        path = file if file.is_file() else package.parent if package.is_file() else None
        if path is None or path in helpers or file == submission.path.resolve():
            continue
        sources = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if any(map(has_exercise, sources)):
            others[file.name if path == file else name] = None
            continue
        helpers[path] = None
        for source in sources:
            waiting += _IMPORT.findall(_text(source))
    return Beside(tuple(helpers), tuple(others))


def _no_python(folder: str, names: list[str]) -> list[str]:
    """What is left out of the copy of a package."""
    return [
        name
        for name in names
        if name.startswith(".")
        or name == "__pycache__"
        or not (name.endswith(".py") or Path(folder, name).is_dir())
    ]


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except UnreadableError:
        return ""
