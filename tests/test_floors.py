"""The house's floors: a room imports only rooms below it, and heavy packages only where allowed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "tpulab"

# ground floor first; rooms on one floor do not know each other
FLOORS: tuple[tuple[str, ...], ...] = (
    ("__init__", "errors", "units"),
    ("hardware",),
    ("kernel", "roofline"),
    ("compiler",),
    ("simulator",),
    ("ladder",),
    ("exercises", "grading", "visual"),
    ("scaffolds",),
    ("classroom",),
    ("cli", "commands", "bootstrap", "_install", "_installers", "__main__"),
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# neighbours that may meet: grading judges exercises and draws verdicts; the top floor is one house
NEIGHBOURS = {
    ("grading", "exercises"),
    ("grading", "visual"),
    ("visual", "exercises"),
    ("roofline", "kernel"),
}
TOP = set(FLOORS[-1])

# a widget is described with traitlets
DRAWING = {"matplotlib", "ipywidgets", "anywidget", "traitlets"}
JUPYTER = {
    "IPython", "ipykernel", "jupyter", "jupyter_client", "jupyter_core", "jupyter_server",
    "jupyterlab", "nbclient", "nbformat", "nbval", "papermill",
}  # fmt: skip


def room_of(path: Path) -> str:
    return room_named(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))


def room_named(module: str) -> str:
    # one room in several files
    return "ladder" if module.startswith("ladder_") else module


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Every imported module: its name, its line, and whether it is imported at module level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    deep = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    package = ["tpulab", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        at_top = id(node) not in deep
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, at_top
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [base])])
            yield base, node.lineno, at_top
            if base == "tpulab":
                for alias in node.names:
                    yield f"tpulab.{alias.name}", node.lineno, at_top


def test_every_room_has_a_floor() -> None:
    assert {room_of(path) for path in python_files()} <= set(FLOOR_OF)


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    for name, line, _ in imports(path):
        parts = name.split(".")
        other = room_named(parts[1]) if len(parts) > 1 else ""
        if parts[0] != "tpulab" or other not in FLOOR_OF:
            continue
        below = FLOOR_OF[other] < FLOOR_OF[room]
        allowed = below or other == room or (room, other) in NEIGHBOURS or {room, other} <= TOP
        assert allowed, f"{path.name}:{line}: {room} must not import {other}"


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_in_their_rooms(path: Path) -> None:
    floor = FLOOR_OF[room_of(path)]
    for name, line, _ in imports(path):
        package = name.split(".")[0]
        if package in DRAWING:
            assert floor >= FLOOR_OF["visual"], f"{path.name}:{line}: {package} below visual"
        # a rich display in a notebook needs IPython's display function, and nothing else of Jupyter
        if package in JUPYTER - {"IPython"}:
            assert floor >= FLOOR_OF["classroom"], f"{path.name}:{line}: {package} below classroom"


@pytest.mark.parametrize("name", ["bootstrap.py", "_install.py", "_installers.py", "__main__.py"])
def test_bootstrap_needs_the_standard_library_only(name: str) -> None:
    for module, line, _ in imports(PACKAGE / name):
        package = module.split(".")[0]
        assert package in sys.stdlib_module_names | {"tpulab"}, f"{name}:{line}: {module}"


@pytest.mark.parametrize(
    "path", [PACKAGE / "cli.py", *sorted((PACKAGE / "commands").glob("*.py"))], ids=lambda p: p.name
)
def test_command_line_imports_nothing_heavy_at_its_top(path: Path) -> None:
    for module, line, at_top in imports(path):
        package = module.split(".")[0]
        if at_top and package == "tpulab":
            rooms = set(FLOOR_OF) - TOP - {"errors", "__init__"}
            second = module.split(".")[1] if "." in module else ""
            assert second not in rooms, f"{path.name}:{line}: {module} at module level"
        elif at_top:
            assert package in sys.stdlib_module_names, f"{path.name}:{line}: {module}"
