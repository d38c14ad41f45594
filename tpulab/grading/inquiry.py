"""What is asked of the process that runs the learner's code, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpulab.exercises.model import STEPS, ArgumentSpec, Case, Exercise
from tpulab.exercises.values import make_arguments
from tpulab.grading import host, problems, wire
from tpulab.grading.problems import EndedError, Problem
from tpulab.grading.sandbox import Limits
from tpulab.grading.shipping import Shipment, search_path


class Inquiry:
    """One answer in its own process: requests by label, and the kernels it was found to have.

    Attributes:
        exercise, chips, limits, seed: what it is judged by.
        kernels: description of the traced function for each set of shapes (see ``inspection``).
        function_where: ``file:line`` of the function, empty when it is not known.
    """

    def __init__(
        self, exercise: Exercise, chips: Sequence[str], limits: Limits, seed: int, last: int
    ) -> None:
        self.exercise = exercise
        self.chips = tuple(chips)
        self.limits = limits
        self.seed = seed
        self.last = last
        self.kernels: dict[tuple[ArgumentSpec, ...], Mapping[str, Any]] = {}
        self.function_where = ""
        self._number = 0
        self._requests: dict[str, tuple[int, float]] = {}
        self._job: host.Job | None = None

    @property
    def output(self) -> str:
        """What the learner's code printed."""
        return self._job.output if self._job is not None else ""

    def close(self) -> None:
        """End the process."""
        if self._job is not None:
            self._job.close()

    def start(self, shipment: Shipment) -> None:
        """Start the process and queue all requests: it works on while answers are judged."""
        limits, exercise = self.limits, self.exercise
        self._job = host.start_job(limits.output_bytes)
        self._send(
            "load",
            "load",
            limits.stage_seconds,
            shipment.request
            | {
                "limits": limits.to_dict(),
                "sys_path": search_path(),
                "folder": self._job.folder.name,
                "arity": exercise.arity,
            },
            [shipment.data],
        )
        for label, specs in self.shapes().items():
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
            for label, case, fill in self.runs():
                described, blobs = wire.pack_arrays(make_arguments(case.arguments, fill, self.seed))
                self._send(label, "run", limits.stage_seconds, {"arrays": described}, blobs)
        if self.last >= STEPS.index("safe"):
            arrays = make_arguments(exercise.faithful, "random", self.seed)
            described, blobs = wire.pack_arrays(arrays)
            self._send(
                "faithful", "faithful", limits.faithful_seconds, {"arrays": described}, blobs
            )

    def shapes(self) -> dict[str, tuple[ArgumentSpec, ...]]:
        """The sets of shapes that the function is traced for, by label; speed first."""
        shapes = {"trace speed": self.exercise.speed}
        for number, case in enumerate(self.exercise.cases):
            shapes[f"trace {number}"] = case.arguments
        return shapes

    def runs(self) -> list[tuple[str, Case, str]]:
        """(label, case, fill) of each run on the fast interpreter."""
        return [
            (f"run {number} {fill}", case, fill)
            for number, case in enumerate(self.exercise.cases)
            for fill in case.fills
        ]

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

    def receive(self, label: str, doing: str) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a request.

        Raises:
            EndedError: there will be none.
        """
        assert self._job is not None
        job, limits = self._job, self.limits
        number, seconds = self._requests[label]
        # the first answer also waits for the warm process to come up
        patience = seconds + (60.0 if label == "load" else 0.0)
        if label == "faithful" and self.warning("wait-without-copy"):
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

    def answer(self, label: str, doing: str) -> tuple[dict[str, Any], list[bytes]]:
        """As :meth:`receive`; an exception in the learner's process is the end as well."""
        header, blobs = self.receive(label, doing)
        if "error" in header:
            raise EndedError(problems.from_error(header["error"], doing, self.limits))
        return header, blobs

    def result(self, label: str, doing: str, specs: tuple[ArgumentSpec, ...]) -> np.ndarray:
        """The one array that a run gave, of the shape and dtype that the exercise asks for.

        Raises:
            EndedError: there is none.
        """
        answer, blobs = self.answer(label, doing)
        return self.one_array(answer, blobs, specs)

    def one_array(
        self, answer: Mapping[str, Any], blobs: Sequence[bytes], specs: tuple[ArgumentSpec, ...]
    ) -> np.ndarray:
        """As :meth:`result`, from an answer that is here already."""
        try:
            (got,) = wire.unpack_arrays(answer.get("arrays"), blobs)
        except (wire.MalformedMessageError, ValueError) as error:
            raise EndedError(Problem(f"the result cannot be read: {error}")) from error
        want = self.exercise.result(specs)
        found = ArgumentSpec(tuple(got.shape), got.dtype.name)
        if found != want:
            raise EndedError(
                Problem(
                    f"the result is {want} when traced and {found} when run",
                    hint="a function must do the same each time it is called",
                )
            )
        return got

    def warning(self, rule: str) -> Mapping[str, Any] | None:
        """A warning of that rule about any of the kernels."""
        for kernel in self.kernels.values():
            for warning in kernel.get("warnings") or []:
                if warning["rule"] == rule:
                    return dict(warning)
        return None


def _plain(specs: Sequence[ArgumentSpec]) -> list[list[Any]]:
    return [[list(spec.shape), spec.dtype] for spec in specs]
