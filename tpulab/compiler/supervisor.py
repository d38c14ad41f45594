"""One compile worker process, watched: started, asked with a deadline, stopped, buried."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tpulab.compiler import frames
from tpulab.compiler.environment import QUIET_ENVIRONMENT, dump_flags, plain_dump_flags

_DIRECTORY_PREFIX = "tpulab-compile-"
# a large kernel's listings are about 5 MB; less room than this and the dumps go to disk
_WANTED_ROOM_BYTES = 64 << 20
_START_SECONDS = 60.0
# how often memory is looked at while waiting
_LOOK_SECONDS = 0.2


class WorkerDied(Exception):
    """The process ended before it answered.

    Attributes:
        signal: name of the signal, or None.
        exit_code: exit code when there was no signal.
        reason: ``"signal"``, ``"exit"``, ``"memory"``, ``"deadline"``, ``"cancelled"``.
        errors: the end of what it wrote to standard error.
    """

    def __init__(self, returncode: int | None, reason: str, errors: str) -> None:
        self.signal: str | None = None
        self.exit_code: int | None = None
        if returncode is not None and returncode < 0:
            try:
                self.signal = signal.Signals(-returncode).name
            except ValueError:
                self.signal = f"signal {-returncode}"
        else:
            self.exit_code = returncode
        self.reason = reason
        self.errors = errors
        super().__init__(f"compile worker ended: {self.signal or self.exit_code} ({reason})")


def _private_directory() -> Path:
    """A directory for dumps, in memory where there is room, else on disk."""
    for parent in ("/dev/shm", tempfile.gettempdir()):
        try:
            usage = os.statvfs(parent)
            if usage.f_bavail * usage.f_frsize < _WANTED_ROOM_BYTES:
                continue
            _bury_abandoned(Path(parent))
            return Path(tempfile.mkdtemp(prefix=_own_prefix(), dir=parent))
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix=_own_prefix()))


def _own_prefix() -> str:
    """How this process's directories begin: with its number and the namespace of that."""
    return f"{_DIRECTORY_PREFIX}{os.getpid()}-{_namespace()}-"


def _namespace() -> str:
    """Of process numbers, as text; containers that share a directory have different ones."""
    try:
        inode = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        inode = 0
    return f"{inode:x}"


def _bury_abandoned(parent: Path) -> None:
    """Remove dump directories whose owner was killed before it could."""
    for path in parent.glob(f"{_DIRECTORY_PREFIX}*-*-*"):
        owner, namespace, _ = path.name.removeprefix(_DIRECTORY_PREFIX).split("-", 2)
        if namespace != _namespace():
            continue  # of a container that shares this directory: its numbers mean nothing here
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc").exists():
            shutil.rmtree(path, ignore_errors=True)


