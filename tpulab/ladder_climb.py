"""The rungs of one chip, from a traced kernel, a compiled program and its simulated timeline."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tpulab import ladder_causes as causes
from tpulab import ladder_losses as losses
from tpulab.errors import TpulabError
from tpulab.hardware import Chip, get_chip
from tpulab.ladder_model import ChipLadder, Refusal, Rung

# chips whose JAX device is two cores on Cloud TPU and one in the compiler's topology
_MEGACORE_DEVICES = ("v4",)
# a prediction below this share of the bound is not a rounding difference of two clocks
_IMPOSSIBLE = 0.98
# how far the program's traffic may be from that of the kernel's blocks without a word
_SAME_TRAFFIC = 0.2
# and how much less than the counted products the matrix unit may be busy
_SAME_PRODUCTS = 0.5


def simulate_for_ladder(
    program: Any, kernel: Any, arguments: Sequence[Any] | None = None
) -> tuple[Any, float]:
    """The timeline, and the cycles that the kernels' instructions take without any transfer.

    Args:
        arguments: the function's, with the values that decide what its kernels do.
    """
    from tpulab.simulator import Options, simulate

    program = with_traced_counts(program, kernel)
    timeline = simulate(program, kernel=kernel, arguments=arguments)
    if not any(_is_xla(piece) for piece in timeline.pieces):
        return timeline, timeline.compute_cycles
    # waits inside XLA's operations are not told apart from the kernels': run without transfers
    free = Options(free_dma=True, max_events=0)
    alone = simulate(program, kernel=kernel, arguments=arguments, options=free)
    cycles = sum(
        piece.end_cycle - piece.start_cycle for piece in alone.pieces if not _is_xla(piece)
    )
    return timeline, cycles


def with_traced_counts(program: Any, kernel: Any) -> Any:
    """The program with its loops counted as the traced function runs its kernels.

    Only loops of which the compiled program does not say how often they run are affected: their
    bounds are arguments, whose values the trace knows.
    """
    unknown = [piece for piece in getattr(program, "kernels", ()) if not piece.calls_exact]
    if kernel is None or not unknown:
        return program
    waiting = list(kernel.calls)
    counts: dict[str, int] = {}
    for piece in program.kernels:
        # the compiler reorders calls and drops those that nobody needs: shapes decide, then order
        call = next((call for call in waiting if _same_arrays(piece, call)), None)
        if call is not None:
            waiting.remove(call)
            counts[piece.name] = call.times
    return program.with_call_counts(counts)


def _same_arrays(piece: Any, call: Any) -> bool:
    """Whether a compiled kernel's arrays can be those of a traced call."""
    read = [math.prod(shape.shape) for shape in piece.operand_shapes]
    made = [math.prod(shape.shape) for shape in piece.result_shapes]
    inputs = [math.prod(operand.shape) for operand in call.inputs]
    outputs = [math.prod(operand.shape) for operand in call.outputs]
    # grid bounds and scalar prefetch come before the inputs
    return read[len(read) - len(inputs) :] == inputs and made == outputs


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
    memory = compute = 0.0
    warnings += getattr(program, "warnings", ())
    if chip.cores_per_device < chip.cores_per_chip and chip.name in _MEGACORE_DEVICES:
        warnings.append(
            f"times are those of one core of {chip.name}; where both cores of a chip are one JAX "
            "device, as on Cloud TPU, a kernel with a parallel axis takes about half of it"
        )
    if kernel is not None:
        warnings += getattr(kernel, "notes", ())
        if refusal is None:
            refusal = _nothing_to_do(kernel)
        rungs, memory, compute = _bounds(kernel, chip, warnings, timeline)
        light = rungs[0].seconds
    if refusal is None and timeline is not None:
        refusal = _faster_than_light(timeline, light, kernel)
    predicted = None
    if kernel is not None and timeline is not None and refusal is None:
        warnings += timeline.warnings
        warnings += _disagreements(timeline, kernel, compute)
        predicted = timeline.seconds
        rungs = _predicted(rungs, kernel, program, timeline, chip, compute_cycles, memory)
        if measured_seconds is not None:
            cause = causes.measured_cause(predicted, measured_seconds)
            rungs.append(Rung("measured", measured_seconds, cause.text, cause.advice))
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
        hbm_bytes=timeline.hbm_read_bytes + timeline.hbm_written_bytes if done else None,
        stall_seconds=causes.stall_seconds(timeline) if done else None,
        vmem_bytes=_vmem_bytes(program),
        spills=program.spills if program is not None else None,
        limiting_unit=timeline.limiting_unit if done else None,
        warnings=tuple(dict.fromkeys(str(sentence) for sentence in warnings)),
        refusal=refusal,
        prediction_error=prediction_error(chip.name) if done else "",
        kernel=kernel,
        program=program,
        timeline=timeline,
    )


