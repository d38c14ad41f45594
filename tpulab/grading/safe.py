"""The third step: no race, nothing read before it was written, every copy waited for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpulab.exercises.model import Case
from tpulab.exercises.values import make_arguments
from tpulab.grading.comparing import describe, outcome
from tpulab.grading.inquiry import Inquiry
from tpulab.grading.places import without_paths
from tpulab.grading.verdict import StepResult

_PLACE = re.compile(r" (?:at [^\s()]+:\d+|\([^()]+:\d+\))")


def safe(inquiry: Inquiry) -> StepResult:
    """What the faithful interpreter saw.

    Raises:
        EndedError: it did not come to an end.
    """
    exercise = inquiry.exercise
    if exercise.mesh_axis is not None:
        found = _seen_before(inquiry)
        if found is not None:
            return found
        if inquiry.faithful_is_a_case:
            return _passed()
    specs = exercise.faithful
    described = ", ".join(map(str, specs))
    # a wait without a copy will hang: no need to wait long to see it
    at_most = 6.0 if inquiry.warning("wait-without-copy") else None
    doing = f"the faithful interpreter runs it on {described}"
    answer, blobs = inquiry.answer("faithful", doing, at_most)
    report = answer.get("report") or {}
    unsupported = report.get("unsupported")
    if unsupported:
        return StepResult("safe", None, f"cannot be judged here: {unsupported}")
    if report.get("messages"):
        return _unsafe(inquiry, report, described)
    got = inquiry.one_array(answer, blobs, specs)
    arguments = make_arguments(specs, "random", inquiry.seed)
    case = Case("several blocks", specs, ragged=True)
    run = outcome(exercise, case, "random", inquiry.seed, arguments, got, {})
    if not run.passed:
        strange = bool(np.isnan(run.got).any())
        wrong = "the result is wrong when memories, copies and their order are simulated"
        return StepResult(
            "safe",
            False,
            f"{wrong} (on {described})",
            detail=describe(run),
            hint=(
                "something is read before it was written: wait for a copy before its buffer "
                "is used, write every block"
                if strange
                else "something is used while it changes: look at waits and buffer slots"
            ),
            symptom=wrong,
        )
    return _passed()


def _passed() -> StepResult:
    return StepResult(
        "safe",
        True,
        "no race, nothing read before it was written, nothing out of bounds, semaphores at zero",
    )


def _seen_before(inquiry: Inquiry) -> StepResult | None:
    """What was seen when the numbers were judged, on the first shapes where there was anything."""
    for label, case, _ in inquiry.begin_runs():
        report = inquiry.reports.get(label) or {}
        if report.get("messages"):
            devices = inquiry.exercise.devices(case.arguments)
            return _unsafe(inquiry, report, f"{case}, {devices} devices")
    return None


def _unsafe(inquiry: Inquiry, report: Mapping[str, Any], described: str) -> StepResult:
    """What the faithful interpreter found."""
    messages = [str(message) for message in report.get("messages") or []]
    copies = inquiry.warning("copy-not-waited")
    hint = copies["hint"] if copies else str(report.get("hint") or "")
    if report.get("hangs"):
        messages[0] = "the kernel hangs: " + messages[0].replace("the kernel waits", "it waits")
    # a symptom names no line: that would be half of the diagnosis
    symptom = _PLACE.sub("", str(report.get("symptom") or messages[0]))
    messages = [without_paths(message) for message in messages]
    if copies:
        messages.insert(0, f"a copy is not waited for: {copies['what']}")
    return StepResult(
        "safe",
        False,
        f"{messages[0]} (on {described})",
        detail="\n".join(messages[1:4]),
        hint=hint,
        where=str(report.get("where") or ""),
        data={"messages": messages, "arguments": described},
        symptom=f"the faithful interpreter on {described}: {symptom}",
    )
