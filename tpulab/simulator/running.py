"""``simulate``: all pieces of a compiled program, one after the other, on one core."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpulab.compiler.listing import Listing
from tpulab.simulator.constants import Constants, constants_for
from tpulab.simulator.machine import Machine
from tpulab.simulator.memory import core_numbers, operands_of
from tpulab.simulator.options import Options, SimulationRefused
from tpulab.simulator.scalars import CallValues, Values, fixed_values, no_values
from tpulab.simulator.timeline import Event, PieceTime, Timeline

if TYPE_CHECKING:
    from tpulab.compiler.program import Piece, Program
    from tpulab.kernel import Kernel


_OPERAND = re.compile(r"%([\w.\-]+)")


def simulate(
    program: Program,
    *,
    kernel: Kernel | None = None,
    arguments: Sequence[Any] | None = None,
    chip: str | None = None,
    options: Options | None = None,
) -> Timeline:
    """Predict how a compiled program runs on one core of its chip.

    Args:
        program: what ``compiler.compile`` gave.
        kernel: what ``kernel.trace`` gave for the same function: the values of scalar-prefetch
            operands come from it.
        arguments: the function's arguments, concrete where that matters: with them the values of
            SMEM inputs are known too.
        chip: the chip, when it is not the program's own.
        options: how to simulate.

    Raises:
        SimulationRefused: it depends on data, has an operation that is not known, waits for ever,
            or takes too long.
    """
    options = options or Options()
    constants = constants_for(chip or program.chip)
    total = _Total(constants, options, program.compiler_version)
    calls = CallValues(kernel, arguments)
    for piece in program.pieces:
        values: Values = no_values
        if piece.kind == "kernel" and piece.has_listing:
            values = calls.take(operands_of(piece.listing))
        total.run_piece(piece, values)
    return total.timeline()


def simulate_listing(
    listing: Listing,
    constants: Constants,
    *,
    options: Options | None = None,
    scalars: Mapping[int, Any] | None = None,
    compiler_version: str | None = None,
) -> Timeline:
    """Predict how one listing runs: the small brother of ``simulate``.

    Args:
        listing: the program.
        constants: the chip, from ``constants_for``.
        options: how to simulate.
        scalars: contents of integer operands by index.
        compiler_version: for the record.

    Raises:
        SimulationRefused: as ``simulate``.
    """
    total = _Total(constants, options or Options(), compiler_version)
    total.run(listing.name or "program", "kernel", listing, fixed_values(dict(scalars or {})))
    return total.timeline()


class _Total:
    """Sums over the pieces."""

    def __init__(
        self, constants: Constants, options: Options, compiler_version: str | None
    ) -> None:
        self.constants = constants
        self.options = options
        self.compiler_version = compiler_version
        self.time = 0.0
        self.pieces: list[PieceTime] = []
        self.events: list[Event] = []
        self.complete = True
        self.busy: dict[str, float] = {}
        self.stalls: dict[str, float] = {}
        self.counts = dict.fromkeys(
            ("read", "written", "dma", "load", "store", "bundles", "steps"), 0
        )
        self.warnings: list[str] = []
        self.cores = 1
        # When asynchronous copies of the top level are complete, by the name of their start.
        self._under_way: dict[str, float] = {}
        self._copies_end = 0.0

    def run_piece(self, piece: Piece, values: Values) -> None:
        """Run a piece as often as the program calls it."""
        if not piece.has_listing:
            self._top_level(piece)
            return
        if not piece.calls_exact:
            self._warn(f"how often {piece.name} runs depends on data; {piece.calls} is a guess")
        layouts = {index: shape.layout for index, shape in enumerate(piece.operand_shapes)}
        try:
            self.run(piece.name, piece.kind, piece.listing, values, piece.calls, layouts)
        except SimulationRefused:
            if piece.kind == "kernel":
                raise
            self._estimate(piece)

    def _top_level(self, piece: Piece) -> None:
        """An operation that the top level does itself: it starts a copy, or waits for one."""
        opcode = piece.opcode
        started = _OPERAND.search(piece.hlo_instruction.partition(f" {opcode}(")[2])
        start = self.time
        if opcode.endswith("-done") and started and started.group(1) in self._under_way:
            end = self._under_way[started.group(1)]
            if end > self.time:
                self._stall("waiting for a copy of XLA", end - self.time)
                self.time = end
        elif opcode in ("copy", "copy-start", "slice-start", "async-start", "dynamic-slice-start"):
            shapes = piece.operand_shapes[:1] if opcode.startswith("copy") else ()
            moved = (shapes or piece.result_shapes)[0] if (shapes or piece.result_shapes) else None
            if moved is None:
                return
            size = moved.size_bytes
            target = piece.result_shapes[0].memory_space if piece.result_shapes else "vmem"
            begin = max(self.time, self._copies_end)
            end = begin + size / self.constants.hbm_bytes_per_cycle
            if self.options.free_dma:
                end = self.time
            if moved.memory_space == "hbm":
                self.counts["read"] += size
                self.counts["load"] += 1
            if target == "hbm":
                self.counts["written"] += size
                self.counts["store"] += 1
            self.counts["dma"] += 1
            self._copies_end = end
            complete = end + (0 if self.options.free_dma else self.constants.dma_latency_cycles)
            self._under_way[piece.name] = complete
            if len(self.events) < self.options.max_events:
                unit = "dma_out" if target == "hbm" else "dma_in"
                self.events.append(Event(unit, piece.name, begin, complete, 0))
            if opcode == "copy" and complete > self.time:
                self._stall("waiting for a copy of XLA", complete - self.time)
                self.time = complete
        elif opcode.startswith(("all-", "collective-", "reduce-scatter", "send", "recv")):
            self._warn(f"{piece.name} talks to other devices; its time is left out")
        else:
            return
        if self.time > start:
            self.pieces.append(PieceTime(piece.name, piece.kind, start, self.time))

    def _stall(self, cause: str, cycles: float) -> None:
        self.stalls[cause] = self.stalls.get(cause, 0) + cycles

    def _estimate(self, piece: Piece) -> None:
        """The time of an XLA operation that can't be run: its bytes over the bandwidth."""
        size = sum(_bytes(shape) for shape in (*piece.operand_shapes, *piece.result_shapes))
        cycles = size / self.constants.hbm_bytes_per_cycle + self.constants.dma_latency_cycles
        start = self.time
        self.time += cycles * piece.calls
        self.stalls["XLA operation, estimated"] = (
            self.stalls.get("XLA operation, estimated", 0) + cycles * piece.calls
        )
        self.pieces.append(PieceTime(piece.name, piece.kind, start, self.time))
        self._warn(f"{piece.name} can't be run exactly; its time is that of moving its bytes")

    def run(
        self,
        name: str,
        kind: str,
        listing: Listing,
        values: Values,
        times: int = 1,
        layouts: Mapping[int, str] | None = None,
    ) -> None:
        """Run a listing; more than once when the program calls it more than once."""
        left = max(0, self.options.max_events - len(self.events))
        options = self.options
        if left != options.max_events:
            from dataclasses import replace

            options = replace(options, max_events=left)
        start = self.time
        cores = self.constants.cores if core_numbers(listing) else 1
        if cores < self.constants.cores and kind == "kernel":
            self._warn(f"{name} runs on one of the device's {self.constants.cores} cores")
        machines = [
            Machine(listing, self.constants, options, start, values, name, core, layouts)
            for core in range(cores)
        ]
        # Each core has its part of the bandwidth, so they do not slow each other down further.
        ends = [machine.run() for machine in machines]
        end = max(ends)
        machine = machines[ends.index(end)]
        self.cores = max(self.cores, cores)
        self.time = start + (end - start) * times
        self.pieces.append(PieceTime(name, kind, start, self.time))
        busy, stalls, bundles = machine.totals()
        for sums, found in ((self.busy, busy), (self.stalls, stalls)):
            for key, cycles in found.items():
                sums[key] = sums.get(key, 0) + cycles * times
        for key, count in (
            ("read", sum(m.read_bytes for m in machines)),
            ("written", sum(m.written_bytes for m in machines)),
            ("dma", sum(m.dma_count for m in machines)),
            ("load", sum(m.load_count for m in machines)),
            ("store", sum(m.store_count for m in machines)),
            ("bundles", bundles),
            ("steps", machine.steps),
        ):
            self.counts[key] += count * times
        self.events.extend(machine.events)
        self.complete = self.complete and machine.events_complete and times == 1
        for sentence in machine.warnings:
            self._warn(sentence)

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def timeline(self) -> Timeline:
        """What all pieces came to."""
        units = {key: value for key, value in self.busy.items() if key != "scalar"}
        limiting = max(units, key=lambda unit: units[unit]) if units else "scalar"
        dma = units.get("dma_in", 0) + units.get("dma_out", 0)
        if units and dma >= max(units.values()):
            limiting = "hbm"
        return Timeline(
            chip=self.constants.chip,
            compiler_version=self.compiler_version,
            clock_hertz=self.constants.clock_hertz,
            cycles=self.time,
            seconds=self.time / self.constants.clock_hertz,
            pieces=tuple(self.pieces),
            events=tuple(sorted(self.events, key=lambda event: event.start_cycle)),
            events_complete=self.complete,
            busy_cycles=self.busy,
            stall_cycles=dict(sorted(self.stalls.items(), key=lambda item: -item[1])),
            hbm_read_bytes=self.counts["read"],
            hbm_written_bytes=self.counts["written"],
            dma_count=self.counts["dma"],
            load_count=self.counts["load"],
            store_count=self.counts["store"],
            bundles_issued=self.counts["bundles"],
            steps=self.counts["steps"],
            limiting_unit=limiting,
            cores=self.cores,
            warnings=tuple(self.warnings),
        )


def _bytes(shape: Any) -> int:
    return int(getattr(shape, "bytes", 0) or getattr(shape, "size_bytes", 0) or 0)
