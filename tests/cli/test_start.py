"""What starting costs, and what it must not load."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("jax", "numpy", "matplotlib", "IPython", "jupyter_core", "rich", "platformdirs")


def _best_seconds(*command: str) -> float:
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True)
        times.append(time.perf_counter() - begun)
    return min(times)


def _loaded_after(program: str) -> set[str]:
    program += f"\nimport sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return set(done.stdout.splitlines()[-1].split() if done.stdout.strip() else ())


def test_help_answers_at_once() -> None:
    # 0.1 s on a quiet machine, 0.3 s promised; doubled for machines that do other things
    assert _best_seconds("-m", "tpulab.cli", "--help") < 0.6


def test_import_costs_almost_nothing() -> None:
    plain = _best_seconds("-c", "pass")
    assert _best_seconds("-c", "import tpulab") - plain < 0.15


def test_import_loads_nothing_heavy() -> None:
    assert _loaded_after("import tpulab") == set()


def test_help_loads_nothing_heavy() -> None:
    program = "from tpulab import cli\nassert cli.main(['ladder', '--help']) == 0"
    assert _loaded_after(program) == set()


def test_chips_does_not_load_jax() -> None:
    program = "from tpulab import cli\nassert cli.main(['chips', 'v5e']) == 0"
    assert "jax" not in _loaded_after(program)
