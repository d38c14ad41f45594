"""``run`` in both modes: right values, and each kind of mistake found and placed."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from tests.kernel import sample_kernels as samples
from tpulab.errors import UsageError
from tpulab.kernel import RunError, run
from tpulab.kernel.capture import captured_output

SAMPLES = Path(__file__).with_name("sample_kernels.py")


def line_of(text: str) -> str:
    """file:line of the only line of the sample kernels that holds ``text``."""
    lines = [n for n, line in enumerate(SAMPLES.read_text().splitlines(), 1) if text in line]
    assert len(lines) == 1
    return f"{SAMPLES}:{lines[0]}"


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(7).normal(size=(256, 256)).astype(np.float32)


def test_fast_equals_numpy(values: np.ndarray) -> None:
    found = run(samples.matmul(128, 128, 128), values, values)
    np.testing.assert_allclose(found, values @ values, rtol=1e-4, atol=1e-3)


def test_faithful_equals_numpy_and_is_clean(values: np.ndarray) -> None:
    found, report = run(samples.matmul(128, 128, 128), values, values, mode="faithful")
    np.testing.assert_allclose(found, values @ values, rtol=1e-4, atol=1e-3)
    assert report.ok
    assert report.messages == ()
    assert str(report).startswith("no race")


def test_kernel_with_emit_pipeline(values: np.ndarray) -> None:
    x = values[:16]
    np.testing.assert_array_equal(run(samples.pipelined_double(2), x), x * 2)
    found, report = run(samples.pipelined_double(2), x, mode="faithful")
    np.testing.assert_array_equal(found, x * 2)
    assert report.ok


def test_hand_written_double_buffering_is_clean(values: np.ndarray) -> None:
    x = values[:64, :128]
    found, report = run(samples.double_buffered, x, mode="faithful")
    np.testing.assert_array_equal(found, x * 2)
    assert report.ok


def test_interpret_reaches_into_jit_scan_cond_and_custom_vjp(values: np.ndarray) -> None:
    @jax.custom_vjp
    def guarded(x: jax.Array) -> jax.Array:
        return samples.add_one(x)

    guarded.defvjp(lambda x: (guarded(x), None), lambda _, g: (samples.add_one(g),))

    def function(x: jax.Array) -> jax.Array:
        x = jax.jit(samples.add_one)(x)
        x, _ = jax.lax.scan(lambda c, _: (samples.add_one(c), None), x, None, length=3)
        x = jax.lax.cond(x[0, 0] > -100, samples.add_one, lambda x: x, x)
        x = jax.lax.fori_loop(0, 2, lambda _, c: samples.add_one(c), x)
        return guarded(x)

    x = values[:16, :128]
    np.testing.assert_allclose(run(function, x), x + 8, rtol=1e-5)
    gradient = run(jax.grad(lambda x: guarded(x).sum()), x)
    np.testing.assert_array_equal(gradient, np.full_like(x, 2))
    found, report = run(function, x, mode="faithful")
    np.testing.assert_allclose(found, x + 8, rtol=1e-5)
    assert report.ok


def test_structure_of_results_is_kept(values: np.ndarray) -> None:
    def function(pair: dict[str, jax.Array]) -> dict[str, Any]:
        return {"one": samples.add_one(pair["a"]), "rest": (pair["a"],)}

    x = values[:16, :128]
    found = run(function, {"a": x})
    assert set(found) == {"one", "rest"}
    np.testing.assert_array_equal(found["rest"][0], x)


def test_accumulator_not_cleared(values: np.ndarray) -> None:
    function = samples.matmul(128, 128, 128, clear=False)
    _, report = run(function, values, values, mode="faithful")
    assert not report.ok
    (found,) = report.uninitialised
    assert (found.output, found.count, found.first) == (0, 256 * 256, (0, 0))
    assert "never written" in str(report)


def test_nan_that_belongs_there_is_no_uninitialised_read() -> None:
    x = np.full((16, 128), np.nan, np.float32)
    found, report = run(samples.add_one, x, mode="faithful")
    assert np.isnan(found).all()
    assert report.ok


def test_uninitialised_integers_are_seen() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[0:4, :] = x[0:4, :]

    x = np.arange(1024, dtype=np.int32).reshape(8, 128)
    _, report = run(samples.whole(kernel), x, mode="faithful")
    (found,) = report.uninitialised
    assert (found.count, found.first) == (4 * 128, (4, 0))


def test_race_names_both_lines(values: np.ndarray) -> None:
    _, report = run(samples.late_wait, values[:8, :128], mode="faithful")
    (race,) = report.races
    assert (race.buffer, race.first, race.second) == ("VMEM", "write", "read")
    assert race.second_where == line_of("# the race")
    assert race.first_where.startswith(str(SAMPLES))
    assert "race on a VMEM buffer" in report.messages[0]
    assert report.hint is not None


def test_copy_that_nobody_waits_for(values: np.ndarray) -> None:
    _, report = run(samples.no_wait, values[:8, :128], mode="faithful")
    assert report.uninitialised


def test_block_outside_its_array(values: np.ndarray) -> None:
    function = samples.copy_blocks((8, 128), (4,), lambda i: (i + 1, 0), lambda i: (i, 0))
    found, report = run(function, values[:32, :128], mode="faithful")
    assert found is None
    (sentence,) = report.out_of_bounds
    assert sentence.startswith("Out-of-bounds block index (4, 0)")
    assert report.where is not None
    assert report.where.startswith(__file__)
    # the interpreter works again afterwards
    _, again = run(samples.add_one, values[:16, :128], mode="faithful")
    assert again.ok


def test_slice_outside_its_ref(values: np.ndarray) -> None:
    def kernel(x: Any, out: Any) -> None:
        def step(i: Any, carry: Any) -> Any:
            out[pl.ds(0, 8), :] = x[pl.ds(i * 8, 8), :]
            return carry

        jax.lax.fori_loop(0, 3, step, 0)

    found, report = run(samples.whole(kernel), values[:16, :128], mode="faithful")
    assert found is None
    assert "read" in report.out_of_bounds[0]


def test_output_block_come_back_to(values: np.ndarray) -> None:
    kinds = ("arbitrary", "arbitrary", "arbitrary")
    function = samples.matmul(128, 128, 128, order="kmn", kinds=kinds)
    _, report = run(function, values, values, mode="faithful")
    assert report.revisited
    assert "reduction axis last" in str(report)


def test_semaphore_left_above_zero(values: np.ndarray) -> None:
    found, report = run(samples.semaphore_left, values[:8, :128], mode="faithful")
    np.testing.assert_array_equal(found, values[:8, :128])
    (sentence,) = report.semaphores_nonzero
    assert "left at 1" in sentence
    assert not report.ok


@pytest.mark.parametrize(("kind", "ok"), [("parallel", False), ("arbitrary", True)])
def test_two_cores_find_a_sum_along_a_parallel_axis(
    values: np.ndarray, kind: str, ok: bool
) -> None:
    x = values[:32, :128]
    found, report = run(samples.sum_rows(kind), x, mode="faithful", cores=2)
    assert report.ok is ok
    assert report.cores == 2
    if ok:
        np.testing.assert_allclose(found, x.reshape(4, 8, 128).sum(0), rtol=1e-5)
    else:
        assert report.races or report.uninitialised


def test_what_a_kernel_prints_is_passed_on(
    values: np.ndarray, capfd: pytest.CaptureFixture[str]
) -> None:
    def kernel(x: Any, out: Any) -> None:
        pl.debug_print("hello from the kernel")
        out[...] = x[...]

    _, report = run(samples.whole(kernel), values[:8, :128], mode="faithful")
    assert "hello from the kernel" in report.printed
    assert "hello from the kernel" in capfd.readouterr().out
    assert report.ok


def test_mode_and_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="'fast' or 'faithful'"):
        run(samples.add_one, np.zeros((16, 128), np.float32), mode="quick")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="needs values"):
        run(samples.add_one, "f32[16,128]")


def test_text_with_values_runs() -> None:
    found = run(samples.add_one, "f32[16,128]=2")
    np.testing.assert_array_equal(found, np.full((16, 128), 3, np.float32))


def test_error_while_running_is_a_sentence() -> None:
    def function(x: jax.Array) -> jax.Array:
        def refuse(_: Any) -> Any:
            raise ValueError("no")

        y = jax.pure_callback(refuse, jax.ShapeDtypeStruct((), jnp.float32), x[0, 0])
        return samples.add_one(x) + y

    with pytest.raises(RunError, match="while it ran"):
        run(function, np.zeros((16, 128), np.float32))


# -- capture ------------------------------------------------------------------------------------


def test_capture_takes_python_c_and_logging_and_restores_all() -> None:
    stdout, stderr = sys.stdout, sys.stderr
    handlers = logging.getLogger().handlers[:]
    library = ctypes.CDLL(None)
    with captured_output() as captured:
        print("from python")
        sys.stderr.write("to stderr\n")
        os.write(1, b"from a descriptor\n")
        library.puts(b"from C")
        library.fflush(None)
        logging.warning("from logging")
    for text in ("python", "stderr", "descriptor", "C", "logging"):
        assert text in captured.text
    assert (sys.stdout, sys.stderr) == (stdout, stderr)
    assert logging.getLogger().handlers == handlers
    os.write(1, b"")


def test_capture_restores_after_an_exception() -> None:
    stdout = sys.stdout
    with pytest.raises(ValueError, match="stop"), captured_output():
        raise ValueError("stop")
    assert sys.stdout is stdout


def test_kernel_over_a_mesh_of_cores(values: np.ndarray) -> None:
    x = values[:8, :128]
    found, report = run(samples.on_cores(1), x, mode="faithful")
    np.testing.assert_array_equal(found, x * 2)
    assert report.ok


def test_parallel_axis_after_another_is_checked_all_the_same(values: np.ndarray) -> None:
    # the compiler takes such a grid, the interpreter by itself does not (pitfall 45)
    kinds = samples.semantics("arbitrary", "parallel")
    function = samples.copy_blocks((8, 128), (4, 2), lambda i, j: (i, j), compiler_params=kinds)
    x = values[:32]
    found, report = run(function, x, mode="faithful")
    np.testing.assert_array_equal(found, x)
    assert report.ok


REMOTE = """
import jax, numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from tpulab.kernel import run, trace
mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def kernel(x, out, sent, received):
    other = 1 - jax.lax.axis_index("d")
    copy = pltpu.make_async_remote_copy(x, out, sent, received, device_id={"d": other})
    copy.start()
    copy.wait()
def swap(x):
    here = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(kernel, in_specs=[here], out_specs=here,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2)(x)
spec = jax.sharding.PartitionSpec("d")
function = jax.shard_map(swap, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
x = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
print("bytes", trace(function, x).calls[0].remote_bytes)
found, report = run(function, x, mode="faithful")
print("equal", np.array_equal(found, np.concatenate([x[8:], x[:8]])), "ok", report.ok)
"""


def test_remote_copies_between_two_devices() -> None:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, "-c", REMOTE],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        cwd=SAMPLES.parents[2],
        check=False,
    )
    assert "bytes 4096" in done.stdout, done.stderr
    assert "equal True ok True" in done.stdout, done.stderr
