"""Index maps that leave their array: which slip it is. Runs in the learner's process.

Three slips are usual, and each has its own remedy: elements returned where blocks are counted,
indices swapped, and a grid that runs on where the array has one block only.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


def _inside(indices: np.ndarray, counts: tuple[int, ...]) -> bool:
    return bool(((indices >= 0) & (indices < np.asarray(counts))).all())


def out_of_range(kernel: Any) -> dict[str, Any] | None:
    """The first pipelined operand whose index map leaves its array, and why it seems to.

    Returns:
        ``what``, ``why``, ``hint``, ``where`` and ``named`` (whether the slip was recognised);
        None when every index map stays inside.
    """
    for call in kernel.calls:
        for operand in call.operands:
            if operand.indices is None or not operand.is_pipelined or operand.element_dims:
                continue
            counts = tuple(operand.block_counts)
            if operand.indices.size and not _inside(operand.indices, counts):
                return _describe(call, operand, counts)
    return None


def _describe(call: Any, operand: Any, counts: tuple[int, ...]) -> dict[str, Any]:
    indices = operand.indices
    outside = (indices < 0) | (indices >= np.asarray(counts))
    step, axis = (int(number) for number in np.argwhere(outside)[0])
    place = np.unravel_index(step, call.grid) if call.grid else ()
    asked, count = int(indices[step, axis]), counts[axis]
    block, size = operand.block_sizes[axis], operand.shape[axis]
    steps = [str(int(index)) for index in place]
    step_name = steps[0] if len(steps) == 1 else f"({', '.join(steps)})"
    last = f"its last is {count - 1}" if count > 1 else "its only one is 0"
    what = (
        f"the index map of {operand.name} asks for block {asked} along dimension {axis} at grid "
        f"step {step_name}; {last} (the size is {size:,}, the block's {block:,})"
    )
    slip, why, hint = _slip(indices, counts, operand, axis, tuple(call.grid or ()))
    return {
        "what": what,
        "why": why,
        "hint": hint,
        "where": operand.where or call.where,
        "named": slip,
    }


def _grid_axes(column: np.ndarray, count: int, grid: tuple[int, ...]) -> tuple[int, int] | None:
    """(grid axis that an index follows, the only other one with as many steps as blocks)."""
    if count < 2 or len(column) != np.prod(grid, dtype=int):
        return None
    steps = np.unravel_index(np.arange(len(column)), grid) if grid else ()
    followed = [a for a, at in enumerate(steps) if grid[a] != count and (at == column).all()]
    fitting = [axis for axis, length in enumerate(grid) if length == count]
    return (followed[0], fitting[0]) if len(followed) == len(fitting) == 1 else None


def _slip(
    indices: np.ndarray,
    counts: tuple[int, ...],
    operand: Any,
    axis: int,
    grid: tuple[int, ...],
) -> tuple[bool, str, str]:
    sizes = np.asarray(operand.block_sizes)
    column = indices[:, axis]
    block = int(sizes[axis])
    if block > 1 and (column % block == 0).all():
        scaled = indices.copy()
        scaled[:, axis] = column // block
        if _inside(scaled[:, [axis]], (counts[axis],)):
            return (
                True,
                "an index map counts blocks; Pallas multiplies by the block's size itself",
                f"return {int(scaled[:, axis].max())} for the last block, not "
                f"{int(column.max())}: leave out the factor {block}",
            )
    rank = indices.shape[1]
    for order in itertools.permutations(range(rank)):
        if order != tuple(range(rank)) and _inside(indices[:, order], counts):
            return (
                True,
                "the map returns one index for each dimension of the array, in the array's order",
                "look whether its indices are swapped: in the order "
                f"({', '.join(str(index) for index in order)}) they stay inside",
            )
    followed = _grid_axes(column, counts[axis], grid)
    if followed is not None:
        wrong, fitting = followed
        return (
            True,
            f"it follows grid axis {wrong}, which has {grid[wrong]} steps; along dimension {axis} "
            f"{operand.name} has {counts[axis]} blocks",
            f"does {operand.name} follow another axis of the grid? Axis {fitting} has exactly "
            f"{counts[axis]} steps",
        )
    if counts[axis] == 1:
        return (
            True,
            "along this dimension one block holds the whole array, at every step",
            f"return 0 along dimension {axis}, or cut that dimension into smaller blocks",
        )
    if (column < 0).any():
        return False, "block indices start at 0", "look at what is subtracted in the index map"
    return (
        False,
        "the CPU clamps the index silently; on the chip the copy leaves the array and halts the "
        "core or reads garbage",
        f"let the grid end with the array: pl.cdiv({operand.shape[axis]}, {block}) = "
        f"{counts[axis]} steps along this dimension",
    )
