"""The chip as a picture: the catalogue's figures, and a kernel's demands on each part."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from tests.visual.helpers import check_figure, long_names_call, made_up, matmul_call, texts
from tpulab.errors import UnknownNameError, UsageError
from tpulab.hardware import chips
from tpulab.visual import chip_map
from tpulab.visual.figure import Figure


def rows_of(figure: Figure) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(figure.header, row, strict=True)) for row in figure.rows}


@pytest.mark.parametrize("chip", [chip.name for chip in chips()])
def test_every_chip_has_a_map_with_all_its_parts(chip: str) -> None:
    figure = chip_map(chip)
    shown = " ".join(texts(check_figure(figure)))
    for part in ("HBM", "VMEM", "SMEM", "MXU", "VPU", "XLU", "EUP", "scalar core", "ICI"):
        assert part in shown
        assert part in figure.text


def test_the_figures_are_those_of_the_data_sheets() -> None:
    rows = rows_of(chip_map("v5e"))
    # Cloud TPU v5e: 16 GB at 819 GB/s, 197 TFLOP/s bf16, four MXUs of 128 x 128, four ICI links
    assert rows["HBM"]["there is"] == "16 GiB"
    assert rows["HBM"]["rate"] == "819 GB/s"
    assert rows["MXU"]["there is"] == "4 of 128×128"
    assert rows["MXU"]["rate"] == "197 TFLOP/s bf16"
    assert rows["ICI"]["there is"] == "4 links"
    assert rows["VMEM"]["there is"] == "128 MiB"
    # 4 ALUs x 8 x 128 lanes x 1.5 GHz, and one transcendental unit of a register a cycle
    assert rows["VPU"]["rate"] == "6.14 TFLOP/s"
    assert rows["EUP"]["rate"] == "1.54 Top/s"


def test_rates_of_a_core_are_a_share_of_the_chip() -> None:
    figure = chip_map("v5p")
    rows = rows_of(figure)
    assert rows["HBM"]["rate"] == "2,765 GB/s, 1,382 GB/s a core"
    assert rows["MXU"]["rate"] == "230 TFLOP/s bf16"  # 459 for the two cores
    shown = texts(check_figure(figure))
    assert "v5p: TensorCore, one of 2" in shown
    assert "1 more TensorCore" in shown
    assert "4 SparseCores" in shown


def test_a_kernel_asks_for_what_it_moves_and_computes() -> None:
    figure = chip_map("v5e", matmul_call(512, 128))
    root = check_figure(figure)
    rows = rows_of(figure)
    # 64 steps fetch a bf16 block of 128 x 128 of either side, 16 f32 blocks go back
    assert rows["HBM"]["the kernel's work"] == "reads 4 MiB, writes 1 MiB"
    assert rows["HBM"]["takes at least"] == "6.40 µs"  # 5 MiB at 819 GB/s
    assert rows["MXU"]["the kernel's work"] == "268 million FLOP"  # 2 x 512^3
    assert rows["MXU"]["takes at least"] == "1.36 µs"  # at 197 TFLOP/s
    # two buffers of each: 2 x 32 KiB twice, and 2 x 64 KiB
    assert rows["VMEM"]["the kernel's work"] == "uses 256 KiB"
    assert rows["VMEM: lhs_ref"]["there is"] == "64 KiB"
    assert rows["VMEM: out_ref"]["there is"] == "128 KiB"
    assert "at full rate the HBM needs longest, 6.40 µs" in figure.alt
    thick = [r for r in root.iter() if r.get("stroke-width") == "3"]
    assert len(thick) == 1


def test_the_matrix_rate_is_that_of_the_kernels_dtype() -> None:
    def kernel(lhs_ref: Any, rhs_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.int32)

    def matmul(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct((256, 256), jnp.int32)
        return pl.pallas_call(kernel, out_shape=out)(lhs, rhs)

    import tpulab

    array = jax.ShapeDtypeStruct((256, 256), jnp.int8)
    rows = rows_of(chip_map("v5e", tpulab.trace(matmul, array, array)))
    assert rows["MXU"]["rate"] == "393 Top/s int8"


def test_many_operands_with_long_names_fit() -> None:
    figure = chip_map("7x", long_names_call())
    shown = texts(check_figure(figure))
    assert "and 3 more: 3 MiB" in shown
    assert len([row for row in figure.rows if row[0].startswith("VMEM: ")]) == 8


def test_a_timeline_says_who_is_busy() -> None:
    figure = chip_map("v5e", timeline=made_up(9))
    rows = rows_of(figure)
    check_figure(figure)
    # nine steps copy for 100 of 960 cycles each and compute for 60
    assert rows["HBM"]["busy"] == "94%"
    assert rows["MXU"]["busy"] == "56%"
    assert rows["ICI"]["busy"] == ""
    assert "busy 56%" in texts(check_figure(figure))


@dataclasses.dataclass
class _Report:
    used_bytes: int
    limit_bytes: int = 16 * 2**20
    spill_bytes: int = 0
    reported: bool = True


@dataclasses.dataclass
class _Program:
    vmem: _Report
    name: str = "matmul"
    pieces: tuple[()] = ()


@dataclasses.dataclass
class _ChipLadder:
    kernel: Any
    program: Any
    timeline: Any = None
    rungs: tuple[()] = ()
    refusal: str = "out of VMEM"


def test_the_compilers_report_goes_before_the_estimate() -> None:
    ladder = _ChipLadder(matmul_call(512, 128), _Program(_Report(300 * 1024, spill_bytes=4096)))
    rows = rows_of(chip_map("v5e", ladder))
    assert rows["VMEM"]["the kernel's work"] == "uses 300 KiB"
    assert rows["VMEM: compiler's own"]["there is"] == "44 KiB"
    assert "4 KiB spilled" in rows["VMEM: compiler's own"]["the kernel's work"]
    # less than the estimate: the shares are not known
    rows = rows_of(chip_map("v5e", _Program(_Report(100 * 1024))))
    assert rows["VMEM: all of it"]["there is"] == "100 KiB"


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(UnknownNameError):
        chip_map("v99")
    with pytest.raises(UsageError, match="not int"):
        chip_map("v5e", 3)
    with pytest.raises(UsageError, match="of v5e, the chip map of v6e"):
        chip_map("v6e", timeline=made_up(2))
    with pytest.raises(UsageError, match="no timeline") as raised:
        chip_map("v5e", timeline=_ChipLadder(None, None))
    assert "out of VMEM" in str(raised.value)


def test_it_is_drawn_at_once() -> None:
    import time

    call = long_names_call()
    chip_map("v5e", call)
    start = time.process_time()
    chip_map("v5e", call)
    assert time.process_time() - start < 0.3
