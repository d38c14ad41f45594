"""A clever learner: results from elsewhere, forged answers, reaching out of the process."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from tpulab.grading import Limits, check, sandbox

QUICK = Limits(stage_seconds=15.0, faithful_seconds=6.0)


def add(x, y):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def subtract(x, y):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] - y_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def verdict_on(function, until="safe"):
    return check(
        "first_kernel.add",
        function,
        quiet=True,
        until=until,
        cache=False,
        record=False,
        limits=QUICK,
    )


def refused(function, step, *words, until="safe"):
    verdict = verdict_on(function, until)
    assert verdict.failed is not None, str(verdict)
    assert verdict.failed.name == step, str(verdict)
    for word in words:
        assert word in str(verdict), str(verdict)
    assert "Traceback" not in str(verdict)


# ---- results from elsewhere


def test_results_forged_in_the_learners_process_are_not_looked_at():
    def forges(x, y):
        import tpulab.grading.child as child

        def answer(self, request, blobs):
            return self._outputs(sum(child.wire.unpack_arrays(request["arrays"], blobs)))

        def faithful(self, request, blobs):
            reply, out = answer(self, request, blobs)
            return reply | {"report": {}}, out

        child._Session.run = answer
        child._Session.faithful = faithful
        return subtract(x, y)

    refused(forges, "correct")


def test_the_inputs_are_not_in_the_learners_process():
    def peeks(x, y):
        import gc

        held = [o for o in gc.get_objects() if isinstance(o, np.ndarray) and o.shape == x.shape]
        print("arrays:", len(held), "oracle:", "tpulab.exercises.first_kernel" in sys.modules)
        return add(x, y)

    verdict = verdict_on(peeks, until="correct")
    assert verdict.passed, str(verdict)
    assert "arrays: 0 oracle: False" in verdict.output
    assert "arrays: 1" not in verdict.output
    assert "arrays: 2" not in verdict.output


def test_calling_the_oracle_is_work_outside():
    def asks(x, y):
        from tpulab.exercises import get_exercise

        total = get_exercise("first_kernel.add").oracle(x, y)
        return add(total, jnp.zeros_like(total))

    refused(asks, "correct", "outside the kernel")


def test_a_constant_for_the_shape_that_is_timed():
    def shortcut(x, y):
        if x.shape != (256, 1024):
            return add(x, y)

        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = jnp.zeros_like(out_ref)

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    refused(shortcut, "correct", "operations that")


def test_a_part_of_the_work_copied_over_the_rest():
    def copies(x, y):
        if x.shape != (256, 1024):
            return add(x, y)
        return jnp.concatenate([add(x[:8], y[:8])] * 32)

    refused(copies, "correct", "repeated in HBM outside the kernel")


def test_a_part_of_the_work_and_a_padded_rest():
    def pads(x, y):
        if x.shape != (256, 1024):
            return add(x, y)
        return jnp.pad(add(x[:8], y[:8]), ((0, 248), (0, 0)))

    refused(pads, "correct", "operations that")


def test_another_program_on_later_calls():
    calls = [0]

    def moody(x, y):
        calls[0] += 1
        return add(x, y) if calls[0] < 4 else subtract(x, y)

    refused(moody, "correct")


def test_luck_with_special_values():
    def lucky(x, y):
        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = x_ref[...] * (1.0 + y_ref[...])

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    refused(lucky, "correct", "luck")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers(value):
    def strange(x, y):
        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = x_ref[...] + y_ref[...] + value

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    refused(strange, "correct")


# ---- answers that make no sense


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("trace", {"calls": [{"steps": "many"}], "results": 7}),
        ("trace", {"calls": 3, "results": [], "illegalities": "x"}),
        ("export", {"error": [1, 2]}),
        ("export", {}),
        ("faithful", {"arrays": [{"shape": [1 << 30, 1 << 30], "dtype": "float32"}], "report": 5}),
        ("load", {"callable": True, "where": 5}),
    ],
)
def test_nonsense_is_a_verdict(method, reply):
    def forges(x, y):
        import tpulab.grading.child as child

        setattr(child._Session, method, lambda self, request, blobs: (reply, []))
        return add(x, y)

    class Loads:
        def __reduce__(self):
            return _forge_load, (reply,)

        def __call__(self, x, y):
            return add(x, y)

    verdict = verdict_on(Loads() if method == "load" else forges)
    assert verdict.failed is not None, str(verdict)
    assert verdict.failed.hint


def _forge_load(reply):
    import tpulab.grading.child as child

    child._Session.trace = lambda self, request, blobs: (reply, [])
    return add


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("blobs", [[], [b"garbage"]])
def test_a_program_that_is_none(blobs):
    def forges(x, y):
        import tpulab.grading.child as child

        child._Session.lower = lambda self, request, _: ({}, blobs)
        return add(x, y)

    refused(forges, "compiles", "not the program that is asked for", until="compiles")


def test_raising_what_should_not_be_raised():
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def interrupts(x, y):
        raise KeyboardInterrupt

    def mute(x, y):
        raise Silent

    def long(x, y):
        raise ValueError("x" * 5_000_000)

    refused(interrupts, "legal", "KeyboardInterrupt")
    refused(mute, "legal", "raise RuntimeError")
    verdict = verdict_on(long)
    assert "xxx" in str(verdict)
    assert len(str(verdict)) < 2000


# ---- out of the process


def _fenced():
    """Whether this system has Landlock, found out in a process of its own."""
    program = "from tpulab.grading import sandbox; print(sandbox.fence('/tmp'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.stdout.strip() == "True"


def test_files_outside_cannot_be_written(tmp_path):
    if not _fenced():
        pytest.xfail("this system has no Landlock")
    target = tmp_path / "progress.sqlite"
    target.write_text("mine")

    def vandal(x, y):
        with open(target, "w") as file:
            file.write("yours")
        return add(x, y)

    def deletes(x, y):
        os.unlink(target)
        return add(x, y)

    refused(vandal, "legal", "may not write to")
    refused(deletes, "legal", "may not write to")
    assert target.read_text() == "mine"

    def own_folder(x, y):
        import tempfile

        with open("notes", "w") as file:
            file.write("mine")
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("mine")
        return add(x, y)

    assert verdict_on(own_folder, until="correct").passed


def test_other_processes_cannot_be_signalled():
    if not _fenced():
        pytest.xfail("this system has no Landlock")
    judge = os.getpid()

    def murders(x, y):
        os.kill(judge, signal.SIGTERM)
        return add(x, y)

    refused(murders, "legal", "may not do that to other processes")


def test_children_are_known():
    program = "import time; time.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            assert process.pid in sandbox.children()
        finally:
            process.kill()
    assert process.pid not in sandbox.children()


# ---- functions of every make


def _with_default(x, y, scale=1.0):
    return add(x, y)


class _Answer:
    def __call__(self, x, y):
        return add(x, y)

    def method(self, x, y):
        return add(x, y)

    @staticmethod
    def static(x, y):
        return add(x, y)


def _decorated(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)

    return inner


def _closure():
    kernel_of = {"add": add}
    return lambda x, y: kernel_of["add"](x, y)


@pytest.mark.parametrize(
    "function",
    [
        _with_default,
        _Answer(),
        _Answer().method,
        _Answer.static,
        functools.partial(_with_default, scale=2.0),
        jax.jit(add),
        jax.jit(_decorated(add)),
        _decorated(add),
        _closure(),
        functools.partial(jax.jit, static_argnames=("scale",))(_with_default),
    ],
    ids=[
        "default",
        "instance",
        "method",
        "static",
        "partial",
        "jit",
        "jit of decorated",
        "decorated",
        "closure",
        "jit with static",
    ],
)
def test_every_kind_of_function(function):
    assert verdict_on(function, until="correct").passed


def test_printing_from_the_kernel_still_works():
    def prints(x, y):
        def kernel(x_ref, y_ref, out_ref):
            pl.debug_print("the first is {}", x_ref[0, 0])
            out_ref[...] = x_ref[...] + y_ref[...]

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)

    verdict = verdict_on(prints, until="correct")
    assert verdict.passed, str(verdict)
    assert verdict.step("correct").data["isolated"] is False
