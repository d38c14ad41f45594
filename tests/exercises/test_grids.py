"""Lab 03's exercises as data: oracles worked by hand, and moves counted by walking the grid."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from tpulab.exercises import exercises, get_exercise
from tpulab.exercises.known_wrong import grids as wrong
from tpulab.grading.comparing import diagnose
from tpulab.kernel import trace

X = np.array([[1.0, -2.0, 3.0], [-4.0, -5.0, -6.0]])


def test_oracles_on_values_worked_by_hand():
    bias = np.array([[10.0, 20.0, 30.0]])
    assert (
        get_exercise("grids.broadcast_add").oracle(X, bias) == [[11, 18, 33], [6, 15, 24]]
    ).all()
    assert (get_exercise("grids.transpose").oracle(X) == [[1, -4], [-2, -5], [3, -6]]).all()
    assert (get_exercise("grids.row_sums").oracle(X) == [[2], [-15]]).all()
    assert (get_exercise("grids.row_max").oracle(X) == [[3], [-4]]).all()
    batch = np.stack([np.eye(2), 2 * np.eye(2)])
    other = np.array([[[1.0, 2.0], [3.0, 4.0]]] * 2)
    product = get_exercise("grids.batched_matmul").oracle(batch, other)
    assert (product == [[[1, 2], [3, 4]], [[2, 4], [6, 8]]]).all()
    added = get_exercise("grids.add_positions").oracle(other, np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert (added == [[[2, 3], [3, 4]]] * 2).all()


def test_least_bytes_count_each_array_once():
    # float32[16, 2048, 1024] in and out, and the table once
    work = get_exercise("grids.add_positions").work(get_exercise("grids.add_positions").speed)
    assert work.bytes == (2 * 16 + 1) * 2048 * 1024 * 4
    work = get_exercise("grids.batched_matmul").work(get_exercise("grids.batched_matmul").speed)
    assert work.bytes == 64 * 512 * 512 * (2 + 2 + 4)
    assert work.matmul_flops == 64 * 2 * 512**3


def walk(grid, index_map):
    """How often the answer of an index map changes from step to step."""
    answers = [index_map(*step) for step in itertools.product(*map(range, grid))]
    return 1 + sum(a != b for a, b in itertools.pairwise(answers))


@pytest.mark.parametrize(
    ("batch_first", "grid", "index_map", "fetched"),
    [(False, (4, 16), lambda i, b: (i, 0), 4), (True, (16, 4), lambda b, i: (i, 0), 64)],
)
def test_the_order_of_the_grid_decides_how_often_the_table_moves(
    batch_first, grid, index_map, fetched
):
    import jax

    specs = get_exercise("grids.add_positions").speed
    arguments = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in specs]
    traced = trace(lambda x, t: wrong._positions(x, t, batch_first=batch_first), *arguments)
    (call,) = traced.calls
    assert call.grid == grid
    assert walk(grid, index_map) == fetched
    assert int(call.moves("other_ref").sum()) == fetched
    assert int(call.moves("x_ref").sum()) == walk(grid, lambda *step: step) == 64


def test_rungs_lie_between_the_wrong_order_and_the_right_one():
    """HBM reaches 82 % of its data sheet on a v5e; 64 fetches cost 3 in place of 2 + 1/16."""
    rungs = get_exercise("grids.add_positions").rungs
    assert 0.82 * (2 + 1 / 16) / 3 < rungs[0].fraction < rungs[-1].fraction < 0.82


def suspect_named(exercise, got, arguments, blocks):
    run = SimpleNamespace(
        case=exercise.cases[0],
        fill="random",
        arguments=arguments,
        got=got,
        want=exercise.oracle(*arguments),
        right=np.isclose(got, exercise.oracle(*arguments)),
        allowed=np.full(got.shape, 1e-9),
        blocks=blocks,
        kernel={},
    )
    return diagnose(exercise, [run], []).mistake


def test_swapped_blocks_are_named_from_the_numbers():
    exercise = get_exercise("grids.transpose")
    x = np.random.default_rng(0).standard_normal((4, 4))
    blocks = ((2, 2), (2, 2))
    in_place = x.copy()
    moved = x.T.copy()
    for i, j in itertools.product(range(2), range(2)):
        rows, cols = slice(2 * i, 2 * i + 2), slice(2 * j, 2 * j + 2)
        in_place[rows, cols] = x[rows, cols].T
        moved[cols, rows] = x[rows, cols]
    assert "swapped" in suspect_named(exercise, in_place, (x,), blocks)
    assert "turned inside" in suspect_named(exercise, moved, (x,), blocks)


def test_a_zero_in_a_maximum_is_named():
    exercise = get_exercise("grids.row_max")
    got = np.array([[3.0], [0.0]])
    assert "zero takes part" in suspect_named(exercise, got, (X,), ((2, 2), (2, 1)))


def test_half_of_the_puzzles_give_the_kernel():
    given = [e for e in exercises("grids") if "Write only the call" in e.statement]
    assert 2 * len(given) >= len(exercises("grids"))
    for exercise in given:
        assert "def kernel(" in exercise.statement
