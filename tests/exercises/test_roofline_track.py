"""Lab 02's exercises: oracles by hand, values of int8, and mistakes that numbers can name."""

from __future__ import annotations

import numpy as np
import pytest

from tpulab.exercises import ArgumentSpec, exercises, get_exercise
from tpulab.exercises.values import make_arguments

TRACK = exercises("roofline")
SUSPECTS = [(e, number) for e in TRACK for number in range(len(e.suspects))]


def test_oracles_on_values_worked_by_hand():
    x = np.array([[1.0, -4.0], [0.0, 0.0]])
    assert (get_exercise("roofline.stream").oracle(x) == [[0.25, -1.0], [0.0, 0.0]]).all()
    vectors = np.array([[1.0, 2.0], [3.0, 4.0]])
    matrices = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    gemv = get_exercise("roofline.gemv_batched")
    assert (gemv.oracle(vectors, matrices) == [[1, 2], [4, 3]]).all()
    int8 = get_exercise("roofline.int8_weights")
    assert (
        int8.oracle(vectors, matrices[1], np.array([[10.0, 100.0]])) == [[20, 100], [40, 300]]
    ).all()
    assert (get_exercise("roofline.reread").oracle(vectors, matrices[1]) == [[2, 1], [4, 3]]).all()


def test_int8_values_fill_their_range_and_whole_numbers_stay():
    spec = (ArgumentSpec((64, 64), "int8"),)
    (values,) = make_arguments(spec, "random", 1)
    assert values.dtype == np.int8
    assert values.min() < -100
    assert values.max() > 100
    assert len(np.unique(values)) > 150
    assert (make_arguments(spec, "ones", 1)[0] == 1).all()
    assert (make_arguments(spec, "identity", 1)[0] == np.eye(64)).all()


@pytest.mark.parametrize(("exercise", "number"), SUSPECTS)
def test_a_suspect_is_wrong_on_random_values(exercise, number):
    """Otherwise it would accuse right answers."""
    case = exercise.cases[0].arguments
    arguments = tuple(a.astype(np.float64) for a in make_arguments(case, "random", 2))
    # blocks of half of every dimension, one row or one matrix as the kernels take them
    blocks = tuple(tuple(max(1, size // 2) for size in a.shape) for a in arguments)
    blocks += (blocks[-1],)
    looks_like = exercise.suspects[number].compute(arguments, blocks)
    want = exercise.oracle(*arguments)
    assert looks_like is not None
    assert looks_like.shape == want.shape
    wrong = np.abs(looks_like - want) > exercise.tolerance_for(arguments, want)
    assert wrong.mean() > 0.02
    assert exercise.suspects[number].hint


@pytest.mark.parametrize("exercise", TRACK, ids=[e.name for e in TRACK])
def test_the_bound_moves_where_the_lab_says(exercise):
    from tpulab.grading.speed import speed_of_light

    work = exercise.work(exercise.speed)
    compute = work.matmul_flops / 197e12
    memory = work.bytes / 819e9
    decides = "compute" if compute > memory else "memory"
    assert decides == ("compute" if exercise.name == "roofline.reread" else "memory")
    assert speed_of_light(work, "v5e") == pytest.approx(max(compute, memory))
