"""Many submissions in parallel: results as they come, resumable, and none lost to another."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpulab.classroom.submissions import credit, hidden, labs, pages, reading, summaries
from tpulab.classroom.submissions.finding import find_files, what_it_holds
from tpulab.classroom.submissions.judging import Bounds
from tpulab.classroom.submissions.results import FORMAT, Job, empty_result, grade_one, refused
from tpulab.errors import UsageError

Say = Callable[[dict[str, Any], int, int], None]
_IMPORTED = re.compile(r"\b(?:from|import)\s+([A-Za-z_]\w*)")


@dataclass(frozen=True)
class GradeOptions:
    """How submissions are graded.

    Attributes:
        lab: the lab that all must answer, by name or number; None to find out for each.
        chips: chips to judge on; None for each exercise's own.
        hidden_file: TOML file with hidden cases, see :mod:`tpulab.classroom.submissions.hidden`.
        secret: what hidden cases are derived from; None for the one kept on this machine.
        credit_file: TOML file with the shares of the points.
        again: grade also what has a result that still holds.
        jobs: processes, each of which grades one submission at a time.
        bounds: what one answer may take.
    """

    lab: str | None = None
    chips: tuple[str, ...] | None = None
    hidden_file: Path | None = None
    secret: str | None = None
    credit_file: Path | None = None
    again: bool = False
    jobs: int | None = None
    bounds: Bounds = field(default_factory=Bounds)


@dataclass(frozen=True)
class GradeReport:
    """What was graded.

    Attributes:
        folder: where the results are.
        results: one for each submission, in order.
        skipped: files of the folders given that were left out, such as helpers without exercise.
    """

    folder: Path
    results: tuple[dict[str, Any], ...]
    skipped: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every file was read and every exercise judged."""
        return all(result["status"] == "graded" for result in self.results)


def grade(
    files: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    options: GradeOptions | None = None,
    *,
    executor: Executor | None = None,
    say: Say | None = None,
) -> GradeReport:
    """Grade submissions and write a JSON and an HTML result for each, and a summary of all.

    The submitted files are only read. A result is written when it is there, whole or not at all,
    and taken over by a later run as long as the submission, tpulab, JAX, the compiler, the hidden
    cases and the options are the same.

    Args:
        files: notebooks, Python files, and folders of them.
        out: the folder for the results; made when missing.
        options: how to grade.
        executor: where to grade; by default processes of this machine.
        say: called with each result, its number and the number of all.

    Raises:
        UsageError: an option cannot be used, there is nothing to grade, or the folder cannot be
            written.
        KeyboardInterrupt: after Ctrl-C; what was graded until then is kept, with its summary.
    """
    options = options or GradeOptions()
    folder = Path(out)
    _check_options(options)
    found, skipped = find_files(files, folder)
    if not found:
        raise UsageError(
            f"there is nothing to grade in {', '.join(map(str, files))}",
            hint="give notebooks (.ipynb), Python files or folders that hold them",
        )
    _make(folder)
    secret = options.secret or _kept_secret()
    jobs = {
        name: Job(
            str(path),
            name,
            options.lab,
            options.chips,
            secret,
            str(options.hidden_file) if options.hidden_file else None,
            str(options.credit_file) if options.credit_file else None,
            options.bounds,
        )
        for name, path in found.items()
    }
    slugs = _slugs(jobs)
    state = _state_of(options, secret)
    results: dict[str, dict[str, Any]] = {}
    prints = {name: _fingerprint(state, job) for name, job in jobs.items()}

    def keep(name: str, result: dict[str, Any], fresh: bool = True) -> None:
        result["fingerprint"] = prints[name]
        results[name] = result
        if fresh:
            text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
            write_whole(folder / "submissions" / f"{slugs[name]}.json", text)
        write_whole(folder / "submissions" / f"{slugs[name]}.html", pages.page(result))
        if say is not None:
            say({**result, "kept": not fresh}, len(results), len(jobs))

    try:
        for name in jobs:
            known = None if options.again else _known(folder, slugs[name], prints[name])
            if known is not None:
                keep(name, known, fresh=False)
        waiting = [job for name, job in jobs.items() if name not in results]
        for name, result in _graded(waiting, executor, options.jobs):
            keep(name, result)
    finally:
        ordered = tuple(results[name] for name in jobs if name in results)
        left = len(jobs) - len(ordered)
        for file, text in summaries.files(ordered, slugs, left, skipped).items():
            write_whole(folder / file, text)
    return GradeReport(folder, ordered, skipped)


# ---- file names of results


def _slugs(names: Sequence[str] | dict[str, Job]) -> dict[str, str]:
    """A file name for each submission, the same in every run with the same files."""
    taken: set[str] = set()
    slugs = {}
    for name in names:
        stem, suffix = os.path.splitext(name)
        slug = re.sub(r"[^\w.-]+", "-", stem.replace("/", "--")).strip(".-") or "submission"
        if len(slug) > 100:
            slug = f"{slug[:90]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
        # some file systems do not tell capitals
        if slug.lower() in taken:
            slug += suffix.replace(".", "-")
        number = 2
        base = slug
        while slug.lower() in taken:
            slug = f"{base}-{number}"
            number += 1
        taken.add(slug.lower())
        slugs[name] = slug
    return slugs


