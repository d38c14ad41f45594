"""The link model against counting by hand, its own bounds, and the formulas of collectives."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpulab.errors import TpulabError
from tpulab.hardware import get_chip
from tpulab.roofline import Links, collectives
from tpulab.roofline.links import collective_cost, forms_ring, least_sent_bytes, link_time

V5E = get_chip("v5e")
RATE = V5E.ici.link_bandwidth_bytes_per_second
HOP = V5E.ici.hop_latency_seconds
MIB = 2**20


@dataclass(frozen=True)
class Sent:
    round: int
    source: int
    target: int
    size_bytes: int


def one_way(devices: int, size: int) -> list[Sent]:
    """All-gather: everybody passes on to the right, devices − 1 times."""
    return [Sent(r, d, (d + 1) % devices, size) for r in range(1, devices) for d in range(devices)]


def two_way(devices: int, size: int) -> list[Sent]:
    """Both ways at once; where one shard remains for the last round, half of it each way."""
    sent = []
    for r in range(1, devices // 2 + 1):
        last = devices % 2 == 0 and r == devices // 2
        for d in range(devices):
            for step in (1, -1):
                sent.append(Sent(r, d, (d + step) % devices, size // 2 if last else size))
    return sent


def test_one_copy_to_a_neighbour() -> None:
    found = link_time([Sent(1, 0, 1, MIB)], "v5e", 8)
    assert found.bytes_per_link == {(0, 1): MIB}
    assert found.seconds == pytest.approx(MIB / RATE + HOP)
    assert found.busiest == (0, 1)
    assert len(found.unused_links) == 15


def test_two_rounds_add_up_and_two_directions_do_not() -> None:
    there = link_time([Sent(1, 0, 1, MIB), Sent(1, 1, 0, MIB)], "v5e", 2)
    assert there.seconds == pytest.approx(MIB / RATE + HOP)
    both = link_time([Sent(1, 0, 1, MIB), Sent(2, 1, 0, MIB)], "v5e", 2)
    assert both.seconds == pytest.approx(2 * (MIB / RATE + HOP))
    assert [one.number for one in both.rounds] == [1, 2]


def test_the_shorter_way_round_loads_every_link_on_it() -> None:
    found = link_time([Sent(1, 1, 6, 100)], "v5e", 8)
    assert found.bytes_per_link == {(0, 7): 100, (1, 0): 100, (7, 6): 100}
    assert found.rounds[0].hops == 3
    assert found.latency_seconds == pytest.approx(3 * HOP)


def test_as_long_both_ways_goes_half_each() -> None:
    found = link_time([Sent(1, 0, 2, 100)], "v5e", 4)
    assert found.bytes_per_link == {(0, 1): 50, (0, 3): 50, (1, 2): 50, (3, 2): 50}


def test_a_row_has_no_way_round() -> None:
    found = link_time([Sent(1, 2, 0, 100)], "v5e", 3)
    assert not found.ring
    assert found.bytes_per_link == {(1, 0): 100, (2, 1): 100}
    assert set(found.unused_links) == {(0, 1), (1, 2)}


@pytest.mark.parametrize(
    ("devices", "ring"), [(1, False), (2, False), (3, False), (4, True), (8, True), (16, True)]
)
def test_slices_whose_chips_form_a_ring(devices: int, ring: bool) -> None:
    assert forms_ring("v5e", devices) is ring
    # a third axis does not take a ring away
    assert forms_ring("v5p", devices) is ring


def test_jax_orders_a_slice_as_a_ring() -> None:
    """Neighbours in JAX's order of a tray are neighbours on its grid of 4×2 chips."""
    from jax._src import mesh_utils

    for order, width in (
        (mesh_utils._V5E_TRAY_RING_ORDER, 4),
        (mesh_utils._TRAY_2x2_RING_ORDER, 2),
        (mesh_utils._TRAY_4x4_RING_ORDER, 4),
    ):
        places = [divmod(number, width) for number in order]
        for (a, b), (c, d) in zip(places, [*places[1:], places[0]]):
            assert abs(a - c) + abs(b - d) == 1


