"""Sizes as people write them, and collectives asked for by name."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.roofline import (
    KINDS,
    Links,
    balanced_bytes,
    collective,
    links_in_use,
    parse_bytes,
    parse_size,
    parse_slice,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("32MiB", 2**25),
        ("32 MB", 32_000_000),
        ("4.5e6", 4_500_000),
        ("1.5 GiB", 3 * 2**29),
        ("1_000", 1000),
        ("bf16[2048,8192]", 2**25),
        ("int8[128, 128]", 2**14),
        ("int4[128,128]", 2**13),
        ("f32[]", 4),
    ],
)
def test_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "many", "1 MiBs", "nan", "inf", "bf16[0]", "q8[4]", "1e300", "0.2", "["]
)
def test_what_is_no_amount_of_bytes(text: str) -> None:
    with pytest.raises(TpulabError):
        parse_bytes(text)


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_sentence(text: str) -> None:
    for parse in (parse_bytes, parse_slice, parse_size):
        with contextlib.suppress(TpulabError):
            value = parse(text)
            assert min(value) >= 1 if isinstance(value, tuple) else value >= 1


@given(st.lists(st.integers(1, 99), min_size=1, max_size=3))
def test_slices(sizes: list[int]) -> None:
    assert parse_slice("x".join(map(str, sizes))) == tuple(sizes)
    assert parse_slice(" × ".join(map(str, sizes))) == tuple(sizes)


def test_sizes_say_their_name() -> None:
    assert parse_size("4,096") == 4096
    with pytest.raises(TpulabError, match=r"block_m is '12\.5'"):
        parse_size("12.5", "block_m")


shapes = st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=3).filter(
    lambda axes: max(size for size, _ in axes) > 1
)


@given(st.sampled_from(KINDS), shapes, st.floats(1e-7, 1e-5))
def test_hops_and_bytes_meet_at_the_balanced_size(
    kind: str, axes: list[tuple[int, bool]], hop: float
) -> None:
    links = Links(tuple(size for size, _ in axes), tuple(ring for _, ring in axes), 45e9, hop)
    turn = balanced_bytes(kind, links)
    at = collective(kind, turn, links)
    assert at.latency_seconds == pytest.approx(at.bandwidth_seconds)
    assert collective(kind, turn / 2, links).limiting == "latency"
    assert collective(kind, turn * 2, links).limiting == "bandwidth"
    assert links_in_use(kind, links)


def test_the_balanced_size_by_hand() -> None:
    # a ring of 4: 2 hops of 1 us; three quarters of the bytes over two links of 45 GB/s
    links = Links((4,), (True,), 45e9, 1e-6)
    assert balanced_bytes("all-gather", links) == pytest.approx(2e-6 * 2 * 45e9 / 0.75)
    assert balanced_bytes("all-gather", Links((1,), (False,), 45e9)) == math.inf


def test_which_links_carry_it() -> None:
    ring, line = Links((4,), (True,), 45e9), Links((4,), (False,), 45e9)
    assert "a ring of 4, 45 GB/s each way; every chip" in links_in_use("all-gather", ring)
    assert "the chip at the end takes everything in over 1 link" in links_in_use("all-gather", line)
    assert "in the corner" in links_in_use("all-reduce", Links((4, 4), (False, False), 45e9))
    assert "over 2 links" in links_in_use("all-gather", Links((2, 2), (True, True), 45e9))
    # 8 in a line against 4 in a ring: the line is the slower axis of an exchange
    mixed = links_in_use("all-to-all", Links((4, 8), (True, False), 45e9))
    assert "along the axis of 8: the link in its middle" in mixed
    assert "no link" in links_in_use("all-to-all", Links((1,), (False,), 45e9))


def test_unknown_collectives() -> None:
    links = Links((4,), (True,), 45e9)
    with pytest.raises(UnknownNameError, match="all-gather"):
        collective("all-gathre", 1.0, links)
    with pytest.raises(TpulabError, match="positive"):
        collective("all-gather", 0.0, links)
