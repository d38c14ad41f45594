"""Kernels on several devices: values, transfers between them, and what goes wrong with them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tests.kernel import ring_kernels as ring
from tpulab.compiler import LoweringRefused, lower
from tpulab.errors import UsageError
from tpulab.kernel import (
    RunError,
    RunReport,
    TooFewDevices,
    illegalities,
    mesh,
    on_devices,
    run,
    start_host_devices,
    trace,
)
from tpulab.kernel.transfers import End, Signal, Start, Wait, replay


@pytest.fixture(scope="module", autouse=True)
def _devices() -> None:
    start_host_devices(8)


def shards(devices: int, rows: int = 8) -> np.ndarray:
    return np.random.default_rng(devices).normal(size=(devices, rows, 128)).astype(np.float32)


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize(
    ("kernel", "want"),
    [
        (ring.shift, lambda x: np.roll(x, 1, axis=0)),
        (ring.all_gather, lambda x: np.stack([x] * len(x))),
        (ring.all_gather_both_ways, lambda x: np.stack([x] * len(x))),
    ],
)
def test_every_device_gets_its_result(
    kernel: Callable[..., Any], want: Callable[..., Any], devices: int
) -> None:
    x = shards(devices)
    found, report = run(on_devices(kernel, devices), x, mode="faithful")
    assert report.ok, report
    np.testing.assert_array_equal(found, want(x))


def test_tracing_and_lowering_need_no_devices() -> None:
    x = "f32[16,8,128]"
    function = on_devices(ring.all_gather, 16)
    kernel = trace(function, x)
    assert [call.name for call in kernel.calls] == ["kernel"]
    assert kernel.results[0].shape == (16, 16, 8, 128)
    for chip in ("v5e", "v6e"):
        artifact = lower(function, x, chip=chip)
        assert artifact.devices == 16
        assert artifact.mesh == (("ring", 16, "Auto"),)


def test_the_axis_can_have_another_name() -> None:
    kernel = on_devices(lambda x: x + jax.lax.axis_index("chips"), 4, "chips")
    np.testing.assert_array_equal(kernel(np.zeros((4, 8), np.int32))[:, 0], range(4))


def test_a_first_dimension_that_does_not_count_the_devices_is_refused() -> None:
    with pytest.raises(UsageError, match="first dimension must count the 4 devices"):
        on_devices(ring.shift, 4)(shards(2))


@pytest.mark.parametrize("count", [0, -1, True, 2.5])
def test_numbers_of_devices_are_positive_and_whole(count: Any) -> None:
    with pytest.raises(UsageError, match="positive whole number"):
        start_host_devices(count)
    with pytest.raises(UsageError, match="positive whole number"):
        on_devices(ring.shift, count)


def test_too_late_says_what_to_do() -> None:
    with pytest.raises(TooFewDevices, match="restart the kernel"):
        start_host_devices(4096)
    assert start_host_devices(2) >= 8


def test_a_fresh_process_gets_as_many_as_it_asks_for() -> None:
    code = (
        "from tpulab.kernel import start_host_devices as s; print(s(3), s(3), s(2))\n"
        "try: s(4)\nexcept Exception as e: print(type(e).__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["3", "3", "3", "TooFewDevices"]


def test_the_axis_name_is_the_one_of_the_exercises() -> None:
    assert mesh.RING == "ring"


def faithful(kernel: Callable[..., Any], devices: int) -> tuple[Any, RunReport]:
    return run(on_devices(kernel, devices), shards(devices), mode="faithful")


def line_of(text: str, after: str) -> str:
    """file:line of the first line with ``text`` after the first one with ``after``."""
    path = Path(ring.__file__)
    lines = path.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if after in line)
    return f"{path}:{next(n for n, line in enumerate(lines) if n > begin and text in line) + 1}"


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_transfers_of_a_one_way_ring(devices: int) -> None:
    _, report = faithful(ring.all_gather, devices)
    transfers = report.transfers
    assert report.devices == devices
    assert len(transfers) == devices * (devices - 1)
    assert [transfer.order for transfer in transfers] == list(range(len(transfers)))
    assert {transfer.size_bytes for transfer in transfers} == {8 * 128 * 4}
    for number, transfer in enumerate(transfers):
        # round by round, device by device: each passes on what came in the round before
        step, device = divmod(number, devices)
        assert transfer.round == step + 1
        assert (transfer.source, transfer.target) == (device, (device + 1) % devices)
        assert transfer.target_index == (((device - step) % devices, 1), (0, 8), (0, 128))
        assert transfer.where == line_of("copy.start()", "def all_gather(")


@pytest.mark.parametrize(("devices", "rounds"), [(2, 1), (3, 1), (4, 2), (8, 4)])
def test_a_two_way_ring_has_half_the_rounds(devices: int, rounds: int) -> None:
    _, report = faithful(ring.all_gather_both_ways, devices)
    assert len(report.transfers) == devices * (devices - 1)
    assert max(transfer.round for transfer in report.transfers) == rounds
    ways = {(transfer.target - transfer.source) % devices for transfer in report.transfers}
    assert ways == {1, devices - 1}


def test_a_whole_buffer_has_no_index() -> None:
    _, report = faithful(ring.shift, 4)
    assert [t.target_index for t in report.transfers] == [None] * 4
    assert {t.round for t in report.transfers} == {1}


def test_transfers_are_the_same_every_time() -> None:
    first, second = (faithful(ring.all_gather_both_ways, 4)[1].transfers for _ in range(2))
    assert first == second


def test_rounds_go_through_signals_and_kernels() -> None:
    """0 → 1, 1 signals 2, 2 → 3: the second copy can't leave before the first has arrived."""
    chain = {
        (0, 0): [Start((1, 0), 1, 2, 64, None, "")],
        (1, 0): [Wait(2, 64, True, ""), Signal((2, 0), 3, 1, "")],
        (2, 0): [Wait(3, 1, False, ""), Start((3, 0), 1, 2, 64, None, "")],
        (3, 0): [Wait(2, 64, True, ""), End(), Start((0, 0), 1, 2, 64, None, "")],
    }
    transfers = replay(chain).transfers
    assert [(t.source, t.round) for t in transfers] == [(0, 1), (2, 2), (3, 3)]


