"""All five verdicts on a kernel for several devices, right and wrong."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tests.kernel import ring_kernels as ring
from tpulab.exercises import exercises
from tpulab.exercises.model import ArgumentSpec, Case, Exercise, Rung, Work
from tpulab.grading import Verdict, between_devices, shipping
from tpulab.grading.display import listener
from tpulab.grading.judge import Judge
from tpulab.roofline.links import KINDS, link_time

pytestmark = pytest.mark.needs_libtpu


def _spec(devices: int, rows: int = 8) -> tuple[ArgumentSpec, ...]:
    return (ArgumentSpec((devices, rows, 128), "float32"),)


GATHER = Exercise(
    name="demo.all_gather",
    title="All-gather",
    statement="Every device ends with the shards of all.",
    signature="def all_gather(shard):",
    solution="30_remote_dma.py:all_gather",
    oracle=lambda x: np.broadcast_to(x, (len(x), *x.shape)),
    magnitude=lambda x: np.abs(np.broadcast_to(x, (len(x), *x.shape))),
    depth=lambda specs: 1,
    result=lambda specs: ArgumentSpec((specs[0].shape[0], *specs[0].shape), specs[0].dtype),
    work=lambda specs: Work(
        0,
        0,
        specs[0].size_bytes,
        "float32",
        collective="all-gather",
        link_bytes=specs[0].size_bytes,
    ),
    cases=(Case("two devices", _spec(2)), Case("four devices", _spec(4, 16))),
    faithful=_spec(4),
    speed=_spec(8, 2048),
    hints=(),
    rungs=(Rung("one way", 0.45), Rung("both ways", 0.8)),
    mesh_axis="ring",
)
SHIFT = dataclasses.replace(
    GATHER,
    name="demo.shift",
    oracle=lambda x: np.roll(x, 1, axis=0),
    magnitude=lambda x: np.abs(np.roll(x, 1, axis=0)),
    result=lambda specs: specs[0],
    work=lambda specs: Work(
        0,
        0,
        specs[0].size_bytes,
        "float32",
        collective="permute",
        link_bytes=specs[0].size_bytes // specs[0].shape[0],
    ),
    rungs=(Rung("one hop", 0.9),),
)


def judge(exercise: Exercise, answer: Callable[..., Any], until: str = "fast") -> Verdict:
    judge = Judge(
        exercise,
        shipping.ship(answer),
        exercise.chips,
        listener(True),
        seed=5,
        until=until,
    )
    return judge.run()


def line(text: str, after: str) -> str:
    lines = Path(ring.__file__).read_text("utf-8").splitlines()
    begin = next(n for n, row in enumerate(lines) if after in row)
    return f":{next(n for n, row in enumerate(lines) if n > begin and text in row) + 1}"


def test_a_one_way_ring_reaches_the_first_rung_and_learns_why_not_the_second() -> None:
    verdict = judge(GATHER, ring.all_gather)
    assert [step.passed for step in verdict.steps] == [True] * 5, str(verdict)
    assert verdict.rung == "one way"
    assert not verdict.top_rung
    assert verdict.step("correct").data["devices"] == [2, 4]
    assert "on 2 and 4 devices" in verdict.step("correct").summary
    # what XLA keeps in VMEM is not held against the kernel
    assert "no VMEM of the kernel's own" in verdict.step("compiles").summary
    fast = verdict.step("fast")
    shard = 2048 * 128 * 4
    # seven rounds of a shard over one way of each link, at 45 GB/s and 1 us a hop
    seconds = 7 * (shard / 45e9 + 1e-6)
    assert verdict.predicted["v5e"] == pytest.approx(seconds)
    assert fast.data["v5e"]["bound_seconds"] == pytest.approx(7 * shard / 90e9)
    assert fast.data["v5e"]["rounds"] == 7
    assert "by the link model" in fast.summary
    assert [rung["name"] for rung in fast.data["v5e"]["rungs"]] == ["speed of light", "links"]
    assert "carry nothing: the data goes round in one direction" in fast.detail
    assert "half of the data to the left" in fast.hint


def test_both_ways_reach_the_top() -> None:
    verdict = judge(GATHER, ring.all_gather_both_ways)
    assert [step.passed for step in verdict.steps] == [True] * 5, str(verdict)
    assert verdict.rung == "both ways"
    assert verdict.top_rung
    assert verdict.step("fast").data["v5e"]["rounds"] == 4


def test_a_shift_is_a_permute() -> None:
    verdict = judge(SHIFT, ring.shift)
    assert [step.passed for step in verdict.steps] == [True] * 5, str(verdict)
    assert verdict.step("fast").data["v5e"]["fraction"] > 0.95


def gather_by_xla(shard: jax.Array) -> jax.Array:
    """XLA's collective, and a kernel that copies."""
    whole = lax.all_gather(shard, "ring")

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(whole.shape, whole.dtype))(whole)


