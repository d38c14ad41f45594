"""The command line: its verbs, by families, and slips in it.

Standard library only, here and in the families, so that help needs no environment.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, NoReturn

import tpulab
from tpulab.commands import kernel_verbs, lab_verbs, upkeep_verbs

_EPILOG = """\
start here:
  tpulab lab                      open the labs in JupyterLab
  tpulab pair                     the same for two to seven people at once
  tpulab doctor                   what works on this machine
  tpulab ladder FILE.py:FUNCTION --arg 'bf16[4096,4096]' --chip v5e
                                  how good a kernel is, and what is in the way

Each verb explains itself: tpulab VERB --help
"""

# in the order of the help
_FAMILIES = (
    lab_verbs.serving,
    lab_verbs.learning,
    lab_verbs.teaching,
    kernel_verbs.scaffolding,
    kernel_verbs.analysis,
    kernel_verbs.calculators,
    upkeep_verbs.upkeep,
)


class _Parser(argparse.ArgumentParser):
    """argparse with sentences: a slip gets the close match, not a list of everything."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"tpulab: {message}\n  try:   {self.prog} --help\n")
        sys.exit(2)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse a command line; ``run`` of the result is the verb's function.

    Args:
        arguments: the words after ``tpulab``.

    Raises:
        SystemExit: 0 after help or version, 2 after a sentence about a slip.
    """
    parser, verbs = _build()
    if not arguments:
        parser.print_help()
        sys.exit(0)
    first = arguments[0]
    if not first.startswith("-") and first not in verbs:
        close = difflib.get_close_matches(first, verbs, n=1, cutoff=0.5)
        hint = f"did you mean  tpulab {close[0]}?" if close else "tpulab --help lists the verbs"
        sys.stderr.write(f"tpulab: there is no verb {first!r}\n  try:   {hint}\n")
        sys.exit(2)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse_unknown(verbs[options.verb], unknown[0])
    return options


def verbs() -> dict[str, argparse.ArgumentParser]:
    """Every verb's parser by its name, in the order of the help."""
    return dict(_build()[1])


def _refuse_unknown(verb: argparse.ArgumentParser, word: str) -> NoReturn:
    known = [option for action in verb._actions for option in action.option_strings]
    close = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.5)
    what = "has no option" if word.startswith("-") else "does not know what to do with"
    hint = f"did you mean {close[0]}?" if close else f"{verb.prog} --help"
    sys.stderr.write(f"tpulab: {verb.prog} {what} {word!r}\n  try:   {hint}\n")
    sys.exit(2)


def _build() -> tuple[_Parser, dict[str, Any]]:
    parser = _Parser(
        prog="tpulab",
        description=(
            "Write TPU kernels; the real TPU compiler and a simulator of its programs tell you "
            "how good they are. No TPU needed."
        ),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tpulab {tpulab.__version__}")
    verbs = parser.add_subparsers(
        title="verbs", dest="verb", metavar="VERB", parser_class=_Parser, required=True
    )
    for add in _FAMILIES:
        add(verbs)
    return parser, dict(verbs.choices)