def _nothing_to_do(kernel: Any) -> Refusal | None:
    """A refusal for grids without steps: nothing runs, so no time means anything."""
    empty = [call for call in kernel.calls if 0 in call.grid]
    if not empty or len(empty) < len(kernel.calls):
        return None
    call = empty[0]
    return Refusal(
        "trace",
        f"the grid {call.grid} of kernel {call.name} has no steps, so nothing runs: a block is "
        "larger than its array, or a size was divided down to 0",
    )


def _vmem_bytes(program: Any) -> int | None:
    """VMEM that the kernels use; None when the compiler did not say."""
    if program is None or not getattr(program.vmem, "reported", True):
        return None
    return int(program.vmem.used_bytes)


def _faster_than_light(timeline: Any, light: float, kernel: Any) -> Refusal | None:
    """A refusal when the simulated run cannot have done the work that was counted."""
    if timeline.seconds >= _IMPOSSIBLE * light:
        return None
    moved = timeline.hbm_read_bytes + timeline.hbm_written_bytes
    return Refusal(
        "simulate",
        f"the simulated run takes {causes.time_text(timeline.seconds)}, less than the "
        f"{causes.time_text(light)} that the counted work needs at best, so it left work out: it "
        f"moved {causes.bytes_text(moved)} where the kernel's blocks move "
        f"{causes.bytes_text(kernel.hbm_bytes)}. Most often the kernel's grid or loops depend on "
        "data that the simulator does not have; give those arguments as arrays with values",
    )


def _disagreements(timeline: Any, kernel: Any, compute_seconds: float) -> list[str]:
    """Sentences on where the simulated run and the counted work differ."""
    found = []
    moved = getattr(timeline, "kernel_hbm_bytes", None)
    if moved is None:
        moved = timeline.hbm_read_bytes + timeline.hbm_written_bytes
    if abs(moved - kernel.hbm_bytes) > _SAME_TRAFFIC * max(moved, kernel.hbm_bytes):
        found.append(
            f"the program's kernels move {causes.bytes_text(moved)}, their blocks are "
            f"{causes.bytes_text(kernel.hbm_bytes)}; the difference is what XLA keeps in VMEM, or "
            "one of the two counts is wrong"
        )
    # the other core of a device does its own share
    needed = compute_seconds * timeline.clock_hertz
    busy = timeline.busy_cycles.get("mxu", 0.0)
    if busy < _SAME_PRODUCTS * needed:
        found.append(
            f"the matrix unit is busy for {busy:,.0f} cycles where the counted products need "
            f"{needed:,.0f}: the simulated run may have left work out"
        )
    return found


def _moved_padding(kernel: Any, timeline: Any) -> float:
    """The share of the padding to native tiles that moves through HBM, 0 to 1.

    Arrays lie padded in HBM unless XLA has chosen another layout for them; what the program moves
    tells. Without a program all of it counts.
    """
    padding = sum((call.hbm_bytes_padded - call.hbm_bytes) * call.times for call in kernel.calls)
    if timeline is None or padding <= 0:
        return 1.0
    moved = sum(
        piece.hbm_read_bytes + piece.hbm_written_bytes
        for piece in timeline.pieces
        if not _is_xla(piece)
    )
    return float(min(1.0, max(0.0, (moved - kernel.hbm_bytes) / padding)))


