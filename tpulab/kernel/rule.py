"""What a broken rule is, and what the rules share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from tpulab.kernel.model import Operand, PallasCall

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


#: A rule looks at one call on one chip and yields what breaks it.
Rule = Callable[[PallasCall, "Chip"], Iterator[Illegality]]


def block_text(operand: Operand) -> str:
    """A block shape as text."""
    return str(["squeezed" if size is None else size for size in operand.block_shape])


def step_text(call: PallasCall, step: int) -> str:
    """A grid step's coordinates as text."""
    return str(tuple(int(value) for value in np.unravel_index(step, call.grid)))


def varying_axis(call: PallasCall, first: int, second: int) -> int:
    """The first grid axis along which two steps differ."""
    one, other = np.unravel_index(first, call.grid), np.unravel_index(second, call.grid)
    return next(axis for axis in range(len(call.grid)) if one[axis] != other[axis])


def block_ids(operand: Operand) -> np.ndarray:
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


def size_text(size: int) -> str:
    """A number of bytes as text."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**19 else f"{size / 2**10:.1f} KiB"
