"""The last two steps: what each chip's compiler says, and how fast its program would run.

Only bytes of a lowered program come in here; they are compiled in the compiler's own supervised
process and simulated from the listing. Figures are kept by the content of the program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from tpulab.errors import TpulabError
from tpulab.exercises.model import Exercise, Rung, Work
from tpulab.grading import between_devices, problems, store
from tpulab.grading.advice import advice_for, in_house_style, time_text
from tpulab.grading.refusals import beyond_vmem, refusal, vmem_text
from tpulab.grading.sandbox import Limits
from tpulab.grading.verdict import StepResult

# a prediction below the bound by more than rounding means that work is missing
_FASTER_THAN_LIGHT = 0.98
_COMPILE_SECONDS = 60.0
_COMPILED = frozenset({"compiler_version", "vmem_used_bytes", "vmem_limit_bytes", "spills"})
_FIGURES = _COMPILED | frozenset(
    {
        "seconds",
        "hbm_bytes",
        "limiting_unit",
        "stall_seconds",
        "rungs",
    }
)


def speed_of_light(work: Work, chip_name: str) -> float:
    """Seconds below which the work cannot be done on one device of a chip.

    The larger of matrix operations ÷ peak of the dtype and bytes ÷ HBM bandwidth; see
    ``tpulab.hardware`` for the figures and their sources.
    """
    from tpulab.hardware import get_chip

    chip = get_chip(chip_name)
    bandwidth = chip.hbm_bandwidth(per="device")
    seconds = work.bytes / bandwidth if bandwidth else 0.0
    if work.matmul_flops:
        peak = chip.peak(work.dtype, per="device")
        if peak:
            seconds = max(seconds, work.matmul_flops / peak)
    return seconds


class SpeedJudge:
    """Compiles and simulates in the background; judges when asked."""

    def __init__(self, exercise: Exercise, chips: Sequence[str]) -> None:
        self.exercise = exercise
        self.chips = tuple(chips)
        self.predicted: dict[str, float] = {}
        self.rung: str | None = None
        self.top_rung = False
        self.rung_number = 0
        self.next_rung = ""
        self.compiler_version: str | None = None
        self._compiled: dict[str, Future[dict[str, Any]] | problems.Problem] = {}
        self._figures: dict[str, dict[str, Any]] = {}
        self._steps = 1
        self._matmul_flops = 0
        self._vmem_bytes = 0
        self._devices = exercise.devices(exercise.speed)

    def submit(
        self,
        chip: str,
        answer: Mapping[str, Any],
        blobs: Sequence[bytes],
        limits: Limits,
        kernel: Mapping[str, Any],
    ) -> None:
        """Start on a chip with what the learner's process lowered, or note why it could not.

        Args:
            chip: its name.
            answer, blobs: what the lowering gave.
            limits: of the learner's process, for what is said about it.
            kernel: description of the kernel for the shapes of the speed test.
        """
        self._steps = max(1, sum(call["steps"] for call in kernel["calls"]))
        self._matmul_flops = int(kernel["mxu_flops"])
        self._vmem_bytes = max((int(call["vmem_bytes"]) for call in kernel["calls"]), default=0)
        if any(isinstance(one, problems.Problem) for one in self._compiled.values()):
            # one chip's refusal ends the check
            return
        hopeless = beyond_vmem(chip, kernel)
        if hopeless is not None:
            # the compiler would take half a minute to find out
            self._compiled[chip] = hopeless
            return
        if "error" in answer:
            self._compiled[chip] = problems.from_error(
                answer["error"], f"it is lowered for {chip}", limits
            )
            return
        future: Future[dict[str, Any]] = Future()
        self._compiled[chip] = future
        data = blobs[0] if blobs else b""

        def work() -> None:
            try:
                future.set_result(_figures(chip, data, dict(kernel), self._devices))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                future.set_exception(error)

        # one chip's program is simulated while the next one's is compiled elsewhere; daemons, so
        # that after Ctrl-C nobody waits for a simulation that no one wants any more
        threading.Thread(target=work, name=f"tpulab-compile-{chip}", daemon=True).start()

    def cancel(self) -> None:
        """Stop what is under way. After a failure it may end by itself: the next check finds it."""
        if any(isinstance(f, Future) and not f.done() for f in self._compiled.values()):
            with contextlib.suppress(Exception):
                from tpulab.compiler import service

                service().cancel()

    def compiles(self) -> StepResult:
        """Whether every chip's compiler takes it, within VMEM."""
        refused: list[tuple[str, problems.Problem]] = []
        missing = ""
        parts, data = [], {}
        for chip in self.chips:
            if chip not in self._compiled:
                continue
            outcome = self._compiled[chip]
            if isinstance(outcome, problems.Problem):
                refused.append((chip, outcome))
                continue
            figures = self._wait(outcome)
            self._figures[chip] = figures
            if "missing" in figures:
                missing = figures["missing"]
                continue
            if "refused" in figures:
                refused.append((chip, problems.Problem(**figures["refused"])))
                continue
            self.compiler_version = figures["compiler_version"]
            used, limit = figures["vmem_used_bytes"], figures["vmem_limit_bytes"]
            spills = figures["spills"]
            parts.append(
                f"{chip}: {vmem_text(self._vmem_bytes, used, limit)}, "
                + (f"{spills:,} register spills, counted in the time" if spills else "no spills")
            )
            data[chip] = {
                name: figures[name] for name in ("vmem_used_bytes", "vmem_limit_bytes", "spills")
            }
        if refused:
            chip, problem = refused[0]
            others = [name for name in self.chips if name in data]
            also = f" ({', '.join(others)} takes it)" if others else ""
            return StepResult(
                "compiles",
                False,
                f"{chip}: {problem.summary}{also}",
                problem.detail,
                problem.hint,
                problem.where,
                data,
                symptom=f"{chip}: the compiler refuses it{also}",
            )
        if missing:
            return StepResult("compiles", None, f"not available here: {missing}")
        return StepResult("compiles", True, " · ".join(parts), data=data)

    @staticmethod
    def _wait(future: Future[dict[str, Any]]) -> dict[str, Any]:
        while True:
            # short waits, so that Ctrl-C is answered at once on every system
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=0.2)

    def fast_between_devices(self, answer: Mapping[str, Any], limits: Limits) -> StepResult:
        """As :meth:`fast`, by the links.

        Args:
            answer: the kernel's transfers between devices, for the shapes of the speed test.
            limits: of the learner's process, for what is said about it.
        """
        if "error" in answer:
            doing = f"it runs on {self._devices} devices"
            return problems.failed("fast", problems.from_error(answer["error"], doing, limits))
        work = self.exercise.work(self.exercise.speed)
        if not work.collective:
            reason = "the exercise does not say which collective it is, so there is no bound"
            return StepResult("fast", None, reason)
        transfers = between_devices.transfers_from(answer, self._devices)
        missing = between_devices.sends_too_little(transfers, work, self._devices)
        if missing:
            return StepResult(
                "fast",
                False,
                missing,
                "part of the result is made without the other devices, or outside the kernel",
                "count the copies: does every device send what the others need?",
                symptom=missing,
            )
        for chip, figures in self._figures.items():
            if "missing" not in figures:
                figures |= between_devices.link_figures(transfers, work, chip, self._devices)
        return self.fast()

    def _matmul_seconds(self, chip: str) -> float:
        """What the kernels' matrix operations take at peak."""
        work = self.exercise.work(self.exercise.speed)
        return speed_of_light(
            dataclasses.replace(work, matmul_flops=self._matmul_flops, bytes=0), chip
        )

    def _bound(self, chip: str) -> float:
        work = self.exercise.work(self.exercise.speed)
        if work.collective:
            return between_devices.bound_seconds(work, chip, self._devices)
        return speed_of_light(work, chip)

    def fast(self) -> StepResult:
        """On which rung the predicted time lands, on the leading chip."""
        lead = self.chips[0]
        if any("missing" in self._figures.get(chip, {"missing": ""}) for chip in self.chips):
            return StepResult("fast", None, "not available here: it needs the compiled program")
        parts, data = [], {}
        for chip in self.chips:
            figures = self._figures[chip]
            if "not_simulated" in figures:
                parts.append(f"{chip}: cannot be predicted: {figures['not_simulated']}")
                continue
            bound = self._bound(chip)
            seconds = figures["seconds"]
            fraction = bound / seconds if seconds else 0.0
            self.predicted[chip] = seconds
            data[chip] = {
                "predicted_seconds": seconds,
                "bound_seconds": bound,
                "fraction": fraction,
                "limiting_unit": figures["limiting_unit"],
                "stall_seconds": figures["stall_seconds"],
                "rungs": figures["rungs"],
            } | (
                {"rounds": figures["rounds"], "judged_by": between_devices.JUDGED_BY}
                if "rounds" in figures
                else {}
            )
            parts.append(f"{chip}: {time_text(seconds)}, {100 * fraction:.0f} % of the bound")
        summary = " · ".join(parts)
        if "rounds" in self._figures[lead]:
            rounds = self._figures[lead]["rounds"]
            summary += f", {rounds} round{'s' if rounds != 1 else ''}, by the link model"
        if lead not in data:
            return StepResult("fast", None, summary, data=data)
        for chip, row in data.items():
            if row["predicted_seconds"] < _FASTER_THAN_LIGHT * row["bound_seconds"]:
                return StepResult(
                    "fast",
                    False,
                    f"{chip}: {time_text(row['predicted_seconds'])} is faster than light: the work "
                    f"alone takes {time_text(row['bound_seconds'])}",
                    hint="part of the work is missing for these shapes; look at the grid",
                    data=data,
                )
        fraction = data[lead]["fraction"]
        reached = [rung for rung in self.exercise.rungs if fraction >= rung.fraction]
        higher = [rung for rung in self.exercise.rungs if fraction < rung.fraction]
        cause, advice = map(
            in_house_style,
            advice_for(
                self._figures[lead],
                self.exercise.work(self.exercise.speed),
                self._steps,
                self._matmul_flops,
                self._matmul_seconds(lead),
            ),
        )
        if not reached:
            return StepResult(
                "fast",
                False,
                f"{summary}; the first rung, {_rung(higher[0])}, is not reached",
                detail=cause,
                hint=advice,
                data=data,
                symptom=f"{summary}; the first rung, {_rung(higher[0])}, is not reached",
            )
        self.rung, self.top_rung, self.rung_number = reached[-1].name, not higher, len(reached)
        count = len(self.exercise.rungs)
        by = f" on {lead}" if len(self.chips) > 1 else ""
        name = f"rung {len(reached)} of {count}{by}: {self.rung}" if count > 1 else self.rung
        if not higher:
            return StepResult("fast", True, f"{summary}; {name}", data=data)
        self.next_rung = _rung(higher[0])
        return StepResult(
            "fast",
            True,
            f"{summary}; {name}",
            detail=cause,
            hint=advice,
            data=data,
            below_top=True,
        )


