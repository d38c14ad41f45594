"""Every known-wrong answer fails where it must and is named; every right one passes everything."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from tpulab.exercises import exercises
from tpulab.exercises.model import STEPS
from tpulab.grading import check
from tpulab.grading.learning import solution_file

ANSWERS = Path(__file__).parent / "answers"
ALL = exercises()


def _known_wrong():
    """Every known-wrong answer; another version of jax gets one for each step of an exercise."""
    seen = set()
    for exercise in ALL:
        for wrong in exercise.known_wrong:
            again = (exercise.name, wrong.step) in seen
            seen.add((exercise.name, wrong.step))
            yield pytest.param(
                exercise,
                wrong,
                id=f"{exercise.name}-{wrong.function.partition(':')[2]}",
                marks=[pytest.mark.first_line] if again else [],
            )


def _module(path: Path):
    name = f"answers_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.mark.needs_libtpu
@pytest.mark.parametrize(("exercise", "wrong"), list(_known_wrong()))
def test_known_wrong(exercise, wrong):
    module, _, function = wrong.function.partition(":")
    answer = getattr(importlib.import_module(module), function)
    verdict = check(
        exercise.name,
        answer,
        chips=wrong.chips,
        quiet=True,
        until=wrong.step,
        cache=False,
        record=False,
    )
    assert verdict.failed is not None, str(verdict)
    assert verdict.failed.name == wrong.step, str(verdict)
    # what the verdict says of the mistake: the exercise's title and the answer's name say it anyway
    failed = verdict.failed
    text = f"{failed.summary}\n{failed.detail}\n{failed.hint}".lower()
    assert any(word in text for word in wrong.says), str(verdict)
    assert verdict.failed.hint, str(verdict)
    # all steps before it passed
    for step in STEPS[: STEPS.index(wrong.step)]:
        # devices that wait for ever, or do not wait, leave no numbers that could be judged
        left = exercise.mesh_axis is not None and (step, wrong.step) == ("correct", "safe")
        assert verdict.step(step).passed or (left and verdict.step(step).passed is None), str(
            verdict
        )


def _right(exercise, style):
    return getattr(_module(ANSWERS / f"{exercise.track}_{style}.py"), exercise.function_name)


def _assert_top(exercise, answer):
    verdict = check(exercise.name, answer, quiet=True, record=False)
    assert [step.passed for step in verdict.steps] == [True] * 5, str(verdict)
    assert verdict.rung == exercise.rungs[-1].name, str(verdict)
    assert verdict.at_top
    assert set(verdict.predicted) == set(exercise.chips)


each_exercise = pytest.mark.parametrize("exercise", ALL, ids=[e.name for e in ALL])


@pytest.mark.first_line
@pytest.mark.needs_libtpu
@each_exercise
def test_an_answer_in_another_style_reaches_the_top(exercise):
    _assert_top(exercise, _right(exercise, "other"))


@pytest.mark.first_line
@each_exercise
def test_an_answer_in_the_style_of_the_statement_is_correct(exercise):
    verdict = check(
        exercise.name, _right(exercise, "plain"), quiet=True, until="correct", record=False
    )
    assert verdict.passed, str(verdict)


def _functions_of_solution(exercise):
    """The functions and imports of the lab's solution file, without running the notebook."""
    file = solution_file(exercise)
    assert file is not None
    text = file.read_text("utf-8")
    kept = [
        node
        for node in ast.parse(text).body
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef))
    ]
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile(ast.Module(kept, []), str(file), "exec"), space)
    return space


@pytest.mark.other_line
@pytest.mark.needs_libtpu
@each_exercise
def test_the_labs_own_solution_reaches_the_top(exercise):
    """On the first line of jax the solved notebooks show it."""
    _assert_top(exercise, _functions_of_solution(exercise)[exercise.solution.partition(":")[2]])
