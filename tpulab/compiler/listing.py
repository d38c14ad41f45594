"""Read the final bundle listing that the TPU compiler dumps: one VLIW bundle a line.

The text looks like this; compiler versions and generations differ only in opcodes::

     0x10 LB: > { %s33_s25 = sadd.s32 1, %s7858_s21  ;;  %s7870_s24 = sphi %s7924_s24, %s21_s24 }
     0x11   : > { %20 = sbr.rel (!%p9811_p2) target = $region94 } /* Start region 94 */

Comments nest and may span lines. Nothing is thrown away: ``Listing.render()`` gives back the text
that was read, and an opcode that nobody has heard of is kept as it stands.

This module needs only the standard library, and reads about 40,000 operations a second or more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tpulab.errors import TpulabError

MARKS = {
    "LH": "loop header",
    "LB": "loop body",
    "LE": "loop exit",
    "PB": "predicated region body",
    "PF": "predicated region fallthrough",
    "CT": "control target",
}
"""What the letters between a bundle's address and its colon mean (from the listing's own key)."""


class ListingError(TpulabError):
    """A bundle listing that can't be read: it is empty, cut off, or not a listing."""


class Predicate(NamedTuple):
    """The condition under which an operation takes effect.

    Attributes:
        value: the predicate value, for example ``"%p7974_p0"``.
        negated: whether the operation happens when the predicate is false.
        otherwise: the value that the result keeps when the operation does not happen, if the
            listing names one, for example ``"%s33_s25"``.
    """

    value: str
    negated: bool
    otherwise: str | None = None


class Op(NamedTuple):
    """One operation of a bundle.

    Attributes:
        value: the name of its result (``"%s33_s25"``, ``"%7482"``) or ``None``.
        opcode: for example ``"sadd.s32"``, ``"dma.hbm_to_vmem"``, ``"vmatmul.bf16.gmra.mxu0"``.
        operands: operands in order as written, without comments. Memory references keep their
            brackets, ``"[smem:[#allocation12_spill]]"``.
        predicate: the condition, or ``None``.
        attributes: bracketed facts that are no operands, without brackets (``"thread:$0"``).
        text: the operation exactly as written, comments included.
        comment: the operation's comments, joined by a space, without their delimiters; one-word
            labels of operands (``/*vmem=*/``) are not part of it.
        source_line: the line of the kernel's source, when the listing carries one.
    """

    value: str | None
    opcode: str
    operands: tuple[str, ...]
    predicate: Predicate | None
    attributes: tuple[str, ...]
    text: str
    comment: str = ""
    source_line: int | None = None

    @property
    def target_region(self) -> int | None:
        """The region that a branch goes to, or ``None`` for any other operation."""
        for operand in self.operands:
            found = _TARGET.search(operand)
            if found:
                return int(found.group(1))
        return None


class Bundle(NamedTuple):
    """Operations that are issued together.

    Attributes:
        address: the bundle's number in the program.
        marks: letters before the colon, keys of ``MARKS``.
        depth: how many loops and regions enclose it (the number of ``>``).
        ops: its operations, in the order written.
        comment: the comments after the closing brace, joined by a space.
        starts: regions that start at this bundle (also the empty ones).
        ends: regions that end with this bundle (also the empty ones).
        text: the lines exactly as read, newline included.
    """

    address: int
    marks: tuple[str, ...]
    depth: int
    ops: tuple[Op, ...]
    comment: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Listing:
    """A program as the compiler shipped it.

    Attributes:
        name: the name of the kernel or fusion.
        bundles: all bundles; ``bundles[i].address == i``.
        regions: region number to the index of the bundle where control enters it.
        header: the text before the first bundle.
    """

    name: str
    bundles: tuple[Bundle, ...]
    regions: dict[int, int] = field(repr=False)
    header: str = field(repr=False, default="")

    def render(self) -> str:
        """The text that was read, to the letter."""
        return self.header + "".join(bundle.text for bundle in self.bundles)

    def opcode_counts(self) -> dict[str, int]:
        """How often each opcode stands in the listing (not how often it runs)."""
        counts: dict[str, int] = {}
        for bundle in self.bundles:
            for op in bundle.ops:
                counts[op.opcode] = counts.get(op.opcode, 0) + 1
        return counts


