"""What collectives cost on a mesh or torus of chips: bandwidth and latency.

Formulas: each chip sends and receives over its links at once; an axis with wraparound moves data
both ways round the ring, one without is held up by its end, which has a single link. Derived here
for rings and lines and checked in the tests by counting bytes link by link; the ring forms are
those of "How To Scale Your Model", part 3, which drops the factor (n-1)/n (`textbook=True`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.hardware import Chip, Torus, get_chip
from tpulab.units import bytes_text, seconds_text


@dataclass(frozen=True)
class CollectiveCost:
    """Time of one collective.

    Attributes:
        total_bytes: of the whole (gathered, reduced or exchanged) array.
        bandwidth_seconds: busiest link's bytes over its bandwidth.
        latency_seconds: hops in sequence times the time of a hop.
        seconds: the larger of the two: steps overlap transfer with the next hop.
        limiting: ``"bandwidth"`` or ``"latency"``.
    """

    kind: str
    total_bytes: float
    axis_sizes: tuple[int, ...]
    wraparound: tuple[bool, ...]
    hops: int
    bandwidth_seconds: float
    latency_seconds: float

    @property
    def seconds(self) -> float:
        """The larger of bandwidth and latency time."""
        return max(self.bandwidth_seconds, self.latency_seconds)

    @property
    def limiting(self) -> str:
        """What sets the time."""
        return "bandwidth" if self.bandwidth_seconds >= self.latency_seconds else "latency"

    def to_json(self) -> dict[str, Any]:
        """All figures as plain values."""
        data = dataclasses.asdict(self)
        data["axis_sizes"] = list(self.axis_sizes)
        data["wraparound"] = list(self.wraparound)
        return {**data, "seconds": self.seconds, "limiting": self.limiting}


@dataclass(frozen=True)
class Links:
    """The links of the axes a collective runs over.

    Attributes:
        axis_sizes: chips along each axis.
        wraparound: which axes are rings.
        bytes_per_second: one way over one link.
        hop_seconds: latency of one hop.
    """

    axis_sizes: tuple[int, ...]
    wraparound: tuple[bool, ...]
    bytes_per_second: float
    hop_seconds: float = 1e-6

    def __post_init__(self) -> None:
        if not self.axis_sizes or any(size < 1 for size in self.axis_sizes):
            raise TpulabError(f"a collective needs positive axis sizes, not {self.axis_sizes}")
        if len(self.wraparound) != len(self.axis_sizes):
            raise TpulabError("every axis needs a wraparound flag")
        if self.bytes_per_second <= 0:
            raise TpulabError("link bandwidth must be positive")

    @classmethod
    def of(
        cls,
        chip: str | Chip,
        axis_sizes: int | Sequence[int],
        *,
        wraparound: bool | Sequence[bool] | None = None,
        bytes_per_second: float | None = None,
        hop_seconds: float | None = None,
    ) -> Links:
        """Links of a slice of this chip.

        Args:
            axis_sizes: chips along the axes the collective uses.
            wraparound: instead of what a slice of just these axes would have, for example True for
                one axis of 4 in a v5p cube of 4x4x4.
        """
        chip = get_chip(chip)
        sizes = (axis_sizes,) if isinstance(axis_sizes, int) else tuple(axis_sizes)
        if wraparound is None:
            rings = Torus.of_slice(chip, sizes).wraparound
        elif isinstance(wraparound, bool):
            rings = (wraparound,) * len(sizes)
        else:
            rings = tuple(wraparound)
        return cls(
            sizes,
            rings,
            bytes_per_second or chip.ici.link_bandwidth_bytes_per_second,
            chip.ici.hop_latency_seconds if hop_seconds is None else hop_seconds,
        )

    @property
    def chips(self) -> int:
        """Chips that take part."""
        return math.prod(self.axis_sizes)

    @property
    def receive_bytes_per_second(self) -> float:
        """What the worst-placed chip can take in over all axes at once."""
        # two chips share one link whether or not the axis is called a ring
        return self.bytes_per_second * sum(
            0 if size == 1 else 2 if ring and size > 2 else 1
            for size, ring in zip(self.axis_sizes, self.wraparound)
        )

    @property
    def diameter(self) -> int:
        """Hops between the chips that are furthest apart."""
        return Torus(self.axis_sizes, self.wraparound).diameter


def all_gather(total_bytes: float, links: Links, *, textbook: bool = False) -> CollectiveCost:
    """Every chip ends with the whole array of `total_bytes`, of which it held 1/chips.

    Bandwidth: (chips-1)/chips x bytes into the worst-placed chip; `textbook` leaves out the factor.
    """
    chips = links.chips
    share = 1.0 if textbook else (chips - 1) / chips
    rate = links.receive_bytes_per_second
    bandwidth = total_bytes * share / rate if chips > 1 else 0.0
    return _cost("all-gather", total_bytes, links, bandwidth, links.diameter)


def reduce_scatter(total_bytes: float, links: Links, *, textbook: bool = False) -> CollectiveCost:
    """Every chip ends with 1/chips of the sum of arrays of `total_bytes`: all-gather backwards."""
    cost = all_gather(total_bytes, links, textbook=textbook)
    return dataclasses.replace(cost, kind="reduce-scatter")


def all_reduce(total_bytes: float, links: Links, *, textbook: bool = False) -> CollectiveCost:
    """Every chip ends with the sum of arrays of `total_bytes`: reduce-scatter, then all-gather.

    On rings nothing is faster. On a row of three chips or more the two use opposite directions of
    the links near its ends and could overlap, down to `total_bytes` over one link: there this is
    the time of the usual schedule, and no bound.
    """
    cost = all_gather(total_bytes, links, textbook=textbook)
    return _cost("all-reduce", total_bytes, links, 2 * cost.bandwidth_seconds, 2 * links.diameter)


def all_to_all(total_bytes: float, links: Links) -> CollectiveCost:
    """Every chip sends a different 1/chips of its share to every chip; `total_bytes` over all.

    Every byte goes the short way along each axis. On a ring of n all links are equally busy; on a
    line the middle link carries what goes from one half to the other.
    """
    chips = links.chips
    bandwidth = 0.0
    for size, ring in zip(links.axis_sizes, links.wraparound):
        if size == 1:
            continue
        lines = chips // size
        if ring and size > 2:
            mean_distance = (size * size // 4) / size
            busiest = total_bytes * mean_distance / (2 * chips)
        else:
            busiest = total_bytes * (size // 2) * (size - size // 2) / size**2 / lines
        bandwidth = max(bandwidth, busiest / links.bytes_per_second)
    return _cost("all-to-all", total_bytes, links, bandwidth, links.diameter)


def permute(bytes_per_chip: float, links: Links, *, hops: int = 1) -> CollectiveCost:
    """Every chip sends its array `hops` chips on along one axis, all in the same direction."""
    if hops < 0:
        raise TpulabError(f"hops must not be negative, not {hops}")
    # a message that passes through shares every link with the messages of the chips behind it
    bandwidth = bytes_per_chip * hops / links.bytes_per_second
    return _cost("permute", bytes_per_chip, links, bandwidth, hops)


def transfer(total_bytes: float, links: Links, *, ports: int, hops: int) -> CollectiveCost:
    """One chip sends an array to one other over `ports` disjoint paths of `hops` links."""
    if ports < 1:
        raise TpulabError(f"a transfer needs at least one port, not {ports}")
    bandwidth = total_bytes / (ports * links.bytes_per_second)
    return _cost("transfer", total_bytes, links, bandwidth, hops)


#: The collectives by the names that people use.
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")


def collective(kind: str, total_bytes: float, links: Links) -> CollectiveCost:
    """The cost of one of :data:`KINDS` on `total_bytes` over all chips.

    Raises:
        UnknownNameError: there is no such collective.
        TpulabError: not a positive number of bytes.
    """
    functions = dict(zip(KINDS, (all_gather, reduce_scatter, all_reduce, all_to_all)))
    if kind not in functions:
        raise UnknownNameError("collective", str(kind), KINDS)
    if not 0 < total_bytes < math.inf:
        raise TpulabError(f"a collective needs a positive number of bytes, not {total_bytes}")
    return functions[kind](total_bytes, links)


def balanced_bytes(kind: str, links: Links) -> float:
    """Bytes at which latency and bandwidth take the same time; smaller arrays wait for hops.

    Infinite on a single chip, where nothing is sent.
    """
    one = collective(kind, 1.0, links)
    if not one.bandwidth_seconds:
        return math.inf
    return one.latency_seconds / one.bandwidth_seconds


def links_in_use(kind: str, links: Links) -> str:
    """A sentence on which links carry the collective, and which of them set its time."""
    axes = [
        (index, size, ring and size > 2)
        for index, (size, ring) in enumerate(zip(links.axis_sizes, links.wraparound))
        if size > 1
    ]
    if not axes:
        return "one chip: no link is used"
    rate = f"{links.bytes_per_second / 1e9:g} GB/s each way"
    named = " and ".join(
        ("a ring of " if ring else "a line of ") + f"{size}" for _, size, ring in axes
    )
    if kind == "all-to-all":
        busiest = max(
            axes, key=lambda axis: collective(kind, 1.0, _axis_of(links, axis[0])).bandwidth_seconds
        )
        where = (
            "all its links are equally busy"
            if busiest[2]
            else "the link in its middle carries what goes from one half to the other"
        )
        which = f" along the axis of {busiest[1]}" if len(axes) > 1 else ""
        return f"{named}, {rate}; the time is set{which}: {where}"
    ports = sum(2 if ring else 1 for _, _, ring in axes)
    lines = sum(not ring and size > 2 for _, size, ring in axes)
    place = ("every chip", "the chip at the end")[lines] if lines < 2 else "the chip in the corner"
    link = "link" if ports == 1 else "links at once"
    return f"{named}, {rate}; {place} takes everything in over {ports} {link}"


def _axis_of(links: Links, kept: int) -> Links:
    """Links that are only busy along one axis: the others have one chip, as many in all."""
    sizes = list(links.axis_sizes)
    others = math.prod(sizes) // sizes[kept]
    # bytes per line of chips along this axis: the other axes divide the array between them
    return dataclasses.replace(
        links,
        axis_sizes=(sizes[kept],),
        wraparound=(links.wraparound[kept],),
        bytes_per_second=links.bytes_per_second * others,
    )


def _cost(
    kind: str, total_bytes: float, links: Links, bandwidth: float, hops: int
) -> CollectiveCost:
    return CollectiveCost(
        kind,
        total_bytes,
        links.axis_sizes,
        links.wraparound,
        hops,
        bandwidth,
        hops * links.hop_seconds,
    )


def sharded_bytes(
    shape: Sequence[int],
    dtype: Any,
    mesh: dict[str, int],
    sharding: Sequence[str | Sequence[str] | None] = (),
) -> int:
    """Bytes per device of an array whose dimensions are split over mesh axes.

    Args:
        mesh: axis name -> size.
        sharding: for each dimension the axis or axes it is split over, or None; missing ones None.
            Axes that no dimension names hold copies.
    """
    from tpulab.hardware import bytes_of

    count = 1
    used: set[str] = set()
    for dimension, size in enumerate(shape):
        names = sharding[dimension] if dimension < len(sharding) else None
        axes = () if names is None else (names,) if isinstance(names, str) else tuple(names)
        for axis in axes:
            if axis not in mesh:
                raise TpulabError(f"the mesh has no axis {axis!r}", hint=f"it has {list(mesh)}")
            if axis in used:
                raise TpulabError(f"mesh axis {axis!r} is used for two dimensions")
            used.add(axis)
        count *= -(-size // math.prod(mesh[axis] for axis in axes))
    return bytes_of(count, dtype)


def render_collectives(costs: Sequence[CollectiveCost]) -> str:
    """Costs as a table, one a line."""
    header = ["collective", "axes", "bytes", "bandwidth", "latency", "time", "limited by"]
    rows = [header]
    for cost in costs:
        axes = " x ".join(
            f"{size}{' ring' if ring else ''}"
            for size, ring in zip(cost.axis_sizes, cost.wraparound)
        )
        rows.append(
            [
                cost.kind,
                axes,
                bytes_text(cost.total_bytes),
                seconds_text(cost.bandwidth_seconds),
                seconds_text(cost.latency_seconds),
                seconds_text(cost.seconds),
                cost.limiting,
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows
    )
