"""The line of the learner's source that a sentence is about.

What the other process knows is often only where a kernel begins. The source is at hand here, also
that of a notebook's cell, and says where in the kernel the store, the sum or the ``return`` is.
A place is ``file:line``; each function gives the place it was given when it finds no better one.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable

_CELL = re.compile(r"ipykernel_\d+[/\\]|<ipython-input-")
_CELL_PLACE = re.compile(r"[^\s'\"]*(?:ipykernel_\d+[/\\]|<ipython-input-)[^\s:]*(?::(\d+))?")
_FILE_PLACE = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^\s:'\"/\\]+[/\\])+([^\s:'\"/\\]+\.py)")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def readable(where: str) -> str:
    """``file:line`` with the line itself; a notebook's cell is called a cell."""
    if not where:
        return ""
    file, _, number = where.rpartition(":")
    if not number.isdigit():
        return where
    source = linecache.getline(file, int(number)).strip()
    name = f"the cell, line {number}" if _CELL.search(file) else f"{file}:{number}"
    return f"{name}: {source}" if source else name


def without_paths(text: str) -> str:
    """A library's message without the paths of temporary files, and with short ones for others."""
    text = _CELL_PLACE.sub(
        lambda found: f"the cell, line {found[1]}" if found[1] else "the cell", text
    )
    return _FILE_PLACE.sub(lambda found: found[1], text)


def _function(where: str) -> tuple[str, _Function | None]:
    """The file, and the innermost function that its line lies in."""
    file, _, number = where.rpartition(":")
    if not number.isdigit():
        return file, None
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return file, None
    line = int(number)
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, _Function) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return file, max(around, key=lambda node: node.lineno, default=None)


def _line(where: str, fits: Callable[[ast.AST], bool], last: bool = False) -> str:
    """Place of the first (last) line in the function at ``where`` that fits, else ``where``."""
    file, function = _function(where)
    if function is None:
        return where
    lines = [
        int(getattr(node, "lineno", 0))
        for node in ast.walk(function)
        if node is not function and fits(node)
    ]
    if not lines:
        return where
    return f"{file}:{max(lines) if last else min(lines)}"


def return_with_value(where: str) -> str:
    """The first ``return …`` of the function."""
    return _line(where, lambda node: isinstance(node, ast.Return) and node.value is not None)


def rebinding(where: str, name: str) -> str:
    """The line that binds ``name`` anew in the function; empty when there is none."""
    file, function = _function(where)
    for node in ast.walk(function) if function is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return f"{file}:{getattr(node, 'lineno', 0)}"
    return ""


def _is_subscript(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript)


def addition(where: str) -> str:
    """The first line of a kernel that adds to a Ref."""
    return _line(where, lambda node: isinstance(node, ast.AugAssign) and _is_subscript(node.target))


def store(where: str, name: str = "") -> str:
    """The last line of a kernel that stores into a Ref, into the one of that name if it does."""

    def stores(node: ast.AST, only: str) -> bool:
        targets: list[ast.expr]
        if isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            return False
        return any(
            isinstance(target, ast.Subscript) and (not only or ast.unparse(target.value) == only)
            for target in targets
        )

    found = _line(where, lambda node: stores(node, name), last=True) if name else where
    return found if found != where else _line(where, lambda node: stores(node, ""), last=True)


def keyword(where: str, called: str, name: str) -> str:
    """The argument ``name=`` of a call of ``called`` in the function."""
    file, function = _function(where)
    for node in ast.walk(function) if function is not None else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(called):
            for argument in node.keywords:
                if argument.arg == name:
                    return f"{file}:{argument.value.lineno}"
    return where


def definition(where: str, name: str) -> str:
    """Where a function of that name is defined in the file, the nearest above if several are."""
    file, _, number = where.rpartition(":")
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return where
    lines = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    ]
    above = [line for line in lines if line <= int(number)] if number.isdigit() else []
    return f"{file}:{max(above or lines)}" if lines else where
