"""Values before a kernel call, evaluated on CPU only when something asks for them.

The function around a kernel is kept as a graph of equations. Asking for a value evaluates the part
that it depends on: with numpy when that is all simple, else as one jitted function, so that XLA
compiles once and not once per equation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.evaluate import SIMPLE, evaluate, is_known
from tpulab.kernel.instructions import Instruction


@dataclasses.dataclass(eq=False)
class Node:
    """One equation with its operands; results are values of type ``Lazy``."""

    equation: Any
    operands: list[Lazy]


@dataclasses.dataclass(frozen=True)
class Origin:
    """The array that a value is, or is made from by moving and converting it.

    Attributes:
        kind: "argument" of the function, or "result" of a call. index: of the argument or call.
        position: of the result. slices: how many parts of it, as different iterations of a scan
            see them, there are.
    """

    kind: str
    index: int
    position: int = 0
    slices: int = 1


class Lazy:
    """A value that is there, a node's result, or unknown.

    Args:
        value: the value itself (numpy or jax array), None when there is none.
        node: the equation that makes it. position: which of its results.
        change: instead of an equation, a function of the only operand (a slice of it).
        origin: where it lies in memory, when it is an argument, a kernel's result or part of one.
    """

    def __init__(
        self,
        value: Any = None,
        node: Node | None = None,
        position: int = 0,
        change: Callable[[Any], Any] | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.value = value
        self.node = node
        self.position = position
        self.change = change
        self.origin = origin
        self._tried = node is None

    def __call__(self) -> Any:
        """The value, or None when it can't be known."""
        if not self._tried:
            resolve([self])
        return self.value

    def settle(self, value: Any) -> None:
        """Remember the outcome; None for one that can't be known."""
        self.value = value
        self._tried = True

    @property
    def settled(self) -> bool:
        """Evaluation has been tried, or was not needed."""
        return self._tried


def results_of(equation: Any, operands: list[Lazy]) -> list[Lazy]:
    """The results of an equation that has not been evaluated."""
    node = Node(equation, operands)
    return [Lazy(node=node, position=position) for position in range(len(equation.outvars))]


def changed(value: Lazy, change: Callable[[Any], Any]) -> Lazy:
    """A value computed from one other by a plain function."""
    return Lazy(node=Node(None, [value]), change=change)


def resolve(wanted: Sequence[Lazy]) -> None:
    """Evaluate values together; those that depend on unknown ones settle at None."""
    open_values = [value for value in wanted if not value.settled]
    known: dict[int, bool] = {}
    possible = [value for value in open_values if _is_possible(value, known)]
    for value in open_values:
        if value not in possible:
            value.settle(None)
    rest = []
    for value in possible:
        if _is_simple(value, {}):
            value.settle(_evaluate(value, {}, {}, _with_numpy))
        else:
            rest.append(value)
    if not rest:
        return
    leaves: dict[int, Lazy] = {}
    for value in rest:
        _collect(value, leaves, set())
    keys = list(leaves)

    def compute(arguments: list[Any]) -> list[Any]:
        given = dict(zip(keys, arguments, strict=True))
        made: dict[int, list[Any]] = {}
        return [_evaluate(value, given, made, jax_internals.evaluate_equation) for value in rest]

    try:
        arguments = [leaves[key].value for key in keys]
        # run once, so that time spent on optimising it is lost
        options = {"xla_backend_optimization_level": 0}
        found = jax.jit(compute).lower(arguments).compile(compiler_options=options)(arguments)
    except Exception:  # noqa: BLE001 - not knowing a value costs precision and is noted where it matters
        found = [None] * len(rest)
    for value, result in zip(rest, found, strict=True):
        value.settle(result)


def _is_possible(value: Lazy, known: dict[int, bool]) -> bool:
    if value.settled or value.node is None:
        return value.value is not None
    held = known.get(id(value.node))
    if held is None:
        equation = value.node.equation
        runs_kernel = equation is not None and equation.primitive.name == "pallas_call"
        held = not runs_kernel and all(_is_possible(o, known) for o in value.node.operands)
        known[id(value.node)] = held
    return held


def _is_simple(value: Lazy, seen: dict[int, bool]) -> bool:
    if value.settled or value.node is None:
        return True
    held = seen.get(id(value.node))
    if held is None:
        equation = value.node.equation
        plain = equation is None or equation.primitive.name in SIMPLE
        held = plain and all(_is_simple(operand, seen) for operand in value.node.operands)
        seen[id(value.node)] = held
    return held


def _collect(value: Lazy, leaves: dict[int, Lazy], seen: set[int]) -> None:
    if value.settled or value.node is None:
        leaves[id(value)] = value
        return
    if id(value.node) in seen:
        return
    seen.add(id(value.node))
    for operand in value.node.operands:
        _collect(operand, leaves, seen)


def _evaluate(
    value: Lazy,
    given: dict[int, Any],
    made: dict[int, list[Any]],
    run: Callable[[Any, Sequence[Any]], list[Any]],
) -> Any:
    if value.settled or value.node is None:
        return given.get(id(value), value.value)
    node = value.node
    if id(node) not in made:
        operands = [_evaluate(operand, given, made, run) for operand in node.operands]
        if value.change is not None:
            made[id(node)] = [value.change(operands[0])]
        else:
            made[id(node)] = run(node.equation, operands)
    return made[id(node)][value.position]


def _with_numpy(equation: Any, operands: Sequence[Any]) -> list[Any]:
    results = evaluate(Instruction(equation), [np.asarray(operand)[None] for operand in operands])
    if not is_known(*results):
        return jax_internals.evaluate_equation(equation, operands)
    return [result[0] for result in results]
