"""Read the scheduled HLO text: which instructions run, in which order and how often.

Only as much of the format as that needs: computations, instructions with shape, opcode, operands
and attributes. The text comes from ``*-TLP-hlo.txt``, which is scheduled (``is_scheduled=true``),
so the order of the lines is the order of execution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>[^\s(]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%(?P<name>\S+) = (?P<rest>.+)$")
_OPCODE = re.compile(r"^(?P<opcode>[a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|true_computation|false_computation)=%([^\s,)}]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_ARRAY = re.compile(r"(?P<dtype>[a-z]\w*)\[(?P<dims>[\d,<=]*)\](?P<layout>\{[^{}]*\})?")
_SPACE = re.compile(r"S\((\d+)\)")

# opcodes that cost nothing on the chip: names for values that are already there
FREE_OPCODES = frozenset(
    {
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "after-all",
        "partition-id",
        "replica-id",
        "opt-barrier",
        "add-dependency",
    }
)
_MEMORY_SPACES = {0: "hbm", 1: "vmem", 2: "sflag", 5: "host", 6: "smem"}


@dataclass(frozen=True)
class ArrayShape:
    """An array in HLO text.

    Attributes:
        dtype: HLO's name, e.g. ``"bf16"``.
        shape: the dimensions.
        memory_space: ``"hbm"``, ``"vmem"``, ``"smem"``, ``"sflag"``, ``"host"`` or ``"S(n)"``.
        layout: the layout text, e.g. ``"{1,0:T(8,128)(2,1)}"``.
    """

    dtype: str
    shape: tuple[int, ...]
    memory_space: str = "hbm"
    layout: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the values, without the padding to tiles; sub-byte types are packed."""
        bits = dtype_bits(self.dtype)
        count = 1
        for extent in self.shape:
            count *= extent
        return (count * bits + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def dtype_bits(name: str) -> int:
    """Bits of one element of an HLO type; ``pred`` takes a byte. 0 for tokens and opaque types."""
    if name == "pred":
        return 8
    match = re.match(r"[a-z]+(\d+)", name)
    return int(match[1]) if match else 0


@dataclass(frozen=True)
class Instruction:
    """One HLO instruction.

    Attributes:
        name: without the percent sign.
        opcode: e.g. ``"fusion"``, ``"custom-call"``.
        result: the arrays it makes (several for a tuple).
        operands: names of the instructions it reads.
        text: the line.
        called: computations by role (``body``, ``condition``, ``calls``, ``branch 0`` …).
    """

    name: str
    opcode: str
    result: tuple[ArrayShape, ...]
    operands: tuple[str, ...]
    text: str
    called: dict[str, str] = field(default_factory=dict)
    is_root: bool = False

    @property
    def is_kernel(self) -> bool:
        """Whether this is a Pallas kernel."""
        return self.opcode == "custom-call" and 'custom_call_target="tpu_custom_call"' in self.text

    @property
    def index(self) -> int | None:
        """The ``index=`` of a get-tuple-element."""
        match = _INDEX.search(self.text)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Module:
    """A parsed module: computations by name, each a list of instructions in order."""

    entry: str
    computations: dict[str, tuple[Instruction, ...]]

    def instruction(self, computation: str, name: str) -> Instruction | None:
        """One instruction by name."""
        return next((i for i in self.computations.get(computation, ()) if i.name == name), None)

    def scheduled(self) -> Iterator[tuple[Instruction, str, int, bool]]:
        """Instructions that do work, in the order of execution, loops unrolled to a count.

        Yields:
            ``(instruction, computation, calls, exact)``. ``calls`` is how often it runs in all;
            ``exact`` is False when that depends on data (a while loop without a known trip count,
            counted once; a branch of a conditional, counted as if taken).
        """
        yield from self._walk(self.entry, 1, True, 0)

    def _walk(
        self, computation: str, calls: int, exact: bool, depth: int
    ) -> Iterator[tuple[Instruction, str, int, bool]]:
        if depth > 32:
            return
        for instruction in self.computations.get(computation, ()):
            if instruction.opcode in FREE_OPCODES:
                continue
            if instruction.opcode == "while":
                trips = self.trip_count(computation, instruction)
                yield from self._walk(
                    instruction.called.get("body", ""),
                    calls * (1 if trips is None else trips),
                    exact and trips is not None,
                    depth + 1,
                )
            elif instruction.opcode == "conditional":
                for role, called in instruction.called.items():
                    if role.startswith(("branch", "true", "false")):
                        yield from self._walk(called, calls, False, depth + 1)
            elif instruction.opcode == "call":
                called = instruction.called.get("to_apply") or instruction.called.get("calls", "")
                yield from self._walk(called, calls, exact, depth + 1)
            else:
                yield instruction, computation, calls, exact

    def trip_count(self, computation: str, loop: Instruction) -> int | None:
        """How often a while loop's body runs, when the text says so.

        Either XLA noted it, or the loop counts a tuple element from a constant, by a constant,
        while it is less than a constant. None otherwise.
        """
        if match := _TRIP_COUNT.search(loop.text):
            return int(match[1])
        condition = self.computations.get(loop.called.get("condition", ""), ())
        body = self.computations.get(loop.called.get("body", ""), ())
        compare = next((i for i in condition if i.is_root and i.opcode == "compare"), None)
        if compare is None or len(compare.operands) != 2:
            return None
        names = {i.name: i for i in condition}
        counter, bound = (names.get(name) for name in compare.operands)
        direction = _DIRECTION.search(compare.text)
        if (
            counter is None
            or bound is None
            or direction is None
            or direction[1] not in ("LT", "LE")
        ):
            return None
        limit = _constant(bound)
        position = counter.index if counter.opcode == "get-tuple-element" else None
        if limit is None or position is None:
            return None
        start = self._start_of(computation, loop, position)
        step = _step_of(body, position)
        if start is None or not step or step < 0:
            return None
        end = limit + (direction[1] == "LE")
        return max(0, -(-(end - start) // step))

    def _start_of(self, computation: str, loop: Instruction, position: int) -> int | None:
        """The constant that a loop's tuple element starts from, through copies."""
        names = {i.name: i for i in self.computations[computation]}
        initial = names.get(loop.operands[0]) if loop.operands else None
        if initial is None or initial.opcode != "tuple" or position >= len(initial.operands):
            return None
        value = names.get(initial.operands[position])
        for _ in range(8):
            if value is None:
                return None
            if value.opcode == "constant":
                return _constant(value)
            if value.opcode not in ("copy", "bitcast", "copy-done", "copy-start"):
                return None
            value = names.get(value.operands[0]) if value.operands else None
        return None


def _constant(instruction: Instruction) -> int | None:
    match = re.search(r"constant\((-?\d+)\)", instruction.text)
    return int(match[1]) if match else None


def _step_of(body: tuple[Instruction, ...], position: int) -> int | None:
    """By how much a loop body increases a tuple element."""
    names = {i.name: i for i in body}
    root = next((i for i in body if i.is_root), None)
    if root is None or root.opcode != "tuple" or position >= len(root.operands):
        return None
    value = names.get(root.operands[position])
    while value is not None and value.opcode in ("copy", "bitcast") and value.operands:
        value = names.get(value.operands[0])
    if value is None or value.opcode != "add":
        return None
    constant, counter = None, None
    for name in value.operands:
        operand = names.get(name)
        if operand is None:
            return None
        if operand.opcode == "constant":
            constant = _constant(operand)
        elif operand.opcode == "get-tuple-element":
            counter = operand.index
    return constant if counter == position else None


def parse_module(text: str) -> Module:
    """Parse scheduled HLO text.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    current: list[Instruction] | None = None
    for line in text.splitlines():
        if current is None:
            if match := _COMPUTATION.match(line):
                current = computations.setdefault(match["name"], [])
                if match["entry"]:
                    entry = match["name"]
        elif line.startswith("}"):
            current = None
        elif match := _INSTRUCTION.match(line):
            instruction = _parse_instruction(match["name"], match["rest"], bool(match["root"]))
            if instruction is not None:
                current.append(instruction)
    if not entry:
        raise ValueError("the HLO text has no entry computation")
    return Module(entry, {name: tuple(found) for name, found in computations.items()})


def _parse_instruction(name: str, rest: str, is_root: bool) -> Instruction | None:
    shape_end = _end_of_shape(rest)
    shape, tail = rest[:shape_end], rest[shape_end:].lstrip()
    match = _OPCODE.match(tail)
    if match is None:
        return None
    closing = _closing(tail, match.end() - 1)
    inside, attributes = tail[match.end() : closing], tail[closing + 1 :]
    called: dict[str, str] = dict(_CALLED.findall(attributes))
    if branches := _BRANCHES.search(attributes):
        for number, computation in enumerate(branches[1].split(",")):
            called[f"branch {number}"] = computation.strip().lstrip("%")
    return Instruction(
        name=name,
        opcode=match["opcode"],
        result=parse_shapes(shape),
        operands=tuple(re.findall(r"%([^\s,()]+)", inside)),
        text=f"%{name} = {rest}",
        called=called,
        is_root=is_root,
    )


def _end_of_shape(text: str) -> int:
    """Where the shape at the start of an instruction ends."""
    if text.startswith("("):
        return _closing(text, 0) + 1
    depth = 0
    for position, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == " " and depth == 0:
            return position
    return len(text)


def _closing(text: str, start: int) -> int:
    """Position of the parenthesis that closes the one at ``start``."""
    depth = 0
    for position in range(start, len(text)):
        if text[position] == "(":
            depth += 1
        elif text[position] == ")":
            depth -= 1
            if depth == 0:
                return position
    return len(text)


def parse_shapes(text: str) -> tuple[ArrayShape, ...]:
    """The arrays in the text of a shape or tuple of shapes."""
    shapes = []
    for match in _ARRAY.finditer(text):
        dims = match["dims"]
        layout = match["layout"] or ""
        space = _SPACE.search(layout)
        number = int(space[1]) if space else 0
        shapes.append(
            ArrayShape(
                match["dtype"],
                tuple(int(part.lstrip("<=")) for part in dims.split(",") if part),
                _MEMORY_SPACES.get(number, f"S({number})"),
                layout,
            )
        )
    return tuple(shapes)
