"""The supervised end of ``commands.supervise``: loads a person's file and answers one request.

Run as ``python -P -m tpulab.commands.child REQUEST ANSWER PHASE_FD``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tpulab.errors import TpulabError, UnknownNameError, UsageError

_MESSAGE_LIMIT = 1500
# a slice of 4x4 chips; a file that needs another number can ask for it itself
_HOST_DEVICES = 16


class _Phases:
    """Tells the parent what this process is doing; a loop is then stopped in the right words."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.now = "start"

    def enter(self, name: str) -> None:
        self.now = name
        try:
            os.write(self._descriptor, name.encode() + b"\n")
        except OSError:
            pass  # the code closed it or the parent is gone; the deadline still counts


def main(arguments: Sequence[str]) -> int:
    """Answer the request of a file and leave the answer in another."""
    request_file, answer_file, descriptor = arguments
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    _die_with_parent(request["parent"])
    _limit_memory(request.get("memory_bytes"))
    phases = _Phases(int(descriptor))
    try:
        answer = {"value": _TASKS[request["task"]](request, phases)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a person's code raises
        answer = {"error": _describe(error, phases.now, request)}
    part = Path(answer_file + ".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    os.replace(part, answer_file)
    sys.stdout.flush()
    sys.stderr.flush()
    # threads or exit handlers that the code left behind must not keep the answer waiting
    os._exit(0)


def _die_with_parent(parent: int) -> None:
    """On Linux, ask the kernel to end this process when its parent is killed."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes
    import signal

    set_parent_death_signal = 1
    try:
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it was killed before the kernel knew
        os._exit(1)


def _limit_memory(limit_bytes: int | None) -> None:
    if limit_bytes is None:
        return
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    # the soft limit only: a compile worker, which is a child of this process, inherits it and may
    # raise it again up to the hard one, for the limit is meant for the person's code
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))


def _load(request: dict[str, Any], phases: _Phases) -> tuple[Any, tuple[Any, ...]]:
    """The function of a request and its arguments."""
    phases.enter("load")
    from tpulab.compiler.environment import settle_platform
    from tpulab.kernel import LoadError, load_function, parse_argument
    from tpulab.kernel.mesh import expect_host_devices

    # a file or a make_args() that creates arrays would else load the TPU compiler into this process
    settle_platform()
    # they may also start JAX's backend, after which there are no more devices for a mesh
    expect_host_devices(_HOST_DEVICES)

    try:
        function, make_arguments = load_function(request["target"])
    except LoadError as error:
        if error.__cause__ is not None:
            raise  # the file itself failed
        # the file is fine and holds no such function: a slip on the command line
        raise UsageError(error.what, why=error.why, hint=error.hint, where=error.where) from None
    if request["arguments"]:
        arguments = tuple(parse_argument(text) for text in request["arguments"])
    elif make_arguments is not None:
        arguments = tuple(make_arguments())
    else:
        raise UsageError(
            "the function's arguments are not known",
            hint="give each with --arg, such as --arg 'bf16[4096,4096]', or write a make_args() "
            "in the file",
            where=request["target"],
        )
    return function, arguments


def _ladder(request: dict[str, Any], phases: _Phases) -> dict[str, Any]:
    """Ladders of a function on the chips of a request, as JSON, with text and trace for each."""
    function, arguments = _load(request, phases)
    _rehearse(function, arguments, phases)
    from tpulab.ladder import ladder

    texts: dict[str, str] = {}
    traces: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    for chip in request["chips"]:
        phases.enter(f"chip {chip}")
        climbed = ladder(function, *arguments, chip=chip)
        one = climbed.to_json()
        result = one if result is None else {**result, "chips": {**result["chips"], **one["chips"]}}
        texts[chip] = str(climbed)
        timeline = climbed[chip].timeline
        if request["trace"] and timeline is not None:
            traces[chip] = timeline.to_chrome_trace()
    return {"json": result, "texts": texts, "traces": traces}


def _rehearse(function: Any, arguments: tuple[Any, ...], phases: _Phases) -> None:
    """Run the person's code once by itself, so that a loop in it meets the deadline for tracing."""
    phases.enter("trace")
    import jax

    try:
        jax.eval_shape(function, *arguments)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - what is wrong with it is told by the ladder, for each chip
        pass


def _roofline(request: dict[str, Any], phases: _Phases) -> dict[str, Any]:
    """The work of a function's kernels for each chip of a request."""
    function, arguments = _load(request, phases)
    phases.enter("trace")
    from dataclasses import asdict

    from tpulab.kernel import trace
    from tpulab.roofline import Work

    work = asdict(Work.of_kernel(trace(function, *arguments)))
    return dict.fromkeys(request["chips"], work)


def _describe(error: BaseException, stage: str, request: dict[str, Any]) -> dict[str, Any]:
    """An exception as the parent tells it."""
    if os.environ.get("TPULAB_DEBUG"):
        traceback.print_exception(error)
    if isinstance(error, TpulabError):
        usage = isinstance(error, UsageError | UnknownNameError)
        return {
            "kind": "usage" if usage else "code",
            "stage": stage.partition(" ")[0],
            "what": error.what,
            "why": error.why,
            "hint": error.hint,
            "where": error.where,
        }
    name = type(error).__name__
    message = str(error).strip()
    if isinstance(error, SystemExit):
        what = f"your code left with sys.exit({error.code!r})"
    elif isinstance(error, MemoryError):
        what = f"your code asked for more memory than it may use: {message}".rstrip(": ")
    else:
        what = f"your code raised {name}: {message[:_MESSAGE_LIMIT]}".rstrip(": ")
    return {
        "kind": "code",
        "stage": stage.partition(" ")[0],
        "what": what,
        "where": _place(error, request.get("target", "")),
        "hint": "--memory GIB allows more" if isinstance(error, MemoryError) else None,
    }


def _place(error: BaseException, target: str) -> str | None:
    """``file:line`` of the last frame in the person's own file, else of their nearest code."""
    frames = traceback.extract_tb(error.__traceback__)
    own_file = target.rpartition(":")[0]
    for frame in reversed(frames):
        if own_file and os.path.realpath(frame.filename) == os.path.realpath(own_file):
            return f"{own_file}:{frame.lineno} in {frame.name}"
    return None


_TASKS: dict[str, Callable[[dict[str, Any], _Phases], Any]] = {
    "ladder": _ladder,
    "roofline": _roofline,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
