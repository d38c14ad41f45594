"""How good is a kernel, and what is in the way: the rungs between the best possible and predicted.

``ladder(function, *arguments, chip="v5e")`` traces, compiles and simulates a function and says
where its time goes:

* **speed of light**: the arithmetic at peak, every operand through HBM once; the slower of the two.
* **traffic**: with the bytes that the blocks really move.
* **tile padding**: with shapes padded to native tiles and to the matrix unit.
* **schedule**: with the instructions that the compiler made, were all data in place.
* **pipeline**: with transfers, waits, first and last blocks: the predicted time.
* **measured**: only when a measurement is given.

The first three are bounds from what the author wrote and the chip's data sheet; schedule and
pipeline are predicted by running the compiled program. Times are those of one JAX device.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulab import ladder_causes as causes
from tpulab.errors import TpulabError, UsageError
from tpulab.hardware import Chip, get_chip

RUNGS = ("speed of light", "traffic", "tile padding", "schedule", "pipeline")
_KINDS = {
    "speed of light": "bound",
    "traffic": "bound",
    "tile padding": "bound",
    "schedule": "predicted",
    "pipeline": "predicted",
    "measured": "measured",
}
_REASON_LIMIT = 4000


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    Attributes:
        seconds: cumulative: with this rung's loss and all before it.
        cause: what this rung adds, in numbers. advice: what to try; empty when nothing is lost.
    """

    name: str
    seconds: float
    cause: str
    advice: str = ""

    @property
    def kind(self) -> str:
        """``"bound"``, ``"predicted"`` or ``"measured"``."""
        return _KINDS[self.name]


@dataclass(frozen=True)
class Refusal:
    """Why a chip has no prediction: the stage that refused and its reason."""

    stage: str
    reason: str

    def __str__(self) -> str:
        return f"refused at {self.stage}: {self.reason}"


@dataclass(frozen=True)
class ChipLadder:
    """The ladder of one function on one chip.

    Attributes:
        rungs: all rungs; empty when the chip refused.
        known_rungs: those that could still be computed when it refused; else the same as `rungs`.
        bound_seconds: the speed of light; None when the function could not be traced.
        predicted_seconds: the pipeline rung; None when refused.
        hbm_bytes: bytes that the program moves, over all cores of the device.
        stall_seconds: time lost by cause, largest first. vmem_bytes: VMEM that the kernel uses.
        spills: vector spills and reloads in the listing. limiting_unit: the busiest unit.
        kernel, program, timeline: what the figures come from; None where it was not reached.
        prediction_error: what is known of the error of predictions for this chip, as a sentence.
    """

    function: str
    chip: str
    compiler_version: str | None
    rungs: tuple[Rung, ...] = ()
    known_rungs: tuple[Rung, ...] = ()
    bound_seconds: float | None = None
    predicted_seconds: float | None = None
    measured_seconds: float | None = None
    cycles: float | None = None
    hbm_bytes: int | None = None
    stall_seconds: Mapping[str, float] | None = None
    vmem_bytes: int | None = None
    spills: int | None = None
    limiting_unit: str | None = None
    warnings: tuple[str, ...] = ()
    refusal: Refusal | None = None
    prediction_error: str = ""
    kernel: Any = field(default=None, repr=False, compare=False)
    program: Any = field(default=None, repr=False, compare=False)
    timeline: Any = field(default=None, repr=False, compare=False)

    @property
    def fraction_of_bound(self) -> float | None:
        """Speed of light / predicted: 1 is perfect."""
        if self.bound_seconds is None or not self.predicted_seconds:
            return None
        return self.bound_seconds / self.predicted_seconds

    @property
    def largest_loss(self) -> Rung | None:
        """The rung of a loss that is largest and has advice."""
        gaps = [
            (after.seconds - before.seconds, after)
            for before, after in zip(self.rungs, self.rungs[1:])
            if after.advice and after.seconds > before.seconds
        ]
        return max(gaps, key=lambda gap: gap[0])[1] if gaps else None

    def to_json(self, *, detail: bool = False) -> dict[str, Any]:
        """The chip's entry in the documented JSON; `detail` adds kind and advice of each rung."""
        by_name = {rung.name: rung for rung in (self.rungs or self.known_rungs)}
        names = [*RUNGS, *(name for name in by_name if name not in RUNGS)]
        rungs: list[dict[str, Any]] = []
        for name in names:
            rung = by_name.get(name)
            entry: dict[str, Any] = {
                "name": name,
                "seconds": rung.seconds if rung else None,
                "cause": rung.cause if rung else None,
            }
            if detail:
                entry["kind"] = _KINDS[name]
                entry["advice"] = rung.advice if rung else None
            rungs.append(entry)
        return {
            "bound_seconds": self.bound_seconds,
            "predicted_seconds": self.predicted_seconds,
            "rungs": rungs,
            "cycles": self.cycles,
            "hbm_bytes": self.hbm_bytes,
            "stall_seconds": None if self.stall_seconds is None else dict(self.stall_seconds),
            "vmem_bytes": self.vmem_bytes,
            "spills": self.spills,
            "limiting_unit": self.limiting_unit,
            "warnings": list(self.warnings),
            "refusal": None
            if self.refusal is None
            else {"stage": self.refusal.stage, "reason": self.refusal.reason},
        }

    def __str__(self) -> str:
        from tpulab.ladder_render import chip_text

        return chip_text(self)

    def _repr_html_(self) -> str:
        from tpulab.ladder_render import chip_html

        return chip_html(self)


