"""What the predicted rungs consist of: instructions, waits between them, transfers, XLA's work.

Every figure in a cause is part of its rung (schedule) or of its gap (pipeline); those of a cause
add up to no more than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tpulab.hardware import Chip
from tpulab.ladder_causes import NEGLIGIBLE, Cause, time_text

# shares of a gap below which a part is not named
_SMALL = 0.05
_MOST_PARTS = 3

_TRANSFER_STALLS = (
    "waiting for DMA",
    "waiting for a copy",
    "prologue/epilogue",
    "XLA operation",
    "semaphore",
)

LONE_CORE = "waiting for DMA: lone core's part of the HBM bandwidth"
_TOLD_ELSEWHERE = ("XLA operation", "waiting for a copy", LONE_CORE)


def is_transfer_stall(cause: str) -> bool:
    """Whether a stall belongs to the pipeline rung and not to the instruction schedule."""
    return cause.startswith(_TRANSFER_STALLS)


def schedule_cause(
    program: Any,
    timeline: Any,
    chip: Chip,
    gap_seconds: float,
    instruction_seconds: float,
    *,
    whole_run: bool,
) -> Cause:
    """Why the compiled instructions take longer than the bounds.

    Args:
        gap_seconds: between tile padding and schedule.
        instruction_seconds: what the kernels' instructions take with all data in place.
        whole_run: whether the timeline's bundles and stalls are those of the kernels alone.
    """
    seconds = timeline.seconds
    if gap_seconds <= NEGLIGIBLE * seconds:
        return Cause("schedule.none", "the instructions keep up with the slower side")
    if timeline.cores < chip.cores_per_device:
        return Cause(
            "schedule.one_core",
            f"{timeline.cores} of {chip.cores_per_device} cores works, for "
            f"{time_text(instruction_seconds)}: the grid has no parallel axis that could be split",
        )
    clock = timeline.clock_hertz
    stalls = {
        name: cycles / clock
        for name, cycles in timeline.stall_cycles.items()
        if not is_transfer_stall(name)
    }
    busy = dict(timeline.busy_cycles)
    issue = timeline.bundles_issued / clock
    matrix = busy.get("mxu", 0.0) / clock
    worst = max(stalls, key=lambda name: stalls[name]) if stalls else ""
    text = f"the instructions take {time_text(instruction_seconds)}"
    if whole_run:
        waits = max(0.0, instruction_seconds - issue)
        text += (
            f": {timeline.bundles_issued:,} bundles {time_text(min(issue, instruction_seconds))}"
        )
        if waits > _SMALL * instruction_seconds:
            text += f", waits between them {time_text(waits)}"
            if worst:
                text += f" (most: {worst} {time_text(min(waits, stalls[worst]))})"
    if matrix > _SMALL * instruction_seconds:
        text += f"; the matrix unit alone needs {time_text(min(matrix, instruction_seconds))}"
    if worst and stalls[worst] >= max(0.0, issue - matrix):
        if not whole_run:
            text += f"; most of the waits: {worst}"
        return Cause(f"schedule.{_STALL_KEYS.get(worst, 'other')}", text)
    side = max(
        (unit for unit in busy if not unit.startswith("dma")),
        key=lambda unit: busy[unit],
        default="scalar",
    )
    share = busy.get(side, 0.0) / max(1.0, timeline.cycles)
    text += f"; the busiest unit is {side}, {share:.0%} of the run"
    spills = getattr(program, "spills", 0)
    bundles = sum(piece.slots.bundles for piece in getattr(program, "kernels", ()))
    if bundles and spills > 0.1 * bundles:
        return Cause("schedule.spills", f"{text}; {spills:,} spills and reloads in {bundles:,}")
    return Cause(f"schedule.{_UNIT_KEYS.get(side, 'issue')}", text)


_STALL_KEYS = {
    "matrix result": "matrix_result",
    "matrix weights": "matrix_weights",
    "matrix unit busy": "matrix_busy",
    "vector result": "latency",
    "vector load": "issue",
    "vector store": "issue",
    "cross-lane result": "cross_lane",
    "cross-lane unit busy": "cross_lane",
    "transcendental result": "transcendental",
    "EUP busy": "transcendental",
    "scalar result": "scalar",
    "scalar load": "scalar",
    "vector to scalar": "scalar",
}
_UNIT_KEYS = {
    "mxu": "issue",
    "load": "issue",
    "store": "issue",
    "vpu": "vector",
    "xlu": "cross_lane",
    "eup": "transcendental",
    "scalar": "scalar",
}


@dataclass(frozen=True)
class Transfers:
    """What a core's transfers reach.

    Attributes:
        alone_bytes_per_second: of one core that works while the device's others do not.
        share_bytes_per_second: of one core when all cores of the device are at work.
        sheet_bytes_per_second: of one core, by the data sheet.
        latency_seconds: of one transfer, beside its bytes.
    """

    alone_bytes_per_second: float
    share_bytes_per_second: float
    sheet_bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True)
class _Part:
    """A part of the gap."""

    key: str
    text: str
    seconds: float


def pipeline_cause(
    kernel: Any,
    timeline: Any,
    chip: Chip,
    gap_seconds: float,
    *,
    schedule_seconds: float,
    instruction_seconds: float,
    xla_seconds: float,
    transfers: Transfers,
) -> Cause:
    """Why transfers and the pipeline's ends are not hidden behind the instructions.

    Args:
        gap_seconds: between schedule and predicted time.
        instruction_seconds: what the kernels' instructions take with all data in place.
        xla_seconds: XLA's own operations around the kernels.
    """
    if gap_seconds <= NEGLIGIBLE * timeline.seconds:
        return Cause("pipeline.none", "transfers hide behind the instructions")
    parts = [
        _Part("xla", "XLA operations around the kernel", min(max(0.0, xla_seconds), gap_seconds))
    ]
    parts += _bandwidth(timeline, chip, gap_seconds - parts[0].seconds, schedule_seconds, transfers)
    rest = max(0.0, gap_seconds - sum(part.seconds for part in parts))
    waits = _waits(timeline, kernel)
    total = sum(part.seconds for part in waits)
    # where transfers are the slower side, most of the waiting is in the rungs above
    scale = min(1.0, rest / total) if total else 0.0
    waits = [_Part(part.key, part.text, part.seconds * scale) for part in waits]
    special = _special(kernel, timeline, chip, waits, gap_seconds, instruction_seconds, transfers)
    named = [part for part in (*parts, *waits) if part.seconds > _SMALL * gap_seconds]
    named = sorted(named, key=lambda part: -part.seconds)[:_MOST_PARTS]
    if not named:
        return Cause("pipeline.other", "transfers are not hidden")
    text = "; ".join(f"{part.text}: {time_text(part.seconds)}" for part in named)
    if scale < 1 - _SMALL and any(part in waits for part in named):
        text += " (of the waits, what the rungs above do not hold already)"
    if special is not None and sum(part.seconds for part in waits) > 0.5 * gap_seconds:
        return Cause(f"pipeline.{special.key}", f"{special.text}; {text}")
    return Cause(f"pipeline.{named[0].key}", text)


def _bandwidth(
    timeline: Any, chip: Chip, left: float, schedule_seconds: float, transfers: Transfers
) -> list[_Part]:
    """What HBM's real bandwidth costs against the data sheet's, and a core that works alone."""
    cores = chip.cores_per_device
    moved = timeline.hbm_read_bytes + timeline.hbm_written_bytes
    shared = moved / cores / transfers.share_bytes_per_second
    # the simulator tells it apart where it can
    alone = min(left, timeline.stall_cycles.get(LONE_CORE, 0.0) / timeline.clock_hertz)
    if timeline.cores < cores and not alone:
        reached = moved / transfers.alone_bytes_per_second
        alone = min(left, max(0.0, reached - max(shared, schedule_seconds)))
    efficiency = min(left - alone, max(0.0, shared - schedule_seconds))
    of_device = transfers.alone_bytes_per_second / (transfers.share_bytes_per_second * cores)
    reach = transfers.share_bytes_per_second / transfers.sheet_bytes_per_second
    return [
        _Part(
            "one_core",
            f"one of {cores} cores works and draws {of_device:.0%} of what HBM gives",
            alone,
        ),
        _Part(
            "bandwidth",
            f"HBM streams reach less than the data sheet's bandwidth, {reach:.0%} of it",
            efficiency,
        ),
    ]


def _waits(timeline: Any, kernel: Any) -> list[_Part]:
    """Stalls that transfers cause, by operand, in seconds."""
    found: dict[str, _Part] = {}
    for name, cycles in timeline.stall_cycles.items():
        if not is_transfer_stall(name) or name.startswith(_TOLD_ELSEWHERE):
            continue
        key, text = _readable(name, kernel)
        before = found[text].seconds if text in found else 0.0
        found[text] = _Part(key, text, before + cycles / timeline.clock_hertz)
    return list(found.values())


def _special(
    kernel: Any,
    timeline: Any,
    chip: Chip,
    waits: list[_Part],
    gap_seconds: float,
    instruction_seconds: float,
    transfers: Transfers,
) -> _Part | None:
    """A reason why transfers can't be hidden, whichever operand is waited for."""
    calls = kernel.calls if kernel is not None else ()
    steps = sum(math.prod(call.grid) * call.times for call in calls) / timeline.cores
    if timeline.steps <= 1 and steps <= 1:
        return _Part("one_step", "one grid step: fetch, work and write-back follow one another", 0)
    if steps < 2 or any(not operand.is_pipelined for call in calls for operand in call.operands):
        return None
    moved = (timeline.hbm_read_bytes + timeline.hbm_written_bytes) / timeline.cores
    work = instruction_seconds / steps
    shares = timeline.cores == chip.cores_per_device
    reached = transfers.share_bytes_per_second if shares else transfers.alone_bytes_per_second
    transfer = moved / steps / reached
    latency = transfers.latency_seconds
    # of each step's transfer the instructions of one step can cover so much
    uncovered = min(latency, max(0.0, latency + transfer - work))
    during = sum(part.seconds for part in waits if part.key != "prologue")
    if min(uncovered * steps, during) <= 0.5 * gap_seconds:
        return None
    return _Part(
        "steps",
        f"{round(steps):,} grid steps have {time_text(work)} of instructions each, too short to "
        f"hide transfers of {time_text(transfer)} and their latency of {time_text(latency)}",
        0,
    )


