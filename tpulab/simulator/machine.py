"""One core running one listing: generated code calls back here where time or memory matters."""

from __future__ import annotations

import time as clock
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tpulab.compiler.listing import Listing
from tpulab.simulator import cost as costing
from tpulab.simulator.codegen import Code, Generator
from tpulab.simulator.constants import Constants
from tpulab.simulator.dma import DeadlockError, DmaEngine
from tpulab.simulator.flow import FlowError, extra_rounds
from tpulab.simulator.layout import words
from tpulab.simulator.memory import (
    AddressBook,
    Operand,
    Transfer,
    barrier_cookies,
    constant_values,
    leaves_the_chip,
    operands_of,
    origins,
    transfer_of,
)
from tpulab.simulator.opcodes import Kind, classify
from tpulab.simulator.options import Options, SimulationRefused
from tpulab.simulator.scalar import HELPERS, UNKNOWN, UnknownDecision, Untranslatable, helpers
from tpulab.simulator.scalars import Call
from tpulab.simulator.timeline import Event


class NeedsCare(Exception):
    """A program that was generated without care for unknown values meets one."""


_UNIT_ORDER = ("mxu", "vpu", "xlu", "eup", "load", "store", "scalar")
_DECAYED_LIMIT = 50_000


class Machine:
    """Runs one listing on one core.

    Args:
        listing: the program.
        constants: the chip.
        options: how to run it.
        start_cycle: when it begins.
        call: contents of integer operands (scalar prefetch and SMEM inputs), names of operands.
        name: the piece's name, for messages.
        core: which core of the device it is.
        layouts: how operands lie in memory, by index, in HLO's notation.
        careful: whether to generate code that carries unknown values along. It is slower; without
            it, and where nothing says at once that there are some, ``run`` raises ``NeedsCare``.
    """

    def __init__(
        self,
        listing: Listing,
        constants: Constants,
        options: Options,
        start_cycle: float,
        call: Call,
        name: str,
        core: int = 0,
        layouts: Mapping[int, str] | None = None,
        careful: bool = False,
    ) -> None:
        self.constants = constants
        self.options = options
        self.name = name
        self.listing = listing
        self.time = start_cycle
        self.check_every = 20_000
        self._deadline = clock.monotonic() + options.deadline_seconds
        self.book = AddressBook()
        self.operands = [
            replace(operand, name=call.names.get(operand.index, ""))
            for operand in operands_of(listing)
        ]
        self._origin = origins(listing, self.operands)
        self.memory: dict[int, Any] = {}
        self.scalars = {
            index: words(array, (layouts or {}).get(index, ""))
            for index, array in call.values(self.operands).items()
        }
        self.warnings: list[str] = []
        self._refuse_what_leaves_the_chip()
        code = self._translate(careful or self._may_be_unknown())
        self.code = code
        self.runs = [costing.Run(bundles, constants) for bundles in code.runs]
        self.costs: list[dict[int, list[Any]]] = [{} for _ in self.runs]
        self._states: list[costing.State] = [costing.DRAINED]
        self._state_numbers: dict[costing.State, int] = {costing.DRAINED: 0}
        self._decayed: dict[tuple[int, int], int] = {}
        self._transfers = self._understand_transfers()
        scale = options.bandwidth_scale
        bandwidth = constants.hbm_bytes_per_cycle * scale
        self.engine = DmaEngine(
            bandwidth, bandwidth * constants.single_stream_fraction, self._transfer_ended
        )
        self.free = options.free_dma or "dma" in options.remove
        self.stalls: dict[str, float] = {}
        self.events: list[Event] = []
        self.recording = options.max_events > 0
        self.events_complete = True
        self.read_bytes = self.written_bytes = 0
        self.load_count = self.store_count = self.dma_count = 0
        self.busy_in = self.busy_out = 0.0
        self._flag_labels: dict[int, str] = {}
        self._local_flags: dict[int, bool] = {}
        self.local_wait = 0.0
        self._pipelined = extra_rounds(listing)
        self._recent_waits: deque[tuple[int, str, float]] = deque(maxlen=64)
        self._popped: dict[str, Any] = {}
        self._divided: dict[str, deque[Any]] = {}
        self.core = core
        # How often the outermost loop was entered, and how often that was for a step of the grid.
        self.rounds = self.steps = 0

    # ---- preparation -------------------------------------------------------------------------

    def _translate(self, careful: bool) -> Code:
        values = {}
        for operand in self.operands:
            if operand.space:
                values[operand.value] = str(operand.address)
            elif operand.index in self.scalars:
                known = self.scalars[operand.index]
                values[operand.value] = str(known[0] if known and known[0] is not None else 0)
            else:
                values[operand.value] = "UNKNOWN"
        try:
            code = Generator(
                self.listing,
                self.book,
                careful,
                values,
                self.constants.branch_delay_slots,
                self.constants.empty_fills_slots,
            ).generate()
        except (Untranslatable, FlowError) as error:
            raise SimulationRefused(
                f"{self.name} can't be run: {error} is not known to the simulator",
                why="a scalar or synchronisation operation decides what runs, so it is not guessed",
                hint="report the operation together with the compiler's version",
            ) from error
        self.warnings.extend(code.warnings)
        for operand in self.operands:
            if operand.space == "smem":
                given = self.scalars.get(operand.index)
                count = operand.elements if given is None else len(given)
                self._fill(operand.address, operand, count)
        return code

    def _refuse_what_leaves_the_chip(self) -> None:
        constants = constant_values(self.listing)
        for bundle in self.listing.bundles:
            for op in bundle.ops:
                if leaves_the_chip(op, constants):
                    raise SimulationRefused(
                        f"{self.name} exchanges data with other chips; one chip alone is simulated",
                        why=f"bundle {bundle.address:#x} holds {op.opcode}",
                    )

    def _may_be_unknown(self) -> bool:
        for operand in self.operands:
            if operand.space in ("", "smem") and operand.index not in self.scalars:
                return True
        known = barrier_cookies(self.listing)
        for bundle in self.listing.bundles:
            for op in bundle.ops:
                if op.opcode == "spop" and op.operands and op.operands[0] in known:
                    continue
                if op.opcode == "spop" or op.opcode.endswith("_to_smem"):
                    return True
                if op.opcode.startswith("dma.general"):
                    return True
        return False

    def _fill(self, address: int, operand: Operand | None, count: int, offset: int = 0) -> None:
        """Put words of an operand into SMEM; what nobody knows is UNKNOWN."""
        known = self.scalars.get(operand.index) if operand is not None else None
        for position in range(count):
            word: Any = UNKNOWN if known is None else None
            if known is not None and 0 <= offset + position < len(known):
                word = known[offset + position]
            if word is not None:
                self.memory[address + position] = word

    def _understand_transfers(self) -> list[Transfer | None]:
        found: list[Transfer | None] = []
        for sync in self.code.syncs:
            if classify(sync.op.opcode).kind is not Kind.DMA:
                found.append(None)
                continue
            transfer = transfer_of(sync.op, self._origin)
            if transfer is None:
                raise SimulationRefused(
                    f"{self.name} can't be run: the form of {sync.op.opcode} is not known",
                    why=f"its operands are {', '.join(sync.op.operands)}",
                )
            found.append(transfer)
        return found

    # ---- running -----------------------------------------------------------------------------

    def run(self) -> float:
        """Run to the end; gives the cycle after the last bundle.

        Raises:
            SimulationRefused: it depends on data, waits for ever, or takes too long.
            NeedsCare: it meets an unknown value; a careful machine can tell what that decides.
        """
        space: dict[str, Any] = helpers(self.code.careful)
        exec(compile(self.code.source, f"<{self.name}>", "exec"), space)
        try:
            end, self.rounds = space["program"](self)
            strayed = UNKNOWN in self.memory or UNKNOWN in self.engine.flags
        except UnknownDecision as error:
            if not self.code.careful:
                raise NeedsCare from error
            raise SimulationRefused(
                f"{self.name} decides on a value that only the chip would know",
                why=f"a branch, a transfer or a semaphore depends on {self._unknown_sources()}",
                hint="give concrete arrays for scalar-prefetch and SMEM operands (make_args), and "
                "write to SMEM scratch before reading it",
            ) from error
        if strayed:
            raise NeedsCare
        self.time = end
        self.steps = max(1, self.rounds - self._pipelined)
        self._settle_epilogue()
        return float(end)

    @property
    def worked(self) -> bool:
        """Whether the core had a part in the work; another core's part may be all of it."""
        return self.rounds > 0 or self.dma_count > 0

    @property
    def waited(self) -> float:
        """Cycles of waits for transfers."""
        return sum(self.stalls.values())

    def _unknown_sources(self) -> str:
        """Where values that nobody knows can come from in this listing, as words."""
        found = []
        opcodes = {op.opcode for bundle in self.listing.bundles for op in bundle.ops}
        if "spop" in opcodes:
            found.append("data that came out of the vector unit")
        if any(
            operand.space in ("", "smem") and operand.is_input and operand.index not in self.scalars
            for operand in self.operands
        ) or any(opcode.endswith("_to_smem") for opcode in opcodes):
            found.append("an operand whose contents were not given")
        if "sld" in opcodes:
            found.append("a word of SMEM that was never written")
        return " or ".join(found) or "data"

    def price(self, number: int, state: int) -> list[Any]:
        """The cost of a run in a state, worked out for the first time."""
        found = self.runs[number].cost(self._states[state])
        entry = [found.cycles, self._number(found.state), found.offsets, 0, found]
        self.costs[number][state] = entry
        return entry

    def _number(self, state: costing.State) -> int:
        number = self._state_numbers.get(state)
        if number is None:
            number = len(self._states)
            self._states.append(state)
            self._state_numbers[state] = number
        return number

    def _decay(self, state: int, cycles: float) -> int:
        if state == 0:
            return 0
        key = (state, int(cycles))
        found = self._decayed.get(key)
        if found is None:
            found = self._number(costing.after(self._states[state], int(cycles)))
            if len(self._decayed) < _DECAYED_LIMIT:
                self._decayed[key] = found
        return found

    def check(self, time: float, step: int) -> int:
        """Called now and then by the program: is there time left?"""
        if clock.monotonic() > self._deadline:
            raise SimulationRefused(
                f"simulating {self.name} takes longer than {self.options.deadline_seconds:g} s",
                why=f"{step} steps and {time:.0f} cycles were simulated until then",
                hint="simulate fewer grid steps, or raise deadline_seconds",
            )
        if time > self.options.max_cycles:
            raise SimulationRefused(
                f"{self.name} runs for more than {self.options.max_cycles:g} cycles",
                why="it may never end",
            )
        return self.check_every

    def record(self, number: int, entry: list[Any], time: float, step: int) -> bool:
        """Keep what a run does to the units as events; gives whether to go on recording."""
        offsets = entry[2]
        found: costing.Cost = entry[4]
        run = self.runs[number]
        for unit in _UNIT_ORDER:
            span = run.span.get(unit)
            if span is None or (unit == "scalar" and entry[0] < 3):
                continue
            start, end = offsets[span[0]], offsets[span[1]] + 1
            self.events.append(Event(unit, run.name, time + start, time + end, step))
        if found.stalls:
            worst = max(found.stalls, key=lambda cause: found.stalls[cause])
            if found.stalls[worst] >= 16:
                self.events.append(
                    Event(
                        "stall",
                        worst,
                        time + found.cycles - found.stalls[worst],
                        time + found.cycles,
                        step,
                    )
                )
        return self._room()

    def _room(self) -> bool:
        if len(self.events) >= self.options.max_events:
            self.recording = False
            self.events_complete = False
        return self.recording

    # ---- transfers and semaphores ------------------------------------------------------------

    def _transfer_ended(self, token: object, start: float, end: float) -> None:
        assert isinstance(token, tuple)
        unit, label, step = token
        self.events.append(Event(unit, label, start, end, step))

    def dma(self, number: int, when: float, step: int, *operands: Any) -> None:
        """A transfer is issued."""
        transfer = self._transfers[number]
        assert transfer is not None
        granules = operands[transfer.size]
        if granules is UNKNOWN:
            raise UnknownDecision
        size = granules * self.constants.granule_bytes
        self.dma_count += 1
        hbm = transfer.reads_hbm or transfer.writes_hbm
        # A copy inside the HBM passes its pins twice.
        served = float(size) * (2 if transfer.reads_hbm and transfer.writes_hbm else 1)
        if transfer.reads_hbm:
            self.read_bytes += size
            self.load_count += 1
            self.busy_in += size
        if transfer.writes_hbm:
            self.written_bytes += size
            self.store_count += 1
            self.busy_out += size
        if transfer.target_space == "smem":
            self._copy_to_smem(transfer, operands, size)
        overhead = self.constants.run_overhead_bytes
        if overhead and hbm and transfer.steps is not None:
            steps = operands[transfer.steps]
            if isinstance(steps, int) and steps > 0:
                served += overhead * (size / (steps * 512))
        unit = "dma_out" if transfer.writes_hbm else "dma_in"
        for position in transfer.flags:
            flag = operands[position]
            if flag is UNKNOWN:
                raise UnknownDecision
            self._flag_labels[flag] = transfer.label
            if self.free:
                self.engine.add(flag, granules)
            elif hbm:
                token = (unit, transfer.label, step) if self.recording else None
                self.engine.start(
                    when, served, self.constants.dma_latency_cycles, flag, granules, token
                )
            else:
                cycles = size / self.constants.local_bytes_per_cycle
                cycles += self.constants.local_latency_cycles
                self.engine.start_local(when, cycles, flag, granules)
            self._local_flags[flag] = not hbm

    def _copy_to_smem(self, transfer: Transfer, operands: tuple[Any, ...], size: int) -> None:
        if transfer.target is None:
            return
        address = operands[transfer.target]
        if address is UNKNOWN:
            raise UnknownDecision
        operand = transfer.operand
        offset: int | None = None
        if operand is not None and transfer.source is not None:
            offset = self._offset(operand, operands[transfer.source])
        if offset is None:
            operand = None
        self._fill(address, operand, size // 4, offset or 0)

    def _offset(self, operand: Operand, address: Any) -> int | None:
        """How many 32-bit words into an operand an address points, or ``None``."""
        if address is UNKNOWN:
            return None
        granule = self.constants.granule_bytes
        known = self.scalars.get(operand.index)
        limit = max(1, len(known) if known is not None else operand.elements) * 4
        # Some generations count addresses in words of 512 bytes and shift them to granules.
        for shift in (0, 4):
            difference = address - (operand.address << shift)
            if 0 <= difference * granule < limit:
                return difference * granule // 4
        return None

    def wait(
        self,
        number: int,
        time: float,
        state: int,
        flag: Any,
        amount: Any,
        recording: bool,
        step: int,
    ) -> tuple[float, int, bool]:
        """A wait; gives the time after it, the pipelines' state then, and whether to record."""
        if flag is UNKNOWN or amount is UNKNOWN:
            raise UnknownDecision
        try:
            end = self.engine.wait(time, flag, amount)
        except DeadlockError as error:
            sync = self.code.syncs[number]
            raise SimulationRefused(
                f"{self.name} waits for ever in bundle {sync.bundle:#x}",
                why=f"no transfer under way raises the semaphore of {sync.op.text[:80]!r}",
                hint="a transfer that was never started, or a signal from another core",
            ) from error
        if end > time:
            lost = end - time
            label = self._flag_labels.get(flag, "semaphore")
            cause = f"waiting for DMA: {label}" if label != "semaphore" else "semaphore"
            if self._local_flags.get(flag):
                self.local_wait += lost
            if self._pipelined and 0 < step <= 2:
                cause = "prologue/epilogue"
            self.stalls[cause] = self.stalls.get(cause, 0) + lost
            self._recent_waits.append((step, cause, lost))
            if recording:
                self.events.append(Event("stall", cause, time, end, step))
                recording = self._room()
            return end, self._decay(state, lost), recording
        return time, state, recording

    def _settle_epilogue(self) -> None:
        """Waits of the last two rounds of the grid's loop belong to its epilogue."""
        if self.rounds < 3 or not self._pipelined:
            return
        for step, cause, lost in self._recent_waits:
            if step >= self.rounds - 1 and cause != "prologue/epilogue":
                self.stalls[cause] -= lost
                self.stalls["prologue/epilogue"] = self.stalls.get("prologue/epilogue", 0) + lost

    def sync(self, number: int, when: float, *operands: Any) -> None:
        """A semaphore operation other than a wait."""
        op = self.code.syncs[number].op
        opcode = op.opcode
        if any(operand is UNKNOWN for operand in operands):
            raise UnknownDecision
        if opcode.startswith("vsyncadd"):
            self.engine.add(operands[0], operands[1] if len(operands) > 1 else 1)
        elif opcode.startswith("vsyncmov"):
            if op.value is not None:
                self._popped[op.value] = self.engine.read(when, operands[0])
        elif opcode.startswith(("vsyncpa", "vsyncset")):
            # It arms the flag for the kernel and disarms it at the end; its count starts at zero.
            if len(operands) < 2 or operands[1] == 0:
                self.engine.flags.pop(operands[0], None)
        else:
            raise SimulationRefused(
                f"{self.name} can't be run: the semaphore operation {opcode} is not known"
            )

    def pop(self, name: str) -> Any:
        """The scalar that a queue from the vector or semaphore unit gives."""
        return self._popped.get(name, UNKNOWN)

    def divide(self, name: str, dividend: Any, divisor: Any, *wanted: str) -> None:
        """A division whose results, ``"udiv"`` or ``"urem"``, wait to be popped in this order."""
        unknown = dividend is UNKNOWN or divisor is UNKNOWN
        self._divided[name] = deque(
            UNKNOWN if unknown else HELPERS[part](dividend, divisor) for part in wanted
        )

    def divided(self, name: str) -> Any:
        """The next result of a division."""
        results = self._divided.get(name)
        return results.popleft() if results else UNKNOWN

    # ---- sums --------------------------------------------------------------------------------

    def totals(self) -> tuple[dict[str, float], dict[str, float], int]:
        """Busy cycles by unit, stall cycles by cause, bundles issued."""
        busy: dict[str, float] = {}
        stalls = dict(self.stalls)
        bundles = 0
        for run, costs in zip(self.runs, self.costs, strict=True):
            times = 0
            for entry in costs.values():
                count = entry[3]
                if not count:
                    continue
                times += count
                for cause, cycles in entry[4].stalls.items():
                    stalls[cause] = stalls.get(cause, 0) + cycles * count
            bundles += times * run.bundle_count
            for unit, cycles in run.unit_cycles.items():
                busy[unit] = busy.get(unit, 0) + cycles * times
        per_cycle = self.constants.hbm_bytes_per_second / self.constants.clock_hertz
        busy["dma_in"] = self.busy_in / per_cycle
        busy["dma_out"] = self.busy_out / per_cycle
        return busy, {cause: cycles for cause, cycles in stalls.items() if cycles > 0}, bundles
