"""``tpulab test``: everything that has to hold, part by part, with the time each took."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tpulab.errors import TpulabError, UsageError

#: folders below tests/ whose tests start notebook kernels and servers: a part of their own
NOTEBOOK_TESTS = ("tests/labs", "tests/classroom")
#: the book is built once, by the tests that read it
BOOK_TESTS = ("tests/book",)
#: folders below tests/ whose tests run or read jax: they can go differently on another version
JAX_TESTS = tuple(
    f"tests/{room}"
    for room in (
        # the catalogue and the rings of links are held against tables of jax's own
        "hardware",
        "roofline",
        "kernel",
        "compiler",
        "simulator",
        "ladder",
        "kernels_in_jax",
        "exercises",
        "grading",
        "scaffolds",
    )
)
_NO_TESTS_COLLECTED = 5


@dataclass(frozen=True)
class Part:
    """One thing to run.

    Attributes:
        name: as ``--part`` takes it.
        what: for the person who waits.
        command: what is run in the clone.
        folders: test folders it needs; the part is left out where none exists.
        within: the part that holds all of it; it is run only when asked for by name.
    """

    name: str
    what: str
    command: tuple[str, ...]
    folders: tuple[str, ...] = ()
    within: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a part went."""

    name: str
    status: int
    seconds: float


def test(options: argparse.Namespace) -> int:
    """Run the parts; 0 when all passed."""
    root = clone()
    _require_tools()
    if options.device == "tpu":
        parts = [notebooks_on("tpu")]
    else:
        parts = choose(all_parts(options.fast, tuple(options.rest)), options.part)
    outcomes = [_run(part, root) for part in parts]
    _report(outcomes, left_out(options, parts))
    return 0 if all(outcome.status == 0 for outcome in outcomes) else 1


def clone() -> Path:
    """The clone that holds the tests.

    Raises:
        UsageError: tpulab was installed from a wheel, which holds none.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests").is_dir() or not (root / "pyproject.toml").is_file():
        raise UsageError(
            "the tests come with a clone of the repository, and this tpulab was installed without",
            where=str(root),
            hint="clone the repository and run  python3 -m tpulab test  in it",
        )
    return root


def _require_tools() -> None:
    missing = [name for name in ("pytest", "ruff", "mypy", "hypothesis") if not find_spec(name)]
    if missing:
        raise TpulabError(
            f"the tests need {', '.join(missing)}, which this environment does not have",
            hint="pip install -e '.[test]' -c constraints.txt    in the clone",
        )


def all_parts(fast: bool, words: Sequence[str] = ()) -> list[Part]:
    """All parts in the order in which they are run: what fails quickly comes first.

    Args:
        fast: leave slow tests out.
        words: further words for pytest.
    """
    python = sys.executable
    marked = ("not slow",) if fast else ()
    pytest = (python, "-m", "pytest", "-q", *(("-m", *marked) if fast else ()))

    def pytest_without(marker: str) -> tuple[str, ...]:
        return (python, "-m", "pytest", "-q", "-m", " and ".join((*marked, f"not {marker}")))

    # tests that share what they compiled stay together; tests/conftest.py says which
    spread: tuple[str, ...] = ()
    if find_spec("xdist"):
        spread = ("-n", str(min(os.cpu_count() or 1, 8)), "--dist", "loadgroup")
    ignored = tuple(f"--ignore={folder}" for folder in (*NOTEBOOK_TESTS, *BOOK_TESTS))
    return [
        Part("lint", "ruff check", (python, "-m", "ruff", "check", ".")),
        Part("format", "ruff format --check", (python, "-m", "ruff", "format", "--check", ".")),
        Part("types", "mypy", (python, "-m", "mypy")),
        Part(
            "unit",
            "pytest",
            (*pytest_without("other_line"), *spread, "tests", *ignored, *words),
            ("tests",),
        ),
        Part(
            "jax",
            "pytest on what depends on the version of jax",
            (*pytest_without("first_line"), *spread, *JAX_TESTS, *words),
            JAX_TESTS,
            within="unit",
        ),
        Part(
            "notebooks",
            "pytest on labs and notebooks",
            (*pytest, *spread, *NOTEBOOK_TESTS, *words),
            NOTEBOOK_TESTS,
        ),
        Part("book", "pytest on the book", (*pytest, *BOOK_TESTS, *words), BOOK_TESTS),
    ]


def notebooks_on(device: str) -> Part:
    """Every solved notebook, run from top to bottom on a device."""
    command = (sys.executable, "-m", "tpulab.commands.notebooks", device)
    return Part("notebooks", f"solved notebooks with device={device}", command)


def choose(parts: Sequence[Part], names: Sequence[str] | None) -> list[Part]:
    """The parts of the given names, all without names.

    Raises:
        UnknownNameError: a name that no part has.
    """
    if not names:
        return [part for part in parts if not part.within]
    known = [part.name for part in parts]
    for name in names:
        if name not in known:
            from tpulab.errors import UnknownNameError

            raise UnknownNameError("part", name, known)
    return [part for part in parts if part.name in names]


def _run(part: Part, root: Path) -> Outcome:
    print(f"\n== {part.name}: {part.what}", flush=True)
    started = time.monotonic()
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
    process = subprocess.Popen(part.command, cwd=root, env=environment, stdin=subprocess.DEVNULL)
    try:
        status = process.wait()
    except BaseException as error:
        # Ctrl-C reaches the tools by itself; give them the time to tidy up, then insist
        if not isinstance(error, KeyboardInterrupt):
            process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if status == _NO_TESTS_COLLECTED:
        print(f"{part.name}: no test was found, which counts as a failure", flush=True)
    return Outcome(part.name, status, time.monotonic() - started)


def left_out(options: argparse.Namespace, parts: Sequence[Part]) -> list[str]:
    """Sentences about what was not run, and why."""
    sentences = []
    ran = {part.name for part in parts}
    others = [
        part.name for part in all_parts(False) if part.name not in ran and part.within not in ran
    ]
    if others:
        sentences.append(f"{', '.join(others)}: not asked for")
    if options.fast:
        sentences.append("tests marked slow: --fast")
    from tpulab.compiler import missing_reason

    reason = missing_reason()
    if reason:
        sentences.append(f"tests that compile: {reason[0]}")
    browser = missing_browser()
    if browser:
        sentences.append(f"tests in a browser: {browser}")
    if find_spec("myst_nb") is None:
        sentences.append("tests of the book: Sphinx is not installed (extra: book)")
    return sentences


def missing_browser() -> str | None:
    """Why no browser test can run here; None when one can."""
    if find_spec("playwright") is None:
        return "playwright is not installed (extra: browser)"
    if find_browser() is None:
        return "there is no chromium on the PATH"
    return None


def find_browser() -> str | None:
    """A Chromium of any name on the PATH."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        found = shutil.which(name)
        if found:
            return found
    return None


def _report(outcomes: Sequence[Outcome], sentences: Sequence[str]) -> None:
    print("\n== time by part")
    for outcome in outcomes:
        word = "passed" if outcome.status == 0 else f"FAILED (exit status {outcome.status})"
        print(f"  {outcome.name:<10} {outcome.seconds:7.1f} s  {word}")
    print(f"  {'all':<10} {sum(o.seconds for o in outcomes):7.1f} s")
    for sentence in sentences:
        print(f"  left out: {sentence}")
    sys.stdout.flush()
