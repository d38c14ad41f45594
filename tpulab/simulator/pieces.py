"""The pieces of a program, run one after the other, and the sums over them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpulab.compiler.listing import Listing
from tpulab.simulator.constants import Constants
from tpulab.simulator.machine import Machine, NeedsCare
from tpulab.simulator.memory import asks_for_core
from tpulab.simulator.options import Options, SimulationRefused
from tpulab.simulator.scalars import Call
from tpulab.simulator.timeline import Event, PieceTime, Timeline

if TYPE_CHECKING:
    from tpulab.compiler.program import Piece

_OPERAND = re.compile(r"%([\w.\-]+)")
_COLLECTIVES = ("all-", "collective-", "reduce-scatter", "send", "recv")
_SLICES = ("slice-start", "dynamic-slice-start", "async-start")
_COUNTS = ("read", "written", "dma", "load", "store", "bundles", "steps", "rounds")
# Waits that rest on assumed figures are worth a word from this part of the run on.
_NOTABLE = 0.1
LONE_CORE = "waiting for DMA: lone core's part of the HBM bandwidth"
"""The stall cause of what a lone core loses for not drawing all of its device's bandwidth."""


class Pieces:
    """Runs pieces and adds up what they take.

    Args:
        constants: the chip.
        options: how to simulate.
        compiler_version: for the record.
    """

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
        self.counts = dict.fromkeys(_COUNTS, 0)
        self.warnings: list[str] = []
        self.cores = 1
        # Why operations of XLA were estimated, and which.
        self._estimated: dict[str, list[str]] = {}
        # When asynchronous copies of the top level are complete, by the name of their start.
        self._local_wait = 0.0
        self._under_way: dict[str, float] = {}
        self._copies_end = 0.0

    def run_piece(self, piece: Piece, call: Call) -> None:
        """Run a piece as often as the program calls it."""
        if not piece.has_listing:
            self._top_level(piece)
            return
        if not piece.calls_exact:
            self._warn(f"how often {piece.name} runs depends on data; {piece.calls} is a guess")
        layouts = {index: shape.layout for index, shape in enumerate(piece.operand_shapes)}
        try:
            self.run(piece.name, piece.kind, piece.listing, call, piece.calls, layouts)
        except SimulationRefused as error:
            if piece.kind == "kernel":
                raise
            self._estimate(piece, error)

    def run(
        self,
        name: str,
        kind: str,
        listing: Listing,
        call: Call,
        times: int = 1,
        layouts: Mapping[int, str] | None = None,
    ) -> None:
        """Run a listing; what it takes counts ``times`` times."""
        left = max(0, self.options.max_events - len(self.events))
        options = replace(self.options, max_events=left)
        start = self.time

        def run_core(core: int, options: Options = options) -> Machine:
            arguments = (listing, self.constants, options, start, call, name, core, layouts)
            machine = Machine(*arguments)
            try:
                machine.run()
            except NeedsCare:
                machine = Machine(*arguments, careful=True)
                machine.run()
            return machine

        # Each core has its part of the bandwidth, so they do not slow each other down further.
        cores = self.constants.cores if asks_for_core(listing) else 1
        machines = [run_core(core) for core in range(cores)]
        working = [machine for machine in machines if machine.worked] or machines[:1]
        alone: dict[str, float] = {}
        if len(working) < self.constants.cores and kind == "kernel":
            working = [self._run_alone(working[0], run_core, options, alone)]
        machine = max(working, key=lambda machine: machine.time)
        end = machine.time
        self.cores = max(self.cores, len(working))
        self.time = start + (end - start) * times
        busy, stalls, bundles = machine.totals()
        _move(stalls, alone)
        for sums, found in ((self.busy, busy), (self.stalls, stalls)):
            for key, cycles in found.items():
                sums[key] = sums.get(key, 0) + cycles * times
        rounds = sum(m.rounds for m in working)
        steps = sum(m.steps for m in working)
        counts = {
            "read": sum(m.read_bytes for m in working),
            "written": sum(m.written_bytes for m in working),
            "dma": sum(m.dma_count for m in working),
            "load": sum(m.load_count for m in working),
            "store": sum(m.store_count for m in working),
            "bundles": bundles,
            # XLA's own loops are nobody's grid.
            "steps": steps if kind == "kernel" else 0,
            "rounds": rounds if kind == "kernel" else 0,
        }
        for key, count in counts.items():
            self.counts[key] += count * times
        self._add_piece(name, kind, start, counts, times)
        if call.steps is not None and steps != call.steps and call.steps > 1:
            self._warn(
                f"{name} was simulated for {steps:,} grid steps where the traced grid has "
                f"{call.steps:,}"
            )
        self.events.extend(machine.events)
        self._local_wait += machine.local_wait * times
        self.complete = self.complete and machine.events_complete and times == 1
        for sentence in machine.warnings:
            self._warn(sentence)

    def _run_alone(
        self, machine: Machine, run_core: Any, options: Options, alone: dict[str, float]
    ) -> Machine:
        """The one core of several that works, with the bandwidth that it can draw.

        ``alone`` gets the cycles that it loses for not drawing all of it.
        """
        constants = self.constants
        fraction = constants.lone_core_fraction
        scale = options.bandwidth_scale
        drawn = scale * fraction * constants.cores
        if drawn != scale:
            machine = run_core(machine.core, replace(options, bandwidth_scale=drawn))
        lost = 0.0
        if fraction < 1 and machine.waited > 0:
            everything = replace(options, bandwidth_scale=scale * constants.cores, max_events=0)
            lost = max(0.0, machine.time - run_core(machine.core, everything).time)
        sentence = (
            f"only one of two cores works: {machine.name} has no axis that is split over them"
        )
        if constants.cores != 2:
            sentence = sentence.replace("two", str(constants.cores))
        if lost > 0.01 * (machine.time - self.time):
            alone[LONE_CORE] = lost
            sentence += (
                f"; it is taken to draw at most {100 * fraction:.0f} % of the device's HBM "
                f"bandwidth, which costs {lost / constants.clock_hertz * 1e6:.3g} us"
            )
        self._warn(sentence)
        return machine

    # ---- what the top level does itself --------------------------------------------------------

    def _top_level(self, piece: Piece) -> None:
        """An operation that the top level does itself: it starts a copy, or waits for one."""
        opcode = piece.opcode
        started = _OPERAND.search(piece.hlo_instruction.partition(f" {opcode}(")[2])
        start = self.time
        counts: dict[str, int] = {}
        if opcode.endswith("-done") and started and started.group(1) in self._under_way:
            end = self._under_way[started.group(1)]
            if end > self.time:
                self._stall("waiting for a copy of XLA", end - self.time)
                self.time = end
        elif opcode in ("copy", "copy-start", *_SLICES):
            counts = self._copy(piece)
        elif opcode.startswith(_COLLECTIVES):
            self._warn(f"{piece.name} talks to other devices; its time is left out")
        if self.time > start or counts:
            self._add_piece(piece.name, piece.kind, start, counts)

    def _copy(self, piece: Piece) -> dict[str, int]:
        """Enqueue a copy; a synchronous one is waited for."""
        opcode = piece.opcode
        if opcode in _SLICES:
            # Its result is the operand, the slice, and a flag.
            shapes = piece.result_shapes[:2]
        else:
            shapes = (*piece.operand_shapes[:1], *piece.result_shapes[:1])
        if len(shapes) < 2:
            return {}
        source, target = shapes
        size = target.size_bytes
        begin = max(self.time, self._copies_end)
        end = begin + size / self.constants.hbm_bytes_per_cycle
        complete = end + self.constants.dma_latency_cycles
        if self.options.free_dma:
            end = complete = self.time
        reads, writes = source.memory_space == "hbm", target.memory_space == "hbm"
        counts = {
            "read": size if reads else 0,
            "written": size if writes else 0,
            "load": int(reads),
            "store": int(writes),
            "dma": 1,
        }
        for key, count in counts.items():
            self.counts[key] += count
        self._copies_end = end
        self._under_way[piece.name] = complete
        if len(self.events) < self.options.max_events:
            unit = "dma_out" if writes else "dma_in"
            self.events.append(Event(unit, piece.name, begin, complete, 0))
        if opcode == "copy" and complete > self.time:
            self._stall("waiting for a copy of XLA", complete - self.time)
            self.time = complete
        return counts

    def _estimate(self, piece: Piece, error: SimulationRefused) -> None:
        """The time of an XLA operation that can't be run: its bytes over the bandwidth."""
        moved = {"read": 0, "written": 0}
        local = 0
        for key, shapes in (("read", piece.operand_shapes), ("written", piece.result_shapes)):
            for shape in shapes:
                if shape.memory_space == "hbm":
                    moved[key] += shape.size_bytes
                elif shape.memory_space == "vmem":
                    local += shape.size_bytes
        cycles = max(
            sum(moved.values()) / self.constants.hbm_bytes_per_cycle,
            local / self.constants.local_bytes_per_cycle,
        )
        cycles += self.constants.dma_latency_cycles
        if self.options.free_dma:
            cycles = local / self.constants.local_bytes_per_cycle
        start = self.time
        self.time += cycles * piece.calls
        self._stall("XLA operation, estimated", cycles * piece.calls)
        for key, count in moved.items():
            self.counts[key] += count * piece.calls
        self._add_piece(piece.name, piece.kind, start, moved, piece.calls)
        reason = error.reason.removeprefix(f"{piece.name} can't be run: ")
        reason = reason.removeprefix(f"{piece.name} ")
        self._estimated.setdefault(reason, []).append(piece.name)

    # ---- sums ----------------------------------------------------------------------------------

    def _add_piece(
        self, name: str, kind: str, start: float, counts: Mapping[str, int], times: int = 1
    ) -> None:
        self.pieces.append(
            PieceTime(
                name,
                kind,
                start,
                self.time,
                counts.get("read", 0) * times,
                counts.get("written", 0) * times,
                counts.get("steps", 0) * times,
            )
        )

    def _stall(self, cause: str, cycles: float) -> None:
        self.stalls[cause] = self.stalls.get(cause, 0) + cycles

    def _warn(self, sentence: str) -> None:
        if sentence not in self.warnings:
            self.warnings.append(sentence)

    def _limiting_unit(self) -> str:
        units = {key: value for key, value in self.busy.items() if key != "scalar"}
        units["hbm"] = units.pop("dma_in", 0) + units.pop("dma_out", 0)
        return max(units, key=lambda unit: units[unit]) if any(units.values()) else "scalar"

    def timeline(self) -> Timeline:
        """What all pieces came to."""
        for reason, names in self._estimated.items():
            few = ", ".join(dict.fromkeys(names[:3])) + (", …" if len(names) > 3 else "")
            self._warn(
                f"{few} can't be run exactly ({reason}); the time of such an XLA operation is "
                "that of moving its bytes"
            )
        if self._local_wait > _NOTABLE * self.time:
            self._warn(
                f"{self._local_wait / self.constants.clock_hertz * 1e6:.3g} us of waits for moves "
                "inside the core rest on figures that are assumed, not measured"
            )
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
            rounds=self.counts["rounds"],
            limiting_unit=self._limiting_unit(),
            cores=self.cores,
            warnings=tuple(self.warnings),
        )


def _move(stalls: dict[str, float], alone: Mapping[str, float]) -> None:
    """Take what a lone core loses out of the waits for transfers, from each its share."""
    lost = sum(alone.values())
    waits = [cause for cause in stalls if cause.startswith(("waiting for DMA", "prologue"))]
    total = sum(stalls[cause] for cause in waits)
    if not lost or not total:
        return
    part = min(1.0, lost / total)
    for cause in waits:
        stalls[cause] *= 1 - part
    for cause in alone:
        stalls[cause] = part * total
