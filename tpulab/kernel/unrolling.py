"""Long loops followed by XLA: which branch each iteration takes, without walking it in Python.

The scalar arithmetic that decides a loop body's conditions is cut out of the body and run as one
compiled ``scan``. ``emit_pipeline`` makes such loops: thousands of iterations, a hundred scalar
operations each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.evaluate import is_known
from tpulab.kernel.instructions import Instruction, Program
from tpulab.kernel.loops import has_control

#: Iterations times grid steps up to which the branches taken are kept in memory.
_MAX_DECISIONS = 1 << 24


@dataclasses.dataclass(eq=False)
class Decisions:
    """How a loop ran.

    Attributes:
        taken: for each ``cond`` of the body (by id of its instruction), how often each branch was
            taken, int arrays [lanes] or [1].
        carry: carried values after the loop by position, those that decide something.
    """

    taken: dict[int, list[np.ndarray]]
    carry: dict[int, np.ndarray]


@dataclasses.dataclass(eq=False)
class _Slice:
    """The part of a body that decides its conditions."""

    conditions: list[Instruction]
    instructions: list[Instruction]
    needed: set[Any]
    carried: list[int]


def decide(
    program: Program, constants: Sequence[Any], carry: Sequence[Any], length: int
) -> Decisions | None:
    """Run the deciding part of a ``scan`` body; None when it depends on data or is too tangled.

    Args:
        program: of the body, whose names are constants, carried values, slices.
        constants, carry: values before the loop. length: iterations.
    """
    part = _cut(program, len(constants), len(carry))
    if part is None:
        return None
    names = program.names
    fixed = {
        names[position]: value
        for position, value in enumerate(constants)
        if names[position] in part.needed
    }
    moving = {position: carry[position] for position in part.carried}
    slices = set(names[len(constants) + len(carry) :])
    values = [*fixed.values(), *moving.values()]
    if part.needed & slices or not is_known(*values) or any(v.ndim != 1 for v in values):
        return None
    lanes = max((value.shape[0] for value in values), default=1)
    if lanes * length * max(1, len(part.conditions)) > _MAX_DECISIONS:
        return None
    try:
        final, indices = _run(program, part, fixed, moving, len(constants), length, lanes)
    except Exception:  # noqa: BLE001 - the loop is then followed in another way
        return None
    taken = {}
    for condition, index in zip(part.conditions, indices, strict=True):
        branches = len(condition.params["branches"])
        clipped = np.clip(index, 0, branches - 1)
        taken[id(condition)] = [
            (clipped == branch).sum(axis=0, dtype=np.int64).reshape(-1)
            for branch in range(branches)
        ]
    after = {
        position: np.asarray(value).reshape(-1)
        for position, value in zip(moving, final, strict=True)
    }
    return Decisions(taken, after)


def _cut(program: Program, constants: int, carried: int) -> _Slice | None:
    conditions = []
    for ins in program.instructions:
        subs = [sub for _, _, sub in jax_internals.inner_jaxprs(ins.params)]
        # a condition within a branch or an inner loop would need a count of its own
        if ins.name == "while" or any(has_control(sub) for sub in subs):
            return None
        if ins.name == "cond":
            conditions.append(ins)
    makers = {variable: ins for ins in program.instructions for variable in ins.outputs}
    places = {name: position for position, name in enumerate(program.names)}
    needed: set[Any] = set()
    chosen: set[int] = set()
    used: list[int] = []
    queue = [ins.inputs[0] for ins in conditions if ins.inputs[0] is not None]
    while queue:
        variable = queue.pop()
        if variable in needed:
            continue
        needed.add(variable)
        maker = makers.get(variable)
        if maker is not None:
            if not _is_plain(maker):
                return None
            chosen.add(id(maker))
            queue.extend(v for v in maker.inputs if v is not None)
        elif constants <= places.get(variable, -1) < constants + carried:
            position = places[variable] - constants
            used.append(position)
            result = program.results[position]
            if result is not None:
                queue.append(result)
    instructions = [ins for ins in program.instructions if id(ins) in chosen]
    return _Slice(conditions, instructions, needed, sorted(used))


def _is_plain(ins: Instruction) -> bool:
    """Arithmetic on scalars, without Refs or effects; jnp wraps some of it in a jit."""
    return _plain_equation(ins.equation)


def _plain_equation(equation: Any) -> bool:
    name = equation.primitive.name
    if name in ("program_id", "num_programs", "axis_index", "get", "swap"):
        return False
    atoms = [*equation.invars, *equation.outvars]
    if any(jax_internals.is_ref(atom.aval) or jax_internals.shape_of(atom.aval) for atom in atoms):
        return False
    subs = [sub for _, _, sub in jax_internals.inner_jaxprs(equation.params)]
    if subs and name not in ("jit", "pjit", "closed_call", "custom_jvp_call"):
        return False
    return all(
        _plain_equation(inner) for sub in subs for inner in jax_internals.open_jaxpr(sub).eqns
    )


def _run(
    program: Program,
    part: _Slice,
    fixed: dict[Any, np.ndarray],
    moving: dict[int, np.ndarray],
    constants: int,
    length: int,
    lanes: int,
) -> tuple[list[Any], list[np.ndarray]]:
    def one_lane(given: list[Any], start: list[Any]) -> tuple[list[Any], list[Any]]:
        known = dict(zip(fixed, given, strict=True))

        def step(carry: list[Any], _: Any) -> tuple[list[Any], list[Any]]:
            environment = dict(known)
            for position, value in zip(moving, carry, strict=True):
                environment[program.names[constants + position]] = value

            def read(variable: Any, literal: Any) -> Any:
                return literal[0] if variable is None else environment[variable]

            for ins in part.instructions:
                inputs = list(map(read, ins.inputs, ins.literals))
                outputs = jax_internals.evaluate_equation(ins.equation, inputs)
                environment.update(zip(ins.outputs, outputs, strict=True))
            after = [
                read(program.results[position], program.result_literals[position])
                for position in moving
            ]
            chosen = [read(ins.inputs[0], ins.literals[0]) for ins in part.conditions]
            return after, [jnp.asarray(index, jnp.int32) for index in chosen]

        return jax.lax.scan(step, start, None, length=length)

    given, start = list(fixed.values()), list(moving.values())
    function: Any = one_lane
    arguments: tuple[Any, ...] = ([v[0] for v in given], [v[0] for v in start])
    if lanes > 1:
        function = jax.vmap(one_lane, in_axes=(0, 0), out_axes=(0, 1))
        arguments = tuple([np.broadcast_to(v, (lanes,)) for v in group] for group in (given, start))
    options = {"xla_backend_optimization_level": 0}
    final, indices = (
        jax.jit(function).lower(*arguments).compile(compiler_options=options)(*arguments)
    )
    return list(final), [np.asarray(index) for index in indices]
