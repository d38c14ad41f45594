"""The verbs for the product itself: doctor, test, book, release."""

from __future__ import annotations

from typing import Any

from tpulab.commands.words import json_option, verb


def upkeep(verbs: Any) -> None:
    """The verbs that look after an installation and the labs."""
    parser = verb(verbs, "doctor", "doctor:doctor", "say what works on this machine")
    parser.add_argument("--quick", action="store_true", help="compile nothing")
    json_option(parser)

    parser = verb(verbs, "test", "testing:test", "run every test and notebook")
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

    parser = verb(
        verbs, "book", "book:book", "build the labs and the reference as a site that reads offline"
    )
    parser.add_argument("--out", metavar="DIR", help="where (default: build/book in the clone)")
    parser.add_argument("--open", action="store_true", help="open it in a browser")

    parser = verb(
        verbs, "release", "lab:release", "write the labs from the solutions (for authors)"
    )
    parser.add_argument("names", nargs="*", help="labs by number or name (default: all)")
    parser.add_argument(
        "--execute", action="store_true", help="run the solutions and store their outputs"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say what would change; exit status 1 if anything"
    )
