"""The first step: a function that can be called and traced, with kernels that obey the chip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpulab.exercises.model import ArgumentSpec
from tpulab.grading import places, problems
from tpulab.grading.correct import wrong_form
from tpulab.grading.inquiry import Inquiry
from tpulab.grading.problems import NotAttemptedError, Problem, failed
from tpulab.grading.verdict import StepResult

_SYMPTOM = "a rule of the chip or of Pallas is broken"


def legal(inquiry: Inquiry) -> StepResult:
    """Load the function, trace it for all shapes, and hold its kernels to the chips' rules.

    Raises:
        EndedError: the process that runs it ended.
        NotAttemptedError: it is the untouched scaffold.
    """
    exercise = inquiry.exercise
    loaded, _ = inquiry.answer("load", "it is loaded")
    if not loaded.get("callable"):
        return failed(
            "legal",
            Problem(
                f"this is a {loaded.get('type')}, not a function",
                hint=f"pass the function itself: check({exercise.name!r}, "
                f"{exercise.function_name})",
            ),
        )
    where = problems.last_frame([[*loaded["where"], ""]] if "where" in loaded else [])
    inquiry.function_where = where
    if not loaded.get("takes", True):
        return failed(
            "legal",
            Problem(
                f"your function takes {loaded.get('signature', 'other arguments')}; the "
                f"exercise calls it with {exercise.arity} array"
                f"{'s' if exercise.arity != 1 else ''}",
                hint=f"write {exercise.signature.splitlines()[0]}",
                where=where,
            ),
        )
    for label, specs in inquiry.shapes().items():
        problem = _for_shapes(inquiry, label, specs)
        if problem is not None:
            return problem
    calls = inquiry.kernels[exercise.speed]["calls"]
    steps = sum(call["steps"] for call in calls)
    what = f"{len(calls)} kernel{'s' if len(calls) != 1 else ''}, {steps:,} grid step"
    return StepResult(
        "legal",
        True,
        f"{what}{'s' if steps != 1 else ''}; blocks, memory spaces and index maps obey "
        f"{' and '.join(inquiry.chips)}",
        data={"steps": steps, "kernels": len(calls)},
    )


def _for_shapes(inquiry: Inquiry, label: str, specs: tuple[ArgumentSpec, ...]) -> StepResult | None:
    """What is wrong for one set of shapes; None when nothing is."""
    described = ", ".join(map(str, specs))
    doing = f"it is traced for {described}"
    kernel, _ = inquiry.ask(label, doing)
    where = inquiry.function_where
    error = kernel.get("error")
    empty = kernel.get("returned") == "NoneType"
    if error is not None:
        if error.get("type") == "NotImplementedError" and error.get("innermost_is_learners"):
            raise NotAttemptedError("the body still raises NotImplementedError")
        if error.get("kind") != "NoPallasCall":
            return failed("legal", problems.from_error(error, doing, inquiry.limits))
        if empty:
            raise NotAttemptedError("the function is empty: it returns None")
        return failed(
            "legal",
            Problem(
                "there is no pallas_call in your function: XLA would do the work",
                hint="write a kernel and call it: pl.pallas_call(kernel, out_shape=…)(…)",
                where=where,
            ),
        )
    if empty:
        return failed(
            "legal",
            Problem(
                "your function returns None",
                hint="return what pl.pallas_call(…)(…) returns",
                where=where,
            ),
        )
    if kernel.get("interpreted"):
        return failed(
            "legal",
            Problem(
                "your function asks for interpret mode, which a chip does not have",
                hint="take out interpret=…; it is set from outside where it is needed",
                where=places.keyword(where, "pallas_call", "interpret"),
            ),
        )
    broken = kernel.get("illegalities") or []
    if broken:
        form = wrong_form(inquiry.exercise, specs, kernel, where)
        if broken[0]["rule"] == "block-out-of-range" and form is not None:
            # the map may be right, and the array it leaves is not the one that was asked for
            return failed("legal", form)
        return _broken_rule(inquiry, broken, described)
    inquiry.kernels[specs] = kernel
    return None


def _broken_rule(inquiry: Inquiry, broken: list[Mapping[str, Any]], described: str) -> StepResult:
    first = broken[0]
    chips = sorted({item["chip"] for item in broken if item["rule"] == first["rule"]})
    what, why, hint = first["what"], first["why"], first["hint"]
    where = first["where"] or inquiry.function_where
    if first["rule"] == "block-out-of-range" and inquiry.kernels and not first.get("named"):
        earlier = ", ".join(map(str, next(iter(inquiry.kernels))))
        hint = (
            f"for {earlier} it stays in range, for {described} it does not: look whether "
            "two of its indices are swapped"
        )
    if first["rule"] == "output-never-written":
        # `out_ref = …` is the usual reason, and its line says more than the kernel's first
        name = what.rpartition(" ")[2]
        rebound = places.rebinding(where, name)
        if rebound:
            what = f"the kernel never stores to {name}: `{name} = …` is no store"
            why = "without brackets Python lets the name mean something else from then on"
            hint, where = f"write {name}[...] = …", rebound
    return StepResult(
        "legal",
        False,
        what,
        detail=why,
        hint=hint,
        where=where,
        data={"rule": first["rule"], "chips": chips, "arguments": described},
        symptom=f"{_SYMPTOM} ({' and '.join(chips)}), for {described}",
    )
