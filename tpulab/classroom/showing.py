"""Cells that show what the learner's code does, and say so calmly while there is none that runs."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

from tpulab.errors import TpulabError

# a library's message may go on for pages
_LONGEST_REASON = 240


class Sentence(str):
    """Text that a notebook shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def when_written(make: Callable[[], object], name: str = "this") -> object:
    """What ``make`` returns, or one sentence while the exercise it needs does not run.

    A mistake in the learner's code is told by the check; here it must not keep the cells below
    from running.

    Args:
        make: calls the learner's code.
        name: what the sentence calls it.
    """
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - whatever a learner wrote
        if is_a_scaffold(error):
            return Sentence("not attempted: write the exercise above, then run this cell again")
        return Sentence(f"{name} does not run: see the verdict above ({reason(error)})")


def show_ladder(
    draw: Callable[[Any], object], function: Callable[..., Any], *arguments: Any, chip: str
) -> object:
    """A picture of `tpulab.ladder(function, *arguments, chip=chip)`.

    Args:
        draw: takes a ladder, such as ``visual.ladder_waterfall`` or ``visual.pipeline_timeline``.
        function: the learner's function.
        *arguments: arrays or shapes to call it with.
        chip: the chip to predict for.

    Returns:
        the picture; one sentence while the function is not written or does not run; the compiler's
        reason when it refuses the function.
    """

    def make() -> object:
        from tpulab.kernel import trace
        from tpulab.ladder import ladder

        # a ladder reports what cannot be traced as refused; a scaffold is to be seen as one
        trace(function, *arguments, chip=chip)
        climbed = ladder(function, *arguments, chip=chip)
        if climbed.refusal is not None:
            return Sentence(f"no ladder: {_plain(str(climbed.refusal))}")
        return draw(climbed)

    return when_written(make, getattr(function, "__name__", "your function"))


def reason(error: BaseException) -> str:
    """An error in one line, with its place: a notebook's cell is called a cell."""
    if isinstance(error, TpulabError):
        text, where = error.what, error.where
        if error.why:
            text = f"{text}: {error.why}"
    else:
        lines = str(error).strip().splitlines()
        text = type(error).__name__ + (f": {lines[0]}" if lines else "")
        where = None
    text = _plain(text)
    if len(text) > _LONGEST_REASON:
        text = text[: _LONGEST_REASON - 1] + "…"
    place = _plain(where) if where else _cell(error)
    return f"{text}; {place}" if place and place not in text else text


def is_a_scaffold(error: BaseException | None) -> bool:
    """Whether a scaffold's bare ``raise NotImplementedError`` is at the bottom of an error.

    JAX raises NotImplementedError too, for what it cannot lower, but never without a message.
    """
    while error is not None:
        if isinstance(error, NotImplementedError) and not error.args:
            return True
        error = error.__cause__ or error.__context__
    return False


def _plain(text: str) -> str:
    """Without the paths of temporary files, in which a notebook keeps its cells."""
    from tpulab.grading.places import without_paths

    return without_paths(text)


def _cell(error: BaseException) -> str:
    """The innermost line of a notebook's cell that an error came through."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        place = _plain(f"{frame.filename}:{frame.lineno}")
        if re.fullmatch(r"the cell, line \d+", place):
            return place
    return ""