@dataclass(frozen=True)
class Ladder:
    """The ladders of one function on one or several chips.

    With one chip, everything of its :class:`ChipLadder` (``rungs``, ``predicted_seconds``,
    ``timeline``...) is also here; with several, ``ladder["v5e"]`` gives one.
    """

    function: str
    arguments: tuple[str, ...]
    compiler_version: str | None
    chips: Mapping[str, ChipLadder]

    def __getitem__(self, chip: str) -> ChipLadder:
        return self.chips[get_chip(chip).name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        chips = self.__dict__.get("chips") or {}
        if name in ChipLadder.__dataclass_fields__ or isinstance(
            getattr(ChipLadder, name, None), property
        ):
            if len(chips) != 1:
                raise AttributeError(
                    f"this ladder has {len(chips)} chips; take one, as in ladder['v5e'].{name}"
                )
            return getattr(next(iter(chips.values())), name)
        raise AttributeError(f"a ladder has no attribute {name!r}")

    def to_json(self, *, detail: bool = False) -> dict[str, Any]:
        """The documented JSON (``tpulab/ladder_schema.json``); `detail` adds kind and advice."""
        return {
            "function": self.function,
            "arguments": list(self.arguments),
            "compiler_version": self.compiler_version,
            "chips": {name: one.to_json(detail=detail) for name, one in self.chips.items()},
        }

    def __str__(self) -> str:
        return "\n\n".join(str(one) for one in self.chips.values())

    def _repr_html_(self) -> str:
        return "\n".join(one._repr_html_() for one in self.chips.values())


def ladder(
    function: Callable[..., Any],
    *arguments: Any,
    chip: str | Chip | Iterable[str | Chip] = "v5e",
    measured: Mapping[str, float] | float | None = None,
    deadline_seconds: float = 60.0,
) -> Ladder:
    """Where the time of a function goes, on one or several chips.

    Args:
        function: takes `arguments`; contains at least one ``pallas_call``.
        *arguments: arrays, ``jax.ShapeDtypeStruct`` or text like ``"bf16[4096,4096]"``. Values of
            scalar-prefetch operands must be given as arrays.
        chip: a chip or several.
        measured: seconds on a real chip, per chip name, or a number for the only chip.
        deadline_seconds: how long the compiler may take for one chip.

    Returns:
        A :class:`Ladder`. A chip that cannot answer has ``refusal`` set and the figures that this
        prevents are None; it does not stop the others.

    Raises:
        UnknownNameError: no such chip.
        UsageError: `function` is not a function, or `measured` does not fit the chips.
    """
    chips = _chips(chip)
    if not callable(function):
        raise UsageError(
            f"a ladder needs a function, not {type(function).__name__}",
            hint="pass the function itself, without calling it: ladder(f, x), not ladder(f(x))",
        )
    times = _measurements(measured, chips)
    from tpulab.compiler import compile_many, compiler_version

    version = compiler_version()
    kernels: dict[str, Any] = {}
    refused: dict[str, Refusal] = {}
    for one in chips:
        kernels[one.name] = _trace(function, arguments, one, refused)
    willing = [one for one in chips if one.name not in refused]
    programs: dict[str, Any] = {}
    if willing:
        programs = compile_many(
            function, list(arguments), willing, deadline_seconds=deadline_seconds
        )
    answers = {
        one.name: _answer(
            one,
            kernels[one.name],
            refused.get(one.name),
            programs.get(one.name),
            times.get(one.name),
            version,
            _name_of(function),
        )
        for one in chips
    }
    known = next((kernel for kernel in kernels.values() if kernel is not None), None)
    return Ladder(
        function=_name_of(function),
        arguments=tuple(str(a) for a in known.arguments)
        if known is not None
        else tuple(_argument_text(a) for a in arguments),
        compiler_version=version,
        chips=answers,
    )


def _chips(chip: str | Chip | Iterable[str | Chip]) -> list[Chip]:
    wanted: Iterable[str | Chip]
    if isinstance(chip, Chip):
        wanted = [chip]
    elif isinstance(chip, str):
        wanted = [part for part in chip.split(",") if part.strip()]
    else:
        wanted = chip
    found = list({get_chip(one).name: get_chip(one) for one in wanted}.values())
    if not found:
        raise UsageError("a ladder needs at least one chip", hint='for example chip="v5e"')
    return found


def _measurements(
    measured: Mapping[str, float] | float | None, chips: list[Chip]
) -> dict[str, float]:
    if measured is None:
        return {}
    if isinstance(measured, Mapping):
        times = {get_chip(name).name: float(seconds) for name, seconds in measured.items()}
    else:
        if len(chips) != 1:
            raise UsageError(
                "one measured time does not say which of several chips it is from",
                hint='measured={"v5e": 0.001, ...}',
            )
        times = {chips[0].name: float(measured)}
    if any(seconds <= 0 for seconds in times.values()):
        raise UsageError("a measured time must be above zero seconds")
    return times


def _name_of(function: Any) -> str:
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _argument_text(argument: Any) -> str:
    shape, dtype = getattr(argument, "shape", None), getattr(argument, "dtype", None)
    if shape is None or dtype is None:
        return argument if isinstance(argument, str) else type(argument).__name__
    return f"{getattr(dtype, 'name', dtype)}[{','.join(str(size) for size in shape)}]"


def _trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    chip: Chip,
    refused: dict[str, Refusal],
) -> Any:
    from tpulab.kernel import trace

    try:
        return trace(function, *arguments, chip=chip.name)
    except UsageError:
        raise
    except TpulabError as error:
        refused[chip.name] = Refusal("trace", str(error)[:_REASON_LIMIT])
    return None


