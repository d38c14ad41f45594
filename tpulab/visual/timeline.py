"""The pipeline over time: what each unit does while blocks arrive and leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpulab.errors import UsageError
from tpulab.simulator.timeline import Event, Timeline
from tpulab.units import bytes_text, seconds_text
from tpulab.visual.figure import Figure
from tpulab.visual.svg import ORANGE, SKY, Drawing

#: Grid steps that the picture shows from the start.
FIRST_STEPS = 6
_LEFT, _WIDTH, _LANE, _BAR = 118.0, 760.0, 22.0, 15.0
_LANES = {
    "dma_in": "copies in",
    "mxu": "matrix unit",
    "vpu": "vector unit",
    "xlu": "cross-lane unit",
    "eup": "transcendentals",
    "load": "vector loads",
    "store": "vector stores",
    "scalar": "scalar unit",
    "dma_out": "copies out",
    "stall": "core waits",
}
# iteration n of the pipeline's loop fetches for grid step n - 1 and computes grid step n - 2
_STEP_OFFSET = {"dma_in": 1}
_MOST_TRACKS = 4
_FINEST_PIXELS = 0.6
# what a widget gets: steps, bars, pixels a step, and the finest gap as a share of a step
_MOST_STEPS, _MOST_BARS, _STEP_WIDTH, _FINEST_STEP = 64, 500, 120.0, 0.004

#: first cycle, last cycle, grid step, name
Bar = tuple[float, float, int, str]


@dataclass(frozen=True)
class Strip:
    """The start of a run as one long picture, of which a widget shows a part.

    Attributes:
        svg: labels and time axis, and the bars in an inner ``svg`` marked ``data-strip``, whose
            ``viewBox`` decides what is seen; ``data-tick`` marks the texts of the axis, and
            ``data-cursor`` the cursor.
        lanes: names of the lanes.
        names: what bars are called.
        spans: bars as (lane, first cycle, last cycle, grid step, position of the name).
        starts: the cycle at which the work on each grid step begins.
        end: the cycle at which the strip ends.
        scale: units of the strip's ``viewBox`` a cycle.
        clock_hertz: cycles per second.
        note: what is left out, in words; empty when nothing is.
    """

    svg: str
    lanes: tuple[str, ...]
    names: tuple[str, ...]
    spans: tuple[tuple[int, float, float, int, int], ...]
    starts: tuple[float, ...]
    end: float
    scale: float
    clock_hertz: float
    note: str


def pipeline_timeline(timeline: Any, *, first_steps: int = FIRST_STEPS) -> Figure:
    """Draw the first steps of a predicted run: one lane a unit, time to the right.

    Bars of the first, third, ... grid step are solid, the others hatched, so that the eye can
    follow a block from its copy to the work on it.

    Args:
        timeline: a `Timeline`, or a ladder of one chip that holds the one it was predicted from.
        first_steps: how many grid steps to show; a shorter run is shown whole.

    Raises:
        UsageError: the ladder has no timeline, because the chip refused the kernel; or there are no
            events to draw.
    """
    timeline = timeline_of(timeline)
    end = _window(timeline, first_steps)
    shown = [event for event in timeline.events if event.start_cycle < end]
    drawing = Drawing(_LEFT + _WIDTH + 70.0)
    y = 30.0
    for unit, label, tracks in _lanes(shown):
        drawing.text(0, y + 12, label, bold=True, size=11.5)
        for track in tracks:
            line = y + _BAR
            drawing.line(_LEFT, line, _LEFT + _WIDTH, line, opacity=0.2, width=0.7)
            bars = _merged(track, _FINEST_PIXELS * end / _WIDTH)
            _draw_bars(drawing, bars, unit, _LEFT, y, end, _WIDTH / end, timeline)
            y += _lane_height(unit)
        share = timeline.busy_cycles.get(unit)
        if unit == "stall":
            share = sum(timeline.stall_cycles.values())
        if share is not None and timeline.cycles:
            drawing.text(_LEFT + _WIDTH + 8, y - 8, f"{share / timeline.cycles:.0%}", size=11.5)
        y += 4
    _axis(drawing, y, end, timeline)
    _legend(drawing, y + 40)
    drawing.text(_LEFT + _WIDTH + 8, 14, "busy in all", size=11)
    drawing.height = y + 50
    alt = _sentence(timeline, end)
    return Figure(
        title=f"Timeline on {timeline.chip}",
        alt=alt,
        svg=drawing.render(alt),
        header=("what", "cycles", "of the run"),
        rows=_rows(timeline),
    )


def timeline_of(source: Any) -> Timeline:
    """The timeline itself, or the one that a ladder was predicted from.

    Raises:
        UsageError: there is none, or it holds no events.
    """
    found = source if isinstance(source, Timeline) else getattr(source, "timeline", None)
    if not isinstance(found, Timeline):
        raise UsageError(
            "there is no timeline to draw",
            why=str(getattr(source, "refusal", None) or f"{type(source).__name__} holds none"),
        )
    if not found.events:
        raise UsageError("the timeline holds no events", hint="simulate with max_events above 0")
    return found


def strip(timeline: Timeline) -> Strip:
    """The start of a run as one long picture: as many grid steps as fit into a notebook."""
    last = max(_grid_step(event) for event in timeline.events)
    steps = min(last + 1, _MOST_STEPS)
    while True:
        found = _strip(timeline, steps, whole=steps > last)
        if len(found.spans) <= _MOST_BARS or steps == 1:
            return found
        # bars are spread over the steps about evenly
        steps = max(1, min(steps - 1, steps * _MOST_BARS // len(found.spans)))


def _strip(timeline: Timeline, steps: int, *, whole: bool) -> Strip:
    end = max(e.end_cycle for e in timeline.events if whole or _grid_step(e) < steps)
    shown = [event for event in timeline.events if event.start_cycle < end]
    scale = _STEP_WIDTH * steps / end
    drawing = Drawing(_LEFT + _WIDTH + 70.0, tooltips=False)
    bars = Drawing(end * scale, tooltips=False)
    lanes: list[str] = []
    spans: list[tuple[int, float, float, int, int]] = []
    names: dict[str, int] = {}
    y = top = 30.0
    for unit, label, tracks in _lanes(shown):
        drawing.text(0, y + 12, label, bold=True, size=11.5)
        for track in tracks:
            line = y + _BAR
            drawing.line(_LEFT, line, _LEFT + _WIDTH, line, opacity=0.2, width=0.7)
            merged = _merged(track, end / steps * _FINEST_STEP)
            _draw_bars(bars, merged, unit, 0.0, y - top, end, scale, timeline)
            for first, after, step, name in merged:
                number = names.setdefault(name, len(names))
                spans.append((len(lanes), round(first, 1), round(after, 1), step, number))
            y += _lane_height(unit)
        lanes.append(label)
        y += 4
    drawing.insert(
        f'<svg data-strip="" x="{_LEFT:g}" y="{top:g}" width="{_WIDTH:g}" height="{y - top:g}"'
        f' viewBox="0 0 {bars.width:.2f} {y - top:g}" preserveAspectRatio="none">'
        f"{bars.shapes}</svg>"
    )
    drawing.insert(
        f'<line data-cursor="" x1="{_LEFT:g}" x2="{_LEFT:g}" y1="{top - 8:g}" y2="{y + 2:g}"'
        ' stroke="currentColor" stroke-width="2" stroke-dasharray="5 3"/>'
    )
    drawing.line(_LEFT, y + 2, _LEFT + _WIDTH, y + 2)
    for quarter in range(5):
        x = _LEFT + _WIDTH * quarter / 4
        drawing.line(x, y + 2, x, y + 6)
        drawing.open_group(tick=str(quarter))
        drawing.text(x, y + 19, "0", anchor="middle", size=11)
        drawing.close_group()
    _legend(drawing, y + 40)
    drawing.height = y + 50
    starts = [0.0] * steps
    for event in sorted(shown, key=lambda e: -e.start_cycle):
        if _grid_step(event) < steps and not event.unit.startswith("dma") and event.step > 0:
            starts[_grid_step(event)] = round(event.start_cycle, 1)
    starts[0] = 0.0
    note = ""
    if not whole or not timeline.events_complete:
        note = (
            f"The first {seconds_text(end / timeline.clock_hertz)} of "
            f"{seconds_text(timeline.seconds)} are here; the rest is left out to keep the notebook "
            "small."
        )
    return Strip(
        svg=drawing.render(_sentence(timeline, timeline.cycles)),
        lanes=tuple(lanes),
        names=tuple(names),
        spans=tuple(spans),
        starts=tuple(starts),
        end=end,
        scale=scale,
        clock_hertz=timeline.clock_hertz,
        note=note,
    )


def _window(timeline: Timeline, first_steps: int) -> float:
    """The cycle up to which the picture goes."""
    last = max(event.end_cycle for event in timeline.events)
    inside = [e.end_cycle for e in timeline.events if _grid_step(e) < first_steps]
    end = max(inside, default=last)
    return last if last <= 1.5 * end else end


def _grid_step(event: Event) -> int:
    return max(event.step - _STEP_OFFSET.get(event.unit, 2), 0)


def _lanes(events: Sequence[Event]) -> Iterator[tuple[str, str, list[list[Event]]]]:
    """Units that do something: key, name, and their events on as many tracks as needed."""
    for unit, label in _LANES.items():
        own = [event for event in events if event.unit == unit]
        if own:
            yield unit, label, _tracks(own) if unit.startswith("dma") else [own]


def _lane_height(unit: str) -> float:
    return _LANE - 4 if unit.startswith("dma") else _LANE


def _tracks(events: Sequence[Event]) -> list[list[Event]]:
    """Overlapping transfers on tracks of their own."""
    tracks: list[list[Event]] = []
    for event in sorted(events, key=lambda e: (e.start_cycle, e.end_cycle)):
        for track in tracks:
            if track[-1].end_cycle <= event.start_cycle:
                track.append(event)
                break
        else:
            if len(tracks) < _MOST_TRACKS:
                tracks.append([event])
            else:
                tracks[-1].append(event)
    return tracks


def _draw_bars(
    drawing: Drawing,
    bars: Sequence[Bar],
    unit: str,
    left: float,
    y: float,
    end: float,
    scale: float,
    timeline: Timeline,
) -> None:
    """The bars of a lane, at ``scale`` pixels a cycle."""
    for start, stop, step, name in bars:
        x = left + start * scale
        width = (min(stop, end) - start) * scale
        stall = unit == "stall"
        tooltip = name if stall else f"grid step {step + 1}: {name}"
        tooltip += f", {seconds_text((stop - start) / timeline.clock_hertz)}"
        outline = "currentColor" if width > 3 else None
        place = (x, y, max(width, _FINEST_PIXELS), _BAR)
        if stall:
            drawing.rectangle(*place, fill="currentColor", opacity=0.45, tooltip=tooltip)
        elif step % 2 == 0:
            drawing.rectangle(*place, fill=SKY, stroke=outline, tooltip=tooltip)
        else:
            # lines along the bar stay lines at any zoom
            drawing.hatched(*place, colour=ORANGE, lines="-", stroke=outline, tooltip=tooltip)


def _merged(events: Sequence[Event], nearest: float) -> list[Bar]:
    """Bars of one lane; those of a step that would touch on the screen become one."""
    bars: list[Bar] = []
    for event in sorted(events, key=lambda e: e.start_cycle):
        step = _grid_step(event)
        if bars and bars[-1][2] == step and event.start_cycle - bars[-1][1] <= nearest:
            start, stop, _, name = bars[-1]
            bars[-1] = (start, max(stop, event.end_cycle), step, name)
        else:
            bars.append((event.start_cycle, event.end_cycle, step, event.name))
    return bars


def _axis(drawing: Drawing, y: float, end: float, timeline: Timeline) -> None:
    seconds = end / timeline.clock_hertz
    drawing.line(_LEFT, y + 2, _LEFT + _WIDTH, y + 2)
    for quarter in range(5):
        x = _LEFT + _WIDTH * quarter / 4
        drawing.line(x, y + 2, x, y + 6)
        text = seconds_text(seconds * quarter / 4) if quarter else "0"
        drawing.text(x, y + 19, text, anchor="middle", size=11)
    if end < timeline.cycles:
        whole = f"the first {seconds_text(seconds)} of {seconds_text(timeline.seconds)}"
        drawing.text(0, 14, whole, size=12)


def _legend(drawing: Drawing, y: float) -> None:
    x = _LEFT
    drawing.rectangle(x, y - 9, 14, 10, fill=SKY, stroke="currentColor")
    drawing.text(x + 19, y, "grid steps 1, 3, 5 …", size=11)
    x += 140
    drawing.hatched(x, y - 9, 14, 10, colour=ORANGE, lines="-", stroke="currentColor")
    drawing.text(x + 19, y, "grid steps 2, 4, 6 …", size=11)
    x += 140
    drawing.rectangle(x, y - 9, 14, 10, fill="currentColor", opacity=0.45)
    drawing.text(x + 19, y, "the core issues nothing", size=11)


def _rows(timeline: Timeline) -> tuple[tuple[str, ...], ...]:
    busy = [(_LANES.get(unit, unit), cycles) for unit, cycles in timeline.busy_cycles.items()]
    waits = [(f"waits: {cause}", cycles) for cause, cycles in timeline.stall_cycles.items()]
    waits.sort(key=lambda pair: (-pair[1], pair[0]))
    return (
        *(
            (what, f"{cycles:,.0f}", f"{cycles / timeline.cycles:.1%}")
            for what, cycles in [*busy, *waits]
            if cycles
        ),
        ("whole run", f"{timeline.cycles:,.0f}", seconds_text(timeline.seconds)),
        ("read from HBM", bytes_text(timeline.hbm_read_bytes), ""),
        ("written to HBM", bytes_text(timeline.hbm_written_bytes), ""),
    )


def _sentence(timeline: Timeline, end: float) -> str:
    unit, verb, cycles = _busiest(timeline)
    text = (
        f"The run takes {seconds_text(timeline.seconds)} on {timeline.chip}; busiest {verb} the "
        f"{unit} with {cycles / timeline.cycles:.0%} of it"
    )
    waits = sorted(timeline.stall_cycles.items(), key=lambda pair: (-pair[1], pair[0]))
    if waits and waits[0][1] > 0:
        cause, cycles = waits[0]
        text += f". The core waits longest for {_object(cause)}, {cycles / timeline.cycles:.0%}"
    if end < timeline.cycles:
        text += f". Shown are the first {seconds_text(end / timeline.clock_hertz)}"
    return text + "."


def _busiest(timeline: Timeline) -> tuple[str, str, float]:
    """Name, verb and busy cycles of the unit that limits the run."""
    unit = timeline.limiting_unit
    if unit == "hbm":
        copies = ("dma_in", "dma_out")
        return "memory", "is", sum(timeline.busy_cycles.get(lane, 0.0) for lane in copies)
    name = _LANES.get(unit, unit)
    plural = name.endswith("s") or name.startswith("copies")
    return name, "are" if plural else "is", timeline.busy_cycles.get(unit, 0.0)


def _object(cause: str) -> str:
    return cause.removeprefix("waiting for ")
