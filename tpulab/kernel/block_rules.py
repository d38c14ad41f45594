"""Rules of blocks and index maps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tpulab.kernel.model import Operand, PallasCall, dtype_bits
from tpulab.kernel.rule import Illegality, block_text, step_text

if TYPE_CHECKING:
    from tpulab.hardware import Chip


def _blocked(call: PallasCall) -> Iterator[Operand]:
    for operand in call.operands:
        if operand.memory_space == "vmem" or (
            operand.memory_space == "smem" and not operand.trivial
        ):
            yield operand


def empty_grid(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """A grid needs at least one step."""
    yield Illegality(
        "empty-grid",
        f"{call.name}'s grid {call.grid} has no steps",
        "nothing runs, and the output is whatever its memory held",
        "give every grid axis at least one step; round up with pl.cdiv",
        call.where,
    )


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
                f"{operand.name} has blocks of {block_text(operand)} of {list(shape)}: the {which} "
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
            f"{operand.name} stays in HBM but has blocks of {block_text(operand)} of "
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
                f"{operand.name} has blocks of {block_text(operand)} of {list(operand.shape)}, "
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
                    f"at step {step_text(call, step)}, not on a multiple of {unit}",
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
                f"grid step {step_text(call, step)}; there are {limit} {unit} "
                f"({bad.size:,} of {call.steps:,} steps)",
                "the CPU clamps the index silently; on the chip the copy leaves the array and "
                "halts the core or reads garbage",
                "clamp the index with jnp.minimum and mask in the kernel, or shorten the grid",
                operand.where or call.where,
            )
