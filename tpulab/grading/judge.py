"""From an exercise and a shipped function to a verdict. Nothing of the learner's runs in here."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpulab.exercises.model import STEPS, ArgumentSpec, Case, Exercise
from tpulab.exercises.values import make_arguments
from tpulab.grading import host, problems, wire
from tpulab.grading.comparing import Outcome, describe, diagnose, outcome
from tpulab.grading.display import Listener
from tpulab.grading.problems import EndedError, NotAttemptedError, Problem
from tpulab.grading.sandbox import Limits
from tpulab.grading.shipping import Shipment, search_path
from tpulab.grading.speed import SpeedJudge
from tpulab.grading.verdict import StepResult, Verdict

# a kernel may save a little work (a mask, a constant folded); it cannot save much
_LEAST_WORK = 0.97


class Judge:
    """One check."""

    def __init__(
        self,
        exercise: Exercise,
        shipment: Shipment,
        chips: Sequence[str],
        listener: Listener,
        *,
        limits: Limits | None = None,
        seed: int | None = None,
        until: str = "fast",
    ) -> None:
        self.exercise = exercise
        self.shipment = shipment
        self.chips = tuple(chips)
        self.listener = listener
        self.limits = limits or Limits()
        # a seed of its own for each check: results learned by heart are of no use
        self.seed = secrets.randbelow(1 << 31) if seed is None else seed
        self.last = STEPS.index(until)
        self.steps: list[StepResult] = []
        self.speed = SpeedJudge(exercise, self.chips)
        self._number = 0
        self._job: host.Job | None = None
        self._requests: dict[str, tuple[int, float]] = {}
        self._kernels: dict[tuple[ArgumentSpec, ...], Mapping[str, Any]] = {}

    # ---- the course of a check

    def run(self) -> Verdict:
        """Judge, and always come back with a verdict."""
        self.listener.begin(self.exercise.name, self.exercise.title)
        attempted, interrupted, output = True, False, ""
        try:
            self.listener.working("starting")
            self._job = host.start_job(self.limits.output_bytes)
            self._send_everything()
            for name, judge in (
                ("legal", self._legal),
                ("correct", self._correct),
                ("safe", self._safe),
                ("compiles", self._compiles),
                ("fast", self._fast),
            )[: self.last + 1]:
                try:
                    result = judge()
                except EndedError as ended:
                    result = failed(name, ended.problem)
                self.steps.append(result)
                self.listener.step(result)
                if result.passed is False:
                    break
        except NotAttemptedError as scaffold:
            attempted = False
            self.steps = [StepResult("legal", None, str(scaffold))]
        except KeyboardInterrupt:
            interrupted = True
            self.speed.cancel()
        finally:
            if self._job is not None:
                self._job.close()
                output = self._job.output
        done = {step.name for step in self.steps}
        why = "interrupted" if interrupted else "comes after the step that failed"
        if attempted:
            rest = [StepResult(n, None, why) for n in STEPS[: self.last + 1] if n not in done]
            self.steps += rest
        return Verdict(
            exercise=self.exercise.name,
            title=self.exercise.title,
            steps=tuple(self.steps),
            attempted=attempted,
            interrupted=interrupted,
            rung=self.speed.rung,
            top_rung=self.speed.top_rung,
            predicted=dict(self.speed.predicted),
            output=_learners_output(output),
            compiler_version=self.speed.compiler_version,
        )

    def _send_everything(self) -> None:
        """Queue all requests: the learner's process works on while earlier answers are judged."""
        limits, exercise = self.limits, self.exercise
        assert self._job is not None
        self._send(
            "load",
            "load",
            limits.stage_seconds,
            self.shipment.request
            | {
                "limits": limits.to_dict(),
                "sys_path": search_path(),
                "folder": self._job.folder.name,
                "arity": exercise.arity,
            },
            [self.shipment.data],
        )
        for label, specs in self._shapes().items():
            self._send(
                label,
                "trace",
                limits.stage_seconds,
                {"specs": _plain(specs), "chips": self.chips},
            )
        if self.last >= STEPS.index("compiles"):
            for chip in self.chips:
                self._send(
                    f"lower {chip}",
                    "lower",
                    limits.stage_seconds,
                    {"specs": _plain(exercise.speed), "chip": chip},
                )
        if self.last >= STEPS.index("correct"):
            for label, case, fill in self._runs():
                described, blobs = wire.pack_arrays(make_arguments(case.arguments, fill, self.seed))
                self._send(label, "run", limits.stage_seconds, {"arrays": described}, blobs)
        if self.last >= STEPS.index("safe"):
            arrays = make_arguments(exercise.faithful, "random", self.seed)
            described, blobs = wire.pack_arrays(arrays)
            self._send(
                "faithful", "faithful", limits.faithful_seconds, {"arrays": described}, blobs
            )

    def _shapes(self) -> dict[str, tuple[ArgumentSpec, ...]]:
        shapes = {"trace speed": self.exercise.speed}
        for number, case in enumerate(self.exercise.cases):
            shapes[f"trace {number}"] = case.arguments
        return shapes

    def _runs(self) -> list[tuple[str, Case, str]]:
        return [
            (f"run {number} {fill}", case, fill)
            for number, case in enumerate(self.exercise.cases)
            for fill in case.fills
        ]

    # ---- messages

    def _send(
        self,
        label: str,
        what: str,
        seconds: float,
        header: Mapping[str, Any],
        blobs: Sequence[bytes] = (),
    ) -> None:
        assert self._job is not None
        self._number += 1
        self._requests[label] = (self._number, seconds)
        message = {"do": what, "id": self._number, "seconds": seconds, **header}
        self._job.send(message, blobs)

    def _receive(self, label: str, doing: str) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a request.

        Raises:
            EndedError: there will be none.
        """
        assert self._job is not None
        job, limits = self._job, self.limits
        number, seconds = self._requests[label]
        # the first answer also waits for the warm process to come up
        patience = seconds + (60.0 if label == "load" else 0.0)
        if label == "faithful" and self._copies_unpaired("wait-without-copy"):
            # it will hang: no need to wait long to see it
            patience = seconds = min(seconds, 6.0)
        try:
            message = job.receive(patience)
        except TimeoutError:
            job.kill()
            job.ended.wait(1.0)
            slow = problems.deadlock if label == "faithful" else None
            if slow is not None:
                raise EndedError(slow(seconds, job.output)) from None
            raise EndedError(problems.too_slow(seconds, doing, job.output)) from None
        if message is None:
            # the warm process may be busy for a moment before it reports the end
            job.ended.wait(10.0)
            raise EndedError(
                problems.from_exit(
                    job.exit_code,
                    doing,
                    job.output,
                    limits,
                    flooded=job.flooded,
                    malformed=job.malformed,
                )
            )
        header, blobs = message
        if header.get("id") != number:
            job.kill()
            raise EndedError(
                Problem(
                    "the process that runs your code answers out of turn",
                    hint="do not write to open file descriptors",
                )
            )
        return header, blobs

    def _answer(self, label: str, doing: str) -> tuple[dict[str, Any], list[bytes]]:
        """As ``_receive``; an exception in the learner's process is the end as well."""
        header, blobs = self._receive(label, doing)
        if "error" in header:
            raise EndedError(problems.from_error(header["error"], doing, self.limits))
        return header, blobs

    # ---- legal

    def _legal(self) -> StepResult:
        self.listener.working("reading your kernel")
        loaded, _ = self._answer("load", "it is loaded")
        if not loaded.get("callable"):
            return failed(
                "legal",
                Problem(
                    f"this is a {loaded.get('type')}, not a function",
                    hint=f"pass the function itself: check({self.exercise.name!r}, "
                    f"{self.exercise.function_name})",
                ),
            )
        where = problems.last_frame([[*loaded["where"], ""]] if "where" in loaded else [])
        if not loaded.get("takes", True):
            return failed(
                "legal",
                Problem(
                    f"your function takes {loaded.get('signature', 'other arguments')}; the "
                    f"exercise calls it with {self.exercise.arity} array"
                    f"{'s' if self.exercise.arity != 1 else ''}",
                    hint=f"write {self.exercise.signature.splitlines()[0]}",
                    where=where,
                ),
            )
        for label, specs in self._shapes().items():
            described = ", ".join(map(str, specs))
            result = self._legal_for(label, specs, described, where)
            if result is not None:
                return result
        speed = self._kernels[self.exercise.speed]
        calls = speed["calls"]
        steps = sum(call["steps"] for call in calls)
        what = f"{len(calls)} kernel{'s' if len(calls) != 1 else ''}, {steps:,} grid step"
        return StepResult(
            "legal",
            True,
            f"{what}{'s' if steps != 1 else ''}; blocks, memory spaces and index maps obey "
            f"{' and '.join(self.chips)}",
            data={"steps": steps, "kernels": len(calls)},
        )

    def _legal_for(
        self, label: str, specs: tuple[ArgumentSpec, ...], described: str, where: str
    ) -> StepResult | None:
        kernel, _ = self._receive(label, f"it is traced for {described}")
        error = kernel.get("error")
        if error is not None:
            if error.get("type") == "NotImplementedError" and error.get("innermost_is_learners"):
                raise NotAttemptedError("the body still raises NotImplementedError")
            if error.get("kind") == "NoPallasCall":
                if kernel.get("returned") == "NoneType":
                    raise NotAttemptedError("the function is empty: it returns None")
                return failed(
                    "legal",
                    Problem(
                        "there is no pallas_call in your function: XLA would do the work",
                        hint="write a kernel and call it: pl.pallas_call(kernel, out_shape=…)(…)",
                        where=where,
                    ),
                )
            return failed(
                "legal", problems.from_error(error, f"it is traced for {described}", self.limits)
            )
        if kernel.get("returned") == "NoneType":
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
                    where=where,
                ),
            )
        broken = kernel.get("illegalities") or []
        if broken:
            first = broken[0]
            chips = sorted({item["chip"] for item in broken if item["rule"] == first["rule"]})
            hint = first["hint"]
            if first["rule"] == "block-out-of-range" and self._kernels:
                earlier = ", ".join(map(str, next(iter(self._kernels))))
                hint = (
                    f"for {earlier} it stays in range, for {described} it does not: look whether "
                    "two of its indices are swapped"
                )
            return StepResult(
                "legal",
                False,
                first["what"],
                detail=first["why"],
                hint=hint,
                where=first["where"] or where,
                data={"rule": first["rule"], "chips": chips, "arguments": described},
            )
        self._kernels[specs] = kernel
        return None

    # ---- correct

    def _correct(self) -> StepResult:
        self.listener.working("running your kernel on several inputs")
        for specs, kernel in self._kernels.items():
            problem = self._form(specs, kernel) or self._outside(specs, kernel)
            if problem is not None:
                return failed("correct", problem)
        self._take_artifacts()
        wrong: list[Outcome] = []
        right: list[Outcome] = []
        for label, case, fill in self._runs():
            answer, blobs = self._answer(label, f"it runs on {case}")
            try:
                (got,) = wire.unpack_arrays(answer.get("arrays"), blobs)
            except (wire.MalformedMessageError, ValueError) as error:
                raise EndedError(Problem(f"the result cannot be read: {error}")) from error
            if got.shape != self.exercise.result(case.arguments).shape:
                raise EndedError(Problem("the result has another shape when run than when traced"))
            arguments = make_arguments(case.arguments, fill, self.seed)
            run = outcome(
                self.exercise, case, fill, self.seed, arguments, got, self._kernels[case.arguments]
            )
            (right if run.passed else wrong).append(run)
        if wrong:
            found = diagnose(self.exercise, wrong, right)
            first = next((run for run in wrong if run.fill == "random"), wrong[0])
            return StepResult(
                "correct",
                False,
                found.mistake,
                detail=f"{first.case.name} ({first.case}), {first.fill} values: {describe(first)}",
                hint=found.hint,
                where=self._kernel_place(first),
                data={
                    "wrong": [f"{run.case.name}: {run.fill}" for run in wrong],
                    "right": [f"{run.case.name}: {run.fill}" for run in right],
                    "seed": self.seed,
                },
            )
        for specs, kernel in self._kernels.items():
            problem = self._missing_work(specs, kernel)
            if problem is not None:
                return failed("correct", problem)
        shapes = len({run.case.arguments for run in right})
        return StepResult(
            "correct",
            True,
            f"equals the float64 oracle on {len(right)} inputs of {shapes} shapes; the work is "
            "done in the kernel",
            data={"runs": len(right), "shapes": shapes},
        )

    @staticmethod
    def _kernel_place(run: Outcome) -> str:
        calls = run.kernel.get("calls") or [{}]
        return str(calls[0].get("where") or "")

    def _form(self, specs: tuple[ArgumentSpec, ...], kernel: Mapping[str, Any]) -> Problem | None:
        """The right number of results, of the right shape and dtype."""
        want = self.exercise.result(specs)
        results = [ArgumentSpec(tuple(shape), dtype) for shape, dtype in kernel["results"]]
        described = ", ".join(map(str, specs))
        if len(results) != 1:
            return Problem(
                f"your function returns {len(results)} arrays; the exercise asks for one",
                hint=f"return one array, {want} for {described}",
            )
        got = results[0]
        if got == want:
            return None
        part = "shape" if got.shape != want.shape else "dtype"
        return Problem(
            f"wrong output {part}: for {described} your function returns {got}, and the exercise "
            f"asks for {want}",
            hint="look at out_shape=jax.ShapeDtypeStruct(shape, dtype)",
            where=str((kernel["calls"] or [{}])[0].get("where") or ""),
        )

    def _outside(
        self, specs: tuple[ArgumentSpec, ...], kernel: Mapping[str, Any]
    ) -> Problem | None:
        """The work is done in the kernel, and the result comes from it."""
        for item in kernel.get("outside") or []:
            if item["primitive"] in self.exercise.allowed_outside:
                continue
            shape = "×".join(map(str, item["shape"])) or "host"
            return Problem(
                f"part of the work is done outside the kernel: {item['primitive']} on a {shape} "
                "array",
                detail="outside, only casts and changes of shape are free; XLA would do the rest",
                hint="move it into the kernel",
                where=str(item.get("where") or ""),
            )
        if not kernel.get("depends", True):
            return Problem(
                "the result does not come from the kernel: what the kernel computes is thrown "
                "away, and the result is made outside",
                hint="return what pl.pallas_call(…)(…) returns",
            )
        return None

    def _missing_work(
        self, specs: tuple[ArgumentSpec, ...], kernel: Mapping[str, Any]
    ) -> Problem | None:
        """Right results with too little work in the kernel: it was done elsewhere."""
        work = self.exercise.work(specs)
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

    def _take_artifacts(self) -> None:
        """Hand what was lowered to the compiler, which works while the kernel runs here."""
        if self.last < STEPS.index("compiles"):
            return
        for chip in self.chips:
            answer, blobs = self._receive(f"lower {chip}", f"it is lowered for {chip}")
            self.speed.submit(chip, answer, blobs, self.limits, self._kernels[self.exercise.speed])

    # ---- safe

    def _safe(self) -> StepResult:
        self.listener.working("looking for races and uninitialised memory")
        specs = self.exercise.faithful
        described = ", ".join(map(str, specs))
        answer, blobs = self._answer("faithful", f"the faithful interpreter runs it on {described}")
        report = answer.get("report") or {}
        unsupported = report.get("unsupported")
        if unsupported:
            return StepResult("safe", None, f"cannot be judged here: {unsupported}")
        messages = [str(message) for message in report.get("messages") or []]
        if messages:
            copies = self._copies_unpaired("copy-not-waited")
            hint = copies["hint"] if copies else str(report.get("hint") or "")
            if copies:
                messages.insert(0, f"a copy is not waited for: {copies['what']}")
            return StepResult(
                "safe",
                False,
                messages[0],
                detail="\n".join(messages[1:4]),
                hint=hint,
                where=str(report.get("where") or ""),
                data={"messages": messages, "arguments": described},
            )
        try:
            (got,) = wire.unpack_arrays(answer.get("arrays"), blobs)
        except (wire.MalformedMessageError, ValueError) as error:
            raise EndedError(Problem(f"the result cannot be read: {error}")) from error
        arguments = make_arguments(specs, "random", self.seed)
        case = Case("several blocks", specs, ragged=True)
        run = outcome(self.exercise, case, "random", self.seed, arguments, got, {})
        if not run.passed:
            strange = bool(np.isnan(run.got).any())
            return StepResult(
                "safe",
                False,
                "the result is wrong when memories, copies and their order are simulated",
                detail=describe(run),
                hint=(
                    "something is read before it was written: wait for a copy before its buffer "
                    "is used, write every block"
                    if strange
                    else "something is used while it changes: look at waits and buffer slots"
                ),
            )
        return StepResult(
            "safe",
            True,
            "no race, nothing read before it was written, nothing out of bounds, semaphores at "
            "zero",
        )

    def _copies_unpaired(self, rule: str) -> Mapping[str, Any] | None:
        """A warning that counting copies and waits in the kernel has given."""
        for kernel in self._kernels.values():
            for warning in kernel.get("warnings") or []:
                if warning["rule"] == rule:
                    return dict(warning)
        return None

    # ---- compiles and fast

    def _compiles(self) -> StepResult:
        self.listener.working(f"compiling for {' and '.join(self.chips)}")
        return self.speed.compiles()

    def _fast(self) -> StepResult:
        self.listener.working("running the compiled program, cycle by cycle")
        return self.speed.fast()


def failed(name: str, problem: Problem) -> StepResult:
    """A failed step from a problem."""
    return StepResult(name, False, problem.summary, problem.detail, problem.hint, problem.where)


def _plain(specs: Sequence[ArgumentSpec]) -> list[list[Any]]:
    return [[list(spec.shape), spec.dtype] for spec in specs]


def _learners_output(output: str) -> str:
    """What the learner's code printed, without the dumps of threads that faulthandler wrote."""
    kept, dumping = [], False
    for line in output.splitlines():
        if line.startswith(("Timeout (", "Thread 0x", "Current thread 0x", "Fatal Python error")):
            dumping = True
        elif dumping and not line.startswith((" ", "\t")) and line.strip():
            dumping = False
        if not dumping:
            kept.append(line)
    return "\n".join(kept).strip()
