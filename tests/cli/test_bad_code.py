"""Whatever a file does, ``tpulab ladder`` comes back with a sentence and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Run, command, environment

GOOD = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1.0

def add(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def no_kernel(x):
    return x + 1

def two(x, y):
    return add(x) + y

not_a_function = 3

def looping(x):
    while True:
        pass

def exits(x):
    import os
    os._exit(7)

def leaves(x):
    import sys
    sys.exit("bye")

def aborts(x):
    import os
    os.abort()

def allocates(x):
    import numpy as np
    return x + np.ones(50 * 2**30 // 4, np.float32).sum()

def allocates_little_by_little(x):
    kept = []
    while True:
        kept.append(bytearray(b"x" * 2**28))

def floods(x):
    for _ in range(5_000):
        print("x" * 99)
    return add(x)

def raises(x):
    raise ValueError("the message of the code")

def recurses(x):
    return recurses(x)

def raises_inside(x):
    def bad(x_ref, o_ref):
        o_ref[...] = x_ref[...] + undefined_name
    return pl.pallas_call(bad, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(GOOD)
    return path


CASES = {
    "no_kernel": "pallas_call",
    "two": "argument",
    "not_a_function": "not a function",
    "missing": "missing",
    "exits": "exit status 7",
    "leaves": "sys.exit",
    "aborts": "SIGABRT",
    "allocates": "memory",
    "raises": "the message of the code",
    "recurses": "Recursion",
    "raises_inside": "undefined_name",
}


@pytest.mark.parametrize("name", CASES)
def test_bad_functions_get_a_sentence(tpulab: Run, file: Path, name: str) -> None:
    done = tpulab("ladder", f"{file}:{name}", "--arg", "f32[8,128]", "--json")
    assert done.returncode in (1, 2), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    if done.returncode == 2:
        assert done.stdout == ""
        told = done.stderr
    else:
        entry = json.loads(done.stdout)["chips"]["v5e"]
        assert entry["predicted_seconds"] is None
        told = entry["refusal"]["reason"]
    assert CASES[name].lower() in told.lower(), told


def test_memory_taken_bit_by_bit_is_bounded(tpulab: Run, file: Path) -> None:
    target = f"{file}:allocates_little_by_little"
    done = tpulab("ladder", target, "--arg", "f32[8,128]", "--memory", "2", "--json")
    assert done.returncode == 1
    assert "memory" in json.loads(done.stdout)["chips"]["v5e"]["refusal"]["reason"]


@pytest.mark.needs_libtpu
def test_a_memory_limit_is_for_the_code_and_not_for_the_compiler(tpulab: Run, file: Path) -> None:
    done = tpulab("ladder", f"{file}:add", "--arg", "f32[8,128]", "--memory", "2", "--json")
    assert done.returncode == 0, done.stdout


@pytest.mark.needs_libtpu
def test_arrays_of_make_args_do_not_start_the_compiler_in_the_childs_process(
    tpulab: Run, file: Path
) -> None:
    made = "import jax.numpy as jnp\ndef make_args():\n    return (jnp.ones((8, 128)),)\n"
    file.write_text(GOOD + made)
    done = tpulab("ladder", f"{file}:add", JAX_PLATFORMS="")
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""


def test_loop_is_stopped_at_the_deadline(tpulab: Run, file: Path) -> None:
    begun = time.monotonic()
    done = tpulab("ladder", f"{file}:looping", "--arg", "f32[8]", "--deadline", "6")
    assert done.returncode == 1
    assert time.monotonic() - begun < 40
    assert "longer than 6 s" in done.stdout + done.stderr


def test_loop_at_import_is_stopped_too(tpulab: Run, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text("while True:\n    pass\n")
    done = tpulab("ladder", "stuck.py:f", "--arg", "f32[8]", "--deadline", "6")
    assert done.returncode == 1
    assert "importing your file" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
        ("def f(:\n", "syntax"),
        ("\x00", "null"),
        ("raise SystemExit(3)\n", "systemexit"),
    ],
)
def test_files_that_cannot_be_imported(tpulab: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    done = tpulab("ladder", "broken.py:f", "--arg", "f32[8]")
    assert done.returncode in (1, 2)
    assert says in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.needs_libtpu
def test_flood_of_output_is_cut_and_the_answer_is_clean(tpulab: Run, file: Path) -> None:
    done = tpulab("ladder", f"{file}:floods", "--arg", "f32[8,128]", "--json")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["chips"]["v5e"]["refusal"] is None
    assert len(done.stderr) < 100_000
    assert "only the first" in done.stderr


def test_bad_argument_is_bad_usage(tpulab: Run, file: Path) -> None:
    done = tpulab("ladder", f"{file}:add", "--arg", "bf17[8]", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "bf16" in done.stderr


def test_no_arguments_says_how_to_give_them(tpulab: Run, file: Path) -> None:
    done = tpulab("ladder", f"{file}:add")
    assert done.returncode == 2
    assert "make_args" in done.stderr


def _descendants(pid: int) -> set[int]:
    """Living processes below a process, by the parent written in /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("after", [0.3, 2.5])
def test_ending_it_leaves_nothing_behind(file: Path, number: signal.Signals, after: float) -> None:
    process = subprocess.Popen(
        command("ladder", f"{file}:looping", "--arg", "f32[8,128]"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(after)
    below = _descendants(process.pid)
    os.kill(process.pid, number)
    out, said = process.communicate(timeout=20)
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in below if _alive(pid)]
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said.strip() == "tpulab: stopped."
        assert out == ""
    elif number == signal.SIGTERM:
        assert process.returncode == 143
