"""The statements that a name needs, found without running anything.

A notebook is a heap of top-level statements in cells. To grade one function only those are wanted
that give it its meaning: its definition, the imports, constants and helpers it uses, and what these
use in turn. Everything else (checks, plots, experiments, a loop that never ends) stays out, so that
it cannot cost an answer that does not depend on it.

The rules are Python's own. A name used when a statement runs has the value bound last before that
statement; a name used inside a function has the value it has when the function is called.
"""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpulab.classroom.submissions.reading import Cell

_PARSER_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
_COMPREHENSIONS = {"listcomp", "genexpr", "setcomp", "dictcomp"}
# cell magics after which plain Python follows
_PYTHON_MAGICS = re.compile(r"%%(time|timeit|capture|prun)\b.*")
_MAGIC_LINE = re.compile(r"^(\s*)(%(?!%)|!|\?)\s*\w.*$|^(\s*)[\w.]+\?{1,2}\s*$")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_WHOLE = (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


@dataclass(frozen=True)
class Unit:
    """Top-level statements that share lines; mostly one.

    Attributes:
        cell: the cell it stands in.
        first_line, last_line: in the cell, from 1.
        text: these lines.
        shape: the syntax tree as text, for comparisons that overlook comments and layout.
        binds: names it gives a value.
        uses: names whose values it needs when it runs.
        later: names whose values its functions need when they are called.
        changes: names whose values it alters in place.
        kind: ``"import"``, ``"definition"`` or ``"other"``.
        partial: the names may keep what they had before (a branch, ``+=``).
        star: ``from … import *``.
        future: ``from __future__ import …``.
    """

    cell: Cell
    first_line: int
    last_line: int
    text: str
    shape: str
    binds: frozenset[str]
    uses: frozenset[str]
    later: frozenset[str]
    changes: frozenset[str]
    kind: str
    partial: bool
    star: bool
    future: bool


@dataclass(frozen=True)
class BrokenCell:
    """A cell that is not Python.

    Attributes:
        cell: the cell.
        message: what the parser says.
        line: where, in the cell.
    """

    cell: Cell
    message: str
    line: int


def units_of(cell: Cell) -> tuple[Unit, ...] | BrokenCell:
    """The statements of a cell, or why there are none."""
    text = cell.source
    first, _, rest = text.lstrip().partition("\n")
    if first.startswith("%%"):
        if not _PYTHON_MAGICS.fullmatch(first.rstrip()):
            return ()  # another language
        text = text.replace(first, "pass", 1)
    try:
        tree = _parsed(text)
    except _PARSER_ERRORS as error:
        text = "\n".join(_without_magic(line) for line in text.split("\n"))
        try:
            tree = _parsed(text)
        except _PARSER_ERRORS:
            message = getattr(error, "msg", None) or type(error).__name__
            return BrokenCell(cell, message, getattr(error, "lineno", None) or 1)
    lines = text.split("\n")
    try:
        return tuple(_unit(cell, group, lines) for group in _sharing_lines(tree.body))
    except _PARSER_ERRORS as error:
        # nested deeper than can be followed
        return BrokenCell(cell, type(error).__name__, 1)


def _parsed(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # an odd escape in a string is the learner's business, not the grader's terminal's
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
        compile(text, "<cell>", "exec", dont_inherit=True)
        return tree


def _without_magic(line: str) -> str:
    magic = _MAGIC_LINE.match(line)
    return f"{magic[1] or magic[3] or ''}pass" if magic else line


def _sharing_lines(statements: Sequence[ast.stmt]) -> Iterable[list[ast.stmt]]:
    group: list[ast.stmt] = []
    last = 0
    for statement in statements:
        if group and _first_line(statement) > last:
            yield group
            group = []
        group.append(statement)
        last = statement.end_lineno or statement.lineno
    if group:
        yield group


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _unit(cell: Cell, statements: list[ast.stmt], lines: list[str]) -> Unit:
    first, last = _first_line(statements[0]), statements[-1].end_lineno or statements[-1].lineno
    text = "\n".join(lines[first - 1 : last])
    table = symtable.symtable(text, "<cell>", "exec")
    binds: set[str] = set()
    uses: set[str] = set()
    later: set[str] = set()
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            binds.add(symbol.get_name())
        if symbol.is_referenced():
            uses.add(symbol.get_name())
    _inner(table, uses, later, binds, at_once=True)
    kinds = {_kind(statement) for statement in statements}
    froms = [node for node in statements if isinstance(node, ast.ImportFrom)]
    return Unit(
        cell=cell,
        first_line=first,
        last_line=last,
        text=text,
        shape="\n".join(ast.dump(statement) for statement in statements),
        binds=frozenset(binds),
        uses=frozenset(uses),
        later=frozenset(later),
        changes=frozenset(_changed(statements)),
        kind=kinds.pop() if len(kinds) == 1 else "other",
        partial=not all(isinstance(statement, _WHOLE) for statement in statements),
        star=any(alias.name == "*" for node in froms for alias in node.names),
        future=any(node.module == "__future__" for node in froms),
    )


def _kind(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return "import"
    return "definition" if isinstance(statement, _DEFINITIONS) else "other"


def _inner(
    table: symtable.SymbolTable,
    uses: set[str],
    later: set[str],
    binds: set[str],
    *,
    at_once: bool,
) -> None:
    """Global names of the scopes inside, by whether these run at once or when called."""
    for child in table.get_children():
        immediate = at_once and (child.get_type() == "class" or child.get_name() in _COMPREHENSIONS)
        for symbol in child.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                (uses if immediate else later).add(symbol.get_name())
            if symbol.is_declared_global() and symbol.is_assigned() and immediate:
                binds.add(symbol.get_name())
        _inner(child, uses, later, binds, at_once=immediate)


def _changed(statements: Sequence[ast.AST]) -> Iterable[str]:
    """Names altered in place by statements that run at once: ``x[0] = 1``, ``x.append(1)``."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*_DEFINITIONS, ast.Lambda)):
            continue
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            targets = [node.value.func]
        for target in targets:
            root: ast.AST = target
            while isinstance(root, ast.Subscript | ast.Attribute):
                root = root.value
            if root is not target and isinstance(root, ast.Name):
                yield root.id
        waiting.extend(ast.iter_child_nodes(node))


class Slicer:
    """Collects what a name needs from the statements of a notebook.

    Attributes:
        chosen: positions of the statements that are needed.
        borrowed: of these, the ones that stand after what needs them.
        missing: names that no statement binds.
    """

    def __init__(self, units: Sequence[Unit], end: int) -> None:
        """Args: units in order; the function is called when those before ``end`` have run."""
        self.units = units
        self.end = end
        self.chosen: set[int] = set()
        self.borrowed: set[int] = set()
        self.missing: set[str] = set()
        self._done: set[tuple[str, int]] = set()
        self._bound: dict[str, list[int]] = {}
        for position, unit in enumerate(units):
            for name in unit.binds:
                self._bound.setdefault(name, []).append(position)

    def bindings(self, name: str) -> list[int]:
        """Positions of the statements that bind a name."""
        return self._bound.get(name, [])

    def take(self, position: int) -> None:
        """Need a statement, and all that its functions need once everything has run."""
        waiting: list[tuple[str, int]] = list(self._include(position))
        waiting += [(name, self.end) for name in self.units[position].later]
        while waiting:
            name, before = waiting.pop()
            if (name, before) in self._done:
                continue
            self._done.add((name, before))
            waiting += self._resolve(name, before)

    def _include(self, position: int) -> Iterable[tuple[str, int]]:
        self.chosen.add(position)
        unit = self.units[position]
        # a loop's variable, or an import on the same line: the statement provides it itself
        own = {name for name in unit.binds if self.bindings(name)[0] == position}
        return [(name, position) for name in unit.uses - own]

    def _resolve(self, name: str, before: int) -> Iterable[tuple[str, int]]:
        bound = self.bindings(name)
        earlier = [position for position in bound if position < before]
        if not earlier:
            if not bound:
                self.missing.add(name)
                return
            # a cell was moved: what the person had in memory is further down
            found, before = bound[0], len(self.units)
            self.borrowed.add(found)
        else:
            found = earlier[-1]
        unit = self.units[found]
        yield from self._include(found)
        # whoever uses the name may call it, now or at the end
        yield from ((inner, before) for inner in unit.later)
        if unit.partial and found != bound[0]:
            yield name, found
        if unit.kind == "other":
            for position in range(found + 1, before):
                if name in self.units[position].changes:
                    yield from self._include(position)
