"""A warm process that forks one child for each check.

It imports JAX once (the slow part of a cold start) but never starts a JAX backend, because threads
do not survive a fork. Run as ``python -m tpulab.grading.zygote FD``; FD is a Unix socket on which
each request is a line of JSON with the child's two file descriptors attached.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from tpulab.grading import sandbox

# what JAX imports when a kernel is first lowered or interpreted: half a second that every child
# would pay again. Not needed for a first verdict, so it is left for when nothing waits.
_LATER = (
    "jax._src.pallas.mosaic.pallas_call_registration",
    "jax._src.pallas.mosaic_gpu.pallas_call_registration",
    "jax._src.pallas.mosaic.interpret.interpret_pallas_call",
    "jax._src.pallas.mosaic.sc_lowering",
    "jax.experimental.multihost_utils",
    "jaxlib.mlir.dialects.mhlo",
    "tpulab.compiler.explanations",
)


def _import_the_slow_parts() -> None:
    import jax
    import jax.experimental.pallas
    import jax.experimental.pallas.tpu

    import tpulab.compiler.artifact
    import tpulab.grading.child
    import tpulab.kernel

    # what these load on first use
    with contextlib.suppress(ImportError, AttributeError):
        import jax.export
        import jax.extend.core

        import tpulab.hardware
        import tpulab.kernel.legality

        _ = (tpulab.kernel.trace, tpulab.kernel.run)
    # a warning about fork would come from JAX's own at-fork hook once a backend runs
    del jax


def _child(channel: socket.socket, output: int) -> None:
    """Everything after the fork; never returns."""
    status = 1
    try:
        from tpulab.grading import child

        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        sandbox.die_with_parent()
        sandbox.own_group()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        with channel.makefile("rwb") as stream:
            child.serve(stream, stream)
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here whatever happened
        import traceback

        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def main(descriptor: int) -> int:
    """Serve until the other end of the socket is closed."""
    control = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sandbox.adopt_orphans()
    _import_the_slow_parts()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _reply(control, {"ready": os.getpid()})
    jobs: dict[int, int] = {}
    later = list(_LATER)
    while True:
        watched: list[Any] = [control, wake_read]
        ready, _, _ = select.select(watched, [], [], 0.02 if later else None)
        if not ready and later:
            # a version of JAX without one of them has it elsewhere, and children import it there
            with contextlib.suppress(ImportError):
                importlib.import_module(later.pop(0))
            continue
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            _reap(control, jobs)
        if control in ready:
            data, descriptors, _, _ = socket.recv_fds(control, 4096, 2)
            if not data:
                return 0
            request = json.loads(data)
            pid = os.fork()
            if pid == 0:
                control.close()
                os.close(wake_read)
                os.close(wake_write)
                _child(socket.socket(fileno=descriptors[0]), descriptors[1])
            for number in descriptors:
                os.close(number)
            jobs[pid] = request["job"]
            _reply(control, {"job": request["job"], "pid": pid})


def _reap(control: socket.socket, jobs: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            break
        if pid in jobs:
            code = os.waitstatus_to_exitcode(status)
            _reply(control, {"job": jobs.pop(pid), "exit": code})
    # a process that a check left behind, in whatever group or session, is ours now
    for pid in sandbox.children():
        if pid not in jobs:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
