"""Every kind runs to the end as it is written, and its own check catches it when it is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpulab.scaffolds import KINDS, write

ROOT = Path(__file__).resolve().parents[2]

# kind → name, what is replaced in its file, by what, what its check must say
BROKEN = {
    "matmul": [
        ("not_cleared", "acc_ref[...] = jnp.zeros_like(acc_ref)", "pass", "elements are wrong"),
        ("edge_read", "if depth % block_k:", "if False:", "[96,700]"),
        ("parallel_k", '"parallel", "arbitrary")', '"parallel", "parallel")', "never written"),
    ],
    "attention": [
        ("not_rescaled", "acc_ref[...] * rescale", "acc_ref[...]", "elements are wrong"),
        ("not_scaled", "scores *= q.shape[1] ** -0.5", "scores *= 1.0", "elements are wrong"),
    ],
    "collective": [
        ("no_barrier", "pl.semaphore_wait(barrier, 2)", "pass", "semaphore"),
        ("never_waits", "        copy.wait()\n", "        copy.wait_send()\n", "wait"),
        ("wrong_slot", "me - step + count", "me + step", "wrong"),
    ],
    "vector": [
        ("wrong_axis", "jnp.mean(total * total, axis=1", "jnp.mean(total * total, axis=0",
         "elements are wrong"),
        ("no_weight", "(normalised * weight_ref[...])", "(normalised)", "elements are wrong"),
    ],
}  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.needs_libtpu
@pytest.mark.parametrize(("kind", "chip"), [(k, "v6e" if k == "vector" else "v5e") for k in KINDS])
def test_a_new_file_runs_to_the_end(tmp_path, kind, chip):
    write("mine", kind, tmp_path)
    words = [] if chip == "v5e" else ["--chip", chip]
    result = run(tmp_path, "mine.py", *words)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("✓") >= 3
    assert f"✓ {chip}: the compiler takes it" in result.stdout
    assert f"mine on {chip}" in result.stdout
    if kind == "collective":
        assert f"links of 8 × {chip}" in result.stdout
        assert "8 of 16 links carry nothing" in result.stdout
    else:
        assert "Predicted" in result.stdout
        assert "not measured" in result.stdout


@pytest.mark.needs_libtpu
def test_the_ladder_finds_function_and_arguments(tmp_path):
    write("mine", "vector", tmp_path)
    result = run(tmp_path, "-m", "tpulab.cli", "ladder", "mine.py:mine")
    assert result.returncode == 0, result.stderr
    assert "mine on v5e" in result.stdout
    assert "Predicted" in result.stdout


_CHECK_ALL = """
import sys, importlib
import tpulab
tpulab.start_host_devices(8)
sys.path.insert(0, ".")
for name in sys.argv[1:]:
    try:
        importlib.import_module(name).check("v5e")
    except tpulab.TpulabError as error:
        print(f"== {name}: {type(error).__name__}: {error}")
    else:
        print(f"== {name}: passed")
"""


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("kind", KINDS)
def test_its_own_check_catches_it_when_it_is_broken(tmp_path, kind):
    for name, old, new, _ in BROKEN[kind]:
        file = write(name, kind, tmp_path)
        text = file.read_text()
        assert text.count(old) == 1, (name, old)
        file.write_text(text.replace(old, new))
    result = run(tmp_path, "-c", _CHECK_ALL, *(name for name, *_ in BROKEN[kind]))
    assert result.returncode == 0, result.stderr
    answers = dict(
        part.split(": ", 1) for part in ("\n" + result.stdout).split("\n== ")[1:] if ": " in part
    )
    for name, _, _, says in BROKEN[kind]:
        assert answers[name].startswith("CheckFailed"), result.stdout
        assert says in answers[name], answers[name]


def test_an_unknown_chip_is_a_sentence(tmp_path):
    write("mine", "vector", tmp_path)
    result = run(tmp_path, "mine.py", "--chip", "v5x")
    assert result.returncode == 2
    assert "v5x" in result.stderr
    assert "✗" not in result.stderr
    assert "Traceback" not in result.stderr