def _readable(stall: str, kernel: Any) -> tuple[str, str]:
    """Key, and the simulator's name of a transfer stall with the operand's own name in it."""
    if stall == "prologue/epilogue":
        return "prologue", "first and last blocks, not covered by work"
    if not stall.startswith("waiting for DMA: "):
        return "by_hand", stall
    label = stall.removeprefix("waiting for DMA: ")
    kind, _, which = label.partition(" ")
    for call in kernel.calls if kind in ("input", "output") and kernel is not None else ():
        operand = _operand(call, which, kind == "input")
        if operand is not None:
            verb = "fetched" if kind == "input" else "written"
            key = f"wait_{kind}" if operand.is_pipelined else "by_hand"
            return key, f"waiting for {kind} {operand.name} to be {verb}"
    return "by_hand", f"waiting for {label}"


def _operand(call: Any, which: str, is_input: bool) -> Any:
    """The operand that a stall names, by its name or by number; None when it is of another call.

    Numbers are those of the program: scalar prefetch, inputs, outputs.
    """
    operands = call.operands
    if which.isdigit():
        position = int(which) - len(call.scalar_prefetch)
        found = operands[position : position + 1] if position >= 0 else ()
    else:
        found = [operand for operand in operands if operand.name == which]
    return next((operand for operand in found if operand.is_input == is_input), None)
