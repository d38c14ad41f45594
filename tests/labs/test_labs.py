"""The labs: source, notebooks and outputs agree; blanks run through; solutions reach the top."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpulab.classroom.notebooks import (
    CELL_SECONDS,
    NOTEBOOK_SECONDS,
    environment_variable,
    kernel_python_path,
    nbval_arguments,
    plain_text,
    run_notebook,
)
from tpulab.classroom.release import Lab, labs, release, released_notebook, solution_notebook
from tpulab.exercises import exercises

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = Path(__file__).with_name("sanitize.cfg")
LABS = labs(ROOT)
PARTS = ("predict", "see", "write", "climb", "break", "talk", "go on")

each_lab = pytest.mark.parametrize("lab", LABS, ids=[lab.name for lab in LABS])


def allowed(seconds: float) -> float:
    """The time budget, stretched when other work has the cores."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0
    return seconds * max(1.0, busy)


def track(lab: Lab) -> str:
    """The exercises' track that a lab teaches."""
    for exercise in exercises():
        if exercise.solution.startswith(lab.source.name):
            return exercise.track
    raise AssertionError(f"no exercise belongs to {lab.name}")


def test_source_solution_and_lab_agree() -> None:
    report = release(ROOT, check=True)
    assert report.written == [], "run `tpulab release`, with --execute if code changed"
    assert {f"labs/{lab.name}.ipynb" for lab in LABS} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "labs").glob("*.ipynb")
    }


@each_lab
def test_solution_was_executed(lab: Lab) -> None:
    cells = json.loads(lab.solution.read_text(encoding="utf-8"))["cells"]
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1)), "run `tpulab release --execute`"
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert "error" not in {output["output_type"] for output in outputs}
    # a refused ladder is a calm sentence, and pictures are not compared: it must not slip in here
    shown = "\n".join(map(plain_text, outputs))
    for sentence in (
        "no ladder",
        "not attempted",
        "not judged",
        "does not run",
        "a kernel that runs",
    ):
        assert sentence not in shown


@each_lab
def test_a_lab_has_its_eight_parts_and_its_parameters(lab: Lab) -> None:
    notebook = released_notebook(lab)
    text = [cell["source"].lower() for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    assert "**the question.**" in text[0]
    for part in PARTS:
        assert any(source.startswith(f"## {part}") for source in text), part
    (parameters,) = (
        cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", ())
    )
    names = {target.id for node in ast.parse(parameters["source"]).body for target in node.targets}
    assert names == {"chip", "device", "effort"}


@each_lab
def test_every_exercise_has_its_cell_its_check_and_a_blank(lab: Lab) -> None:
    solved = {cell["id"]: cell["source"] for cell in solution_notebook(lab)["cells"]}
    blank = {cell["id"]: cell["source"] for cell in released_notebook(lab)["cells"]}
    for exercise in exercises(track(lab)):
        cell = exercise.name.replace(".", "-")
        assert f"def {exercise.function_name}(" in solved[cell]
        assert (
            f'tpulab.check("{exercise.name}", {exercise.function_name}' in solved[f"{cell}-check"]
        )
        assert "assert verdict.top_rung" in solved[f"{cell}-check"]
        assert "# TODO(learner)" in blank[cell]
        assert "raise NotImplementedError" in blank[cell]
        assert "assert" not in blank[f"{cell}-check"]


@each_lab
def test_a_lab_gives_nothing_away(lab: Lab) -> None:
    text = json.dumps(released_notebook(lab))
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    for cell in released_notebook(lab)["cells"]:
        assert not cell.get("outputs")


@pytest.mark.slow
@each_lab
def test_a_blank_lab_runs_through_as_not_attempted(lab: Lab, tmp_path: Path) -> None:
    with environment_variable("TPULAB_HOME", str(tmp_path / "home")):
        run = run_notebook(lab.release, tmp_path / "run.ipynb", {"effort": "quick"})
    assert run.error is None, run.error
    for exercise in exercises(track(lab)):
        assert "not attempted" in run.text(f"{exercise.name.replace('.', '-')}-check")
    slow = {cell: s for cell, s in run.cell_seconds.items() if s > allowed(CELL_SECONDS)}
    assert not slow


@pytest.mark.slow
@pytest.mark.needs_libtpu
@pytest.mark.timeout(600)
@each_lab
def test_solution_reaches_the_top_and_shows_what_it_showed(lab: Lab, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TPULAB_HOME": str(tmp_path / "home"),
        "PYTHONPATH": kernel_python_path(),
    }
    command = [sys.executable, "-m", "pytest", *nbval_arguments(lab.solution, sanitizer=SANITIZER)]
    result = subprocess.run(
        [*command, "--junit-xml", str(tmp_path / "nbval.xml")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    seconds = _suite_seconds(tmp_path / "nbval.xml")
    assert seconds < allowed(NOTEBOOK_SECONDS)


@pytest.mark.slow
@pytest.mark.needs_libtpu
@pytest.mark.parametrize("chip", ["v6e"])
def test_another_chip_is_a_parameter(chip: str, tmp_path: Path) -> None:
    (lab,) = labs(ROOT, ["00"])
    with environment_variable("TPULAB_HOME", str(tmp_path / "home")):
        run = run_notebook(
            lab.solution,
            tmp_path / "run.ipynb",
            {"chip": chip, "effort": "quick"},
            working_folder=lab.solution.parent,
        )
    assert run.error is None, run.error
    shown = "\n".join(plain_text(o) for cell in run.cells() for o in cell.get("outputs", ()))
    assert "v6e" in shown
    assert "v5e" not in shown


def _suite_seconds(report: Path) -> float:
    import xml.etree.ElementTree as ET

    return sum(float(suite.get("time", 0)) for suite in ET.parse(report).iter("testsuite"))
