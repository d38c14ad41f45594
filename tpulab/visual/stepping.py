"""Stepping through a grid by hand: the blocks of a call, one step at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tpulab.kernel import PallasCall
from tpulab.visual.blocks import blocks_in_motion, frames

#: Longest grid that is sent to the browser; of longer ones, that many steps from the start.
MOST_STEPS = 256

_HERE = Path(__file__).parent


class Stepping(anywidget.AnyWidget):
    """Slider and buttons over the blocks of a call; falls back to the static picture.

    Attributes:
        step: the step that is shown; can be set from Python.
    """

    _esm = _HERE / "stepping.js"
    _css = _HERE / "stepping.css"
    data = traitlets.Dict().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    def __init__(self, call: PallasCall, **options: Any) -> None:
        self.figure = blocks_in_motion(call)
        super().__init__(data=_data(call), **options)

    @traitlets.validate("step")
    def _within_grid(self, proposal: dict[str, Any]) -> int:
        return int(min(max(proposal["value"], 0), len(self.data["coordinates"]) - 1))

    def __repr__(self) -> str:
        return self.figure.text

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return self.figure._repr_mimebundle_()
        widget, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        # whoever cannot show the widget (a static page, an untrusted notebook) gets the picture
        return {**widget, **self.figure._repr_mimebundle_()}, metadata


def step_through(call: PallasCall) -> Stepping:
    """A slider over the grid of a call: which blocks the step works on, and which of them move.

    Args:
        call: one ``pallas_call`` of a traced kernel, ``tpulab.trace(...).calls[0]``.

    Raises:
        UsageError: no operand of the call is moved in blocks.
    """
    return Stepping(call)


def _data(call: PallasCall) -> dict[str, Any]:
    shown = min(call.steps, MOST_STEPS)
    return {
        "steps": call.steps,
        "coordinates": call.step_coordinates()[:shown].tolist(),
        "operands": [
            {
                "name": operand.name,
                "role": operand.role,
                "shape": operand.shape,
                "block": operand.block,
                "corners": operand.corners[:shown],
                "moving": operand.moving[:shown],
            }
            for operand in frames(call)
        ],
    }