def test_a_wait_that_nothing_ends_does_not_stop_the_account() -> None:
    account = replay(
        {(0, 0): [Wait(1, 1, False, ""), Start((1, 0), 1, 2, 8, None, "")], (1, 0): []}
    )
    assert [t.size_bytes for t in account.transfers] == [8]
    assert account.unwaited == ()


@pytest.mark.parametrize(
    ("kernel", "says", "waiting", "text"),
    [
        (
            ring.gather_with_a_silent_device,
            "device 1 waits for a copy that no device sends",
            (1, 2, 3),
            "copy.wait_recv()",
        ),
        (
            ring.shift_to_the_wrong_device,
            "device 1 waits for a copy that no device sends",
            (1, 2, 3),
            "copy.wait()",
        ),
        (
            ring.shift_with_an_unsignalled_barrier,
            "device 0 waits for 2 signals on a semaphore, and 0 come",
            (0, 1, 2, 3),
            "semaphore_wait",
        ),
    ],
)
def test_a_deadlock_names_the_wait(
    kernel: Callable[..., Any], says: str, waiting: tuple[int, ...], text: str
) -> None:
    began = time.monotonic()
    found, report = faithful(kernel, 4)
    assert found is None
    assert report.deadlock is not None
    assert report.deadlock.devices == waiting
    assert report.messages[0].startswith(says)
    assert report.where == line_of(text, f"def {kernel.__name__}(")
    assert "every wait needs" in str(report)
    # 1 s of standstill, and starting and ending the devices
    assert time.monotonic() - began < 30


def test_a_deadlock_of_one_device_is_ended_too() -> None:
    def never(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, o_ref: Any, semaphore: Any) -> None:
            pltpu.make_async_copy(x_ref, o_ref, semaphore).wait()

        return pl.pallas_call(
            kernel,
            in_specs=[ring.ANYWHERE],
            out_specs=ring.ANYWHERE,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )(x)

    found, report = run(never, np.zeros((8, 128), np.float32), mode="faithful")
    assert found is None
    assert report.messages[0].startswith("the kernel waits for a copy that nothing starts")


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (
            ring.gather_without_waiting_for_arrival,
            "device 1 does not wait for the copy that device 0",
        ),
        (ring.gather_without_waiting_for_arrival, "never written"),
        (ring.shift_with_a_signal_too_many, "a semaphore is left at 1"),
        (ring.sum_with_one_buffer, "race on a VMEM buffer of device 0, buffer: the write at"),
        (ring.gather_without_barrier, "without knowing that it has entered the kernel"),
        (ring.shift_beyond_the_last_device, "device 3 copies to device 4"),
    ],
)
def test_mistakes_between_devices_are_found(kernel: Callable[..., Any], says: str) -> None:
    _, report = faithful(kernel, 4)
    assert not report.ok
    assert any(says in message for message in report.messages), report.messages


