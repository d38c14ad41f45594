"""What the TPU compiler made of a function: its pieces, memory, registers and texts."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tpulab.compiler.dumps import TOP_LEVEL
from tpulab.compiler.hlo import Instruction, Module, parse_module
from tpulab.compiler.reports import (
    NO_SLOTS,
    SlotUse,
    VmemReport,
    parse_slot_use,
    parse_vmem_report,
)
from tpulab.compiler.shapes import ArrayShape

if TYPE_CHECKING:
    from tpulab.compiler.listing import Listing

_PRESSURE = re.compile(r"^Register pressure for vregs is (\d+)", re.MULTILINE)
_VECTOR_REGISTER = re.compile(r"%v[\w.]*?_v(\d+)\b")


# a source place as ``dumps`` leaves it: /home/me/kernel.py:13:22
_SOURCE = re.compile(r"(?<=[ :])(/[^*\n]*?\.py:\d+:\d+)(?= )")


@dataclass(frozen=True)
class Piece:
    """One step of a program: a Pallas kernel, or an operation that XLA put around it.

    Attributes:
        name: the HLO instruction's name, e.g. ``"f.1"``.
        kind: ``"kernel"`` or ``"xla"``.
        opcode: the HLO opcode, e.g. ``"custom-call"``, ``"fusion"``, ``"copy-start"``.
        hlo_instruction: the HLO line.
        calls: how often it runs in one call of the program.
        calls_exact: False when that depends on data and ``calls`` is a guess.
        uncounted_loops: names of the loops around it for which the compiled program does not say
            how often they run; each counts as one iteration.
        operand_shapes: shapes, dtypes and memory spaces of what it reads.
        result_shapes: of what it makes.
        listing_name: whose listing it runs; equal pieces share one. None for operations that the
            top level does itself, such as starting an asynchronous copy: those have no listing.
    """

    name: str
    kind: str
    opcode: str
    hlo_instruction: str
    calls: int
    calls_exact: bool
    operand_shapes: tuple[ArrayShape, ...]
    result_shapes: tuple[ArrayShape, ...]
    listing_name: str | None
    _texts: Mapping[str, bytes] = field(repr=False, compare=False)
    uncounted_loops: tuple[str, ...] = ()
    _moved: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def has_listing(self) -> bool:
        """Whether there is a bundle listing to run."""
        return self.listing_name is not None

    @cached_property
    def listing_text(self) -> str:
        """The bundle listing as the compiler printed it; empty when there is none.

        An operation's source is a comment ``/* kernel.py:13 */`` behind it.
        """
        if self.listing_name is None:
            return ""
        text = _text(self._texts, f"final_bundles/{self.listing_name}")
        return _SOURCE.sub(lambda match: _short_place(self._moved.get(match[1], match[1])), text)

    @cached_property
    def listing(self) -> Listing:
        """The parsed bundle listing.

        Raises:
            ValueError: this piece has none (see ``has_listing``).
        """
        if self.listing_name is None:
            raise ValueError(f"{self.name} ({self.opcode}) has no bundle listing of its own")
        from tpulab.compiler.listing import parse_listing

        return parse_listing(self.listing_text, self.name)

    @cached_property
    def slots(self) -> SlotUse:
        """Static slot use, from the compiler's own table."""
        if self.listing_name is None:
            return NO_SLOTS
        label = "final_hlo-static-per-bundle-utilization"
        return parse_slot_use(_text(self._texts, f"{label}/{self.listing_name}"))

    @property
    def spill_stores(self) -> int:
        """Vector register spills in the listing (static)."""
        return self.slots.used.get("VSTORE:SPILL", 0)

    @property
    def spill_fills(self) -> int:
        """Reloads of spilled vector registers in the listing (static)."""
        return self.slots.used.get("VLOAD:FILL", 0)

    @cached_property
    def register_pressure(self) -> int:
        """Most vector registers alive at once, before allocation; more than 64 means spills.

        The compiler reports it for large kernels; for the others this is the number of registers
        that the listing uses.
        """
        if self.listing_name is None:
            return 0
        report = _text(self._texts, f"register-pressure/{self.listing_name}")
        if match := _PRESSURE.search(report):
            return int(match[1])
        used = {int(number) for number in _VECTOR_REGISTER.findall(self.listing_text)}
        return len(used)


