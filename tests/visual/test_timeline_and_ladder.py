"""Timelines and ladders drawn: from made-up data for the edges, from a compiled kernel for real."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from tests.visual.helpers import SVG, made_up
from tpulab.errors import UsageError
from tpulab.simulator.timeline import Event
from tpulab.visual import ladder_waterfall, pipeline_timeline


def bars(svg: str) -> list[ET.Element]:
    return [r for r in ET.fromstring(svg).iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]


def test_a_short_run_is_shown_whole() -> None:
    figure = pipeline_timeline(made_up(3))
    assert len(bars(figure.svg)) == 6
    assert "Shown are" not in figure.alt
    assert "busiest are the copies in with 83% of it" in figure.alt
    assert "waits longest for DMA: input 0, 50%" in figure.alt


def test_a_long_run_is_cut_and_says_so() -> None:
    figure = pipeline_timeline(made_up(5000), first_steps=4)
    assert "Shown are the first 460 ns" in figure.alt
    assert len(bars(figure.svg)) < 12
    assert len(figure.to_html()) < 20_000


def test_bars_of_one_block_share_their_look() -> None:
    svg = pipeline_timeline(made_up(2)).svg
    fills = {bar.find(f"{SVG}title").text.split(":")[0]: set() for bar in bars(svg)}  # type: ignore[union-attr]
    for bar in bars(svg):
        fills[bar.find(f"{SVG}title").text.split(":")[0]].add(bar.get("fill"))  # type: ignore[union-attr]
    assert {step: len(looks) for step, looks in fills.items()} == {
        "grid step 1": 1,
        "grid step 2": 1,
    }
    assert fills["grid step 1"] != fills["grid step 2"]


def test_thousands_of_events_stay_small() -> None:
    events = tuple(Event("load", "vld", i, i + 0.4, i // 1000 + 2) for i in range(20_000))
    figure = pipeline_timeline(made_up(200, events), first_steps=100)
    assert len(figure.to_html()) < 300_000


def test_nothing_to_draw_is_a_sentence() -> None:
    with pytest.raises(UsageError, match="no events"):
        pipeline_timeline(made_up(3, ()))
    with pytest.raises(UsageError, match="no timeline"):
        pipeline_timeline(object())


@dataclass
class _Rung:
    name: str
    seconds: float
    cause: str
    advice: str = ""


@dataclass
class _Ladder:
    rungs: tuple[_Rung, ...]
    chip: str = "v5e"
    refusal: Any = None


def test_waterfall_shows_every_loss_where_it_belongs() -> None:
    rungs = (
        _Rung("speed of light", 1e-3, "197 TFLOP/s"),
        _Rung("traffic", 1.5e-3, "blocks are read again"),
        _Rung("tile padding", 1.5e-3, "none"),
        _Rung("schedule", 3e-3, "matrix results are waited for", "Use larger blocks."),
        _Rung("pipeline", 4e-3, "copies are waited for"),
    )
    figure = ladder_waterfall(_Ladder(rungs))
    shown = bars(figure.svg)
    widths = [float(bar.get("width", 0)) for bar in shown]
    assert widths == [100.0, 50.0, 1.5, 150.0, 100.0]
    starts = [float(bar.get("x", 0)) for bar in shown]
    assert starts[1:] == [starts[0] + 100, starts[0] + 150, starts[0] + 150, starts[0] + 300]
    assert "largest loss is 1.50 ms at “schedule”" in figure.alt
    assert "To try: use larger blocks." in figure.alt
    assert [row[2] for row in figure.rows] == ["100%", "67%", "67%", "33%", "25%"]
    best = _Rung("speed of light", 1e-3, "HBM sets it")
    streams = _Rung("pipeline", 2e-3, "HBM is busy", "HBM streams at what it reaches.")
    assert "To try: HBM streams" in ladder_waterfall(_Ladder((best, streams))).alt


def test_a_long_cause_is_shown_whole_and_pushes_the_rows_below_down() -> None:
    words = [f"word{number}" for number in range(40)]
    long = _Rung("traffic", 2e-3, " ".join(words))
    rungs = (_Rung("speed of light", 1e-3, "short"), long, _Rung("pipeline", 3e-3, "last cause"))
    texts = ET.fromstring(ladder_waterfall(_Ladder(rungs)).svg).iter(f"{SVG}text")
    shown = {text.text or "": float(text.get("y", 0)) for text in texts}
    lines = [text for text in shown if text.startswith("word")]
    assert " ".join(lines).split() == words
    assert not [text for text in shown if "…" in text]
    assert max(shown[line] for line in lines) < shown["pipeline"] < shown["last cause"]


def test_symptoms_alone_tell_neither_cause_nor_advice() -> None:
    cause = "matrix results are waited for"
    rungs = (_Rung("speed of light", 1e-3, "peak"), _Rung("schedule", 2e-3, cause, "Grow blocks."))
    shown = ladder_waterfall(_Ladder(rungs), diagnose=False).to_html()
    assert "2.00 ms" in shown
    for giveaway in (cause, "peak", "row blocks", "largest loss"):
        assert giveaway not in shown


def test_a_refused_kernel_has_no_waterfall() -> None:
    with pytest.raises(UsageError, match="no ladder to draw") as raised:
        ladder_waterfall(_Ladder((), refusal="out of VMEM"))
    assert "out of VMEM" in str(raised.value)


@pytest.mark.needs_libtpu
def test_a_real_kernel_from_its_ladder() -> None:
    import tpulab

    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + 1

    def add_one(x: jax.Array) -> jax.Array:
        block = pl.BlockSpec((256, 512), lambda i: (i, 0))
        return pl.pallas_call(
            kernel,
            grid=(8,),
            in_specs=[block],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        )(x)

    climbed = tpulab.ladder(add_one, jax.ShapeDtypeStruct((2048, 512), jnp.float32), chip="v5e")
    waterfall = ladder_waterfall(climbed)
    assert [row[0] for row in waterfall.rows][0] == "speed of light"
    timeline = pipeline_timeline(climbed)
    rows = {row[0]: row for row in timeline.rows}
    assert rows["read from HBM"][1] == "4 MiB"
    assert rows["written to HBM"][1] == "4 MiB"