# ---- in parallel


def _graded(
    jobs: Sequence[Job], executor: Executor | None, count: int | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results in the order in which they come."""
    if not jobs:
        return
    if executor is not None:
        yield from _as_they_come(executor, jobs)
        return
    # a check keeps about two processors busy: the answer and the compilers work side by side
    count = min(count or max(1, (os.cpu_count() or 1) // 2), len(jobs))
    left = {job.name: job for job in jobs}
    with contextlib.suppress(BrokenExecutor), _pool(count) as pool:
        for name, result in _as_they_come(pool, jobs):
            del left[name]
            yield name, result
    # a process that died took its neighbours' turn with it: each of them alone, and once
    for job in left.values():
        what = "the process that graded this file was killed, twice: it ended its grader"
        alone = refused(empty_result(job.name, job.path), "not judged", what)
        with contextlib.suppress(BrokenExecutor), _pool(1) as pool:
            alone = pool.submit(grade_one, job).result()
        yield job.name, alone


def _as_they_come(pool: Executor, jobs: Sequence[Job]) -> Iterator[tuple[str, dict[str, Any]]]:
    futures: dict[Future[dict[str, Any]], str] = {
        pool.submit(grade_one, job): job.name for job in jobs
    }
    try:
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        raise


@contextlib.contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes of our own; they end at once when the block is left by an exception."""
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_ignore_interrupts)
    try:
        yield pool
    except BaseException:
        workers = set(multiprocessing.active_children()) - before
        for worker in workers:
            worker.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.join(5.0)
        raise
    pool.shutdown()


def _ignore_interrupts() -> None:
    # Ctrl-C goes to the whole group; the one who waits for the results answers it
    signal.signal(signal.SIGINT, signal.SIG_IGN)


# ---- what holds until when


def _check_options(options: GradeOptions) -> None:
    from tpulab.hardware import get_chip

    if options.lab is not None:
        labs.find_lab(options.lab)
    credit.load(options.credit_file)
    if options.hidden_file is not None:
        hidden.from_file(options.hidden_file)
    for chip in options.chips or ():
        get_chip(chip)


def _kept_secret() -> str:
    from tpulab.grading.store import home

    return hidden.secret(home())


def _state_of(options: GradeOptions, secret: str) -> list[Any]:
    """Everything but the submission that a result depends on."""
    from tpulab.classroom.lab import labs_folder
    from tpulab.compiler import compiler_version
    from tpulab.grading.store import code_fingerprint

    own = sorted(Path(__file__).parent.glob("*.*"))
    files = [*own, *sorted(labs_folder().glob("*.ipynb"))]
    files += [file for file in (options.hidden_file, options.credit_file) if file]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return [
        FORMAT,
        code_fingerprint(),
        digest.hexdigest(),
        importlib.metadata.version("jax"),
        platform.python_version(),
        compiler_version(),
        # the result may be handed out
        hashlib.sha256(f"grading {secret}".encode()).hexdigest(),
        options.lab,
        options.chips,
        [options.bounds.seconds, options.bounds.memory_bytes],
    ]


def _fingerprint(state: list[Any], job: Job) -> str:
    """Key of a result: the same key, the same result."""
    path = Path(job.path)
    digest = hashlib.sha256(json.dumps([*state, job.name]).encode())
    if path.is_dir():
        digest.update(what_it_holds(path).encode("utf-8", "replace"))
    with contextlib.suppress(reading.UnreadableError):
        data = reading.read_bytes(path)
        digest.update(data)
        imported = set(_IMPORTED.findall(data.decode("utf-8", "replace")))
        for name in sorted(imported):
            beside = path.parent / f"{name}.py"
            if beside.is_file():
                with contextlib.suppress(OSError):
                    digest.update(name.encode() + beside.read_bytes())
    return digest.hexdigest()


def _known(folder: Path, slug: str, fingerprint: str) -> dict[str, Any] | None:
    """The result of an earlier run, if it still holds."""
    try:
        text = (folder / "submissions" / f"{slug}.json").read_text(encoding="utf-8")
        result = json.loads(text)
    except (OSError, ValueError):
        return None
    if not isinstance(result, dict) or result.get("fingerprint") != fingerprint:
        return None
    # what a machine could not judge may have been the machine's mood
    return result if result.get("status") != "not judged" else None


def _make(folder: Path) -> None:
    try:
        (folder / "submissions").mkdir(parents=True, exist_ok=True)
        write_whole(folder / "submissions" / ".writable", "")
        (folder / "submissions" / ".writable").unlink()
    except OSError as error:
        raise UsageError(
            f"results cannot be written to {folder}: {error.strerror}",
            hint="--out names another folder",
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        # a file's name may hold bytes that are no text
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
        # mkstemp's files are for the owner only, results are read by a class
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
