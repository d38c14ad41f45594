"""The control flow of a listing: basic blocks with their delay slots, and which variables live."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tpulab.compiler.listing import Bundle, Listing, Op, Predicate, register
from tpulab.simulator.memory import needed_operands
from tpulab.simulator.opcodes import Kind, classify

_ALLOCATION = re.compile(r"#(allocation\d+\w*)(?:\s*\+\s*\$?(0x[0-9a-f]+|\d+))?")
_DIRECT = re.compile(r"\[smem:\[#(allocation\d+\w*)(?:\s*\+\s*\$?(0x[0-9a-f]+|\d+))?\]\]$")


class FlowError(Exception):
    """A control flow that the simulator does not know; the text says which."""


@dataclass
class Block:
    """Bundles that run one after the other.

    Attributes:
        number: its place in the list of blocks.
        start: index of the first bundle.
        bundles: its bundles, delay slots included.
        condition: the branch's predicate, or ``None`` without a branch or when it is always taken.
        target: number of the block that a taken branch goes to, or ``None``.
        following: number of the block after it, or ``None`` at the program's end.
        branch: whether it ends in a branch.
        loop_header: whether a later block branches back to it.
        depth: nesting depth of its first bundle.
    """

    number: int
    start: int
    bundles: tuple[Bundle, ...]
    condition: Predicate | None = None
    target: int | None = None
    following: int | None = None
    branch: bool = False
    loop_header: bool = False
    depth: int = 0
    live_out: set[str] = field(default_factory=set)


def blocks_of(listing: Listing, delay_slots: int, empty_fills: bool = False) -> list[Block]:
    """Cut a listing into basic blocks. ``delay_slots`` bundles still issue after a branch.

    With ``empty_fills`` an empty bundle can stand for all the slots that are left.

    A block may share its last bundles with the next one, when control can also enter in the middle
    of a branch's delay slots.

    Raises:
        FlowError: a branch in another branch's delay slots, or to a region that does not exist.
    """
    bundles = listing.bundles
    count = len(bundles)
    branch_at: dict[int, Op] = {}
    slots: dict[int, int] = {}
    leaders = {0}
    for index, bundle in enumerate(bundles):
        for op in bundle.ops:
            if classify(op.opcode).kind is not Kind.BRANCH:
                continue
            if index in branch_at:
                raise FlowError(f"two branches in bundle {index:#x}")
            branch_at[index] = op
            entry = _entry(listing, op)
            if entry is None:
                raise FlowError(f"the branch {op.text!r} in bundle {index:#x}")
            leaders.add(entry)
            slots[index] = delay_slots
            if empty_fills:
                slots[index] = _filled_slots(bundles, index, op, delay_slots, entry <= index)
            leaders.add(index + slots[index] + 1)
    starts = sorted(leader for leader in leaders if leader < count)
    number_of = {start: number for number, start in enumerate(starts)}
    blocks = []
    for number, start in enumerate(starts):
        end = start
        branch: Op | None = None
        while end < count and (end == start or end not in number_of):
            if end in branch_at:
                branch = branch_at[end]
                for slot in range(end + 1, end + slots[end] + 1):
                    if slot in branch_at:
                        raise FlowError(f"a branch in the delay slots of bundle {end:#x}")
                end += slots[end] + 1
                break
            end += 1
        block = Block(number, start, bundles[start : min(end, count)], depth=bundles[start].depth)
        block.following = number_of.get(end)
        if branch is not None:
            entry = _entry(listing, branch)
            assert entry is not None
            block.branch = True
            block.condition = branch.predicate
            block.target = number_of[entry]
        blocks.append(block)
    for block in blocks:
        if block.target is not None and block.target <= block.number:
            blocks[block.target].loop_header = True
    return blocks


def _filled_slots(
    bundles: tuple[Bundle, ...], index: int, branch: Op, most: int, back: bool
) -> int:
    """The delay slots that a branch has when empty bundles may stand for several.

    What the compiler moves into the slots of a forward branch is guarded by the opposite of the
    branch's predicate; in those of a loop's branch stands what belongs to the loop. An empty bundle
    that is followed by something else is the last slot.
    """

    def guarded(place: int) -> bool:
        ops = bundles[place].ops if place < len(bundles) else ()
        return branch.predicate is not None and any(
            op.predicate is not None
            and op.predicate.value == branch.predicate.value
            and op.predicate.negated != branch.predicate.negated
            for op in ops
        )

    for slot in range(1, most):
        place = index + slot
        if place < len(bundles) and not bundles[place].ops and not guarded(place + 1):
            following = bundles[place + 1 : place + 2]
            outside = not back or (following and following[0].depth < bundles[index].depth)
            if following and following[0].ops and outside:
                return slot
    return most


def _entry(listing: Listing, branch: Op) -> int | None:
    """The bundle that a branch goes to, or ``None`` when it can't be told."""
    region = branch.target_region
    if branch.opcode != "sbr.rel" or region is None:
        return None
    if region in listing.regions:
        return listing.regions[region]
    last = listing.bundles[-1]
    # An empty region at the very end is not named in the comments; the exit bundle is its place.
    if "exit bundle" in last.comment and last.marks and not last.starts:
        return last.address
    return None


