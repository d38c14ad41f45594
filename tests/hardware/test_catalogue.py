"""The catalogue is complete, consistent with itself and with what JAX says."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.hardware import chips, chips_as_json, describe, get_chip, summary
from tpulab.hardware.catalogue import source_texts
from tpulab.hardware.table import value_of

NAMES = ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]


def test_names() -> None:
    assert [chip.name for chip in chips()] == NAMES


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("V5E", "v5e"),
        ("TPU v5 lite", "v5e"),
        ("v5litepod", "v5e"),
        ("TPU v5", "v5p"),
        ("TPU v6 lite", "v6e"),
        ("Trillium", "v6e"),
        ("tpu7x", "7x"),
        ("Ironwood", "7x"),
        ("TPU7x", "7x"),
        ("v5e:4x4", "v5e"),
        ("tpu7x:2x2x1", "7x"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert get_chip(alias).name == name


def test_a_chip_is_returned_as_it_is() -> None:
    assert get_chip(get_chip("v4")) is get_chip("v4")


def test_unknown_chip_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="v6e") as caught:
        get_chip("v6")
    assert caught.value.known == tuple(NAMES)


@pytest.mark.parametrize("chip", chips(), ids=NAMES)
def test_clock_times_array_is_the_published_peak(chip) -> None:
    core = chip.core
    clocked = core.mxu_count * core.mxu_macs_per_cycle * 2 * core.clock_hertz
    assert clocked == pytest.approx(chip.peak("bfloat16", per="core"), rel=0.003)
    assert core.mxu_macs_per_cycle % core.mxu_size**2 == 0


@pytest.mark.parametrize("chip", chips(), ids=NAMES)
def test_per_core_per_device_per_chip(chip) -> None:
    assert chip.cores_per_device * chip.devices_per_chip == chip.cores_per_chip
    for figure in (lambda per: chip.peak("bf16", per=per), lambda per: chip.hbm_bandwidth(per)):
        assert figure("core") * chip.cores_per_chip == pytest.approx(figure("chip"))
        assert figure("device") * chip.devices_per_chip == pytest.approx(figure("chip"))


@pytest.mark.parametrize("chip", chips(), ids=NAMES)
def test_every_figure_has_a_source(chip) -> None:
    for dataclass_field in dataclasses.fields(chip.core):
        value = getattr(chip.core, dataclass_field.name)
        if isinstance(value, (int, float)) and dataclass_field.name not in ("lanes", "sublanes"):
            assert f"core.{dataclass_field.name}" in chip.sources
    for dtype in chip.core.peak_flops_per_second:
        assert f"core.peak_flops_per_second.{dtype}" in chip.sources
    for field in (
        "hbm.capacity_bytes",
        "hbm.bandwidth_bytes_per_second",
        "core.vmem.capacity_bytes",
        "core.vmem.bandwidth_bytes_per_second",
        "core.smem.capacity_bytes",
        "ici.link_bandwidth_bytes_per_second",
        "ici.links_per_chip",
        "ici.pod_shape",
        "dma_granule_bytes",
        "cores_per_chip",
        "devices_per_chip",
    ):
        assert chip.sources[field]
        assert chip.source_keys[field] in source_texts()
        assert value_of(chip, field) is not None
    for entry in chip.disagreements:
        assert entry.why, f"{chip.name} {entry.field}: no reason for the choice"
        assert entry.others.keys() <= source_texts().keys()


def test_derived_figures_say_how() -> None:
    for chip in chips():
        for field, key in chip.source_keys.items():
            if key == "derived" and "vmem.bandwidth" not in field:
                assert ": " in chip.sources[field], f"{chip.name} {field}"


@pytest.mark.parametrize("chip", chips(), ids=NAMES)
def test_figures_agree_with_jax_or_say_so(chip) -> None:
    """JAX's table is per core; every difference must be recorded with JAX's own value."""
    from jax.experimental.pallas import tpu as pltpu

    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(chip.name), 1)
    recorded = {entry.field: entry.others.get("jax") for entry in chip.disagreements}
    cores = chip.cores_per_chip
    checks = {
        "hbm.capacity_bytes": (info.hbm_capacity_bytes * cores, chip.hbm.capacity_bytes),
        "hbm.bandwidth_bytes_per_second": (
            info.mem_bw_bytes_per_second * cores,
            chip.hbm.bandwidth_bytes_per_second,
        ),
        "core.vmem.capacity_bytes": (info.vmem_capacity_bytes, chip.core.vmem.capacity_bytes),
        "core.smem.capacity_bytes": (info.smem_capacity_bytes, chip.core.smem.capacity_bytes),
        "core.mxu_count": (info.num_mxus, chip.core.mxu_count),
        "core.mxu_size": (info.mxu_column_size, chip.core.mxu_size),
    }
    for dtype, value in {
        "bfloat16": info.bf16_ops_per_second,
        "int8": info.int8_ops_per_second,
        "int4": info.int4_ops_per_second,
        "float8_e4m3fn": info.fp8_ops_per_second,
    }.items():
        ours = chip.core.peak_flops_per_second.get(dtype, 0)
        checks[f"core.peak_flops_per_second.{dtype}"] = (value * cores, ours * cores)
    for field, (theirs, ours) in checks.items():
        if math.isclose(theirs, ours, rel_tol=1e-3):
            continue
        assert field in recorded, f"{chip.name} {field}: JAX says {theirs:g}, we say {ours:g}"
        assert recorded[field] == pytest.approx(theirs, rel=1e-3)
    assert info.num_lanes == chip.core.lanes
    assert info.num_sublanes == chip.core.sublanes
    assert info.generation == chip.generation


@pytest.mark.parametrize("chip", chips(), ids=NAMES)
def test_native_matmul_dtypes_agree_with_jax(chip) -> None:
    """Types JAX calls native have a peak here; types marked as converted are not native there."""
    from jax.experimental.pallas import tpu as pltpu

    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(chip.name), 1)
    for dtype in ("bfloat16", "int8", "int4", "float8_e4m3fn"):
        if info.is_matmul_supported(dtype, dtype):
            assert dtype in chip.core.native_matmul_dtypes
        elif dtype != "bfloat16":  # JAX calls only float32 native on v2 and v3
            assert dtype not in chip.core.native_matmul_dtypes


def test_device_kinds_are_those_of_jax() -> None:
    from jax._src.pallas.mosaic import tpu_info

    for chip in chips():
        assert str(tpu_info.chip_version_from_device_kind(chip.device_kind)) == chip.name


def test_no_peak_is_an_error_that_says_what_there_is() -> None:
    with pytest.raises(TpulabError, match="takes no int8") as caught:
        get_chip("v2").peak("int8")
    assert "bfloat16" in str(caught.value)
    with pytest.raises(TpulabError, match="'chip', 'core' or 'device'"):
        get_chip("v4").peak("bf16", per="pod")  # type: ignore[arg-type]


def test_dtype_spellings_share_a_peak() -> None:
    chip = get_chip("v6e")
    assert chip.peak("bf16") == chip.peak("bfloat16") == 918e12
    assert chip.peak("uint8") == chip.peak("i8") == 1836e12
    assert chip.peak("float8_e5m2") == chip.peak("float8_e4m3fn")


def test_text_and_json() -> None:
    text = summary()
    assert len(text.splitlines()) == 1 + len(NAMES)
    assert "2765" in text
    for chip in chips():
        page = describe(chip)
        assert chip.device_kind in page
        assert "Sources:" in page
        assert len(max(page.splitlines()[: len(chip.sources)], key=len)) < 210
    data = json.loads(json.dumps(chips_as_json()))
    assert list(data["chips"]) == NAMES
    one = json.loads(json.dumps(chips_as_json("v5p")))
    assert one["peak_per_chip"]["bfloat16"] == 459e12
    assert one["core"]["peak_flops_per_second"]["bfloat16"] == 229.5e12
    assert one["cores_per_device"] == 2
    assert one["sources"]["hbm.capacity_bytes"]


def test_the_catalogue_costs_little_to_read() -> None:
    """`tpulab chips` must not pay for NumPy or JAX."""
    import subprocess
    import sys

    code = (
        "import sys, tpulab.hardware as hardware; hardware.chips(); hardware.describe('v5e');"
        "print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"
