"""The verbs of kernels: new ones, their ladder, the calculators."""

from __future__ import annotations

import argparse
from typing import Any

from tpulab.commands.words import chip_option, count, json_option, kernel_options, positive, verb


def scaffolding(verbs: Any) -> None:
    """The verb that writes a file to start from."""
    parser = verb(
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


def analysis(verbs: Any) -> None:
    """The verbs that compile, and the one that explains what a compiler says."""
    parser = verb(
        verbs,
        "ladder",
        "ladder:ladder",
        "predict a kernel's time on a chip and say what is in the way",
        epilog="exit status: 0 all chips answered, 1 one refused, 2 bad usage",
    )
    parser.add_argument("target", metavar="FILE.py:FUNCTION", help="any Python file and function")
    kernel_options(parser)
    chip_option(parser, "v5e")
    parser.add_argument("--jobs", type=count, metavar="N", help="chips worked on at the same time")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="write the predicted timeline for Perfetto or chrome://tracing; with several chips "
        "one file for each, the chip's name before the ending",
    )
    json_option(parser)

    parser = verb(
        verbs, "explain", "explain:explain", "explain a message of the TPU compiler or of Pallas"
    )
    parser.add_argument(
        "message",
        nargs="*",
        help="the message, a file that holds it, or an entry's name; else standard input",
    )
    chip_option(parser, None)
    json_option(parser)


def calculators(verbs: Any) -> None:
    """The verbs that compute bounds and list chips; nothing is compiled."""
    parser = verb(verbs, "chips", "calculators:chips", "list the chips, or all figures of one")
    parser.add_argument("name", nargs="?", help="a chip, such as v5e")
    json_option(parser)

    parser = verb(
        verbs,
        "roofline",
        "calculators:roofline",
        "say how fast a kernel, a matmul or given work could be at best",
        epilog="a bound, not a prediction: peak arithmetic and bandwidth of the data sheet, every\n"
        "array through HBM once. tpulab chips NAME gives each figure's source",
    )
    parser.add_argument("target", nargs="?", metavar="FILE.py:FUNCTION", help="a kernel")
    kernel_options(parser)
    parser.add_argument(
        "--matmul",
        nargs=3,
        type=count,
        metavar=("M", "K", "N"),
        help="a product of [M, K] by [K, N]",
    )
    parser.add_argument("--flops", type=positive, help="floating-point operations")
    parser.add_argument(
        "--bytes",
        metavar="BYTES",
        help="bytes moved to and from HBM: 1GB, 32MiB, 4.5e6 or an array, 'bf16[2048,8192]'",
    )
    _dtype_options(parser)
    chip_option(parser, "v5e")
    json_option(parser)

    parser = verb(
        verbs,
        "tiling",
        "calculators:tiling",
        "rank the block shapes of a tiled matmul by their bound",
        epilog="an estimate that ranks blocks; tpulab ladder predicts from compiled code",
    )
    parser.add_argument("m", type=count, metavar="M", help="rows of the left operand")
    parser.add_argument("k", type=count, metavar="K", help="columns of it, rows of the right one")
    parser.add_argument("n", type=count, metavar="N", help="columns of the right operand")
    _dtype_options(parser)
    parser.add_argument(
        "--order",
        metavar="AXES",
        help="grid axes, slowest first, such as mnk or nmk (default: the better of these)",
    )
    parser.add_argument(
        "--block", nargs=3, type=count, metavar=("BM", "BK", "BN"), help="one block shape only"
    )
    parser.add_argument("--top", type=count, default=10, help="how many to list (default: 10)")
    chip_option(parser, "v5e")
    json_option(parser)

    parser = verb(
        verbs,
        "collectives",
        "calculators:collectives",
        "say how long a collective over a slice of chips takes at best, and over which links",
        epilog="a bound, not a prediction: the busiest links at their one-way bandwidth, or the\n"
        "hops in a row, whichever takes longer; an all-reduce is a reduce-scatter, then an\n"
        "all-gather. tpulab chips NAME gives each figure's source",
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
    chip_option(parser, "v5e")
    json_option(parser)


def _dtype_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="bf16", help="dtype of the operands (default: bf16)")
    parser.add_argument(
        "--rhs-dtype", metavar="DTYPE", help="dtype of the right operand, when it has another"
    )
