"""Runs every solved notebook on one device; part of ``tpulab test --device tpu``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tpulab.commands.testing import clone


def main(device: str) -> int:
    """Run the notebooks of ``solutions/`` and print how each went; 0 when all passed."""
    from tpulab.classroom import run_notebook

    notebooks = sorted((clone() / "solutions").glob("*.ipynb"))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="tpulab-notebooks-") as folder:
        for notebook in notebooks:
            run = run_notebook(notebook, Path(folder) / notebook.name, {"device": device})
            failed += not run.passed
            word = "passed" if run.passed else f"FAILED: {run.error}"
            print(f"{notebook.name}: {run.seconds:.0f} s, {word}", flush=True)
    print(f"{len(notebooks) - failed} passed, {failed} failed")
    return 1 if failed or not notebooks else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
