"""Collect what the compiler wrote to its dump directory during one compile.

File names are ``<time>-<program>-<number>-<pass>.txt``; numbers differ between versions and are not
looked at. Programs called ``TLP`` (the top level that calls the others) and ``<late-…>`` are the
runtime's prologue and epilogue.
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

from tpulab.compiler.environment import DUMP_LABELS

TOP_LEVEL = "TLP"

_NAME = re.compile(
    r"^(\d+)-(?P<program>.+)-(\d+)-(?P<label>"
    + "|".join(re.escape(label) for label in DUMP_LABELS)
    + r")\.txt$"
)
_VMEM_REPORT = re.compile(r"-vmem_report\.html$")
_HLO = re.compile(r"-TLP-hlo\.txt$")
# the serialised kernel inside the HLO text: kilobytes of base64 that say nothing to a reader
_TABLES = re.compile(
    rb"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*\n", re.MULTILINE
)
_STACK_FRAME = re.compile(rb" stack_frame_id=\d+")
# loc("kernel.py":13:22 to :28), the source of an operation in an annotated listing
_LOCATION = re.compile(rb'loc\("([^"\n]+)":(\d+):(\d+)[^()\n]*\)')
_KERNEL_BODY = re.compile(rb'("body": ?")[A-Za-z0-9+/=]+(")')


def collect(directory: Path) -> dict[str, bytes]:
    """Read and compress the dumps of one compile.

    Returns:
        Segments by key: ``"hlo"``, ``"vmem"``, ``"<label>/<program>"``; each zlib-compressed text.
    """
    found: dict[str, bytes] = {}
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if match := _NAME.match(entry.name):
            program = match["program"]
            if program.startswith("<late-"):
                continue
            key = f"{match['label']}/{program}"
        elif _VMEM_REPORT.search(entry.name):
            key = "vmem"
        elif _HLO.search(entry.name):
            key = "hlo"
        else:
            continue
        text = Path(entry.path).read_bytes()
        if key == "hlo":
            # source places go too: an equal kernel elsewhere has others
            text = _STACK_FRAME.sub(b"", _TABLES.sub(b"", _KERNEL_BODY.sub(rb"\1\2", text)))
        elif key.startswith("final_bundles/"):
            text = _LOCATION.sub(rb"\1:\2:\3", text)
        # level 3: a tenth of the size in a few milliseconds
        found[key] = zlib.compress(text, 3)
    return found


def clear(directory: Path) -> None:
    """Delete everything in a dump directory; what can't be deleted is left."""
    for entry in os.scandir(directory):
        try:
            os.unlink(entry.path)
        except OSError:
            continue
