"""Runs notebooks without a screen and says what happened in every cell.

A notebook that a person may have open is never written: results always go to another file.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulab.errors import UsageError

#: what a lab may cost on two cores: first run of a cell, and a whole solved notebook
CELL_SECONDS = 10.0
NOTEBOOK_SECONDS = 60.0


@dataclass(frozen=True)
class CellError:
    """The first exception of a run.

    Attributes:
        cell_id: id of the cell that raised, or None when the kernel itself failed.
        message: exception type and text, or what happened to the kernel.
    """

    cell_id: str | None
    message: str


@dataclass(frozen=True)
class NotebookRun:
    """A finished run.

    Attributes:
        notebook: the file that was read.
        output: the file that holds the executed notebook.
        seconds: wall time of the whole run, start of the kernel included.
        cell_seconds: wall time of each code cell that ran, by cell id.
        error: what stopped the run, or None when every cell ran.
    """

    notebook: Path
    output: Path
    seconds: float
    cell_seconds: Mapping[str, float]
    error: CellError | None

    @property
    def passed(self) -> bool:
        """Whether every cell ran without an exception."""
        return self.error is None

    def cells(self) -> list[dict[str, Any]]:
        """The cells of the executed notebook."""
        return list(json.loads(self.output.read_text(encoding="utf-8"))["cells"])

    def text(self, cell_id: str) -> str:
        """Everything one cell put out, as plain text."""
        for cell in self.cells():
            if cell["id"] == cell_id:
                return "\n".join(plain_text(output) for output in cell.get("outputs", ()))
        raise UsageError(f"{self.output.name} has no cell {cell_id!r}")


def plain_text(output: Mapping[str, Any]) -> str:
    """The text form of one output: a stream, a traceback's last line, or ``text/plain``."""
    if output["output_type"] == "stream":
        text = output["text"]
    elif output["output_type"] == "error":
        text = f"{output['ename']}: {output['evalue']}"
    else:
        text = output["data"].get("text/plain", "")
    return "".join(text)


def run_notebook(
    notebook: Path | str,
    output: Path | str,
    parameters: Mapping[str, Any] | None = None,
    *,
    working_folder: Path | str | None = None,
    cell_timeout_seconds: float = 120.0,
) -> NotebookRun:
    """Run a notebook from top to bottom with papermill.

    Args:
        notebook: the file to run; it is only read.
        output: where the executed notebook goes; another file than ``notebook``.
        parameters: values for names of the cell tagged ``parameters``: ``chip``, ``device``,
            ``effort``. A name that the notebook does not have is refused.
        working_folder: the kernel's current folder; by default the notebook's.
        cell_timeout_seconds: a cell that takes longer is interrupted and counts as failed.

    Returns:
        what happened; a cell that raises is reported in it, not raised here.

    Raises:
        UsageError: no such notebook, not a notebook, same file twice, or an unknown parameter.
    """
    notebook, output = Path(notebook), Path(output)
    if not notebook.is_file():
        raise UsageError(f"there is no notebook {notebook}")
    if output.exists() and output.samefile(notebook):
        raise UsageError(
            "a notebook is never executed in place",
            why="someone may have it open, and what they typed would be lost",
            where=str(notebook),
        )
    _refuse_unknown_parameters(notebook, parameters or {})
    output.parent.mkdir(parents=True, exist_ok=True)
    import nbclient.exceptions
    import papermill

    error = None
    begin = time.monotonic()
    with (
        environment_variable("PYTHONPATH", kernel_python_path()),
        _quiet_papermill(),
        tempfile.TemporaryDirectory(prefix="tpulab-run-", dir=_short_folder()) as sockets,
    ):
        try:
            papermill.execute_notebook(
                str(notebook),
                str(output),
                parameters=dict(parameters or {}),
                cwd=str(working_folder or notebook.parent),
                kernel_name="python3",
                language="python",
                progress_bar=False,
                log_output=False,
                execution_timeout=cell_timeout_seconds,
                start_timeout=120,
                **_private_kernel(sockets),
            )
        except papermill.PapermillExecutionError as raised:
            error = CellError(_failed_cell(output), f"{raised.ename}: {raised.evalue}")
        except nbclient.exceptions.CellTimeoutError:
            error = CellError(
                _failed_cell(output), f"a cell ran longer than {cell_timeout_seconds:g} s"
            )
        except nbclient.exceptions.DeadKernelError:
            error = CellError(_failed_cell(output), "the kernel died while a cell was running")
    seconds = time.monotonic() - begin
    return NotebookRun(notebook, output, seconds, _cell_seconds(output), error)


