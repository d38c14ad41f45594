"""Rules for every file of the repository, whoever wrote it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_BINARY = {".png", ".gz", ".ico", ".woff2", ".zst", ".bin"}


def tracked_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        names = [name for name in done.stdout.split("\0") if name]
        return [ROOT / name for name in names if (ROOT / name).is_file()]
    # an archive without its history
    skip = {".venv", ".git", "__pycache__", "work"}
    return [p for p in ROOT.rglob("*") if p.is_file() and not skip & set(p.parts)]


def text_files() -> list[Path]:
    me = Path(__file__)
    return [p for p in tracked_files() if p.suffix not in _BINARY and p != me]


FORBIDDEN = {
    # folders of the machine that somebody happened to write this on
    "machine path": re.compile(
        r"(?<![\w.])(/work/|/root/|/home/(?!me/)\w|/Users/\w|/opt/pypi|/opt/wheels)"
    ),
    # which index packages come from is the reader's business
    "registry address": re.compile(
        r"files\.pythonhosted\.org|https?://pypi\.org/simple|--(extra-)?index-url|registry\.npmjs\.org"
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_of_one_machine_is_in_the_tree(what: str) -> None:
    pattern = FORBIDDEN[what]
    found = []
    for path in text_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_constraints_hold_pins_without_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pin = re.compile(r"[a-z0-9._-]+==\S+( ; .+)?")
    assert [line for line in lines if not pin.fullmatch(line)] == []


def test_constraints_cover_both_lines_of_jax() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert re.search(r"^jax==0\.10\.\d+ ; python_full_version < '3\.12'", text, re.M)
    assert re.search(r"^jax==0\.12\.\S+ ; python_full_version >= '3\.12'", text, re.M)
    assert re.search(r"^libtpu==\S+ ; .*platform_machine == 'x86_64'", text, re.M)


def test_every_dependency_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    start = lines.index("dependencies = [")
    body = lines[start + 1 : lines.index("]", start)]
    for before, line in zip(["", *body], body):
        if line.strip().startswith('"'):
            assert before.strip().startswith("#"), f"{line.strip()} has no reason above it"


def test_every_dependency_is_pinned() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for name, extra in project["optional-dependencies"].items():
        wanted += extra if name != "dev" else []
    pinned = {
        line.partition("==")[0].replace("_", "-").lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = {re.match(r"[\w-]+", text)[0].replace("_", "-").lower() for text in wanted}
    assert names <= pinned


def test_modules_stay_small() -> None:
    big = {
        str(path.relative_to(ROOT)): count
        for path in (ROOT / "tpulab").rglob("*.py")
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 800
    }
    assert not big, f"split these: {big}"


def test_files_end_with_a_newline_and_hold_no_carriage_return() -> None:
    bad = []
    for path in text_files():
        data = path.read_bytes()
        # carriage returns are part of CSV (RFC 4180)
        if data and (not data.endswith(b"\n") or (b"\r\n" in data and path.suffix != ".csv")):
            bad.append(str(path.relative_to(ROOT)))
    assert not bad
