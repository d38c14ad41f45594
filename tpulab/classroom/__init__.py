"""Labs as notebooks: released from solutions, run headless, opened in JupyterLab.

Modules:
    release: writes ``labs/*.ipynb`` and ``solutions/*.ipynb`` from ``solutions/*.py``.
    notebooks: runs notebooks without a screen and says what happened in every cell.
    lab: copies the labs for a learner and serves them with JupyterLab.
    server: the JupyterLab process itself.
    jupyter_settings: how JupyterLab is set up, for one person or for several.
    pair: the same for several people at once.
    together: what the server itself does differently then.
    updates: displays that are updated in place, for that server.
    roles: who drives, and for how long.
    predict: the learner's numbers, written down before and compared after.
    showing: cells that show what the learner wrote, or that nothing is written yet.
"""

from __future__ import annotations

from typing import Any

# public name -> module; resolved on first use because some of them import Jupyter
_EXPORTS = {
    "Predictions": "tpulab.classroom.predict",
    "show_ladder": "tpulab.classroom.showing",
    "when_written": "tpulab.classroom.showing",
    "open_lab": "tpulab.classroom.lab",
    "open_pair": "tpulab.classroom.pair",
    "turns": "tpulab.classroom.roles",
    "reset_lab": "tpulab.classroom.lab",
    "run_notebook": "tpulab.classroom.notebooks",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name lazily."""
    import importlib

    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'tpulab.classroom' has no attribute {name!r}")
