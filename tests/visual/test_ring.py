"""A ring in motion: from made-up transfers for the edges, from a run on eight devices for real."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.visual.helpers import SVG, Sent, check_figure, gathered, texts, through_slots
from tpulab.errors import UsageError
from tpulab.kernel.observing import Deadlock
from tpulab.visual import ring_in_motion, step_through
from tpulab.visual.journeys import journeys, letter, place_text


def test_an_all_gather_is_followed_chunk_by_chunk() -> None:
    found = journeys(gathered(4))
    assert found.follows_chunks
    assert (found.devices, len(found.rounds), len(found.places)) == (4, 3, 4)
    assert [set(found.held(device, 0)) for device in range(4)] == [{0}, {1}, {2}, {3}]
    # device 0 gets what device 3 has: its own first, then what it was given
    assert found.held(0, 3) == {0: 0, 3: 1, 2: 2, 1: 3}
    figure = ring_in_motion(gathered(4))
    check_figure(figure)
    assert "768 KiB in 12 copies and 3 rounds, each to the next device" in figure.alt
    assert "in the end every device holds all 4 chunks" in figure.alt
    assert figure.header == ("round", "from", "to", "bytes", "chunk", "at")
    assert figure.rows[0] == ("1", "device 0", "device 1", "65,536", "A", "[:128, :512]")
    assert len(figure.rows) == 12


def test_buffers_that_are_used_in_turn_are_not_taken_for_chunks() -> None:
    found = journeys(through_slots(4))
    assert not found.follows_chunks
    assert found.held(2, 0) == {}
    assert found.held(2, 3) == {0: 2, 1: 3}
    figure = ring_in_motion(through_slots(4))
    assert figure.header[4] == "into"
    assert "holds" not in figure.alt
    assert "written in this round" in texts(check_figure(figure))


def test_a_chunk_that_is_sent_before_it_arrives_is_not_a_chunk() -> None:
    place = ((0, 8),)
    assert journeys([Sent(1, 0, 1, 4, place), Sent(2, 1, 2, 4, place)]).follows_chunks
    assert not journeys([Sent(1, 0, 1, 4, place), Sent(1, 2, 3, 4, place)]).follows_chunks
    assert not journeys([Sent(1, 0, 1, 4, place), Sent(1, 1, 2, 4, place)]).follows_chunks
    assert not journeys([Sent(1, 0, 1, 4, place), Sent(2, 0, 1, 4, place)]).follows_chunks
    assert not journeys([Sent(1, 0, 1, 4, None)]).follows_chunks


@pytest.mark.parametrize("devices", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("pattern", [gathered, through_slots])
def test_rings_of_every_size_are_drawn_whole_and_round_by_round(devices, pattern) -> None:
    transfers = pattern(devices)
    root = check_figure(ring_in_motion(transfers))
    shown = texts(root)
    assert {f"device {number}" for number in range(devices)} <= set(shown)
    for step in (0, 1, devices - 1):
        figure = ring_in_motion(transfers, step=step)
        root = check_figure(figure) if step else None
        heads = [] if root is None else list(root.iter(f"{SVG}polygon"))
        assert len(heads) == (devices if step else 0)
        assert len(figure.rows) == devices


def test_an_arrow_for_every_copy_and_a_gap_for_what_is_left_out() -> None:
    root = check_figure(ring_in_motion(gathered(8)))
    assert len(list(root.iter(f"{SVG}polygon"))) == 56
    root = check_figure(ring_in_motion(gathered(16)))
    assert "… rounds 2 to 14 are not shown" in texts(root)
    assert len(list(root.iter(f"{SVG}polygon"))) == 2 * 16
    rows = ring_in_motion(gathered(16)).rows
    assert rows[-1][0] == "and 176 transfers more"


def test_a_round_in_words_says_once_what_all_do() -> None:
    alt = ring_in_motion(gathered(4), step=2).alt
    expected = "Round 2 of 3: every device sends 64 KiB to the next one "
    assert alt == expected + "(0 sends D, 1 sends A, 2 sends B, 3 sends C)."
    one = ring_in_motion([Sent(1, 2, 0, 512, None)], step=1)
    assert one.alt == "Round 1 of 1: device 2 sends 512 B to device 0, into A."
    start = ring_in_motion(gathered(2), step=0)
    assert start.alt == "Before the first round device 0 holds A, device 1 holds B."


def test_a_report_knows_its_devices() -> None:
    class Report:
        transfers = (Sent(1, 0, 1, 512, None),)
        devices = 4

    assert "device 3" in texts(check_figure(ring_in_motion(Report())))


def test_rounds_are_timed_on_a_chips_links() -> None:
    # 64 KiB over a v5e link of 45 GB/s take 1.456 µs, and a hop takes 1 µs
    figure = ring_in_motion(gathered(4), chip="v5e")
    assert texts(check_figure(figure)).count("2.46 µs") == 3
    assert figure.alt.endswith("; the links of v5e need 7.37 µs.")
    alt = ring_in_motion(gathered(4), step=3, chip="v5e").alt
    assert alt.endswith("). The links of v5e need 2.46 µs.")
    assert step_through(gathered(4), chip="v5e").frames[3]["text"] == alt


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(UsageError, match="no device sent anything"):
        ring_in_motion([])
    with pytest.raises(UsageError, match="there is no round 9"):
        ring_in_motion(gathered(4), step=9)
    with pytest.raises(UsageError, match="there are 2 devices"):
        ring_in_motion(gathered(4), devices=2)
    with pytest.raises(UsageError, match="too many for a picture"):
        ring_in_motion(gathered(17))


def test_names_of_places() -> None:
    assert [letter(number) for number in (0, 25, 26, 27, 701, 702)] == [
        "A", "Z", "AA", "AB", "ZZ", "AAA",
    ]  # fmt: skip
    assert place_text(((3, 1), (0, 8))) == "[3:4, :8]"
    assert place_text(None) == "the whole buffer"


def test_a_real_ring_on_four_devices() -> None:
    """In a process of its own, because JAX fixes the number of devices when it starts."""
    import subprocess
    import sys

    code = """if True:
        import jax.numpy as jnp
        from tests.kernel.ring_kernels import all_gather, all_gather_both_ways
        from tpulab import on_devices, run, start_host_devices
        from tpulab.visual import ring_in_motion, step_through

        start_host_devices(4)
        shards = jnp.arange(4 * 8 * 128, dtype=jnp.float32).reshape(4, 8, 128)
        _, report = run(on_devices(all_gather, 4), shards, mode="faithful")
        print(ring_in_motion(report).text)
        print(step_through(report).frames[2]["text"])
        _, report = run(on_devices(all_gather_both_ways, 4), shards, mode="faithful")
        print(ring_in_motion(report).alt)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "48 KiB in 12 copies and 3 rounds, each to the next device" in done.stdout
    assert done.stdout.count("in the end every device holds all 4 chunks") == 2
    assert "every device sends 4 KiB to the next one (0 sends D, 1 sends A" in done.stdout
    assert "12 copies and 2 rounds, to both neighbours" in done.stdout


