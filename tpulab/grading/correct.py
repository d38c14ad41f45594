"""The second step: the results equal the oracle's, and the kernel has done the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tpulab.exercises.model import ArgumentSpec, Case, Exercise
from tpulab.exercises.values import make_arguments
from tpulab.grading import places
from tpulab.grading.comparing import Diagnosis, Outcome, describe, diagnose, outcome
from tpulab.grading.inquiry import Inquiry
from tpulab.grading.problems import EndedError, Problem, failed
from tpulab.grading.verdict import StepResult

# a kernel may save a little work (a mask, a constant folded); it cannot save much
_LEAST_WORK = 0.97


def correct(inquiry: Inquiry, take_artifacts: Callable[[], None]) -> StepResult:
    """Hold every run against the oracle.

    Args:
        inquiry: the answer, found legal.
        take_artifacts: receives what was lowered, which comes before the first run.

    Raises:
        EndedError: the process that runs the answer ended.
    """
    exercise = inquiry.exercise
    for specs, kernel in inquiry.kernels.items():
        problem = wrong_form(exercise, specs, kernel, inquiry.function_where) or _outside(
            exercise, kernel, inquiry.function_where
        )
        if problem is not None:
            return failed("correct", problem)
    take_artifacts()
    if exercise.mesh_axis is not None:
        return _on_mesh(inquiry)
    wrong: list[Outcome] = []
    right: list[Outcome] = []
    for label, case, fill in inquiry.begin_runs():
        kernel = inquiry.kernels[case.arguments]
        try:
            got = inquiry.result(label, f"it runs on {case}", case.arguments)
        except EndedError as ended:
            # a program has no lines of Python any more; the kernel's first one is the nearest
            where = ended.problem.where or str(kernel["calls"][0].get("where") or "")
            raise EndedError(replace(ended.problem, where=where)) from None
        arguments = make_arguments(case.arguments, fill, inquiry.seed)
        run = outcome(exercise, case, fill, inquiry.seed, arguments, got, kernel)
        (right if run.passed else wrong).append(run)
    return _judged(inquiry, wrong, right)


def _judged(inquiry: Inquiry, wrong: list[Outcome], right: list[Outcome]) -> StepResult:
    """The step, when every run has a result."""
    exercise = inquiry.exercise
    if wrong:
        return _wrong_numbers(inquiry, wrong, right)
    for specs, kernel in inquiry.kernels.items():
        problem = _missing_work(exercise, specs, kernel)
        if problem is not None:
            return failed("correct", problem)
    shapes = len({run.case.arguments for run in right})
    counts = sorted({exercise.devices(run.case.arguments) for run in right})
    where = ""
    if exercise.mesh_axis is not None:
        *most, last = map(str, counts)
        where = f" on {', '.join(most)} and {last} devices" if most else f" on {last} devices"
    return StepResult(
        "correct",
        True,
        f"equals the float64 oracle on {len(right)} inputs of {shapes} shapes{where}; the work is "
        f"done in the kernel{'s' if exercise.mesh_axis is not None else ''}",
        data={"runs": len(right), "shapes": shapes, "isolated": inquiry.isolated}
        | ({"devices": counts} if exercise.mesh_axis is not None else {}),
    )


def _on_mesh(inquiry: Inquiry) -> StepResult:
    """Runs on several devices, by the faithful interpreter.

    Numbers that are wrong because a device waits for ever, or does not wait, say nothing about
    what the kernel computes: the next step says what it is.
    """
    wrong: list[Outcome] = []
    right: list[Outcome] = []
    for label, case, fill in inquiry.begin_runs():
        kernel = inquiry.kernels[case.arguments]
        devices = inquiry.exercise.devices(case.arguments)
        got = inquiry.result_on_mesh(label, f"it runs on {devices} devices", case.arguments)
        report = inquiry.reports[label]
        if got is None and report.get("unsupported"):
            return StepResult("correct", None, f"cannot be judged here: {report['unsupported']}")
        if got is None:
            return _left_to_safe(case, devices)
        arguments = make_arguments(case.arguments, fill, inquiry.seed)
        kernel = {**kernel, "devices": devices, "sent": report.get("sent") or []}
        run = outcome(inquiry.exercise, case, fill, inquiry.seed, arguments, got, kernel)
        if not run.passed and report.get("explains"):
            return _left_to_safe(case, devices)
        (right if run.passed else wrong).append(run)
    return _judged(inquiry, wrong, right)


def _left_to_safe(case: Case, devices: int) -> StepResult:
    return StepResult(
        "correct",
        None,
        f"on {devices} devices ({case}) there is no result that could be held against the oracle: "
        "the devices do not wait for each other as they must, see safe",
    )


def _wrong_numbers(inquiry: Inquiry, wrong: list[Outcome], right: list[Outcome]) -> StepResult:
    found = diagnose(inquiry.exercise, wrong, right)
    first = next((run for run in wrong if run.fill == "random"), wrong[0])
    fills = [f"{run.case.name}, {run.fill}" for run in right]
    return StepResult(
        "correct",
        False,
        found.mistake,
        detail=f"{first.case.name} ({first.case}), {first.fill} values: {describe(first)}",
        hint=found.hint,
        where=_place(found, first, inquiry.function_where),
        data={
            "wrong": [f"{run.case.name}: {run.fill}" for run in wrong],
            "right": [f"{run.case.name}: {run.fill}" for run in right],
            "seed": inquiry.seed,
        },
        symptom=f"wrong on {len(wrong)} of {len(wrong) + len(right)} inputs"
        + (f"; right on: {'; '.join(fills)}" if fills else ""),
    )


def _place(found: Diagnosis, run: Outcome, function_where: str) -> str:
    """The line to look at for a mistake."""
    calls = run.kernel.get("calls") or [{}]
    kernel = str(calls[0].get("where") or "")
    operands = calls[0].get("operands") or []
    if found.at == "grid":
        return places.keyword(function_where, "pallas_call", "grid")
    if found.at == "index map":
        maps = [str(item.get("where") or "") for item in operands if item.get("is_input")]
        return next(filter(None, maps), kernel)
    if found.at == "output map":
        maps = [str(item.get("where") or "") for item in operands if not item.get("is_input")]
        return next(filter(None, maps), kernel)
    if found.at == "sum":
        carried = str(calls[0].get("uncleared_where") or "")
        return carried or places.addition(kernel)
    if found.at == "store":
        outputs = [str(item.get("name")) for item in operands if not item.get("is_input")]
        return places.store(kernel, outputs[0] if len(outputs) == 1 else "")
    return kernel


def wrong_form(
    exercise: Exercise, specs: tuple[ArgumentSpec, ...], kernel: Mapping[str, Any], where: str
) -> Problem | None:
    """The right number of results, of the right shape and dtype."""
    want = exercise.result(specs)
    results = [ArgumentSpec(tuple(shape), dtype) for shape, dtype in kernel["results"]]
    described = ", ".join(map(str, specs))
    if len(results) != 1:
        return Problem(
            f"your function returns {len(results)} arrays; the exercise asks for one",
            hint=f"return one array, {want} for {described}",
            where=places.return_with_value(where),
        )
    got = results[0]
    if got == want:
        return None
    part = "shape" if got.shape != want.shape else "dtype"
    return Problem(
        f"wrong output {part}: for {described} your function returns {got}, and the exercise "
        f"asks for {want}",
        hint="look at out_shape=jax.ShapeDtypeStruct(shape, dtype)",
        where=places.keyword(where, "pallas_call", "out_shape"),
    )


def _outside(exercise: Exercise, kernel: Mapping[str, Any], where: str) -> Problem | None:
    """The work is done in the kernel, and the result comes from it."""
    for item in kernel.get("outside") or []:
        if item["primitive"] in exercise.allowed_outside:
            continue
        shape = "×".join(map(str, item["shape"])) or "host"
        if item["primitive"] == "repeat":
            return Problem(
                f"an array is repeated in HBM outside the kernel: {shape} elements",
                detail="what is written out again takes memory and bandwidth, and says nothing new",
                hint="let index maps repeat an input: steps may ask for the same block; the kernel "
                "computes every element of the result",
                where=str(item.get("where") or ""),
            )
        return Problem(
            f"part of the work is done outside the kernel: {item['primitive']} on a {shape} array",
            detail="outside, only casts and changes of shape are free; XLA would do the rest",
            hint="move it into the kernel",
            where=str(item.get("where") or ""),
        )
    if not kernel.get("depends", True):
        return Problem(
            "the result does not come from the kernel: what the kernel computes is thrown "
            "away, and the result is made outside",
            hint="return what pl.pallas_call(…)(…) returns",
            where=places.return_with_value(where),
        )
    return None


def _missing_work(
    exercise: Exercise, specs: tuple[ArgumentSpec, ...], kernel: Mapping[str, Any]
) -> Problem | None:
    """Right results with too little work in the kernel: it was done elsewhere."""
    work = exercise.work(specs)
    matrix, vector = int(kernel["mxu_flops"]), int(kernel["vpu_flops"])
    described = ", ".join(map(str, specs))
    if matrix < _LEAST_WORK * work.matmul_flops:
        if matrix + vector >= _LEAST_WORK * work.flops:
            return None
        return Problem(
            f"the kernel does {matrix:,} of the {work.matmul_flops:,} matrix operations that "
            f"{described} takes",
            detail="some of the product is computed outside the kernel, or not at all",
            hint="count grid steps: does every block of the output see every block of k?",
        )
    if matrix + vector < _LEAST_WORK * work.flops:
        return Problem(
            f"the kernel does {matrix + vector:,} of the {work.flops:,} operations that "
            f"{described} takes",
            detail="part of the result is computed outside the kernel, or not at all",
            hint="count grid steps: is every element touched?",
        )
    return None
