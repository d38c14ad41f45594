"""The pipeline over time: what each unit does while blocks arrive and leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpulab.errors import UsageError
from tpulab.simulator.timeline import Event, Timeline
from tpulab.visual.figure import Figure, bytes_text, seconds_text
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
    timeline = _timeline(timeline)
    if not timeline.events:
        raise UsageError("the timeline holds no events", hint="simulate with max_events above 0")
    end = _window(timeline, first_steps)
    shown = [event for event in timeline.events if event.start_cycle < end]
    drawing = Drawing(_LEFT + _WIDTH + 70.0)
    y = 30.0
    for unit, label in _LANES.items():
        events = [event for event in shown if event.unit == unit]
        if not events:
            continue
        drawing.text(0, y + 12, label, bold=True, size=11.5)
        for track in _tracks(events) if unit.startswith("dma") else [events]:
            _draw_lane(drawing, track, y, end, timeline)
            y += _LANE if not unit.startswith("dma") else _LANE - 4
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


def _timeline(source: Any) -> Timeline:
    found = source if isinstance(source, Timeline) else getattr(source, "timeline", None)
    if not isinstance(found, Timeline):
        raise UsageError(
            "there is no timeline to draw",
            why=str(getattr(source, "refusal", None) or f"{type(source).__name__} holds none"),
        )
    return found


def _window(timeline: Timeline, first_steps: int) -> float:
    """The cycle up to which the picture goes."""
    last = max(event.end_cycle for event in timeline.events)
    inside = [e.end_cycle for e in timeline.events if _grid_step(e) < first_steps]
    end = max(inside, default=last)
    return last if last <= 1.5 * end else end


def _grid_step(event: Event) -> int:
    return max(event.step - _STEP_OFFSET.get(event.unit, 2), 0)


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


def _draw_lane(
    drawing: Drawing, events: Sequence[Event], y: float, end: float, timeline: Timeline
) -> None:
    scale = _WIDTH / end
    drawing.line(_LEFT, y + _BAR, _LEFT + _WIDTH, y + _BAR, opacity=0.2, width=0.7)
    for start, stop, step, name in _merged(events, _FINEST_PIXELS / scale):
        x = _LEFT + start * scale
        width = (min(stop, end) - start) * scale
        stall = events[0].unit == "stall"
        tooltip = name if stall else f"grid step {step + 1}: {name}"
        tooltip += f", {seconds_text((stop - start) / timeline.clock_hertz)}"
        outline = "currentColor" if width > 3 else None
        place = (x, y, max(width, _FINEST_PIXELS), _BAR)
        if stall:
            drawing.rectangle(*place, fill="currentColor", opacity=0.45, tooltip=tooltip)
        elif step % 2 == 0:
            drawing.rectangle(*place, fill=SKY, stroke=outline, tooltip=tooltip)
        else:
            drawing.hatched(*place, colour=ORANGE, stroke=outline, tooltip=tooltip)


def _merged(events: Sequence[Event], nearest: float) -> list[tuple[float, float, int, str]]:
    """Bars of one lane; those of a step that would touch on the screen become one."""
    bars: list[tuple[float, float, int, str]] = []
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
    drawing.hatched(x, y - 9, 14, 10, colour=ORANGE, stroke="currentColor")
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
