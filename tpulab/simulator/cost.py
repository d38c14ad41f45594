"""What a straight run of bundles costs: in-order issue with a scoreboard.

One bundle issues per cycle at best. A bundle waits until every operand is ready and every unit
that it uses is free; what it waited for longest gets the blame. The state of the pipelines at entry
(registers not ready yet, units still busy, results still queued) is a small tuple, and the cost of
a run with a given entry state is worked out once.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tpulab.compiler.listing import Bundle, Op, register
from tpulab.simulator.constants import Constants
from tpulab.simulator.opcodes import Kind, OpClass, classify

_NAME = re.compile(r"%[a-z]*\d+(?:_[a-z]+\d+)?")
_MRB = re.compile(r"\.mrb\[(\d+)\]")
_QUEUE_LIMIT = 64

CAUSES = {
    "scalar": "scalar result",
    "scalar_slow": "scalar result",
    "scalar_load": "scalar load",
    "scalar_store": "scalar result",
    "scalar_divide": "scalar result",
    "scalar_pop": "scalar result",
    "sync_read": "scalar result",
    "core_register": "scalar result",
    "vector_to_scalar": "vector to scalar",
    "valu": "vector result",
    "valu_integer": "vector result",
    "transpose_single": "cross-lane result",
    "transpose_pop": "vector result",
    "single": "vector result",
    "load": "vector load",
    "store": "vector store",
    "eup": "transcendental result",
    "pop": "vector result",
    "cross_lane": "cross-lane result",
    "rotate": "cross-lane result",
    "permute": "cross-lane result",
    "transpose": "cross-lane result",
    "transpose_end": "cross-lane result",
    "matmul": "matrix result",
    "matpop": "matrix result",
    "matpush": "matrix weights",
    "matpush_transposed": "matrix weights",
    "matprep": "matrix weights",
}
"""For each family of operations, the cause that its consumer's wait is put down to."""

_BUSY_CAUSES = {"mxu": "matrix unit busy", "xlu": "cross-lane unit busy", "eup": "EUP busy"}


class State(NamedTuple):
    """What is still under way when a bundle could issue.

    Attributes:
        ready: (key, remaining cycles, cause) of results and units that are not free yet.
        queues: (queue, remaining cycles of each result waiting in it, oldest first).
    """

    ready: tuple[tuple[str, int, str], ...] = ()
    queues: tuple[tuple[str, tuple[int, ...]], ...] = ()


DRAINED = State()


class _Timed(NamedTuple):
    """An operation, ready for the scoreboard."""

    sources: tuple[str, ...]
    result: str | None
    latency: int
    result_cause: str
    resource: str | None
    occupancy: int
    busy_cause: str
    push: str | None
    push_count: int
    push_interval: int
    pop: str | None
    buffers: tuple[str, ...]


class Cost(NamedTuple):
    """What a run of bundles costs from one entry state.

    Attributes:
        cycles: from the first bundle's earliest issue to that of the bundle after the run.
        state: what is under way then.
        stalls: cycles lost, by cause.
        offsets: when each bundle issues, in cycles after the run's begin.
    """

    cycles: int
    state: State
    stalls: dict[str, int]
    offsets: tuple[int, ...]


class Run:
    """A straight run of bundles, prepared for timing.

    Attributes:
        name: which bundles of the listing it holds, for people.
        unit_cycles: busy cycles of each unit, whatever the entry state.
        span: for each unit, the indices of the first and last bundle that use it.
    """

    def __init__(self, bundles: tuple[Bundle, ...], constants: Constants) -> None:
        self.bundle_count = len(bundles)
        first, last = bundles[0].address, bundles[-1].address
        self.name = f"bundle {first:#x}" if first == last else f"bundles {first:#x} to {last:#x}"
        self.timed: list[tuple[_Timed, ...]] = []
        self.unit_cycles: dict[str, float] = {}
        self.span: dict[str, tuple[int, int]] = {}
        self.matmuls = 0
        for index, bundle in enumerate(bundles):
            ops = []
            units = set()
            for op in bundle.ops:
                kind = classify(op.opcode)
                if kind.kind is Kind.NOTHING:
                    continue
                timed = _time(op, kind, constants)
                ops.append(timed)
                unit = kind.unit
                if unit.endswith(("_pop", "_push")):
                    continue
                if unit == "mxu":
                    self._add("mxu", timed.occupancy / constants.mxu_count)
                elif unit == "xlu":
                    self._add("xlu", timed.occupancy / constants.xlu_count)
                else:
                    units.add(unit)
                first, _ = self.span.get(unit, (index, index))
                self.span[unit] = (first, index)
            for unit in units - {"dma"}:
                self._add(unit, 1)
            self.timed.append(tuple(ops))

    def _add(self, unit: str, cycles: float) -> None:
        self.unit_cycles[unit] = self.unit_cycles.get(unit, 0) + cycles

    def cost(self, entry: State) -> Cost:
        """The cost of the run when it is entered in a state."""
        ready: dict[str, tuple[int, str]] = {key: (t, cause) for key, t, cause in entry.ready}
        queues: dict[str, list[int]] = {name: list(times) for name, times in entry.queues}
        stalls: dict[str, int] = {}
        offsets = []
        now = 0
        for ops in self.timed:
            start = now
            cause = ""
            for op in ops:
                for key in op.sources:
                    when = ready.get(key)
                    if when is not None and when[0] > start:
                        start, cause = when
                if op.resource is not None:
                    when = ready.get(op.resource)
                    if when is not None and when[0] > start:
                        start, cause = when[0], op.busy_cause
                if op.pop is not None:
                    queue = queues.get(op.pop)
                    if queue:
                        # Several pops in one bundle take from different queues.
                        if queue[0] > start:
                            start, cause = queue[0], "matrix result"
                        del queue[0]
            if start > now:
                stalls[cause] = stalls.get(cause, 0) + start - now
            for op in ops:
                if op.resource is not None and op.occupancy:
                    ready[op.resource] = (start + op.occupancy, op.busy_cause)
                if op.push is not None:
                    queue = queues.setdefault(op.push, [])
                    first = start + op.latency
                    for position in range(op.push_count):
                        queue.append(first + position * op.push_interval)
                    if len(queue) > _QUEUE_LIMIT * 4:
                        del queue[: len(queue) - _QUEUE_LIMIT]
                elif op.buffers:
                    for position, buffer in enumerate(op.buffers):
                        ready[buffer] = (
                            start + op.latency + position * op.push_interval,
                            "matrix result",
                        )
                elif op.result is not None:
                    ready[op.result] = (start + op.latency, op.result_cause)
            offsets.append(start)
            now = start + 1
        return Cost(now, _state(ready, queues, now), stalls, tuple(offsets))


