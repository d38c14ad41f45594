"""Checks of command-line words that several verbs share."""

from __future__ import annotations

from pathlib import Path

from tpulab.errors import UsageError


def chip_names(text: str) -> list[str]:
    """Canonical names from ``"v5e,v6e"``, each once, in order.

    Raises:
        UnknownNameError: a chip that is not in the catalogue.
        UsageError: no name at all.
    """
    from tpulab.hardware import get_chip

    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError("--chip needs a name, such as v5e; tpulab chips lists them")
    return list(dict.fromkeys(get_chip(name).name for name in names))


def dtype_word(text: str) -> str:
    """Canonical name of a dtype as people write it: ``bf16``, ``int8``, ``float32``.

    Raises:
        UsageError: it is not a dtype that a TPU knows.
    """
    from tpulab.errors import TpulabError
    from tpulab.hardware import dtype_name

    try:
        return dtype_name(text)
    except TpulabError as error:
        raise UsageError(error.what, why=error.why, hint=error.hint) from error


def check_target(target: str) -> None:
    """See that ``FILE.py:FUNCTION`` has both halves and that the file is there.

    Raises:
        UsageError: it is not so.
    """
    file, colon, function = target.rpartition(":")
    if not colon or not file or not function.isidentifier():
        raise UsageError(
            f"{target!r} does not name a function in a file",
            hint="write FILE.py:FUNCTION, such as kernels.py:matmul",
        )
    path = Path(file)
    if path.is_dir():
        raise UsageError(f"{file} is a folder, not a Python file")
    if not path.is_file():
        near = [p.name for p in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        import difflib

        close = difflib.get_close_matches(path.name, near, n=1)
        raise UsageError(
            f"there is no file {file}",
            hint=f"did you mean {path.with_name(close[0])}?" if close else None,
        )
