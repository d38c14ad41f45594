"""One widget for all pictures that have several states: a slider or a list, and the picture.

The states are drawn in Python by the functions that draw the static figures; the browser only puts
the chosen one on the page. Whoever cannot show the widget sees the static figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tpulab.visual.figure import Figure

#: Characters that the states of one widget may take: they end up in the notebook file.
MOST_CHARACTERS = 100_000

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Frame:
    """One state of a picture.

    Attributes:
        svg: the picture, or the shapes that belong into the scene's group ``data-frame``.
        text: the state in words.
        label: its name in a list to choose from.
    """

    svg: str
    text: str
    label: str = ""


@dataclass(frozen=True)
class Toggle:
    """A part of the picture that can be switched off: all groups that name its layer."""

    label: str
    layer: str


def within_budget(frames: Iterable[Frame], used: int = 0) -> tuple[Frame, ...]:
    """The first frames, as many as fit, at least one.

    Args:
        frames: drawn one by one as far as they are needed.
        used: characters that are taken by something else.
    """
    kept: list[Frame] = []
    for frame in frames:
        used += len(frame.svg) + len(frame.text) + len(frame.label)
        if kept and used > MOST_CHARACTERS:
            break
        kept.append(frame)
    return tuple(kept)


class Drawn(anywidget.AnyWidget):
    """A widget that is a figure wherever widgets are not shown.

    Attributes:
        figure: the static picture.
    """

    figure: Figure

    def __repr__(self) -> str:
        return self.figure.text

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        if bundle is None:
            return self.figure._repr_mimebundle_()
        widget, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        # whoever cannot show the widget (a static page, an untrusted notebook) gets the picture,
        # once: its states are in the notebook as well
        picture = self.figure._repr_mimebundle_()
        del picture["image/svg+xml"]
        return {**widget, **picture}, metadata


class Player(Drawn):
    """Shows one of several frames: by slider and buttons, or by a list of names.

    Attributes:
        step: which frame is shown, from 0; can be set from Python.
        hidden: layers that are switched off; can be set from Python.
        scene: the SVG around the frames, empty when every frame is a whole picture.
        note: what is not shown, in words.
    """

    _esm = _HERE / "player.js"
    _css = _HERE / "player.css"
    frames: Any = traitlets.List().tag(sync=True)
    scene = traitlets.Unicode("").tag(sync=True)
    unit = traitlets.Unicode("step").tag(sync=True)
    control = traitlets.Unicode("slider").tag(sync=True)
    toggles: Any = traitlets.List().tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    hidden: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(
        self,
        figure: Figure,
        frames: Sequence[Frame],
        *,
        unit: str,
        control: str = "slider",
        scene: str = "",
        toggles: Sequence[Toggle] = (),
        note: str = "",
        step: int = 0,
        **options: Any,
    ) -> None:
        self.figure = figure
        super().__init__(
            frames=[{"svg": one.svg, "text": one.text, "label": one.label} for one in frames],
            unit=unit,
            control=control,
            scene=scene,
            toggles=[{"label": one.label, "layer": one.layer} for one in toggles],
            note=note,
            step=step,
            **options,
        )

    @traitlets.validate("step")
    def _within_frames(self, proposal: dict[str, Any]) -> int:
        return int(min(max(proposal["value"], 0), len(self.frames) - 1))

    @traitlets.validate("hidden")
    def _known_layers(self, proposal: dict[str, Any]) -> list[str]:
        known = {toggle["layer"] for toggle in self.toggles}
        return [layer for layer in proposal["value"] if layer in known]
