"""``tpulab new``: a kernel file to start from."""

from __future__ import annotations

import argparse


def new(options: argparse.Namespace) -> int:
    """Write the file and say what can be done with it."""
    import shlex

    from tpulab.scaffolds import KINDS, write

    file = write(options.name, options.kind, options.out)
    quoted = shlex.quote(str(file))
    print(f"wrote {file}: {KINDS[options.kind]}")
    print(f"  python {quoted}".ljust(44) + "  check it, and say how fast it is")
    print(f"  tpulab ladder {quoted}:{options.name}".ljust(44) + "  what is in the way")
    return 0
