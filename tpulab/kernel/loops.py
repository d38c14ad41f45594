"""Loops in a jaxpr: whether iterations can differ, how often they run, what they carry along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.evaluate import UNKNOWN, is_known, lanes_of


def has_control(jaxpr: Any) -> bool:
    """Whether a loop body's work can differ from one iteration to the next."""
    return has_any(jaxpr, ("cond", "while"))


def has_any(jaxpr: Any, names: Sequence[str]) -> bool:
    """Whether one of some primitives is in a jaxpr, at any depth."""
    for equation in jax_internals.open_jaxpr(jaxpr).eqns:
        if equation.primitive.name in names:
            return True
        for _, _, sub in jax_internals.inner_jaxprs(equation.params):
            if has_any(sub, names):
                return True
    return False


def equation_count(jaxpr: Any) -> int:
    """Equations in a jaxpr, those in a ``scan`` as often as it runs."""
    total = 0
    for equation in jax_internals.open_jaxpr(jaxpr).eqns:
        subs = jax_internals.inner_jaxprs(equation.params)
        inner = sum(equation_count(sub) for _, _, sub in subs)
        if equation.primitive.name == "scan":
            inner *= int(equation.params["length"])
        total += 1 + inner
    return total


def invariant(body: Any, constants: int, position: int) -> bool:
    """Whether a loop body hands carried value ``position`` on unchanged."""
    inner = jax_internals.open_jaxpr(body)
    return inner.outvars[position] is inner.invars[constants + position]


def increment(body: Any, constants: int, position: int) -> int | None:
    """What the body adds to a carried integer when it is a literal, else None."""
    inner = jax_internals.open_jaxpr(body)
    variable, result = inner.invars[constants + position], inner.outvars[position]
    for equation in inner.eqns:
        if result not in equation.outvars or equation.primitive.name not in ("add", "sub"):
            continue
        left, right = equation.invars
        adds = equation.primitive.name == "add"
        if left is variable and isinstance(right, jax_internals.Literal):
            return int(right.val) if adds else -int(right.val)
        if adds and right is variable and isinstance(left, jax_internals.Literal):
            return int(left.val)
    return None


def carry_within(body: Any, constants: int, carry: Sequence[Any]) -> list[Any]:
    """Carried values as any iteration may see them: only those that never change are known."""
    return [
        value if invariant(body, constants, position) else UNKNOWN
        for position, value in enumerate(carry)
    ]


def carry_after(body: Any, constants: int, carry: Sequence[Any], trips: Any) -> list[Any]:
    """Carried values after ``trips`` iterations: unchanged ones and counters are known."""
    after = []
    for position, value in enumerate(carry):
        if invariant(body, constants, position):
            after.append(value)
            continue
        known = is_known(value) and value.ndim == 1 and value.dtype.kind in "iu"
        step = increment(body, constants, position) if known else None
        after.append(UNKNOWN if step is None else (value + step * trips).astype(value.dtype))
    return after


def trip_count(
    condition: Any, body: Any, constants: Sequence[Any], body_constants: int, carry: Sequence[Any]
) -> np.ndarray | None:
    """How often ``while i < n: i += step`` runs, int array [lanes]; None for any other loop.

    Args:
        condition, body: jaxprs of a ``while`` equation. constants: values of the condition's
            constants. body_constants: how many the body has. carry: initial carried values.
    """
    inner = jax_internals.open_jaxpr(condition)
    if len(inner.eqns) != 1 or inner.eqns[0].primitive.name not in ("lt", "gt"):
        return None
    test = inner.eqns[0]
    left, right = test.invars if test.primitive.name == "lt" else reversed(test.invars)
    places = {id(variable): place for place, variable in enumerate(inner.invars)}
    if inner.outvars[0] is not test.outvars[0] or id(left) not in places:
        return None
    position = places[id(left)] - len(constants)
    if position < 0:
        return None
    if isinstance(right, jax_internals.Literal):
        bound: Any = lanes_of(right.val)
    elif id(right) not in places:
        return None
    elif places[id(right)] < len(constants):
        bound = constants[places[id(right)]]
    else:
        other = places[id(right)] - len(constants)
        if not invariant(body, body_constants, other):
            return None
        bound = carry[other]
    step = increment(body, body_constants, position)
    start = carry[position]
    if step is None or step <= 0 or not is_known(start, bound):
        return None
    return np.maximum(0, -(-(bound.astype(np.int64) - start) // step))
