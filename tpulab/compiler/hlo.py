"""Read the scheduled HLO text: which instructions run, in which order and how often.

Only as much of the format as that needs: computations, instructions with shape, opcode, operands
and attributes. The text comes from ``*-TLP-hlo.txt``, which is scheduled (``is_scheduled=true``),
so the order of the lines is the order of execution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tpulab.compiler.shapes import ArrayShape, parse_shapes

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
_END = re.compile(r"^\}(,.*)?\s*$")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_MOST_CONTINUATIONS = 100

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

    def scheduled(
        self, trips: Mapping[str, int] | None = None
    ) -> Iterator[tuple[Instruction, str, int, bool]]:
        """Instructions that do work, in the order of execution, loops unrolled to a count.

        Args:
            trips: how often loops run for which the text does not say it, by name.

        Yields:
            ``(instruction, computation, calls, exact)``. ``calls`` is how often it runs in all;
            ``exact`` is False when that depends on data (a while loop without a known trip count,
            counted once; a branch of a conditional, counted as if taken).
        """
        for instruction, computation, calls, loops, certain in self.scheduled_in_loops(trips):
            yield instruction, computation, calls, certain and not loops

    def scheduled_in_loops(
        self, trips: Mapping[str, int] | None = None
    ) -> Iterator[tuple[Instruction, str, int, tuple[str, ...], bool]]:
        """As :meth:`scheduled`, with the names of the loops around it that could not be counted.

        Yields:
            ``(instruction, computation, calls, loops, certain)``; ``certain`` is False in a branch
            that depends on data.
        """
        yield from self._walk(self.entry, 1, (), True, trips or {}, 0)

    def _walk(
        self,
        computation: str,
        calls: int,
        loops: tuple[str, ...],
        certain: bool,
        given: Mapping[str, int],
        depth: int,
    ) -> Iterator[tuple[Instruction, str, int, tuple[str, ...], bool]]:
        if depth > 32:
            return
        for instruction in self.computations.get(computation, ()):
            if instruction.opcode in FREE_OPCODES:
                continue
            if instruction.opcode == "while":
                trips = self.trip_count(computation, instruction)
                if trips is None:
                    trips = given.get(instruction.name)
                yield from self._walk(
                    instruction.called.get("body", ""),
                    calls * (1 if trips is None else trips),
                    loops if trips is not None else (*loops, instruction.name),
                    certain,
                    given,
                    depth + 1,
                )
            elif instruction.opcode == "conditional":
                for role, called in instruction.called.items():
                    if role.startswith(("branch", "true", "false")):
                        yield from self._walk(called, calls, loops, False, given, depth + 1)
            elif instruction.opcode == "call":
                called = instruction.called.get("to_apply") or instruction.called.get("calls", "")
                yield from self._walk(called, calls, loops, certain, given, depth + 1)
            else:
                yield instruction, computation, calls, loops, certain

    def trip_count(self, computation: str, loop: Instruction) -> int | None:
        """How often a while loop's body runs, when the text says so.

        Either XLA noted it, or the loop counts a tuple element from a constant, by a constant,
        while it is less than a constant. A constant may come through copies, or as an element of
        the loop's tuple that its body hands on unchanged. None otherwise.
        """
        if match := _TRIP_COUNT.search(loop.text):
            return int(match[1])
        condition = self.computations.get(loop.called.get("condition", ""), ())
        body = self.computations.get(loop.called.get("body", ""), ())
        inside, names = _by_name(body), _by_name(condition)
        start = self._start(computation, loop)
        next_values = _root_operands(inside)

        def element(value: Instruction | None) -> int | None:
            return value.index if value is not None and value.opcode == _ELEMENT else None

        def constant(scope: Mapping[str, Instruction], name: str) -> int | None:
            value = _source(scope, name)
            position = element(value)
            if position is not None and position < len(next_values):
                # handed on unchanged from iteration to iteration
                if element(_source(inside, next_values[position])) != position:
                    return None
                value = start(position)
            return _constant(value) if value is not None else None

        compare = next((i for i in condition if i.is_root), None)
        if compare is None or compare.opcode != "compare" or len(compare.operands) != 2:
            return None
        direction = _DIRECTION.search(compare.text)
        position = element(_source(names, compare.operands[0]))
        limit = constant(names, compare.operands[1])
        if position is None or position >= len(next_values) or limit is None:
            return None
        if direction is None or direction[1] not in ("LT", "LE"):
            return None
        begin = start(position)
        first = _constant(begin) if begin is not None else None
        added = _source(inside, next_values[position])
        if first is None or added is None or added.opcode != "add":
            return None
        step = None
        for own, other in (added.operands, added.operands[::-1]):
            if element(_source(inside, own)) == position:
                step = constant(inside, other)
        if step is None or step <= 0:
            return None
        return max(0, -(-(limit + (direction[1] == "LE") - first) // step))

    def _start(self, computation: str, loop: Instruction) -> Callable[[int], Instruction | None]:
        """Where the elements of a loop's tuple come from, by position."""
        outside = _by_name(self.computations.get(computation, ()))
        initial = outside.get(loop.operands[0]) if loop.operands else None
        values = initial.operands if initial is not None and initial.opcode == "tuple" else ()
        return lambda position: (
            _source(outside, values[position]) if position < len(values) else None
        )


