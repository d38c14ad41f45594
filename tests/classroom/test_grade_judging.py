"""Submissions judged: full points for right answers, and no attack costs more than its exercise."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.classroom import submitted as given
from tpulab.classroom.submissions import GradeOptions, grade
from tpulab.classroom.submissions.answers import Answer, Piece
from tpulab.classroom.submissions.judging import (
    Bounds,
    _hidden_failures,
    _Places,
    _stopped_steps,
    judge,
)
from tpulab.classroom.submissions.labs import find_lab
from tpulab.classroom.submissions.reading import Cell, read
from tpulab.exercises import ArgumentSpec, Case, get_exercise
from tpulab.grading import StepResult, check

SCHEMA = json.loads(
    (given.ROOT / "tpulab/classroom/submissions/result_schema.json").read_text("utf-8")
)
THREAD = ThreadPoolExecutor(1)
PATIENT = GradeOptions(secret="a term", chips=("v5e",))
#: for answers that never come to an end
SHORT = GradeOptions(secret="a term", chips=("v5e",), bounds=Bounds(seconds=12.0))
Entries = dict[str, dict[str, Any]]


def graded(tmp_path: Path, notebook, options: GradeOptions = PATIENT) -> Entries:
    """The entries of the exercises of one submission, by function."""
    path = given.write(tmp_path / "in" / "handed_in.ipynb", notebook)
    before = path.read_bytes()
    report = grade([path], tmp_path / "out", options, executor=THREAD)
    assert path.read_bytes() == before
    (result,) = report.results
    jsonschema.validate(result, SCHEMA)
    page = (tmp_path / "out" / "submissions" / "handed_in.html").read_text("utf-8")
    assert page.count("<section") == len(result["exercises"]) + len(result["by_hand"])
    assert result["points"] == pytest.approx(sum(e["points"] for e in result["exercises"]))
    return {entry["exercise"].partition(".")[2]: entry for entry in result["exercises"]}


def failure(entry: dict[str, Any]) -> tuple[str, str, str]:
    """(step, sentence, place) of what failed."""
    step = next(step for step in entry["verdict"]["steps"] if step["answer"] == "failed")
    return step["name"], f"{step['summary']} {step['detail']} {step['hint']}", step["where"]


def inside(function: str, line: str) -> str:
    """The solution with a line of one's own before its first statement."""
    body = "    rows, columns = x.shape\n"
    source = given.solution(function)
    assert body in source
    return source.replace(body, f"    {line}\n{body}")


@pytest.mark.needs_libtpu
def test_right_slow_wrong_and_unwritten_answers(tmp_path) -> None:
    learned_by_heart = given.solution("scale_add").replace(
        "a_ref[0] * x_ref[...] + y_ref[...]",
        "a_ref[0] * x_ref[...] + (y_ref[...] if x.shape in SHOWN else x_ref[...])",
    )
    exercise = get_exercise("first_kernel.scale_add")
    shown = [case.arguments[1].shape for case in exercise.cases]
    shown += [exercise.faithful[1].shape, exercise.speed[1].shape]
    found = graded(
        tmp_path,
        given.with_answers(
            add=given.solution("add"),
            add_blocks=given.solution("add_blocks").replace("block_rows = 512", "block_rows = 8"),
            scale_add=f"SHOWN = {shown!r}\n{learned_by_heart}",
        ),
    )
    add, slow, luck = found["add"], found["add_blocks"], found["scale_add"]
    assert (add["status"], add["points"], add["complete"]) == ("passed", 1.0, True)
    assert add["compiler_version"].startswith("libtpu")
    assert add["predicted_seconds"]["v5e"] > 0
    assert [case["name"] for case in add["hidden"]["cases"]] == ["hidden case 1", "hidden case 2"]
    # two shapes that the lab shows, and two hidden ones
    assert "of 4 shapes" in add["verdict"]["steps"][1]["summary"]

    assert (slow["status"], slow["points"]) == ("passed", 0.7)
    assert slow["verdict"]["rung_number"] == 1

    assert (luck["status"], luck["points"]) == ("failed", 0.1)
    assert failure(luck)[0] == "correct"
    assert luck["hidden"]["only_hidden_wrong"]
    assert set(luck["hidden"]["wrong"]) <= {"hidden case 1", "hidden case 2"}
    assert any("right on every case that the lab shows" in text for text in luck["messages"])

    assert (found["column_sum"]["status"], found["column_sum"]["points"]) == ("not attempted", 0)


