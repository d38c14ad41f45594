"""The windows of a call's operands: which block of its array each step asks for, and what moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpulab.errors import UsageError
from tpulab.kernel import Operand, PallasCall

# a sentence that lists more steps is not read
_MOST_LISTED = 4


@dataclass(frozen=True)
class OperandFrames:
    """What one operand's window does, step by step.

    Attributes:
        name: the kernel's parameter.
        role: "input" or "output".
        shape: of the array, as rows × columns: leading dimensions are folded into the rows.
        block: rows × columns of a block.
        corners: (row, column) of the block's first element at every step.
        moving: whether it is fetched (input) or written back (output) at the step.
        outside: whether the block begins outside of the array, which is a mistake of the map.
        moved_bytes: traffic of all steps.
    """

    name: str
    role: str
    shape: tuple[int, int]
    block: tuple[int, int]
    corners: tuple[tuple[int, int], ...]
    moving: tuple[bool, ...]
    outside: tuple[bool, ...]
    moved_bytes: int

    @property
    def moves(self) -> int:
        """How many times a block moves."""
        return sum(self.moving)

    def movement(self, step: int) -> str:
        """What happens to the block at a step, in two or three words."""
        if self.outside[step]:
            return "outside the array"
        if self.role == "input":
            return "fetched" if self.moving[step] else "kept in VMEM"
        return "written back" if self.moving[step] else "stays in VMEM"


def frames(call: PallasCall) -> tuple[OperandFrames, ...]:
    """The windows of a call's blocked operands.

    Raises:
        UsageError: no operand of the call is moved in blocks.
    """
    shown = tuple(
        _operand_frames(call, operand)
        for operand in call.operands
        if operand.is_pipelined and operand.indices is not None and operand.memory_space == "vmem"
    )
    if not shown:
        raise UsageError(
            f"{call.name} has no operand that the pipeline moves in blocks",
            hint="operands in pl.ANY are copied by the kernel itself; look at its timeline instead",
        )
    return shown


def one_call(source: Any) -> PallasCall:
    """The call itself, or the only one of a traced kernel.

    Raises:
        UsageError: the kernel has none or several of them, or it is something else.
    """
    if isinstance(source, PallasCall):
        return source
    calls = getattr(source, "calls", None)
    if not isinstance(calls, tuple):
        raise UsageError(
            f"blocks are those of a traced kernel, not of {type(source).__name__}",
            hint="tpulab.trace(function, *arguments).calls[0] is the first call of a function",
        )
    if len(calls) != 1:
        names = ", ".join(f"{place} {call.name}" for place, call in enumerate(calls))
        raise UsageError(
            f"{source.name} has {len(calls)} kernels, and a picture is of one",
            why=f"they are {names}" if names else "no pallas_call was traced in it",
            hint="take one of them, as in tpulab.trace(function, *arguments).calls[0]",
        )
    first: PallasCall = calls[0]
    return first


def outside_text(operand: OperandFrames) -> str:
    """Which steps ask for a block that does not exist, as a sentence."""
    steps = [step + 1 for step, outside in enumerate(operand.outside) if outside]
    what = f"for a block of {operand.name} that lies outside the array: look at its index map."
    if len(steps) == 1:
        return f"Step {steps[0]} asks {what}"
    listed = [str(step) for step in steps[:_MOST_LISTED]]
    if len(steps) > _MOST_LISTED:
        listed.append(f"{len(steps) - _MOST_LISTED:,} more")
    return f"Steps {', '.join(listed[:-1])} and {listed[-1]} ask {what}"


def _operand_frames(call: PallasCall, operand: Operand) -> OperandFrames:
    assert operand.indices is not None
    rows, columns = _two_dimensional(operand.shape)
    sizes = operand.block_sizes
    starts = operand.indices.reshape(len(operand.indices), -1).astype("int64")
    for axis, size in enumerate(sizes):
        if axis not in operand.element_dims:
            starts[:, axis] *= size
    outside = operand.moving & False
    for axis, extent in enumerate(operand.shape):
        outside = outside | (starts[:, axis] < 0) | (starts[:, axis] >= extent)
    # leading dimensions are folded into the rows
    row = starts[:, 0] * 0 if sizes else 0 * operand.moving
    for axis, extent in enumerate(operand.shape[:-1]):
        row = row * extent + starts[:, axis]
    column = starts[:, -1] if sizes else row
    block_rows, block_columns = _two_dimensional(sizes)
    return OperandFrames(
        name=operand.name,
        role="input" if operand.is_input else "output",
        shape=(rows, columns),
        block=(min(block_rows, rows), min(block_columns, columns)),
        corners=tuple(zip(row.tolist(), column.tolist(), strict=True)),
        moving=tuple(operand.moving.tolist()),
        outside=tuple(outside.tolist()),
        moved_bytes=operand.moved_bytes,
    )


def _two_dimensional(shape: tuple[int, ...]) -> tuple[int, int]:
    if not shape:
        return 1, 1
    rows = 1
    for size in shape[:-1]:
        rows *= size
    return rows, shape[-1]
