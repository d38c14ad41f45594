"""What is in the way of a program, and what to try next, from its simulated run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpulab.exercises.model import Work

_SHORT_STEP_SECONDS = 1.0e-6
# blocks that stick out, or that a diagonal crosses, cost up to half as much again
_IDLE_WORK = 1.6
# idle products are the first thing to mend where they take this part of the time, or where the
# unit that is busiest is one of these
_SHOWS = 0.5
_ARITHMETIC = frozenset({"mxu", "vpu", "xlu", "eup"})
_MICROSECONDS = re.compile(r"(?<=\d )us\b")


def time_text(seconds: float) -> str:
    """A time with three figures and the unit that fits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def advice_for(
    figures: Mapping[str, Any],
    work: Work,
    steps: int,
    matmul_flops: int = 0,
    matmul_seconds: float = 0.0,
) -> tuple[str, str]:
    """(what is in the way, what to try) from the simulated run.

    Args:
        figures: of the simulated run.
        work: the least that the exercise demands.
        steps: grid steps of all kernels.
        matmul_flops: what the kernels do; 0 when it is not known.
        matmul_seconds: what that takes at peak.
    """
    idle = bool(work.matmul_flops) and matmul_flops > _IDLE_WORK * work.matmul_flops
    too_many = (
        f"the kernel does {matmul_flops / max(1, work.matmul_flops):.2g} times the matrix "
        "operations that the result needs",
        "leave out steps whose products count for nothing: put the work under pl.when",
    )
    # a kernel that waits for memory gains nothing from fewer products
    shows = matmul_seconds >= _SHOWS * figures["seconds"]
    if idle and (shows or figures["limiting_unit"] in _ARITHMETIC):
        return too_many
    rungs = figures["rungs"]
    losses = [
        (after["seconds"] - before["seconds"], after)
        for before, after in zip(rungs, rungs[1:])
        if after["advice"]
    ]
    if losses:
        _, worst = max(losses, key=lambda loss: loss[0])
        return f"{worst['name']}: {worst['cause']}", worst["advice"]
    if idle:
        return too_many
    seconds = figures["seconds"]
    if steps > 64 and seconds / steps < _SHORT_STEP_SECONDS:
        return (
            f"{steps:,} grid steps of {time_text(seconds / steps)} each: too short to hide what "
            "every step costs",
            "take larger blocks, so that a step does more and there are fewer of them",
        )
    traffic = figures["hbm_bytes"] / max(1, work.bytes)
    if traffic > 1.5 and "dma" in str(figures["limiting_unit"]):
        return (
            f"HBM carries {traffic:.1f} times the bytes that the result needs",
            "take larger blocks or another grid order, so that fewer blocks are fetched again",
        )
    stalls = figures["stall_seconds"]
    if stalls:
        cause = max(stalls, key=stalls.__getitem__)
        if stalls[cause] > 0.05 * seconds:
            return (
                f"{100 * stalls[cause] / seconds:.0f} % of the time goes to: {cause}",
                "look at `tpulab ladder` for this function: it says what each rung costs",
            )
    return (
        f"the busiest unit is {figures['limiting_unit']}",
        "look at `tpulab ladder` for this function: it says what each rung costs",
    )


def in_house_style(sentence: str) -> str:
    """As the rest of the verdict is written: µs, and a sentence goes on after "try"."""
    sentence = _MICROSECONDS.sub("µs", sentence)
    if sentence[:1].isupper() and sentence[1:2].islower():
        sentence = sentence[0].lower() + sentence[1:]
    return sentence
