"""Exercises as data: complete, consistent, and their oracles and tolerances are what they say."""

from __future__ import annotations

import importlib
import math

import numpy as np
import pytest

from tpulab.errors import UnknownNameError
from tpulab.exercises import ArgumentSpec, exercises, get_exercise, tracks
from tpulab.exercises.model import STEPS, as_dtype, machine_epsilon
from tpulab.exercises.values import FILLS, make_arguments
from tpulab.hardware import get_chip

ALL = exercises()
NAMES = [exercise.name for exercise in ALL]


def test_names_and_tracks():
    in_order = (
        "first_kernel",
        "roofline",
        "grids",
        "matmul",
        "flash_attention",
        "remote_dma",
        "ring_collectives",
    )
    assert tracks() == tuple(track for track in in_order if track in tracks())
    assert {"first_kernel", "grids", "matmul"} <= set(tracks())
    assert len(set(NAMES)) == len(NAMES)
    assert [e.name for e in exercises("matmul")][-1] == "matmul.best"
    assert get_exercise("matmul.tiled").function_name == "tiled"


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="matmul.tilde") as error:
        get_exercise("matmul.tilde")
    assert "matmul.tiled" in str(error.value)
    with pytest.raises(UnknownNameError):
        exercises("nothing")
    with pytest.raises(UnknownNameError):
        get_exercise(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("exercise", ALL, ids=NAMES)
def test_complete(exercise):
    assert exercise.title
    assert exercise.statement
    assert len(exercise.hints) >= 3
    assert len(exercise.known_wrong) >= 3
    assert exercise.rungs
    assert [r.fraction for r in exercise.rungs] == sorted(r.fraction for r in exercise.rungs)
    for chip in exercise.chips:
        get_chip(chip)
    for case in exercise.cases:
        assert len(case.arguments) == exercise.arity
        assert set(case.fills) <= set(FILLS)
    # every exercise sees random and structured values, and more than one shape
    fills = {fill for case in exercise.cases for fill in case.fills}
    assert "random" in fills
    assert len(fills) >= 2
    assert len({case.arguments for case in exercise.cases}) >= 2


@pytest.mark.parametrize("exercise", ALL, ids=NAMES)
def test_scaffold_is_valid_python_of_the_right_arity(exercise):
    space: dict[str, object] = {}
    exec(compile(exercise.scaffold, "scaffold.py", "exec"), space)
    function = space[exercise.function_name]
    assert function.__doc__
    assert function.__code__.co_argcount == exercise.arity
    assert "TODO(learner)" in exercise.scaffold
    with pytest.raises(NotImplementedError):
        function(*[None] * exercise.arity)


@pytest.mark.parametrize("exercise", ALL, ids=NAMES)
def test_known_wrong_exist_and_name_a_step(exercise):
    for wrong in exercise.known_wrong:
        module, _, function = wrong.function.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert wrong.step in STEPS
        assert wrong.mistake
        assert wrong.says
        assert all(word == word.lower() for word in wrong.says)


@pytest.mark.parametrize("exercise", ALL, ids=NAMES)
def test_oracle_is_float64_and_fits_the_result(exercise):
    for case in exercise.cases:
        arguments = [a.astype(np.float64) for a in make_arguments(case.arguments, "random", 3)]
        want = exercise.oracle(*arguments)
        assert want.dtype == np.float64
        assert want.shape == exercise.result(case.arguments).shape


def test_oracles_on_values_worked_by_hand():
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    y = np.array([[10.0, 20.0], [30.0, 40.0]])
    assert (get_exercise("first_kernel.add").oracle(x, y) == [[11, 22], [33, 44]]).all()
    a = np.array([2.0])
    assert (get_exercise("first_kernel.scale_add").oracle(a, x, y) == [[12, 24], [36, 48]]).all()
    assert (get_exercise("first_kernel.column_sum").oracle(x) == [[4, 6]]).all()
    for exercise in exercises("matmul"):
        assert (exercise.oracle(x, y) == [[70, 100], [150, 220]]).all()


@pytest.mark.parametrize("exercise", ALL, ids=NAMES)
def test_tolerance_admits_rounding_and_refuses_bfloat16_sums(exercise):
    """The exact result, rounded once to the result's dtype, is always inside the tolerance."""
    case = exercise.cases[0]
    for fill in case.fills:
        arguments = tuple(a.astype(np.float64) for a in make_arguments(case.arguments, fill, 5))
        want = exercise.oracle(*arguments)
        allowed = exercise.tolerance_for(arguments, want)
        dtype = as_dtype(exercise.result(case.arguments).dtype)
        rounded = want.astype(dtype).astype(np.float64)
        assert (np.abs(rounded - want) <= allowed).all()
        assert allowed.shape == want.shape


def test_tolerance_of_a_deep_sum_is_below_the_error_of_a_bfloat16_accumulator():
    import ml_dtypes

    exercise = get_exercise("matmul.bf16_scratch")
    arguments = tuple(
        a.astype(np.float64) for a in make_arguments(exercise.cases[1].arguments, "random", 1)
    )
    lhs, rhs = arguments
    total = np.zeros((lhs.shape[0], rhs.shape[1]), ml_dtypes.bfloat16)
    for start in range(0, lhs.shape[1], 128):
        part = lhs[:, start : start + 128] @ rhs[start : start + 128]
        total = (total.astype(np.float64) + part).astype(ml_dtypes.bfloat16)
    want = exercise.oracle(*arguments)
    wrong = np.abs(total.astype(np.float64) - want) > exercise.tolerance_for(arguments, want)
    assert wrong.mean() > 0.1
    in_float32 = (lhs.astype(np.float32) @ rhs.astype(np.float32)).astype(ml_dtypes.bfloat16)
    right = np.abs(in_float32.astype(np.float64) - want) <= exercise.tolerance_for(arguments, want)
    assert right.all()


def test_magnitude_of_a_product_is_a_bound():
    exercise = get_exercise("matmul.whole")
    rng = np.random.default_rng(0)
    lhs, rhs = rng.standard_normal((7, 30)), rng.standard_normal((30, 5))
    terms = np.abs(lhs) @ np.abs(rhs)
    bound = exercise.magnitude(lhs, rhs)
    assert (terms <= bound * (1 + 1e-12)).all()
    assert (bound < 3 * terms).all()


def test_work_of_a_product():
    exercise = get_exercise("matmul.best")
    work = exercise.work(exercise.speed)
    assert work.matmul_flops == 2 * 4096**3
    assert work.bytes == 3 * 2 * 4096**2
    assert (
        get_exercise("first_kernel.add_blocks")
        .work(get_exercise("first_kernel.add_blocks").speed)
        .bytes
        == 3 * 8192 * 1024 * 4
    )


def test_values_are_seeded_and_differ():
    specs = (ArgumentSpec((16, 128), "float32"), ArgumentSpec((16, 128), "bfloat16"))
    for fill in FILLS:
        first, again = make_arguments(specs, fill, 1), make_arguments(specs, fill, 1)
        assert all((a == b).all() for a, b in zip(first, again))
        assert [a.dtype.name for a in first] == ["float32", "bfloat16"]
    one, two = make_arguments(specs, "random", 1), make_arguments(specs, "random", 2)
    assert (one[0] != two[0]).mean() > 0.9
    assert not (one[0] == one[1].astype(np.float32)).all()
    extremes = make_arguments(specs, "extremes", 1)[0]
    assert np.abs(extremes).max() > 1e9
    assert np.isfinite(extremes).all()


def test_argument_spec_text_and_bytes():
    spec = ArgumentSpec((4096, 128), "bfloat16")
    assert str(spec) == "bf16[4096,128]"
    assert spec.size_bytes == 4096 * 128 * 2
    assert machine_epsilon("float32") == np.finfo(np.float32).eps
    assert machine_epsilon("int32") == 0.0
    assert math.isclose(machine_epsilon("bfloat16"), 2**-7)
