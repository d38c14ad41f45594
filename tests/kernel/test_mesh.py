"""Kernels on several devices: values, transfers between them, and what goes wrong with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernel import ring_kernels as ring
from tpulab.compiler import lower
from tpulab.errors import UsageError
from tpulab.kernel import TooFewDevices, mesh, on_devices, run, start_host_devices, trace


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
    import jax

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