def _rung(rung: Rung) -> str:
    return f"{rung.name}, {100 * rung.fraction:.0f} % of the bound"


def _strange_program(reason: str) -> dict[str, Any]:
    problem = problems.Problem(
        f"what was lowered is not the program that is asked for: {reason}",
        hint="do not change tpulab or jax while your function is checked",
    )
    return dataclasses.asdict(problem)


def _rungs(
    kernel: Mapping[str, Any], program: Any, timeline: Any, cycles: float
) -> list[dict[str, Any]]:
    """The ladder of a program, from the description of the kernel that the other process gave."""
    from tpulab.ladder_climb import climb

    calls = tuple(
        SimpleNamespace(
            **{
                **call,
                "grid": tuple(call["grid"]),
                "operands": tuple(SimpleNamespace(**item) for item in call["operands"]),
                "matmuls": tuple(SimpleNamespace(**item) for item in call["matmuls"]),
                "scalar_prefetch": (None,) * call["scalar_prefetch"],
            }
        )
        for call in kernel["calls"]
    )
    described = SimpleNamespace(**{**kernel, "calls": calls, "notes": tuple(kernel["notes"])})
    found = climb(described, program, timeline, chip=program.chip, compute_cycles=cycles)
    return [
        {
            "name": rung.name,
            "seconds": float(rung.seconds),
            "cause": rung.cause,
            "advice": rung.advice,
        }
        for rung in found.rungs
    ]


