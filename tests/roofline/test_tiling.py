"""The tiling calculator against walking the grid, traced kernels and measurements."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpulab.errors import TpulabError
from tpulab.roofline import Work, best_tilings, candidate_sizes, matmul_tilings

MIB = 2**20


def _walk(sizes: dict[str, int], blocks: dict[str, int], order: str) -> tuple[int, int]:
    """Elements fetched and written by walking the grid step by step."""
    counts = {axis: -(-sizes[axis] // blocks[axis]) for axis in "mkn"}

    def extent(axis: str, index: int) -> int:
        return min(blocks[axis], sizes[axis] - index * blocks[axis])

    steps = [
        dict(zip(order, place))
        for place in itertools.product(*(range(counts[axis]) for axis in order))
    ]
    read = written = 0
    for axes in ("mk", "kn"):
        before = None
        for place in steps:
            index = tuple(place[axis] for axis in axes)
            if index != before:
                read += extent(axes[0], index[0]) * extent(axes[1], index[1])
            before = index
    for place, after in zip(steps, [*steps[1:], None]):
        index = (place["m"], place["n"])
        if after is None or (after["m"], after["n"]) != index:
            written += extent("m", index[0]) * extent("n", index[1])
    return read, written


@given(
    st.tuples(*[st.integers(1, 40)] * 3),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.permutations("mkn"),
)
def test_traffic_is_that_of_walking_the_grid(
    sizes: tuple[int, int, int], blocks: tuple[int, int, int], axes: list[str]
) -> None:
    order = "".join(axes)
    named = dict(zip("mkn", sizes))
    cut = {axis: min(block, named[axis]) for axis, block in zip("mkn", blocks)}
    read, written = _walk(named, cut, order)
    tilings = matmul_tilings(*sizes, *blocks, dtype="float32", order=order)
    assert int(tilings.hbm_read_bytes) == 4 * read
    assert int(tilings.hbm_written_bytes) == 4 * written


def test_the_compiled_program_moves_exactly_this() -> None:
    """4096^3 bf16 in 512^3 blocks: counted in the executed bundle listing of a real compile."""
    tilings = matmul_tilings(4096, 4096, 4096, 512, 512, 512)
    assert int(tilings.steps) == 512
    assert int(tilings.hbm_read_bytes) == 512 * MIB
    assert int(tilings.hbm_written_bytes) == 32 * MIB


@pytest.mark.parametrize(
    ("m", "k", "n", "blocks"),
    [
        (256, 512, 384, (128, 128, 128)),
        (256, 512, 384, (64, 512, 128)),
        (200, 256, 300, (64, 128, 128)),
        (8, 512, 256, (8, 256, 256)),
        (256, 256, 256, (256, 256, 256)),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_agrees_with_a_traced_kernel(
    m: int, k: int, n: int, blocks: tuple[int, int, int], dtype: str
) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    from tpulab.kernel import trace

    block_m, block_k, block_n = blocks
    contraction_steps = pl.cdiv(k, block_k)
    wide = jnp.int32 if dtype == "int8" else jnp.float32

    def body(lhs_ref, rhs_ref, out_ref, *scratch):
        acc_ref = scratch[0] if scratch else out_ref

        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        product = jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=wide)
        acc_ref[...] += product.astype(acc_ref.dtype)

        @pl.when(pl.program_id(2) == contraction_steps - 1)
        def _():
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    def matmul(lhs, rhs):
        scratch = [pltpu.VMEM((block_m, block_n), wide)] if contraction_steps > 1 else []
        return pl.pallas_call(
            body,
            grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), contraction_steps),
            in_specs=[
                pl.BlockSpec((block_m, block_k), lambda i, j, step: (i, step)),
                pl.BlockSpec((block_k, block_n), lambda i, j, step: (step, j)),
            ],
            out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, step: (i, j)),
            out_shape=jax.ShapeDtypeStruct((m, n), dtype),
            scratch_shapes=scratch,
        )(lhs, rhs)

    kernel = trace(matmul, jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype))
    tilings = matmul_tilings(m, k, n, *blocks, dtype=dtype)
    assert kernel.hbm_read_bytes == int(tilings.hbm_read_bytes)
    assert kernel.hbm_written_bytes == int(tilings.hbm_written_bytes)
    assert kernel.vmem_bytes == int(tilings.vmem_bytes)
    assert kernel.steps == int(tilings.steps)
    if m % block_m == n % block_n == 0:
        asked, traced = Work.matmul(m, k, n, dtype), Work.of_kernel(kernel)
        assert traced.matmul_flops == asked.matmul_flops
        assert traced.hbm_bytes == asked.hbm_bytes


@pytest.mark.parametrize(
    ("size", "blocks", "microseconds"),
    [
        # JAX documentation, v5e, host clock; 0.11 ms of it is dispatch
        (1024, (128, 128, 128), 297.67),
        (4096, (128, 128, 128), 11771.5),
        (8192, (128, 128, 128), 91836.0),
        (1024, (512, 1024, 1024), 127.09),
        (4096, (512, 1024, 1024), 889.09),
        (8192, (512, 1024, 1024), 6099.4),
    ],
)
def test_estimates_against_published_timings(
    size: int, blocks: tuple[int, int, int], microseconds: float
) -> None:
    measured = (microseconds - 110) * 1e-6
    tilings = matmul_tilings(size, size, size, *blocks, chip="v5e")
    assert float(tilings.estimate_seconds) == pytest.approx(measured, rel=0.1)
    # and never below the bound
    assert float(tilings.bound_seconds) < measured


def test_vmem_by_hand() -> None:
    tilings = matmul_tilings(4096, 4096, 4096, 512, 1024, 1024)
    blocks = 2 * (512 * 1024 + 1024 * 1024 + 512 * 1024) * 2
    assert int(tilings.vmem_bytes) == blocks + 512 * 1024 * 4
    assert bool(tilings.fits)
    assert not matmul_tilings(4096, 4096, 4096, 2048, 2048, 2048).fits
    assert matmul_tilings(4096, 4096, 4096, 2048, 2048, 2048, vmem_limit_bytes=100 * MIB).fits


@pytest.mark.parametrize(
    ("block", "windows_and_scratch"),
    [
        # allocations that the compiler (libtpu 0.0.42) reports for v5e and v6e, spills left out
        ((512, 512, 2048), 4 + 1 + 4 + 4),
        ((1024, 512, 1024), 4 + 2 + 2 + 4),
        ((512, 512, 512), 1 + 1 + 1 + 1),
        ((512, 4096, 256), 8 + 4 + 0.5),
    ],
)
def test_vmem_is_what_the_compiler_allocates(
    block: tuple[int, int, int], windows_and_scratch: float
) -> None:
    tilings = matmul_tilings(4096, 4096, 4096, *block)
    assert int(tilings.vmem_bytes) == windows_and_scratch * MIB


def test_ranking_leaves_room_for_spills() -> None:
    # 16 MiB of windows and scratch in a limit of 16 MiB: the compiler refuses these on v5e
    assert (best_tilings(4096, 4096, 4096, top=20).vmem_bytes < 14 * MIB).all()


def test_padding_to_the_array_costs_time() -> None:
    # k = 128 half fills the 256-wide array of v6e
    half = matmul_tilings(4096, 128, 4096, 512, 128, 512, chip="v6e")
    assert float(half.padding_efficiency) == pytest.approx(0.5)
    assert matmul_tilings(4096, 128, 4096, 512, 128, 512, chip="v5e").padding_efficiency == 1
    few = matmul_tilings(8, 256, 256, 8, 256, 256)
    assert float(few.padding_efficiency) == pytest.approx(0.5)


def test_rules() -> None:
    legal = matmul_tilings(4096, 4096, 4096, [512, 500, 512], [512, 512, 100], 512).legal
    assert legal.tolist() == [True, False, False]
    # the contraction outside the walk over columns loses partial sums
    assert not matmul_tilings(512, 512, 512, 128, 128, 128, order="mkn").legal
    assert matmul_tilings(512, 512, 512, 128, 512, 128, order="kmn").legal


@given(
    st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000),
    st.sampled_from(["v4", "v5e", "v5p", "v6e", "7x"]),
    st.sampled_from(["bfloat16", "float32"]),
)  # fmt: skip
@settings(max_examples=40)
def test_best_tilings(m: int, k: int, n: int, chip: str, dtype: str) -> None:
    tilings = best_tilings(m, k, n, chip=chip, dtype=dtype, top=5)
    assert 1 <= tilings.steps.size <= 5
    assert tilings.legal.all()
    assert tilings.fits.all()
    assert (k % tilings.block_k == 0).all()
    assert (np.diff(tilings.estimate_seconds) >= 0).all()
    # nothing beats the speed of light
    assert (tilings.bound_seconds >= tilings.speed_of_light_seconds * (1 - 1e-9)).all()
    assert (tilings.utilisation <= 1).all()


def test_a_whole_space_is_one_call() -> None:
    sizes = np.array([128, 256, 512, 1024])
    space = matmul_tilings(
        4096, 4096, 4096, sizes[:, None, None], sizes[None, :, None], sizes[None, None, :]
    )
    assert space.steps.shape == (4, 4, 4)
    one = matmul_tilings(4096, 4096, 4096, 256, 512, 1024)
    assert space.estimate_seconds[1, 2, 3] == one.estimate_seconds
    assert space.select((1, 2, 3)).vmem_bytes == one.vmem_bytes


def test_text_and_json() -> None:
    tilings = best_tilings(1024, 1024, 1024, top=3)
    data = json.loads(json.dumps(tilings.to_json()))
    assert len(data["tilings"]) == 3
    assert data["tilings"][0]["fits"] is True
    assert len(tilings.table().splitlines()) == 6
    refused = matmul_tilings(1024, 1024, 1024, [100, 1024], 1024, 1024, vmem_limit_bytes=MIB)
    assert "not legal" in refused.table()
    assert "does not fit" in refused.table()


def test_candidates() -> None:
    assert candidate_sizes(512, 128).tolist() == [128, 256, 384, 512]
    assert candidate_sizes(512, 128, ragged=False).tolist() == [128, 256, 512]
    assert candidate_sizes(100, 128).tolist() == [100]


def test_wrong_input() -> None:
    with pytest.raises(TpulabError, match="order must name"):
        matmul_tilings(8, 128, 128, 8, 128, 128, order="mk")
    with pytest.raises(TpulabError, match="must be positive"):
        matmul_tilings(0, 128, 128, 8, 128, 128)
    with pytest.raises(TpulabError, match="block sizes"):
        matmul_tilings(8, 128, 128, 0, 128, 128)
    with pytest.raises(TpulabError, match="fits into"):
        best_tilings(4096, 4096, 4096, vmem_limit_bytes=1024)
