"""What is asked about an answer, and of which process.

The learner's function lives in one process, which traces, lowers and exports it. The exported
programs run in a second process, where no code of the learner's ever was: what it computes cannot
be forged, and the inputs cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tpulab.exercises.model import STEPS, ArgumentSpec, Case, Exercise
from tpulab.exercises.values import make_arguments
from tpulab.grading import wire
from tpulab.grading.conversation import Conversation
from tpulab.grading.problems import EndedError, Problem
from tpulab.grading.sandbox import Limits
from tpulab.grading.shipping import Shipment, search_path


class Inquiry:
    """One answer in its own process, and the kernels it was found to have.

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
        self._learner: Conversation | None = None
        self._runner: Conversation | None = None
        # runs that only the learner's process can do: they print, or call back
        self._in_process: set[str] = set()
        #: what the faithful interpreter said of the runs on several devices, by label
        self.reports: dict[str, Mapping[str, Any]] = {}

    @property
    def output(self) -> str:
        """What the learner's code printed."""
        return self._learner.output if self._learner is not None else ""

    def close(self) -> None:
        """End both processes."""
        for conversation in (self._learner, self._runner):
            if conversation is not None:
                conversation.close()

    def start(self, shipment: Shipment) -> None:
        """Start and queue all requests: the processes work on while answers are judged."""
        limits, exercise = self.limits, self.exercise
        seconds = limits.stage_seconds
        self._learner = Conversation(limits)
        common = {"limits": limits.to_dict(), "sys_path": search_path()}
        mesh: dict[str, Any] = {}
        if exercise.mesh_axis is not None:
            every = [*self.shapes().values(), exercise.faithful]
            mesh = {
                "mesh_axis": exercise.mesh_axis,
                "devices": max(exercise.devices(specs) for specs in every),
            }
        self._learner.send(
            "load",
            "load",
            seconds,
            shipment.request
            | common
            | mesh
            | {"folder": self._learner.folder, "arity": exercise.arity},
            [shipment.data],
        )
        for label, specs in self.shapes().items():
            self._learner.send(
                label, "trace", seconds, {"specs": _plain(specs), "chips": self.chips}
            )
        if self.last >= STEPS.index("compiles"):
            for chip in self.chips:
                header = {"specs": _plain(exercise.speed), "chip": chip}
                self._learner.send(f"lower {chip}", "lower", seconds, header)
        if mesh:
            self._start_on_mesh()
            return
        if self.last >= STEPS.index("correct"):
            self._runner = Conversation(limits)
            self._runner.send("enter", "enter", seconds, common | {"folder": self._runner.folder})
            for number, case in enumerate(exercise.cases):
                wanted = {"specs": _plain(case.arguments)}
                self._learner.send(f"export {number}", "export", seconds, wanted)
        if self.last >= STEPS.index("safe"):
            arrays = make_arguments(exercise.faithful, "random", self.seed)
            described, blobs = wire.pack_arrays(arrays)
            self._learner.send(
                "faithful", "faithful", limits.faithful_seconds, {"arrays": described}, blobs
            )

    def _start_on_mesh(self) -> None:
        """Queue the runs on several devices: the plain interpreter knows no other device."""
        assert self._learner is not None
        exercise, limits = self.exercise, self.limits
        if self.last >= STEPS.index("correct"):
            for label, case, fill in self._runs():
                self._send_faithful(label, case.arguments, fill)
        if self.last >= STEPS.index("safe") and not self.faithful_is_a_case:
            self._send_faithful("faithful", exercise.faithful, "random")
        if self.last >= STEPS.index("fast"):
            wanted = {"specs": _plain(exercise.speed)}
            self._learner.send("transfers", "transfers", limits.faithful_seconds, wanted)

    @property
    def faithful_is_a_case(self) -> bool:
        """Whether a run on several devices was also the one that ``safe`` asks for."""
        exercise = self.exercise
        return exercise.mesh_axis is not None and any(
            case.arguments == exercise.faithful and fill == "random"
            for _, case, fill in self._runs()
        )

    def _send_faithful(self, label: str, specs: tuple[ArgumentSpec, ...], fill: str) -> None:
        assert self._learner is not None
        described, blobs = wire.pack_arrays(make_arguments(specs, fill, self.seed))
        seconds = self.limits.faithful_seconds
        self._learner.send(label, "faithful", seconds, {"arrays": described}, blobs)

    def _runs(self) -> list[tuple[str, Case, str]]:
        return [
            (f"run {number} {fill}", case, fill)
            for number, case in enumerate(self.exercise.cases)
            for fill in case.fills
        ]

    def shapes(self) -> dict[str, tuple[ArgumentSpec, ...]]:
        """The sets of shapes that the function is traced for, by label; speed first."""
        shapes = {"trace speed": self.exercise.speed}
        for number, case in enumerate(self.exercise.cases):
            shapes[f"trace {number}"] = case.arguments
        return shapes

    def ask(self, label: str, doing: str) -> tuple[dict[str, Any], list[bytes]]:
        """What the learner's process answers; it may be an exception.

        Raises:
            EndedError: there is no answer.
        """
        assert self._learner is not None
        return self._learner.receive(label, doing)

    def answer(
        self, label: str, doing: str, at_most: float | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """As :meth:`ask`; an exception is the end as well."""
        assert self._learner is not None
        return self._learner.answer(label, doing, at_most)

    # ---- runs on the fast interpreter

    def begin_runs(self) -> list[tuple[str, Case, str]]:
        """Hand each exported program to the clean process, with every filling of its case.

        Returns:
            (label, case, fill) of each run, in order, for :meth:`result`.

        Raises:
            EndedError: the function cannot be exported.
        """
        assert self._learner is not None
        if self.exercise.mesh_axis is not None:
            runs = self._runs()
            self._in_process.update(label for label, _, _ in runs)
            return runs
        assert self._runner is not None
        self._runner.answer("enter", "it starts")
        runs = []
        for number, case in enumerate(self.exercise.cases):
            exported, blobs = self.answer(f"export {number}", f"it runs on {case}")
            for fill in case.fills:
                label = f"run {number} {fill}"
                arrays = make_arguments(case.arguments, fill, self.seed)
                described, data = wire.pack_arrays(arrays)
                seconds = self.limits.stage_seconds
                if exported.get("in_process"):
                    self._in_process.add(label)
                    self._learner.send(label, "run", seconds, {"arrays": described}, data)
                else:
                    header = {"arrays": described, "program": number}
                    self._runner.send(label, "run_program", seconds, header, [blobs[0], *data])
                    # the other fillings of the case find the program there
                    blobs = [b""]
                runs.append((label, case, fill))
        return runs

    def result(self, label: str, doing: str, specs: tuple[ArgumentSpec, ...]) -> np.ndarray:
        """The one array that a run gave, of the shape and dtype that the exercise asks for.

        Raises:
            EndedError: there is none.
        """
        process = self._learner if label in self._in_process else self._runner
        assert process is not None
        answer, blobs = process.answer(label, doing)
        return self.one_array(answer, blobs, specs)

    def result_on_mesh(
        self, label: str, doing: str, specs: tuple[ArgumentSpec, ...]
    ) -> np.ndarray | None:
        """As :meth:`result`, of a run on several devices; what was seen goes to ``reports``.

        Returns:
            None when the run had to be stopped, for the reason in the report.

        Raises:
            EndedError: the process ended, or what came is no such array.
        """
        answer, blobs = self.answer(label, doing)
        report = self.reports[label] = dict(answer.get("report") or {})
        if not answer.get("arrays") and (report.get("messages") or report.get("unsupported")):
            return None
        return self.one_array(answer, blobs, specs)

    @property
    def isolated(self) -> bool:
        """Whether every run was made where no code of the learner's was."""
        return not self._in_process

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
