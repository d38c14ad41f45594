"""Carry a learner's function to the process that runs it, and know it again by its content."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpulab.errors import TpulabError, UsageError
from tpulab.grading.child import is_learners

_MOST_NEIGHBOURS = 200


class NotShippableError(TpulabError):
    """The function holds something that cannot leave its process."""


@dataclass(frozen=True)
class Shipment:
    """A function on its way.

    Attributes:
        kind: ``"pickle"`` or ``"file"``.
        data: the pickled function, empty for a file.
        path: the file, empty for a pickle.
        name: the function's name in that file, or None for the only one that fits.
        content: SHA-256 of the code and everything it refers to, None when it cannot be told.
        label: how the learner knows the function.
    """

    kind: str
    data: bytes = field(default=b"", repr=False)
    path: str = ""
    name: str | None = None
    content: str | None = None
    label: str = ""

    @property
    def request(self) -> dict[str, Any]:
        """The part of the load request that says what this is."""
        return {"kind": self.kind, "path": self.path, "name": self.name}


def ship(function: Callable[..., Any]) -> Shipment:
    """Pickle a function, by value where it belongs to the learner's own module.

    Raises:
        NotShippableError: it refers to something that cannot be pickled.
    """
    import cloudpickle

    class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                # cloudpickle forgets the file, and with it the place of every error
                return _code_with_file, (*self.dispatch_table[types.CodeType](obj), obj.co_filename)
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    with _by_value(function):
        try:
            _Pickler(buffer).dump(function)
            data = buffer.getvalue()
        except Exception as error:
            raise NotShippableError(
                "your function cannot be sent to the process that checks it: "
                f"{type(error).__name__}: {str(error)[:200]}",
                why="it refers to something that lives only here (an open file, a lock, a widget)",
                hint="let the function use its arguments and modules only",
            ) from error
        content = _content(function)
    label = getattr(function, "__qualname__", None) or type(function).__name__
    return Shipment("pickle", data=data, content=content, label=str(label))


def ship_file(path: str | os.PathLike[str], name: str | None) -> Shipment:
    """A function in a file; the file is only read here, and run where it is checked.

    Raises:
        TpulabError: there is no such file, or it cannot define that function.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise TpulabError(
            f"there is no file {path}", hint="give the path of the Python file with your answer"
        )
    if name is not None:
        _expect(file, name)
    return Shipment(
        "file",
        path=str(file),
        name=name,
        content=_content_of_file(file, name),
        label=f"{file.name}:{name}" if name else file.name,
    )


def _content_of_file(file: Path, name: str | None) -> str | None:
    """A hash of a file and of what it may import from beside or below it; None when too much is."""
    folder = file.parent
    found = [file]
    for depth in ("*.py", "*/*.py", "*/*/*.py"):
        for neighbour in folder.glob(depth):
            parts = neighbour.relative_to(folder).parts
            if not any(part.startswith((".", "__pycache__")) for part in parts):
                found.append(neighbour)
            if len(found) > _MOST_NEIGHBOURS:
                return None
    # which of the files is the answer is part of what is known
    digest = hashlib.sha256(f"{file.name}\0{name}\0".encode())
    for neighbour in sorted(set(found)):
        with contextlib.suppress(OSError):
            place = str(neighbour.relative_to(folder)).encode()
            digest.update(place + b"\0" + neighbour.read_bytes())
    return digest.hexdigest()


def _expect(file: Path, name: str) -> None:
    """Refuse a file that nowhere binds a name; a broken one is left for its verdict."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    names: set[str] = set()
    functions: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            if "*" in bound:
                return
            names |= bound
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            functions.append(node.name)
    if name in names or "globals" in {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}:
        return
    raise UsageError(
        f"{file.name} has no function {name}",
        why=f"it has {', '.join(functions[:8])}" if functions else "it has no function at all",
        hint=f"name the one to check: {file.name}:{functions[0]}" if functions else None,
    )


@contextlib.contextmanager
def _by_value(function: Any) -> Iterator[None]:
    """Within this context functions of the learner's own modules are pickled by value."""
    import cloudpickle

    registered = []
    for name in _modules_of(function):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is None or name == "__main__" or not file or not is_learners(file):
            continue
        if "known_wrong" in file and name.startswith("tpulab."):
            continue
        cloudpickle.register_pickle_by_value(module)
        registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def _modules_of(function: Any) -> set[str]:
    """Names of the modules of a function and of what it wraps (jit, partial, decorators)."""
    found: set[str] = set()
    # the objects themselves are kept: the number of one that is gone may be given out again
    seen: dict[int, Any] = {}
    waiting = [function]
    while waiting:
        current = waiting.pop()
        if id(current) in seen or len(seen) > 32:
            continue
        seen[id(current)] = current
        name = getattr(current, "__module__", None)
        if isinstance(name, str):
            found.add(name)
        for attribute in ("__wrapped__", "func", "__func__"):
            inner = getattr(current, attribute, None)
            if callable(inner) and not isinstance(inner, type):
                waiting.append(inner)
    return found


def _content(function: Any) -> str | None:
    """A hash that is the same for the same code, wherever and on which line it stands."""
    import cloudpickle

    own_modules = _modules_of(function)

    class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, types.CodeType):
                return _code, _code_parts(obj)
            module = obj.__name__ if isinstance(obj, types.ModuleType) else None
            if module is None and isinstance(obj, (types.FunctionType, type)):
                module = obj.__module__ if obj.__module__ not in own_modules else None
            file = getattr(sys.modules.get(module or ""), "__file__", None)
            if file and is_learners(file):
                # a neighbour of the learner's: known by its text
                text = hashlib.sha256(Path(file).read_bytes()).hexdigest()
                return _code, (module, text, getattr(obj, "__qualname__", ""))
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(function)
    except Exception:  # noqa: BLE001 - without a content hash the check only runs in full
        return None
    digest = hashlib.sha256(buffer.getvalue())
    for name in sorted(own_modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and "known_wrong" in file:
            # pickled by reference: known by its text
            digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def _code_with_file(
    restore: Callable[..., types.CodeType], parts: tuple[Any, ...], file: str
) -> types.CodeType:
    """A code object that knows its file again."""
    return restore(*parts).replace(co_filename=file)


def _code(*parts: Any) -> None:
    """Stands for a code object in the hash; never called."""


def _code_parts(code: types.CodeType) -> tuple[Any, ...]:
    return (
        code.co_code,
        code.co_consts,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_name,
    )


def search_path() -> list[str]:
    """``sys.path`` with the present folder written out, for a process that stands elsewhere."""
    return [os.path.abspath(entry) if entry else os.getcwd() for entry in sys.path]