def nbval_arguments(*notebooks: Path, sanitizer: Path, cell_timeout_seconds: int = 60) -> list[str]:
    """Arguments for pytest that compare stored outputs of notebooks strictly with fresh ones.

    Timings and predicted numbers, which differ between machines and compiler versions, are masked
    by the sanitizer's patterns in both before they are compared.
    """
    return [
        *("-p", "nbval"),
        "--nbval",
        f"--nbval-sanitize-with={sanitizer}",
        f"--nbval-cell-timeout={cell_timeout_seconds}",
        *("-q", "-x", "--color=no", "--timeout=0", "-p", "no:cacheprovider"),
        *map(str, notebooks),
    ]


@contextlib.contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for the time of a ``with`` block; kernels inherit it."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def kernel_python_path() -> str:
    """PYTHONPATH with which a kernel imports the very tpulab that runs it, installed or not."""
    here = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([here, before] if before else [here])


def _short_folder() -> str | None:
    # a Unix socket's path has at most 107 bytes, and temporary folders can be deep
    return "/tmp" if os.name == "posix" and os.access("/tmp", os.W_OK) else None


def _private_kernel(folder: str) -> dict[str, Any]:
    """Options that let papermill talk to the kernel through sockets in a folder of our own.

    Over TCP, which is the default, other users of the machine could listen, and every kernel
    starts with a warning that says so.
    """
    if os.name != "posix":
        return {}
    from jupyter_client.manager import AsyncKernelManager

    class PrivateKernelManager(AsyncKernelManager):
        def __init__(self, **options: Any) -> None:
            options.setdefault("connection_file", os.path.join(folder, "kernel.json"))
            super().__init__(transport="ipc", **options)

    return {"kernel_manager_class": PrivateKernelManager}


@contextlib.contextmanager
def _quiet_papermill() -> Iterator[None]:
    import logging

    logger = logging.getLogger("papermill")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _refuse_unknown_parameters(notebook: Path, parameters: Mapping[str, Any]) -> None:
    import ast

    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{notebook} is not a notebook") from error
    known: set[str] = set()
    for cell in cells:
        if "parameters" in cell["metadata"].get("tags", ()):
            for statement in ast.parse("".join(cell["source"])).body:
                if isinstance(statement, ast.Assign):
                    known.update(t.id for t in statement.targets if isinstance(t, ast.Name))
    unknown = set(parameters) - known
    if unknown:
        raise UsageError(
            f"{notebook.name} has no parameter {', '.join(sorted(unknown))}",
            hint=f"its parameters are {', '.join(sorted(known)) or 'none'}",
        )


def _failed_cell(output: Path) -> str | None:
    """The cell that papermill marked as failed, from what it had written until then."""
    try:
        cells = json.loads(output.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError):
        return None
    running = None
    for cell in cells:
        papermill = cell["metadata"].get("papermill", {})
        if papermill.get("exception"):
            return str(cell["id"])
        if papermill.get("status") == "running":
            running = str(cell["id"])
    return running


def _cell_seconds(output: Path) -> dict[str, float]:
    try:
        cells = json.loads(output.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError):
        return {}
    return {
        cell["id"]: cell["metadata"]["papermill"]["duration"]
        for cell in cells
        if cell["cell_type"] == "code" and cell["metadata"].get("papermill", {}).get("duration")
    }
