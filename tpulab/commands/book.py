"""``tpulab book``: the labs and the reference as a site that reads offline."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import webbrowser
from importlib.util import find_spec
from pathlib import Path

from tpulab.errors import TpulabError, UsageError


def build_command(root: Path, out: Path) -> tuple[str, ...]:
    """The Sphinx call that builds the book; a warning is an error.

    Args:
        root: the clone.
        out: folder of the pages.
    """
    jobs = str(min(os.cpu_count() or 1, 8))
    strict = ("-W", "--keep-going", "-q", "-j", jobs)
    return (sys.executable, "-m", "sphinx", "-b", "html", *strict, str(root / "book"), str(out))


def book(options: argparse.Namespace) -> int:
    """Build it, say where it is, open it when asked.

    Raises:
        UsageError: this is not a clone, which alone holds the book's sources.
        TpulabError: Sphinx is missing or the pages have a fault.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / "book" / "conf.py").is_file():
        raise UsageError(
            "the book is built from a clone of the repository, and this is not one",
            where=str(root),
            hint="clone the repository and run  python3 -m tpulab book  in it",
        )
    if find_spec("myst_nb") is None or find_spec("sphinx_book_theme") is None:
        raise TpulabError(
            "the book needs Sphinx, which this environment does not have",
            hint="python3 -m tpulab book    in the clone installs it, or "
            "pip install -e '.[book]' -c constraints.txt",
        )
    out = Path(options.out).expanduser().resolve() if options.out else root / "build" / "book"
    print(f"building the book in {out}", flush=True)
    environment = dict(os.environ, JAX_PLATFORMS=os.environ.get("JAX_PLATFORMS", "cpu"))
    status = subprocess.run(build_command(root, out), env=environment, check=False).returncode
    if status:
        raise TpulabError(
            "the book has faults; Sphinx says above where",
            hint="each WARNING line names a file and a line",
        )
    front = out / "index.html"
    print(f"read it: {front.as_uri()}")
    if options.open:
        webbrowser.open(front.as_uri())
    return 0