def test_attacks_while_it_is_loaded(tmp_path) -> None:
    begin = time.monotonic()
    found = graded(
        tmp_path,
        given.with_answers(
            add="import os\nn = os._exit(3)\n"
            + given.solution("add").replace("out_ref[...] =", "out_ref[...] = n or"),
            add_blocks="def spin():\n    while True:\n        pass\nROWS = spin()\n"
            + given.solution("add_blocks").replace("= 512", "= ROWS"),
            scale_add="ROWS = bytearray(1 << 50)\n"
            + given.solution("scale_add").replace("= 512", "= ROWS"),
            column_sum=given.solution("column_sum") + "\n  oops",
        ),
        SHORT,
    )
    assert time.monotonic() - begin < 90
    assert {entry["points"] for entry in found.values()} == {0}
    assert "ended the whole process with exit status 3" in failure(found["add"])[1]
    assert "more than 12 s in all" in failure(found["add_blocks"])[1]
    assert "more memory" in failure(found["scale_add"])[1]
    assert failure(found["scale_add"])[2].startswith("cell 20, line 1: ROWS")
    assert "Error" in failure(found["column_sum"])[1]
    assert failure(found["column_sum"])[2].endswith("oops")


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_attacks_while_it_runs(tmp_path) -> None:
    target = tmp_path / "in" / "handed_in.ipynb"
    mark = tmp_path / "forked"
    bomb = (
        "[os.execlp(sys.executable, 'python', '-c', 'import time; time.sleep(600)', "
        f"{str(mark)!r}) if os.fork() == 0 else None for _ in range(4)]; time.sleep(600)"
    )
    found = graded(
        tmp_path,
        given.with_answers(
            add="import os, signal\n"
            + given.solution("add").replace(
                '    """x + y', '    os.kill(os.getppid(), signal.SIGKILL)\n    """x + y'
            ),
            add_blocks="import os, sys, time\n" + inside("add_blocks", bomb),
            scale_add=inside("scale_add", "for _ in range(10**7): print('spam' * 1000)"),
            column_sum="import tpulab\ntpulab.check = print\n"
            + inside("column_sum", f"tpulab.check = None; open({str(target)!r}, 'w').write('')"),
        ),
        SHORT,
    )
    assert {entry["points"] for entry in found.values()} == {0}
    assert "other processes" in failure(found["add"])[1]
    assert found["add_blocks"]["status"] == "failed"
    assert "printed more than 8 MiB" in failure(found["scale_add"])[1]
    assert len(found["scale_add"]["output"]) <= 4000
    assert "may not write to" in failure(found["column_sum"])[1]
    deadline = time.monotonic() + 10
    while _running(str(mark)):
        assert time.monotonic() < deadline, "what the answer forked lives on"
        time.sleep(0.2)


def _running(word: str) -> bool:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("name", ["first_kernel.add_blocks", "first_kernel.column_sum"])
def test_the_verdict_is_the_one_the_learner_got(tmp_path, name) -> None:
    """A known-wrong answer pasted into the notebook fails as ``tpulab.check`` says it fails."""
    import importlib
    import inspect

    exercise = get_exercise(name)
    known = next(w for w in exercise.known_wrong if w.step in ("legal", "correct"))
    module, _, name = known.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    learners = check(
        exercise.name, function, quiet=True, until="correct", cache=False, record=False
    )
    source = Path(inspect.getsourcefile(function) or "").read_text("utf-8")
    renamed = f"{source}\n\n{exercise.function_name} = {name}\n"
    found = graded(tmp_path, given.with_answers(**{exercise.function_name: renamed}))
    entry = found[exercise.function_name]
    assert learners.failed is not None
    assert failure(entry)[0] == learners.failed.name == known.step
    assert entry["verdict"]["steps"][["legal", "correct"].index(known.step)]["summary"] == (
        learners.failed.summary
    )
    assert not entry["hidden"]["only_hidden_wrong"]


