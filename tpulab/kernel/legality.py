"""The instant verdict: a traced kernel held against the rules of a chip, in pure Python.

Each rule is known from the compiler's own refusals or from the interpreter's findings; their
numbers in the atlas of pitfalls stand beside them. A rule of severity "error" is one that the
lowering refuses or that makes results wrong by contract; "warning" is an estimate.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from tpulab.kernel.model import Kernel, Operand, PallasCall, dtype_bits

if TYPE_CHECKING:
    from tpulab.hardware import Chip


@dataclasses.dataclass(frozen=True)
class Illegality:
    """One rule that a kernel breaks.

    Attributes:
        rule: short name of the rule. what: what breaks it, with the operand's name and figures.
        why: why the machine has the rule. hint: what to try. where: file:line when known.
        severity: "error", or "warning" for an estimate.
    """

    rule: str
    what: str
    why: str
    hint: str
    where: str | None
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.what}"]
        if self.where:
            lines.append(f"  where: {self.where}")
        return "\n".join([*lines, f"  why:   {self.why}", f"  try:   {self.hint}"])


Rule = Callable[[PallasCall, "Chip"], Iterator[Illegality]]


def illegalities(
    kernel: Kernel, chip: Chip | str | None = None, *, warnings: bool = False
) -> tuple[Illegality, ...]:
    """Every rule that a kernel breaks on a chip, errors first.

    Args:
        kernel: from ``trace``. chip: a ``Chip`` or its name; the one it was traced for by default.
        warnings: also estimates that the compiler may see differently (VMEM, waits).
    """
    from tpulab.hardware import get_chip

    if chip is None:
        chip = kernel.chip
    described = get_chip(chip) if isinstance(chip, str) else chip
    found: dict[Illegality, None] = {}
    for call in kernel.calls:
        for rule in RULES if call.steps else (empty_grid,):
            found.update(dict.fromkeys(rule(call, described)))
    listed = sorted(found, key=lambda item: item.severity != "error")
    return tuple(item for item in listed if warnings or item.severity == "error")


def empty_grid(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """A grid needs at least one step."""
    yield Illegality(
        "empty-grid",
        f"{call.name}'s grid {call.grid} has no steps",
        "nothing runs, and the output is whatever its memory held",
        "give every grid axis at least one step; round up with pl.cdiv",
        call.where,
    )


def _blocked(call: PallasCall) -> Iterator[Operand]:
    for operand in call.operands:
        if operand.memory_space == "vmem" or (
            operand.memory_space == "smem" and not operand.trivial
        ):
            yield operand


def scalar_operand(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 3: blocks have at least one dimension."""
    for operand in _blocked(call):
        if operand.rank == 0:
            yield Illegality(
                "scalar-operand",
                f"{operand.name} is a scalar ({operand.dtype}[]) in {operand.memory_space.upper()}",
                "VMEM holds tiles of 8×128 words; a block needs at least one dimension",
                "reshape it to (1,) and give it memory_space=pltpu.SMEM, or scalar-prefetch it",
                operand.where or call.where,
            )


