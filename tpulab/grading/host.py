"""The judge's side of the processes: start one for a check, read what it says, end it.

Where the system can fork, children come from one warm process (:mod:`tpulab.grading.zygote`);
elsewhere each check starts a Python of its own, which takes a second or two longer.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from tpulab.errors import TpulabError
from tpulab.grading import wire

_KEPT_OUTPUT_BYTES = 64 << 10
_START_SECONDS = 60.0


class CheckerError(TpulabError):
    """The process that runs answers cannot be started."""


class Job:
    """One child process and the messages that come from it.

    Attributes:
        folder: the child's working folder; it is emptied when the job ends.
        flooded: the child printed more than it may.
    """

    def __init__(self, output_limit_bytes: int) -> None:
        self.messages: queue.Queue[tuple[dict[str, Any], list[bytes]] | None] = queue.Queue()
        self.exit_code: int | None = None
        self.ended = threading.Event()
        self.pid: int | None = None
        self.flooded = False
        self.malformed: str | None = None
        self.folder = tempfile.TemporaryDirectory(
            prefix="tpulab-check-", ignore_cleanup_errors=True
        )
        self._output_limit_bytes = output_limit_bytes
        self._kept = bytearray()
        self._outgoing: queue.Queue[bytes | None] = queue.Queue()
        self._writer: BinaryIO | None = None
        self._threads: list[threading.Thread] = []

    def send(self, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Queue a message; a child that is gone is noticed when its messages end.

        Never waits: a child that reads nothing must not hold up the judge.
        """
        self._outgoing.put(wire.encode(header, blobs))

    def receive(self, timeout_seconds: float) -> tuple[dict[str, Any], list[bytes]] | None:
        """The next message, or None when there will be no more.

        Raises:
            TimeoutError: nothing came in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = deadline - time.monotonic()
            try:
                # short waits, so that Ctrl-C is answered at once on every system
                return self.messages.get(timeout=min(0.2, max(left, 0.001)))
            except queue.Empty:
                if self.flooded:
                    return None
                if left <= 0:
                    raise TimeoutError from None

    @property
    def output(self) -> str:
        """What the child printed, at most the first 64 KiB."""
        return bytes(self._kept).decode("utf-8", "replace")

    def kill(self) -> None:
        """End the child and everything in its group."""
        pid = self.pid
        if self.ended.is_set():
            # what it started may live on in its group
            if pid is not None and hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            return
        if pid is None:
            # not forked yet: it will find its channel closed and end by itself
            self.ended.set()
            return
        if hasattr(os, "killpg"):
            for end in (
                lambda: os.killpg(pid, signal.SIGKILL),
                lambda: os.kill(pid, signal.SIGKILL),
            ):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end()
        else:
            self._terminate()

    def _terminate(self) -> None:
        """Where there are no process groups."""

    def close(self) -> None:
        """End the child, wait for its remains, and remove its folder."""
        self._outgoing.put(None)
        self.kill()
        if self.pid is not None:
            self.ended.wait(2.0)
            for thread in self._threads:
                thread.join(1.0)
        # else it is not forked yet, and there is nothing to wait for
        self._close_streams()
        self.folder.cleanup()

    def _close_streams(self) -> None:
        """Close this side; what waits to be written is dropped."""

    def _start(self, stream: BinaryIO, output: BinaryIO) -> None:
        for target, argument in ((self._read_messages, stream), (self._read_output, output)):
            thread = threading.Thread(target=target, args=(argument,), daemon=True)
            thread.start()
            self._threads.append(thread)
        threading.Thread(target=self._write_messages, daemon=True).start()

    def _write_messages(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (data := self._outgoing.get()) is not None:
                assert self._writer is not None
                self._writer.write(data)
                self._writer.flush()

    def _read_messages(self, stream: BinaryIO) -> None:
        try:
            while (message := wire.decode(stream)) is not None:
                self.messages.put(message)
        except wire.MalformedMessageError as error:
            self.malformed = str(error)
        except (OSError, ValueError):
            pass
        finally:
            self.messages.put(None)

    def _read_output(self, output: BinaryIO) -> None:
        seen = 0
        with contextlib.suppress(OSError, ValueError), output:
            while data := os.read(output.fileno(), 1 << 16):
                seen += len(data)
                self._kept += data[: max(0, _KEPT_OUTPUT_BYTES - len(self._kept))]
                if seen > self._output_limit_bytes and not self.flooded:
                    self.flooded = True
                    self.kill()


def _environment() -> dict[str, str]:
    """The environment of processes that run answers."""
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.environ.get("PYTHONPATH")
    changes: Mapping[str, str] = {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LOG_DIR": "disabled",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # a thread of OpenBLAS would not survive the fork
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": package_parent + (os.pathsep + path if path else ""),
        "PYTHONUNBUFFERED": "1",
    }
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return kept | dict(changes)


class _ForkedJob(Job):
    """A child of the warm process."""

    def __init__(self, output_limit_bytes: int, channel: socket.socket, output: BinaryIO) -> None:
        super().__init__(output_limit_bytes)
        self._channel = channel
        stream = channel.makefile("rb")
        self._writer = channel.makefile("wb")
        self._start(stream, output)

    def _close_streams(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._channel.close()


class _SpawnedJob(Job):
    """A Python process of its own, where the system cannot fork."""

    def __init__(self, output_limit_bytes: int) -> None:
        super().__init__(output_limit_bytes)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tpulab.grading.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            start_new_session=os.name == "posix",
        )
        self.pid = self._process.pid
        assert self._process.stdin
        assert self._process.stdout
        assert self._process.stderr
        self._writer = self._process.stdin  # type: ignore[assignment]
        self._start(self._process.stdout, self._process.stderr)  # type: ignore[arg-type]
        waiter = threading.Thread(target=self._wait, daemon=True)
        waiter.start()
        self._threads.append(waiter)

    def _wait(self) -> None:
        self.exit_code = self._process.wait()
        self.ended.set()

    def _terminate(self) -> None:
        self._process.kill()


class Zygote:
    """The warm process, started on first use and again when it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._jobs: dict[int, _ForkedJob] = {}
        self._numbers = itertools.count(1)
        self._ready = threading.Event()
        self._errors: Any = None
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """Process id, None when it is not running."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start it in the background unless it runs already."""
        with self._lock:
            self._ensure()

    def _ensure(self) -> None:
        if self._owner != os.getpid():
            # a fork of the judge must not share the sockets of its parent
            self._process = self._control = None
            self._jobs = {}
            self._owner = os.getpid()
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return
        mine, theirs = socket.socketpair()
        self._ready = threading.Event()
        if self._errors is not None:
            self._errors.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tpulab.grading.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=_environment(),
                # Ctrl-C in the terminal is the judge's business alone
                start_new_session=True,
            )
        self._control = mine
        threading.Thread(
            target=self._listen, args=(mine, self._jobs, self._ready), daemon=True
        ).start()

    def _listen(
        self, control: socket.socket, jobs: dict[int, _ForkedJob], ready: threading.Event
    ) -> None:
        with contextlib.suppress(OSError, ValueError), control.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "ready" in message:
                    ready.set()
                job = jobs.get(message.get("job", -1))
                if job is None:
                    continue
                if "pid" in message:
                    job.pid = message["pid"]
                if "exit" in message:
                    job.exit_code = message["exit"]
                    job.ended.set()
                    jobs.pop(message["job"], None)
        ready.set()
        for job in list(jobs.values()):
            job.ended.set()
        jobs.clear()

    def fork(self, output_limit_bytes: int) -> Job:
        """A new child.

        Raises:
            CheckerError: the warm process does not come up.
        """
        with self._lock:
            for _ in range(2):
                self._ensure()
                assert self._control is not None
                number = next(self._numbers)
                channel, theirs = socket.socketpair()
                read_end, write_end = os.pipe()
                job = _ForkedJob(output_limit_bytes, channel, os.fdopen(read_end, "rb", 0))
                self._jobs[number] = job
                try:
                    socket.send_fds(
                        self._control,
                        [json.dumps({"job": number}).encode()],
                        [theirs.fileno(), write_end],
                    )
                    return job
                except OSError:
                    self._jobs.pop(number, None)
                    self._stop()
                    job.ended.set()
                    job.close()
                finally:
                    theirs.close()
                    os.close(write_end)
        raise CheckerError(
            "the process that runs answers does not start", why=self.last_words() or None
        )

    def last_words(self) -> str:
        """The end of what the warm process printed."""
        if self._errors is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            return str(self._errors.read()[-2000:].decode("utf-8", "replace")).strip()
        return ""

    def stop(self) -> None:
        """End the warm process and its children."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._owner != os.getpid():
            return
        control, process = self._control, self._process
        self._control = self._process = None
        self._jobs = {}
        if control is not None:
            with contextlib.suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
            control.close()
        if process is not None:
            # it has nothing to save, and its children end with it
            process.kill()
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


_zygote = Zygote()
atexit.register(_zygote.stop)


def can_fork() -> bool:
    """Whether children come from the warm process. ``TPULAB_NO_FORK`` says no."""
    # macOS can fork, but its frameworks may not be used afterwards
    return (
        sys.platform not in ("win32", "darwin", "emscripten")
        and hasattr(os, "fork")
        and not os.environ.get("TPULAB_NO_FORK")
    )


def warm() -> None:
    """Start the warm process now, so that the first check need not wait for it."""
    if can_fork():
        _zygote.start()


def start_job(output_limit_bytes: int) -> Job:
    """A new child process for one check."""
    if can_fork():
        return _zygote.fork(output_limit_bytes)
    return _SpawnedJob(output_limit_bytes)
