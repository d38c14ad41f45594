"""Cells that show what the learner's code does, and say so calmly while there is none yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Sentence(str):
    """Text that a notebook shows without quotes."""

    def __repr__(self) -> str:
        return str(self)


def when_written(make: Callable[[], object]) -> object:
    """What ``make`` returns, or one sentence while the exercise it needs is not written.

    Raises:
        Exception: whatever else ``make`` raises.
    """
    try:
        return make()
    except Exception as error:
        if not is_a_scaffold(error):
            raise
        return Sentence("not attempted: write the exercise above, then run this cell again")


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
        the picture; one sentence while the function is not written; the compiler's reason when it
        refuses the function.
    """

    def make() -> object:
        from tpulab.kernel import trace
        from tpulab.ladder import ladder

        # a ladder reports what cannot be traced as refused; a scaffold is to be seen as one
        trace(function, *arguments, chip=chip)
        climbed = ladder(function, *arguments, chip=chip)
        if climbed.refusal is not None:
            return Sentence(f"no ladder: {climbed.refusal}")
        return draw(climbed)

    return when_written(make)


def is_a_scaffold(error: BaseException | None) -> bool:
    """Whether a scaffold's bare ``raise NotImplementedError`` is at the bottom of an error.

    JAX raises NotImplementedError too, for what it cannot lower, but never without a message.
    """
    while error is not None:
        if isinstance(error, NotImplementedError) and not error.args:
            return True
        error = error.__cause__ or error.__context__
    return False