def _answer(
    chip: Chip,
    kernel: Any,
    refusal: Refusal | None,
    program: Any,
    measured: float | None,
    version: str | None,
    function: str,
) -> ChipLadder:
    """A chip's ladder from what the earlier rooms gave, or why there is none."""
    timeline = None
    compute = None
    if isinstance(program, TpulabError):
        stage = getattr(program, "stage", "compile")
        refusal = Refusal(stage, str(program)[:_REASON_LIMIT])
        program = None
    elif program is not None:
        try:
            timeline, compute = _simulate(program, kernel)
        except TpulabError as error:
            refusal = Refusal("simulate", str(error)[:_REASON_LIMIT])
        except Exception as error:  # noqa: BLE001 - one chip's defect must not cost the others
            refusal = Refusal(
                "simulate", f"the simulator failed: {type(error).__name__}: {error}"[:_REASON_LIMIT]
            )
    return climb(
        kernel,
        program,
        timeline,
        chip=chip,
        compute_cycles=compute,
        measured_seconds=measured,
        refusal=refusal,
        compiler_version=getattr(program, "compiler_version", None) or version,
        function=function,
    )


def _simulate(program: Any, kernel: Any) -> tuple[Any, float]:
    """The timeline, and the cycles that the kernels' instructions take without any transfer."""
    from tpulab.simulator import Options, simulate

    timeline = simulate(program, kernel=kernel)
    if not any(_is_xla(piece) for piece in timeline.pieces):
        return timeline, timeline.compute_cycles
    # waits inside XLA's operations are not told apart from the kernels': run without transfers
    alone = simulate(program, kernel=kernel, options=Options(free_dma=True, max_events=0))
    cycles = sum(
        piece.end_cycle - piece.start_cycle for piece in alone.pieces if not _is_xla(piece)
    )
    return timeline, cycles


def _is_xla(piece: Any) -> bool:
    return bool(piece.kind == "xla")