_HEAD = re.compile(r"^[ \t]*(0x[0-9a-f]+|0)[ \t]+((?:[A-Z]{2}[ \t,]*)*):([ \t>]*)\{", re.M)
_SIMPLE_COMMENT = re.compile(r"/\*[^*/]*\*/")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_REGION = re.compile(r"(Start/End empty|Start|End) region (\d+)")
_TARGET = re.compile(r"\$region(\d+)")
_BRACKET = re.compile(r"[\[{(]")
_LABEL = re.compile(r"[A-Za-z_][\w.#]*=")
_HEAD_OF_OP = re.compile(r"(?:(%?[\w.$<>#]+) = )?([A-Za-z][\w.\-]*(?:\[\d+\][\w.]*)?)")
_PREDICATE = re.compile(r"\((!?)(%p\w+)(?:,\s*([^()\s,]+))?\)")
_ATTRIBUTE = re.compile(r"\[[\w ]+:\s*(?!\[)")
_SOURCE_LINE = re.compile(r"(?:source_line[=:]\s*|\.py:)(\d+)")
_REGISTER = re.compile(r"%([a-z]+)\d+_(\1\d+)$")


@lru_cache(maxsize=65536)
def register(value: str) -> str | None:
    """The physical register in a value's name: ``"%s7858_s21"`` gives ``"s21"``.

    Gives ``None`` for values that live in no register, as ``"%7482"``, and for constants.
    """
    found = _REGISTER.match(value)
    return found.group(2) if found else None


def parse_listing(text: str, name: str = "") -> Listing:
    """Parse a final bundle listing.

    Args:
        text: what the compiler wrote to ``…-final_bundles.txt``.
        name: the kernel's name, for messages.

    Raises:
        ListingError: there is no bundle in the text, a bundle's brace is not closed, or addresses
            are missing.
    """
    heads: list[re.Match[str]] = []
    for match in _HEAD.finditer(text):
        # A line inside a comment can look like a bundle, but its address would not be the next.
        if int(match.group(1), 0) == len(heads):
            heads.append(match)
    if not heads:
        raise ListingError(
            f"the listing of {name or 'the program'} has no bundle at address 0",
            why="it is empty, cut off, or not a final bundle listing",
        )
    ends = [match.start() for match in heads[1:]] + [len(text)]
    bundles = []
    regions: dict[int, int] = {}
    for index, (match, end) in enumerate(zip(heads, ends, strict=True)):
        bundle = _parse_bundle(index, match, text[match.start() : end], name)
        for region in bundle.starts:
            regions.setdefault(region, index)
        bundles.append(bundle)
    return Listing(name, tuple(bundles), regions, text[: heads[0].start()])


def _parse_bundle(address: int, head: re.Match[str], text: str, name: str) -> Bundle:
    opening = head.end() - head.start()
    masked = _mask_comments(text) if "/*" in text else text
    closing = masked.rfind("}")
    if closing < opening:
        raise ListingError(
            f"bundle {address:#x} of {name or 'the listing'} has no closing brace",
            why="the listing was cut off or has a form that is not known",
        )
    starts: list[int] = []
    ends: list[int] = []
    comment = ""
    if masked is not text and "/*" in text[closing:]:
        comment = _comments(text, masked, closing + 1, len(text))
        for kind, number in _REGION.findall(comment):
            if kind != "End":
                starts.append(int(number))
            if kind != "Start":
                ends.append(int(number))
    ops = []
    position = opening
    while position < closing:
        stop = masked.find(";;", position, closing)
        if stop < 0:
            stop = closing
        if not masked.isspace() and masked[position:stop].strip(" \t\r\n\0"):
            ops.append(_parse_op(text[position:stop], masked[position:stop]))
        position = stop + 2
    marks = tuple(head.group(2).replace(",", " ").split())
    return Bundle(
        address,
        marks,
        head.group(3).count(">"),
        tuple(ops),
        comment,
        tuple(starts),
        tuple(ends),
        text,
    )


