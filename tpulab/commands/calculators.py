"""``tpulab chips``, ``roofline``, ``tiling`` and ``collectives``: figures without a kernel run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from tpulab.errors import UsageError


def chips(options: argparse.Namespace) -> int:
    """Print the catalogue, or every figure of one chip with its source."""
    from tpulab import hardware

    if options.json:
        print(json.dumps(hardware.chips_as_json(options.name), indent=2))
    elif options.name:
        print(hardware.describe(options.name))
    else:
        print(hardware.summary())
    return 0


def roofline(options: argparse.Namespace) -> int:
    """Print the least time of a kernel, a matmul or given work on each chip."""
    from tpulab import roofline as room
    from tpulab.commands.options import chip_names, dtype_word

    chips_asked = chip_names(options.chip)
    dtype = dtype_word(options.dtype)
    rhs_dtype = dtype_word(options.rhs_dtype) if options.rhs_dtype else None
    ways = [
        bool(options.target),
        bool(options.matmul),
        bool(options.flops or options.bytes is not None),
    ]
    if sum(ways) != 1:
        raise UsageError(
            "roofline needs one kind of work",
            hint="FILE.py:FUNCTION, --matmul M K N, or --flops F --bytes B",
        )
    if rhs_dtype and not options.matmul:
        raise UsageError("--rhs-dtype belongs to --matmul: other work has one dtype")
    if options.target:
        bounds = _bounds_of_kernel(options, chips_asked)
    else:
        if options.matmul:
            m, k, n = options.matmul
            work = room.Work.matmul(m, k, n, dtype, rhs_dtype=rhs_dtype)
        else:
            work = room.Work.of(options.flops or 0.0, _bytes(options.bytes), dtype)
        bounds = [room.bound(work, chip) for chip in chips_asked]
    if options.json:
        print(json.dumps({each.chip: each.to_json() for each in bounds}, indent=2))
    else:
        print(room.render_bounds(bounds))
        for note in _notes(bounds, from_file=bool(options.target)):
            print(note)
        print(_sources(chips_asked))
    return 0


def _bytes(text: str | None) -> float:
    """A number of bytes as a person writes it; 0 when none was given."""
    from tpulab import roofline as room
    from tpulab.errors import TpulabError

    if text is None:
        return 0.0
    try:
        return float(room.parse_bytes(text))
    except TpulabError as error:
        raise UsageError(f"--bytes: {error.what}", why=error.why, hint=error.hint) from error


def _sources(names: list[str]) -> str:
    """Where the figures of these chips come from, in a line."""
    return f"Figures of the chips with their sources: tpulab chips {names[0]}"


#: below this, somebody who gives a bare number may have thought of another unit
_SMALL_BYTES = 4096
#: below this, what a run costs before its first instruction is longer than the work
_SMALL_WORK_SECONDS = 1e-6


def _notes(bounds: list[Any], *, from_file: bool) -> list[str]:
    """What a reader of the table could take for more than it is."""
    notes = []
    if from_file and not any(each.compute_seconds for each in bounds):
        notes.append(
            "There are no matrix products; what the vector units do is no part of a bound."
        )
    if not from_file and not any(each.hbm_bytes for each in bounds):
        notes.append("No --bytes were given: the memory does not count.")
    if not from_file and not any(each.flops for each in bounds):
        notes.append("No --flops were given: the matrix unit does not count.")
    if all(each.seconds < _SMALL_WORK_SECONDS for each in bounds):
        notes.append("Work this small is shorter than any run: starting one takes microseconds.")
    return notes


def _bounds_of_kernel(options: argparse.Namespace, chips_asked: list[str]) -> list[Any]:
    from tpulab import roofline as room
    from tpulab.commands.options import check_target
    from tpulab.commands.supervise import Limits, run_supervised

    check_target(options.target)
    request = {
        "task": "roofline",
        "target": options.target,
        "arguments": options.args,
        "chips": chips_asked,
    }
    limits = Limits.from_options(options.deadline, options.memory)
    answer = run_supervised(request, limits)
    return [
        room.bound(
            room.Work(
                work["matmul_flops"],
                work["hbm_bytes"],
                work["vector_flops"],
                work["transcendentals"],
            ),
            chip,
        )
        for chip, work in answer.items()
    ]


def tiling(options: argparse.Namespace) -> int:
    """Print the best block shapes of a matmul, or the figures of one."""
    from tpulab import roofline as room
    from tpulab.commands.options import chip_names, dtype_word

    answers = {}
    dtype = dtype_word(options.dtype)
    rhs_dtype = dtype_word(options.rhs_dtype) if options.rhs_dtype else None
    order = options.order
    if order and sorted(order) != ["k", "m", "n"]:
        raise UsageError(f"--order {order} does not name m, n and k once each", hint="mnk or nmk")
    m, k, n = options.m, options.k, options.n
    for chip in chip_names(options.chip):
        if options.block:
            block_m, block_k, block_n = options.block
            answers[chip] = room.matmul_tilings(
                m, k, n, block_m, block_k, block_n,
                chip=chip, dtype=dtype, rhs_dtype=rhs_dtype, order=order or "mnk",
            )  # fmt: skip
        else:
            answers[chip] = room.best_tilings(
                m, k, n, top=options.top, chip=chip, dtype=dtype, rhs_dtype=rhs_dtype,
                orders=(order,) if order else ("mnk", "nmk"),
            )  # fmt: skip
    if options.json:
        print(json.dumps({chip: found.to_json() for chip, found in answers.items()}, indent=2))
    else:
        print("\n\n".join(found.table() for found in answers.values()))
        print(_sources(list(answers)))
    return 0


def collectives(options: argparse.Namespace) -> int:
    """Print what a collective takes on a slice of each chip at best, and over which links."""
    from tpulab import roofline as room
    from tpulab.commands.options import chip_names
    from tpulab.errors import TpulabError, UnknownNameError
    from tpulab.units import bytes_text

    kinds = room.KINDS if options.kind == "all" else (options.kind,)
    answers: dict[str, Any] = {}
    try:
        size, axes = room.parse_bytes(options.size), room.parse_slice(options.slice)
        rings = _wraparound(options.wraparound, len(axes))
        for chip in chip_names(options.chip):
            links = room.Links.of(chip, axes, wraparound=rings)
            answers[chip] = links, [room.collective(kind, size, links) for kind in kinds]
    except UnknownNameError:
        raise
    except TpulabError as error:
        raise UsageError(error.what, why=error.why, hint=error.hint) from error
    if max(axes) == 1:
        raise UsageError("a collective needs at least two chips", hint="--slice 4, or --slice 4x4")
    if options.json:
        print(json.dumps({c: _as_json(*answer) for c, answer in answers.items()}, indent=2))
        return 0
    if size < _SMALL_BYTES and options.size.strip().isdigit():
        print(
            f"A bare number counts bytes: {size} B. With a unit it would be {size}MiB or {size}KB."
        )
    for chip, (links, costs) in answers.items():
        print(f"{chip}, {links.chips} chips; at best:")
        print(room.render_collectives(costs))
        for sentence, names in _grouped((room.links_in_use(k, links), k) for k in kinds):
            print(f"{names}: {sentence}.")
        turns = ((bytes_text(room.balanced_bytes(kind, links)), kind) for kind in kinds)
        meet = "; ".join(f"{amount} for {names}" for amount, names in _grouped(turns))
        print(f"Hops and bytes take the same time at {meet}.\n")
    print("A bound, not a prediction: the busiest links at full rate, or the hops in a row.")
    print(_sources(list(answers)))
    return 0


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each sentence once, with the names of all that share it."""
    found: dict[str, list[str]] = {}
    for sentence, name in pairs:
        found.setdefault(sentence, []).append(name)
    return [(sentence, ", ".join(names)) for sentence, names in found.items()]


def _wraparound(text: str, axes: int) -> tuple[bool, ...] | None:
    """Which axes are rings from ``yes``, ``no``, ``auto`` or one word for each axis."""
    if text == "auto":
        return None
    words = text.split(",")
    if len(words) == 1:
        words *= axes
    if not set(words) <= {"yes", "no"} or len(words) != axes:
        raise UsageError(
            f"--wraparound {text} does not say which of {axes} axes are rings",
            hint="yes, no, auto, or one of yes and no for each axis: yes,no",
        )
    return tuple(word == "yes" for word in words)


def _as_json(links: Any, costs: list[Any]) -> list[dict[str, Any]]:
    from tpulab import roofline as room

    return [
        {
            **cost.to_json(),
            "chips": links.chips,
            "links": room.links_in_use(cost.kind, links),
            "balanced_bytes": room.balanced_bytes(cost.kind, links),
        }
        for cost in costs
    ]
