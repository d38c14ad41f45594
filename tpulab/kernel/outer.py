"""The function around the kernels: every ``pallas_call``, how often it runs, and its operands.

Operands are ``Lazy``: scalar prefetch and dynamic grid bounds are evaluated on CPU when asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.evaluate import UNKNOWN, lanes_of
from tpulab.kernel.lazy import Lazy, Origin, changed, results_of
from tpulab.kernel.loops import trip_count
from tpulab.kernel.origins import origin_of

#: Bodies that simply run with the equation's operands in order.
_INLINE = frozenset({
    "jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin", "run_state", "xla_call",
})  # fmt: skip


UNKNOWN_VALUE = Lazy()


@dataclasses.dataclass
class FoundCall:
    """A kernel call with its operands' values and how often it runs."""

    structure: jax_internals.CallStructure
    operands: list[Lazy]
    times: int
    notes: list[str]


class OuterWalk:
    """Walks a traced function.

    Args:
        jaxpr: closed. leaves: flat arguments, arrays or ShapeDtypeStructs.
    """

    def __init__(self, jaxpr: Any, leaves: Sequence[Any]) -> None:
        self.calls: list[FoundCall] = []
        self.notes: dict[str, None] = {}
        self.other_kernels = False
        self._here: list[str] = []
        values = [_argument(leaf, position) for position, leaf in enumerate(leaves)]
        self.results = self._walk(jaxpr, values, 1)
        self.result_avals = [atom.aval for atom in jax_internals.open_jaxpr(jaxpr).outvars]

    def _walk(self, jaxpr: Any, arguments: Sequence[Lazy], times: int) -> list[Lazy]:
        inner = jax_internals.open_jaxpr(jaxpr)
        names = jax_internals.binders(jaxpr)
        values = list(arguments)
        if len(values) < len(names):
            values = [*map(Lazy, jax_internals.jaxpr_constants(jaxpr)), *values]
        environment: dict[Any, Lazy] = dict(zip(names, values, strict=False))

        def read(atom: Any) -> Lazy:
            if isinstance(atom, jax_internals.Literal):
                return Lazy(atom.val)
            return environment.get(atom, UNKNOWN_VALUE)

        for equation in inner.eqns:
            operands = [read(atom) for atom in equation.invars]
            results = self._equation(equation, operands, times)
            for variable, value in zip(equation.outvars, results, strict=False):
                environment[variable] = value
        return [read(atom) for atom in inner.outvars]

    def _equation(self, equation: Any, operands: list[Lazy], times: int) -> list[Lazy]:
        name = equation.primitive.name
        unknown = [UNKNOWN_VALUE] * len(equation.outvars)
        if name in jax_internals.KERNEL_PRIMITIVES:
            kernels = jax_internals.kernels_in(equation)
            if len(kernels) == 1:
                index = len(self.calls)
                unknown = [Lazy(origin=Origin("result", index, p)) for p in range(len(unknown))]
            for structure in kernels:
                self.calls.append(FoundCall(structure, operands, times, list(self._here)))
            if not kernels:
                self.other_kernels = True
                place = jax_internals.equation_location(equation)
                self.notes[f"a kernel that is not for a TensorCore is not described ({place})"] = (
                    None
                )
            return unknown
        subs = list(jax_internals.inner_jaxprs(equation.params))
        if not subs or not any(_holds_call(sub) for _, _, sub in subs):
            if name in _INLINE and len(subs) == 1:
                return self._walk(subs[0][2], operands, times)
            return results_of(equation, operands)
        if name == "scan":
            return self._scan(equation, operands, times)
        if name == "while":
            return self._while(equation, operands, times)
        if name == "cond":
            return self._cond(equation, operands, times)
        if name == "shard_map":
            return self._shard_map(equation, operands, times)
        for _, _, sub in subs:
            if len(jax_internals.open_jaxpr(sub).invars) == len(operands):
                return self._walk(sub, operands, times)
        for _, _, sub in subs:
            width = len(jax_internals.binders(sub))
            self._walk(sub, [UNKNOWN_VALUE] * width, times)
        return unknown

    def _scan(self, equation: Any, operands: list[Lazy], times: int) -> list[Lazy]:
        params = equation.params
        count, carried = jax_internals.scan_counts(params)
        body, length = params["jaxpr"], int(params["length"])
        inner = jax_internals.open_jaxpr(body)
        carry = [
            value
            if inner.outvars[position] is inner.invars[count + position]
            else Lazy(origin=origin_of(value))
            for position, value in enumerate(operands[count : count + carried])
        ]
        slices = [_part(value, length) for value in operands[count + carried :]]
        results = self._walk(body, [*operands[:count], *carry, *slices], times * length)
        return [
            Lazy(origin=origin_of(value)) if position < carried else _part(value, length)
            for position, value in enumerate(results)
        ]

    def _while(self, equation: Any, operands: list[Lazy], times: int) -> list[Lazy]:
        params = equation.params
        condition_count, body_count = jax_internals.while_counts(params)
        trips = _trips(equation, operands)
        if trips is None:
            place = jax_internals.equation_location(equation)
            note = f"how often a loop around a call runs is not known; counted as once ({place})"
            self.notes[note] = None
            trips = 1
        body = params["body_jaxpr"]
        inner = jax_internals.open_jaxpr(body)
        first = condition_count + body_count
        carry = [
            value
            if inner.outvars[position] is inner.invars[body_count + position]
            else Lazy(origin=origin_of(value))
            for position, value in enumerate(operands[first:])
        ]
        results = self._walk(body, [*operands[condition_count:first], *carry], times * trips)
        return [Lazy(origin=origin_of(value)) for value in results]

    def _cond(self, equation: Any, operands: list[Lazy], times: int) -> list[Lazy]:
        branches = equation.params["branches"]
        index = operands[0]()
        if index is not None:
            chosen = min(max(int(np.asarray(index)), 0), len(branches) - 1)
            return self._walk(branches[chosen], operands[1:], times)
        note = "a call stands in a branch that depends on data; every branch is counted"
        self._here.append(note)
        for branch in branches:
            self._walk(branch, operands[1:], times)
        self._here.pop()
        return [UNKNOWN_VALUE] * len(equation.outvars)

    def _shard_map(self, equation: Any, operands: list[Lazy], times: int) -> list[Lazy]:
        body = equation.params["jaxpr"]
        inner = jax_internals.open_jaxpr(body)
        local = [
            changed(value, _first_shard(jax_internals.shape_of(variable.aval)))
            for value, variable in zip(operands, inner.invars, strict=False)
        ]
        mesh = equation.params.get("mesh")
        size = math.prod(getattr(mesh, "axis_sizes", ()) or (1,))
        if size > 1:
            self.notes[f"counts are per device, on the first of {size}"] = None
        results = self._walk(body, local, times)
        return [Lazy(origin=origin_of(value)) for value in results]


