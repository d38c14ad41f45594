"""``tpulab explain``: what a message of the compiler or of Pallas means."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tpulab.errors import UsageError

_LONGEST_MESSAGE_BYTES = 10_000_000
_HINT = (
    "tpulab explain 'exceeded scoped vmem limit' (or any message), "
    "tpulab explain FILE, or pipe the output in:  python kernel.py 2>&1 | tpulab explain"
)


def explain(options: argparse.Namespace) -> int:
    """Print cause, rule and remedy; 0 when the message is known, 1 when it is not."""
    from tpulab.compiler import explain as explain_message
    from tpulab.hardware import get_chip

    chip = get_chip(options.chip).name if options.chip else None
    explanation = explain_message(_message(options.message), chip)
    if options.json:
        print(json.dumps(asdict(explanation), indent=2))
    elif explanation.matched:
        print(explanation)
    else:
        print(_unknown(explanation))
    return 0 if explanation.matched else 1


def _unknown(explanation: Any) -> str:
    """What is said about a message that is not in the catalogue."""
    from tpulab.compiler.explanations import catalogue

    titles = {entry.key: entry.title for entry in catalogue()}
    lines = ["This message is not in the catalogue.", f"  message: {explanation.message}"]
    if explanation.where:
        lines.append(f"  where:   {explanation.where}")
    if explanation.closest:
        width = max(map(len, explanation.closest))
        lines.append("Entries that sound most like it; `tpulab explain NAME` shows one:")
        lines.extend(f"  {key:<{width}}  {titles[key]}" for key in explanation.closest)
    return "\n".join(lines)


def _message(words: list[str]) -> str:
    if len(words) == 1 and len(words[0]) < 4096 and "\n" not in words[0]:
        path = Path(words[0])
        if path.is_file():
            return path.read_bytes()[:_LONGEST_MESSAGE_BYTES].decode(errors="replace")
    if words:
        return " ".join(words)
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("there is no message to explain", hint=_HINT)
    text = sys.stdin.buffer.read(_LONGEST_MESSAGE_BYTES).decode(errors="replace")
    if not text.strip():
        raise UsageError("standard input is empty: there is no message to explain", hint=_HINT)
    return text
