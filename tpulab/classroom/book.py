"""The book's pages that come from somewhere else: labs, chips, verbs, messages, interfaces.

Nothing is told twice. A lab's page is the released lab; what its first pictures show comes from the
executed solution, and its hints from the exercises. The chips, the command line, the compiler's
messages and the interfaces are read from where they are defined. Sphinx calls `write_pages` before
it reads its sources; these functions themselves need no Sphinx.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
Notebook = dict[str, Any]

#: Rooms whose public names have a page, ground floor first.
ROOMS: Mapping[str, str] = {
    "hardware": "Chips and their figures",
    "kernel": "What a kernel is made of, and running it on a CPU",
    "roofline": "Bounds and calculators",
    "compiler": "The TPU compiler",
    "simulator": "Compiled programs, cycle by cycle",
    "ladder": "From the speed of light to the prediction",
    "exercises": "Exercises as data",
    "grading": "Verdicts",
    "visual": "Pictures",
    "classroom": "Labs, notebooks and servers",
}

# what a static page can show; a widget's state would need a script from elsewhere
_STATIC_OUTPUTS = ("text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain")


def write_pages(
    root: Path, folder: Path, verbs: Mapping[str, argparse.ArgumentParser]
) -> list[Path]:
    """Write every generated page; files that already hold the same text keep their time.

    Args:
        root: the clone.
        folder: where the pages go; files in it that no page needs any more are removed.
        verbs: the command line's parser for each verb.

    Returns:
        the pages, in the order of the book.
    """
    pages = dict(_pages(root, verbs))
    for stale in folder.rglob("*"):
        if stale.is_file() and stale.relative_to(folder).as_posix() not in pages:
            stale.unlink()
    written = []
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads again what is newer than its own output
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _pages(root: Path, verbs: Mapping[str, argparse.ArgumentParser]) -> Iterable[tuple[str, str]]:
    yield "start.md", start_page((root / "README.md").read_text(encoding="utf-8"))
    labs = sorted((root / "labs").glob("*.ipynb"))
    for lab in labs:
        page = lab_page(_read(lab), _read(root / "solutions" / lab.name))
        yield f"labs/{lab.name}", json.dumps(page, indent=1, sort_keys=True) + "\n"
    yield "labs/index.md", _index("Labs", [lab.stem for lab in labs], _LABS_TEXT)
    yield "reference/chips.md", chips_page()
    yield "reference/command_line.md", command_line_page(verbs)
    yield "reference/messages.md", messages_page()
    for room, title in ROOMS.items():
        yield f"reference/{room}.md", interface_page(room, title)
    names = ["chips", "command_line", "messages", *ROOMS]
    yield "reference/index.md", _index("Reference", names, _REFERENCE_TEXT)


def start_page(readme: str) -> str:
    """The README as a page; files of the repository are named instead of linked."""
    _, _, text = readme.partition("\n")
    return "# Getting started\n" + re.sub(r"\[[^\]]*\]\((?!https?:|#)([^)]+)\)", r"`\1`", text)


def _read(path: Path) -> Notebook:
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


_LABS_TEXT = """\
Each lab is a notebook of 45 to 90 minutes. You read it here; you do it with `tpulab lab`, where
every answer gets its verdict. The pictures of a lab are here as the lab draws them. Hints are
folded below the exercise they belong to.
"""

_REFERENCE_TEXT = """\
What the lab knows and what you can call, read from where it is defined.
"""


def _index(title: str, names: Iterable[str], text: str) -> str:
    entries = "\n".join(names)
    return f"# {title}\n\n{text}\n```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n"


# labs


def lab_page(released: Notebook, solved: Notebook) -> Notebook:
    """A lab as a page: released cells, outputs that give nothing away, hints.

    Outputs come from the executed solution, for cells that are the same in both notebooks and stand
    before the first exercise; later ones would show what the learner is about to find.

    Args:
        released: the learner's notebook.
        solved: the executed notebook of the same lab.
    """
    answers = {cell["id"]: cell for cell in solved["cells"]}
    cells: list[Cell] = []
    before_exercises = True
    for cell in copy.deepcopy(released["cells"]):
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown" and source.startswith("## Write"):
            before_exercises = False
        answer = answers.get(cell["id"], {})
        if cell["cell_type"] == "code":
            same = _text(answer.get("source", "")) == source
            shown = answer.get("outputs", []) if same and before_exercises else []
            cell["outputs"] = [kept for kept in map(_static, copy.deepcopy(shown)) if kept]
            cell["execution_count"] = None
        folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
        # tags and nbgrader's fields mean something to other tools; what is folded stays folded
        cell["metadata"] = {"tags": ["hide-input"]} if folded else {}
        cells.append(cell)
        cells += _hints_after(cell["id"])
    return {**released, "cells": cells}


def _text(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _static(output: dict[str, Any]) -> dict[str, Any] | None:
    """An output without what needs a running kernel; None when nothing is left."""
    if "data" not in output:
        return output
    data = {kind: output["data"][kind] for kind in _STATIC_OUTPUTS if kind in output["data"]}
    return {**output, "data": data, "metadata": {}} if data else None


def _hints_after(cell_id: str) -> list[Cell]:
    """A folded hint each, below the check of an exercise."""
    from tpulab.exercises import exercises

    for exercise in exercises():
        if cell_id == f"{exercise.name.replace('.', '-')}-check":
            folded = "\n\n".join(
                f"<details><summary>Hint {number}</summary>\n\n{hint}\n\n</details>"
                for number, hint in enumerate(exercise.hints, 1)
            )
            hints = {"cell_type": "markdown", "id": f"{cell_id}-hints", "metadata": {}}
            return [{**hints, "source": folded}]
    return []


# facts


def chips_page() -> str:
    """Every chip of the catalogue: the table, then all figures with their sources."""
    from tpulab.hardware import chips, describe, summary

    parts = [
        "# Chips",
        "One row a chip, figures per chip unless the heading says otherwise. `tpulab chips` prints "
        "the same, `tpulab chips v5e` one chip with the source of each figure.",
        _fenced(summary(), "text"),
    ]
    for chip in chips():
        parts += [f"## {chip.name}", _fenced(describe(chip), "text")]
    return "\n\n".join(parts) + "\n"


def messages_page() -> str:
    """What the messages of Pallas and of the TPU compiler mean."""
    from tpulab.compiler.explanations import catalogue

    parts = [
        "# Messages",
        "What Pallas and the TPU compiler say, and what they mean by it. `tpulab explain` finds "
        "the entry for a message you have.",
    ]
    for entry in catalogue():
        parts += [f"## {entry.key}", f"{_sentence(entry.title)}."]
        parts += [
            f"**{word}.** {_sentence(value)}."
            for word, value in (
                ("Cause", entry.cause),
                ("Rule", entry.rule),
                ("Instead", entry.remedy),
            )
            if value
        ]
        if entry.example:
            parts.append(_fenced(entry.example, "python"))
    return "\n\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def command_line_page(verbs: Mapping[str, argparse.ArgumentParser]) -> str:
    """The help of every verb."""
    parts = [
        "# Command line",
        "`python3 -m tpulab VERB` in a clone and `tpulab VERB` in its environment are the same.",
    ]
    for name, parser in verbs.items():
        # fixed width: the page must not depend on the terminal that builds it
        parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, width=96)
        parts += [f"## tpulab {name}", _fenced(parser.format_help().rstrip(), "text")]
    return "\n\n".join(parts) + "\n"


def interface_page(room: str, title: str) -> str:
    """The public names of a room, with their docstrings."""
    module = importlib.import_module(f"tpulab.{room}")
    about = textwrap.dedent(inspect.getdoc(module) or "").strip()
    parts = [f"# {room}: {title[0].lower()}{title[1:]}", _evaluated(about)]
    for name in sorted(module.__all__, key=str.lower):
        value = getattr(module, name)
        if inspect.isclass(value):
            inherited = "\n   :show-inheritance:" if issubclass(value, Exception) else ""
            parts.append(
                _evaluated(f".. autoclass:: tpulab.{room}.{name}\n   :members:{inherited}")
            )
        elif callable(value):
            parts.append(_evaluated(f".. autofunction:: tpulab.{room}.{name}"))
    return "\n\n".join(parts) + "\n"


def _evaluated(text: str) -> str:
    """Docstrings are reStructuredText."""
    return f"```{{eval-rst}}\n{text}\n```"


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.strip(chr(10))}\n```"