def _state(ready: dict[str, tuple[int, str]], queues: dict[str, list[int]], now: int) -> State:
    left = tuple(
        sorted((key, when - now, cause) for key, (when, cause) in ready.items() if when > now)
    )
    waiting = []
    for name in sorted(queues):
        times = [max(0, when - now) for when in queues[name]]
        if len(times) > _QUEUE_LIMIT:
            times = times[-_QUEUE_LIMIT:]
        # Results that nobody pops any more would make every state a new one.
        if any(times) or times and len(times) <= 16:
            waiting.append((name, tuple(times)))
    return State(left, tuple(waiting))


def after(state: State, cycles: int) -> State:
    """The state after some cycles in which no bundle issues."""
    if not state.ready and not state.queues:
        return state
    return State(
        tuple((key, t - cycles, cause) for key, t, cause in state.ready if t > cycles),
        tuple((name, tuple(max(0, t - cycles) for t in times)) for name, times in state.queues),
    )


def _time(op: Op, kind: OpClass, constants: Constants) -> _Timed:
    family = kind.family
    latency = constants.latency_cycles.get(family, 1)
    resource = kind.resource
    occupancy = constants.occupancy_cycles.get(family, 0)
    push = pop = None
    count = interval = 0
    buffers: tuple[str, ...] = ()
    opcode = op.opcode
    if family == "matmul":
        occupancy = constants.matmul_occupancy(opcode)
        if constants.matmul_rows(opcode) > 16:
            latency = constants.latency_cycles.get("matmul_8bit", latency)
        count = constants.matmul_results(opcode)
        interval = max(1, occupancy // count)
        found = _MRB.search(opcode)
        if found:
            base = int(found.group(1))
            buffers = tuple(f"mrb{base + i}.{resource}" for i in range(count))
        else:
            push = kind.fifo
    elif family in ("matpush", "matpush_transposed"):
        # The weights go in by a port of their own, while the unit multiplies with the ones before.
        resource = f"{resource}.weights"
        occupancy = max(1, occupancy * min(16, constants.matmul_rows(opcode)) // 16)
    elif family == "matprep":
        resource = None
    sources = _sources(op)
    if kind.pops:
        found = _MRB.search(opcode)
        if found:
            sources = (*sources, f"mrb{found.group(1)}.{resource}")
        else:
            pop = kind.fifo
        resource = None
    if resource is not None and resource.startswith("xlu") and not occupancy:
        resource = None
    result = None
    if op.value is not None:
        result = register(op.value) or op.value
    unit = (resource or "").rstrip("0123456789")
    return _Timed(
        sources,
        result,
        latency,
        CAUSES.get(family, "scalar result"),
        resource,
        occupancy,
        _BUSY_CAUSES.get(unit, "matrix weights" if unit.endswith("weights") else "unit busy"),
        push,
        count,
        interval,
        pop,
        buffers,
    )


def _sources(op: Op) -> tuple[str, ...]:
    names = []
    for operand in op.operands:
        for name in _NAME.findall(operand):
            names.append(register(name) or name)
    if op.predicate is not None:
        names.append(register(op.predicate.value) or op.predicate.value)
        # The value kept when the predicate is false is the same register as the result.
    return tuple(dict.fromkeys(names))