def climb(
    kernel: Any,
    program: Any,
    timeline: Any,
    *,
    chip: str | Chip,
    compute_cycles: float | None = None,
    measured_seconds: float | None = None,
    refusal: Refusal | None = None,
    compiler_version: str | None = None,
    function: str | None = None,
) -> ChipLadder:
    """A chip's ladder from a traced kernel, a compiled program and its simulated timeline.

    Args:
        kernel: ``Kernel`` or None. program: ``Program`` or None. timeline: ``Timeline`` or None.
        compute_cycles: cycles of the kernels' instructions with all data in place; the timeline's
            own figure when not given.
        refusal: why something is None.
    """
    chip = get_chip(chip)
    warnings: list[str] = []
    rungs: list[Rung] = []
    light = 0.0
    memory = compute_padded = 0.0
    if kernel is not None:
        warnings += getattr(kernel, "notes", ())
        rungs, memory, compute_padded = _bounds(kernel, chip, warnings)
        light = rungs[0].seconds
    one_core = chip.cores_per_device > 1 and kernel is not None and not _splits(kernel)
    predicted = None
    if kernel is not None and timeline is not None:
        warnings += timeline.warnings
        predicted = timeline.seconds
        rungs = _predicted(
            rungs, kernel, program, timeline, chip, compute_cycles, memory, one_core, warnings
        )
        if measured_seconds is not None:
            cause = causes.measured_cause(predicted, measured_seconds)
            rungs.append(Rung("measured", measured_seconds, cause.text, cause.advice))
    cores = 1 if one_core else chip.cores_per_device
    done = timeline is not None and refusal is None and kernel is not None
    return ChipLadder(
        function=function or (kernel.name if kernel is not None else "function"),
        chip=chip.name,
        compiler_version=compiler_version or getattr(program, "compiler_version", None),
        rungs=tuple(rungs) if done else (),
        known_rungs=tuple(rungs),
        bound_seconds=light if kernel is not None else None,
        predicted_seconds=predicted if done else None,
        measured_seconds=measured_seconds,
        cycles=timeline.cycles if done else None,
        hbm_bytes=(timeline.hbm_read_bytes + timeline.hbm_written_bytes) * cores if done else None,
        stall_seconds=causes.stall_seconds(timeline) if done else None,
        vmem_bytes=program.vmem.used_bytes if program is not None else None,
        spills=program.spills if program is not None else None,
        limiting_unit=timeline.limiting_unit if done else None,
        warnings=tuple(dict.fromkeys(str(sentence) for sentence in warnings)),
        refusal=refusal,
        prediction_error=_prediction_error(chip) if done else "",
        kernel=kernel,
        program=program,
        timeline=timeline,
    )


def _splits(kernel: Any) -> bool:
    """Whether some call has a parallel grid axis that two cores can share."""
    return any(
        semantics == "parallel" and size > 1
        for call in kernel.calls
        for semantics, size in zip(call.dimension_semantics, call.grid)
    )


def _bounds(kernel: Any, chip: Chip, warnings: list[str]) -> tuple[list[Rung], float, float]:
    """The three rungs that need no compiler; HBM and matrix time of the padded work."""
    from tpulab.roofline import Work, bound

    work = Work.of_kernel(kernel)
    best = bound(work, chip)
    warnings += best.assumptions
    traffic = padded = memory = matrix = moved = 0.0
    for call in kernel.calls:
        once = Work.of_kernel(_Single(call))
        as_moved = Work(once.matmul_flops, call.hbm_bytes * call.times)
        limit = bound(as_moved, chip)
        traffic += limit.seconds
        moved += limit.hbm_seconds
        flops, *_ = causes.padded_products(_Single(call), chip)
        passes = {name: once.matmul_flops[name] / _plain(call, name) for name in flops}
        filled = Work(
            {name: value * passes[name] for name, value in flops.items()},
            call.hbm_bytes_padded * call.times,
        )
        limit = bound(filled, chip)
        padded += limit.seconds
        memory += limit.hbm_seconds
        matrix += limit.compute_seconds
    traffic = max(traffic, best.seconds)
    padded = max(padded, traffic)
    first = causes.light_cause(work, best.compute_seconds, best.hbm_seconds, chip)
    second = causes.traffic_cause(kernel, traffic - best.seconds, moved, traffic)
    third = causes.padding_cause(kernel, chip, padded - traffic, padded, matrix >= memory)
    rungs = [
        Rung("speed of light", best.seconds, first.text),
        Rung("traffic", traffic, second.text, second.advice),
        Rung("tile padding", padded, third.text, third.advice),
    ]
    return rungs, memory, matrix


@dataclass(frozen=True)
class _Single:
    """One call in the shape of a kernel."""

    call: Any

    @property
    def calls(self) -> tuple[Any, ...]:
        return (self.call,)


def _plain(call: Any, dtype: str) -> float:
    """FLOP of a call's products of one dtype, each counted once."""
    from tpulab.hardware import canonical_dtype

    total = sum(p.flops * call.times for p in call.matmuls if canonical_dtype(p.dtype) == dtype)
    return float(total) or 1.0


