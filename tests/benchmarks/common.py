"""Running measurements in fresh processes, and printing them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class Row:
    """One measured figure: what, how much, in which unit, under which circumstances."""

    what: str
    value: float | None
    unit: str
    note: str = ""


def environment(home: str | Path) -> dict[str, str]:
    """The environment of a measured process: its own home, no accelerator looked for."""
    settings = {"TPULAB_HOME": str(home), "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, **settings, "PYTHONPATH": path}


def command_seconds(
    arguments: Sequence[str], home: str | Path, *, statuses: Sequence[int] = (0,)
) -> float:
    """Wall time of `python ARGUMENTS`, which must end with one of the exit statuses."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    seconds = time.perf_counter() - started
    if done.returncode not in statuses:
        said = (done.stdout[-1000:] + done.stderr[-2000:]).strip()
        raise RuntimeError(f"python {' '.join(arguments)} exits with {done.returncode}:\n{said}")
    return seconds


def in_process(script: str, home: str | Path, *arguments: str) -> Any:
    """Run a script in a fresh process; the last line it prints is JSON, and is returned."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"the measured script failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def median(values: Sequence[float]) -> float:
    """The middle of a few runs; robust against one that was disturbed."""
    return statistics.median(values)


def fresh_home() -> tempfile.TemporaryDirectory[str]:
    """An empty home folder, deleted afterwards."""
    return tempfile.TemporaryDirectory(prefix="tpulab-benchmark-", ignore_cleanup_errors=True)


def table(title: str, rows: Sequence[Row]) -> str:
    """Rows as text with aligned columns."""
    texts = [
        (row.what, "none" if row.value is None else f"{row.value:,.4g}", row.unit, row.note)
        for row in rows
    ]
    widths = [max(len(text[column]) for text in texts) for column in range(3)]
    lines = [title, "-" * len(title)]
    for what, value, unit, note in texts:
        line = f"{what:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}  {note}"
        lines.append(line.rstrip())
    return "\n".join(lines)