def extra_rounds(listing: Listing) -> int:
    """How many rounds the loop of the grid makes besides those of the grid's steps.

    The compiler's pipeline around a grid has three stages: a step's blocks are fetched in one
    round, used in the next, and what was written back is waited for in the one after.
    """
    for bundle in listing.bundles:
        # It numbers the stages from 0; a kernel without a grid has none.
        if "iteration index, stage = " in bundle.text:
            return 2
    return 0


def plain_cells(listing: Listing) -> set[str]:
    """SMEM allocations that are only ever read and written by name, never through a pointer.

    They are as good as registers, and most of them are spilled registers.
    """
    direct: set[str] = set()
    pointed: set[str] = set()
    for bundle in listing.bundles:
        for op in bundle.ops:
            if "#allocation" not in op.text:
                continue
            for operand in op.operands:
                if op.opcode in ("sld", "sst"):
                    found = _DIRECT.match(operand)
                    if found:
                        direct.add(found.group(1))
                        continue
                for name, _ in _ALLOCATION.findall(operand):
                    pointed.add(name)
    return direct - pointed


def cell(operand: str, plain: set[str]) -> str | None:
    """The variable that stands for a plain SMEM cell, or ``None`` for any other place."""
    found = _DIRECT.match(operand)
    if found is None or found.group(1) not in plain:
        return None
    offset = int(found.group(2), 0) if found.group(2) else 0
    return f"m_{found.group(1)}" + (f"_{offset}" if offset else "")


def scalar_result(op: Op, plain: set[str]) -> str | None:
    """The variable that a scalar operation writes, or ``None`` if it writes none."""
    if op.opcode == "sst":
        return cell(op.operands[0], plain)
    if op.value is None or classify(op.opcode).kind is not Kind.SCALAR:
        return None
    name = register(op.value)
    return name if name is not None and name[0] in "sp" else None


def scalar_sources(op: Op, plain: set[str]) -> set[str]:
    """The scalar variables that an operation reads."""
    names: set[str] = set()
    looked_at = needed_operands(op) if classify(op.opcode).kind is Kind.DMA else None
    for position, operand in enumerate(op.operands):
        if looked_at is not None and position not in looked_at:
            continue
        place = cell(operand, plain) if op.opcode in ("sld", "sst") else None
        if place is not None:
            if op.opcode == "sld" or position > 0:
                names.add(place)
            continue
        for value in re.findall(r"%[a-z]+\d+_[a-z]+\d+", operand):
            name = register(value)
            if name is not None and name[0] in "sp":
                names.add(name)
    if op.predicate is not None:
        name = register(op.predicate.value)
        if name is not None:
            names.add(name)
        result = scalar_result(op, plain)
        if result is not None:
            # When the predicate is false the old value stays.
            names.add(result)
    return names


def find_live(blocks: list[Block], plain: set[str]) -> None:
    """Work out which variables each block leaves to others (``Block.live_out``)."""
    facts = [_uses_and_definitions(block, plain) for block in blocks]
    live_in: list[set[str]] = [set() for _ in blocks]
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out: set[str] = set()
            for following in (block.following, block.target):
                if following is not None:
                    out |= live_in[following]
            uses, definitions = facts[block.number]
            entering = uses | (out - definitions)
            block.live_out = out
            if entering != live_in[block.number]:
                live_in[block.number] = entering
                changed = True


def is_pure(op: Op, plain: set[str]) -> bool:
    """Whether an operation does nothing but write its one variable."""
    kind = classify(op.opcode).kind
    if op.opcode == "sst":
        return cell(op.operands[0], plain) is not None
    return kind is Kind.SCALAR and not op.opcode.startswith(("vpop.sfrf", "spop", "sdivrem"))


def matters(op: Op, plain: set[str]) -> bool:
    """Whether an operation reads scalars for something that has an effect in the simulator."""
    kind = classify(op.opcode).kind
    if kind in (Kind.DMA, Kind.WAIT, Kind.SYNC, Kind.BRANCH):
        return True
    return kind is Kind.SCALAR and not is_pure(op, plain)


def _uses_and_definitions(block: Block, plain: set[str]) -> tuple[set[str], set[str]]:
    uses: set[str] = set()
    definitions: set[str] = set()
    for bundle in block.bundles:
        now: set[str] = set()
        for op in bundle.ops:
            pure = is_pure(op, plain)
            if pure or matters(op, plain):
                uses |= scalar_sources(op, plain) - definitions
            result = scalar_result(op, plain)
            if result is not None and pure and op.predicate is None:
                now.add(result)
        definitions |= now
    return uses, definitions


def needed(block: Block, plain: set[str]) -> set[int]:
    """The positions (counted over all operations of the block) of pure operations that matter."""
    live = set(block.live_out)
    kept: set[int] = set()
    position = sum(len(bundle.ops) for bundle in block.bundles)
    for bundle in reversed(block.bundles):
        read: set[str] = set()
        for op in reversed(bundle.ops):
            position -= 1
            if not is_pure(op, plain):
                if matters(op, plain):
                    read |= scalar_sources(op, plain)
                    live |= scalar_sources(op, plain)
                result = scalar_result(op, plain)
                if result is not None and op.predicate is None:
                    live.discard(result)
                continue
            result = scalar_result(op, plain)
            if result is None or result not in live:
                continue
            kept.add(position)
            if op.predicate is None:
                live.discard(result)
            read |= scalar_sources(op, plain)
            live |= scalar_sources(op, plain)
        # Operations of one bundle read what stood in the registers before it.
        live |= read
    return kept