def _zeros(match: re.Match[str]) -> str:
    return "\0" * (match.end() - match.start())


def _mask_comments(text: str) -> str:
    """The text with every character of a comment replaced by NUL, of the same length."""
    masked = _SIMPLE_COMMENT.sub(_zeros, text)
    if "/*" not in masked:
        return masked
    pieces = []
    depth = 0
    last = 0
    for match in _COMMENT_EDGE.finditer(text):
        if match.group() == "/*":
            if depth == 0:
                pieces.append(text[last : match.start()])
                last = match.start()
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                pieces.append("\0" * (match.end() - last))
                last = match.end()
    if depth:
        # An opening stands inside a comment as mere text, so comments don't nest here.
        return re.sub(r"/\*.*?\*/", _zeros, text, flags=re.S)
    pieces.append(text[last:])
    return "".join(pieces)


def _comments(text: str, masked: str, start: int, end: int) -> str:
    """The comments between two positions without their delimiters, joined by a space."""
    found = []
    for match in re.finditer("\0+", masked[start:end]):
        found.append(text[start + match.start() + 2 : start + match.end() - 2].strip())
    return " ".join(found)


def _parse_op(text: str, masked: str) -> Op:
    comment = ""
    if "\0" in masked:
        notes = []
        for match in re.finditer("\0+", masked):
            note = text[match.start() + 2 : match.end() - 2].strip()
            if note and not _LABEL.fullmatch(note):
                notes.append(note)
        comment = " ".join(notes)
        masked = masked.replace("\0", "")
    body = masked.strip()
    head = _HEAD_OF_OP.match(body)
    if head is None:
        return Op(None, body.split(None, 1)[0], (), None, (), text.strip(), comment)
    rest = body[head.end() :]
    predicate = None
    if "(" in rest:
        found = _PREDICATE.search(rest)
        if found:
            predicate = Predicate(found.group(2), found.group(1) == "!", found.group(3))
            rest = rest[: found.start()] + rest[found.end() :].lstrip(" ,")
    attributes: tuple[str, ...] = ()
    if _BRACKET.search(rest):
        operands, attributes = _split_brackets(rest)
    else:
        operands = tuple(part for part in (p.strip() for p in rest.split(",")) if part)
    source_line = None
    if comment and (line := _SOURCE_LINE.search(comment)):
        source_line = int(line.group(1))
    return Op(
        head.group(1),
        head.group(2),
        operands,
        predicate,
        attributes,
        text.strip(),
        comment,
        source_line,
    )


def _split_brackets(rest: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Operands and attributes of a text with brackets, split at commas outside brackets."""
    operands: list[str] = []
    attributes: list[str] = []
    depth = 0
    current: list[str] = []

    def flush() -> None:
        part = "".join(current).strip()
        current.clear()
        if part:
            operands.append(part)

    position = 0
    start_of_group = 0
    while position < len(rest):
        character = rest[position]
        if character in "[{(":
            if depth == 0:
                start_of_group = position
            depth += 1
        elif character in "]})" and depth:
            depth -= 1
            if depth == 0:
                group = rest[start_of_group : position + 1]
                if _ATTRIBUTE.match(group):
                    attributes.append(group[1:-1])
                else:
                    # `sst [smem:[…]] %s0` has no comma between place and value.
                    flush()
                    operands.append(group)
                position += 1
                continue
        if depth == 0:
            if character == ",":
                flush()
            else:
                current.append(character)
        position += 1
    if depth:
        current.append(rest[start_of_group:])
    flush()
    return tuple(operands), tuple(attributes)
