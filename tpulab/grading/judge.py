"""From an exercise and a shipped function to a verdict. Nothing of the learner's runs in here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tpulab.exercises.model import STEPS, Exercise
from tpulab.grading.correct import correct
from tpulab.grading.display import Listener
from tpulab.grading.inquiry import Inquiry
from tpulab.grading.legal import legal
from tpulab.grading.problems import EndedError, NotAttemptedError, Problem, failed
from tpulab.grading.safe import safe
from tpulab.grading.sandbox import Limits
from tpulab.grading.shipping import Shipment
from tpulab.grading.speed import SpeedJudge
from tpulab.grading.verdict import StepResult, Verdict


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
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare a check.

        Args:
            exercise, shipment, chips, listener, limits: what is judged, where, and who is told.
            seed: of the random values, by default one of its own.
            until: the last step.
            answered: called when none of the answer's own code is needed any more; only the
                compiler and the simulator work from then on.
        """
        self.exercise = exercise
        self.shipment = shipment
        self.chips = tuple(chips)
        self.listener = listener
        self.last = STEPS.index(until)
        self.steps: list[StepResult] = []
        self._answered = answered
        self._transfers: dict[str, Any] | EndedError | None = None
        self.speed = SpeedJudge(exercise, self.chips)
        self.inquiry = Inquiry(
            exercise,
            self.chips,
            limits or Limits(),
            # a seed of its own for each check: results learned by heart are of no use
            secrets.randbelow(1 << 31) if seed is None else seed,
            self.last,
        )

    def run(self) -> Verdict:
        """Judge, and always come back with a verdict."""
        attempted, interrupted, output = True, False, ""
        try:
            self.listener.begin(self.exercise.name, self.exercise.title)
            self.listener.working("starting")
            self.inquiry.start(self.shipment)
            self._judge_steps()
        except NotAttemptedError as scaffold:
            attempted = False
            self.steps = [StepResult("legal", None, str(scaffold))]
        except KeyboardInterrupt:
            interrupted = True
            self.speed.cancel()
        finally:
            self.inquiry.close()
            output = self.inquiry.output
        done = {step.name for step in self.steps}
        why = "" if interrupted else "comes after the step that failed"
        if attempted:
            rest = [StepResult(n, None, why) for n in STEPS[: self.last + 1] if n not in done]
            if interrupted and rest:
                rest[0] = StepResult(rest[0].name, None, "interrupted")
            self.steps += rest
        return Verdict(
            exercise=self.exercise.name,
            title=self.exercise.title,
            steps=tuple(self.steps),
            attempted=attempted,
            interrupted=interrupted,
            rung=self.speed.rung,
            top_rung=self.speed.top_rung,
            rung_number=self.speed.rung_number,
            rung_count=len(self.exercise.rungs),
            next_rung=self.speed.next_rung,
            predicted=dict(self.speed.predicted),
            output=_learners_output(output),
            compiler_version=self.speed.compiler_version,
        )

    def _judge_steps(self) -> None:
        """Each step in turn, until one fails."""
        judges: tuple[tuple[str, str, Callable[[], StepResult]], ...] = (
            ("legal", "reading your kernel", lambda: legal(self.inquiry)),
            (
                "correct",
                "running your kernel on several inputs",
                lambda: correct(self.inquiry, self._take_artifacts),
            ),
            ("safe", "looking for races and uninitialised memory", lambda: safe(self.inquiry)),
            ("compiles", f"compiling for {' and '.join(self.chips)}", self._compiles),
            (
                "fast",
                "running the compiled program, cycle by cycle"
                if self.exercise.mesh_axis is None
                else "counting bytes on the links",
                self._fast,
            ),
        )
        for name, doing, judge in judges[: self.last + 1]:
            self.listener.working(doing)
            try:
                result = judge()
            except EndedError as ended:
                where = ended.problem.where or self.inquiry.function_where
                result = failed(name, replace(ended.problem, where=where))
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                # what comes from the learner's process may be anything at all
                result = failed(
                    name,
                    Problem(
                        "the process that runs your code gave an answer that makes no sense",
                        f"{type(error).__name__}: {str(error)[:200]}",
                        "do not change tpulab, jax or json while your function is checked",
                    ),
                )
            self.steps.append(result)
            self.listener.step(result)
            if result.passed is False:
                break

    def _compiles(self) -> StepResult:
        """Wait for the compilers, when the answer's process has nothing left to say.

        What it sends between devices is fetched first: the answer's time does not run while the
        compilers work, and a process that has ended meanwhile takes nothing away.
        """
        if self.exercise.mesh_axis is not None and self.last >= STEPS.index("fast"):
            devices = self.exercise.devices(self.exercise.speed)
            try:
                self._transfers, _ = self.inquiry.ask("transfers", f"it runs on {devices} devices")
            except EndedError as ended:
                self._transfers = ended
        self._answered()
        return self.speed.compiles()

    def _fast(self) -> StepResult:
        if self.exercise.mesh_axis is None:
            return self.speed.fast()
        if isinstance(self._transfers, EndedError):
            raise self._transfers
        assert self._transfers is not None
        return self.speed.fast_between_devices(self._transfers, self.inquiry.limits)

    def _take_artifacts(self) -> None:
        """Hand what was lowered to the compiler, which works while the kernel runs elsewhere."""
        if self.last < STEPS.index("compiles"):
            return
        inquiry = self.inquiry
        for chip in self.chips:
            answer, blobs = inquiry.ask(f"lower {chip}", f"it is lowered for {chip}")
            kernel = inquiry.kernels[self.exercise.speed]
            self.speed.submit(chip, answer, blobs, inquiry.limits, kernel)


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
