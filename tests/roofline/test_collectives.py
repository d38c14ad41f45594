"""Collectives against traffic counted link by link."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpulab.errors import TpulabError
from tpulab.roofline import (
    Links,
    all_gather,
    all_reduce,
    all_to_all,
    permute,
    reduce_scatter,
    render_collectives,
    sharded_bytes,
    transfer,
)

BANDWIDTH = 2.0


def _links(sizes: tuple[int, ...], rings: tuple[bool, ...], hop: float = 0.0) -> Links:
    return Links(sizes, rings, BANDWIDTH, hop)


def _simulate_ring_all_gather(size: int, total: float) -> float:
    """Both directions: each step every chip passes on half of a shard to each neighbour."""
    half = total / size / 2
    clockwise = [{chip} for chip in range(size)]
    anticlockwise = [{chip} for chip in range(size)]
    newest = [[chip, chip] for chip in range(size)]
    seconds = 0.0
    while any(len(have) < size for have in clockwise):
        arriving = [
            [newest[(chip - 1) % size][0], newest[(chip + 1) % size][1]] for chip in range(size)
        ]
        for chip in range(size):
            clockwise[chip].add(arriving[chip][0])
            anticlockwise[chip].add(arriving[chip][1])
        newest = arriving
        seconds += half / BANDWIDTH
    return seconds


@given(st.integers(3, 12), st.floats(1.0, 1e9))
def test_ring_all_gather(size: int, total: float) -> None:
    cost = all_gather(total, _links((size,), (True,)))
    assert cost.bandwidth_seconds == pytest.approx(_simulate_ring_all_gather(size, total))


@given(st.integers(2, 12))
def test_line_all_gather_is_held_up_by_its_end(size: int) -> None:
    # all other chips' shards must enter the end chip over its only link
    cost = all_gather(1.0, _links((size,), (False,)))
    assert cost.bandwidth_seconds == pytest.approx((size - 1) / size / BANDWIDTH)
    if size > 2:
        ring = all_gather(1.0, _links((size,), (True,)))
        assert cost.bandwidth_seconds == pytest.approx(2 * ring.bandwidth_seconds)


def _count_all_to_all(sizes: tuple[int, ...], rings: tuple[bool, ...]) -> float:
    """Busiest link when every pair's message goes the short way, axis after axis.

    On a ring a message half way round is split over both directions.
    """
    load: Counter[tuple[object, ...]] = Counter()
    chips = list(itertools.product(*(range(size) for size in sizes)))
    message = 1.0 / len(chips) ** 2
    for start, end in itertools.product(chips, chips):
        here = list(start)
        for axis, (size, ring) in enumerate(zip(sizes, rings)):
            distance = end[axis] - here[axis]
            ways = [(distance, 1.0)]
            if ring and size > 2:
                forward = distance % size
                if 2 * forward == size:
                    ways = [(forward, 0.5), (forward - size, 0.5)]
                else:
                    ways = [(forward if 2 * forward < size else forward - size, 1.0)]
            for way, share in ways:
                step = 1 if way > 0 else -1
                for hop in range(abs(way)):
                    place = (here[axis] + hop * step) % size if ring else here[axis] + hop * step
                    key = (axis, step, *here[:axis], place, *here[axis + 1 :])
                    load[key] += message * share
            here[axis] = end[axis]
    return max(load.values(), default=0.0)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=2),
)
def test_all_to_all_counted_link_by_link(axes: list[tuple[int, bool]]) -> None:
    sizes = tuple(size for size, _ in axes)
    rings = tuple(ring for _, ring in axes)
    cost = all_to_all(1.0, _links(sizes, rings))
    assert cost.bandwidth_seconds == pytest.approx(_count_all_to_all(sizes, rings) / BANDWIDTH)


@given(
    st.lists(st.tuples(st.integers(1, 16), st.booleans()), min_size=1, max_size=3),
    st.floats(0, 1e12),
    st.floats(0, 1e-3),
)
def test_relations(axes: list[tuple[int, bool]], total: float, hop: float) -> None:
    sizes = tuple(size for size, _ in axes)
    rings = tuple(ring for _, ring in axes)
    links = _links(sizes, rings, hop)
    gather = all_gather(total, links)
    assert gather.seconds == max(gather.bandwidth_seconds, gather.latency_seconds)
    assert reduce_scatter(total, links).seconds == gather.seconds
    assert all_reduce(total, links).seconds == pytest.approx(2 * gather.seconds)
    assert all_gather(2 * total, links).bandwidth_seconds == pytest.approx(
        2 * gather.bandwidth_seconds
    )
    textbook = all_gather(total, links, textbook=True)
    assert textbook.bandwidth_seconds >= gather.bandwidth_seconds
    # wraparound never makes anything slower
    open_ended = _links(sizes, (False,) * len(sizes), hop)
    assert all_gather(total, open_ended).seconds >= gather.seconds
    assert all_to_all(total, open_ended).seconds >= all_to_all(total, links).seconds * (1 - 1e-12)
    assert gather.limiting in ("bandwidth", "latency")


def test_links_of_real_slices() -> None:
    assert Links.of("v5e", 4).wraparound == (False,)
    assert Links.of("v5e", 16).wraparound == (True,)
    assert Links.of("v5p", (4, 4, 4)).receive_bytes_per_second == pytest.approx(6 * 90e9)
    assert Links.of("v5p", 2, wraparound=True).receive_bytes_per_second == pytest.approx(90e9)
    assert Links.of("v5e", 4, hop_seconds=0).hop_seconds == 0


def test_measured_all_gather_on_ironwood() -> None:
    # 2x2x1 slice, f32[16384,8,128] per shard: 178.76 GB/s measured (accelerator-microbenchmarks)
    links = Links.of("7x", (2, 2))
    assert links.receive_bytes_per_second == pytest.approx(178.76e9, rel=0.01)


def test_permute_and_transfer() -> None:
    links = _links((8,), (True,), 1.0)
    assert permute(10.0, links).seconds == 5.0
    assert permute(10.0, links, hops=2).seconds == 10.0
    assert permute(0.0, links, hops=3).seconds == 3.0
    assert transfer(10.0, links, ports=2, hops=1).seconds == 2.5
    text = render_collectives([permute(10.0, links), all_gather(1e6, links)])
    assert "8 ring" in text
    large = render_collectives([all_gather(2**30, Links.of("v5e", (16, 16)))])
    # 2**30 · 255/256 bytes over 4 links of 45 GB/s
    assert "5.94 ms" in large
    assert "1 GiB" in large or "1020 MiB" in large
    assert "e+0" not in large
    assert all_gather(1e6, links).to_json()["limiting"] == "bandwidth"


def test_wrong_input() -> None:
    with pytest.raises(TpulabError, match="positive axis sizes"):
        Links((), (), 1.0)
    with pytest.raises(TpulabError, match="wraparound flag"):
        Links((2,), (), 1.0)
    with pytest.raises(TpulabError, match="bandwidth"):
        Links((2,), (True,), 0.0)
    with pytest.raises(TpulabError, match="port"):
        transfer(1.0, _links((2,), (True,)), ports=0, hops=1)
    with pytest.raises(TpulabError, match="hops"):
        permute(1.0, _links((2,), (True,)), hops=-1)
    with pytest.raises(TpulabError, match="no axis 'Q'"):
        sharded_bytes((8,), "int8", {"X": 2}, ("Q",))
    with pytest.raises(TpulabError, match="two dimensions"):
        sharded_bytes((8, 8), "int8", {"X": 2}, ("X", "X"))


@given(st.integers(1, 64), st.integers(1, 64))
def test_sharded_bytes(rows: int, columns: int) -> None:
    mesh = {"X": 2, "Y": 4}
    assert sharded_bytes((rows, columns), "bf16", mesh) == 2 * rows * columns
    both = sharded_bytes((rows, columns), "bf16", mesh, (("X", "Y"), None))
    assert both == 2 * -(-rows // 8) * columns