_ELEMENT = "get-tuple-element"
# operations whose result is what goes in
_SAME = ("copy", "bitcast", "copy-done", "copy-start")


def _by_name(instructions: Iterable[Instruction]) -> dict[str, Instruction]:
    return {instruction.name: instruction for instruction in instructions}


def _root_operands(names: Mapping[str, Instruction]) -> tuple[str, ...]:
    """What a computation that ends in a tuple gives."""
    root = next((i for i in names.values() if i.is_root), None)
    return root.operands if root is not None and root.opcode == "tuple" else ()


def _source(names: Mapping[str, Instruction], name: str) -> Instruction | None:
    """The instruction that makes a value, looked for behind copies."""
    for _ in range(16):
        value = names.get(name)
        if value is None or value.opcode not in _SAME or not value.operands:
            return value
        name = value.operands[0]
    return None


def _constant(instruction: Instruction) -> int | None:
    if instruction.opcode != "constant":
        return None
    match = re.search(r"constant\((-?\d+)\)", instruction.text)
    return int(match[1]) if match else None


def parse_module(text: str) -> Module:
    """Parse scheduled HLO text.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    current: list[Instruction] | None = None
    for line in _whole_lines(text):
        if current is None:
            if match := _COMPUTATION.match(line):
                current = computations.setdefault(match["name"], [])
                if match["entry"]:
                    entry = match["name"]
        elif _END.match(line):
            current = None
        elif match := _INSTRUCTION.match(line):
            instruction = _parse_instruction(match["name"], match["rest"], bool(match["root"]))
            if instruction is not None:
                current.append(instruction)
    if not entry:
        raise ValueError("the HLO text has no entry computation")
    return Module(entry, {name: tuple(found) for name, found in computations.items()})


def _whole_lines(text: str) -> Iterator[str]:
    """The lines of a text; attributes that go over several lines are joined to their instruction.

    ``frontend_attributes={kernel_metadata={`` is followed by lines of JSON and one of ``}}, ...``.
    """
    lines = iter(text.splitlines())
    for line in lines:
        if _INSTRUCTION.match(line):
            depth = _open_braces(line)
            for _ in range(_MOST_CONTINUATIONS):
                more = next(lines, None) if depth > 0 else None
                if more is None:
                    break
                line, depth = f"{line} {more}", depth + _open_braces(more)
        yield line


def _open_braces(text: str) -> int:
    bare = _QUOTED.sub("", text)
    return bare.count("{") - bare.count("}")


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
