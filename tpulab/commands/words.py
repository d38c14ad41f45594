"""What the verbs' descriptions are made of: options that several share, kinds of numbers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def verb(verbs: Any, name: str, run: str, help: str, **more: Any) -> argparse.ArgumentParser:
    """One verb of the command line: its parser, and the function that it runs."""
    parser = verbs.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )
    parser.set_defaults(run=later(run))
    return parser


def later(name: str) -> Callable[[argparse.Namespace], int]:
    """``module:function`` of tpulab.commands, imported when it is called."""

    def run(options: argparse.Namespace) -> int:
        import importlib

        module, _, function = name.partition(":")
        return getattr(importlib.import_module(f"tpulab.commands.{module}"), function)(options)

    return run


def json_option(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def chip_option(parser: argparse.ArgumentParser, default: str | None) -> None:
    """--chip; ``default`` is None where a verb finds the chips out by itself."""
    parser.add_argument(
        "--chip",
        default=default,
        metavar="NAME[,NAME]",
        help="chips, separated by commas; tpulab chips lists them"
        + (f" (default: {default})" if default else ""),
    )


def kernel_options(parser: argparse.ArgumentParser) -> None:
    """The options of all verbs that import a kernel from a file."""
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        dest="args",
        metavar="SPEC",
        help="an argument by dtype and shape, such as 'bf16[4096,4096]', or with values, such as "
        "'i32[3]=[0,1,2]'; once for each argument. Without --arg the file's make_args() is called",
    )
    parser.add_argument(
        "--deadline",
        type=positive,
        metavar="SECONDS",
        help="how long importing the file and tracing the function may take (default: 60)",
    )
    parser.add_argument(
        "--memory",
        type=positive,
        metavar="GIB",
        help="memory your code may use (default: about three quarters of the machine's)",
    )


def positive(text: str) -> float:
    """A positive number, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def count(text: str) -> int:
    """A whole number above zero, for argparse."""
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return value