def shift_by_xla(shard: jax.Array) -> jax.Array:
    """The kernel's result is thrown away."""
    ring.shift(shard)
    count = lax.axis_size("ring")
    return lax.ppermute(shard, "ring", [(i, (i + 1) % count) for i in range(count)])


def shift_to_the_left(shard: jax.Array) -> jax.Array:
    """The other way round."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, left, right, _ = ring.neighbours()
        ring.meet(left, right)
        copy = pltpu.make_async_remote_copy(x_ref, o_ref, send, recv, device_id={"ring": left})
        copy.start()
        copy.wait()

    return ring.call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2)


def shift_in_eighths(shard: jax.Array) -> jax.Array:
    """Right, in eight rounds of which each waits for the one before."""

    def kernel(x_ref: Any, o_ref: Any, send: Any, recv: Any) -> None:
        _, left, right, _ = ring.neighbours()
        ring.meet(left, right)
        rows = x_ref.shape[0] // 8
        for part in range(8):
            piece = pl.ds(part * rows, rows)
            copy = pltpu.make_async_remote_copy(
                x_ref.at[piece], o_ref.at[piece], send, recv, device_id={"ring": right}
            )
            copy.start()
            copy.wait()

    return ring.call(kernel, shard, shard.shape, [pltpu.SemaphoreType.DMA] * 2)


@pytest.mark.parametrize(
    ("exercise", "answer", "step", "says", "where"),
    [
        (GATHER, ring.gather_without_barrier, "legal", "never takes the barrier", "def kernel("),
        (
            SHIFT,
            ring.shift_without_collective_id,
            "legal",
            "has no collective_id",
            "get_barrier_semaphore",
        ),
        (GATHER, gather_by_xla, "correct", "outside the kernel: all_gather", ""),
        (SHIFT, shift_by_xla, "correct", "outside the kernel: ppermute", ""),
        (SHIFT, shift_to_the_left, "correct", "wrong", ""),
        (
            GATHER,
            ring.gather_without_waiting_for_arrival,
            "safe",
            "does not wait for the copy that device",
            "copy.start()",
        ),
        (
            GATHER,
            ring.gather_with_a_silent_device,
            "safe",
            "device 1 waits for a copy that no device sends",
            "copy.wait_recv()",
        ),
        (
            SHIFT,
            ring.shift_with_an_unsignalled_barrier,
            "safe",
            "device 0 waits for 2 signals on a semaphore, and 0 come",
            "semaphore_wait",
        ),
        (SHIFT, ring.shift_with_a_signal_too_many, "safe", "a semaphore is left at 1", ""),
        (
            GATHER,
            ring.gather_to_oneself,
            "correct",
            "never written: no copy goes from one device to another",
            "",
        ),
        (
            GATHER,
            ring.gather_on_one_semaphore,
            "safe",
            "two copies to device 0 are under way on one semaphore",
            "",
        ),
        (SHIFT, ring.shift_beyond_the_last_device, "safe", "device 1 copies to device 2", ""),
    ],
)
def test_wrong_answers(
    exercise: Exercise, answer: Callable[..., Any], step: str, says: str, where: str
) -> None:
    began = time.monotonic()
    verdict = judge(exercise, answer, until="safe")
    assert verdict.failed is not None, str(verdict)
    assert verdict.failed.name == step, str(verdict)
    assert says in str(verdict)
    assert verdict.failed.hint
    if step == "safe" and "semaphore: which" in str(verdict):
        # a patient is not diagnosed
        assert "semaphore" not in verdict.failed.undiagnosed.summary
    # none of these has a grid, so none is advised on one
    assert "pl.cdiv" not in str(verdict)
    assert "grid axis" not in str(verdict)
    if where:
        begin = "def meet(" if where == "get_barrier_semaphore" else f"def {answer.__name__}("
        assert verdict.failed.where.endswith(line(where, begin)), verdict.failed
    # nothing waits for a deadline
    assert time.monotonic() - began < 40


def test_small_rounds_pay_for_their_hops() -> None:
    exercise = dataclasses.replace(SHIFT, speed=_spec(8, 64), rungs=(Rung("one hop", 0.9),))
    verdict = judge(exercise, shift_in_eighths)
    fast = verdict.step("fast")
    assert fast.passed is False
    assert "8 rounds one after the other pay for 8 hops" in fast.detail
    assert "larger chunks" in fast.hint


def test_the_compilers_time_is_not_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline that closes the answer's process while the compiler works takes nothing away."""
    order: list[str] = []
    judged = Judge(
        SHIFT,
        shipping.ship(ring.shift),
        SHIFT.chips,
        listener(True),
        seed=5,
        answered=lambda: order.append("answered"),
    )
    compiles = judged.speed.compiles

    def slow_compiler() -> Any:
        order.append("compiles")
        judged.inquiry.close()
        return compiles()

    monkeypatch.setattr(judged.speed, "compiles", slow_compiler)
    verdict = judged.run()
    assert [step.passed for step in verdict.steps] == [True] * 5, str(verdict)
    assert order == ["answered", "compiles"]


