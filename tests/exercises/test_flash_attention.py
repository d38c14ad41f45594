"""Attention: its oracle by hand, what its tolerance lets through, and what its suspects say."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from tpulab.exercises import ArgumentSpec, get_exercise
from tpulab.exercises.attention_mistakes import (
    by_head,
    online,
    scores_of,
    seen_before,
    to_bfloat16,
    up_to_diagonal,
)
from tpulab.exercises.values import make_arguments
from tpulab.grading.comparing import _is_tail, diagnose, outcome

SMALL = (ArgumentSpec((2, 256, 64), "bfloat16"),) * 3
BLOCKS = ((1, 64, 64), (1, 32, 64), (1, 32, 64), (1, 64, 64))


def _arguments(fill, specs=SMALL, seed=0):
    return tuple(item.astype(np.float64) for item in make_arguments(specs, fill, seed))


def _allowed(exercise, arguments):
    want = exercise.oracle(*arguments)
    return want, exercise.tolerance_for(arguments, want)


def test_the_oracle_by_hand():
    # scores ln 3 and 0: weights 3/4 and 1/4
    query, key, value = (
        np.array([[math.log(3)]]),
        np.array([[1.0], [0.0]]),
        np.array([[8.0], [4.0]]),
    )
    assert get_exercise("flash_attention.rows").oracle(query, key, value) == pytest.approx(7.0)
    causal = get_exercise("flash_attention.causal").oracle
    query = np.full((1, 2, 1), math.log(3))
    assert causal(query, key[None], value[None])[0, :, 0] == pytest.approx([8.0, 7.0])
    # equal scores: the mean of what is seen; heads 0 and 1 share the first key head
    grouped = get_exercise("flash_attention.grouped").oracle
    value = np.array([[[1.0], [3.0]], [[5.0], [9.0]]])
    out = grouped(np.zeros((4, 2, 1)), np.zeros((2, 2, 1)), value)
    assert out[:, :, 0].tolist() == [[1, 2], [1, 2], [5, 7], [5, 7]]


def test_work_counts_what_is_seen():
    work = get_exercise("flash_attention.causal").work
    array = ArgumentSpec((2, 3, 8), "bfloat16")
    # six scores a head, two products of eight multiply-adds each
    assert work((array, array, array)).matmul_flops == 2 * 6 * 2 * 8 * 2
    streaming = get_exercise("flash_attention.streaming").work
    assert streaming((array, array, array)).matmul_flops == 2 * 9 * 2 * 8 * 2
    assert streaming((array, array, array)).bytes == 4 * 2 * 3 * 8 * 2


@pytest.mark.parametrize("fill", ["random", "ones", "large", "opposed", "rising"])
@pytest.mark.parametrize("name", ["streaming", "causal"])
def test_the_online_update_is_attention(fill, name):
    exercise = get_exercise(f"flash_attention.{name}")
    arguments = _arguments(fill)
    want, allowed = _allowed(exercise, arguments)
    masked = {"mask": seen_before, "live": up_to_diagonal} if name == "causal" else {}
    for blocks in ((64, 32), (32, 64), (256, 256)):
        got = online(arguments, blocks, **masked)
        assert (np.abs(got - want) < 0.02 * allowed + 1e-6).all()


@pytest.mark.parametrize("fill", ["random", "ones", "large", "opposed", "rising"])
def test_weights_in_bfloat16_pass(fill):
    arguments = _arguments(fill)
    want, allowed = _allowed(get_exercise("flash_attention.streaming"), arguments)
    query, key, value = by_head(arguments)
    scores = scores_of(query, key)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    got = to_bfloat16(to_bfloat16(weights) @ value / weights.sum(axis=-1, keepdims=True))
    assert (np.abs(got - want) <= allowed).all()


def test_statistics_in_bfloat16_fail():
    exercise = get_exercise("flash_attention.streaming")
    for fill in ("large", "rising"):
        arguments = _arguments(fill)
        want, allowed = _allowed(exercise, arguments)
        got = online(arguments, (64, 32), store=to_bfloat16)
        assert (np.abs(got - want) > allowed).mean() > 0.02
    # with scores that are nearly equal it takes many blocks
    long = ArgumentSpec((2, 8192, 64), "bfloat16")
    arguments = _arguments("opposed", (ArgumentSpec((2, 64, 64), "bfloat16"), long, long))
    want, allowed = _allowed(exercise, arguments)
    got = online(arguments, (64, 512), store=to_bfloat16)
    assert (np.abs(got - want) > allowed).any()


def _suspects():
    seen = set()
    for name in ("streaming", "causal", "grouped"):
        exercise = get_exercise(f"flash_attention.{name}")
        for suspect in exercise.suspects:
            if suspect.mistake not in seen:
                seen.add(suspect.mistake)
                yield pytest.param(exercise, suspect, id=f"{name}: {suspect.mistake[:40]}")


@pytest.mark.parametrize(("exercise", "suspect"), list(_suspects()))
def test_a_suspect_leaves_wrong_numbers_and_is_named(exercise, suspect):
    """On some values its result is wrong, and the diagnosis of that result is its sentence."""
    heads, keys = (4, 2) if exercise.function_name == "grouped" else (1, 1)
    kernel = {"calls": [{"operands": [{"block": list(block)} for block in BLOCKS]}]}
    # with 64 the scale is 1/8, which no rounding sees
    for depth, fill in itertools.product((64, 128), ("random", "large", "opposed", "rising")):
        query = ArgumentSpec((heads, 256, depth), "bfloat16")
        for length in (256, 250):
            key = ArgumentSpec((keys, length, depth), "bfloat16")
            arguments = _arguments(fill, (query, key, key))
            with np.errstate(all="ignore"):
                looks_like = suspect.compute(arguments, BLOCKS)
            if looks_like is None:
                continue
            got = looks_like.astype(ml_dtypes.bfloat16).astype(np.float64)
            run = outcome(exercise, exercise.cases[0], fill, 0, arguments, got, kernel)
            if not run.passed and diagnose(exercise, [run], []).mistake == suspect.mistake:
                return
    raise AssertionError(f"never named: {suspect.mistake}")


def test_rows_that_nobody_wrote_are_a_tail_in_every_head():
    mask = np.zeros((2, 8, 4), bool)
    assert not _is_tail(mask)
    mask[:, 6:] = True
    assert _is_tail(mask)
    mask[1, 0, 0] = True
    assert not _is_tail(mask)