@dataclass(frozen=True)
class _Stuck:
    """A report of a run that came to a standstill."""

    transfers: tuple
    deadlock: Deadlock
    devices: int = 4
    hint: str = "every wait needs a copy"


def test_a_kernel_that_hangs_is_said_to_hang() -> None:
    deadlock = Deadlock((0, 1), "device 0 waits for a signal that never comes", "lab.py:7")
    figure = ring_in_motion(_Stuck(tuple(gathered(4)), deadlock))
    root = check_figure(figure)
    assert figure.title.endswith("then the kernel hangs")
    assert "Then the kernel hangs: device 0 waits for a signal that never comes." in figure.alt
    assert "the kernel hangs here: it waits for what never comes" in texts(root)
    assert "hangs" not in ring_in_motion(_Stuck(tuple(gathered(4)), deadlock), step=1).alt
    assert "hangs" in ring_in_motion(_Stuck(tuple(gathered(4)), deadlock), step=3).alt
    assert "the kernel hangs: device 0" in step_through(_Stuck(tuple(gathered(4)), deadlock)).note
    with pytest.raises(UsageError, match="hangs before anything is sent: device 0") as caught:
        ring_in_motion(_Stuck((), deadlock))
    assert caught.value.where == "lab.py:7"
    assert "hangs" not in ring_in_motion(gathered(4)).alt
