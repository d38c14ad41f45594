"""Which files of a class are graded, and which hand-ins hold nothing that could be."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpulab.classroom.submissions import labs, reading

_SKIPPED = {"__pycache__", "node_modules"}
_SUFFIXES = (".ipynb", ".py")
# what people hand in by mistake; pictures and data lie beside notebooks for good reasons
_DOCUMENTS = (
    ".pdf",
    ".zip",
    ".html",
    ".htm",
    ".docx",
    ".doc",
    ".odt",
    ".gz",
    ".tar",
    ".7z",
    ".rar",
)
_SHOWN_NAMES = 4


def find_files(
    files: Sequence[str | os.PathLike[str]], out: Path
) -> tuple[dict[str, Path], tuple[str, ...]]:
    """(submissions by name, files of the folders given that are left out).

    A name is the path below the one folder that was given, else below what all have in common. A
    folder among the submissions is somebody's who handed in nothing that can be graded: nobody
    who handed in something must vanish from the list.
    """
    paths: dict[Path, None] = {}
    skipped: list[str] = []
    for item in map(Path, files):
        if not item.is_dir():
            paths[Path(os.path.abspath(item))] = None
            continue
        tree = _Tree(item, out)
        skipped += tree.skipped
        # one of several folders is somebody's, a single one is the class
        empty = [item] if len(files) > 1 and not tree.submissions else tree.without()
        for path in [*tree.submissions, *empty]:
            paths[Path(os.path.abspath(path))] = None
    if all(path.is_dir() for path in paths):
        return {}, tuple(skipped)
    if len(files) == 1 and Path(files[0]).is_dir():
        base = os.path.abspath(files[0])
    else:
        base = os.path.commonpath([str(path.parent) for path in paths])
    names = {Path(os.path.relpath(path, base)).as_posix(): path for path in paths}
    return dict(sorted(names.items())), tuple(skipped)


class _Tree:
    """A folder that was given, with what is below it.

    Attributes:
        submissions: notebooks, and Python files with an exercise.
        skipped: Python files without one, and documents beside the submissions of a flat folder.
    """

    def __init__(self, root: Path, out: Path) -> None:
        self.root = root
        self.submissions: list[Path] = []
        self.skipped: list[str] = []
        self._folders: dict[Path, list[Path]] = {}
        results = os.path.realpath(out)
        for place, folders, names in os.walk(root):
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith(".")
                and name not in _SKIPPED
                and os.path.realpath(os.path.join(place, name)) != results
            )
            self._folders[Path(place)] = [Path(place, name) for name in folders]
            for name in sorted(names):
                if name.startswith("."):
                    continue
                path = Path(place, name)
                if path.suffix == ".py" and not has_exercise(path):
                    self.skipped.append(str(path))
                elif path.suffix in _SUFFIXES:
                    self.submissions.append(path)
                elif path.parent == root and path.suffix.lower() in _DOCUMENTS:
                    self.skipped.append(str(path))

    def without(self) -> list[Path]:
        """The uppermost folders that hold no submission, beside some that do or loose ones."""
        direct = {path.parent for path in self.submissions}
        filled = {above for path in self.submissions for above in path.parents}
        found = []
        for place, folders in self._folders.items():
            # beside somebody's notebook lie their own pictures and data
            if place not in filled or (place in direct and place != self.root):
                continue
            flat = place in direct and not any(folder in filled for folder in folders)
            for folder in folders:
                # among loose notebooks only a document is somebody's work
                counts = not flat or any(
                    path.suffix.lower() in _DOCUMENTS for path in _files(folder)
                )
                if folder not in filled and counts:
                    found.append(folder)
        return found


def has_exercise(path: Path) -> bool:
    """Whether a Python file answers an exercise: then it is a submission, else a helper's file."""
    try:
        return labs.lab_of(reading.read(path)) is not None
    except reading.UnreadableError:
        return False


def what_it_holds(folder: Path) -> str:
    """A sentence on a folder in which there is nothing to grade."""
    names = [path.relative_to(folder).as_posix() for path in _files(folder)]
    if not names:
        return "the folder is empty: nothing was handed in"
    shown = ", ".join(names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return (
        "no notebook (.ipynb) and no Python file with an exercise was handed in, only "
        f"{shown}{more}"
    )


def _files(folder: Path) -> Iterable[Path]:
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(found)
