"""Errors that a person can act on: what happened, where, why it is refused, what to try."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# a sentence that lists more is not read
_MOST_LISTED = 12


class TpulabError(Exception):
    """Base of every error tpulab raises on purpose.

    Args:
        what: one sentence that says what happened.
        why: the rule of the machine or of the library that makes it so.
        hint: one thing to try next.
        where: the place in the caller's code, as ``file:line`` or a function's name.
    """

    def __init__(
        self,
        what: str,
        *,
        why: str | None = None,
        hint: str | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.where = where

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.why:
            lines.append(f"  why:   {self.why}")
        if self.hint:
            lines.append(f"  try:   {self.hint}")
        return "\n".join(lines)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the sentence is the news, and a stack of our frames is not."""
        return str(self).splitlines()


class UsageError(TpulabError):
    """The call or the command line is not of the form that is asked for."""


class UnknownNameError(TpulabError):
    """A chip, exercise or other name that is not in the list of known ones.

    Args:
        kind: what the name should be one of, for example ``"chip"``.
        name: the name that was given.
        known: the names that exist.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        close = difflib.get_close_matches(name.lower(), self.known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else None
        super().__init__(
            f"there is no {kind} named {name!r}; known: {_listing(name, self.known)}", hint=hint
        )


def _listing(name: str, known: tuple[str, ...]) -> str:
    """The known names; of many, those of the same group, else the groups (``"matmul.…"``)."""
    if len(known) <= _MOST_LISTED:
        return ", ".join(known)
    group = name.partition(".")[0]
    same = [other for other in known if other.partition(".")[0] == group]
    if same:
        return ", ".join(same)
    groups = dict.fromkeys(other.partition(".")[0] for other in known)
    if len(groups) <= _MOST_LISTED:
        return ", ".join(f"{one}.…" for one in groups)
    near = difflib.get_close_matches(name.lower(), known, n=_MOST_LISTED, cutoff=0.0)
    return ", ".join([*near, "…"])
