"""The ladder as a waterfall: from what is possible to what is predicted, loss by loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpulab.errors import UsageError
from tpulab.units import seconds_text, with_micro
from tpulab.visual.figure import Figure
from tpulab.visual.svg import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, Drawing

_LEFT, _WIDTH = 132.0, 400.0
#: pixels that a rung takes beside the lines of its cause, and for each line
_ROW, _LINE = 24.0, 13.0
_CAUSE_WIDTH = 58
# one colour and one direction of hatching a rung, so that a bar is known by either
_LOOKS = {
    "speed of light": (GREEN, None),
    "traffic": (SKY, "/"),
    "tile padding": (PURPLE, "\\"),
    "schedule": (ORANGE, "|"),
    "pipeline": (VERMILLION, "-"),
    "measured": (BLUE, None),
}


def ladder_waterfall(ladder: Any, *, diagnose: bool = True) -> Figure:
    """Draw the rungs of a ladder for one chip.

    Every bar starts where the one above it ends: its coloured part is the time that this rung's
    cause adds. The last bar's end is the predicted time.

    Args:
        ladder: what `tpulab.ladder` returns for one chip.
        diagnose: also tell causes and advice; without, the times alone, for whoever wants to find
            the cause.

    Raises:
        UsageError: the ladder has no rungs, because the chip refused the kernel.
    """
    rungs = list(ladder.rungs)
    if not rungs:
        raise UsageError(
            f"there is no ladder to draw for {ladder.chip}", why=str(ladder.refusal or "no rungs")
        )
    longest = max(rung.seconds for rung in rungs)
    bound = rungs[0].seconds
    told = [with_micro(rung.cause or "") if diagnose else "" for rung in rungs]
    causes = [_wrapped(cause, _CAUSE_WIDTH) for cause in told]
    # a cause is shown whole: its row is as high as it needs
    heights = [_ROW + _LINE * max(len(cause), 2) for cause in causes]
    drawing = Drawing(_LEFT + _WIDTH + 340.0, 26.0 + sum(heights) + 12.0)
    drawing.text(_LEFT, 12, "0", size=11)
    drawing.text(_LEFT + _WIDTH, 12, seconds_text(longest), anchor="end", size=11)
    drawing.line(_LEFT, 18, _LEFT + _WIDTH, 18, opacity=0.5)
    before, y = 0.0, 26.0
    for number, rung in enumerate(rungs):
        start, end = (_LEFT + _WIDTH * seconds / longest for seconds in (before, rung.seconds))
        colour, lines = _LOOKS.get(rung.name, (BLUE, "/"))
        drawing.text(0, y + 17, rung.name, bold=True)
        drawing.rectangle(_LEFT, y + 2, start - _LEFT, 20, stroke="currentColor", opacity=0.25)
        place = (start, y + 2, max(end - start, 1.5), 20)
        tooltip = f"{rung.name}: {seconds_text(rung.seconds)}. {told[number]}".rstrip()
        if lines is None:
            drawing.rectangle(*place, fill=colour, stroke="currentColor", tooltip=tooltip)
        else:
            drawing.hatched(
                *place, colour=colour, lines=lines, stroke="currentColor", tooltip=tooltip
            )
        share = f"{bound / rung.seconds:.0%} of the best" if rung.seconds else ""
        x = _LEFT + _WIDTH + 12
        drawing.text(x, y + 11, f"{seconds_text(rung.seconds)}   {share}", size=12)
        for line, text in enumerate(causes[number]):
            drawing.text(x, y + 25 + _LINE * line, text, size=10.5)
        before = rung.seconds
        y += heights[number]
    alt = _sentence(ladder, rungs, diagnose)
    return Figure(
        title=f"Ladder of {ladder.function} on {ladder.chip}"
        if getattr(ladder, "function", "")
        else f"Ladder on {ladder.chip}",
        alt=alt,
        svg=drawing.render(alt),
        header=("rung", "time", "of the best", "added", *(["cause"] if diagnose else [])),
        rows=tuple(
            (
                rung.name,
                seconds_text(rung.seconds),
                f"{bound / rung.seconds:.0%}" if rung.seconds else "",
                _added(rung.seconds - rungs[number - 1].seconds) if number else "",
                *([told[number]] if diagnose else []),
            )
            for number, rung in enumerate(rungs)
        ),
    )


def _added(seconds: float) -> str:
    return f"+{seconds_text(seconds)}" if seconds > 0 else "+0"


def _sentence(ladder: Any, rungs: Sequence[Any], diagnose: bool) -> str:
    added = [
        (after.seconds - before.seconds, after)
        for before, after in zip(rungs, rungs[1:], strict=False)
    ]
    last = rungs[-1]
    function = getattr(ladder, "function", "")
    whose = f"“{function}”: o" if function else "O"
    text = (
        f"{whose}n {ladder.chip}, {seconds_text(rungs[0].seconds)} would be the best and "
        f"{seconds_text(last.seconds)} is {'measured' if last.name == 'measured' else 'predicted'}"
    )
    if diagnose and added and max(added, key=lambda pair: pair[0])[0] > 0:
        loss, rung = max(added, key=lambda pair: pair[0])
        text += f"; the largest loss is {seconds_text(loss)} at “{rung.name}”"
        advice = getattr(rung, "advice", None)
        if advice:
            advice = with_micro(advice)
            # HBM stays HBM
            first = advice[0].lower() if advice[1:2].islower() else advice[0]
            text += f". To try: {first}{advice[1:].rstrip('.')}"
    return text + "."


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
