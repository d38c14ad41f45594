"""How long the links between chips take for what devices send each other, round by round.

The model: transfers of one round share the links and start together; the next round begins when the
last of them has arrived. A round takes as long as its busiest link needs for the bytes on it, plus
the time of the hops that a message makes. Memory, copies on a chip and arithmetic are not counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.hardware import Chip, get_chip
from tpulab.roofline import collectives
from tpulab.roofline.collectives import CollectiveCost, Links

#: One way over the link from a device to its neighbour.
Link = tuple[int, int]


class Transfer(Protocol):
    """What is read of a transfer; :class:`tpulab.kernel.Transfer` is one."""

    @property
    def round(self) -> int:
        """From 1; a later round waits for the earlier ones."""

    @property
    def source(self) -> int:
        """The device that sends."""

    @property
    def target(self) -> int:
        """The device that it arrives at."""

    @property
    def size_bytes(self) -> int:
        """What is sent."""


@dataclass(frozen=True)
class Round:
    """The transfers that are under way together.

    Attributes:
        number: from 1. transfers: how many. hops: of the message that goes furthest.
        bytes_per_link: on each link, each way on its own.
        busiest: the link with the most bytes.
        bandwidth_seconds: of its bytes. latency_seconds: of the hops.
    """

    number: int
    transfers: int
    hops: int
    bytes_per_link: dict[Link, float]
    busiest: Link
    bandwidth_seconds: float
    latency_seconds: float

    @property
    def seconds(self) -> float:
        """Both together."""
        return self.bandwidth_seconds + self.latency_seconds


@dataclass(frozen=True)
class LinkTime:
    """Time that the links take.

    Attributes:
        chip: name of the chip. devices: how many. ring: whether the ends of the row are joined.
        rounds: in order.
        bytes_per_link: {(from, to): bytes} over all rounds; links that carry nothing are left out.
        busiest: the link with the most bytes over all, None when nothing is sent.
        bandwidth_seconds, latency_seconds: their sums over the rounds.
    """

    chip: str
    devices: int
    ring: bool
    rounds: tuple[Round, ...]
    bytes_per_link: dict[Link, float]
    busiest: Link | None
    bandwidth_seconds: float
    latency_seconds: float

    @property
    def seconds(self) -> float:
        """Bandwidth and latency of all rounds."""
        return self.bandwidth_seconds + self.latency_seconds

    @property
    def limiting(self) -> str:
        """Whichever takes more: "bandwidth" or "latency"."""
        return "bandwidth" if self.bandwidth_seconds >= self.latency_seconds else "latency"

    @property
    def unused_links(self) -> tuple[Link, ...]:
        """Links, each way on its own, that carry nothing in any round."""
        count = self.devices
        every = [(i, i + 1) for i in range(count - 1)] + [(i + 1, i) for i in range(count - 1)]
        if self.ring:
            every += [(count - 1, 0), (0, count - 1)]
        return tuple(link for link in every if link not in self.bytes_per_link)


def forms_ring(chip: str | Chip, devices: int) -> bool:
    """Whether a slice of this many chips holds a ring of links through all of them.

    A slice of 2×2, 2×4 or 4×4 chips can be walked along links from chip to chip and back to the
    first, and JAX orders the devices of a one-dimensional mesh so (``jax._src.mesh_utils``, the
    tray ring orders). So it is with any even number of at least four chips where a chip has links
    along two axes. Three chips, or other odd numbers, stand in a row unless their axis wraps.
    """
    ici = get_chip(chip).ici
    if devices <= 2:
        return False
    return (devices % 2 == 0 and ici.mesh_rank >= 2) or ici.wraps(devices, 0)


def link_time(
    transfers: Iterable[Transfer], chip: str | Chip, devices: int, *, ring: bool | None = None
) -> LinkTime:
    """What the links of a slice take for these transfers.

    A transfer between devices that are no neighbours passes over every link on the shorter way, and
    half of it each way when both are as long. ``RunReport.transfers`` of a faithful run, or any
    objects with ``round``, ``source``, ``target`` and ``size_bytes``.

    Args:
        transfers: from anywhere to anywhere; those from a device to itself use no link.
        chip: name or :class:`tpulab.hardware.Chip`; its link bandwidth, one way, and the latency
            of a hop.
        devices: on one mesh axis, neighbours in their order.
        ring: whether the last device is a neighbour of the first; by default as
            :func:`forms_ring` says.

    Raises:
        TpulabError: a device is none of the ``devices``, or the chip has no links.
    """
    described = get_chip(chip)
    bandwidth = described.ici.link_bandwidth_bytes_per_second
    if not bandwidth:
        raise TpulabError(f"the bandwidth of {described.name}'s links is not known")
    if devices < 1:
        raise TpulabError(f"the number of devices is positive, not {devices}")
    closed = forms_ring(described, devices) if ring is None else ring and devices > 2
    by_round: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in transfers:
        for device in (transfer.source, transfer.target):
            if not 0 <= device < devices:
                raise TpulabError(
                    f"a transfer names device {device}, and the devices are 0 to {devices - 1}"
                )
        if transfer.source != transfer.target:
            by_round[transfer.round].append(transfer)
    rounds = tuple(
        _round(number, by_round[number], devices, closed, bandwidth, described)
        for number in sorted(by_round)
    )
    total: Counter[Link] = Counter()
    for one in rounds:
        for link, size in one.bytes_per_link.items():
            total[link] += size  # type: ignore[assignment]
    return LinkTime(
        described.name,
        devices,
        closed,
        rounds,
        dict(sorted(total.items())),
        max(sorted(total), key=total.__getitem__, default=None),
        sum(one.bandwidth_seconds for one in rounds),
        sum(one.latency_seconds for one in rounds),
    )


def _round(
    number: int,
    transfers: list[Transfer],
    devices: int,
    ring: bool,
    bandwidth: float,
    chip: Chip,
) -> Round:
    load: dict[Link, float] = defaultdict(float)
    furthest = 0
    for transfer in transfers:
        for share, links in _routes(transfer.source, transfer.target, devices, ring):
            furthest = max(furthest, len(links))
            for link in links:
                load[link] += share * transfer.size_bytes
    busiest = max(sorted(load), key=load.__getitem__)
    return Round(
        number,
        len(transfers),
        furthest,
        dict(sorted(load.items())),
        busiest,
        load[busiest] / bandwidth,
        furthest * chip.ici.hop_latency_seconds,
    )


def _routes(
    source: int, target: int, devices: int, ring: bool
) -> Iterator[tuple[float, list[Link]]]:
    """(share of the bytes, links) of each way that a transfer takes."""
    if not ring:
        step = 1 if target > source else -1
        yield 1.0, [(at, at + step) for at in range(source, target, step)]
        return
    up = (target - source) % devices
    ways = {1: up, -1: devices - up}
    least = min(ways.values())
    chosen = [step for step, hops in ways.items() if hops == least]
    for step in chosen:
        nodes = [(source + step * hop) % devices for hop in range(least + 1)]
        yield 1 / len(chosen), list(zip(nodes, nodes[1:]))


#: Those of ``collectives.KINDS``, and "permute": everybody sends to one neighbour.
KINDS = (*collectives.KINDS, "permute")


def collective_cost(kind: str, size_bytes: float, chip: str | Chip, devices: int) -> CollectiveCost:
    """The least time of a collective over one mesh axis of a slice of ``devices`` chips.

    Args:
        kind: one of :data:`KINDS`.
        size_bytes: of the whole gathered, reduced or exchanged array; of what one device sends for
            "permute".

    Raises:
        UnknownNameError: there is no such collective.
    """
    if kind not in KINDS:
        raise UnknownNameError("collective", kind, KINDS)
    links = Links.of(chip, devices, wraparound=forms_ring(chip, devices))
    if kind == "permute":
        return collectives.permute(size_bytes, links)
    return collectives.collective(kind, size_bytes, links)


def least_sent_bytes(kind: str, size_bytes: float, devices: int) -> float:
    """Bytes that each device sends, on the average, when none are sent in vain.

    Over neighbours for all but "all-to-all", which counts what leaves its first device only.
    """
    share = (devices - 1) / devices
    return {
        "all-gather": size_bytes * share,
        "reduce-scatter": size_bytes * share,
        "all-reduce": 2 * size_bytes * share,
        "all-to-all": size_bytes * share / devices,
        "permute": size_bytes,
    }[kind]