def block_divisibility(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 1: the last two block dimensions are multiples of (8, 128) or whole."""
    for operand in _blocked(call):
        if operand.rank < 2:
            continue
        sizes, shape = operand.block_sizes, operand.shape
        problems = []
        if sizes[-1] != shape[-1] and sizes[-1] % chip.core.lanes:
            problems.append(("last", sizes[-1], shape[-1], chip.core.lanes))
        if sizes[-2] != shape[-2] and sizes[-2] % chip.core.sublanes:
            problems.append(("second-to-last", sizes[-2], shape[-2], chip.core.sublanes))
        for which, size, whole, unit in problems:
            nearest = max(unit, round(size / unit) * unit)
            yield Illegality(
                "block-divisibility",
                f"{operand.name} has blocks of {_shape(operand)} of {list(shape)}: the {which} "
                f"dimension, {size}, is neither a multiple of {unit} nor the whole {whole}",
                f"VMEM is tiled in {chip.core.sublanes} sublanes × {chip.core.lanes} lanes, and "
                "the pipeline moves whole tiles",
                f"make it {min(nearest, whole)}, or {whole}, and move small dimensions to the "
                "front of the array",
                operand.where or call.where,
            )


def rank_one_blocks(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 2: rank-1 blocks are whole, a multiple of 1024, or a large enough power of two."""
    for operand in _blocked(call):
        if operand.rank != 1:
            continue
        size, whole = operand.block_sizes[0], operand.shape[0]
        chunk = chip.core.sublanes * chip.core.lanes
        smallest = chip.core.lanes * max(1, 32 // dtype_bits(operand.dtype))
        power = size >= smallest and size & (size - 1) == 0
        if size == whole or size % chunk == 0 or power:
            continue
        yield Illegality(
            "rank-1-block",
            f"{operand.name} has rank-1 blocks of {size} of {whole} {operand.dtype} elements",
            f"rank-1 arrays lie in tiles of {smallest} to {chunk} elements; a block is the whole "
            f"array, a multiple of {chunk}, or a power of two of at least {smallest}",
            f"use blocks of {max(chunk, round(size / chunk) * chunk)}, or reshape the array to "
            f"(n/{chip.core.lanes}, {chip.core.lanes}) outside the kernel",
            operand.where or call.where,
        )


def hbm_window(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """An operand that stays in HBM has no blocks."""
    for operand in call.operands:
        if operand.memory_space not in ("any", "hbm") or operand.trivial:
            continue
        yield Illegality(
            "hbm-block",
            f"{operand.name} stays in HBM but has blocks of {_shape(operand)} of "
            f"{list(operand.shape)} or an index map",
            "the pipeline moves blocks into VMEM and SMEM only",
            "leave block_shape and index_map out and copy by hand, or use pltpu.VMEM",
            operand.where or call.where,
        )


def window_without_grid(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Blocks need a grid to walk over them."""
    if call.grid:
        return
    for operand in call.operands:
        if not operand.trivial and operand.memory_space in ("vmem", "smem"):
            yield Illegality(
                "block-without-grid",
                f"{operand.name} has blocks of {_shape(operand)} of {list(operand.shape)}, "
                "and the call has no grid",
                "without a grid there is one step, and the rest of the array would never be seen",
                "give pallas_call a grid, or leave the block shape out",
                operand.where or call.where,
            )


def mixed_element_dims(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Element dimensions come all together or not at all."""
    for operand in call.operands:
        kept = [axis for axis, size in enumerate(operand.block_shape) if size is not None]
        elements = [axis for axis in kept if axis in operand.element_dims]
        if elements and len(elements) != len(kept):
            yield Illegality(
                "mixed-element-dims",
                f"{operand.name} mixes pl.Element and blocked dimensions",
                "the TPU lowering takes element windows in every dimension or in none",
                "make the other dimensions pl.Element too and multiply their indices by the size",
                operand.where or call.where,
            )


def element_alignment(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 29: element windows start on a tile."""
    for operand in call.operands:
        if operand.indices is None or operand.memory_space != "vmem":
            continue
        units = {operand.rank - 1: chip.core.lanes, operand.rank - 2: chip.core.sublanes}
        for axis in operand.element_dims:
            unit = units.get(axis)
            if unit is None or operand.block_shape[axis] == operand.shape[axis]:
                continue
            starts = operand.indices[:, axis]
            bad = np.flatnonzero(starts % unit)
            if bad.size:
                step = int(bad[0])
                yield Illegality(
                    "element-alignment",
                    f"{operand.name}'s window starts at {int(starts[step])} along dimension {axis} "
                    f"at step {_coordinates(call, step)}, not on a multiple of {unit}",
                    "arrays in HBM are tiled too, and a window is copied in whole tiles",
                    "start on a tile, take a larger window and shift inside with pltpu.roll",
                    operand.where or call.where,
                )


def index_out_of_range(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 49: block indices stay inside the array."""
    for operand in call.operands:
        if operand.indices is None or not operand.is_pipelined or not operand.indices.size:
            continue
        for axis, count in enumerate(operand.block_counts):
            column = operand.indices[:, axis]
            limit = operand.shape[axis] if axis in operand.element_dims else count
            bad = np.flatnonzero((column < 0) | (column >= limit))
            if not bad.size:
                continue
            step = int(bad[0])
            unit = "elements" if axis in operand.element_dims else "blocks"
            yield Illegality(
                "block-out-of-range",
                f"{operand.name}'s index map returns {int(column[step])} along dimension {axis} at "
                f"grid step {_coordinates(call, step)}; there are {limit} {unit} "
                f"({bad.size:,} of {call.steps:,} steps)",
                "the CPU clamps the index silently; on the chip the copy leaves the array and "
                "halts the core or reads garbage",
                "clamp the index with jnp.minimum and mask in the kernel, or shorten the grid",
                operand.where or call.where,
            )


def non_consecutive_revisit(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 42: an output block's steps follow each other."""
    for operand in call.outputs:
        if operand.indices is None or not operand.is_pipelined or operand.revisit_any:
            continue
        blocks = _block_ids(operand)
        starts = np.ones(blocks.size, bool)
        starts[1:] = blocks[1:] != blocks[:-1]
        runs = blocks[starts]
        unique, counts = np.unique(runs, return_counts=True)
        if (counts == 1).all():
            continue
        block = unique[np.argmax(counts > 1)]
        first, second = np.flatnonzero(starts)[runs == block][:2]
        axis = _varying_axis(call, int(first), int(second))
        yield Illegality(
            "output-revisited",
            f"{operand.name}'s block {operand.indices[int(first)].tolist()} is written at grid "
            f"step {_coordinates(call, int(first))}, left, and come back to at "
            f"{_coordinates(call, int(second))}",
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
            blocks = _block_ids(operand)
            steps[1:] &= blocks[1:] == blocks[:-1]
        steps[0] = False
        for axis in parallel:
            bad = np.flatnonzero(steps & (outermost == axis))
            if not bad.size:
                continue
            told.add(axis)
            yield Illegality(
                "parallel-carry",
                f"{name} carries a value into step {_coordinates(call, int(bad[0]))} along grid "
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
        blocks = _block_ids(operand)
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
                f"{_coordinates(call, first)} and {_coordinates(call, second)}, which differ along "
                f"grid axis {axis}, marked parallel",
                "steps along a parallel axis may run on two TensorCores at once, and both would "
                "write the same block",
                f'mark axis {axis} "arbitrary", or give every step along it a block of its own',
                operand.where or call.where,
                # nothing is read back, so it may be an output that serves as scratch
                "warning",
            )
            break


def hbm_access(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 7: loads and stores reach VMEM and SMEM only."""
    for name, where in call.facts.any_accesses:
        yield Illegality(
            "hbm-access",
            f"{name} stays in HBM and is loaded or stored directly",
            "the core reaches VMEM and SMEM; HBM only through copies",
            "copy it with pltpu.sync_copy or make_async_copy into a VMEM scratch, or give it a "
            "BlockSpec in VMEM",
            where or call.where,
        )


def smem_vector_load(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 9: SMEM is read a word at a time."""
    for name, where in call.facts.smem_vector_loads:
        yield Illegality(
            "smem-vector",
            f"{name} is in SMEM and is loaded as a vector",
            "SMEM feeds the scalar unit one 32-bit word at a time",
            "load single elements, or keep it in VMEM",
            where or call.where,
        )


def vmem_scalar_store(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 8: VMEM is written by vector stores."""
    for name, where in call.facts.vmem_scalar_stores:
        yield Illegality(
            "vmem-scalar-store",
            f"a scalar is stored to {name}, which is in VMEM",
            "the scalar unit writes SMEM; VMEM is written by vector stores",
            "store a value with dimensions (1, ...), or put the buffer in SMEM",
            where or call.where,
        )


def wide_types(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfalls 37 and 85: no 64-bit values."""
    for dtype, where in call.facts.wide_types[:1]:
        yield _wide(dtype, "a value in the kernel", where or call.where)
    for operand in call.operands:
        if operand.dtype in ("float64", "int64", "uint64"):
            yield _wide(operand.dtype, operand.name, operand.where or call.where)
    for scratch in call.scratch:
        if scratch.dtype in ("float64", "int64", "uint64"):
            yield _wide(scratch.dtype, scratch.name, call.where)


def _wide(dtype: str, what: str, where: str | None) -> Illegality:
    return Illegality(
        "64-bit",
        f"{what} is {dtype}",
        "a TPU core is a 32-bit machine; the compiler aborts the whole process on some of these",
        "use 32-bit types, and trace kernels with jax.enable_x64(False)",
        where,
    )


def untouched_output(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """An output that no step writes."""
    for name in call.facts.untouched_outputs:
        operand = call.operand(name)
        if operand.aliased_with is not None:
            continue
        yield Illegality(
            "output-never-written",
            f"the kernel never stores to {name}",
            "the block that goes back to HBM is then whatever VMEM held",
            f"write {name}[...] in the kernel",
            call.where,
        )


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
            f"{_coordinates(call, step)}) goes back to HBM without a store to it; "
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
            blocks = _block_ids(operand)
            first[1:] = blocks[1:] != blocks[:-1]
        bad = np.flatnonzero(carried & first)
        if not bad.size:
            continue
        yield Illegality(
            "uninitialised-read",
            f"{name} is read at grid step {_coordinates(call, int(bad[0]))} before anything was "
            "written to it",
            "scratch and output blocks hold whatever VMEM held before",
            f"write {name} first, under pl.when at the first step of the reduction",
            where or call.where,
            "warning",
        )


def vmem_budget(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 24: blocks and scratch fit the VMEM that the compiler grants a kernel."""
    limit = call.vmem_limit_bytes or chip.core.default_scoped_vmem_bytes
    if call.vmem_bytes > limit:
        largest = max(
            (o for o in call.operands if o.memory_space == "vmem"),
            key=lambda o: o.block_bytes_padded * o.buffer_count,
            default=None,
        )
        most = (
            f"; the most by {largest.name}, {largest.buffer_count} × "
            f"{_mib(largest.block_bytes_padded)}"
            if largest
            else ""
        )
        physical = chip.core.vmem.capacity_bytes
        fits = call.vmem_bytes < physical * 0.9 and call.vmem_limit_bytes is None
        yield Illegality(
            "vmem-budget",
            f"blocks and scratch take {_mib(call.vmem_bytes)} of VMEM, the limit on {chip.name} is "
            f"{_mib(limit)}{most}",
            "every moving block is held twice, so that one can be copied while the other is used",
            "use smaller blocks"
            + (
                f", or raise vmem_limit_bytes (the core has {_mib(physical)})"
                if fits
                else " or a grid"
            ),
            call.where,
            "warning",
        )
    elif call.vmem_limit_bytes and call.vmem_limit_bytes > chip.core.vmem.capacity_bytes:
        yield Illegality(
            "vmem-limit",
            f"vmem_limit_bytes is {_mib(call.vmem_limit_bytes)}, and a core of {chip.name} has "
            f"{_mib(chip.core.vmem.capacity_bytes)}",
            "the compiler does not check the figure itself",
            "ask for less than the core has",
            call.where,
            "warning",
        )


def smem_budget(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Page tables and other prefetched scalars fit SMEM."""
    if call.smem_bytes > chip.core.smem.capacity_bytes:
        yield Illegality(
            "smem-budget",
            f"scalars take {call.smem_bytes:,} bytes of SMEM, {chip.name} has "
            f"{chip.core.smem.capacity_bytes:,}",
            "scalar-prefetch operands live in SMEM as a whole",
            "prefetch less at a time, or keep the table in HBM and copy the rows you need",
            call.where,
            "warning",
        )


def copies_waited_for(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfalls 52 and 55: every started copy is waited for."""
    started, waited = call.dma_count, call.dma_wait_count
    if call.dma_started_bytes == call.dma_waited_bytes or call.remote_bytes:
        return
    if not call.dma_counts_exact:
        return
    less = call.dma_waited_bytes < call.dma_started_bytes
    yield Illegality(
        "copy-not-waited" if less else "wait-without-copy",
        f"{started:,} copies of {call.dma_started_bytes:,} bytes are started and {waited:,} waits "
        f"for {call.dma_waited_bytes:,} bytes made",
        "without a wait the data may not be there, and the semaphore keeps its count for the next "
        "kernel"
        if less
        else "a wait for a copy that was never started does not return",
        "give every start() exactly one wait()",
        call.where,
        "warning",
    )


RULES: tuple[Rule, ...] = (
    scalar_operand,
    block_divisibility,
    rank_one_blocks,
    hbm_window,
    window_without_grid,
    mixed_element_dims,
    element_alignment,
    index_out_of_range,
    non_consecutive_revisit,
    parallel_carry,
    hbm_access,
    smem_vector_load,
    vmem_scalar_store,
    wide_types,
    untouched_output,
    skipped_block,
    read_before_write,
    vmem_budget,
    smem_budget,
    copies_waited_for,
)


def _shape(operand: Operand) -> str:
    return str(["squeezed" if size is None else size for size in operand.block_shape])


def _coordinates(call: PallasCall, step: int) -> str:
    return str(tuple(int(value) for value in np.unravel_index(step, call.grid)))


def _varying_axis(call: PallasCall, first: int, second: int) -> int:
    one, other = np.unravel_index(first, call.grid), np.unravel_index(second, call.grid)
    return next(axis for axis in range(len(call.grid)) if one[axis] != other[axis])


def _block_ids(operand: Operand) -> np.ndarray:
    """One integer per step, equal when the block is the same."""
    assert operand.indices is not None
    if not operand.indices.shape[1]:
        return np.zeros(operand.indices.shape[0], np.int64)
    low = operand.indices.min(axis=0)
    spans = operand.indices.max(axis=0) - low + 1
    ids = np.zeros(operand.indices.shape[0], np.int64)
    for axis, span in enumerate(spans):
        ids = ids * int(span) + (operand.indices[:, axis] - int(low[axis]))
    if math.prod(int(span) for span in spans) > 2**62:
        return np.unique(operand.indices, axis=0, return_inverse=True)[1]
    return ids


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**19 else f"{size / 2**10:.1f} KiB"
