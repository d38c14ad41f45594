"""Submissions for the tests of grading: copies of labs, filled in and damaged."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TRACK = "first_kernel"


def released(lab: str = "00_first_kernel") -> dict[str, Any]:
    """The learner's copy of a lab, as it is handed out."""
    return json.loads((ROOT / "labs" / f"{lab}.ipynb").read_text("utf-8"))


def solved(lab: str = "00_first_kernel") -> dict[str, str]:
    """The solution's cells by grade_id."""
    notebook = json.loads((ROOT / "solutions" / f"{lab}.ipynb").read_text("utf-8"))
    return {grade_id(cell): "".join(cell["source"]) for cell in notebook["cells"] if grade_id(cell)}


def grade_id(cell: dict[str, Any]) -> str:
    return cell["metadata"].get("nbgrader", {}).get("grade_id", "")


def questions(lab: str = "00_first_kernel") -> list[str]:
    """Names of the cells that ask for an answer in words."""
    from tpulab.classroom.submissions.labs import find_lab

    return [question.grade_id for question in find_lab(lab).by_hand]


def solution(function: str) -> str:
    return solved()[f"{TRACK}-{function}"]


def cell_of(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    return next(cell for cell in notebook["cells"] if grade_id(cell) == f"{TRACK}-{name}")


def with_answers(**answers: str) -> dict[str, Any]:
    """A learner's copy of lab 00 with other code in the cells of some functions."""
    notebook = copy.deepcopy(released())
    for function, source in answers.items():
        cell_of(notebook, function)["source"] = source
    return notebook


def code(source: str, name: str = "") -> dict[str, Any]:
    """A cell that the learner added."""
    metadata = {"nbgrader": {"grade_id": name}} if name else {}
    return {"cell_type": "code", "metadata": metadata, "source": source, "outputs": []}


def write(path: Path, notebook: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def notebook_of(cells: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
