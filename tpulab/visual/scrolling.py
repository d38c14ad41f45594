"""A run to scroll and zoom, with a cursor that says what works and what waits."""

from __future__ import annotations

from typing import Any

import traitlets

from tpulab.errors import UsageError
from tpulab.simulator.timeline import Timeline
from tpulab.visual.figure import Figure
from tpulab.visual.player import _HERE, Drawn
from tpulab.visual.timeline import Strip, pipeline_timeline, strip, timeline_of


class Scroller(Drawn):
    """The run of a kernel: how much of it is on the page, from where, and what the cursor reads.

    Attributes:
        start: first grid step on the page, from 0; can be set from Python.
        zoom: how many grid steps are on the page.
        cursor: where the cursor stands, 0 for the left and 1 for the right end of the page.
    """

    _esm = _HERE / "scroller.js"
    _css = _HERE / "player.css"
    picture = traitlets.Unicode("").tag(sync=True)
    lanes: Any = traitlets.List().tag(sync=True)
    names: Any = traitlets.List().tag(sync=True)
    spans: Any = traitlets.List().tag(sync=True)
    starts: Any = traitlets.List().tag(sync=True)
    zooms: Any = traitlets.List().tag(sync=True)
    end = traitlets.Float().tag(sync=True)
    scale = traitlets.Float().tag(sync=True)
    hertz = traitlets.Float().tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)
    start = traitlets.Int(0).tag(sync=True)
    zoom = traitlets.Int(4).tag(sync=True)
    cursor = traitlets.Float(0.5).tag(sync=True)

    def __init__(self, figure: Figure, shown: Strip, **options: Any) -> None:
        self.figure = figure
        steps = len(shown.starts)
        zooms = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < steps] + [steps]
        super().__init__(
            picture=shown.svg,
            lanes=list(shown.lanes),
            names=list(shown.names),
            spans=[list(span) for span in shown.spans],
            starts=list(shown.starts),
            zooms=zooms,
            zoom=min(4, steps),
            end=shown.end,
            scale=shown.scale,
            hertz=shown.clock_hertz,
            note=shown.note,
            **options,
        )

    @traitlets.validate("start")
    def _a_step(self, proposal: dict[str, Any]) -> int:
        return int(min(max(proposal["value"], 0), len(self.starts) - 1))

    @traitlets.validate("zoom")
    def _a_zoom(self, proposal: dict[str, Any]) -> int:
        return int(min(self.zooms, key=lambda count: abs(count - proposal["value"])))

    @traitlets.validate("cursor")
    def _on_the_page(self, proposal: dict[str, Any]) -> float:
        return float(min(max(proposal["value"], 0.0), 1.0))


def holds_timeline(source: Any) -> bool:
    """Whether this is a timeline or a ladder, which holds one."""
    return isinstance(source, Timeline) or hasattr(source, "rungs") or hasattr(source, "chips")


def scroll_through(source: Any) -> Scroller:
    """A run to scroll, zoom and read at a cursor.

    Args:
        source: a `Timeline`, or a ladder of one chip that holds one.

    Raises:
        UsageError: the ladder is of several chips or has no timeline, or there are no events.
    """
    chips = getattr(source, "chips", None)
    if chips is not None and len(chips) > 1:
        raise UsageError(
            f"this ladder has {len(chips)} chips, and a run is of one",
            hint=f"take one of them, as in ladder[{next(iter(chips))!r}]",
        )
    return Scroller(pipeline_timeline(source), strip(timeline_of(source)))
