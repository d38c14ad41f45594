"""``tpulab ladder``: prediction for any function in any file, on several chips at once."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tpulab.commands.options import check_target, chip_names
from tpulab.commands.supervise import Limits, UserCodeError, run_supervised
from tpulab.errors import TpulabError, UsageError


def ladder(options: argparse.Namespace) -> int:
    """Print ladders or their JSON; 0 when every chip answered, 1 when one refused."""
    chips = chip_names(options.chip)
    check_target(options.target)
    trace_files = _trace_files(options.trace, chips)
    limits = Limits.from_options(options.deadline, options.memory)
    # each job starts jax and a compiler of its own, which pays on a machine with cores to spare
    jobs = min(options.jobs or max(1, (os.cpu_count() or 1) // 2), len(chips))
    groups = [chips[start::jobs] for start in range(jobs)]
    say = _progress(quiet=options.json)
    stop = threading.Event()

    def answer(group: list[str]) -> dict[str, Any]:
        request = {
            "task": "ladder",
            "target": options.target,
            "arguments": options.args,
            "chips": group,
            "trace": bool(trace_files),
        }
        try:
            return run_supervised(request, limits, say, stop)
        except UserCodeError as error:
            return _refused(options, group, error)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            answers = list(pool.map(answer, groups))
        except BaseException:
            stop.set()  # Ctrl-C reaches this thread only; the others end their children
            raise
    say("")
    merged = _merge(answers, chips)
    # the answer first: a disk that is full costs the timeline and not the ladder
    if options.json:
        print(json.dumps(merged["json"], indent=2))
    else:
        print("\n\n".join(merged["texts"][chip] for chip in chips))
    for chip, file in trace_files.items():
        timeline = merged["traces"].get(chip)
        if timeline is None:
            continue
        _write(file, json.dumps(timeline))
        if not options.json:
            print(f"\ntimeline for {chip}: {file} (open it at ui.perfetto.dev)")
    refused = any(entry["refusal"] for entry in merged["json"]["chips"].values())
    return 1 if refused else 0


def _merge(answers: list[dict[str, Any]], chips: list[str]) -> dict[str, Any]:
    """One answer from those of several children, chips in the order they were asked for."""
    merged: dict[str, Any] = {"json": {}, "texts": {}, "traces": {}}
    entries: dict[str, Any] = {}
    for answer in answers:
        # a child that failed knows less about the function than one that did not
        known = {k: v for k, v in answer["json"].items() if k != "chips" and v is not None}
        merged["json"] = {**answer["json"], **merged["json"], **known}
        entries |= answer["json"]["chips"]
        merged["texts"] |= answer["texts"]
        merged["traces"] |= answer["traces"]
    merged["json"]["chips"] = {chip: entries[chip] for chip in chips}
    return merged


def _refused(options: argparse.Namespace, group: list[str], error: UserCodeError) -> dict[str, Any]:
    """The answer for code that failed before any chip could be asked."""
    from tpulab.ladder import refused_entry

    stage = "load" if error.stage == "start" else error.stage
    return {
        "json": {
            "function": options.target,
            "arguments": options.args,
            "compiler_version": None,
            "chips": {chip: refused_entry(stage, str(error)) for chip in group},
        },
        "texts": {chip: f"{options.target} on {chip}: {error}" for chip in group},
        "traces": {},
    }


def _trace_files(wish: str | None, chips: list[str]) -> dict[str, Path]:
    if wish is None:
        return {}
    path = Path(wish)
    if not path.parent.is_dir():
        raise UsageError(f"--trace names a file in a folder that does not exist: {path.parent}")
    if path.is_dir():
        raise UsageError(f"--trace needs a file; {path} is a folder")
    if len(chips) == 1:
        return {chips[0]: path}
    return {chip: path.with_name(f"{path.stem}.{chip}{path.suffix}") for chip in chips}


def _write(file: Path, text: str) -> None:
    part = file.with_name(file.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise TpulabError(f"the timeline can't be written to {file}: {error.strerror}") from error


def _progress(*, quiet: bool) -> Any:
    """A function that shows the phase on a terminal and does nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        return lambda phase: None
    started = time.monotonic()

    def say(phase: str) -> None:
        text = f"{phase} ... {time.monotonic() - started:.1f} s" if phase else ""
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return say
