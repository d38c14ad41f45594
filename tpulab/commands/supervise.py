"""Runs other people's code in a process of its own, within time, memory and output limits.

The child (``commands.child``) gets a request as JSON, tells over a pipe which phase it is in, and
leaves its answer in a file. Whatever the code does (loop, ``os._exit``, 50 GB, a flood of output,
a crash), the parent comes back with an answer or with a sentence.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulab.errors import TpulabError, UsageError

#: what a phase may take; tracing a big kernel takes a second or two, a compilation has its own
#: deadline and stays well below this
PHASE_SECONDS = {"start": 60.0, "load": 60.0, "trace": 60.0}
DEFAULT_PHASE_SECONDS = 600.0
OUTPUT_LIMIT_BYTES = 20_000


class UserCodeError(TpulabError):
    """The supervised code failed; ``stage`` is the phase it was in."""

    def __init__(self, stage: str, what: str, **more: Any) -> None:
        super().__init__(what, **more)
        self.stage = stage


@dataclass(frozen=True)
class Limits:
    """What supervised code may use.

    Attributes:
        phase_seconds: deadline of each phase by name, for those that differ from the default.
        memory_bytes: address space of the process; None for no limit.
        output_bytes: how much of what the code prints is shown.
    """

    phase_seconds: Mapping[str, float]
    memory_bytes: int | None
    output_bytes: int = OUTPUT_LIMIT_BYTES

    @classmethod
    def from_options(cls, deadline_seconds: float | None, memory_gigabytes: float | None) -> Limits:
        """The limits of a command line, with this machine's default where none is given."""
        seconds = dict(PHASE_SECONDS)
        if deadline_seconds is not None:
            seconds = dict.fromkeys(seconds, deadline_seconds)
        if memory_gigabytes is None:
            return cls(seconds, default_memory_bytes())
        return cls(seconds, int(memory_gigabytes * 2**30))


def default_memory_bytes() -> int | None:
    """Address space that lets jax and a big example run but stops a runaway before the machine."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    # jax's threads and mapped libraries take some gigabytes of address space without using memory
    return int(physical * 0.75) + 6 * 2**30


def run_supervised(
    request: Mapping[str, Any],
    limits: Limits,
    on_phase: Callable[[str], None] = lambda phase: None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Let a child answer a request.

    Args:
        request: JSON-able; ``request["task"]`` names a function in ``commands.child``.
        limits: time, memory and output.
        on_phase: called with the name of each phase the child enters.
        stop: when set by another thread, the child is ended and KeyboardInterrupt raised.

    Returns:
        the child's answer.

    Raises:
        UserCodeError: the code failed, ran out of a limit or ended the process.
        UsageError: the request was wrong: no such file, no such function, a bad argument.
    """
    with tempfile.TemporaryDirectory(prefix="tpulab-") as folder:
        answer_file = Path(folder) / "answer.json"
        request_file = Path(folder) / "request.json"
        request_file.write_text(
            json.dumps({**request, "memory_bytes": limits.memory_bytes, "parent": os.getpid()}),
            encoding="utf-8",
        )
        with _child(request_file, answer_file) as (process, phases):
            watch = _Watch(process, phases, limits, on_phase, stop or threading.Event())
            watch.until_end()
        try:
            answer = json.loads(answer_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            answer = None
        # the answer is written last: with it, a crash while the interpreter ends does not matter
        if not isinstance(answer, dict):
            raise watch.why_no_answer()
    if "error" in answer:
        raise _error_from(answer["error"])
    return answer["value"]


@contextlib.contextmanager
def _child(request_file: Path, answer_file: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    read_end, write_end = os.pipe()
    environment = dict(os.environ)
    package_parent = str(Path(__file__).resolve().parent.parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [package_parent, environment.get("PYTHONPATH")])
    )
    environment.setdefault("PYTHONUNBUFFERED", "1")
    command = [sys.executable, "-P", "-m", "tpulab.commands.child"]
    command += [str(request_file), str(answer_file), str(write_end)]
    posix: dict[str, Any] = {}
    if sys.platform != "win32":
        # a session of its own, so that everything it starts can be ended together
        posix = {"pass_fds": (write_end,), "start_new_session": True}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        **posix,
    )
    os.close(write_end)
    try:
        yield process, read_end
    finally:
        end(process)
        os.close(read_end)
        if process.stdout is not None:
            process.stdout.close()


