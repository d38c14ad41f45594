"""Functions from Python files: ``FILE.py:FUNCTION``, with its ``make_args()`` beside it."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tpulab.errors import TpulabError, UsageError

_FORM = "write FILE.py:FUNCTION, for example kernels.py:matmul"


class LoadError(TpulabError):
    """A file can't be read or run, or does not hold what was asked for."""


def load_function(
    target: str,
) -> tuple[Callable[..., Any], Callable[[], tuple[Any, ...]] | None]:
    """Import a function from a Python file.

    Args:
        target: ``FILE.py:FUNCTION``; the function's name may be left out when the file defines
            only one public function.

    Returns:
        The function, and a function that returns its example arguments as a tuple:
        ``make_args_FUNCTION`` of the file, else its ``make_args``, else None.

    Raises:
        UsageError: ``target`` is not of that form. LoadError: no such file or function, or the
            file raises; ``where`` is the line in it.
    """
    path, name = _split(target)
    module = load_module(path)
    function = _find(module, name, path)
    found = str(getattr(function, "__name__", name))
    for maker_name in dict.fromkeys((f"make_args_{name or found}", "make_args")):
        maker = getattr(module, maker_name, None)
        if callable(maker):
            return function, _checked_maker(maker, maker_name, path)
    return function, None


def load_module(path: str) -> ModuleType:
    """Run a Python file as a module; siblings in its folder can be imported by it.

    Raises:
        LoadError: there is no such file, or it raises; ``where`` is the line in it.
    """
    full = os.path.abspath(os.path.expanduser(path))
    if not os.path.isfile(full):
        raise LoadError(f"there is no file {path}", hint=_similar_file(full))
    # the name tells two files of the same name apart, and stays the same for one file
    digest = hashlib.sha256(full.encode()).hexdigest()[:8]
    stem = os.path.splitext(os.path.basename(full))[0]
    name = f"_tpulab_{''.join(c if c.isalnum() else '_' for c in stem)}_{digest}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file", hint=_FORM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = os.path.dirname(full)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        sys.modules.pop(name, None)
        raise LoadError(
            f"{path} is not valid Python: {error.msg}",
            where=f"{error.filename or full}:{error.lineno}",
        ) from error
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        if isinstance(error, TpulabError):
            raise
        raise LoadError(
            f"{path} raised {describe(error)} when it was imported",
            hint=_missing_module(error),
            where=line_in_file(error, full),
        ) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module


def describe(error: BaseException) -> str:
    """Type and first line of an exception."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def line_in_file(error: BaseException, path: str) -> str:
    """file:line of the innermost frame of an exception in a file; the file alone if none is."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.abspath(frame.filename) == path
    ]
    return f"{path}:{lines[-1]}" if lines else path


def _missing_module(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name}, or put it beside the file"
    return None


def _split(target: str) -> tuple[str, str | None]:
    path, colon, name = target.rpartition(":")
    drive = len(path) == 1 and path.isalpha()
    if not colon or target.endswith(".py") or drive:
        path, name = target, ""
    if not path or (colon and path != target and not name.isidentifier()):
        raise UsageError(f"can't read {target!r} as a function in a file", hint=_FORM)
    return path, name or None


def _similar_file(full: str) -> str | None:
    folder = os.path.dirname(full)
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".py")]
    except OSError:
        return f"there is no folder {folder} either"
    close = difflib.get_close_matches(os.path.basename(full), names, n=1)
    return f"did you mean {close[0]}?" if close else None


def _public_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not name.startswith("make_args")
        and not inspect.isclass(value)
        and getattr(value, "__module__", None) == module.__name__
    }


def _find(module: ModuleType, name: str | None, path: str) -> Callable[..., Any]:
    functions = _public_functions(module)
    if name is None:
        if len(functions) == 1:
            return next(iter(functions.values()))
        listing = ", ".join(functions) or "none"
        raise UsageError(
            f"{path} defines {len(functions)} public functions ({listing}); say which",
            hint=_FORM,
        )
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, functions, n=1)
        listing = ", ".join(functions) or "none"
        raise LoadError(
            f"there is no function {name} in {path}; its functions: {listing}",
            hint=f"did you mean {close[0]}?" if close else None,
            where=path,
        )
    found = getattr(module, name)
    if not callable(found):
        raise LoadError(f"{name} in {path} is a {type(found).__name__}, not a function", where=path)
    result: Callable[..., Any] = found
    return result


def _checked_maker(maker: Callable[[], Any], name: str, path: str) -> Callable[[], tuple[Any, ...]]:
    full = os.path.abspath(os.path.expanduser(path))

    def make() -> tuple[Any, ...]:
        try:
            made = maker()
        except Exception as error:
            raise LoadError(
                f"{name}() in {path} raised {describe(error)}",
                hint="make_args() takes nothing and returns the function's arguments as a tuple",
                where=line_in_file(error, full),
            ) from error
        if isinstance(made, list):
            return tuple(made)
        return made if isinstance(made, tuple) else (made,)

    return make