def _argument(leaf: Any, position: int) -> Lazy:
    origin = Origin("argument", position)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return Lazy(origin=origin)
    return Lazy(leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), origin=origin)


def _part(value: Lazy, length: int) -> Lazy:
    """What one iteration of a scan sees of an array, or gives to it."""
    origin = origin_of(value)
    if origin is None:
        return UNKNOWN_VALUE
    return Lazy(origin=dataclasses.replace(origin, slices=origin.slices * length))


def _holds_call(jaxpr: Any) -> bool:
    for equation in jax_internals.open_jaxpr(jaxpr).eqns:
        if equation.primitive.name in jax_internals.KERNEL_PRIMITIVES:
            return True
        if any(_holds_call(sub) for _, _, sub in jax_internals.inner_jaxprs(equation.params)):
            return True
    return False


def _first_shard(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """A function that cuts the first device's part out of an array."""

    def cut(whole: Any) -> Any:
        return whole[tuple(slice(0, size) for size in shape)]

    return cut


def _trips(equation: Any, operands: list[Lazy]) -> int | None:
    """Iterations of a ``fori_loop`` with known bounds."""
    params = equation.params
    condition_count, body_count = jax_internals.while_counts(params)

    def scalar(value: Lazy, atom: Any) -> Any:
        if jax_internals.shape_of(atom.aval):
            return UNKNOWN
        known = value()
        return UNKNOWN if known is None else lanes_of(np.asarray(known))

    values = [scalar(v, a) for v, a in zip(operands, equation.invars, strict=True)]
    trips = trip_count(
        params["cond_jaxpr"],
        params["body_jaxpr"],
        values[:condition_count],
        body_count,
        values[condition_count + body_count :],
    )
    return None if trips is None else int(trips[0])
