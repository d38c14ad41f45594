"""On a machine with a TPU: the measured time beside the predicted one, never in its place."""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tpulab.exercises.model import Exercise
from tpulab.exercises.values import make_arguments
from tpulab.grading.verdict import StepResult, Verdict

_BATCHES = 7
_BATCH_SECONDS = 0.02


def on_tpu() -> bool:
    """Whether this process runs JAX on a TPU.

    Asking JAX starts its backends and loads libtpu, so it is asked only where a TPU is likely.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        return False
    started = getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None) or {}
    likely = (
        "tpu" in started
        or "tpu" in os.environ.get("JAX_PLATFORMS", "")
        or any(os.path.exists(device) for device in ("/dev/accel0", "/dev/vfio/0"))
    )
    if not likely:
        return False
    try:
        return bool(jax.default_backend() == "tpu")
    except RuntimeError:
        return False


def with_measurement(verdict: Verdict, exercise: Exercise, function: Callable[..., Any]) -> Verdict:
    """The verdict with the time measured on this machine's TPU; unchanged where there is none.

    What is for several devices is not measured: a mesh of chips is more than this machine has.
    """
    if exercise.mesh_axis is not None or not on_tpu():
        return verdict
    try:
        seconds = measure(exercise, function)
    except Exception as error:  # noqa: BLE001 - the chip's refusal is news, not a crash
        note = f"on this TPU it raises {type(error).__name__}: {str(error)[:200]}"
        return dataclasses.replace(verdict, steps=_with_note(verdict, note, {}))
    note = f"measured here: {seconds * 1e3:.4g} ms"
    return dataclasses.replace(
        verdict,
        measured_seconds=seconds,
        steps=_with_note(verdict, note, {"measured_seconds": seconds}),
    )


def _with_note(verdict: Verdict, note: str, data: dict[str, Any]) -> tuple[StepResult, ...]:
    return tuple(
        dataclasses.replace(step, summary=f"{step.summary} · {note}", data={**step.data, **data})
        if step.name == "fast"
        else step
        for step in verdict.steps
    )


def measure(exercise: Exercise, function: Callable[..., Any]) -> float:
    """Median seconds of one call on the default device, at the exercise's own shapes."""
    return median_seconds(function, make_arguments(exercise.speed, "random", 0))


def median_seconds(function: Callable[..., Any], arguments: Sequence[Any]) -> float:
    """Median seconds of one call on the default device.

    Calls are queued in batches and waited for once, so that dispatch overlaps with the device.

    Args:
        arguments: arrays; they are put on the device first.
    """
    import jax

    arguments = [jax.device_put(argument) for argument in arguments]
    compiled = jax.jit(function).lower(*arguments).compile()
    jax.block_until_ready(compiled(*arguments))
    began = time.perf_counter()
    jax.block_until_ready(compiled(*arguments))
    once = max(1e-6, time.perf_counter() - began)
    calls = max(1, min(1000, int(_BATCH_SECONDS / once)))
    samples = []
    for _ in range(_BATCHES):
        began = time.perf_counter()
        results = [compiled(*arguments) for _ in range(calls)]
        jax.block_until_ready(results)
        samples.append((time.perf_counter() - began) / calls)
    return statistics.median(samples)
