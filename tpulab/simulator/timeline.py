"""What a simulated program did, cycle by cycle: the result of ``simulate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Event(NamedTuple):
    """Something that kept a unit busy.

    Attributes:
        unit: ``mxu``, ``vpu``, ``xlu``, ``eup``, ``load``, ``store``, ``scalar``, ``dma_in``,
            ``dma_out`` or ``stall``.
        name: what it was: the operand that was moved, the cause of a stall, the piece of code.
        start_cycle: when it began.
        end_cycle: when it ended.
        step: how often the grid's loop had been entered, from 1; 0 outside of it. The loop's
            iteration ``n`` loads the block of grid step ``n - 1`` and computes that of ``n - 2``.
    """

    unit: str
    name: str
    start_cycle: float
    end_cycle: float
    step: int


class PieceTime(NamedTuple):
    """When a piece of the program ran, and what it moved.

    Attributes:
        name: the piece's name; all its calls together make one entry.
        kind: ``"kernel"`` for a Pallas kernel, ``"xla"`` for what XLA put around it.
        start_cycle: when its first call began.
        end_cycle: when its last call ended.
        hbm_read_bytes: bytes that it reads from the HBM, all cores and calls together.
        hbm_written_bytes: bytes that it writes to the HBM.
        steps: grid steps of a kernel, 0 for XLA's pieces.
    """

    name: str
    kind: str
    start_cycle: float
    end_cycle: float
    hbm_read_bytes: int = 0
    hbm_written_bytes: int = 0
    steps: int = 0


@dataclass(frozen=True)
class Timeline:
    """The predicted run of a program on one core of a chip.

    Attributes:
        chip: the chip's name.
        compiler_version: which compiler made the program.
        clock_hertz: cycles per second.
        cycles: from the first bundle to the end of the last piece.
        seconds: the same in seconds.
        pieces: when each piece ran.
        events: what kept which unit busy, up to ``Options.max_events``.
        events_complete: whether there were no more events than that.
        busy_cycles: how long each unit was busy: ``mxu`` (mean over matrix units), ``vpu``,
            ``load``, ``store``, ``eup`` (cycles in which at least one operation issued), ``xlu``,
            ``scalar``, ``dma_in`` and ``dma_out`` (bytes over the bandwidth of the HBM).
        stall_cycles: cycles in which no bundle issued, by cause. With ``bundles_issued`` they add
            up to ``cycles``.
        hbm_read_bytes: bytes that left the HBM.
        hbm_written_bytes: bytes that arrived in the HBM.
        dma_count: transfers.
        load_count: transfers out of the HBM.
        store_count: transfers into the HBM.
        bundles_issued: bundles that were issued.
        steps: grid steps of the kernels, all cores together; for a kernel without a grid, the
            rounds of its outermost loop.
        rounds: how often the kernels' outermost loops were entered. The pipeline around a grid
            enters them one to two times more than there are steps: the first block is fetched
            before there is anything to compute, the last one written when all is computed.
        cores: cores of the device that take part. Bytes and transfers are those of all of them;
            everything else is of the one that ends last.
        limiting_unit: the unit that was busy longest, ``"hbm"`` for both directions of the memory;
            ``limiting_share`` says for how much of the run.
        warnings: what the prediction leaves out or guesses.
    """

    chip: str
    compiler_version: str | None
    clock_hertz: float
    cycles: float
    seconds: float
    pieces: tuple[PieceTime, ...]
    events: tuple[Event, ...] = field(repr=False)
    events_complete: bool
    busy_cycles: Mapping[str, float]
    stall_cycles: Mapping[str, float]
    hbm_read_bytes: int
    hbm_written_bytes: int
    dma_count: int
    load_count: int
    store_count: int
    bundles_issued: int
    steps: int
    limiting_unit: str
    cores: int = 1
    warnings: tuple[str, ...] = ()
    rounds: int = 0

    @property
    def kernel_hbm_bytes(self) -> int:
        """Bytes that the Pallas kernels move to and from the HBM."""
        return self._moved("kernel")

    @property
    def xla_hbm_bytes(self) -> int:
        """Bytes that XLA's own operations around the kernels move to and from the HBM."""
        return self._moved("xla")

    def _moved(self, kind: str) -> int:
        return sum(
            piece.hbm_read_bytes + piece.hbm_written_bytes
            for piece in self.pieces
            if piece.kind == kind
        )

    @property
    def limiting_share(self) -> float:
        """The part of the run in which ``limiting_unit`` is busy, 0 to 1.

        Far below 1 no unit limits the run: latencies do, one after the other.
        """
        units = ("dma_in", "dma_out") if self.limiting_unit == "hbm" else (self.limiting_unit,)
        busy = sum(self.busy_cycles.get(unit, 0.0) for unit in units)
        return min(1.0, busy / self.cycles) if self.cycles else 0.0

    @property
    def stall_seconds(self) -> dict[str, float]:
        """``stall_cycles`` in seconds."""
        return {cause: cycles / self.clock_hertz for cause, cycles in self.stall_cycles.items()}

    @property
    def compute_cycles(self) -> float:
        """Cycles without the stalls that transfers cause."""
        waits = sum(
            cycles
            for cause, cycles in self.stall_cycles.items()
            if cause.startswith("waiting for DMA") or cause == "prologue/epilogue"
        )
        return self.cycles - waits

    def to_chrome_trace(self) -> dict[str, Any]:
        """The events in the Trace Event Format, for chrome://tracing and ui.perfetto.dev.

        Times are in microseconds, as the format wants them.
        """
        units = list(dict.fromkeys(event.unit for event in self.events))
        microseconds = 1e6 / self.clock_hertz
        rows: list[dict[str, Any]] = [
            {
                "name": "process_name",
                "ph": "M",
                "pid": 1,
                "tid": 0,
                "args": {"name": f"TPU {self.chip}, one core (predicted)"},
            }
        ]
        thread = {"program": 0} | {unit: number + 1 for number, unit in enumerate(units)}
        for unit, number in thread.items():
            rows.append(
                {
                    "name": "thread_name",
                    "ph": "M",
                    "pid": 1,
                    "tid": number,
                    "args": {"name": unit},
                }
            )
        for piece in self.pieces:
            rows.append(
                {
                    "name": piece.name,
                    "cat": piece.kind,
                    "ph": "X",
                    "pid": 1,
                    "tid": 0,
                    "ts": piece.start_cycle * microseconds,
                    "dur": (piece.end_cycle - piece.start_cycle) * microseconds,
                }
            )
        for event in sorted(self.events, key=lambda e: (e.start_cycle, -e.end_cycle)):
            overlaps = event.unit.startswith("dma")
            common = {
                "name": event.name,
                "cat": event.unit,
                "pid": 1,
                "tid": thread[event.unit],
                "ts": event.start_cycle * microseconds,
                "args": {"step": event.step, "start_cycle": event.start_cycle},
            }
            if overlaps:
                # Transfers overlap on one track, which complete events may not.
                key = f"{event.unit}-{len(rows)}"
                rows.append({**common, "ph": "b", "id": key})
                end = {k: v for k, v in common.items() if k != "args"}
                rows.append({**end, "ph": "e", "id": key, "ts": event.end_cycle * microseconds})
            else:
                duration = (event.end_cycle - event.start_cycle) * microseconds
                rows.append({**common, "ph": "X", "dur": duration})
        return {
            "traceEvents": rows,
            "displayTimeUnit": "ns",
            "otherData": {
                "chip": self.chip,
                "compiler": self.compiler_version or "",
                "clock_hertz": self.clock_hertz,
                "complete": self.events_complete,
            },
        }