def end(process: subprocess.Popen[bytes], grace_seconds: float = 2.0) -> None:
    """End a process and its whole session; asks first, insists after the grace."""
    if process.poll() is None:
        _signal_session(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace_seconds)
    if sys.platform != "win32":
        # also when the child ended by itself: what it left running must not outlive it
        _signal_session(process, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


def _signal_session(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


class _Watch:
    """Follows one child: its phases, its output, its clock."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        phases: int,
        limits: Limits,
        on_phase: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.process = process
        self.phases = phases
        self.limits = limits
        self.on_phase = on_phase
        self.stop = stop
        self.phase = "start"
        self.shown_bytes = 0
        self.dropped_bytes = 0
        self.tail = b""
        self.timed_out = False
        self._phase_text = b""
        self._deadline = time.monotonic() + self._seconds()

    def _seconds(self) -> float:
        return self.limits.phase_seconds.get(self.phase, DEFAULT_PHASE_SECONDS)

    def until_end(self) -> None:
        """Return when the child has ended or has used its time up."""
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(self.phases, selectors.EVENT_READ)
            while selector.get_map():
                left = self._deadline - time.monotonic()
                if left <= 0:
                    self.timed_out = True
                    break
                if self.stop.is_set():
                    raise KeyboardInterrupt
                # short waits: a grandchild may hold the pipes open after the child has ended
                ready = selector.select(min(left, 0.2))
                if not ready and self.process.poll() is not None:
                    break
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd == output:
                        self._take_output(data)
                    else:
                        self._take_phases(data)
        if not self.timed_out:
            try:
                self.process.wait(timeout=max(0.1, self._deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.timed_out = True
        if self.dropped_bytes:
            print(
                f"tpulab: your code printed {_size(self.shown_bytes + self.dropped_bytes)}; "
                f"only the first {_size(self.shown_bytes)} are shown.",
                file=sys.stderr,
            )

    def _take_output(self, data: bytes) -> None:
        # it goes to stderr, so that standard output holds the answer only
        self.tail = (self.tail + data)[-4000:]
        show = data[: max(0, self.limits.output_bytes - self.shown_bytes)]
        self.shown_bytes += len(show)
        self.dropped_bytes += len(data) - len(show)
        if show:
            sys.stderr.write(show.decode(errors="replace"))
            sys.stderr.flush()

    def _take_phases(self, data: bytes) -> None:
        *lines, self._phase_text = (self._phase_text + data).split(b"\n")
        for line in lines:
            self.phase = line.decode(errors="replace")
            self._deadline = time.monotonic() + self._seconds()
            self.on_phase(self.phase)

    def why_no_answer(self) -> UserCodeError:
        """The sentence for a child that left without an answer."""
        doing = _DOING.get(self.phase.partition(" ")[0], "working on your code")
        if self.timed_out:
            return UserCodeError(
                self.phase,
                f"your code was stopped: {doing} took longer than {self._seconds():.0f} s",
                hint="look for a loop that does not end; --deadline SECONDS gives it more time",
            )
        status = self.process.returncode
        if status < 0:
            return UserCodeError(self.phase, *_killed_by(-status, doing))
        return UserCodeError(
            self.phase,
            f"your code ended the whole process (exit status {status}) while tpulab was {doing}",
            hint="look for os._exit() or a library that calls it",
        )


_DOING = {
    "start": "starting",
    "load": "importing your file",
    "trace": "tracing your function",
}


def _killed_by(number: int, doing: str) -> tuple[str]:
    if number == getattr(signal, "SIGKILL", 9):
        return (f"the system killed your code while tpulab was {doing}: it ran out of memory",)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return (f"the process crashed ({name}) while tpulab was {doing}",)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _error_from(error: Mapping[str, Any]) -> TpulabError:
    fields = {name: error.get(name) for name in ("why", "hint", "where")}
    if error["kind"] == "usage":
        return UsageError(error["what"], **fields)
    return UserCodeError(error.get("stage", "trace"), error["what"], **fields)