@pytest.mark.parametrize("chip", ["v5e", "v6e"])
@pytest.mark.parametrize("devices", [4, 8])
def test_ideal_rings_take_what_the_formulas_say(chip: str, devices: int) -> None:
    size = 4 * MIB
    links = Links.of(chip, devices, wraparound=True)
    want = collectives.all_gather(devices * size, links)
    two = link_time(two_way(devices, size), chip, devices)
    assert two.bandwidth_seconds == pytest.approx(want.bandwidth_seconds)
    assert two.latency_seconds == pytest.approx(want.latency_seconds)
    assert two.unused_links == ()
    one = link_time(one_way(devices, size), chip, devices)
    assert one.bandwidth_seconds == pytest.approx(2 * want.bandwidth_seconds)
    assert len(one.unused_links) == devices
    # reduce-scatter is the same backwards; an all-reduce is both, one after the other
    reduce = collectives.all_reduce(devices * size, links)
    rounds = devices // 2
    again = [
        Sent(s.round + rounds, s.source, s.target, s.size_bytes) for s in two_way(devices, size)
    ]
    both = link_time([*two_way(devices, size), *again], chip, devices)
    assert both.bandwidth_seconds == pytest.approx(reduce.bandwidth_seconds)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_all_to_all_at_once_is_the_formula(devices: int) -> None:
    size = 64 * 1024
    sent = [Sent(1, a, b, size) for a in range(devices) for b in range(devices) if a != b]
    want = collective_cost("all-to-all", devices * devices * size, "v5e", devices)
    assert link_time(sent, "v5e", devices).bandwidth_seconds == pytest.approx(
        want.bandwidth_seconds
    )


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_shift_is_a_permute(devices: int) -> None:
    sent = [Sent(1, d, (d + 1) % devices, MIB) for d in range(devices)]
    want = collective_cost("permute", MIB, "v6e", devices)
    found = link_time(sent, "v6e", devices)
    assert found.bandwidth_seconds == pytest.approx(want.bandwidth_seconds)
    assert found.latency_seconds == pytest.approx(want.latency_seconds)


def test_bytes_that_have_to_be_sent() -> None:
    sent = sum(one.size_bytes for one in one_way(8, MIB)) / 8
    assert least_sent_bytes("all-gather", 8 * MIB, 8) == sent
    assert least_sent_bytes("all-reduce", 8 * MIB, 8) == 2 * sent
    assert least_sent_bytes("permute", MIB, 8) == MIB


@st.composite
def schedules(draw: st.DrawFn) -> tuple[int, list[Sent]]:
    devices = draw(st.integers(2, 9))
    device = st.integers(0, devices - 1)
    sent = draw(st.lists(st.builds(Sent, st.integers(1, 4), device, device, st.integers(1, 10**9))))
    return devices, sent


@settings(max_examples=80, deadline=None)
@given(schedules())
def test_never_below_what_a_link_needs_for_its_bytes(schedule: tuple[int, list[Sent]]) -> None:
    devices, sent = schedule
    found = link_time(sent, "v5e", devices)
    most = max(found.bytes_per_link.values(), default=0)
    assert found.seconds >= most / RATE * (1 - 1e-12)
    # every byte leaves its source over one of its at most two links
    leaving: Counter[int] = Counter()
    for one in sent:
        if one.source != one.target:
            leaving[one.source] += one.size_bytes
    assert found.seconds >= max(leaving.values(), default=0) / (2 * RATE) * (1 - 1e-12)


@settings(max_examples=80, deadline=None)
@given(schedules())
def test_bytes_on_links_are_bytes_times_hops(schedule: tuple[int, list[Sent]]) -> None:
    devices, sent = schedule
    found = link_time(sent, "v5e", devices)

    def hops(one: Sent) -> int:
        straight = abs(one.source - one.target)
        return min(straight, devices - straight) if found.ring else straight

    assert sum(found.bytes_per_link.values()) == pytest.approx(
        sum(one.size_bytes * hops(one) for one in sent)
    )
    furthest: dict[int, int] = defaultdict(int)
    for one in sent:
        furthest[one.round] = max(furthest[one.round], hops(one))
    assert found.latency_seconds == pytest.approx(HOP * sum(furthest.values()))


@settings(max_examples=40, deadline=None)
@given(schedules(), st.randoms(use_true_random=False))
def test_the_order_of_a_rounds_transfers_does_not_matter(schedule, random) -> None:
    devices, sent = schedule
    shuffled = list(sent)
    random.shuffle(shuffled)
    first, second = (link_time(each, "v5e", devices) for each in (sent, shuffled))
    assert first.seconds == pytest.approx(second.seconds)


def test_nothing_sent_takes_no_time() -> None:
    found = link_time([Sent(1, 2, 2, MIB)], "v5e", 4)
    assert found.seconds == 0.0
    assert found.busiest is None
    assert found.rounds == ()


def test_devices_that_there_are_none_of() -> None:
    with pytest.raises(TpulabError, match="device 4"):
        link_time([Sent(1, 0, 4, 1)], "v5e", 4)
    with pytest.raises(TpulabError, match="no collective"):
        collective_cost("gather-all", 1, "v5e", 4)
