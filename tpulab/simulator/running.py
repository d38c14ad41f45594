"""``simulate``: all pieces of a compiled program, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpulab.compiler.listing import Listing
from tpulab.simulator.constants import Constants, constants_for
from tpulab.simulator.memory import operands_of
from tpulab.simulator.options import Options
from tpulab.simulator.pieces import Pieces
from tpulab.simulator.scalars import NO_CALL, Call, CallValues, fixed_values
from tpulab.simulator.timeline import Timeline

if TYPE_CHECKING:
    from tpulab.compiler.program import Program
    from tpulab.kernel import Kernel


def simulate(
    program: Program,
    *,
    kernel: Kernel | None = None,
    arguments: Sequence[Any] | None = None,
    chip: str | None = None,
    options: Options | None = None,
) -> Timeline:
    """Predict how a compiled program runs on its chip.

    Args:
        program: what ``compiler.compile`` gave.
        kernel: what ``kernel.trace`` gave for the same function: the values of scalar-prefetch
            operands and the names of operands come from it.
        arguments: the function's arguments, concrete where that matters: with them the values of
            SMEM inputs are known too.
        chip: the chip, when it is not the program's own.
        options: how to simulate.

    Raises:
        SimulationRefused: it depends on data, has an operation that is not known, waits for ever,
            or takes too long.
    """
    pieces = Pieces(
        constants_for(chip or program.chip), options or Options(), program.compiler_version
    )
    calls = CallValues(kernel, arguments)
    for piece in program.pieces:
        call = NO_CALL
        if piece.kind == "kernel" and piece.has_listing:
            call = calls.take(operands_of(piece.listing))
        pieces.run_piece(piece, call)
    return pieces.timeline()


def simulate_listing(
    listing: Listing,
    constants: Constants,
    *,
    options: Options | None = None,
    scalars: Mapping[int, Any] | None = None,
    compiler_version: str | None = None,
) -> Timeline:
    """Predict how one listing runs: the small brother of ``simulate``.

    Args:
        listing: the program.
        constants: the chip, from ``constants_for``.
        options: how to simulate.
        scalars: contents of integer operands by index.
        compiler_version: for the record.

    Raises:
        SimulationRefused: as ``simulate``.
    """
    pieces = Pieces(constants, options or Options(), compiler_version)
    call = Call(fixed_values(dict(scalars or {})))
    pieces.run(listing.name or "program", "kernel", listing, call)
    return pieces.timeline()
