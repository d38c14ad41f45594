"""The whole way on real kernels: trace, compile, simulate, explain."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources

import jsonschema
import pytest

from tpulab.errors import UnknownNameError, UsageError
from tpulab.ladder import RUNGS, compare, ladder

SCHEMA = json.loads(resources.files("tpulab").joinpath("ladder_schema.json").read_text("utf-8"))
MIB = 2**20


def matmul(size: int, block: int):
    """A tiled [size, size] x [size, size] bfloat16 matmul and its arguments."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    steps = size // block

    def body(lhs_ref, rhs_ref, out_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == steps - 1)
        def _():
            out_ref[...] = acc_ref[...].astype(out_ref.dtype)

    def tiled_matmul(lhs, rhs):
        return pl.pallas_call(
            body,
            grid=(steps, steps, steps),
            in_specs=[
                pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
                pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
            ],
            out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((size, size), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((block, block), jnp.float32)],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("parallel", "parallel", "arbitrary")
            ),
        )(lhs, rhs)

    argument = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    return tiled_matmul, (argument, argument)


@pytest.mark.needs_libtpu
def test_matmul_on_two_chips() -> None:
    function, arguments = matmul(1024, 256)
    result = ladder(function, *arguments, chip=["v5e", "v6e"])
    data = json.loads(json.dumps(result.to_json()))
    jsonschema.validate(data, SCHEMA)
    assert data["function"] == "tiled_matmul"
    assert data["arguments"] == ["bfloat16[1024,1024]"] * 2
    assert data["compiler_version"].startswith("libtpu")
    for name, peak, bandwidth in (("v5e", 197e12, 819e9), ("v6e", 918e12, 1638e9)):
        one = result[name]
        assert one.refusal is None, one.refusal
        assert [rung.name for rung in one.rungs] == list(RUNGS)
        times = [rung.seconds for rung in one.rungs]
        assert times == sorted(times)
        assert one.bound_seconds == pytest.approx(
            max(2 * 1024**3 / peak, 3 * 1024**2 * 2 / bandwidth)
        )
        # 4 readings of each operand, one writing: exactly what the blocks of the grid move
        assert one.hbm_bytes == 2 * 4 * 2 * MIB + 2 * MIB
        assert (
            one.predicted_seconds
            == times[-1]
            == pytest.approx(one.cycles / one.timeline.clock_hertz)
        )
        assert one.rungs[1].seconds == pytest.approx(18 * MIB / bandwidth)
        assert 1 < times[-1] / times[1] < 4
        assert one.vmem_bytes > 256 * 256 * (2 * 2 * 3 + 4) * 0.9
        assert sum(one.stall_seconds.values()) < one.predicted_seconds
        assert "reads input lhs_ref 4 times and rhs_ref 4 times" in one.rungs[1].cause


@pytest.mark.needs_libtpu
def test_every_chip_of_the_compiler_answers() -> None:
    function, arguments = matmul(512, 256)
    result = ladder(function, *arguments, chip=["v4", "v5e", "v5p", "v6e", "7x"])
    jsonschema.validate(result.to_json(), SCHEMA)
    for name, one in result.chips.items():
        assert one.refusal is None, f"{name}: {one.refusal}"
        times = [rung.seconds for rung in one.rungs]
        assert times == sorted(times)
        assert 0.03 < one.fraction_of_bound < 1
    # both cores of a v5p share the grid's parallel axes
    assert result["v5p"].timeline.cores == 2


@pytest.mark.needs_libtpu
def test_larger_blocks_are_faster() -> None:
    small, arguments = matmul(512, 128)
    large, _ = matmul(512, 256)
    result = compare(ladder(small, *arguments), ladder(large, *arguments))
    assert result.speedup["v5e"] > 1.5
    assert "times as fast" in str(result)


