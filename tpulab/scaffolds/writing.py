"""A new kernel file from a kind's template."""

from __future__ import annotations

import ast
import keyword
import re
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from tpulab.errors import TpulabError, UnknownNameError, UsageError

#: Kind → what its kernel computes.
KINDS: Mapping[str, str] = {
    "matmul": "lhs @ rhs in blocks, any shape, summed in float32",
    "attention": "flash attention: softmax(q @ k.T) @ v with an online softmax",
    "collective": "all-gather around a ring of devices, by remote copies",
    "vector": "RMSNorm of a sum, in one pass over HBM",
}

# the name that the templates' function has; its kernel is named after it
_PLACEHOLDER = re.compile(r"\bscaffold(?=(_kernel)?\b)")
# a file with the name of a package that it imports would be imported in its place
_PACKAGES = frozenset({"jax", "jaxlib", "libtpu", "ml_dtypes", "numpy", "scipy", "tpulab"})
# so long that no line of a template becomes longer than 100 characters
_LONGEST_NAME = 28


def write(name: str, kind: str, folder: str | Path = ".") -> Path:
    """Write ``name.py``, a working kernel with its oracle, check, ladder and benchmark.

    Args:
        name: of the kernel's function, and of the file.
        kind: one of :data:`KINDS`.
        folder: where to; it is made when it is not there.

    Returns:
        The file.

    Raises:
        UnknownNameError: there is no such kind.
        UsageError: the name cannot be a function's, or would hide something.
        TpulabError: there is such a file already, or it cannot be written.
    """
    text = source(name, kind)
    folder = Path(folder).expanduser()
    file = folder / f"{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TpulabError(
            f"{folder} cannot be a folder for it: {error.strerror}",
            hint="name a folder of yours with --out",
        ) from error
    try:
        # "x" also refuses what appears between a look and the writing
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise TpulabError(
            f"there is a {file} already, and it stays as it is",
            hint="take another name, or another folder with --out",
        ) from error
    except OSError as error:
        raise TpulabError(
            f"{file} cannot be written: {error.strerror}",
            hint="name a folder of yours with --out",
        ) from error
    return file


def source(name: str, kind: str) -> str:
    """The text of a new kernel file.

    Raises:
        UnknownNameError, UsageError: as :func:`write`.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind of kernel", kind, KINDS)
    _check_name(name)
    text = template(kind)
    if name in _identifiers(text):
        raise UsageError(
            f"the file uses the name {name} itself",
            why="your kernel would hide what the rest of the file means by it",
            hint=f"for example {_other_name(name, kind)}",
        )
    return _PLACEHOLDER.sub(name, text)


def template(kind: str) -> str:
    """The text of a kind's template."""
    file = resources.files("tpulab.scaffolds").joinpath("templates", f"{kind}.py")
    return file.read_text("utf-8")


def _check_name(name: str) -> None:
    suggestion = _as_identifier(name)
    hint = f"for example {suggestion}" if suggestion else "for example my_kernel"
    if not name.isidentifier() or not name.isascii():
        slip = "a dash" if "-" in name else "a dot" if "." in name else ""
        raise UsageError(
            f"{name!r} cannot be the name of a Python function"
            + (f": it has {slip} in it" if slip else ""),
            why="a name is made of letters a to z, digits and underscores, no digit first",
            hint=hint,
        )
    if keyword.iskeyword(name):
        raise UsageError(
            f"{name} is a word of Python's own",
            hint=f"for example {name}_kernel",
        )
    if name.startswith("_"):
        raise UsageError(
            f"{name} begins with an underscore, which hides a function",
            hint=hint,
        )
    if name.lower() in _PACKAGES or name in sys.stdlib_module_names:
        raise UsageError(
            f"a file {name}.py would be imported in place of the module {name}",
            why="Python looks into the folder of the file that runs before anywhere else",
            hint=f"for example {name}_kernel",
        )
    if len(name) > _LONGEST_NAME:
        raise UsageError(
            f"the name has {len(name)} characters; {_LONGEST_NAME} are the most",
            hint=f"for example {name[:_LONGEST_NAME].rstrip('_')}",
        )


def _as_identifier(name: str) -> str:
    """A name like the one given that would do, or an empty one."""
    stem = name.removesuffix(".py")
    word = re.sub(r"[^A-Za-z0-9_]+", "_", stem).strip("_")[:_LONGEST_NAME].rstrip("_")
    if word[:1].isdigit():
        word = f"kernel_{word}"[:_LONGEST_NAME]
    usable = word and not keyword.iskeyword(word) and word not in sys.stdlib_module_names
    return word if usable else ""


def _other_name(name: str, kind: str) -> str:
    return f"my_{name}" if len(name) < _LONGEST_NAME - 3 else f"my_{kind}"


def _identifiers(text: str) -> set[str]:
    """Every name that a template gives a meaning to or looks up, its own two left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return {name for name in found if not _PLACEHOLDER.match(name)}