def _bounds(
    kernel: Any, chip: Chip, warnings: list[str], timeline: Any
) -> tuple[list[Rung], float, float]:
    """The rungs that need no compiler; HBM time of the padded traffic, matrix time at peak."""
    from tpulab.roofline import Work, bound

    share = _moved_padding(kernel, timeline)
    padded_bytes = 0.0
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
            (call.hbm_bytes + share * (call.hbm_bytes_padded - call.hbm_bytes)) * call.times,
        )
        padded_bytes += filled.hbm_bytes
        limit = bound(filled, chip)
        padded += limit.seconds
        memory += limit.hbm_seconds
        matrix += limit.compute_seconds
    traffic = max(traffic, best.seconds)
    padded = max(padded, traffic)
    first = causes.light_cause(work, best)
    second = causes.traffic_cause(
        kernel, traffic - best.seconds, moved, traffic, best.compute_seconds
    )
    compute_bound = matrix >= memory
    third = causes.padding_cause(
        kernel, chip, padded - traffic, padded, compute_bound, padded_bytes
    )
    rungs = [
        Rung("speed of light", best.seconds, first.text),
        Rung("traffic", traffic, second.text, second.advice),
        Rung("tile padding", padded, third.text, third.advice),
    ]
    return rungs, memory, best.compute_seconds


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
) -> list[Rung]:
    """All rungs: the predicted ones added, the earlier ones kept below them."""
    predicted = timeline.seconds
    cycles = timeline.compute_cycles if compute_cycles is None else compute_cycles
    # an estimate can be above what the compiler achieved; the program is the better witness, so
    # nothing before the prediction may exceed it
    rungs = [_at_most(rung, predicted) for rung in rungs]
    instructions = cycles / timeline.clock_hertz
    before = rungs[-1].seconds
    schedule = min(max(instructions, memory_seconds, before), predicted)
    cause = losses.schedule_cause(
        program,
        timeline,
        chip,
        schedule - before,
        min(instructions, predicted),
        whole_run=compute_cycles is None or compute_cycles == timeline.compute_cycles,
    )
    rungs.append(Rung("schedule", schedule, cause.text, cause.advice))
    xla = sum(p.end_cycle - p.start_cycle for p in timeline.pieces if _is_xla(p))
    cause = losses.pipeline_cause(
        kernel,
        timeline,
        chip,
        predicted - schedule,
        schedule_seconds=schedule,
        instruction_seconds=instructions,
        xla_seconds=xla / timeline.clock_hertz,
        transfers=_transfers(chip),
    )
    rungs.append(Rung("pipeline", predicted, cause.text, cause.advice))
    return rungs


def _at_most(rung: Rung, seconds: float) -> Rung:
    if rung.seconds <= seconds * (1 + 1e-9):
        return Rung(rung.name, min(rung.seconds, seconds), rung.cause, rung.advice)
    return Rung(
        rung.name,
        seconds,
        f"{rung.cause} (counted so, {causes.time_text(rung.seconds)}; the program needs less: XLA "
        "keeps arrays in VMEM or lays them out without padding)",
    )


def _transfers(chip: Chip) -> losses.Transfers:
    """What a core's streams reach, as the simulator has it."""
    sheet = chip.hbm_bandwidth("core")
    try:
        from tpulab.simulator import constants_for

        constants = constants_for(chip.name)
    except (ImportError, TpulabError):
        return losses.Transfers(sheet, sheet, sheet, 0.0)
    share = float(constants.hbm_bytes_per_cycle * constants.clock_hertz)
    return losses.Transfers(
        share * max(1.0, constants.lone_core_fraction * constants.cores),
        share,
        sheet,
        float(constants.dma_latency_cycles / constants.clock_hertz),
    )


# a published time of which dispatch is more than this says little about the kernel
_MOSTLY_DISPATCH = 0.5


@functools.cache
def prediction_error(chip_name: str) -> str:
    """What comparisons with published timings say about predictions for a chip, as a sentence.

    From ``ladder_accuracy.toml``; for a chip without comparisons it says so and gives the others'.
    """
    text = resources.files("tpulab").joinpath("ladder_accuracy.toml").read_text("utf-8")
    table = tomllib.loads(text)
    if chip_name in table:
        return f"{_comparison(chip_name, table[chip_name])}"
    others = "; ".join(_comparison(name, entry) for name, entry in table.items())
    return f"no timing published for {chip_name} has been compared with a prediction; {others}"


def _comparison(chip_name: str, entry: Mapping[str, Any]) -> str:
    rows = [row for row in entry["rows"].values() if row["dispatch"] <= _MOSTLY_DISPATCH]
    errors = sorted(abs(row["error"]) for row in rows)
    shortest = min(row["published_ms"] for row in rows)
    return (
        f"{len(rows)} published timings of {entry['kernels']} on {chip_name}, from {shortest:.2g} "
        f"ms up, are met within {errors[-1]:.1%}, half of them within "
        f"{errors[len(errors) // 2]:.1%}; {len(entry['fitted'])} of them served to fit the "
        f"simulator ({entry['compiler_version']})"
    )
