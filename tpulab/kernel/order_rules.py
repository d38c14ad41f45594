"""Rules of the order in which grid steps run: what is revisited, carried and left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tpulab.kernel.model import PallasCall
from tpulab.kernel.rule import Illegality, block_ids, step_text, varying_axis

if TYPE_CHECKING:
    from tpulab.hardware import Chip


def non_consecutive_revisit(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 42: an output block's steps follow each other."""
    for operand in call.outputs:
        if operand.indices is None or not operand.is_pipelined or operand.revisit_any:
            continue
        blocks = block_ids(operand)
        starts = np.ones(blocks.size, bool)
        starts[1:] = blocks[1:] != blocks[:-1]
        runs = blocks[starts]
        unique, counts = np.unique(runs, return_counts=True)
        if (counts == 1).all():
            continue
        block = unique[np.argmax(counts > 1)]
        first, second = np.flatnonzero(starts)[runs == block][:2]
        axis = varying_axis(call, int(first), int(second))
        yield Illegality(
            "output-revisited",
            f"{operand.name}'s block {operand.indices[int(first)].tolist()} is written at grid "
            f"step {step_text(call, int(first))}, left, and come back to at "
            f"{step_text(call, int(second))}",
            "an output block goes to HBM when its index changes and is not fetched again: what "
            "was accumulated before is lost",
            f"put grid axis {axis} last, so that an output block's steps follow each other, and "
            "accumulate there",
            operand.where or call.where,
        )


def parallel_carry(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfalls 43 and 44: nothing is carried along an axis marked parallel."""
    parallel = [a for a, kind in enumerate(call.dimension_semantics) if "parallel" in kind]
    if not parallel or call.steps < 2:
        return
    coordinates = call.step_coordinates()
    changed = coordinates[1:] != coordinates[:-1]
    outermost = np.concatenate([[-1], np.argmax(changed, axis=1)])
    told: set[int] = set()
    for name, role, carried, where in call.facts.carried:
        steps = carried.copy()
        if role == "output":
            operand = call.operand(name)
            if operand.indices is None:
                continue
            blocks = block_ids(operand)
            steps[1:] &= blocks[1:] == blocks[:-1]
        steps[0] = False
        for axis in parallel:
            bad = np.flatnonzero(steps & (outermost == axis))
            if not bad.size:
                continue
            told.add(axis)
            yield Illegality(
                "parallel-carry",
                f"{name} carries a value into step {step_text(call, int(bad[0]))} along grid "
                f"axis {axis}, which is marked parallel",
                "steps along a parallel axis may run in any order and on two TensorCores (v4, "
                "v5p), each with its own VMEM",
                f'mark axis {axis} "arbitrary", or start afresh at every step along it',
                where or call.where,
            )
            break
    for operand in call.outputs:
        if operand.indices is None or not operand.is_pipelined:
            continue
        blocks = block_ids(operand)
        order = np.argsort(blocks, kind="stable")
        same = blocks[order][1:] == blocks[order][:-1]
        for axis in (a for a in parallel if a not in told):
            along = coordinates[order, axis]
            bad = np.flatnonzero(same & (along[1:] != along[:-1]))
            if not bad.size:
                continue
            first, second = int(order[bad[0]]), int(order[bad[0] + 1])
            yield Illegality(
                "parallel-output",
                f"{operand.name}'s block {operand.indices[first].tolist()} is written at steps "
                f"{step_text(call, first)} and {step_text(call, second)}, which differ along "
                f"grid axis {axis}, marked parallel",
                "steps along a parallel axis may run on two TensorCores at once, and both would "
                "write the same block",
                f'mark axis {axis} "arbitrary", or give every step along it a block of its own',
                operand.where or call.where,
                # nothing is read back, so it may be an output that serves as scratch
                "warning",
            )
            break


def skipped_block(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 48: every output block that goes back to HBM was stored to."""
    for operand in call.outputs:
        stored = call.facts.stored.get(operand.name)
        if stored is None or operand.indices is None or not operand.is_pipelined:
            continue
        # the steps between two write-backs belong to one visit of a block
        visit = np.concatenate([[0], np.cumsum(operand.moving)[:-1]])
        seen = np.zeros(int(visit[-1]) + 1, bool)
        np.logical_or.at(seen, visit, stored)
        if seen.all():
            continue
        step = int(np.flatnonzero(~seen[visit])[0])
        yield Illegality(
            "output-block-skipped",
            f"{operand.name}'s block {operand.indices[step].tolist()} (grid step "
            f"{step_text(call, step)}) goes back to HBM without a store to it; "
            f"{int((~seen).sum()):,} of {seen.size:,} blocks do",
            "the whole window is written back when its index changes, whatever it holds",
            f"store to {operand.name} in a step of every block",
            operand.where or call.where,
            "warning",
        )


def read_before_write(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 41: what is read was written before."""
    for name, role, carried, where in call.facts.carried:
        first = np.zeros(carried.size, bool)
        first[0] = True
        if role == "output":
            operand = call.operand(name)
            if operand.indices is None or not operand.is_pipelined:
                continue
            blocks = block_ids(operand)
            first[1:] = blocks[1:] != blocks[:-1]
        bad = np.flatnonzero(carried & first)
        if not bad.size:
            continue
        yield Illegality(
            "uninitialised-read",
            f"{name} is read at grid step {step_text(call, int(bad[0]))} before anything was "
            "written to it",
            "scratch and output blocks hold whatever VMEM held before",
            f"write {name} first, under pl.when at the first step of the reduction",
            where or call.where,
            "warning",
        )
