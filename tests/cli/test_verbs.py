"""The verbs end to end: ``ladder``, ``roofline``, ``tiling``, ``check`` and the others."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from tests.cli.conftest import Run

KERNELS = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1.0

def add(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

def make_args():
    return (jax.ShapeDtypeStruct((16, 128), jnp.float32),)
"""

ANSWERS = """
import jax
from jax.experimental import pallas as pl

def add_kernel(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]

def add(x, y):
    return pl.pallas_call(add_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

def twice(x, y):
    return add(x, x)

def blank(x, y):
    # TODO(learner): write the kernel and the call
    raise NotImplementedError
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    path = tmp_path / "answers.py"
    path.write_text(ANSWERS)
    return path


def _validated(text: str) -> dict:
    answer = json.loads(text)
    schema = json.loads(resources.files("tpulab").joinpath("ladder_schema.json").read_text())
    jsonschema.validate(answer, schema)
    return answer


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ladder_on_two_chips(tpulab: Run, kernels: Path, tmp_path: Path, jobs: str) -> None:
    done = tpulab(
        *("ladder", f"{kernels}:add", "--chip", "v6e,v5e", "--jobs", jobs),
        *("--json", "--trace", "timeline.json"),
    )
    assert done.returncode == 0, done.stderr
    answer = _validated(done.stdout)
    assert answer["function"] == "add"
    assert answer["arguments"] == ["float32[16,128]"]  # from make_args()
    assert list(answer["chips"]) == ["v6e", "v5e"]
    for chip in ("v5e", "v6e"):
        assert answer["chips"][chip]["predicted_seconds"] > 0
        trace = json.loads((tmp_path / f"timeline.{chip}.json").read_text())
        assert trace["traceEvents"]


@pytest.mark.needs_libtpu
def test_one_chip_that_refuses_makes_the_exit_status_one(tpulab: Run, kernels: Path) -> None:
    # 9 MiB in and 9 MiB out: more than the 16 MiB that v5e gives a kernel, less than v6e's 32
    done = tpulab(
        *("ladder", f"{kernels}:add", "--arg", "f32[2304,1024]", "--chip", "v5e,v6e", "--json")
    )
    assert done.returncode == 1, done.stderr
    chips = _validated(done.stdout)["chips"]
    assert chips["v5e"]["refusal"]["stage"] == "compile"
    assert chips["v5e"]["predicted_seconds"] is None
    assert chips["v6e"]["refusal"] is None


@pytest.mark.needs_libtpu
def test_ladder_as_text_names_rungs_and_chip(tpulab: Run, kernels: Path) -> None:
    done = tpulab("ladder", f"{kernels}:add", "--arg", "f32[8,128]")
    assert done.returncode == 0, done.stderr
    for words in ("add on v5e", "speed of light", "pipeline", "Predicted"):
        assert words in done.stdout


def test_code_that_fails_still_gives_valid_json(tpulab: Run, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(5)\n")
    done = tpulab("ladder", "dies.py:f", "--arg", "f32[8,128]", "--chip", "v5e,v6e", "--json")
    assert done.returncode == 1
    for entry in _validated(done.stdout)["chips"].values():
        assert entry["refusal"]["stage"] == "load"
        assert "exit status 5" in entry["refusal"]["reason"]


def test_trace_into_a_missing_folder_is_said_before_the_work(tpulab: Run, kernels: Path) -> None:
    done = tpulab("ladder", f"{kernels}:add", "--trace", "no/such/folder/t.json")
    assert done.returncode == 2
    assert "--trace" in done.stderr


def test_roofline_of_a_kernel_counts_its_bytes(tpulab: Run, kernels: Path) -> None:
    done = tpulab("roofline", f"{kernels}:add", "--chip", "v5e", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["v5e"]["hbm_bytes"] == 2 * 16 * 128 * 4


def test_roofline_of_a_matmul(tpulab: Run) -> None:
    done = tpulab("roofline", "--matmul", "4096", "4096", "4096", "--json")
    answer = json.loads(done.stdout)["v5e"]
    assert answer["flops"] == 2 * 4096**3
    assert answer["limiting"] == "compute"


def test_roofline_needs_one_kind_of_work(tpulab: Run) -> None:
    assert tpulab("roofline").returncode == 2
    assert tpulab("roofline", "--flops", "1e9", "--matmul", "8", "8", "8").returncode == 2


def test_tiling_of_one_block_and_of_the_best(tpulab: Run) -> None:
    one = tpulab("tiling", "4096", "4096", "4096", "--block", "512", "512", "512", "--json")
    (row,) = json.loads(one.stdout)["v5e"]["tilings"]
    assert row["steps"] == 8**3
    best = tpulab("tiling", "4096", "4096", "4096", "--top", "3", "--json")
    rows = json.loads(best.stdout)["v5e"]["tilings"]
    assert len(rows) == 3
    assert rows[0]["estimate_seconds"] <= row["estimate_seconds"]


@pytest.mark.needs_libtpu
def test_check_says_yes_no_and_not_attempted(tpulab: Run, answers: Path, tmp_path: Path) -> None:
    home = {"TPULAB_HOME": str(tmp_path / "home")}
    right = tpulab("check", "first_kernel.add", str(answers), "--json", **home)
    assert right.returncode == 0, right.stdout + right.stderr
    assert json.loads(right.stdout)["passed"] is True
    wrong = tpulab("check", "first_kernel.add", f"{answers}:twice", **home)
    assert wrong.returncode == 1
    assert "correct" in wrong.stdout
    blank = tpulab("check", "first_kernel.add", f"{answers}:blank", **home)
    assert blank.returncode == 1
    assert "not attempted" in blank.stdout
    rows = json.loads(tpulab("list", "first_kernel", "--json", **home).stdout)
    states = {row["name"]: row["state"] for row in rows}
    assert states["first_kernel.add"] == "passed"
    assert tpulab("reset", "first_kernel.add", **home).returncode == 0
    assert "passed" not in tpulab("list", "first_kernel", **home).stdout.splitlines()[0]


def test_check_of_a_missing_file_is_bad_usage(tpulab: Run) -> None:
    done = tpulab("check", "first_kernel.add", "nowhere.py")
    assert done.returncode == 2
    assert "nowhere.py" in done.stderr


def test_hints_come_one_by_one(tpulab: Run, tmp_path: Path) -> None:
    home = {"TPULAB_HOME": str(tmp_path / "home")}
    first = tpulab("hint", "matmul.tiled", **home).stdout
    second = tpulab("hint", "matmul.tiled", **home).stdout
    assert first.startswith("hint 1 ")
    assert second.startswith("hint 2 ")


def test_solution_is_shown_when_asked_for_outright(tpulab: Run, tmp_path: Path) -> None:
    home = {"TPULAB_HOME": str(tmp_path / "home")}
    assert tpulab("solution", "matmul.tiled", **home).returncode == 1
    shown = tpulab("solution", "matmul.tiled", "--reveal", **home)
    assert shown.returncode == 0
    assert "def tiled(" in shown.stdout


def test_reset_of_a_lab_keeps_what_was_there(tpulab: Run, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "00_first_kernel.ipynb").write_text("my work")
    done = tpulab("reset", "00", "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    kept = [path for path in folder.iterdir() if path.read_text() == "my work"]
    assert len(kept) == 1
    assert kept[0].name != "00_first_kernel.ipynb"


def test_damaged_progress_is_set_aside_with_a_sentence(tpulab: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "progress.sqlite").write_bytes(b"this is no database" * 100)
    done = tpulab("list", TPULAB_HOME=str(home))
    assert done.returncode == 0
    assert "damaged" in done.stdout + done.stderr
    assert list(home.glob("progress.damaged*"))


def test_home_that_cannot_be_written_still_lists(tpulab: Run) -> None:
    done = tpulab("list", TPULAB_HOME="/proc/nowhere")
    assert done.returncode == 0, done.stderr
    assert "matmul.tiled" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.needs_libtpu
def test_a_timeline_that_cannot_be_written_costs_no_ladder(tpulab: Run, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(KERNELS)
    folder = tmp_path / "timeline.json.part"
    folder.mkdir()  # in the way of the file that is renamed when it is whole
    done = tpulab("ladder", "kernel.py:add", "--arg", "f32[8,128]", "--trace", "timeline.json")
    assert done.returncode == 1
    assert "speed of light" in done.stdout
    assert "timeline.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_roofline_says_what_its_figures_are_not(tpulab: Run, tmp_path: Path) -> None:
    assert "starting one takes microseconds" in tpulab("roofline", "--matmul", "1", "2", "3").stdout
    assert "starting" not in tpulab("roofline", "--matmul", "4096", "4096", "4096").stdout
    (tmp_path / "kernel.py").write_text(KERNELS)
    assert "no matrix products" in tpulab("roofline", "kernel.py:add").stdout
