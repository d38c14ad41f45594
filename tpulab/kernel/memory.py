"""Loads, stores and copies in a kernel's body: what is known, what moves, what is touched."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tpulab.kernel.evaluate import UNKNOWN, is_known
from tpulab.kernel.instructions import Indexer, Instruction
from tpulab.kernel.model import array_bytes
from tpulab.kernel.refs import OUTSIDE, Ref, elements, table_index
from tpulab.kernel.regions import Touched

#: Places of accesses, as an ordered set: (name, file:line or None).
Places = dict[tuple[str, str | None], None]


@dataclasses.dataclass(eq=False)
class Tally:
    """Running totals; the arrays have one entry per grid step."""

    mxu: np.ndarray
    vpu: np.ndarray
    transcendental: np.ndarray
    read_bytes: int = 0
    written_bytes: int = 0
    remote_bytes: int = 0
    dma_count: int = 0
    wait_count: int = 0
    started_bytes: int = 0
    waited_bytes: int = 0
    dma_exact: bool = True
    matmuls: dict[tuple[Any, ...], int] = dataclasses.field(default_factory=dict)


class MemoryWalk:
    """The part of a walk that deals with Refs.

    Attributes:
        steps, lanes, offset: grid steps; those walked at once (all or 1); the first of them.
        summarised, conditional: nesting of bodies that stand for many runs, or may not run at all.
        notes: assumptions made. smem_written: something is stored to SMEM.
    """

    steps: int
    lanes: int
    offset: int
    summarised: int
    conditional: int
    tally: Tally
    notes: dict[str, None]
    smem_written: bool
    any_accesses: Places
    smem_vector: Places
    vmem_scalar: Places

    def _add(self, target: np.ndarray, weight: np.ndarray, amount: int) -> None:
        if self.lanes == 1 and self.steps > 1:
            target[self.offset] += int(weight[0]) * amount
        else:
            target += weight * amount

    def _total(self, weight: np.ndarray) -> int:
        return int(weight[0]) * self.lanes if weight.shape[0] == 1 else int(weight.sum())

    def note(self, text: str, ins: Instruction | None = None) -> None:
        """Remember an assumption, with its place."""
        place = ins.place if ins is not None else None
        self.notes[f"{text} ({place})" if place else text] = None

    def _get(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        ref = inputs[0]
        if not isinstance(ref, Ref):
            return [UNKNOWN]
        self._read(ref, ins, weight)
        if ref.space in OUTSIDE:
            self.any_accesses[ref.name, ins.place] = None
        if ref.space == "smem" and math.prod(ins.out_shape) > 1:
            self.smem_vector[ref.name, ins.place] = None
        if ref.table is None:
            return [UNKNOWN]
        index = table_index(ins.indexer(1), inputs[1:], ref.shape)
        if index is None:
            return [UNKNOWN]
        if ref.table_known is not None and not np.all(ref.table_known[index]):
            return [UNKNOWN]
        value = np.asarray(ref.table[index])
        return [value if value.ndim == len(ins.out_shape) + 1 else value[None]]

    def _swap(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        ref, value = inputs[0], inputs[1]
        if not isinstance(ref, Ref):
            return [UNKNOWN]
        if ref.space == "vmem" and ref.shape and not ins.input_shape(1):
            self.vmem_scalar[ref.name, ins.place] = None
        if ref.space in OUTSIDE:
            self.any_accesses[ref.name, ins.place] = None
        if ref.space == "smem":
            self.smem_written = True
        self._write(ref, weight)
        if ref.table is None or ref.table_known is None or not weight.any():
            return [UNKNOWN]
        index = table_index(ins.indexer(2), inputs[2:], ref.shape)
        if index is None:
            ref.forget()
        elif self.lanes == 1 and not self.summarised and is_known(value):
            ref.table[index] = value
            ref.table_known[index] = True
        else:
            ref.forget(index)
        return [UNKNOWN]

    def _addupdate(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        ref = inputs[0]
        if isinstance(ref, Ref):
            self._read(ref, ins, weight)
            self._write(ref, weight)
            ref.forget()
            size = math.prod(ins.input_shape(1))
            if size > 1:
                self._add(self.tally.vpu, weight, size)
        return []

    def _read(self, ref: Ref, ins: Instruction, weight: np.ndarray) -> None:
        ref.touched = True
        if ref.role not in ("output", "scratch"):
            return
        fresh = weight > 0
        if ref.written is not None:
            fresh = fresh & ~ref.written
        if not fresh.any():
            return
        if ref.carried is None:
            ref.carried = np.zeros(self.steps, bool)
            ref.carried_where = ins.place
        if self.lanes == 1:
            ref.carried[self.offset] |= bool(fresh[0])
        else:
            ref.carried |= fresh

    def _write(self, ref: Ref, weight: np.ndarray) -> None:
        ref.touched = True
        done = weight > 0
        ref.written = done if ref.written is None else ref.written | done
        if ref.role == "output":
            if ref.stored is None:
                ref.stored = np.zeros(self.steps, bool)
            if self.lanes == 1:
                ref.stored[self.offset] |= bool(done[0])
            else:
                ref.stored |= done

    def _dma_start(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        transfer = ins.transfer()
        source, destination = inputs[transfer.source], inputs[transfer.destination]
        if not isinstance(source, Ref) or not isinstance(destination, Ref):
            return []
        total = self._copied_bytes(ins, source, destination, inputs, weight)
        self.tally.dma_count += self._total(weight)
        self.tally.started_bytes += total
        self._read(source, ins, weight)
        self._write(destination, weight)
        destination.forget()
        if transfer.remote:
            self.tally.remote_bytes += total
        if source.space in OUTSIDE:
            self.tally.read_bytes += total
            source.copied_from = source.copied_from or Touched(source.shape)
            self._touch(source.copied_from, source, transfer.source_index, inputs, weight)
        if destination.space in OUTSIDE:
            self.tally.written_bytes += total
            to = destination.copied_to = destination.copied_to or Touched(destination.shape)
            self._touch(to, destination, transfer.destination_index, inputs, weight)
        return []

    def _touch(
        self,
        touched: Touched,
        ref: Ref,
        indexer: Indexer,
        inputs: list[Any],
        weight: np.ndarray,
    ) -> None:
        # a copy that may not be made at all is nothing that must be moved
        if self.conditional or not weight.any():
            return
        count = elements(indexer, inputs, ref.shape)
        touched.copy(indexer, inputs, weight, np.zeros(1, np.int64) if count is None else count)

    def _dma_wait(self, ins: Instruction, inputs: list[Any], weight: np.ndarray) -> list[Any]:
        transfer = ins.transfer()
        source, destination = inputs[transfer.source], inputs[transfer.destination]
        if isinstance(source, Ref) and isinstance(destination, Ref):
            self.tally.wait_count += self._total(weight)
            self.tally.waited_bytes += self._copied_bytes(ins, source, destination, inputs, weight)
        return []

    def _copied_bytes(
        self, ins: Instruction, source: Ref, destination: Ref, inputs: list[Any], weight: np.ndarray
    ) -> int:
        transfer = ins.transfer()
        count = elements(transfer.destination_index, inputs, destination.shape)
        if count is None:
            count = elements(transfer.source_index, inputs, source.shape)
        if count is None:
            self.note("a copy's size depends on data; counted in full", ins)
            self.tally.dma_exact = False
            count = np.array([math.prod(destination.shape)], np.int64)
        if self.conditional:
            self.tally.dma_exact = False
        # eight elements are whole bytes for every dtype
        return self._total(weight * (count * array_bytes((8,), source.dtype) // 8))
