"""``check``: the five verdicts on one answer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

from tpulab.errors import TpulabError, UsageError
from tpulab.exercises import Exercise, get_exercise
from tpulab.exercises.model import STEPS
from tpulab.grading import display, host, shipping, store
from tpulab.grading.judge import Judge
from tpulab.grading.problems import Problem, failed
from tpulab.grading.progress_store import progress_store
from tpulab.grading.sandbox import Limits
from tpulab.grading.shipping import Shipment
from tpulab.grading.verdict import StepResult, Verdict


def check(
    name: str,
    function: Callable[..., Any],
    *,
    chips: str | Sequence[str] | None = None,
    quiet: bool = False,
    limits: Limits | None = None,
    seed: int | None = None,
    until: str = "fast",
    cache: bool = True,
    record: bool = True,
    diagnose: bool = True,
) -> Verdict:
    """Judge an answer: legal, correct, safe, compiles, fast.

    The function runs in a process of its own, with limits on time, memory and output; the verdict
    is made here, where it cannot reach.

    Args:
        name: the exercise, for example ``"matmul.tiled"``.
        function: the answer, a plain JAX function; it never mentions interpret mode.
        chips: chips to judge it on, the leading one first; the default is the exercise's own.
        quiet: show nothing while it runs.
        limits: what the answer may take.
        seed: of the random inputs; by default another one for each check.
        until: the last step to judge.
        cache: take a verdict that the same code has passed with before.
        record: write the attempt down in the progress file.
        diagnose: say which mistake it is, where, and what to try; else only what was seen.

    Returns:
        The verdict, also when the answer crashes, hangs or is interrupted.

    Raises:
        UnknownNameError: there is no such exercise or chip.
        UsageError: ``until`` is not a step.
    """
    exercise = get_exercise(name)
    targets = _targets(exercise, chips, until)
    listener = _listener(quiet, diagnose)
    if not callable(function):
        problem = Problem(
            f"this is a {type(function).__name__}, not a function",
            hint=f"pass the function itself: check({name!r}, {exercise.function_name})",
        )
        return _refused(exercise, problem, listener, until)
    try:
        shipment = shipping.ship(function)
    except shipping.NotShippableError as error:
        problem = Problem(error.what, error.why or "", error.hint or "")
        return _refused(exercise, problem, listener, until)
    return _judge(
        exercise,
        shipment,
        targets,
        listener,
        limits,
        seed,
        until,
        cache,
        record,
        function,
        diagnose,
    )


def check_file(
    name: str,
    path: str,
    *,
    function: str | None = None,
    chips: str | Sequence[str] | None = None,
    quiet: bool = False,
    limits: Limits | None = None,
    seed: int | None = None,
    until: str = "fast",
    cache: bool = True,
    record: bool = True,
    diagnose: bool = True,
) -> Verdict:
    """As :func:`check`, for a function in a file that this process only reads.

    Args:
        name: the exercise.
        path: ``FILE.py`` or ``FILE.py:FUNCTION``; the default function is the exercise's own name.
        function: the function, when the path does not say it.

    Raises:
        TpulabError: there is no such file, or no such function in it; and as :func:`check`.
    """
    exercise = get_exercise(name)
    targets = _targets(exercise, chips, until)
    if function is None and not os.path.exists(path):
        head, _, tail = path.rpartition(":")
        if head and tail.isidentifier():
            path, function = head, tail
    shipment = shipping.ship_file(path, function or exercise.function_name)
    return _judge(
        exercise,
        shipment,
        targets,
        _listener(quiet, diagnose),
        limits,
        seed,
        until,
        cache,
        record,
        None,
        diagnose,
    )


def _listener(quiet: bool, diagnose: bool) -> display.Listener:
    listener = display.listener(quiet)
    return listener if diagnose else display.SymptomsOnly(listener)


def warm() -> None:
    """Start everything that a check needs in the background, so that the first one is quick."""
    host.warm()
    with contextlib.suppress(TpulabError, ImportError):
        from tpulab.compiler import service

        service().prewarm()


def _targets(exercise: Exercise, chips: str | Sequence[str] | None, until: str) -> tuple[str, ...]:
    from tpulab.hardware import get_chip

    if until not in STEPS:
        raise UsageError(f"there is no step {until!r}", hint=f"one of {', '.join(STEPS)}")
    if chips is None:
        chips = exercise.chips
    elif isinstance(chips, str):
        chips = [part.strip() for part in chips.split(",") if part.strip()]
    names = tuple(dict.fromkeys(get_chip(chip).name for chip in chips))
    if not names:
        raise UsageError("no chip is given", hint="leave chips out for the exercise's own")
    return names


def _refused(
    exercise: Exercise, problem: Problem, listener: display.Listener, until: str
) -> Verdict:
    """A verdict on something that cannot even be sent."""
    listener.begin(exercise.name, exercise.title)
    first = failed("legal", problem)
    listener.step(first)
    rest = STEPS[1 : STEPS.index(until) + 1]
    verdict = Verdict(
        exercise.name,
        exercise.title,
        (first, *(StepResult(step, None, "comes after the step that failed") for step in rest)),
    )
    listener.end(verdict)
    return verdict


def _judge(
    exercise: Exercise,
    shipment: Shipment,
    chips: tuple[str, ...],
    listener: display.Listener,
    limits: Limits | None,
    seed: int | None,
    until: str,
    cache: bool,
    record: bool,
    function: Callable[..., Any] | None,
    diagnose: bool,
) -> Verdict:
    key = _key(exercise, shipment, chips, until) if cache else None
    known = _remembered(key, exercise)
    if known is not None:
        verdict = known
        listener.begin(exercise.name, exercise.title)
        for step in verdict.steps:
            listener.step(step)
    else:
        host.warm()
        if STEPS.index(until) >= STEPS.index("compiles"):
            with contextlib.suppress(TpulabError, ImportError):
                from tpulab.compiler import service

                service().prewarm()
        judge = Judge(exercise, shipment, chips, listener, limits=limits, seed=seed, until=until)
        verdict = judge.run()
        everything = verdict.passed and all(step.passed for step in verdict.steps)
        if key and everything:
            store.remember(key, verdict.to_dict())
    if verdict.passed and function is not None and until == "fast":
        from tpulab.grading import measuring

        verdict = measuring.with_measurement(verdict, exercise, function)
    shown = verdict if diagnose else verdict.undiagnosed
    listener.end(shown)
    if record and verdict.attempted and not verdict.interrupted:
        failed_step = verdict.failed
        progress_store().record(
            exercise.name,
            passed=verdict.passed and until == "fast",
            highest=verdict.highest,
            failed=failed_step.name if failed_step else None,
            rung=verdict.rung,
            top_rung=verdict.top_rung,
            predicted=verdict.predicted,
            label=shipment.label,
        )
    return shown


def _remembered(key: str | None, exercise: Exercise) -> Verdict | None:
    """A verdict from the cache; a damaged entry is none."""
    data = store.cached(key) if key else None
    if data is None:
        return None
    try:
        verdict = Verdict.from_dict(data, exercise.title)
        if not verdict.passed or verdict.exercise != exercise.name:
            return None
        return dataclasses.replace(verdict, from_cache=True)
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _key(exercise: Exercise, shipment: Shipment, chips: tuple[str, ...], until: str) -> str | None:
    """Key of a verdict, None when the code's content cannot be told."""
    import importlib.metadata
    import inspect
    import platform

    if shipment.content is None:
        return None
    from tpulab.compiler import compiler_version

    # an exercise of another package is known by the text of its module
    source = inspect.getsourcefile(exercise.oracle) or ""
    text = ""
    with contextlib.suppress(OSError), open(source, encoding="utf-8") as file:
        text = file.read()
    return store.content_key(
        "verdict",
        exercise.name,
        text,
        shipment.content,
        chips,
        until,
        importlib.metadata.version("jax"),
        platform.python_version(),
        compiler_version(),
    )