def test_an_untouched_scaffold_is_not_attempted() -> None:
    def all_gather(shard: jax.Array) -> jax.Array:
        raise NotImplementedError

    assert not judge(GATHER, all_gather).attempted


def test_the_wrong_number_of_results_is_said_for_the_whole_mesh() -> None:
    def shift(shard: jax.Array) -> jax.Array:
        return jnp.concatenate([ring.shift(shard)] * 2)

    verdict = judge(SHIFT, shift, until="correct")
    assert verdict.failed is not None
    assert "f32[8,4096,128]" in verdict.failed.summary


def _sent(devices: int, size: int, rounds: int = 1) -> list[between_devices.Sent]:
    return [
        between_devices.Sent(at, device, (device + 1) % devices, size)
        for at in range(1, rounds + 1)
        for device in range(devices)
    ]


def test_too_few_bytes_are_noticed() -> None:
    work = Work(0, 0, 0, "float32", "all-gather", 8 << 20)
    assert "takes 58,720,256" in between_devices.sends_too_little(_sent(8, 1 << 20, 6), work, 8)
    assert not between_devices.sends_too_little(_sent(8, 1 << 20, 7), work, 8)
    # what stays on a device is no copy between devices
    own = [between_devices.Sent(1, device, device, 7 << 20) for device in range(8)]
    assert "carry 0 bytes" in between_devices.sends_too_little(own, work, 8)


def test_the_causes_name_what_lies_above_the_bound() -> None:
    work = Work(0, 0, 0, "float32", "all-gather", 8 << 20)
    direct = [between_devices.Sent(1, a, b, 1 << 20) for a in range(8) for b in range(8) if a != b]
    figures = between_devices.link_figures(direct, work, "v5e", 8)
    rungs = figures["rungs"]
    assert rungs[0]["seconds"] == between_devices.bound_seconds(work, "v5e", 8)
    assert rungs[1]["seconds"] == link_time(direct, "v5e", 8).seconds
    assert "times the bytes that are needed" in rungs[1]["cause"]
    assert "let the neighbour pass it on" in rungs[1]["advice"]


@pytest.mark.parametrize(
    "item",
    [[0, 0, 1, 8], [1, 0, 1, -1], ["a", 0, 1, 8], [1, 2], [1, 0, 8, 8], [1, -1, 0, 8]],
)
def test_strange_transfers_are_refused(item: list[Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        between_devices.transfers_from({"transfers": [item]}, 8)


def test_every_exercise_for_several_devices_says_which_collective_it_is() -> None:
    for exercise in exercises():
        if exercise.mesh_axis is not None:
            work = exercise.work(exercise.speed)
            assert work.collective in KINDS, exercise.name
            assert work.link_bytes > 0, exercise.name
