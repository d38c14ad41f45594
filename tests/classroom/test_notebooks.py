"""Running notebooks headless."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tpulab.classroom.notebooks import run_notebook
from tpulab.errors import UsageError


def write(path: Path, *cells: str) -> Path:
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for number, source in enumerate(cells):
        cell = nbformat.v4.new_code_cell(source, id=f"cell-{number}")
        if number == 0:
            cell.metadata["tags"] = ["parameters"]
        notebook.cells.append(cell)
    nbformat.write(notebook, path)
    return path


def test_a_run_reports_text_and_times_and_leaves_the_file_alone(tmp_path: Path) -> None:
    notebook = write(tmp_path / "a.ipynb", "n = 1", "import tpulab\nprint(n)", "n + 1")
    before = notebook.read_bytes()
    run = run_notebook(notebook, tmp_path / "out" / "a.ipynb", {"n": 20})
    assert run.passed
    assert run.text("cell-1") == "20\n"
    assert run.text("cell-2") == "21"
    assert set(run.cell_seconds) >= {"cell-0", "cell-1", "cell-2"}
    assert notebook.read_bytes() == before


def test_the_failing_cell_is_named(tmp_path: Path) -> None:
    notebook = write(tmp_path / "a.ipynb", "n = 1", "1 / 0", "print('after')")
    run = run_notebook(notebook, tmp_path / "out.ipynb")
    assert run.error is not None
    assert run.error.cell_id == "cell-1"
    assert "ZeroDivisionError" in run.error.message


def test_a_cell_that_never_ends_is_stopped(tmp_path: Path) -> None:
    notebook = write(tmp_path / "a.ipynb", "n = 1", "while True: pass")
    run = run_notebook(notebook, tmp_path / "out.ipynb", cell_timeout_seconds=2)
    assert run.error is not None
    assert "longer than 2 s" in run.error.message


def test_a_kernel_that_dies_is_reported(tmp_path: Path) -> None:
    notebook = write(tmp_path / "a.ipynb", "n = 1", "import os; os._exit(3)")
    run = run_notebook(notebook, tmp_path / "out.ipynb")
    assert run.error is not None
    assert "kernel died" in run.error.message


def test_refused_before_anything_starts(tmp_path: Path) -> None:
    notebook = write(tmp_path / "a.ipynb", "chip = 'v5e'")
    with pytest.raises(UsageError, match="in place"):
        run_notebook(notebook, notebook)
    with pytest.raises(UsageError, match="no parameter chips"):
        run_notebook(notebook, tmp_path / "out.ipynb", {"chips": "v5e"})
    with pytest.raises(UsageError, match="no notebook"):
        run_notebook(tmp_path / "b.ipynb", tmp_path / "out.ipynb")
    (tmp_path / "c.ipynb").write_text("not json")
    with pytest.raises(UsageError, match="not a notebook"):
        run_notebook(tmp_path / "c.ipynb", tmp_path / "out.ipynb")