def _predicted(
    rungs: list[Rung],
    kernel: Any,
    program: Any,
    timeline: Any,
    chip: Chip,
    compute_cycles: float | None,
    memory_seconds: float,
    one_core: bool,
    warnings: list[str],
) -> list[Rung]:
    """All rungs: the predicted ones added, the earlier ones kept below them."""
    predicted = timeline.seconds
    cycles = timeline.compute_cycles if compute_cycles is None else compute_cycles
    light = rungs[0].seconds
    if predicted < 0.98 * light:
        warnings.append(
            f"the prediction of {causes.time_text(predicted)} is below the speed of light of "
            f"{causes.time_text(light)}: work that was counted is not in the program, or a figure "
            "of the chip is wrong"
        )
    # an estimate of padding can be above what the compiler achieved; the program is the better
    # witness, so nothing before the prediction may exceed it
    rungs = [
        Rung(rung.name, min(rung.seconds, predicted), rung.cause, rung.advice) for rung in rungs
    ]
    instructions = cycles / timeline.clock_hertz
    schedule = min(max(instructions, memory_seconds, rungs[-1].seconds), predicted)
    cause = causes.schedule_cause(
        kernel, program, timeline, chip, schedule - rungs[-1].seconds, one_core
    )
    rungs.append(Rung("schedule", schedule, cause.text, cause.advice))
    xla = sum(p.end_cycle - p.start_cycle for p in timeline.pieces if _is_xla(p))
    moved = timeline.hbm_read_bytes + timeline.hbm_written_bytes
    stream, latency = _transfers(chip)
    cause = causes.pipeline_cause(
        kernel,
        timeline,
        predicted - schedule,
        xla / timeline.clock_hertz,
        # what the streams' real bandwidth adds, as far as HBM is the slower side
        max(0.0, moved / stream - schedule),
        latency * timeline.steps,
    )
    rungs.append(Rung("pipeline", predicted, cause.text, cause.advice))
    return rungs


def _transfers(chip: Chip) -> tuple[float, float]:
    """Bytes per second that a core's streams reach, and seconds of one transfer's latency."""
    try:
        from tpulab.simulator import constants_for

        constants = constants_for(chip.name)
        return (
            float(constants.hbm_bytes_per_cycle * constants.clock_hertz),
            float(constants.dma_latency_cycles / constants.clock_hertz),
        )
    except (ImportError, TpulabError, AttributeError):
        return chip.hbm_bandwidth("core"), 0.0


def _prediction_error(chip: Chip) -> str:
    """What has been measured of the simulator's error on this chip, as a sentence."""
    try:
        from tpulab import simulator

        known = getattr(simulator, "prediction_error", None)
        sentence = known(chip.name) if known is not None else None
    except (ImportError, TpulabError, LookupError):
        sentence = None
    if sentence is None:
        return f"no measurement to compare predictions for {chip.name} with is known"
    return str(sentence)


def refused_entry(stage: str, reason: str) -> dict[str, Any]:
    """The JSON entry of a chip that could not be asked at all."""
    return ChipLadder(
        function="", chip="", compiler_version=None, refusal=Refusal(stage, reason[:_REASON_LIMIT])
    ).to_json()


@dataclass(frozen=True)
class Comparison:
    """Two ladders side by side, on the chips that both have."""

    before: Ladder
    after: Ladder

    @property
    def chips(self) -> tuple[str, ...]:
        """Chips in both."""
        return tuple(name for name in self.before.chips if name in self.after.chips)

    @property
    def speedup(self) -> dict[str, float | None]:
        """Predicted before / predicted after; above 1 is faster; None where one refused."""
        result: dict[str, float | None] = {}
        for name in self.chips:
            old = self.before.chips[name].predicted_seconds
            new = self.after.chips[name].predicted_seconds
            result[name] = old / new if old and new else None
        return result

    def __str__(self) -> str:
        from tpulab.ladder_render import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from tpulab.ladder_render import comparison_html

        return comparison_html(self)


def compare(before: Ladder, after: Ladder) -> Comparison:
    """Two ladders side by side: which rung gained, which lost.

    Raises:
        UsageError: they have no chip in common.
    """
    result = Comparison(before, after)
    if not result.chips:
        raise UsageError(
            f"nothing to compare: {before.function} is on {', '.join(before.chips)}, "
            f"{after.function} on {', '.join(after.chips)}"
        )
    return result


class _CallableModule(types.ModuleType):
    """This module called is :func:`ladder`: both have the name ``tpulab.ladder``.

    Importing a submodule puts it into its package under its own name, over the function that the
    package offers; so whatever is imported first, ``tpulab.ladder(...)`` works.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Ladder:
        return ladder(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