def test_a_module_with_its_neighbour(tmp_path) -> None:
    """A file of functions; one is right, and what it imports was handed in beside it."""
    head = "import jax\nfrom jax.experimental import pallas as pl\nimport my_tiles\n"
    path = tmp_path / "answers.py"
    source = given.solution("add").replace("x_ref[...] +", "my_tiles.ONE * x_ref[...] +")
    path.write_text(f"{head}\n\n{source}\n")
    (tmp_path / "my_tiles.py").write_text("ONE = 1.0\n")
    submission = read(path)
    from tpulab.classroom.submissions.answers import Answers

    answer = Answers(submission, find_lab("00")).all()[0]
    judged = judge(answer, submission, (), seed=1, chips=("v5e",))
    answers = [step["answer"] for step in judged.verdict["steps"]]
    assert answers[:3] == ["passed"] * 3, judged.verdict["steps"]
    assert not list(tmp_path.glob("*/"))


# ---- how it is told


def test_places_are_cells_and_lines() -> None:
    task = find_lab("00").tasks[0]
    pieces = (
        Piece(Cell(4, "code", "a\nimport jax"), 2, "import jax"),
        Piece(None, 1, "import numpy"),
        Piece(Cell(9, "code", "\n\ndef add():\n    pass"), 3, "def add():\n    pass"),
        Piece(Cell(2, "code", "x = 1", first_line=40), 1, "x = 1"),
    )
    places = _Places(Answer(task, "written", "add", pieces), "/tmp/x/answer.py", 1)
    assert places.told("see /tmp/x/answer.py:2.") == "see cell 4, line 2."
    assert places.told("(answer.py, line 7)") == "(cell 9, line 4)"
    assert places.told({"where": "/tmp/x/answer.py:6"}) == {"where": "cell 9, line 3: def add():"}
    assert places.told(["/private/tmp/x/answer.py:9"]) == ["line 40"]
    assert places.told("/tmp/x/answer.py:4") == "the lab's own cell, line 1"
    assert places.told("my_answer.py:4 answer.pyx") == "my_answer.py:4 answer.pyx"
    assert places.told(3) == 3


def test_a_hidden_shape_is_recognised_in_a_sentence() -> None:
    shown = [Case("shown", (ArgumentSpec((128, 256), "float32"),))]
    hidden = [Case("hidden case 1", (ArgumentSpec((12, 256), "float32"),))]

    def of(summary: str, **data: object) -> tuple[tuple[str, ...], bool]:
        step = {"name": "legal", "answer": "failed", "summary": summary, "detail": "", "data": data}
        return _hidden_failures({"steps": [step]}, shown, hidden)

    assert of("wrong for f32[12,256]") == (("hidden case 1",), True)
    assert of("mul on a 12×256 array") == (("hidden case 1",), True)
    assert of("mul on a 512×256 array") == ((), False)
    assert of("wrong for f32[128,256]") == ((), False)
    assert of("no", arguments="f32[12,256]") == (("hidden case 1",), True)


def test_the_command_line(tmp_path) -> None:
    import subprocess

    path = given.write(tmp_path / "a.ipynb", given.released())
    (tmp_path / "b.ipynb").write_text("no")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tpulab.cli", "grade", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(given.ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    good = run("a.ipynb", "--out", "out", "--json")
    assert good.returncode == 0, good.stderr
    summary = json.loads(good.stdout)
    assert summary["submissions"][0]["max_points"] == 4
    assert "[1/1] a.ipynb: 0 of 4 points" in good.stderr
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    bad = run("a.ipynb", "b.ipynb", "--out", "out")
    assert bad.returncode == 1
    assert "b.ipynb is not a notebook: it is not JSON" in bad.stderr
    assert "a.ipynb: 0 of 4 points (unchanged, kept)" in bad.stderr
    assert run("a.ipynb").returncode == 2
    assert run("a.ipynb", "--out", "out", "--lab", "99").returncode == 2


@pytest.mark.parametrize(
    ("step", "passed"), [("correct", False), ("safe", False), ("fast", None), ("compiles", False)]
)
def test_overtime_fails_a_step_of_the_answers_own_code_and_takes_no_speed_away(step, passed):
    before = StepResult("legal", True, "fine")
    ended = StepResult(step, False, "the process that runs your code ended")
    found = _stopped_steps([before, ended], 12.0)
    assert found[0] is before
    assert found[1].passed is passed
    assert ("more than 12 s" in found[1].summary) == (step != "compiles")
