"""Who drives, and for how long: the hand-over of a pair, on both screens at once.

The driver types. The navigator reads along, asks, and thinks one step ahead. The roles change when
the minutes are over, or when either of the two says so.
"""

from __future__ import annotations

import html
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tpulab.classroom.jupyter_settings import PARTNERS_VARIABLE
from tpulab.classroom.pair import NAMES
from tpulab.errors import UsageError

_HERE = Path(__file__).parent
_LONGEST_MINUTES = 240


class Turns(anywidget.AnyWidget):
    """The roles of a pair and the minutes that are left of a turn.

    The state lives in the kernel, so everybody who shares the kernel sees the same. Minutes are
    counted by each browser's own clock.

    Attributes:
        names: who takes turns.
        driver: index into ``names``.
        minutes: length of a turn.
        until: when the turn is over, in seconds since 1970.
    """

    _esm = _HERE / "roles.js"
    _css = _HERE / "roles.css"
    names = traitlets.List(traitlets.Unicode()).tag(sync=True)
    driver = traitlets.Int(0).tag(sync=True)
    minutes = traitlets.Float(15.0).tag(sync=True)
    until = traitlets.Float(0.0).tag(sync=True)

    def __init__(self, names: Sequence[str], minutes: float, **options: Any) -> None:
        until = time.time() + 60 * minutes
        super().__init__(names=list(names), minutes=minutes, until=until, **options)
        self.on_msg(self._pressed)

    def hand_over(self) -> None:
        """The next one drives, with a whole turn ahead."""
        with self.hold_sync():
            self.driver = (self.driver + 1) % len(self.names)
            self.until = time.time() + 60 * self.minutes

    def _pressed(self, _: Any, content: dict[str, Any], __: Any) -> None:
        # both may press in the same moment: the second press means a turn that is over already
        if content.get("hand_over_from") == self.driver:
            self.hand_over()

    def __repr__(self) -> str:
        others = [name for number, name in enumerate(self.names) if number != self.driver]
        left = max(0, round((self.until - time.time()) / 60))
        roles = f"{self.names[self.driver]} drives, {' and '.join(others)} "
        roles += "navigates" if len(others) == 1 else "navigate"
        return f"{roles}; {left} of {self.minutes:g} minutes left"

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = super()._repr_mimebundle_(**options)
        text = {"text/plain": repr(self), "text/html": f"<p>{html.escape(repr(self))}</p>"}
        if bundle is None:
            return text
        widget, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**widget, **text}, metadata


_turns: Turns | None = None


def turns(*names: str, minutes: float | None = None) -> Turns:
    """The turns of this notebook: shown in several cells, they stay one.

    Args:
        *names: who takes turns; by default those whom `tpulab pair` was told, and without it
            "Partner 1" and "Partner 2". Other names than before start anew.
        minutes: length of a turn, 15 unless said otherwise; another length starts the turn anew.

    Raises:
        UsageError: fewer than two names, or a length that is no number of minutes.
    """
    global _turns
    if len(names) == 1:
        raise UsageError("one person alone has nobody to hand over to", hint="give two names")
    if minutes is not None and not 0 < minutes <= _LONGEST_MINUTES:
        raise UsageError(f"a turn of {minutes!r} minutes", hint=f"0 to {_LONGEST_MINUTES} minutes")
    if _turns is None or (names and list(names) != _turns.names):
        _turns = Turns(names or _partners(), 15.0 if minutes is None else minutes)
    elif minutes is not None and minutes != _turns.minutes:
        with _turns.hold_sync():
            _turns.minutes = minutes
            _turns.until = time.time() + 60 * minutes
    return _turns


def _partners() -> tuple[str, ...]:
    try:
        names = tuple(map(str, json.loads(os.environ.get(PARTNERS_VARIABLE, ""))))
    except (ValueError, TypeError):
        return NAMES
    return names if len(names) > 1 else NAMES