def _figures(chip: str, data: bytes, kernel: dict[str, Any], devices: int = 1) -> dict[str, Any]:
    """Compile and simulate one artifact; every refusal becomes data.

    A program for several devices is compiled only.

    The bytes come from the learner's process, and so does what they say about themselves: programs
    are known by their bytes here, so that none can pass for another in a cache.
    """
    from tpulab.compiler import CompilerMissing, compiler_version, service
    from tpulab.compiler.artifact import Artifact

    try:
        artifact = Artifact.from_bytes(data)
    except ValueError as error:
        return {"refused": _strange_program(str(error))}
    if artifact.chip != chip or artifact.devices != devices:
        return {"refused": _strange_program(f"it is for {artifact.devices} × {artifact.chip}")}
    artifact = dataclasses.replace(artifact, key=hashlib.sha256(artifact.data).hexdigest())
    version = compiler_version()
    key = store.content_key("speed", artifact.key, artifact.chip, artifact.jax_version, version)
    known = store.cached(key)
    wanted = _FIGURES if devices == 1 else _COMPILED
    if known is not None and known.keys() >= wanted:
        return known
    try:
        program = service().compile_artifact(artifact, deadline_seconds=_COMPILE_SECONDS)
    except CompilerMissing as error:
        return {"missing": error.what}
    except TpulabError as error:
        return {"refused": dataclasses.asdict(refusal(error, chip, kernel))}
    vmem = program.vmem
    figures: dict[str, Any] = {
        "compiler_version": program.compiler_version,
        "vmem_used_bytes": int(vmem.used_bytes),
        "vmem_limit_bytes": int(vmem.limit_bytes),
        "spills": int(program.spills),
    }
    if devices > 1:
        store.remember(key, figures)
        return figures
    try:
        from tpulab.ladder_climb import simulate_for_ladder

        timeline, cycles = simulate_for_ladder(program, None)
    except TpulabError as error:
        figures["not_simulated"] = getattr(error, "reason", None) or error.what
    except ImportError:
        return figures | {"not_simulated": "the simulator is not part of this installation"}
    else:
        clock = float(timeline.clock_hertz)
        figures |= {
            "seconds": float(timeline.seconds),
            "cycles": int(timeline.cycles),
            "hbm_bytes": int(timeline.hbm_read_bytes + timeline.hbm_written_bytes),
            "limiting_unit": str(timeline.limiting_unit),
            "stall_seconds": {
                str(cause): cycles / clock for cause, cycles in timeline.stall_cycles.items()
            },
            "rungs": [],
        }
        # the description comes from the learner's process: a strange one costs the advice only
        with contextlib.suppress(TpulabError, AttributeError, KeyError, TypeError, ValueError):
            figures["rungs"] = _rungs(kernel, program, timeline, cycles)
        store.remember(key, figures)
    return figures