def _environment(flags: str) -> dict[str, str]:
    """The worker's environment: quiet, with our flags and none of the caller's for JAX or libtpu.

    An unknown flag would end the process, and settings such as x64 are in the artifact already.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_", "XLA_", "TPU_", "LIBTPU_", "PYTHON"))
    }
    environment.update(QUIET_ENVIRONMENT)
    environment["LIBTPU_INIT_ARGS"] = flags
    environment["PYTHONPATH"] = os.pathsep.join(
        [
            str(Path(__file__).resolve().parents[2]),
            *(
                os.path.abspath(path)
                for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)
                if path
            ),
        ]
    )
    return environment


class SupervisedWorker:
    """A worker process and the pipes to it. Not thread-safe: one user at a time.

    Args:
        memory_limit_bytes: resident memory at which the process is stopped.
        filtered: dump only the passes that are read (see ``environment.dump_flags``).

    Raises:
        WorkerDied: it did not come up.
    """

    def __init__(self, memory_limit_bytes: int, *, filtered: bool = True) -> None:
        self.compiles = 0
        self._killed_for: str | None = None
        self.memory_limit_bytes = memory_limit_bytes
        self.filtered = filtered
        self._directory = _private_directory()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        flags = dump_flags if filtered else plain_dump_flags
        # -P: a random.py in the learner's directory must not be imported here
        command = [sys.executable, "-P", "-m", "tpulab.compiler.worker"]
        self._process = subprocess.Popen(
            [*command, str(self._directory), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(flags(str(self._directory))),
            cwd=self._directory,
            bufsize=0,
            # Ctrl-C in a terminal goes to every process of the session; this one is told by us
            start_new_session=True,
        )
        try:
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            self._read(time.monotonic() + _START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def ask(
        self, header: dict[str, Any], segments: dict[str, bytes], deadline: float
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Send a request and wait for the answer.

        Args:
            header: the request.
            segments: its bytes.
            deadline: in the time of ``time.monotonic()``.

        Raises:
            WorkerDied: with reason ``"deadline"`` or ``"memory"`` after it was stopped for that.
            BaseException: whatever interrupts the wait; the process is stopped first.
        """
        self.compiles += 1
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            self._errors.truncate()
        try:
            self._write(frames.pack(header, segments), deadline)
            return self._read(deadline)
        except ValueError as error:
            # another thread has closed the pipes: the service is being closed
            if not self._is_closed():
                raise
            raise WorkerDied(None, self._killed_for or "cancelled", "") from error
        except BaseException:
            # what it would answer later must not be taken for the answer to the next request
            self.close()
            raise

    def _is_closed(self) -> bool:
        return any(
            pipe is None or pipe.closed for pipe in (self._process.stdin, self._process.stdout)
        )

    def resident_bytes(self) -> int:
        """Resident memory of the process; 0 where it can't be read."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self, reason: str = "cancelled") -> None:
        """Stop the process at once; whoever waits for its answer gets :class:`WorkerDied`."""
        self._killed_for = self._killed_for or reason
        if self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Stop the process at once and remove its dump directory."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        shutil.rmtree(self._directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._errors.close()

    def abandon(self) -> None:
        """After a fork, in the child: drop the pipes without touching the parent's process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        # Popen.__del__ must not wait for, or complain about, a process that is not ours
        self._process.returncode = 0

    def _died(self) -> WorkerDied:
        try:
            returncode = self._process.wait(10)
        except subprocess.TimeoutExpired:
            returncode = None
        errors = ""
        with contextlib.suppress(OSError, ValueError):
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - 65536))
            errors = self._errors.read().decode(errors="replace")
        by_signal = returncode is not None and returncode < 0
        reason = self._killed_for or ("signal" if by_signal else "exit")
        return WorkerDied(returncode, reason, errors)

    def _stop(self, reason: str) -> WorkerDied:
        self.kill(reason)
        return self._died()

    def _write(self, data: bytes, deadline: float) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        view = memoryview(data)
        try:
            while view:
                if self._wait(pipe.fileno(), select.POLLOUT, deadline):
                    # the pipe does not block: as much is taken as there is room for
                    view = view[os.write(pipe.fileno(), view[: 1 << 20]) :]
        except BlockingIOError:
            self._write(bytes(view), deadline)
        except OSError as error:
            raise self._died() from error

    def _read(self, deadline: float) -> tuple[dict[str, Any], dict[str, bytes]]:
        pipe = self._process.stdout
        assert pipe is not None

        def receive(count: int) -> bytes:
            parts = []
            while count:
                if not self._wait(pipe.fileno(), select.POLLIN, deadline):
                    continue
                part = os.read(pipe.fileno(), min(count, 1 << 20))
                if not part:
                    raise self._died()
                parts.append(part)
                count -= len(part)
            return b"".join(parts)

        try:
            return frames.read(receive)
        except frames.FrameError as error:
            raise self._stop("exit") from error

    def _wait(self, descriptor: int, event: int, deadline: float) -> bool:
        """Wait a moment for a pipe, minding the deadline and the memory; True when it is ready."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise self._stop("deadline")
        poll = select.poll()
        poll.register(descriptor, event)
        if poll.poll(min(remaining, _LOOK_SECONDS) * 1000):
            return True
        if self.resident_bytes() > self.memory_limit_bytes:
            raise self._stop("memory")
        return False
