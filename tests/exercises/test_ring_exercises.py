"""Labs 30 and 31: oracles worked by hand, suspects, bounds, and rungs that tell the ways apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tpulab.exercises import exercises, get_exercise
from tpulab.hardware import get_chip
from tpulab.roofline.links import collective_cost, link_time

RINGS = (*exercises("remote_dma"), *exercises("ring_collectives"))


def column(*values: float) -> np.ndarray:
    """One number for each device: float64[devices, 1, 1]."""
    return np.array(values, np.float64).reshape(-1, 1, 1)


@pytest.mark.parametrize("exercise", RINGS, ids=[e.name for e in RINGS])
def test_cases_have_two_four_and_eight_devices(exercise):
    assert exercise.mesh_axis == "ring"
    assert [exercise.devices(case.arguments) for case in exercise.cases] == [2, 4, 8]
    assert exercise.devices(exercise.speed) == 8
    assert exercise.result(exercise.speed).shape[0] == 8


def test_oracles_by_hand():
    shards = column(1, 2, 3, 4)
    wanted = {
        "remote_dma.shift": [4, 1, 2, 3],
        "remote_dma.exchange": [2, 1, 4, 3],
        "remote_dma.both_neighbours": [[4, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 1]],
        "ring_collectives.all_gather": [[1, 2, 3, 4]] * 4,
        "ring_collectives.all_gather_both_ways": [[1, 2, 3, 4]] * 4,
        "ring_collectives.all_reduce": [10, 10, 10, 10],
    }
    for name, want in wanted.items():
        got = get_exercise(name).oracle(shards)
        assert (got.reshape(np.shape(want)) == want).all(), name
    # device i ends with the sum of what all hold in row i
    partials = np.array([[1.0, 10.0], [2.0, 20.0]]).reshape(2, 2, 1, 1)
    got = get_exercise("ring_collectives.reduce_scatter").oracle(partials)
    assert (got.ravel() == [3, 30]).all()


def test_copies_must_be_exact_and_sums_need_not():
    shards = column(1, 2, 3, 4)
    exact = get_exercise("remote_dma.shift")
    assert (exact.tolerance_for((shards,), exact.oracle(shards)) == 0).all()
    total = get_exercise("ring_collectives.all_reduce")
    allowed = total.tolerance_for((shards,), total.oracle(shards))
    assert (allowed > 0).all()
    assert (allowed < 10 * 2.0**-8).all(), "a sum in bfloat16 would pass"


@pytest.mark.parametrize("exercise", RINGS, ids=[e.name for e in RINGS])
def test_suspects_differ_from_the_right_result(exercise):
    rng = np.random.default_rng(0)
    (spec,) = exercise.cases[1].arguments
    arguments = (rng.standard_normal(spec.shape),)
    right = exercise.oracle(*arguments)
    seen = [suspect.compute(arguments, ()) for suspect in exercise.suspects]
    assert seen
    for position, got in enumerate(seen):
        assert got.shape == right.shape
        assert (np.abs(got - right) > exercise.tolerance_for(arguments, right)).any()
        assert not any(np.array_equal(got, other) for other in seen[:position])


def ring_of(chunk_bytes: int, rounds: int, ways: tuple[int, ...], devices: int = 8):
    """Transfers of a ring: in each round each device sends a chunk each way."""
    return [
        SimpleNamespace(
            round=number, source=device, target=(device + way) % devices, size_bytes=chunk_bytes
        )
        for number in range(1, rounds + 1)
        for device in range(devices)
        for way in ways
    ]


def fraction(exercise, transfers, chip: str) -> float:
    work = exercise.work(exercise.speed)
    bound = collective_cost(work.collective, work.link_bytes, chip, 8).seconds
    return bound / link_time(transfers, chip, 8).seconds


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_rungs_tell_one_way_from_both(chip):
    both = get_exercise("remote_dma.both_neighbours")
    shard = both.speed[0].size_bytes // 8
    in_turn = ring_of(shard, 1, (1,)) + [
        SimpleNamespace(**{**vars(one), "round": 2}) for one in ring_of(shard, 1, (-1,))
    ]
    assert fraction(both, ring_of(shard, 1, (1, -1)), chip) > both.rungs[-1].fraction
    assert fraction(both, in_turn, chip) < both.rungs[0].fraction

    gather = get_exercise("ring_collectives.all_gather_both_ways")
    shard = gather.speed[0].size_bytes // 8
    assert fraction(gather, ring_of(shard // 2, 7, (1, -1)), chip) > gather.rungs[-1].fraction
    assert fraction(gather, ring_of(shard, 7, (1,)), chip) < gather.rungs[0].fraction

    reduce = get_exercise("ring_collectives.all_reduce")
    array = reduce.speed[0].size_bytes // 8
    one_way = fraction(reduce, ring_of(array // 8, 14, (1,)), chip)
    assert reduce.rungs[0].fraction < one_way < reduce.rungs[1].fraction
    assert fraction(reduce, ring_of(array // 16, 14, (1, -1)), chip) > reduce.rungs[1].fraction
    assert fraction(reduce, ring_of(array, 7, (1,)), chip) < reduce.rungs[0].fraction


def test_the_questions_of_the_labs_are_answered_by_the_model():
    """Microseconds that the labs' first cells name, from bytes, bandwidth and hops by hand."""
    link = get_chip("v5e").ici.link_bandwidth_bytes_per_second
    mebi = 2**20

    def microseconds(chunk_bytes: int, rounds: int, ways: tuple[int, ...]) -> float:
        seconds = link_time(ring_of(chunk_bytes, rounds, ways), "v5e", 8).seconds
        assert seconds == pytest.approx(rounds * (chunk_bytes / link + 1e-6))
        return seconds * 1e6

    # lab 30
    assert microseconds(4 * mebi, 1, (1, -1)) == pytest.approx(94, abs=0.5)
    assert 2 * microseconds(4 * mebi, 1, (1,)) == pytest.approx(188, abs=0.5)
    # lab 31
    assert microseconds(2 * mebi, 7, (1,)) == pytest.approx(333, abs=0.5)
    assert microseconds(mebi, 7, (1, -1)) == pytest.approx(170, abs=0.5)
    assert microseconds(8 * mebi, 7, (1,)) == pytest.approx(1310, abs=5)
    assert microseconds(mebi // 2, 14, (1, -1)) == pytest.approx(177, abs=0.5)
