"""Where things lie: addresses of allocations and operands, and what a transfer's address means.

Nothing here is the chip's real layout. Addresses only have to be distinct, to leave room for what
is stored, and to survive the arithmetic that a listing does on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tpulab.compiler.listing import Listing, Op
from tpulab.simulator.scalar import Untranslatable

_SHAPE = re.compile(r"shape: ([a-z]\w*)\[([\d,]*)\]")
_INDEX = re.compile(r"index: (\d+)")
_KIND = re.compile(r"kind: (\w+)")
_VALUE = re.compile(r"%[a-z]*\d+(?:_[a-z]+\d+)?")
_SPILL = re.compile(r"allocation\d+_spill")

ALLOCATION_ROOM = 1 << 17
"""How far apart the addresses of two allocations are."""
_OPERAND_ALIGNMENT = 1 << 10
_ALLOCATIONS_BEGIN = 1 << 26


@dataclass(frozen=True)
class Operand:
    """An operand of the piece as its listing names it.

    Attributes:
        value: the value that holds its address (or the scalar itself when ``space`` is ``""``).
        space: ``"hbm"``, ``"vmem"``, ``"smem"`` or ``""`` for a scalar passed by value.
        index: its position among operands and results.
        is_input: whether it is read.
        dtype: HLO name of the element type.
        shape: its dimensions.
        address: the made-up address.
        name: how the kernel's author calls it; empty when that is not known.
    """

    value: str
    space: str
    index: int
    is_input: bool
    dtype: str
    shape: tuple[int, ...]
    address: int
    name: str = ""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def label(self) -> str:
        """How messages and events call it: ``"input x_ref"``, or ``"output 2"`` by its index."""
        return f"{'input' if self.is_input else 'output'} {self.name or self.index}"


class AddressBook:
    """Gives each allocation of a listing an address of its own."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        """The address of an allocation by name, the same each time.

        Raises:
            Untranslatable: there are too many.
        """
        address = self._addresses.get(name)
        if address is None:
            # Left shifts by four (VMEM words to granules) must stay inside 32 bits; operands lie
            # below the allocations.
            address = _ALLOCATIONS_BEGIN + len(self._addresses) * ALLOCATION_ROOM
            if address >= 2 * _ALLOCATIONS_BEGIN:
                raise Untranslatable("a listing with more than 512 allocations")
            self._addresses[name] = address
        return address


def operands_of(listing: Listing) -> list[Operand]:
    """The operands that a listing declares in its entry bundles, in order of their index."""
    found: list[Operand] = []
    place = _OPERAND_ALIGNMENT
    for bundle in listing.bundles[:64]:
        for op in bundle.ops:
            if not op.opcode.startswith("inlined_call_operand") or op.value is None:
                continue
            text = " ".join(op.attributes) or op.text
            shape = _SHAPE.search(text)
            index = _INDEX.search(text)
            kind = _KIND.search(text)
            space = op.opcode.partition(".")[2]
            dimensions = tuple(
                int(size) for size in (shape.group(2).split(",") if shape else []) if size
            )
            operand = Operand(
                op.value,
                space if space in ("hbm", "vmem", "smem") else "",
                int(index.group(1)) if index else len(found),
                kind.group(1) == "input" if kind else True,
                shape.group(1) if shape else "",
                dimensions,
                place,
            )
            found.append(operand)
            # In units of 32 bytes, the smallest that any generation counts in.
            size = operand.elements * 4 // 32 + _OPERAND_ALIGNMENT
            place += (size // _OPERAND_ALIGNMENT + 1) * _OPERAND_ALIGNMENT
            # Nothing depends on where in the HBM the bytes lie, so far places may coincide.
            place %= _ALLOCATIONS_BEGIN
    return found


def origins(listing: Listing, operands: Sequence[Operand]) -> dict[str, Operand]:
    """For every value that is computed from an operand's address, that operand.

    Follows moves, shifts, additions and spills. A value that could come from two operands gets the
    first.
    """
    known: dict[str, Operand] = {operand.value: operand for operand in operands if operand.space}
    follow = (
        "scalar_lea.hbm",
        "sshll",
        "sshra",
        "int_to_ptr",
        "sld",
        "sst",
        "sphi",
        "smov",
        "scalar_select",
        "sadd",
    )
    steps: list[tuple[str, Sequence[str]]] = []
    for bundle in listing.bundles:
        for op in bundle.ops:
            if op.value is None or not op.opcode.startswith(follow):
                continue
            if op.opcode == "sst":
                place = _SPILL.search(op.operands[0])
                if place and len(op.operands) > 1:
                    steps.append((place.group(), _VALUE.findall(op.operands[1])))
            elif op.opcode == "sld":
                place = _SPILL.search(op.operands[0])
                if place:
                    steps.append((op.value, [place.group()]))
            else:
                sources: Sequence[str] = [
                    name for text in op.operands for name in _VALUE.findall(text)
                ]
                steps.append((op.value, sources))
    changed = True
    while changed:
        changed = False
        for value, sources in steps:
            if value in known:
                continue
            for source in sources:
                if source in known:
                    known[value] = known[source]
                    changed = True
                    break
    return known


_SPACES = re.compile(r"\b(hbm|vmem|smem)-to-(hbm|vmem|smem)\b")
_LABEL = re.compile(r"/\*([\w ]+)=\*/")


@dataclass(frozen=True)
class Transfer:
    """How to read the operands of one ``dma`` operation.

    Attributes:
        source_space: ``"hbm"``, ``"vmem"``, ``"smem"`` or ``"?"``.
        target_space: the same for where it goes.
        size: position of its size in granules among the operands.
        source: position of the source's address, or ``None``.
        target: position of the target's address, or ``None``.
        flags: positions of the sync flags that are raised when it is complete.
        steps: position of the contiguous steps per stride, or ``None`` when it is contiguous.
        label: which operand of the piece it moves.
        operand: that operand, when known.
        remote: whether it goes to another core.
    """

    source_space: str
    target_space: str
    size: int
    source: int | None
    target: int | None
    flags: tuple[int, ...]
    steps: int | None
    label: str
    operand: Operand | None
    remote: bool = False

    @property
    def reads_hbm(self) -> bool:
        """Whether bytes leave the HBM."""
        return self.source_space == "hbm"

    @property
    def writes_hbm(self) -> bool:
        """Whether bytes arrive in the HBM."""
        return self.target_space == "hbm"


@lru_cache(maxsize=4096)
def needed_operands(op: Op) -> frozenset[int]:
    """The operands of a ``dma`` operation whose values the simulator looks at.

    Addresses in HBM and VMEM are not among them: nothing depends on where the bytes lie.
    """
    transfer = transfer_of(op, {})
    if transfer is None:
        return frozenset(range(len(op.operands)))
    needed = {transfer.size, *transfer.flags}
    if transfer.steps is not None:
        needed.add(transfer.steps)
    if transfer.target_space == "smem":
        needed |= {place for place in (transfer.source, transfer.target) if place is not None}
    return frozenset(needed)


def transfer_of(op: Op, known: Mapping[str, Operand]) -> Transfer | None:
    """Understand a ``dma`` operation, or ``None`` when its form is not known."""
    labels = [name.strip() for name in _LABEL.findall(op.text.split("/* \n")[0].split("/*\n")[0])]
    if len(labels) != len(op.operands):
        labels = labels[: len(op.operands)]
    place = {name: position for position, name in enumerate(labels)}
    middle = op.opcode.partition(".")[2]
    source_space, _, target_space = middle.partition("_to_")
    size = place.get("size_in_granules", place.get("size"))
    if size is None:
        return None
    if not target_space:
        said = _SPACES.search(op.comment)
        if said:
            source_space, target_space = said.groups()
        else:
            source_space = _space_of(op, place, ("src", "source", "src_mem", "src_address"), known)
            target_space = _space_of(op, place, ("dst", "dest", "dst_mem", "dst_address"), known)
    source = _first(place, source_space, "src", "source", "src_address", "src_mem")
    target = _first(place, target_space, "dst", "dest", "dst_address", "dst_mem")
    if source_space == target_space and source is not None and target == source:
        target = next((p for name, p in place.items() if name.startswith("dst")), None)
    # ``dst_syncflagno_1`` is the flag of a second core.
    flags = tuple(
        position
        for name, position in place.items()
        if ("dst_sync" in name or "dst_sflag" in name) and not name.endswith("_1")
    ) or tuple(position for name, position in place.items() if "sync" in name or "sflag" in name)
    if not flags:
        return None
    operand = None
    for position, space in ((source, source_space), (target, target_space)):
        if position is not None and operand is None and space != "smem":
            for value in _VALUE.findall(op.operands[position]):
                operand = operand or known.get(value)
    label = operand.label if operand else f"{source_space} to {target_space}"
    return Transfer(
        source_space,
        target_space,
        size,
        source,
        target,
        flags,
        place.get("steps_per_stride"),
        label,
        operand,
    )


def _first(place: Mapping[str, int], *names: str) -> int | None:
    for name in names:
        if name in place:
            return place[name]
    return None


def _space_of(
    op: Op, place: Mapping[str, int], names: Sequence[str], known: Mapping[str, Operand]
) -> str:
    for name in names:
        if name in place:
            for value in _VALUE.findall(op.operands[place[name]]):
                if value in known:
                    return known[value].space
            return "vmem"
    return "?"


def constant_values(listing: Listing) -> dict[str, int]:
    """Values that the listing sets to an integer, by name."""
    found: dict[str, int] = {}
    for bundle in listing.bundles:
        for op in bundle.ops:
            if op.opcode.startswith("smov") and op.value and op.predicate is None:
                text = op.operands[0]
                if text.isdigit():
                    found[op.value] = int(text)
    return found


def leaves_the_chip(op: Op, constants: Mapping[str, int]) -> bool:
    """Whether an operation signals or copies to another chip.

    A ``dma.general`` names its target in ``overrides``; zero is the core itself.
    """
    if ".remote" in op.opcode and op.opcode.startswith(("vsync", "dma")):
        return True
    if op.opcode != "dma.general":
        return False
    found = re.search(r"/\*overrides=\*/([^,]+)", op.text)
    if found is None:
        return False
    target = found.group(1).strip()
    return target != "0" and constants.get(target) != 0


def asks_for_core(listing: Listing) -> bool:
    """Whether a listing reads which core of its device it runs on, to take its part of the work."""
    return any(reads_core(op) for bundle in listing.bundles for op in bundle.ops)


def reads_core(op: Op) -> bool:
    """Whether an operation loads the number of its core, which the runtime leaves in SMEM."""
    return op.opcode == "sld" and "core id" in op.comment


def barrier_cookies(listing: Listing) -> set[str]:
    """Values pushed towards the scalar core that only serve a check that both cores are there.

    Such a value goes ``vpush.ccrf``, ``vpop.ccrf``, ``vpush``, ``spop``.
    """
    popped: set[str] = set()
    pushed: set[str] = set()
    for bundle in listing.bundles:
        for op in bundle.ops:
            if op.opcode == "vpop.ccrf" and op.value:
                popped.add(op.value)
            elif op.opcode == "vpush" and op.value and op.operands and op.operands[0] in popped:
                pushed.add(op.value)
    return pushed
