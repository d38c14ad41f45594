"""The verbs of labs: opening them, answering exercises, grading a class."""

from __future__ import annotations

import argparse
from typing import Any

from tpulab.commands.words import chip_option, count, json_option, positive, verb


def serving(verbs: Any) -> None:
    """The verbs that serve JupyterLab."""
    parser = verb(verbs, "lab", "lab:lab", "open the labs in JupyterLab")
    _serving_options(parser)

    parser = verb(
        verbs,
        "pair",
        "pair:pair",
        "open the labs for two to seven people at once, each in a browser of their own",
    )
    parser.add_argument(
        "--names",
        metavar="A,B[,…]",
        help="who you are, 2 to 7 names such as Ada,Grace; shown at your cursors",
    )
    _serving_options(parser)


def _serving_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a lab by number or name (default: the first)")
    parser.add_argument("--folder", help="where your copies of the labs are kept")
    parser.add_argument("--port", type=count, help="port of the server (default: a free one)")
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address, open no browser"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="start, see that the server and a kernel answer, stop again",
    )


def learning(verbs: Any) -> None:
    """The verbs for exercises."""
    parser = verb(
        verbs, "list", "learning:list_exercises", "list the exercises and how far you are"
    )
    parser.add_argument("track", nargs="?", help="only one track, such as matmul")
    json_option(parser)

    parser = verb(
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
    chip_option(parser, None)
    json_option(parser)

    parser = verb(verbs, "hint", "learning:hint", "show the next hint for an exercise")
    parser.add_argument("name", help="the exercise")
    parser.add_argument("number", nargs="?", type=count, help="one hint by its number")

    parser = verb(verbs, "solution", "learning:solution", "show the solution of an exercise")
    parser.add_argument("name", help="the exercise")
    parser.add_argument("--reveal", action="store_true", help="also before you have passed it")

    parser = verb(
        verbs,
        "reset",
        "learning:reset",
        "forget what you did on an exercise, or take a fresh copy of a lab",
    )
    parser.add_argument("name", help="an exercise such as matmul.tiled, or a lab such as 10")
    parser.add_argument("--folder", help="where your copies of the labs are kept")


def teaching(verbs: Any) -> None:
    """The verb for many submissions."""
    parser = verb(
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
        "--secret-file",
        metavar="FILE",
        help="file with the text that hidden cases are derived from; the environment variable "
        "TPULAB_GRADING_SECRET can hold it as well (default: a secret kept on this machine)",
    )
    parser.add_argument(
        "--credit", metavar="FILE", help="TOML file with the shares of points by verdict and rung"
    )
    parser.add_argument("--again", action="store_true", help="grade also what has a result")
    parser.add_argument("--jobs", type=count, metavar="N", help="files graded at the same time")
    parser.add_argument(
        "--deadline",
        type=positive,
        metavar="SECONDS",
        help="how long one exercise of a file may take (default: 180)",
    )
    parser.add_argument(
        "--memory", type=positive, metavar="GIB", help="memory an answer may use (default: 8)"
    )
    chip_option(parser, None)
    json_option(parser)
