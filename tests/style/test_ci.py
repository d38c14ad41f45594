"""``.ci/run`` runs the README's test command, and fails when anything fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >> "{log}"
case "$*" in
  --version) echo "Python 3.12.9" ;;
  -c*) exit 0 ;;
  *"-m tpulab test"*) echo "3 passed in 0.1s"; {fail} ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def run_ci(
    folder: Path, *, python3: str = "", python312: str = "", browser_tests: bool = False
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the script in a clone whose Pythons only write down what they are asked."""
    clone = folder / "clone"
    (clone / ".ci").mkdir(parents=True)
    (clone / "tests").mkdir()
    shutil.copy(ROOT / ".ci" / "run", clone / ".ci" / "run")
    if browser_tests:
        (clone / "tests" / "test_x.py").write_text("pytestmark = pytest.mark.needs_browser\n")
    tools = folder / "tools"
    tools.mkdir()
    log = folder / "log"
    log.touch()
    stubs = {"python3": python3, "python3.12": python312}
    for name, fail in stubs.items():
        (tools / name).write_text(PYTHON.format(log=log, fail=fail or "true"))
        (tools / name).chmod(0o755)
    (tools / "chromium").write_text("#!/bin/sh\n")
    (tools / "chromium").chmod(0o755)
    done = subprocess.run(
        ["bash", ".ci/run"],
        cwd=clone,
        env={"PATH": f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin", "CI": "true"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done, log.read_text().splitlines()


def test_it_runs_everything_and_the_core_on_the_other_python(tmp_path: Path) -> None:
    done, asked = run_ci(tmp_path, browser_tests=True)
    assert done.returncode == 0, done.stderr
    assert "python3 -m tpulab test" in asked
    assert any(line.startswith("python3.12 -m tpulab test --part jax") for line in asked)
    assert "3 passed" in done.stdout
    assert "time by part" in done.stdout
    assert done.stdout.rstrip().endswith("CI: passed")


@pytest.mark.parametrize("which", ["python3", "python312"])
def test_it_fails_when_a_part_fails(tmp_path: Path, which: str) -> None:
    done, _ = run_ci(tmp_path, **{which: "exit 1"})
    assert done.returncode == 1
    assert "FAILED" in done.stdout


def test_it_calls_what_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text()
    (words,) = re.findall(r"^(python3 -m tpulab test)\s+#", readme, re.M)
    assert words in (ROOT / ".ci" / "run").read_text()
    assert words in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_public_workflow_covers_both_pythons_and_a_tpu() -> None:
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert '["3.11", "3.12"]' in text
    assert "--device tpu" in text


def test_script_is_executable_and_strict() -> None:
    path = ROOT / ".ci" / "run"
    assert sys.platform == "win32" or os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
