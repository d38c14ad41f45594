"""Refs while a kernel's body is walked: where they live, what they are known to hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.instructions import Indexer
from tpulab.kernel.model import Scratch, array_bytes, padded_bytes
from tpulab.kernel.regions import Touched

#: Memory spaces outside the core: copies from or to them are HBM traffic.
OUTSIDE = ("any", "hbm", "host")


@dataclasses.dataclass(eq=False)
class Ref:
    """A Ref while its kernel is walked.

    Attributes:
        role: "prefetch", "input", "output", "scratch" or "scoped".
        table, table_known: known contents (scalar prefetch, SMEM that the kernel fills).
        written: the grid steps in which it has been stored to so far, [steps] or [1].
        carried: bool [steps], read there before that step had stored to it; carried_where: place.
        touched: loaded from or stored to at all. stored: bool [steps], stored to in that step.
        copied_from, copied_to: what the kernel's own copies touch of an array outside the core.
    """

    name: str
    space: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    table: np.ndarray | None = None
    table_known: np.ndarray | None = None
    written: np.ndarray | None = None
    carried: np.ndarray | None = None
    carried_where: str | None = None
    touched: bool = False
    stored: np.ndarray | None = None
    copied_from: Touched | None = None
    copied_to: Touched | None = None

    def follow_contents(self) -> None:
        """Start to keep track of what is stored to it."""
        self.table = np.zeros(self.shape, self.dtype)
        self.table_known = np.zeros(self.shape, bool)

    @property
    def places_are_guessed(self) -> bool:
        """Whether it is not known which parts of it the kernel's own copies touch."""
        touched = (self.copied_from, self.copied_to)
        return any(each is not None and each.is_a_guess for each in touched)

    def forget(self, index: Any = ...) -> None:
        """What it holds (at ``index``) is no longer known."""
        if self.table_known is not None:
            self.table_known[index] = False


def make_ref(name: str, aval: Any, role: str) -> Ref:
    """A Ref for a kernel parameter or an allocation."""
    return Ref(
        name,
        jax_internals.memory_space(aval),
        jax_internals.shape_of(aval),
        jax_internals.dtype_of(aval),
        role,
    )


def scratch_of(ref: Ref, *, scoped: bool = False) -> Scratch:
    """The scratch buffer that a Ref stands for, with its sizes."""
    if ref.space == "semaphore" or ref.dtype == "semaphore":
        size = 4 * math.prod(ref.shape)
        return Scratch(ref.name, ref.shape, "semaphore", "semaphore", size, size, scoped)
    return Scratch(
        ref.name,
        ref.shape,
        ref.dtype,
        ref.space,
        array_bytes(ref.shape, ref.dtype),
        padded_bytes(ref.shape, ref.dtype),
        scoped,
    )


def table_index(
    indexer: Indexer, values: Sequence[Any], shape: Sequence[int]
) -> tuple[Any, ...] | None:
    """A numpy index into a Ref's contents, lanes in front; None when a part is not known.

    Args:
        indexer: of a load or store. values: its flat operands. shape: the Ref's.
    """
    if indexer is None or len(indexer) > 1:
        return None
    if not indexer:
        return ()
    index: list[Any] = []
    slices = lanes = False
    for item, size in zip(indexer[0], shape, strict=True):
        if item.is_slice:
            if item.size is None or item.position is not None:
                return None
            slices = True
            stop = item.value + item.size * item.stride
            index.append(slice(item.value, stop, item.stride))
        elif item.position is None:
            index.append(item.value)
        else:
            value = values[item.position]
            if not isinstance(value, np.ndarray) or value.ndim != 1:
                return None
            lanes = True
            index.append(np.minimum(np.maximum(value.astype(np.int64), 0), size - 1))
    # numpy would put the lane axis elsewhere than in front
    return None if slices and lanes else tuple(index)


def elements(indexer: Indexer, values: Sequence[Any], shape: Sequence[int]) -> np.ndarray | None:
    """How many elements an indexed Ref spans, int array [lanes]; None when it depends on data."""
    if indexer is None:
        return None
    if not indexer:
        return np.array([math.prod(shape)], np.int64)
    count = np.ones(1, np.int64)
    for item in indexer[-1]:
        if item.size is not None:
            count = count * item.size
        elif item.size_position is not None:
            size = values[item.size_position]
            if not isinstance(size, np.ndarray):
                return None
            count = count * size
    return count