@pytest.mark.parametrize(
    ("kernel", "says", "advises"),
    [
        (
            ring.gather_to_the_wrong_neighbour,
            "in round 2 device 0 sends o_ref[3] to device 3, and has not received it: what it has "
            "received is o_ref[1]",
            "slot and neighbour go the same way round",
        ),
        (
            ring.gather_of_the_wrong_slot,
            "in round 2 device 0 sends o_ref[1] to device 1, and has not received it: what it has "
            "received is o_ref[3]",
            "slot and neighbour go the same way round",
        ),
        (
            ring.gather_on_one_semaphore,
            "two copies to device 0 are under way on one semaphore",
            "one receive semaphore for each step",
        ),
        (
            ring.sum_with_one_buffer,
            "device 3 copies into buffer of device 0 once more, and cannot know that device 0 is "
            "done with what came there before",
            "back-pressure",
        ),
        (
            ring.gather_without_waiting_for_its_own,
            "device 0 does not wait for a copy of its own",
            "wait() for a copy before what it brings is used",
        ),
    ],
)
def test_what_is_wrong_between_devices_is_named(
    kernel: Callable[..., Any], says: str, advises: str
) -> None:
    _, report = faithful(kernel, 4)
    assert report.messages[0].startswith(says), report.messages
    assert advises in report.hint
    assert "grid axis" not in report.hint
    assert "a HBM" not in str(report)


def test_one_more_copy_is_one() -> None:
    _, report = faithful(ring.gather_without_waiting_for_its_own, 2)
    assert report.messages[0].endswith("so it is with 1 more copy")


@pytest.mark.parametrize("kernel", [ring.all_gather, ring.all_gather_both_ways, ring.shift])
def test_right_kernels_have_no_faults(kernel: Callable[..., Any]) -> None:
    _, report = faithful(kernel, 4)
    assert report.faults == ()


def test_without_collective_id_the_devices_meet_before_the_kernel() -> None:
    """As XLA has it: a kernel without a barrier of its own is preceded by one."""
    found, report = faithful(ring.shift_without_barrier_and_id, 4)
    assert report.ok, report
    np.testing.assert_array_equal(found, np.roll(shards(4), 1, axis=0))


def test_interpreter_is_left_as_it_was() -> None:
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    before = interpreter.callback
    faithful(ring.shift, 2)
    assert interpreter.callback is before


def test_fast_mode_says_what_can_run_remote_copies() -> None:
    with pytest.raises(RunError, match="mode='faithful'"):
        run(on_devices(ring.shift, 4), shards(4))


@pytest.mark.parametrize(
    ("kernel", "rule", "text"),
    [
        (ring.shift_without_collective_id, "barrier-without-id", "get_barrier_semaphore()"),
        (ring.gather_without_barrier, "id-without-barrier", "def kernel("),
    ],
)
def test_barrier_and_collective_id_belong_together(
    kernel: Callable[..., Any], rule: str, text: str
) -> None:
    """The lowering refuses both; the rule says it at once, with the line."""
    function = on_devices(kernel, 4)
    (found,) = illegalities(trace(function, shards(4)), "v5e")
    assert found.rule == rule
    begin = "def meet(" if "barrier_sem" in text else f"def {kernel.__name__}("
    assert found.where == line_of(text, begin)
    with pytest.raises(LoweringRefused, match="collective_id"):
        lower(function, shards(4), chip="v5e")


@pytest.mark.parametrize("kernel", [ring.shift, ring.all_gather, ring.shift_without_barrier_and_id])
def test_right_kernels_are_legal(kernel: Callable[..., Any]) -> None:
    assert illegalities(trace(on_devices(kernel, 4), shards(4)), "v5e") == ()


def test_shards_that_do_not_fit_a_message_of_jax() -> None:
    """JAX would place each argument of a callback by a thread that stands in a callback itself."""
    x = shards(8, 512)
    found, report = run(on_devices(ring.shift, 8), x, mode="faithful")
    assert report.ok, report
    np.testing.assert_array_equal(found, np.roll(x, 1, axis=0))
