"""The Pallas kernels that ship inside JAX all trace, with figures worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import pytest

from tpulab.kernel import Kernel, illegalities, load_function, trace

FOLDER = Path(__file__).parents[1] / "kernels_in_jax"


def traced(name: str, chip: str = "v5e") -> Kernel:
    function, make_args = load_function(f"{FOLDER / name.split(':')[0]}.py:{name.split(':')[1]}")
    assert make_args is not None
    return trace(function, *make_args(), chip=chip)


NAMES = [
    "all_gather:all_gather",
    "example_kernel:double",
    "flash_attention:flash_attention",
    "flash_attention:flash_attention_causal",
    "flash_attention:flash_attention_backward",
    "matmul:matmul",
    "matmul:matmul_small_blocks",
    "matmul_int8:matmul_int8",
    "megablox:gmm",
    "megablox_tgmm:tgmm",
    "paged_attention:paged_attention",
    "paged_attention:paged_attention_grid",
    "paged_attention_int8:paged_attention_int8",
    "random_bits:threefry_bits",
    "random_bits:philox_bits",
    "splash_attention_mha:splash_attention_mha",
    "splash_attention_mha:splash_attention_mha_backward",
    "splash_attention_mqa:splash_attention_mqa",
    "ragged_paged_attention:ragged_paged_attention",
]


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
@pytest.mark.parametrize("name", NAMES)
def test_traces_and_breaks_no_rule(name: str, chip: str) -> None:
    kernel = traced(name, chip)
    assert kernel.calls
    assert illegalities(kernel, chip) == ()
    # everything they do is decided by what is known: nothing is counted as taken
    assert not [note for note in kernel.notes if "depends" in note or "too long" in note]


def test_flash_attention_work() -> None:
    batch, heads, length, depth = 4, 8, 2048, 128
    full = 2 * 2 * batch * heads * length * length * depth
    assert traced("flash_attention:flash_attention").mxu_flops == full
    # 512-blocks on and below the diagonal: 10 of 16
    assert traced("flash_attention:flash_attention_causal").mxu_flops == full * 10 // 16


def test_causal_splash_attention_skips_dead_tiles() -> None:
    kernel = traced("splash_attention_mha:splash_attention_mha")
    (call,) = kernel.calls
    live = 8 * 9 // 2  # 512-blocks of 4096² on and below the diagonal
    assert call.mxu_flops == 2 * 8 * live * 2 * 2 * 512 * 512 * 128


def test_grouped_matmul_works_on_the_groups_it_was_given() -> None:
    (call,) = traced("megablox:gmm").calls
    # a dynamic grid bound: tiles that straddle groups are visited once per group
    assert call.grid[1] >= 4096 // 512
    assert call.mxu_flops == math.prod(call.grid) * 2 * 512 * 512 * 512


def test_both_paged_attentions_read_the_same_pages() -> None:
    inline = traced("paged_attention:paged_attention").calls[0]
    grid = traced("paged_attention:paged_attention_grid").calls[0]
    assert inline.dma_read_bytes == grid.dma_read_bytes
    assert inline.mxu_flops == grid.mxu_flops
    assert inline.dma_started_bytes == inline.dma_waited_bytes
    assert grid.dma_started_bytes == grid.dma_waited_bytes


def test_a_call_that_nobody_needs_is_not_counted() -> None:
    """The gradient of a sum does not need the value of the forward product."""
    from tests.kernels_in_jax import megablox

    rows, weights, groups = megablox.make_args()

    def gradient(rows: Any, weights: Any) -> Any:
        def loss(rows: Any, weights: Any) -> Any:
            return megablox.gmm(rows, weights, groups).sum()

        return jax.grad(loss, argnums=(0, 1))(rows, weights)

    assert len(trace(gradient, rows, weights).calls) == 2
