"""Bounds: hand-computed values, and what must hold for any work."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.errors import TpulabError
from tpulab.hardware import chips, get_chip
from tpulab.roofline import Work, bound, critical_batch, matmul_flops, render_bounds, time_for

CHIPS = st.sampled_from([chip.name for chip in chips()])
SIZE = st.integers(1, 20_000)


def test_a_matmul_by_hand() -> None:
    result = bound(Work.matmul(4096, 4096, 4096), "v5e")
    assert result.compute_seconds == pytest.approx(2 * 4096**3 / 197e12)
    assert result.hbm_seconds == pytest.approx(3 * 4096**2 * 2 / 819e9)
    assert result.seconds == result.compute_seconds
    assert result.limiting == "compute"
    thin = bound(Work.matmul(8, 4096, 4096), "v5e")
    assert thin.limiting == "HBM"


def test_per_device_on_chips_with_two_cores() -> None:
    work = Work.matmul(4096, 4096, 4096)
    for name in ("v4", "7x"):  # two devices a chip
        assert bound(work, name).seconds == pytest.approx(2 * bound(work, name, per="chip").seconds)
    # one device is both cores of a v5p
    assert bound(work, "v5p").seconds == bound(work, "v5p", per="chip").seconds
    assert bound(work, "v5p", per="core").seconds == pytest.approx(2 * bound(work, "v5p").seconds)


def test_mixed_dtypes_run_at_the_wider_one() -> None:
    work = Work.matmul(1024, 1024, 1024, "bf16", rhs_dtype="int8", out_dtype="float32")
    assert set(work.matmul_flops) == {"bfloat16"}
    assert work.hbm_bytes == 1024**2 * (2 + 1 + 4)
    assert Work.matmul(64, 64, 64, "int4").hbm_bytes == 3 * 64 * 64 / 2


def test_types_without_a_rate_are_said_to_be_converted() -> None:
    result = bound(Work.matmul(512, 512, 512, "float16"), "v5e")
    assert "no float16 matrix rate" in str(result)
    assert result.compute_seconds == pytest.approx(2 * 512**3 / 197e12)
    assert "converts int8" in str(bound(Work.matmul(512, 512, 512, "int8"), "7x"))


@given(SIZE, SIZE, SIZE, CHIPS)
def test_a_bound_is_the_larger_limit_and_scales(m: int, k: int, n: int, chip: str) -> None:
    one = bound(Work.matmul(m, k, n), chip)
    assert one.seconds == max(one.compute_seconds, one.hbm_seconds)
    batched = bound(Work.matmul(m, k, n, batch=3), chip)
    assert batched.seconds == pytest.approx(3 * one.seconds)
    # on which side of the ridge the work lies decides what limits it
    if one.intensity > 1.001 * one.ridge_point:
        assert one.limiting == "compute"
    if one.intensity < 0.999 * one.ridge_point:
        assert one.limiting == "HBM"
    assert json.loads(json.dumps(one.to_json()))["seconds"] == one.seconds


@given(
    st.integers(128, 30_000),
    st.integers(128, 30_000),
    CHIPS,
    st.sampled_from(["bfloat16", "float32"]),
)
def test_critical_batch_is_where_both_limits_meet(k: int, n: int, chip: str, dtype: str) -> None:
    peak, bandwidth = get_chip(chip).peak(dtype), get_chip(chip).hbm_bandwidth()
    batch = critical_batch(peak, bandwidth, weight_dtype=dtype, k=k, n=n)
    if batch == float("inf"):
        # even with any number of rows the activations alone take longer than the arithmetic
        rows = 10**9
        assert bound(Work.matmul(rows, k, n, dtype), chip, per="chip").limiting == "HBM"
        return
    if batch > 1e6:
        return
    above = bound(Work.matmul(int(batch * 1.01) + 2, k, n, dtype), chip, per="chip")
    assert above.compute_seconds > above.hbm_seconds
    below = int(batch * 0.99) - 2
    if below > 0:
        result = bound(Work.matmul(below, k, n, dtype), chip, per="chip")
        assert result.compute_seconds < result.hbm_seconds


def _call(times: int, **changes: object) -> SimpleNamespace:
    product = SimpleNamespace(dtype="float32", flops=1000, precision=changes.pop("precision", None))
    return SimpleNamespace(
        matmuls=(product,),
        unique_bytes=100,
        vpu_flops=7,
        transcendentals=3,
        remote_bytes=5,
        times=times,
        **changes,
    )


def test_work_of_a_kernel_counts_calls_times_and_passes() -> None:
    kernel = SimpleNamespace(calls=(_call(2), _call(1, precision="Precision.HIGHEST")))
    work = Work.of_kernel(kernel)
    assert work.matmul_flops == {"float32": 2 * 1000 + 6 * 1000}
    assert work.hbm_bytes == 300
    assert work.vector_flops == 21
    assert work.transcendentals == 9
    assert work.ici_bytes == 15
    assert Work.of_kernel(_call(3)).hbm_bytes == 300


def test_vector_time_is_stated_but_is_no_bound() -> None:
    work = Work({"bfloat16": 1e6}, 1e3, vector_flops=1e12, transcendentals=1e9)
    result = bound(work, "v5e")
    assert result.seconds < 1e-6
    assert result.vector_seconds == pytest.approx(1e12 / (4 * 1024 * 1.5e9))
    assert "an estimate" in render_bounds([result])


def test_nothing_to_do_takes_no_time() -> None:
    assert bound(Work(), "v6e").seconds == 0
    assert bound(Work(), "v6e").flops_per_second == 0
    assert bound(Work.of(1e12, 0), "v6e").to_json()["intensity"] is None


def test_wrong_input() -> None:
    with pytest.raises(TpulabError, match="traced kernel, not int"):
        bound(3, "v5e")
    with pytest.raises(TpulabError, match="rate must be positive"):
        time_for(1, 0)


def test_rates_can_be_given() -> None:
    result = bound(Work.of(1e12, 1e9), "v5e", peak_flops_per_second=1e12, hbm_bytes_per_second=1e9)
    assert result.compute_seconds == result.hbm_seconds == 1.0
    assert matmul_flops(2, 3, 4, batch=5) == 240


def test_vmem_and_ici_limits() -> None:
    # v5e: 3 loads of 4096 bytes a cycle at 1.5 GHz; 4 links of 45 GB/s
    vmem = bound(Work({"bfloat16": 1e6}, 1e3, vmem_bytes=3 * 4096 * 1.5e9), "v5e")
    assert vmem.seconds == vmem.vmem_seconds == pytest.approx(1.0)
    assert vmem.limiting == "VMEM"
    ici = bound(Work({"bfloat16": 1e6}, 1e3, ici_bytes=180e9), "v5e")
    assert ici.seconds == pytest.approx(1.0)
    assert ici.limiting == "ICI"
    assert "ICI takes at least 1 s" in str(ici)
    # each of the two devices of a 7x chip has half of its six links
    assert bound(Work(ici_bytes=270e9), "7x").seconds == pytest.approx(1.0)
