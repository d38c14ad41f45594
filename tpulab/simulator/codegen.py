"""A listing as one Python function: the scalar core runs exactly, everything else is called for.

Each basic block becomes a leaf of a binary tree of ``if``; registers are local variables. Where
the clock matters (a transfer starts, a wait, a semaphore), the block is cut into *runs* of bundles
whose cost comes from ``cost.py``: ``c3.get(st)`` finds the cost of run 3 in pipeline state ``st``.

In generated code ``t`` is the time in cycles at which the next bundle could issue, ``st`` the
number of the pipeline state, ``step`` how often the outermost loop was entered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tpulab.compiler.listing import Bundle, Listing, Op, register
from tpulab.simulator import flow
from tpulab.simulator.memory import ALLOCATION_ROOM, needed_operands, reads_core
from tpulab.simulator.opcodes import Kind, classify
from tpulab.simulator.scalar import Translator, Untranslatable

_DIVISION = re.compile(r"\bk(Div|Rem|DivAndRem)\b")
_ALLOCATION = re.compile(r"#(allocation\d+\w*)")


@dataclass
class SyncOp:
    """A transfer, wait or semaphore operation, numbered in the order of the listing."""

    number: int
    op: Op
    bundle: int


@dataclass
class Code:
    """Generated source and what it refers to.

    Attributes:
        source: a Python function ``program(machine)``.
        runs: the bundles of each run, by number.
        run_steps: whether the run is inside the outermost loop, by number.
        syncs: the transfers, waits and semaphore operations, by number.
        careful: whether unknown values can occur.
        warnings: sentences about opcodes that are not known.
    """

    source: str
    runs: list[tuple[Bundle, ...]] = field(default_factory=list)
    syncs: list[SyncOp] = field(default_factory=list)
    careful: bool = False
    warnings: list[str] = field(default_factory=list)


class Generator:
    """Writes the function for one listing.

    Args:
        listing: the program.
        address_of: gives the address of an allocation's name.
        careful: whether unknown values can occur.
        operands: for each ``inlined_call_operand``, by its value's name, its value's expression.
        delay_slots: how many bundles still issue after a branch.
        empty_fills: whether an empty bundle can stand for all that are left of them.
    """

    def __init__(
        self,
        listing: Listing,
        address_of: Any,
        careful: bool,
        operands: dict[str, str],
        delay_slots: int,
        empty_fills: bool = False,
    ) -> None:
        self.listing = listing
        self.careful = careful
        self.operands = operands
        self.blocks = flow.blocks_of(listing, delay_slots, empty_fills)
        self.plain = flow.plain_cells(listing)
        flow.find_live(self.blocks, self.plain)
        self.translator = Translator(address_of, careful)
        self.code = Code("", careful=careful)
        self.names: set[str] = set()
        self.unknown_opcodes: set[str] = set()
        self.outer_header = self._outermost_loop()

    def _outermost_loop(self) -> int | None:
        headers = [block for block in self.blocks if block.loop_header]
        if not headers:
            return None
        depth = min(block.depth for block in headers)
        first = [block for block in headers if block.depth == depth]

        # The grid's loop is the longest of the outermost ones.
        def length(block: flow.Block) -> int:
            ends = [b.number for b in self.blocks if b.target == block.number]
            return max(ends) - block.number

        return max(first, key=length).number

    def generate(self) -> Code:
        """Write the function.

        Raises:
            Untranslatable: a scalar operation or control flow that is not known.
        """
        leaves = [self._block(block) for block in self.blocks]
        body = self._tree(leaves, 0, len(leaves), 2)
        lines = ["def program(machine):"]
        lines.append("    t = machine.time; st = 0; step = 0; b = 0; rec = machine.recording")
        lines.append("    left = machine.check_every; dma = machine.dma; wait = machine.wait")
        lines.append("    mem = machine.memory; get = mem.get")
        lines.append("    flags = machine.engine.flags; flag_of = flags.get")
        for number in range(len(self.code.runs)):
            lines.append(f"    c{number} = machine.costs[{number}]")
        for name in sorted(self.names):
            # A cell of SMEM holds anything until it is written; registers are never read before.
            default = {"p": "False", "m": "UNKNOWN"}.get(name[0], "0")
            lines.append(f"    {name} = {default}")
        lines.append("    while True:")
        lines.extend(body)
        self.code.source = "\n".join(lines) + "\n"
        for opcode in sorted(self.unknown_opcodes):
            self.code.warnings.append(
                f"the opcode {opcode} is not known; its time is that of a plain vector operation"
            )
        return self.code

    def _tree(self, leaves: list[list[str]], low: int, high: int, level: int) -> list[str]:
        indent = "    " * level
        if high - low == 1:
            return [indent + line for line in leaves[low]]
        middle = (low + high) // 2
        return [
            f"{indent}if b < {middle}:",
            *self._tree(leaves, low, middle, level + 1),
            f"{indent}else:",
            *self._tree(leaves, middle, high, level + 1),
        ]

    def _block(self, block: flow.Block) -> list[str]:
        keep = flow.needed(block, self.plain)
        lines: list[str] = []
        if block.number == self.outer_header:
            lines.append("step += 1")
        if block.loop_header:
            lines.append("left -= 1")
            lines.append("if left < 0: left = machine.check(t, step)")
        # A run ends with a bundle that waits; transfers inside a run happen at an offset.
        position = 0
        pending: list[Bundle] = []
        effects: list[str] = []
        branch_taken: str | None = None

        def flush() -> None:
            if not pending:
                lines.extend(effects)
                effects.clear()
                return
            number = len(self.code.runs)
            self.code.runs.append(tuple(pending))
            lines.append(f"e = c{number}.get(st) or machine.price({number}, st)")
            lines.append("e[3] += 1")
            lines.append(f"if rec: rec = machine.record({number}, e, t, step)")
            lines.extend(effects)
            lines.append("t += e[0]; st = e[1]")
            pending.clear()
            effects.clear()

        for bundle in block.bundles:
            waits: list[str] = []
            index_in_run = len(pending)
            pending.append(bundle)
            saved, renames = self._hazards(bundle)
            for name in saved:
                effects.append(f"o_{name} = {name}")
            self.renames = renames
            for op in bundle.ops:
                kind = classify(op.opcode)
                if position in keep or flow.matters(op, self.plain):
                    self.names |= flow.scalar_sources(op, self.plain)
                if not kind.known:
                    self.unknown_opcodes.add(op.opcode)
                if kind.kind is Kind.UNKNOWN:
                    raise Untranslatable(f"the operation {op.opcode} in bundle {bundle.address:#x}")
                if kind.kind is Kind.BRANCH:
                    branch_taken = self._condition(op)
                    if branch_taken is not None:
                        effects.append(f"taken = {branch_taken}")
                elif kind.kind is Kind.WAIT:
                    waits.extend(self._wait(op, bundle))
                elif kind.kind in (Kind.DMA, Kind.SYNC):
                    if waits:
                        waits.extend(self._sync(op, bundle, None))
                    else:
                        effects.extend(self._sync(op, bundle, index_in_run))
                elif kind.kind is Kind.SCALAR and (
                    position in keep or not flow.is_pure(op, self.plain)
                ):
                    effects.extend(self._scalar(op, bundle))
                position += 1
            if waits:
                flush()
                lines.extend(waits)
        flush()
        lines.extend(self._leave(block, branch_taken))
        return lines

    def _leave(self, block: flow.Block, condition: str | None) -> list[str]:
        following = "return t, step" if block.following is None else f"b = {block.following}"
        if not block.branch:
            return [following]
        if condition is None:
            return [f"b = {block.target}"]
        return ["if taken:", f"    b = {block.target}", "else:", f"    {following}"]

    def _hazards(self, bundle: Bundle) -> tuple[list[str], dict[str, str]]:
        """Registers whose old value a later operation of the bundle still reads."""
        written: dict[str, str] = {}
        saved: list[str] = []
        renames: dict[str, str] = {}
        for op in bundle.ops:
            kind = classify(op.opcode)
            if kind.kind is Kind.NOTHING:
                continue
            values = list(_values(op))
            for value in values:
                name = register(value)
                if name in written and written[name] != value and name[0] in "sp":
                    if name not in saved:
                        saved.append(name)
                    renames[value] = f"o_{name}"
            if op.value is not None:
                name = register(op.value)
                if name is not None:
                    written[name] = op.value
        self.names.update(f"o_{name}" for name in saved)
        return saved, renames

    def _expression(self, text: str) -> str:
        if text in self.renames:
            return self.renames[text]
        for value, name in self.renames.items():
            if value in text:
                old = register(value)
                assert old is not None
                return self.translator.operand(text).replace(old, name)
        return self.translator.operand(text)

    def _condition(self, op: Op) -> str | None:
        if op.predicate is None:
            return None
        expression = self._expression(op.predicate.value)
        return self.translator.negate(expression) if op.predicate.negated else expression

    def _guarded(self, op: Op, lines: list[str]) -> list[str]:
        condition = self._condition(op)
        if condition is None:
            return lines
        return [f"if {condition}:", *("    " + line for line in lines)]

    def _number(self, op: Op, bundle: Bundle) -> int:
        number = len(self.code.syncs)
        self.code.syncs.append(SyncOp(number, op, bundle.address))
        return number

    def _wait(self, op: Op, bundle: Bundle) -> list[str]:
        number = self._number(op, bundle)
        if not op.opcode.startswith(("dma.done", "vwait.ge")):
            raise Untranslatable(f"the wait {op.opcode} in bundle {bundle.address:#x}")
        operands = [self._expression(text) for text in op.operands]
        flag = operands[0]
        amount = operands[1] if len(operands) > 1 else "1"
        return self._guarded(
            op, [f"t, st, rec = wait({number}, t, st, {flag}, {amount}, rec, step)"]
        )

    def _sync(self, op: Op, bundle: Bundle, index: int | None) -> list[str]:
        number = self._number(op, bundle)
        when = "t" if index is None else f"t + e[2][{index}]"
        looked_at = (
            needed_operands(op)
            if classify(op.opcode).kind is Kind.DMA
            else frozenset(range(len(op.operands)))
        )
        operands = [
            self._expression(text) if position in looked_at else "0"
            for position, text in enumerate(op.operands)
        ]
        listed = ", ".join(operands)
        if op.opcode == "vsyncadd" and len(operands) == 2 and not self.careful:
            # What Machine.sync would do; it happens after every wait.
            flag, amount = operands
            return self._guarded(op, [f"flags[{flag}] = flag_of({flag}, 0) + {amount}"])
        if classify(op.opcode).kind is Kind.DMA:
            return self._guarded(op, [f"dma({number}, {when}, step, {listed})"])
        return self._guarded(op, [f"machine.sync({number}, {when}, {listed})"])

    def _scalar(self, op: Op, bundle: Bundle) -> list[str]:
        result = flow.scalar_result(op, self.plain)
        if op.opcode == "sst":
            return self._store(op, result)
        if op.opcode.startswith("sdivrem"):
            dividend, divisor = (self._expression(text) for text in op.operands[:2])
            sign = "s" if op.opcode.startswith("sdivrem.s") else "u"
            said = _DIVISION.search(op.comment)
            wanted = said.group(1).lower().split("and") if said else ["div", "rem"]
            listed = ", ".join(repr(sign + part) for part in wanted)
            return self._guarded(
                op, [f"machine.divide({op.value!r}, {dividend}, {divisor}, {listed})"]
            )
        if result is None:
            return []
        self.names.add(result)
        may_overflow = False
        if op.opcode == "sld":
            expression = self._load(op)
        elif op.opcode == "spop.drf":
            expression = f"machine.divided({op.operands[0]!r})"
        elif op.opcode in ("spop", "vpop.sfrf"):
            expression = f"machine.pop({op.operands[0]!r})"
        elif op.opcode.startswith("inlined_call_operand"):
            assert op.value is not None
            expression = self.operands[op.value]
        elif op.opcode == "scalar_parameter_address" or op.opcode == "reloc":
            expression = "0"
        else:
            expression, may_overflow = self._pure(op)
        if result[0] == "p":
            may_overflow = False
        lines = []
        condition = self._condition(op)
        if condition is not None:
            if may_overflow:
                expression = f"wrap({expression})"
                may_overflow = False
            if self.careful:
                expression = f"select({condition}, {expression}, {result})"
            else:
                return [f"if {condition}: {result} = {expression}"]
        if may_overflow and self.careful:
            expression = f"wrap({expression})"
            may_overflow = False
        if expression != result:
            lines.append(f"{result} = {expression}")
        if may_overflow:
            lines.append(
                f"if {result} > 2147483647 or {result} < -2147483648: {result} = wrap({result})"
            )
        return lines

    def _pure(self, op: Op) -> tuple[str, bool]:
        if self.renames:
            operand = self.translator.operand
            renames = self.renames
            self.translator.operand = (  # type: ignore[method-assign]
                lambda text: renames[text] if text in renames else operand(text)
            )
            try:
                return self.translator.expression(op)
            finally:
                del self.translator.operand
        return self.translator.expression(op)

    def _load(self, op: Op) -> str:
        if reads_core(op):
            return "machine.core"
        place = flow.cell(op.operands[0], self.plain)
        if place is not None:
            self.names.add(place)
            return place
        return f"get({self._expression(op.operands[0])}, UNKNOWN)"

    def _store(self, op: Op, place: str | None) -> list[str]:
        value = self._expression(op.operands[1])
        condition = self._condition(op)
        if place is not None:
            self.names.add(place)
            target = place
            old = place
        else:
            address = self._expression(op.operands[0])
            target = f"mem[{address}]"
            old = f"get({address}, UNKNOWN)"
        if condition is not None and not self.careful:
            return [f"if {condition}: {target} = {value}"]
        if condition is not None:
            value = f"select({condition}, {value}, {old})"
        if place is None and self.careful:
            first, end = self._room_of(op.operands[0])
            return [f"put(mem, {address}, {value}, {first}, {end})"]
        return [f"{target} = {value}"]

    def _room_of(self, operand: str) -> tuple[int, int]:
        """The addresses that a store can reach: those of the allocation that it names."""
        found = _ALLOCATION.search(operand)
        if found is None:
            return -(2**40), 2**40
        first = self.translator.address_of(found.group(1))
        return first, first + ALLOCATION_ROOM


def _values(op: Op) -> list[str]:
    found: list[str] = []
    for operand in op.operands:
        found.extend(re.findall(r"%[a-z]+\d+_[a-z]+\d+", operand))
    if op.predicate is not None:
        found.append(op.predicate.value)
    return found
