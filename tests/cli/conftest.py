"""Runs the command line as a person does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tpulab.cli", *words]


def environment() -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), inherited])),
        "COLUMNS": "100",
    }


@pytest.fixture
def tpulab(tmp_path: Path) -> Run:
    """Run one command line in an empty folder."""

    def run(*words: str, timeout: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words),
            cwd=tmp_path,
            env={**environment(), **more},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    return run