@pytest.mark.needs_libtpu
def test_a_chip_that_refuses_does_not_stop_the_others() -> None:
    """16 MiB in and 16 MiB out fit into the default VMEM limit of v6e and not into that of v5e."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1.0

    def whole(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    result = ladder(whole, jax.ShapeDtypeStruct((2304, 1024), jnp.float32), chip="v5e,v6e")
    data = result.to_json()
    jsonschema.validate(data, SCHEMA)
    refused, fine = data["chips"]["v5e"], data["chips"]["v6e"]
    assert refused["refusal"]["stage"] == "compile"
    assert "vmem" in refused["refusal"]["reason"].lower()
    assert refused["predicted_seconds"] is None
    assert refused["bound_seconds"] == pytest.approx(2 * 2304 * 1024 * 4 / 819e9)
    assert fine["refusal"] is None
    assert fine["predicted_seconds"] > fine["bound_seconds"]


@pytest.mark.needs_libtpu
def test_measured_stands_beside_predicted() -> None:
    function, arguments = matmul(512, 256)
    result = ladder(function, *arguments, measured={"v5e": 1.0})
    assert result.rungs[-1].name == "measured"
    assert result.rungs[-1].seconds == 1.0
    assert result.predicted_seconds < 1.0


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("row_id", ["JAX-001", "AML-005"])
def test_the_stored_error_is_what_is_predicted_now(row_id: str) -> None:
    """`ladder_accuracy.toml` must not outlive the simulator that it describes."""
    import tomllib

    from tpulab.simulator import accuracy

    text = resources.files("tpulab").joinpath("ladder_accuracy.toml").read_text("utf-8")
    stored = tomllib.loads(text)["v5e"]["rows"][row_id]
    row = next(row for row in accuracy.rows() if row.id == row_id)
    assert row.seconds * 1e3 == pytest.approx(stored["published_ms"], abs=6e-4)
    # another compiler makes a slightly different program
    assert accuracy.predict(row).error == pytest.approx(stored["error"], abs=0.03)


@pytest.mark.needs_libtpu
def test_text_arguments_go_all_the_way() -> None:
    function, arguments = matmul(512, 256)
    text = ladder(function, "bf16[512,512]", "bf16[512,512]")
    assert text.refusal is None
    assert text.to_json() == ladder(function, *arguments).to_json()


@pytest.mark.needs_libtpu
def test_values_of_an_input_in_smem_reach_the_simulator() -> None:
    from tests.kernel.sample_kernels import repeats

    few = ladder(repeats, "i32[2]=[0,1]", "f32[32,128]")
    many = ladder(repeats, "i32[2]=[0,4000]", "f32[32,128]")
    assert few.refusal is None
    assert many.refusal is None
    # one float32 tile a bundle at best, four grid steps
    assert many.predicted_seconds > 4 * 4000 / 1.5e9 > 2 * few.predicted_seconds


def _loop(kind: str):
    """A kernel that runs seven times, or as often as an argument says."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...] + 1.0

    def once(x):
        block = pl.BlockSpec((256, 1024), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            grid=(8,),
            in_specs=[block],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        )(x)

    def scan(count, x):
        rows = jnp.zeros((7, *x.shape), x.dtype)
        return jax.lax.scan(lambda carry, row: (once(carry + row), None), x, rows + x)[0]

    def fori(count, x):
        return jax.lax.fori_loop(0, count[0], lambda _, carry: once(carry), x)

    return {"scan": scan, "fori": fori}[kind]


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("kind", ["scan", "fori"])
def test_a_loop_around_a_kernel_counts_every_iteration(kind: str) -> None:
    arguments = ("i32[1]=[7]", "f32[2048,1024]")
    result = ladder(_loop(kind), *arguments)
    assert result.refusal is None
    assert not [warning for warning in result.warnings if "guess" in warning]
    assert sum(piece.steps for piece in result.timeline.pieces) == 7 * 8
    # what goes from one iteration to the next may stay in VMEM
    assert result.predicted_seconds >= result.bound_seconds
    assert result.bound_seconds < 7 * 2 * 8 * MIB / 819e9


