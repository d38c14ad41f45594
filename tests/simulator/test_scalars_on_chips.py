"""Index arithmetic on the scalar core of every generation, against what tracing says."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.simulator.helpers import core, load, program
from tpulab.compiler.listing import Op, Predicate
from tpulab.simulator import constants_for, simulate, simulate_listing
from tpulab.simulator.opcodes import Kind, classify

CHIPS = ["v4", "v5e", "v5p", "v6e", "7x"]
TABLE = numpy.array([3, 5, 2, 7, 1, 6, 4, 8, 9, 11, 13, 10, 12, 15, 14, 16], numpy.int32)
FLOATS = numpy.linspace(0, 1, 16).astype(numpy.float32)


def _index_maps() -> dict[str, tuple[Any, Any]]:
    import jax.numpy as jnp
    from jax import lax

    return {
        "division": (TABLE, lambda i, t: i // 3),
        "division of data": (TABLE, lambda i, t: (i * 7) // t[i]),
        "remainder": (TABLE, lambda i, t: lax.rem(i, 7)),
        "remainder of data": (TABLE, lambda i, t: lax.rem(i * 5, t[i])),
        "modulo of negative": (TABLE, lambda i, t: jnp.mod(-i, 5)),
        "truncation": (FLOATS, lambda i, t: (t[i] * 7.9).astype(jnp.int32)),
        "floor": (FLOATS, lambda i, t: jnp.floor(t[i] * 7.9).astype(jnp.int32)),
        "ceiling": (FLOATS, lambda i, t: jnp.ceil(t[i] * 6.9).astype(jnp.int32)),
        "comparison": (FLOATS, lambda i, t: jnp.where(t[i] > 0.5, 1, 0)),
        "wrapped product": (TABLE, lambda i, t: ((t[i] * 1000003) & 0x7FFFFFFF) % 8),
    }


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", list(_index_maps()))
def test_index_arithmetic(name: str, chip: str) -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    from tpulab.compiler import compile as compile_for_chip
    from tpulab.kernel import trace

    table, index = _index_maps()[name]

    def kernel(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def run(t: Any, x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(16,),
                in_specs=[pl.BlockSpec((8, 128), lambda i, t: (index(i, t), 0))],
                out_specs=pl.BlockSpec((8, 128), lambda i, t: (i, 0)),
            ),
            out_shape=jax.ShapeDtypeStruct((128, 128), jnp.float32),
        )(t, x)

    # Too large an operand for XLA to keep it in VMEM.
    array = jax.ShapeDtypeStruct((2**18, 128), jnp.float32)
    traced = trace(run, table, array)
    timeline = simulate(compile_for_chip(run, table, array, chip=chip), kernel=traced)
    block = 8 * 128 * 4
    moves = int(traced.calls[0].moves(traced.calls[0].inputs[0]).sum())
    assert timeline.hbm_read_bytes // block == moves
    assert timeline.hbm_written_bytes == 16 * block
    assert timeline.steps == 16


@pytest.mark.needs_libtpu
# In the other generations' listings of this kernel, no branch has all its slots filled.
@pytest.mark.parametrize("chip", ["v4", "7x"])
def test_delay_slots_are_those_that_the_compiler_guards(chip: str) -> None:
    from tpulab.compiler import compile as compile_for_chip
    from tpulab.simulator.accuracy import matmul

    function, arguments = matmul(4096, (512, 512, 512))
    program_ = compile_for_chip(function, *arguments, chip=chip)
    farthest = 0
    for piece in program_.pieces:
        bundles = piece.listing.bundles
        for index, bundle in enumerate(bundles):
            for op in bundle.ops:
                if classify(op.opcode).kind is not Kind.BRANCH or op.predicate is None:
                    continue
                opposite = Predicate(op.predicate.value, not op.predicate.negated)
                for distance, later in enumerate(bundles[index + 1 : index + 12], 1):
                    if any(_guards(other, opposite) for other in later.ops):
                        farthest = max(farthest, distance)
    assert farthest == constants_for(chip).branch_delay_slots


def _guards(op: Op, predicate: Predicate) -> bool:
    return op.predicate is not None and (op.predicate.value, op.predicate.negated) == (
        predicate.value,
        predicate.negated,
    )


# ---- an empty bundle that stands for several slots ----------------------------------------------


def moved(size: str) -> str:
    return load(granules=1).replace("/*size_in_granules=*/1", f"/*size_in_granules=*/{size}")


@pytest.mark.parametrize(("slots", "added"), [(["", ""], 0), (["", "GUARDED"], 5), (["X"], 7)])
def test_an_empty_bundle_can_be_the_last_slot(slots: list[str], added: int) -> None:
    guarded = "%s2_s1 = sadd.s32 (!%p1_p1), %s1_s1, 5"
    always = "%s3_s1 = sadd.s32 %s1_s1, 7"
    chip = core(branch_delay_slots=6, empty_fills_slots=True)

    def sum_when(taken: bool) -> int:
        bundles = [
            f"%s1_s1 = smov 1  ;;  %p1_p1 = scmp.eq.s32.totalorder 2, {2 if taken else 1}",
            "%9 = sbr.rel (%p1_p1) target = $region3",
            *[{"GUARDED": guarded, "X": always}.get(slot, slot) for slot in slots],
            "",
            "%s4_s1 = sadd.s32 %s1_s1, 100",
            moved("%s1_s1") + " /* Start region 3 */",
        ]
        return simulate_listing(program(bundles), chip).hbm_read_bytes // 32

    assert sum_when(False) == 101 + added
    # Taken: what stands in the slots still runs, unless it is guarded.
    assert sum_when(True) == 1 + (added if "X" in slots else 0)
