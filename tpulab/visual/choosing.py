"""Pictures to choose from a list: the same one for another chip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tpulab.errors import TpulabError, UsageError
from tpulab.hardware import Chip, get_chip
from tpulab.hardware import chips as all_chips
from tpulab.visual.chip import chip_map
from tpulab.visual.player import Frame, Player, Toggle, within_budget
from tpulab.visual.roof import Point, layers, roofline_layers
from tpulab.visual.rungs import Climb


def choose_chip(
    kernel: Any = None,
    *,
    chips: Iterable[str | Chip] | None = None,
    chip: str | Chip = "v5e",
) -> Player:
    """The map of a chip, and a list to choose another one.

    Args:
        kernel: what `chip_map` takes: a traced kernel, whose work is compared on all chips; or a
            ladder of several chips, where each shows its own run.
        chips: which to offer; all unless given. A ladder offers its own.
        chip: the one to begin with.

    Raises:
        UnknownNameError: a chip that is not known.
        UsageError: ``chip`` is not among ``chips``, or as `chip_map` says.
    """
    ladders = getattr(kernel, "chips", None)
    offered = list(ladders) if chips is None and isinstance(ladders, Mapping) else chips
    known, begin = _offered(offered, chip)
    frames = [Frame(*_picture(one, kernel), one.name) for one in known]
    return _chooser(chip_map(known[begin], kernel), frames, known, begin)


def choose_roofline(
    points: Mapping[str, Point] | None = None,
    *,
    climb: Climb = (),
    dtype: str = "bfloat16",
    chips: Iterable[str | Chip] | None = None,
    chip: str | Chip = "v5e",
) -> Player:
    """The roofline of a chip, a list to choose another one, and a box for every point and version.

    Args:
        points: as in `roofline`; the rates of a point are of ``chip``, and on the others it stands
            where its intensity allows.
        climb: versions of a kernel as in `roofline`; every chip shows those it has a rate for.
        dtype: dtype whose matrix peak is the flat part of the roof; chips without it are left out.
        chips: which to offer; all unless given.
        chip: the one to begin with.

    Raises:
        UnknownNameError: a chip that is not known.
        UsageError: ``chip`` is not among ``chips``, or as `roofline` says.
    """
    points = dict(points or {})
    climb = dict(climb) if isinstance(climb, Mapping) else _kept(climb)
    known, _ = _offered(chips, chip)
    known = [one for one in known if _has(one, dtype)]
    known, begin = _offered(known, chip)

    def drawn() -> Iterator[Frame]:
        for one in known:
            own = points if one is known[begin] else _intensities(points)
            figure = roofline_layers([one], own, climb, dtype)
            yield Frame(figure.svg, figure.alt, one.name)

    figure = roofline_layers([known[begin]], points, climb, dtype)
    toggles = [Toggle(name, layer) for name, layer in layers(points, climb).items()]
    return _chooser(figure, list(drawn()), known, begin, toggles)


def _kept(climb: Climb) -> Climb:
    """The versions as a list, since they are walked through once for every chip."""
    return climb if hasattr(climb, "chips") or hasattr(climb, "rungs") else list(climb)


def _intensities(points: Mapping[str, Point]) -> dict[str, Point]:
    return {name: point[0] if isinstance(point, tuple) else point for name, point in points.items()}


def _has(chip: Chip, dtype: str) -> bool:
    try:
        chip.peak(dtype)
    except TpulabError:
        return False
    return True


def _offered(chips: Iterable[str | Chip] | None, chip: str | Chip) -> tuple[list[Chip], int]:
    known = [
        one if isinstance(one, Chip) else get_chip(one)
        for one in (all_chips() if chips is None else chips)
    ]
    first = chip if isinstance(chip, Chip) else get_chip(chip)
    names = [one.name for one in known]
    if not names:
        raise UsageError("there is no chip to choose from")
    if first.name not in names:
        raise UsageError(f"{first.name} is not among the chips offered: {', '.join(names)}")
    return known, names.index(first.name)


def _picture(chip: Chip, kernel: Any) -> tuple[str, str]:
    figure = chip_map(chip, kernel)
    return figure.svg, figure.alt


def _chooser(
    figure: Any,
    frames: list[Frame],
    known: list[Chip],
    begin: int,
    toggles: Iterable[Toggle] = (),
) -> Player:
    """The chosen one is always kept; the others as far as they fit into a notebook."""
    rest = [frame for place, frame in enumerate(frames) if place != begin]
    kept = within_budget([frames[begin], *rest])
    shown = [frame for frame in frames if frame in kept]
    left = [frame.label for frame in frames if frame not in kept]
    note = f"Left out to keep the notebook small: {', '.join(left)}." if left else ""
    return Player(
        figure,
        shown,
        unit="chip",
        control="list",
        toggles=tuple(toggles),
        note=note,
        step=shown.index(frames[begin]),
    )