def test_a_function_without_a_kernel_is_refused_with_a_reason() -> None:
    result = ladder(lambda x: x + 1, "f32[8,128]", chip=["v5e", "7x"])
    data = result.to_json()
    jsonschema.validate(data, SCHEMA)
    assert data["arguments"] == ["f32[8,128]"]
    for entry in data["chips"].values():
        assert entry["refusal"]["stage"] == "trace"
        assert "pallas_call" in entry["refusal"]["reason"]
        assert entry["bound_seconds"] is None


def test_a_refused_block_shape_says_which_stage() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    def copy(x):
        return pl.pallas_call(
            body,
            grid=(4,),
            in_specs=[pl.BlockSpec((8, 100), lambda i: (0, i))],
            out_specs=pl.BlockSpec((8, 100), lambda i: (0, i)),
            out_shape=jax.ShapeDtypeStruct((8, 400), jnp.float32),
        )(x)

    result = ladder(copy, jax.ShapeDtypeStruct((8, 400), jnp.float32))
    assert result.refusal.stage == "lower"
    assert "128" in result.refusal.reason


def test_without_a_compiler_the_bounds_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    import tpulab.compiler
    from tpulab.compiler import CompilerMissing

    missing = CompilerMissing("this step needs the TPU compiler, which is not here")
    monkeypatch.setattr(
        tpulab.compiler,
        "compile_many",
        lambda function, arguments, chips, **_: {chip.name: missing for chip in chips},
    )
    monkeypatch.setattr(tpulab.compiler, "compiler_version", lambda: None)
    function, arguments = matmul(512, 256)
    result = ladder(function, *arguments)
    data = result.to_json()
    jsonschema.validate(data, SCHEMA)
    assert data["compiler_version"] is None
    assert data["chips"]["v5e"]["refusal"]["stage"] == "compile"
    assert data["chips"]["v5e"]["bound_seconds"] > 0
    assert "no TPU compiler" in str(result)


def test_a_defect_of_the_simulator_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import tpulab.compiler
    import tpulab.simulator

    program = SimpleNamespace(
        compiler_version="libtpu 1", vmem=SimpleNamespace(used_bytes=1), spills=0
    )
    monkeypatch.setattr(
        tpulab.compiler,
        "compile_many",
        lambda function, arguments, chips, **_: {chip.name: program for chip in chips},
    )

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no cycles")

    monkeypatch.setattr(tpulab.simulator, "simulate", broken)
    function, arguments = matmul(512, 256)
    result = ladder(function, *arguments)
    assert result.refusal.stage == "simulate"
    assert "ZeroDivisionError: no cycles" in result.refusal.reason
    assert result.vmem_bytes == 1


def test_wrong_use() -> None:
    with pytest.raises(UsageError, match="needs a function"):
        ladder(3)
    with pytest.raises(UnknownNameError, match="v5f"):
        ladder(lambda x: x, "f32[8]", chip="v5f")
    with pytest.raises(UsageError, match="at least one chip"):
        ladder(lambda x: x, "f32[8]", chip=[])
    with pytest.raises(UsageError, match="which of several"):
        ladder(lambda x: x, "f32[8]", chip="v5e,v6e", measured=1.0)
    with pytest.raises(UsageError, match="above zero"):
        ladder(lambda x: x, "f32[8]", measured={"v5e": 0})


@pytest.mark.parametrize(
    "first",
    ["tpulab.ladder", "from tpulab.ladder import ladder", "import tpulab.ladder"],
)
def test_the_package_offers_ladder_whatever_is_imported_first(first: str) -> None:
    """The module and the function share a name; `tpulab.ladder(...)` must always work."""
    code = (
        f"import tpulab; {first}\n"
        "try: tpulab.ladder(3)\n"
        "except tpulab.TpulabError as error: print(error.what)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout.strip() == "a ladder needs a function, not int", result.stderr


def test_importing_the_ladder_is_cheap() -> None:
    code = "import sys, tpulab.ladder; print(sorted({'jax', 'numpy'} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.strip() == "[]"
