"""Compile through supervised worker processes, with a deadline, a memory limit and a cache."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tpulab.compiler.artifact import Artifact, lower
from tpulab.compiler.cache import CompileCache
from tpulab.compiler.environment import compiler_version, missing_reason, topology_name
from tpulab.compiler.outcomes import (
    FROM_OUTSIDE,
    death_error,
    last_line,
    moved_places,
    refusal,
    rejects_flags,
)
from tpulab.compiler.program import Program
from tpulab.compiler.refusals import (
    CompileError,
    CompileRefused,
    CompilerMissing,
    CompilerTimeout,
    compiler_missing,
)
from tpulab.compiler.supervisor import SupervisedWorker, WorkerDied
from tpulab.errors import TpulabError

if TYPE_CHECKING:
    from tpulab.hardware import Chip

DEFAULT_DEADLINE_SECONDS = 60.0
DEFAULT_MEMORY_LIMIT_BYTES = 6 << 30
# resident memory grows slowly with every compile (370 MB after the first, about 500 after 46)
_COMPILES_PER_WORKER = 200
_RECYCLE_AT_BYTES = 2 << 30
# programs kept in memory, so that a second look costs nothing even without a cache directory
_PROGRAMS_IN_MEMORY = 64

_Entry = tuple[dict[str, Any], dict[str, bytes]]


class CompilerService:
    """Workers, a cache, and the errors that come out of them. Thread-safe.

    Args:
        workers: most worker processes at once; they start when they are first needed.
        cache: None for the default directory.
        memory_limit_bytes: resident memory at which a worker is stopped.

    Use it as a context manager, or call :meth:`close`; at exit it closes itself.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        cache: CompileCache | None = None,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        self.workers = workers or max(1, min(4, (os.cpu_count() or 2) // 2))
        self.cache = cache or CompileCache()
        self.memory_limit_bytes = memory_limit_bytes
        self._condition = threading.Condition()
        self._idle: list[SupervisedWorker] = []
        self._busy: set[SupervisedWorker] = set()
        self._starting = 0
        self._closed = False
        self._filtered = True
        self._memory: dict[str, _Entry] = {}
        _services.add(self)

    # -- compiling -------------------------------------------------------------------------------

    def compile(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        chip: str | Chip = "v5e",
        mesh: Any = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> Program:
        """Lower and compile a function for one chip; see :func:`tpulab.compiler.compile`."""
        artifact = lower(function, *arguments, chip=chip, mesh=mesh)
        return self.compile_artifact(artifact, deadline_seconds=deadline_seconds)

    def compile_artifact(
        self, artifact: Artifact, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> Program:
        """Compile what :func:`tpulab.compiler.lower` made, or find it in the cache.

        Raises:
            CompileRefused, CompilerDied, CompilerTimeout, CompilerMissing: see there.
        """
        version = compiler_version()
        if version is None or missing_reason() is not None:
            raise compiler_missing()
        key = self.cache.key(artifact.key, artifact.chip, version, artifact.jax_version)
        entry = self._memory.get(key) or self.cache.get(key)
        from_cache = entry is not None
        if entry is None:
            entry = self._ask(artifact, deadline_seconds)
            self.cache.put(key, *entry)
        self._remember(key, entry)
        return self._program(artifact, version, *entry, from_cache=from_cache)

    def compile_many(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        chips: Iterable[str | Chip],
        *,
        mesh: Any = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> dict[str, Program | TpulabError]:
        """Compile for several chips; see :func:`tpulab.compiler.compile_many`."""
        from tpulab.hardware import get_chip

        targets = [get_chip(chip) if isinstance(chip, str) else chip for chip in chips]
        results: dict[str, Program | TpulabError] = {}
        artifacts: dict[str, Artifact] = {}
        for target in targets:
            try:
                # in this thread: tracing runs the caller's Python code
                artifacts[target.name] = lower(function, *arguments, chip=target, mesh=mesh)
            except TpulabError as error:
                results[target.name] = error

        def one(name: str) -> Program | TpulabError:
            try:
                return self.compile_artifact(artifacts[name], deadline_seconds=deadline_seconds)
            except TpulabError as error:
                return error

        if len(artifacts) > 1 and self.workers > 1:
            executor = ThreadPoolExecutor(min(len(artifacts), self.workers))
            try:
                results.update(zip(artifacts, executor.map(one, artifacts), strict=True))
            except BaseException:
                self.cancel()
                raise
            finally:
                executor.shutdown(wait=True, cancel_futures=True)
        else:
            results.update({name: one(name) for name in artifacts})
        return {target.name: results[target.name] for target in targets}

    # -- workers ---------------------------------------------------------------------------------

    def prewarm(self, chip: str = "v5e") -> None:
        """Start a worker in the background, so that the first compile does not wait for it.

        Args:
            chip: the chip that is likely to be compiled for first; any does.
        """
        if missing_reason() is not None:
            return

        def start() -> None:
            from tpulab.hardware import get_chip

            # whatever goes wrong here is told to the one who compiles
            with contextlib.suppress(CompileError, WorkerDied):
                deadline = time.monotonic() + DEFAULT_DEADLINE_SECONDS
                with self._worker(deadline) as worker:
                    worker.ask({"warm": get_chip(chip).topology}, {}, deadline)

        with self._condition:
            if self._closed or self._idle or self._busy or self._starting:
                return
        threading.Thread(target=start, daemon=True).start()

    def cancel(self) -> None:
        """Stop every compile that is under way; each raises ``CompilerDied`` in its own thread."""
        with self._condition:
            busy = list(self._busy)
        for worker in busy:
            worker.kill()

    def close(self) -> None:
        """Stop the workers. A later compile raises."""
        with self._condition:
            self._closed = True
            workers = [*self._idle, *self._busy]
            self._idle.clear()
            self._condition.notify_all()
        for worker in workers:
            worker.close()

    def __enter__(self) -> CompilerService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers that are up."""
        with self._condition:
            return tuple(worker.pid for worker in [*self._idle, *self._busy])

    @contextlib.contextmanager
    def _worker(self, deadline: float) -> Iterator[SupervisedWorker]:
        """Borrow a worker, starting one when there is none to wait for."""
        worker = self._take(deadline)
        try:
            yield worker
        finally:
            with self._condition:
                self._busy.discard(worker)
                keep = (
                    not self._closed
                    and worker.alive
                    and worker.compiles < _COMPILES_PER_WORKER
                    and worker.resident_bytes() < _RECYCLE_AT_BYTES
                )
                if keep:
                    self._idle.append(worker)
                self._condition.notify()
            if not keep:
                worker.close()

    def _take(self, deadline: float) -> SupervisedWorker:
        with self._condition:
            while True:
                if self._closed:
                    raise CompileError("the compiler service has been closed")
                while self._idle:
                    worker = self._idle.pop()
                    if worker.alive:
                        self._busy.add(worker)
                        return worker
                    worker.close()
                if len(self._busy) + self._starting < self.workers:
                    self._starting += 1
                    break
                if not self._condition.wait(max(0.0, deadline - time.monotonic())):
                    raise CompilerTimeout("no compile worker became free before the deadline")
        try:
            worker = self._start()
        finally:
            with self._condition:
                self._starting -= 1
                self._condition.notify()
        with self._condition:
            if not self._closed:
                self._busy.add(worker)
                return worker
        worker.close()
        raise CompileError("the compiler service has been closed")

    def _start(self) -> SupervisedWorker:
        try:
            return SupervisedWorker(self.memory_limit_bytes, filtered=self._filtered)
        except WorkerDied as death:
            raise CompilerMissing(
                "the TPU compiler's process does not start",
                message=death.errors,
                why=last_line(death.errors) or str(death),
                hint="`tpulab doctor` says what works here",
            ) from death
        except OSError as error:
            raise CompileError(
                f"the TPU compiler's process can't be started: {error.strerror or error}",
                message=str(error),
                why="it needs a directory for its listings, in /dev/shm or the temporary directory",
                hint="free some room, or set TMPDIR to a directory that can be written",
            ) from error

    def _ask(self, artifact: Artifact, deadline_seconds: float) -> _Entry:
        from tpulab.hardware import get_chip

        chip = get_chip(artifact.chip)
        try:
            topology = topology_name(chip.topology, artifact.devices, chip.devices_per_chip)
        except ValueError as error:
            raise CompileRefused(
                f"no {chip.name} system with {artifact.devices} devices is known",
                message=str(error),
                chip=chip.name,
            ) from error
        started = time.monotonic()
        deadline = started + deadline_seconds
        request = {"topology": topology, "mesh": artifact.mesh, "name": artifact.name}
        for attempt in range(3):
            try:
                with self._worker(deadline) as worker:
                    header, segments = worker.ask(request, {"artifact": artifact.data}, deadline)
                break
            except WorkerDied as death:
                if self._filtered and rejects_flags(death):
                    # a compiler that does not know the dump filter: dump everything from now on
                    self._filtered = False
                elif attempt or death.reason != "signal" or death.signal not in FROM_OUTSIDE:
                    # the one who waits next should not wait for a start
                    self.prewarm()
                    raise death_error(death, artifact, time.monotonic() - started) from death
        if "error" in header:
            raise refusal(header, artifact)
        header["places"] = artifact.places
        return header, segments

    # -- results ---------------------------------------------------------------------------------

    def _program(
        self,
        artifact: Artifact,
        version: str,
        header: dict[str, Any],
        segments: dict[str, bytes],
        from_cache: bool,
    ) -> Program:
        from tpulab.hardware import get_chip

        return Program(
            name=artifact.name,
            chip=artifact.chip,
            compiler_version=version,
            key=artifact.key,
            devices=artifact.devices,
            memory=header.get("memory", {}),
            seconds_to_compile=float(header.get("seconds", 0.0)),
            from_cache=from_cache,
            default_vmem_limit_bytes=get_chip(artifact.chip).core.default_scoped_vmem_bytes,
            texts=segments,
            moved=moved_places(header.get("places", ()), artifact.places),
            warnings=tuple(self.cache.warnings),
        )

    def _remember(self, key: str, entry: _Entry) -> None:
        with self._condition:
            self._memory.pop(key, None)
            self._memory[key] = entry
            while len(self._memory) > _PROGRAMS_IN_MEMORY:
                self._memory.pop(next(iter(self._memory)))

    def _after_fork(self) -> None:
        """In a forked child: the workers belong to the parent."""
        for worker in [*self._idle, *self._busy]:
            worker.abandon()
        self._condition = threading.Condition()
        self._idle, self._busy, self._starting = [], set(), 0


_services: weakref.WeakSet[CompilerService] = weakref.WeakSet()
_shared: CompilerService | None = None
_shared_lock = threading.Lock()


def service() -> CompilerService:
    """The process's compiler service, made on first use and again after it was closed."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared._closed:
            _shared = CompilerService()
        return _shared


def compile(
    function: Callable[..., Any],
    *arguments: Any,
    chip: str | Chip = "v5e",
    mesh: Any = None,
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
) -> Program:
    """Compile a function for a TPU, on a machine without one.

    Args:
        function: a JAX function with any number of ``pallas_call`` in it.
        arguments: arrays or ``jax.ShapeDtypeStruct``, mixed; only shapes and dtypes are used.
        chip: name or :class:`tpulab.hardware.Chip`.
        mesh: axis sizes by name for functions that take their mesh from the context; see
            :func:`tpulab.compiler.lower`.
        deadline_seconds: the compiler is stopped after this time.

    Raises:
        LoweringRefused: JAX can't lower it for this chip.
        CompileRefused: the compiler refuses it.
        CompilerDied: the compiler crashed, or needed too much memory.
        CompilerTimeout: it did not finish in time.
        CompilerMissing: there is no TPU compiler on this machine.
        UnknownNameError: no such chip.
    """
    return service().compile(
        function, *arguments, chip=chip, mesh=mesh, deadline_seconds=deadline_seconds
    )


def compile_many(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    chips: Iterable[str | Chip],
    *,
    mesh: Any = None,
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
) -> dict[str, Program | TpulabError]:
    """Compile a function for several chips.

    Args:
        function: as for :func:`compile`.
        arguments: its arguments, as a sequence.
        chips: names or chips.
        mesh: as for :func:`compile`.
        deadline_seconds: for each chip.

    Returns:
        By chip name, in the order given: the program, or the error that :func:`compile` raises.
    """
    return service().compile_many(
        function, arguments, chips, mesh=mesh, deadline_seconds=deadline_seconds
    )


def _forget_parents_workers() -> None:
    global _shared, _shared_lock
    _shared_lock = threading.Lock()
    for each in list(_services):
        each._after_fork()
    _shared = None


def _close_all() -> None:
    for each in list(_services):
        each.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents_workers)
