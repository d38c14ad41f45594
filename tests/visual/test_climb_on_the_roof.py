"""The learner's versions under the roof: from figures, from ladders, chip by chip."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.visual.helpers import SVG, check_figure, matmul_call, texts
from tpulab.errors import UsageError
from tpulab.hardware import get_chip
from tpulab.visual import roofline
from tpulab.visual.roof import roofline_layers

CLIMB = [("128 blocks", 60.0, 12e12), ("256 blocks", 113.0, 50e12), ("512 blocks", 205.0, 102e12)]


def circles(root: ET.Element) -> list[tuple[float, float]]:
    return [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{SVG}circle")]


def joins(root: ET.Element) -> list[ET.Element]:
    return [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}line") is not None]


def test_versions_are_numbered_and_joined_in_their_order() -> None:
    figure = roofline(["v5e"], {"streaming": 1.0}, climb=CLIMB)
    root = check_figure(figure)
    at = circles(root)
    # farther right and higher with every version
    assert at == sorted(at, key=lambda place: (place[0], -place[1]))
    assert [place[1] for place in at] == sorted((place[1] for place in at), reverse=True)
    lines = [group.find(f"{SVG}line") for group in joins(root)]
    ends = [
        tuple(float(line.get(name, 0)) for name in ("x1", "y1", "x2", "y2"))
        for line in lines
        if line is not None
    ]
    assert ends == [(*at[0], *at[1]), (*at[1], *at[2])]
    assert {"1", "2", "3", "A"} <= set(texts(root))
    assert [row[3] for row in figure.rows] == ["0.42%", "6%", "25%", "52%"]
    assert (
        "3 versions climb from 6% of the peak of v5e (128 blocks) to 52% (512 blocks" in figure.alt
    )


def test_a_version_stands_below_its_roof_by_what_it_loses() -> None:
    root = check_figure(roofline(["v5e"], climb=[("half of it", 10_000.0, 98.5e12)]))
    ((_, y),) = circles(root)
    points = next(root.iter(f"{SVG}polyline")).get("points", "").split()
    roof = float(points[-1].split(",")[1])
    (decade,) = [
        float(a.get("y", 0)) - float(b.get("y", 0))
        for a in root.iter(f"{SVG}text")
        for b in root.iter(f"{SVG}text")
        if (a.text, b.text) == ("10", "100") and a.get("text-anchor") == "end"
        and b.get("text-anchor") == "end"
    ]  # fmt: skip
    # the axis is logarithmic: half of the peak is log10(2) of a decade below
    assert (y - roof) / decade == pytest.approx(0.30103, abs=0.002)


def test_every_chip_has_its_own_path() -> None:
    climb = [("one", 60.0, {"v5e": 12e12, "v6e": 13e12}), ("two", 205.0, {"v6e": 196e12})]
    figure = roofline(["v5e", "v6e"], climb=climb)
    root = check_figure(figure)
    assert len(circles(root)) == 3
    assert len(joins(root)) == 1
    assert [(row[0], row[5]) for row in figure.rows] == [
        ("one", "v5e"), ("one", "v6e"), ("two", "v6e"),
    ]  # fmt: skip
    assert "one reaches 6% of the peak of v5e" in figure.alt
    assert "none of the versions has a prediction for v5p" in roofline(["v5p"], climb=climb).alt


@dataclass(frozen=True)
class _ChipLadder:
    chip: str
    kernel: Any
    predicted_seconds: float | None
    hbm_bytes: int | None
    function: str = "matmul"
    rungs: tuple[()] = ()


@dataclass(frozen=True)
class _Ladder:
    chips: dict[str, _ChipLadder] = field(default_factory=dict)
    function: str = "matmul"


def test_ladders_know_where_they_stand() -> None:
    call = matmul_call(512, 128)
    chips = {
        "v5e": _ChipLadder("v5e", call, 1e-5, 5 * 2**20),
        "v6e": _ChipLadder("v6e", call, None, None),
    }
    figure = roofline(["v5e", "v6e"], climb={"first": _Ladder(chips)})
    (row,) = figure.rows
    flops = 2 * 512**3
    assert row[0] == "first"
    assert row[1] == f"{flops / (5 * 2**20):.0f}"
    assert row[3] == f"{flops / 1e-5 / get_chip('v5e').peak():.0%}"
    assert roofline(["v5e"], climb=[chips["v5e"]]).rows[0][:4] == ("matmul", *row[1:4])
    # a chip that refused the kernel lists it without a place
    assert "matmul: no prediction" in texts(
        ET.fromstring(roofline(["v6e"], climb=_Ladder(chips)).svg)
    )


def test_layers_hold_everything_that_belongs_to_a_version() -> None:
    root = check_figure(roofline_layers(["v5e"], {"streaming": 1.0}, CLIMB, "bfloat16"))
    named = [g for g in root.iter(f"{SVG}g") if g.get("data-layers")]
    # mark and entry in the list for each of four, and a line for every pair of versions
    assert len(named) == 2 * 4 + 3
    around = [g for g in named if g.get("data-without")]
    assert [(g.get("data-layers"), g.get("data-without")) for g in around] == [
        ("rung0 rung2", "rung1")
    ]
    assert around[0].get("style") == "display:none"


def test_signs_do_not_cover_each_other() -> None:
    crowd = {f"work {number}": 120.0 + number for number in range(12)}
    root = check_figure(roofline(["v5e"], crowd, climb=CLIMB))
    signs = [
        (float(t.get("x", 0)), float(t.get("y", 0)))
        for g in root.iter(f"{SVG}g")
        for t in g.findall(f"{SVG}text")
        if len(t.text or "") == 1 and float(t.get("x", 0)) < 700
    ]
    assert len(signs) == 15
    for place, (x, y) in enumerate(signs):
        for other_x, other_y in signs[place + 1 :]:
            assert abs(x - other_x) >= 8 or abs(y - other_y) >= 11


def test_what_is_not_a_version_is_said() -> None:
    with pytest.raises(UsageError, match="a version is"):
        roofline(["v5e"], climb=[42])
    with pytest.raises(UsageError, match="not a positive number"):
        roofline(["v5e"], climb=[("nothing", 0.0, 1e12)])
