"""``tpulab new``: a kernel file to start from."""

from __future__ import annotations

import argparse
import os
import shutil
import sys


def new(options: argparse.Namespace) -> int:
    """Write the file and say what can be done with it."""
    import shlex

    from tpulab.scaffolds import KINDS, write

    file = write(options.name, options.kind, options.out)
    quoted, python = shlex.quote(str(file)), shlex.quote(this_python())
    print(f"wrote {file}: {KINDS[options.kind]}\n")
    print("Check it, and say how fast it is:")
    print(f"  {python} {quoted}")
    print("What is in the way:")
    print(f"  {python} -m tpulab ladder {quoted}:{options.name}")
    return 0


def this_python() -> str:
    """How a person calls the Python that runs this, the one that has JAX, from where they are.

    Another Python, such as the system's, may start ``python -m tpulab`` but no kernel file.
    """
    running = os.path.abspath(sys.executable)
    on_path = shutil.which("python")
    if on_path and os.path.abspath(on_path) == running:
        return "python"
    below = os.path.relpath(running)
    return running if below.startswith(os.pardir) else below
