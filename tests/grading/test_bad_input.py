"""Bad answers of every kind: one clear verdict each, and the next check works as if nothing was."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.grading import Limits, check, host

QUICK = Limits(stage_seconds=15.0, faithful_seconds=6.0)


def add(x, y):
    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)


def verdict_on(function, until="safe", limits=QUICK, name="first_kernel.add"):
    return check(name, function, quiet=True, until=until, cache=False, record=False, limits=limits)


def fails(function, step, *words, until="safe", limits=QUICK, name="first_kernel.add"):
    verdict = verdict_on(function, until, limits, name)
    assert verdict.attempted, str(verdict)
    assert verdict.failed is not None, str(verdict)
    assert verdict.failed.name == step, str(verdict)
    text = str(verdict)
    for word in words:
        assert word in text, text
    assert verdict.failed.hint, text
    assert "Traceback" not in text
    assert verdict._repr_html_()
    return verdict


def test_right_answer_passes():
    verdict = verdict_on(add)
    assert verdict.passed
    assert verdict.highest == "safe"


@pytest.mark.parametrize("thing", [42, None, "add", np.zeros(3), [add]])
def test_not_a_function(thing):
    fails(thing, "legal", "not a function")


def test_result_in_place_of_the_function():
    x = jnp.ones((8, 128))
    fails(x + x, "legal", "not a function")


@pytest.mark.parametrize("arity", [0, 1, 3])
def test_wrong_arity(arity):
    functions = {0: lambda: None, 1: lambda x: x, 3: lambda x, y, z: x}
    fails(functions[arity], "legal", "your function takes", "2 arrays")


def test_extra_arguments_with_defaults_are_fine():
    def generous(x, y, block=8):
        return add(x, y)

    assert verdict_on(generous, until="correct").passed


def test_no_pallas_call():
    fails(lambda x, y: x + y, "legal", "no pallas_call")


def test_scaffold_is_not_attempted():
    def scaffold(x, y):
        # TODO(learner): write the kernel
        raise NotImplementedError

    def empty(x, y):
        """Nothing yet."""

    def scaffold_kernel(x, y):
        def kernel(x_ref, y_ref, out_ref):
            raise NotImplementedError

        return pl.pallas_call(kernel, out_shape=x)(x, y)

    for function in (scaffold, empty, scaffold_kernel):
        verdict = verdict_on(function)
        assert not verdict.attempted
        assert verdict.failed is None
        assert not verdict.passed
        assert "not attempted" in str(verdict)
        assert "not attempted" in verdict._repr_html_()


def test_forgotten_return():
    def forgets(x, y):
        add(x, y)

    fails(forgets, "legal", "returns None", "return what")


def test_wrong_shape_and_dtype():
    def transposed(x, y):
        return add(x, y).T

    def wrong_dtype(x, y):
        return add(x, y).astype(jnp.float16)

    fails(transposed, "correct", "wrong output shape", "f32[1024,256]")
    fails(wrong_dtype, "correct", "wrong output dtype", "f16[256,1024]")


def test_two_results():
    fails(lambda x, y: (add(x, y), add(y, x)), "correct", "returns 2 arrays")


def test_exception_inside_the_kernel_points_at_its_line():
    def raises(x, y):
        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = x_ref[...] + undefined_name  # noqa: F821

        return pl.pallas_call(kernel, out_shape=x)(x, y)

    verdict = fails(raises, "legal", "undefined_name is not known")
    file, _, line = verdict.failed.where.rpartition(":")
    assert os.path.basename(file) == "test_bad_input.py"
    with open(file) as source:
        assert "undefined_name" in source.read().splitlines()[int(line) - 1]


def test_shapes_that_do_not_go_together():
    def mismatched(x, y):
        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = x_ref[...] + y_ref[...].T

        return pl.pallas_call(kernel, out_shape=x)(x, y)

    fails(mismatched, "legal", "incompatible shapes")


def test_infinite_loop_while_traced():
    def loops(x, y):
        while True:
            pass

    began = time.monotonic()
    verdict = fails(loops, "legal", "did not finish within", limits=Limits(stage_seconds=4.0))
    assert time.monotonic() - began < 60
    # the line that was running is named
    assert "test_bad_input.py" in verdict.failed.where


def test_infinite_loop_inside_the_kernel():
    def loops(x, y):
        def kernel(x_ref, y_ref, out_ref):
            forever = jax.lax.while_loop(lambda i: i >= 0, lambda i: i * 0, jnp.int32(1))
            out_ref[...] = x_ref[...] + y_ref[...] * forever

        return pl.pallas_call(kernel, out_shape=x)(x, y)

    verdict = verdict_on(loops, limits=Limits(stage_seconds=6.0))
    assert verdict.failed is not None
    assert "did not finish within" in verdict.failed.summary
    assert "test_bad_input.py" in verdict.failed.where
    assert verdict.failed.hint


def test_fifty_gigabytes():
    def greedy_numpy(x, y):
        np.ones((50 << 30,), np.uint8)
        return add(x, y)

    fails(greedy_numpy, "legal", "more memory than", "GiB")


def test_fifty_gigabytes_in_jax():
    def greedy(x, y):
        big = jax.device_put(np.float32(1)) + jnp.zeros((50 << 10, 1 << 18), jnp.float32)
        return add(x, y) if float(big[0, 0]) > 0 else x

    # jnp.zeros is a tracer inside, so the array is made while the function is traced eagerly
    def outer(x, y):
        with jax.ensure_compile_time_eval():
            return greedy(x, y)

    fails(outer, "legal", "more memory than", "GiB")


@pytest.mark.parametrize("code", [0, 3])
def test_os_exit(code):
    def exits(x, y):
        os._exit(code)

    fails(exits, "legal", "ended the whole process", str(code))


def test_sys_exit():
    def exits(x, y):
        raise SystemExit(2)

    fails(exits, "legal", "ends Python")


def test_segfault():
    def crashes(x, y):
        ctypes.string_at(0)

    fails(crashes, "legal", "crashed", "SIGSEGV")


def test_abort():
    def aborts(x, y):
        os.abort()

    fails(aborts, "legal", "crashed", "SIGABRT")


def test_flood_of_output():
    def chatters(x, y):
        while True:
            print("x" * 10_000)

    verdict = fails(chatters, "legal", "printed more than")
    assert len(str(verdict)) < 20_000


def test_what_it_printed_is_shown():
    def talks(x, y):
        print("the shape is", x.shape)
        raise ValueError("no idea")

    verdict = fails(talks, "legal", "no idea", "the shape is (")
    assert "the shape is" in verdict.output


def test_kills_its_parent_and_the_next_check_still_works():
    def murders(x, y):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)

    verdict = verdict_on(murders)
    assert verdict.failed is not None, str(verdict)
    assert verdict.failed.name == "legal"
    assert verdict_on(add, until="correct").passed


@pytest.mark.parametrize("session", [False, True])
def test_forks_and_leaves_nothing_behind(session):
    def forks(x, y):
        if os.fork() == 0:
            if session:
                # out of the group, and with a parent that is gone
                os.setsid()
                if os.fork() != 0:
                    os._exit(0)
            print("left behind:", os.getpid(), flush=True)
            time.sleep(120)
        time.sleep(0.7)
        os._exit(0)

    verdict = verdict_on(forks)
    pid = verdict.output.partition("left behind: ")[2].split()[0]
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError("the forked process is still there")


def test_unpicklable():
    lock = threading.Lock()

    def holds(x, y):
        with lock:
            return add(x, y)

    fails(holds, "legal", "cannot be sent")


def test_interpret_mode_is_refused():
    def interpreted(x, y):
        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = x_ref[...] + y_ref[...]

        return pl.pallas_call(kernel, out_shape=x, interpret=True)(x, y)

    fails(interpreted, "legal", "interpret mode", "take out interpret")


def test_result_that_ignores_the_kernel():
    def decoy(x, y):
        add(x, y)
        return jnp.zeros_like(x)

    fails(decoy, "correct", "does not come from the kernel")


def test_callback_outside():
    def calls_home(x, y):
        total = jax.pure_callback(lambda a, b: np.asarray(a) + np.asarray(b), x, x, y)
        return add(total, jnp.zeros_like(y))

    fails(calls_home, "correct", "outside the kernel")


def test_deadlock():
    def waits(x, y):
        def kernel(x_ref, y_ref, out_ref, semaphore):
            out_ref[...] = x_ref[...] + y_ref[...]
            pl.semaphore_wait(semaphore, 1)

        return pl.pallas_call(kernel, out_shape=x, scratch_shapes=[pltpu.SemaphoreType.REGULAR])(
            x, y
        )

    began = time.monotonic()
    fails(waits, "safe", "hangs", "semaphore")
    assert time.monotonic() - began < 60


def test_writes_a_huge_file():
    def fills_the_disk(x, y):
        with open("big", "wb") as file:
            for _ in range(1000):
                file.write(bytes(1 << 20))
        return add(x, y)

    verdict = verdict_on(fills_the_disk, limits=Limits(file_bytes=8 << 20))
    assert verdict.failed is not None, str(verdict)
    assert "File too large" in str(verdict) or "larger than" in str(verdict)


def test_unreadable_messages_are_a_verdict():
    def scribbles(x, y):
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"\xff" * 64)
            except OSError:
                pass
        time.sleep(0.2)
        return add(x, y)

    verdict = verdict_on(scribbles)
    assert verdict.failed is not None, str(verdict)
    assert verdict_on(add, until="correct").passed


def test_unknown_exercise_and_chip():
    with pytest.raises(UnknownNameError, match="first_kernel.addd") as error:
        check("first_kernel.addd", add, quiet=True)
    assert "first_kernel.add" in str(error.value)
    with pytest.raises(UnknownNameError, match="v99"):
        check("first_kernel.add", add, chips="v99", quiet=True)
    with pytest.raises(TpulabError):
        check("first_kernel.add", add, until="perfect", quiet=True)


def test_interrupt_returns_a_verdict_and_kills_the_child():
    def sleeps(x, y):
        time.sleep(100)

    timer = threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    verdict = verdict_on(sleeps)
    timer.join()
    assert verdict.interrupted
    assert time.monotonic() - began < 15
    assert "interrupted" in str(verdict)
    assert verdict_on(add, until="correct").passed


def test_zygote_is_restarted():
    assert verdict_on(add, until="legal").passed
    pid = host._zygote.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.3)
    assert verdict_on(add, until="correct").passed
    assert host._zygote.pid != pid


def test_warm_process_killed_in_the_middle():
    def sleeps(x, y):
        time.sleep(60)
        return add(x, y)

    assert verdict_on(add, until="legal").passed
    killed = host._zygote.pid
    timer = threading.Timer(1.0, lambda: os.kill(killed, signal.SIGKILL))
    timer.start()
    began = time.monotonic()
    verdict = fails(sleeps, "legal", "is gone while", "check again")
    assert time.monotonic() - began < 14
    assert verdict.attempted
    assert verdict_on(add, until="correct").passed


def test_interrupt_before_the_warm_process_is_up():
    """Ctrl-C in the first second is answered at once."""
    host._zygote.stop()
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    verdict = verdict_on(add)
    timer.join()
    assert verdict.interrupted
    assert time.monotonic() - began < 3
    assert [step.summary for step in verdict.steps] == ["interrupted", "", ""]
    assert verdict_on(add, until="correct").passed


def test_network_is_out_of_reach():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def phones(x, y):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=2).close()
            except OSError:
                return add(x, y)
            raise RuntimeError("connected")

        verdict = verdict_on(phones, until="legal")
    if "connected" in str(verdict):
        pytest.xfail("this system does not let a process leave the network")
    assert verdict.passed


def test_without_fork(monkeypatch):
    monkeypatch.setenv("TPULAB_NO_FORK", "1")
    assert verdict_on(add, until="correct").passed

    def exits(x, y):
        os._exit(5)

    fails(exits, "legal", "ended the whole process", "5")

    def raises(x, y):
        print("hello")
        raise ValueError("no idea")

    verdict = fails(raises, "legal", "no idea")
    assert "hello" in verdict.output


def test_many_checks_at_once():
    from concurrent.futures import ThreadPoolExecutor

    def wrong(x, y):
        return add(x, x)

    with ThreadPoolExecutor(4) as executor:
        verdicts = list(
            executor.map(lambda f: verdict_on(f, until="correct"), [add, wrong, add, wrong])
        )
    assert [v.passed for v in verdicts] == [True, False, True, False]


@pytest.mark.needs_libtpu
def test_abort_inside_the_compiler():
    """A 16-bit iota over more than 128 lanes ends the v5e compiler's process."""

    def aborts(x, y):
        def kernel(x_ref, y_ref, out_ref, short_ref):
            out_ref[...] = x_ref[...] + y_ref[...]
            if x.shape[1] >= 256:
                lane = jax.lax.broadcasted_iota(jnp.int16, (16, 256), 1)
                short_ref[...] = lane + x_ref[:16, :256].astype(jnp.int32).astype(jnp.int16)
                out_ref[:16, :256] += 0.0 * short_ref[...].astype(jnp.int32).astype(jnp.float32)

        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        scratch = [pltpu.VMEM((16, 256), jnp.int16)]
        return pl.pallas_call(kernel, out_shape=out, scratch_shapes=scratch)(x, y)

    verdict = check("first_kernel.add", aborts, chips="v5e", quiet=True, cache=False, record=False)
    assert verdict.failed is not None, str(verdict)
    assert verdict.failed.name == "compiles", str(verdict)
    assert "Traceback" not in str(verdict)
    # the compiler is back for the next answer
    again = check("first_kernel.add", add, chips="v5e", quiet=True, cache=False, record=False)
    assert again.passed, str(again)
    assert again.step("compiles").passed
