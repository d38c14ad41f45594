"""How fast a kernel on several devices is: its transfers on a model of the links.

Many chips are not simulated yet. What decides a collective, though, is which bytes pass over which
link and what waits for what, and that is known exactly from a run of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpulab.exercises.model import Work
from tpulab.grading.advice import time_text

#: Said beside every figure that comes from here.
JUDGED_BY = (
    "by the link model: bytes on each link, round by round, and hops; memory, copies on a device "
    "and arithmetic are not counted until many chips can be simulated"
)
# a kernel that sends less than this part of what must be sent lets something else do the rest
_LEAST_SENT = 0.97


@dataclass(frozen=True)
class Sent:
    """One transfer, as it came from the process that ran the kernel."""

    round: int
    source: int
    target: int
    size_bytes: int


def transfers_from(answer: Mapping[str, Any], devices: int) -> tuple[Sent, ...]:
    """Transfers from an answer; strange ones raise what the judge expects of strange answers.

    Raises:
        LookupError, TypeError, ValueError: it holds none, or one that cannot be: in no round, of
            less than nothing, or of a device that is none of the ``devices``.
    """
    found = []
    for item in answer["transfers"]:
        at, source, target, size = (int(value) for value in item)
        if at < 1 or size < 0:
            raise ValueError(f"a transfer of {size} bytes in round {at}")
        if not (0 <= source < devices and 0 <= target < devices):
            raise ValueError(f"a transfer from device {source} to {target} of {devices}")
        found.append(Sent(at, source, target, size))
    return tuple(found)


def bound_seconds(work: Work, chip: str, devices: int) -> float:
    """The least time of the collective on a slice of the chip, over both ways of every link."""
    from tpulab.roofline.links import collective_cost

    return collective_cost(work.collective, work.link_bytes, chip, devices).seconds


def sends_too_little(transfers: Sequence[Sent], work: Work, devices: int) -> str:
    """Why the transfers cannot be all of the collective, empty when they can."""
    from tpulab.roofline.links import least_sent_bytes

    least = devices * least_sent_bytes(work.collective, work.link_bytes, devices)
    # what a device sends to itself crosses no link
    sent = sum(one.size_bytes for one in transfers if one.source != one.target)
    if sent >= _LEAST_SENT * least:
        return ""
    return (
        f"the kernel's copies between devices carry {sent:,} bytes, and the {work.collective} "
        f"takes {int(least):,}"
    )


def link_figures(transfers: Sequence[Sent], work: Work, chip: str, devices: int) -> dict[str, Any]:
    """Figures as the simulator's, from the link model."""
    from tpulab.roofline.links import link_time

    found = link_time(transfers, chip, devices)
    bound = bound_seconds(work, chip, devices)
    losses = _losses(found, work, bound)
    cause = "; ".join(f"{time_text(seconds)}: {why}" for seconds, why, _ in losses)
    return {
        "seconds": found.seconds,
        "hbm_bytes": 0,
        "limiting_unit": f"links ({found.limiting})",
        "stall_seconds": {},
        "rounds": len(found.rounds),
        "rungs": [
            {"name": "speed of light", "seconds": bound, "cause": "", "advice": ""},
            {
                "name": "links",
                "seconds": found.seconds,
                "cause": cause,
                "advice": losses[0][2] if losses else "",
            },
        ],
    }


def _losses(found: Any, work: Work, bound: float) -> list[tuple[float, str, str]]:
    """(seconds, cause, advice) of what lies above the bound, the largest first."""
    from tpulab.hardware import get_chip
    from tpulab.roofline.links import collective_cost, least_sent_bytes

    devices, count = found.devices, len(found.rounds)
    rate = get_chip(found.chip).ici.link_bandwidth_bytes_per_second
    least = collective_cost(work.collective, work.link_bytes, found.chip, devices)
    losses = []
    # what every link, each way, would carry if all of them carried the same
    ways = (2 * devices if found.ring else 2 * (devices - 1)) or 1
    carried = sum(found.bytes_per_link.values())
    even = carried / ways / rate
    busiest = max(found.bytes_per_link.values(), default=0.0) / rate
    if found.unused_links and work.collective != "permute":
        losses.append(
            (
                busiest - even,
                f"{len(found.unused_links)} of {ways} ways of the links carry nothing: "
                "the data goes round in one direction",
                "send half of the data to the left and half to the right, at the same time",
            )
        )
    elif busiest > 1.01 * even:
        losses.append(
            (
                busiest - even,
                f"the link {found.busiest[0]} → {found.busiest[1]} carries "
                f"{busiest / even:.2f} times the average",
                "spread the bytes evenly over both directions of every link",
            )
        )
    uneven = found.bandwidth_seconds - busiest
    if uneven > 0.01 * found.seconds:
        losses.append(
            (
                uneven,
                "links are idle in some of the rounds while others are at work",
                "let every device send in every round, both ways, the same number of bytes; the "
                "last shard can be split",
            )
        )
    needed = devices * least_sent_bytes(work.collective, work.link_bytes, devices)
    if work.collective != "all-to-all" and carried > 1.01 * needed:
        losses.append(
            (
                even * (1 - needed / carried),
                f"the links carry {carried / needed:.2f} times the bytes that are needed",
                "send each chunk once, to a neighbour, and let the neighbour pass it on",
            )
        )
    waiting = found.latency_seconds - (bound - least.bandwidth_seconds)
    if waiting > 0.01 * found.seconds:
        hops = sum(one.hops for one in found.rounds)
        losses.append(
            (
                waiting,
                f"{count} round{'s' if count != 1 else ''} one after the other pay for {hops} "
                f"hop{'s' if hops != 1 else ''}",
                "fewer rounds of larger chunks, or start the next chunk before the last has "
                "arrived, so that hops overlap",
            )
        )
    return sorted(losses, key=lambda loss: -loss[0])
