"""Progress while a check runs: a table that fills itself in a notebook, lines in a terminal.

What stays in a notebook's output does not depend on how fast the check was: the live line is
emptied at the end and the verdict is displayed once.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Protocol

from tpulab.grading.render import step_explanation, step_line
from tpulab.grading.verdict import StepResult, Verdict


class Listener(Protocol):
    """Told what happens while a check runs."""

    def begin(self, exercise: str, title: str) -> None:
        """The check starts."""

    def working(self, what: str) -> None:
        """Something that takes a moment starts."""

    def step(self, result: StepResult) -> None:
        """A step is judged."""

    def end(self, verdict: Verdict) -> None:
        """The check is over."""


class Silent:
    """Says nothing."""

    def begin(self, exercise: str, title: str) -> None:
        """Nothing."""

    def working(self, what: str) -> None:
        """Nothing."""

    def step(self, result: StepResult) -> None:
        """Nothing."""

    def end(self, verdict: Verdict) -> None:
        """Nothing."""


class SymptomsOnly:
    """Passes on what was seen, without the name of the mistake."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def begin(self, exercise: str, title: str) -> None:
        """Pass it on."""
        self._listener.begin(exercise, title)

    def working(self, what: str) -> None:
        """Pass it on."""
        self._listener.working(what)

    def step(self, result: StepResult) -> None:
        """Pass on the symptom."""
        self._listener.step(result.undiagnosed)

    def end(self, verdict: Verdict) -> None:
        """Pass it on; it holds symptoms only already."""
        self._listener.end(verdict)


class Lines(Silent):
    """Plain lines as steps complete; on a real terminal the last line says what is going on."""

    def __init__(self, stream: Any = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self._live = bool(getattr(self._stream, "isatty", lambda: False)())
        self._status = ""
        self._shown: list[str] = []

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()

    def _erase(self) -> None:
        if self._status:
            self._write("\r" + " " * len(self._status) + "\r")
            self._status = ""

    def begin(self, exercise: str, title: str) -> None:
        """Name the exercise."""
        self._write(f"{exercise} · {title}\n")

    def working(self, what: str) -> None:
        """Say what goes on."""
        if self._live:
            self._erase()
            self._status = f"  … {what}"
            self._write(self._status)

    def step(self, result: StepResult) -> None:
        """Show a step."""
        self._erase()
        lines = [step_line(result), *step_explanation(result)]
        self._shown += lines
        self._write("\n".join(lines) + "\n")

    def end(self, verdict: Verdict) -> None:
        """Show what is left of the verdict."""
        self._erase()
        # the text of the verdict minus the lines that are on the screen already
        rest = [line for line in str(verdict).splitlines()[1:] if line not in self._shown]
        self._write("\n".join(rest) + "\n")
        _mark_shown(verdict)


class Notebook(Silent):
    """A line that is updated in place, then the verdict."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._steps: list[StepResult] = []
        self._head = ""

    def begin(self, exercise: str, title: str) -> None:
        """Name the exercise."""
        from IPython.display import display

        self._head = f"{exercise} · {title}"
        self._handle = display(_EMPTY, display_id=True, raw=True)

    def working(self, what: str) -> None:
        """Say what goes on."""
        self._update(f"… {what}")

    def step(self, result: StepResult) -> None:
        """Show a step."""
        self._steps.append(result)
        self._update("")

    def _update(self, status: str) -> None:
        import html

        if self._handle is None:
            return
        lines = [self._head, *(step_line(step) for step in self._steps), f"  {status}"]
        text = html.escape("\n".join(lines))
        with contextlib.suppress(Exception):
            page = f"<pre role='status' aria-live='polite'>{text}</pre>"
            self._handle.update({"text/plain": "", "text/html": page}, raw=True)

    def end(self, verdict: Verdict) -> None:
        """Show what is left of the verdict."""
        from IPython.display import display

        if self._handle is not None:
            with contextlib.suppress(Exception):
                self._handle.update(_EMPTY, raw=True)
        display(_Mime(verdict))
        _mark_shown(verdict)


class _Mime:
    """A verdict's two texts as one display."""

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self._verdict), "text/html": self._verdict._repr_html_()}


# the verdict that check() has displayed, and in which cell: its last line must not show it again
_shown: tuple[Verdict, int] | None = None
_EMPTY = {"text/plain": "", "text/html": ""}


def _cell() -> int:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return int(getattr(shell, "execution_count", 0))


def _mark_shown(verdict: Verdict) -> None:
    global _shown
    _shown = (verdict, _cell())


def show_once(verdict: Verdict) -> None:
    """Display a verdict unless the check has just done so in this cell."""
    if _shown is not None and _shown[0] is verdict and _shown[1] == _cell():
        return
    from IPython.display import display

    display(_Mime(verdict))


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return False
    shell = ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def listener(quiet: bool) -> Listener:
    """The listener that fits where this runs."""
    if quiet:
        return Silent()
    if in_notebook():
        return Notebook()
    return Lines()
