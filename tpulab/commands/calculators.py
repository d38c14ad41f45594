"""``tpulab chips``, ``tpulab roofline`` and ``tpulab tiling``."""

from __future__ import annotations

import argparse
import json
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
    ways = [bool(options.target), bool(options.matmul), bool(options.flops or options.bytes)]
    if sum(ways) != 1:
        raise UsageError(
            "roofline needs one kind of work",
            hint="FILE.py:FUNCTION, --matmul M K N, or --flops F --bytes B",
        )
    if options.target:
        bounds = _bounds_of_kernel(options, chips_asked)
    else:
        if options.matmul:
            m, k, n = options.matmul
            work = room.Work.matmul(m, k, n, dtype)
        else:
            work = room.Work.of(options.flops or 0.0, options.bytes or 0.0, dtype)
        bounds = [room.bound(work, chip) for chip in chips_asked]
    if options.json:
        print(json.dumps({each.chip: each.to_json() for each in bounds}, indent=2))
    else:
        print(room.render_bounds(bounds))
        for note in _notes(bounds, from_file=bool(options.target)):
            print(note)
    return 0


#: below this, what a run costs before its first instruction is longer than the work
_SMALL_WORK_SECONDS = 1e-6


def _notes(bounds: list[Any], *, from_file: bool) -> list[str]:
    """What a reader of the table could take for more than it is."""
    notes = []
    if from_file and not any(each.compute_seconds for each in bounds):
        notes.append(
            "There are no matrix products; what the vector units do is no part of a bound."
        )
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
    m, k, n = options.m, options.k, options.n
    for chip in chip_names(options.chip):
        if options.block:
            block_m, block_k, block_n = options.block
            answers[chip] = room.matmul_tilings(
                m, k, n, block_m, block_k, block_n, chip=chip, dtype=dtype
            )
        else:
            answers[chip] = room.best_tilings(m, k, n, top=options.top, chip=chip, dtype=dtype)
    if options.json:
        print(json.dumps({chip: found.to_json() for chip, found in answers.items()}, indent=2))
    else:
        print("\n\n".join(found.table() for found in answers.values()))
    return 0
