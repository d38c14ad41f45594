"""The words of the command line. Standard library only, so that help needs no environment."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import tpulab

_EPILOG = """\
start here:
  tpulab lab                      open the labs in JupyterLab
  tpulab pair                     the same for two people at once
  tpulab doctor                   what works on this machine
  tpulab ladder FILE.py:FUNCTION --arg 'bf16[4096,4096]' --chip v5e
                                  how good a kernel is, and what is in the way

Each verb explains itself: tpulab VERB --help
"""


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
    for add in (_lab, _learning, _teaching, _scaffolding, _analysis, _calculators, _upkeep):
        add(verbs)
    return parser, dict(verbs.choices)


def _verb(verbs: Any, name: str, run: str, help: str, **more: Any) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )
    parser.set_defaults(run=_later(run))
    return parser


def _later(name: str) -> Callable[[argparse.Namespace], int]:
    """``module:function`` of tpulab.commands, imported when it is called."""

    def run(options: argparse.Namespace) -> int:
        import importlib

        module, _, function = name.partition(":")
        return getattr(importlib.import_module(f"tpulab.commands.{module}"), function)(options)

    return run


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def _chip_option(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        "--chip",
        default=default,
        metavar="NAME[,NAME]",
        help="chips, separated by commas; tpulab chips lists them"
        + (f" (default: {default})" if default else ""),
    )


def _kernel_options(parser: argparse.ArgumentParser) -> None:
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
        type=_positive,
        metavar="SECONDS",
        help="how long importing the file and tracing the function may take (default: 60)",
    )
    parser.add_argument(
        "--memory",
        type=_positive,
        metavar="GIB",
        help="memory your code may use (default: about three quarters of the machine's)",
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def _count(text: str) -> int:
    try:
        value = int(text.replace("_", ""))
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return value


def _lab(verbs: Any) -> None:
    parser = _verb(verbs, "lab", "lab:lab", "open the labs in JupyterLab")
    _serving_options(parser)

    parser = _verb(
        verbs,
        "pair",
        "pair:pair",
        "open the labs for two people at once, each in a browser of their own",
    )
    parser.add_argument(
        "--names", metavar="A,B", help="who you are, such as Ada,Grace; shown at your cursors"
    )
    _serving_options(parser)


def _serving_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a lab by number or name (default: the first)")
    parser.add_argument("--folder", help="where your copies of the labs are kept")
    parser.add_argument("--port", type=_count, help="port of the server (default: a free one)")
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address, open no browser"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="start, see that the server and a kernel answer, stop again",
    )


def _learning(verbs: Any) -> None:
    parser = _verb(
        verbs, "list", "learning:list_exercises", "list the exercises and how far you are"
    )
    parser.add_argument("track", nargs="?", help="only one track, such as matmul")
    _json_option(parser)

    parser = _verb(
        verbs,
        "check",
        "learning:check",
        "check your answer to an exercise: legal, correct, safe, compiles, fast",
    )
    parser.add_argument("name", help="the exercise, such as matmul.tiled")
    parser.add_argument(
        "answer",
        metavar="FILE.py[:FUNCTION]",
        help="your file; the function is named like the exercise unless you say otherwise",
    )
    _chip_option(parser, None)
    _json_option(parser)

    parser = _verb(verbs, "hint", "learning:hint", "show the next hint for an exercise")
    parser.add_argument("name", help="the exercise")
    parser.add_argument("number", nargs="?", type=_count, help="one hint by its number")

    parser = _verb(verbs, "solution", "learning:solution", "show the solution of an exercise")
    parser.add_argument("name", help="the exercise")
    parser.add_argument("--reveal", action="store_true", help="also before you have passed it")

    parser = _verb(
        verbs,
        "reset",
        "learning:reset",
        "forget what you did on an exercise, or take a fresh copy of a lab",
    )
    parser.add_argument("name", help="an exercise such as matmul.tiled, or a lab such as 10")
    parser.add_argument("--folder", help="where your copies of the labs are kept")


def _teaching(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "grade",
        "grade:grade",
        "grade notebooks and Python files of a class, with hidden cases",
        epilog="Results that still hold are kept, so a run that was interrupted goes on where it\n"
        "was. Submissions are only read.\n\n"
        "exit status: 0 every file graded, whatever its points; 1 a file or an exercise could\n"
        "not be graded, the results say which; 2 bad usage; 130 interrupted",
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="notebooks, Python files, folders of them"
    )
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="where results go: JSON, HTML, index.html"
    )
    parser.add_argument("--lab", help="the lab that all must answer (default: found out for each)")
    parser.add_argument(
        "--hidden", metavar="FILE", help="TOML file with hidden cases besides the derived ones"
    )
    parser.add_argument(
        "--secret",
        metavar="TEXT",
        help="what hidden cases are derived from (default: a secret kept on this machine)",
    )
    parser.add_argument(
        "--credit", metavar="FILE", help="TOML file with the shares of points by verdict and rung"
    )
    parser.add_argument("--again", action="store_true", help="grade also what has a result")
    parser.add_argument("--jobs", type=_count, metavar="N", help="files graded at the same time")
    parser.add_argument(
        "--deadline",
        type=_positive,
        metavar="SECONDS",
        help="how long one exercise of a file may take (default: 180)",
    )
    parser.add_argument(
        "--memory", type=_positive, metavar="GIB", help="memory an answer may use (default: 8)"
    )
    _chip_option(parser, None)
    _json_option(parser)


def _scaffolding(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "new",
        "scaffolding:new",
        "write a working kernel file to start from",
        epilog="the file holds a kernel, a NumPy oracle, example arguments, a check, its ladder\n"
        "and a benchmark; run it with python. A file that is there is never overwritten",
    )
    parser.add_argument("name", help="of the kernel's function and of the file, such as my_matmul")
    parser.add_argument(
        "--kind",
        required=True,
        metavar="matmul|attention|collective|vector",
        help="what the kernel computes to begin with",
    )
    parser.add_argument(
        "--out", default=".", metavar="DIR", help="folder for the file (default: this one)"
    )


def _analysis(verbs: Any) -> None:
    parser = _verb(
        verbs,
        "ladder",
        "ladder:ladder",
        "predict a kernel's time on a chip and say what is in the way",
        epilog="exit status: 0 all chips answered, 1 one refused, 2 bad usage",
    )
    parser.add_argument("target", metavar="FILE.py:FUNCTION", help="any Python file and function")
    _kernel_options(parser)
    _chip_option(parser, "v5e")
    parser.add_argument("--jobs", type=_count, metavar="N", help="chips worked on at the same time")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the predicted timeline for Perfetto or chrome://tracing; with several chips "
        "one file for each, the chip's name before the ending",
    )
    _json_option(parser)

    parser = _verb(
        verbs, "explain", "explain:explain", "explain a message of the TPU compiler or of Pallas"
    )
    parser.add_argument(
        "message",
        nargs="*",
        help="the message, a file that holds it, or an entry's name; else standard input",
    )
    _chip_option(parser, None)
    _json_option(parser)


def _calculators(verbs: Any) -> None:
    parser = _verb(verbs, "chips", "calculators:chips", "list the chips, or all figures of one")
    parser.add_argument("name", nargs="?", help="a chip, such as v5e")
    _json_option(parser)

    parser = _verb(
        verbs,
        "roofline",
        "calculators:roofline",
        "say how fast a kernel, a matmul or given work could be at best",
        epilog="a bound, not a prediction: peak arithmetic and bandwidth of the data sheet, every\n"
        "array through HBM once. tpulab chips NAME gives each figure's source",
    )
    parser.add_argument("target", nargs="?", metavar="FILE.py:FUNCTION", help="a kernel")
    _kernel_options(parser)
    parser.add_argument(
        "--matmul",
        nargs=3,
        type=_count,
        metavar=("M", "K", "N"),
        help="a product of [M, K] by [K, N]",
    )
    parser.add_argument("--flops", type=_positive, help="floating-point operations")
    parser.add_argument("--bytes", type=_positive, help="bytes moved to and from HBM")
    _dtype_options(parser)
    _chip_option(parser, "v5e")
    _json_option(parser)

    parser = _verb(
        verbs,
        "tiling",
        "calculators:tiling",
        "rank the block shapes of a tiled matmul by their bound",
        epilog="an estimate that ranks blocks; tpulab ladder predicts from compiled code",
    )
    parser.add_argument("m", type=_count, metavar="M", help="rows of the left operand")
    parser.add_argument("k", type=_count, metavar="K", help="columns of it, rows of the right one")
    parser.add_argument("n", type=_count, metavar="N", help="columns of the right operand")
    _dtype_options(parser)
    parser.add_argument(
        "--order",
        metavar="AXES",
        help="grid axes, slowest first, such as mnk or nmk (default: the better of these)",
    )
    parser.add_argument(
        "--block", nargs=3, type=_count, metavar=("BM", "BK", "BN"), help="one block shape only"
    )
    parser.add_argument("--top", type=_count, default=10, help="how many to list (default: 10)")
    _chip_option(parser, "v5e")
    _json_option(parser)

    parser = _verb(
        verbs,
        "collectives",
        "calculators:collectives",
        "say how long a collective over a slice of chips takes at best, and over which links",
        epilog="a bound, not a prediction: the busiest links at their one-way bandwidth, or the\n"
        "hops in a row, whichever takes longer. tpulab chips NAME gives each figure's source",
    )
    parser.add_argument(
        "kind",
        metavar="KIND",
        help="all-gather, reduce-scatter, all-reduce, all-to-all, or all of them: all",
    )
    parser.add_argument(
        "size",
        metavar="BYTES",
        help="of the whole array over all chips: 32MiB, 4.5e6 or an array, 'bf16[2048,8192]'",
    )
    parser.add_argument(
        "--slice",
        default="4x4",
        metavar="SHAPE",
        help="chips along the axes that it runs over, such as 4 or 4x4 (default: 4x4)",
    )
    parser.add_argument(
        "--wraparound",
        default="auto",
        metavar="yes|no|auto",
        help="whether the axes are rings, one word or one for each axis: yes,no. auto: as a slice "
        "of just these axes has it (default)",
    )
    _chip_option(parser, "v5e")
    _json_option(parser)


def _dtype_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="bf16", help="dtype of the operands (default: bf16)")
    parser.add_argument(
        "--rhs-dtype", metavar="DTYPE", help="dtype of the right operand, when it has another"
    )


def _upkeep(verbs: Any) -> None:
    parser = _verb(verbs, "doctor", "doctor:doctor", "say what works on this machine")
    parser.add_argument("--quick", action="store_true", help="compile nothing")
    _json_option(parser)

    parser = _verb(verbs, "test", "testing:test", "run every test and notebook")
    parser.add_argument("--fast", action="store_true", help="leave out what is slow")
    parser.add_argument(
        "--part",
        action="append",
        metavar="NAME",
        help="only this part; may be given again: lint, format, types, unit, notebooks, "
        "book, or jax (the tests of unit that depend on the version of jax)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "tpu"),
        default="cpu",
        help="tpu: only run the notebooks, on the TPU of this machine",
    )
    parser.add_argument("rest", nargs="*", metavar="PYTEST", help="words for pytest, after --")

    parser = _verb(
        verbs, "book", "book:book", "build the labs and the reference as a site that reads offline"
    )
    parser.add_argument("--out", metavar="DIR", help="where (default: build/book in the clone)")
    parser.add_argument("--open", action="store_true", help="open it in a browser")

    parser = _verb(
        verbs, "release", "lab:release", "write the labs from the solutions (for authors)"
    )
    parser.add_argument("names", nargs="*", help="labs by number or name (default: all)")
    parser.add_argument(
        "--execute", action="store_true", help="run the solutions and store their outputs"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say what would change; exit status 1 if anything"
    )
