"""Values that decide what a kernel does: scalar prefetch, dynamic grid bounds, SMEM inputs.

A kernel's listing takes them as operands, in this order: dynamic grid bounds, scalar-prefetch
operands, inputs. Their values come from the traced function, evaluated on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpulab.kernel import Kernel, PallasCall
    from tpulab.simulator.memory import Operand

_MOST_ELEMENTS = 1 << 22

Values = Callable[[Sequence["Operand"]], dict[int, Any]]
"""Gives the known values among a listing's operands, by their index."""


def no_values(_: Sequence[Operand]) -> dict[int, Any]:
    """Nothing is known."""
    return {}


def fixed_values(values: dict[int, Any]) -> Values:
    """Values that are given outright."""
    return lambda _: values


@dataclass(frozen=True)
class Call:
    """What is known about a piece besides its listing.

    Attributes:
        values: gives contents of integer operands.
        names: how the author calls the operands, by index.
        steps: steps of the traced grid, all cores together, or ``None``.
    """

    values: Values
    names: Mapping[int, str] = field(default_factory=dict)
    steps: int | None = None


NO_CALL = Call(no_values)
"""A piece about which nothing more is known."""


class CallValues:
    """Hands out the values of a traced function's calls, in the order of their execution.

    Args:
        kernel: the traced function, or ``None`` when nothing is known about it.
        arguments: its arguments with concrete arrays, or ``None``; they are needed for the values
            of SMEM inputs.
    """

    def __init__(self, kernel: Kernel | None, arguments: Sequence[Any] | None = None) -> None:
        self._calls: list[tuple[PallasCall, list[int], Sequence[Any] | None]] = []
        if kernel is None:
            return
        found: list[tuple[list[int], Sequence[Any] | None]] = []
        if kernel.jaxpr is not None:
            if arguments is not None:
                found = _evaluated(kernel.jaxpr, arguments)
            if len(found) != len(kernel.calls):
                found = [(axes, None) for axes in _dynamic_axes_of_calls(kernel.jaxpr)]
        if len(found) != len(kernel.calls):
            found = [([], None)] * len(kernel.calls)
        for call, (axes, values) in zip(kernel.calls, found, strict=True):
            self._calls.append((call, axes, values))

    def take(self, operands: Sequence[Operand]) -> Call:
        """The next call that a listing with these operands can be.

        The compiler drops calls whose results nobody needs, so shapes decide, then order.
        """
        for position, (call, axes, values) in enumerate(self._calls):
            if _fits(call, len(axes), operands):
                del self._calls[position]
                leading = len(axes) + len(call.scalar_prefetch)
                return Call(
                    partial(_known, call, axes, values),
                    {leading + i: operand.name for i, operand in enumerate(call.operands)},
                    call.steps,
                )
        return NO_CALL


def _fits(call: PallasCall, dynamic: int, operands: Sequence[Operand]) -> bool:
    leading = dynamic + len(call.scalar_prefetch)
    shapes = [operand.shape for operand in sorted(operands, key=lambda o: o.index)]
    if len(shapes) != leading + len(call.inputs) + len(call.outputs):
        return False
    return all(
        prod(shape) == prod(operand.shape)
        for shape, operand in zip(shapes[leading:], call.operands, strict=True)
    )


def _known(
    call: PallasCall,
    axes: list[int],
    values: Sequence[Any] | None,
    operands: Sequence[Operand],
) -> dict[int, Any]:
    known: dict[int, Any] = {}
    for index, axis in enumerate(axes):
        known[index] = [call.grid[axis]]
    for index, value in enumerate(call.scalar_prefetch):
        if value is not None:
            known[len(axes) + index] = value
    if values is None:
        return known
    for operand in operands:
        wanted = operand.space in ("", "smem") or operand.dtype in ("s32", "u32")
        if not wanted or not operand.is_input or operand.index in known:
            continue
        if operand.index < len(values) and operand.elements <= _MOST_ELEMENTS:
            value = values[operand.index]()
            if value is not None:
                known[operand.index] = value
    return known


def _dynamic_axes_of_calls(jaxpr: Any) -> list[list[int]]:
    from tpulab.kernel.jax_internals import kernel_equations, take_apart

    return [
        _dynamic_axes(take_apart(equation))
        for equation in kernel_equations(jaxpr)
        if equation.primitive.name == "pallas_call"
    ]


def _evaluated(
    jaxpr: Any, arguments: Sequence[Any]
) -> list[tuple[list[int], Sequence[Any] | None]]:
    import jax

    from tpulab.kernel.outer import OuterWalk

    walk = OuterWalk(jaxpr, jax.tree.leaves(tuple(arguments)))
    return [(_dynamic_axes(call.structure), call.operands) for call in walk.calls]


def _dynamic_axes(structure: Any) -> list[int]:
    return [axis for axis, bound in enumerate(structure.grid) if bound is None]
