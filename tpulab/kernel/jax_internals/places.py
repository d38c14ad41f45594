"""Where in the user's code something was written: equations, functions, errors."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

from tpulab.kernel.jax_internals.structure import open_jaxpr


def _location(traceback: Any) -> str | None:
    if traceback is None:
        return None
    from jax._src import source_info_util

    frame = source_info_util.user_frame(traceback)
    return f"{frame.file_name}:{frame.start_line}" if frame else None


def equation_location(equation: Any) -> str | None:
    """file:line in the user's code that made an equation, None when it is not known."""
    try:
        return _location(equation.source_info.traceback)
    except Exception:  # noqa: BLE001 - a place is a courtesy, whatever goes wrong with it
        return None


def function_and_location(jaxpr: Any) -> tuple[str, str | None]:
    """Name and file:line of the function that a jaxpr was traced from."""
    info = getattr(open_jaxpr(jaxpr), "debug_info", None)
    text = getattr(info, "func_src_info", None) or "?"
    name, _, place = text.partition(" at ")
    return name, place or None


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """Names of the function's flattened arguments, () when not known."""
    info = getattr(open_jaxpr(jaxpr), "debug_info", None)
    return tuple(getattr(info, "arg_names", None) or ())


def same_source(place: str | None) -> bool:
    """True when ``place`` is in the user's code and not inside JAX itself."""
    return place is not None and f"{os.sep}jax{os.sep}_src{os.sep}" not in place


def user_line(error: BaseException) -> str | None:
    """file:line of the innermost frame of ``error`` in code that is neither JAX nor tpulab."""
    place: str | None = None
    seen: set[int] = set()
    current: BaseException | None = error
    package = str(Path(__file__).parents[2])
    while current is not None and id(current) not in seen and place is None:
        seen.add(id(current))
        traceback = current.__traceback__
        while traceback is not None:
            name = traceback.tb_frame.f_code.co_filename
            if not _is_library(name, package):
                place = f"{name}:{traceback.tb_lineno}"
            traceback = traceback.tb_next
        current = current.__cause__ or current.__context__
    return place


_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")


def _is_library(filename: str, package: str) -> bool:
    if filename.startswith((package, "<frozen")):
        return True
    return bool(_LIBRARY.search(filename)) and not filename.endswith(".ipynb")


def source_of(function: Any) -> str | None:
    """file:line where a function is defined, None when it can't be told."""
    try:
        target = inspect.unwrap(function)
        while hasattr(target, "func"):
            target = target.func
        code = target.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"
    except (AttributeError, ValueError):
        return None
