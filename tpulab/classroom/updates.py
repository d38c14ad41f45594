"""Displays that are updated in place, in a shared session. The JupyterLab server imports this.

jupyter-server-nbmodel writes what a cell displays into the shared document, but leaves out what the
cell displays *instead of* something it displayed before (``handle.update(...)``, as of 0.2.9): a
check's progress would stand still at its first line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, MutableSequence
from typing import Any

# a kernel's displays are few; the oldest are forgotten first
_MOST_DISPLAYS = 500

# display id → the outputs of a cell, the place in them, and what was put there
Places = dict[str, tuple[MutableSequence[Any], int, dict[str, Any]]]


def install() -> None:
    """Let the server's hook for outputs handle updates too; without that hook, do nothing."""
    with contextlib.suppress(ImportError, AttributeError):
        from jupyter_server_nbmodel import actions

        if not hasattr(actions._output_hook, "places"):
            actions._output_hook = with_updates(actions._output_hook)


def with_updates(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook for outputs that also replaces what a cell displayed before.

    Args:
        hook: called with the outputs so far, the cell in the shared document (or None), further
            state, and the kernel's message; last two by position.
    """
    places: Places = {}

    def hook_with_updates(outputs: list[Any], cell: Any, *rest: Any) -> None:
        message = rest[-1]
        kind = message["header"]["msg_type"]
        display_id = (message["content"].get("transient") or {}).get("display_id")
        if kind == "update_display_data" and display_id in places:
            _replace(places, display_id, message["content"])
        hook(outputs, cell, *rest)
        if kind in ("display_data", "execute_result") and display_id and cell is not None:
            shown = cell["outputs"]
            if len(shown):
                places.pop(display_id, None)
                places[display_id] = (shown, len(shown) - 1, _plain(shown[len(shown) - 1]))
                while len(places) > _MOST_DISPLAYS:
                    del places[next(iter(places))]

    hook_with_updates.places = places  # type: ignore[attr-defined]
    return hook_with_updates


def _replace(places: Places, display_id: str, content: dict[str, Any]) -> None:
    shown, place, before = places[display_id]
    # the cell may have run again, or somebody has cleared it
    if place >= len(shown) or _plain(shown[place]) != before:
        del places[display_id]
        return
    after = {**before, "data": content["data"], "metadata": content.get("metadata", {})}
    if after == before:
        return
    document = getattr(shown, "doc", None)
    with document.transaction() if document is not None else contextlib.nullcontext():
        shown[place] = after
    places[display_id] = (shown, place, after)


def _plain(value: Any) -> dict[str, Any]:
    return dict(value.to_py() if hasattr(value, "to_py") else value)