@dataclass(frozen=True)
class Program:
    """A compiled function. See the fields of :class:`Piece` for what each step holds.

    Attributes:
        name: the function's name.
        chip: name of the chip.
        compiler_version: e.g. ``"libtpu 0.0.42"``.
        key: the artifact's key.
        devices: how many JAX devices it runs on.
        memory: numbers of ``memory_analysis()`` in bytes: ``argument_bytes``, ``output_bytes``,
            ``temp_bytes``, ``generated_code_bytes``, …
        seconds_to_compile: by the worker's clock, when it was compiled.
        from_cache: whether it was read from the cache.
        texts: everything the compiler wrote, compressed, by ``<kind>/<piece>``.
        moved: where source places of a cached listing are now.
        trips: how often loops run for which the program does not say it, by name.
        warnings: sentences, e.g. that the cache could not be written.
    """

    name: str
    chip: str
    compiler_version: str
    key: str
    devices: int
    memory: Mapping[str, int]
    seconds_to_compile: float
    from_cache: bool
    default_vmem_limit_bytes: int = field(repr=False)
    texts: Mapping[str, bytes] = field(repr=False, compare=False)
    moved: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    warnings: tuple[str, ...] = ()
    trips: Mapping[str, int] = field(default_factory=dict, repr=False)

    @cached_property
    def hlo_text(self) -> str:
        """Scheduled HLO, with the kernels' serialised bodies left out."""
        return _text(self.texts, "hlo")

    @cached_property
    def hlo(self) -> Module:
        """The parsed HLO."""
        return parse_module(self.hlo_text)

    @cached_property
    def top_level_text(self) -> str:
        """Listing of the top level, which calls the pieces and starts asynchronous copies."""
        return _text(self.texts, f"final_bundles/{TOP_LEVEL}")

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Kernels and XLA's operations in the order of execution."""
        shared = parse_deduplication(_text(self.texts, f"deduplication-map/{TOP_LEVEL}"))
        found = []
        for step in self.hlo.scheduled_in_loops(self.trips):
            instruction, computation, calls, loops, certain = step
            piece = self._piece(instruction, computation, calls, certain and not loops, shared)
            found.append(replace(piece, uncounted_loops=loops))
        return tuple(found)

    def with_call_counts(self, counts: Mapping[str, int]) -> Program:
        """The program with loops counted from how often kernels in them run.

        Args:
            counts: how often a kernel runs in all, by the name of its piece. Of nested loops that
                could not be counted the innermost gets all of it.
        """
        trips = {
            piece.uncounted_loops[-1]: max(0, counts[piece.name] // max(1, piece.calls))
            for piece in self.kernels
            if piece.uncounted_loops and piece.name in counts
        }
        return replace(self, trips={**self.trips, **trips}) if trips else self

    def _piece(
        self,
        instruction: Instruction,
        computation: str,
        calls: int,
        exact: bool,
        shared: Mapping[str, str],
    ) -> Piece:
        operands: list[ArrayShape] = []
        for name in instruction.operands:
            if operand := self.hlo.instruction(computation, name):
                operands.extend(operand.result)
        listing = next(
            (
                name
                for name in (instruction.name, shared.get(instruction.name, ""))
                if f"final_bundles/{name}" in self.texts
            ),
            None,
        )
        return Piece(
            name=instruction.name,
            kind="kernel" if instruction.is_kernel else "xla",
            opcode=instruction.opcode,
            hlo_instruction=instruction.text,
            calls=calls,
            calls_exact=exact,
            operand_shapes=tuple(operands),
            result_shapes=instruction.result,
            listing_name=listing,
            _texts=self.texts,
            _moved=self.moved,
        )

    @property
    def kernels(self) -> tuple[Piece, ...]:
        """The Pallas kernels among the pieces."""
        return tuple(piece for piece in self.pieces if piece.kind == "kernel")

    @cached_property
    def vmem(self) -> VmemReport:
        """Vector memory of the kernels."""
        return parse_vmem_report(
            _text(self.texts, "vmem"),
            {piece.name: piece.hlo_instruction for piece in self.kernels},
            self.default_vmem_limit_bytes,
            {piece.name: (*piece.operand_shapes, *piece.result_shapes) for piece in self.kernels},
        )

    @property
    def spill_stores(self) -> int:
        """Vector spill stores in the kernels' listings (static, each listing once)."""
        return sum(piece.spill_stores for piece in _distinct(self.kernels))

    @property
    def spill_fills(self) -> int:
        """Vector spill reloads in the kernels' listings (static, each listing once)."""
        return sum(piece.spill_fills for piece in _distinct(self.kernels))

    @property
    def spills(self) -> int:
        """Spill stores and reloads together; 0 is what one wants."""
        return self.spill_stores + self.spill_fills

    @property
    def register_pressure(self) -> int:
        """Most vector registers alive at once in any kernel."""
        return max((piece.register_pressure for piece in self.kernels), default=0)

    def __repr__(self) -> str:
        return (
            f"<Program {self.name} for {self.chip}: {len(self.kernels)} kernels in "
            f"{len(self.pieces)} pieces, {self.compiler_version}>"
        )


def _distinct(pieces: tuple[Piece, ...]) -> list[Piece]:
    return list({piece.listing_name: piece for piece in pieces}.values())


def _text(texts: Mapping[str, bytes], key: str) -> str:
    data = texts.get(key)
    return zlib.decompress(data).decode(errors="replace") if data is not None else ""


def _short_place(place: str) -> str:
    """File name and line of a place with directory and column."""
    path, line, _ = place.rsplit(":", 2)
    return f"{path.rpartition('/')[2]}:{line}"


def parse_deduplication(text: str) -> dict[str, str]:
    """Which piece's listing stands for which others: member name → listing name."""
    shared: dict[str, str] = {}
    key = None
    for line in text.splitlines():
        if line.startswith("key:"):
            key = line.removeprefix("key:").strip()
        elif line.startswith("  ") and key is not None:
            shared[line.strip()] = key
    return shared
