"""``python -m tests.benchmarks``: measure and print, one table a part."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
from pathlib import Path

from tests.benchmarks import checking, compiling, laddering, simulating, start_up
from tests.benchmarks.common import table

PARTS = {
    "start": start_up,
    "compile": compiling,
    "simulate": simulating,
    "check": checking,
    "ladder": laddering,
}


def main() -> int:
    """Run what was asked for; 1 if a part could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs a figure (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown or options.repeat < 1:
        parser.error(f"parts are {', '.join(PARTS)}; --repeat is at least 1")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} CPUs, "
        f"load {load:.1f}, median of {options.repeat}"
    )
    figures, status = {}, 0
    for part in options.parts or PARTS:
        module = PARTS[part]
        print(flush=True)
        try:
            rows = module.measure(options.repeat)
        except Exception as error:
            print(f"{module.TITLE}\nnot measured: {error}", file=sys.stderr)
            status = 1
            continue
        figures[part] = [dataclasses.asdict(row) for row in rows]
        print(table(module.TITLE, rows), flush=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
