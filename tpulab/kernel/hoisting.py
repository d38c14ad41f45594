"""Grid indices taken out of the branches of a kernel, where the fast interpreter cannot know them.

On a TPU ``pl.program_id`` may stand under ``pl.when``. JAX's fast interpreter answers it while it
walks the kernel's own equations, and not within a ``cond``, which is compiled by itself. Handing
the index to the branches as an operand changes nothing else.
"""

from __future__ import annotations

from typing import Any

from tpulab.kernel import jax_internals

_QUESTIONS = frozenset({"program_id", "num_programs"})

# which question about the grid: its name and its axis
Key = tuple[str, int]


def hoist_grid_indices(jaxpr: Any) -> Any:
    """The same kernel with every grid index that a branch asks for asked at the top.

    Args:
        jaxpr: of a kernel, open or closed.

    Returns:
        The jaxpr itself when no branch asks.
    """
    inner = jax_internals.open_jaxpr(jaxpr)
    asked: dict[Key, Any] = {}
    for equation in inner.eqns:
        for branch in _branches(equation):
            asked |= _asked_in(branch)
    if not asked:
        return jaxpr
    given, top = {}, []
    for key, question in asked.items():
        variable = _new_variable(question.outvars[0])
        given[key] = variable
        top.append(question.replace(outvars=[variable]))
    equations = [_with_operands(equation, given) for equation in inner.eqns]
    return _reopened(jaxpr, inner.replace(eqns=[*top, *equations]))


def _branches(equation: Any) -> tuple[Any, ...]:
    return tuple(equation.params["branches"]) if equation.primitive.name == "cond" else ()


def _asked_in(jaxpr: Any) -> dict[Key, Any]:
    """The first equation that asks each question, nested branches included."""
    found: dict[Key, Any] = {}
    for equation in jax_internals.open_jaxpr(jaxpr).eqns:
        if equation.primitive.name in _QUESTIONS:
            found.setdefault(_key(equation), equation)
        for branch in _branches(equation):
            found = _asked_in(branch) | found
    return found


def _key(equation: Any) -> Key:
    return equation.primitive.name, int(equation.params["axis"])


def _new_variable(like: Any) -> Any:
    from jax.extend import core

    return core.Var(like.aval)


def _with_operands(equation: Any, given: dict[Key, Any]) -> Any:
    """A ``cond`` whose branches get the answers as operands; any other equation as it is."""
    branches = _branches(equation)
    wanted = sorted({key for branch in branches for key in _asked_in(branch)})
    if not wanted:
        return equation
    taking = tuple(_taking(branch, wanted, given) for branch in branches)
    operands = [*equation.invars, *(given[key] for key in wanted)]
    return equation.replace(invars=operands, params={**equation.params, "branches": taking})


def _taking(branch: Any, wanted: list[Key], given: dict[Key, Any]) -> Any:
    """The branch with the answers as further operands, in the order of ``wanted``."""
    inner = jax_internals.open_jaxpr(branch)
    mine = {key: _new_variable(given[key]) for key in wanted}
    renamed: dict[int, Any] = {}
    equations = []
    for equation in inner.eqns:
        if equation.primitive.name in _QUESTIONS:
            renamed[id(equation.outvars[0])] = mine[_key(equation)]
            continue
        inputs = [renamed.get(id(item), item) for item in equation.invars]
        equations.append(_with_operands(equation.replace(invars=inputs), mine))
    results = [renamed.get(id(item), item) for item in inner.outvars]
    variables = [*inner.invars, *(mine[key] for key in wanted)]
    info = inner.debug_info
    if info is not None and info.arg_names is not None:
        info = info._replace(arg_names=(*info.arg_names, *(f"{name}_{n}" for name, n in wanted)))
    changed = inner.replace(invars=variables, outvars=results, eqns=equations, debug_info=info)
    return _reopened(branch, changed)


def _reopened(original: Any, inner: Any) -> Any:
    """In the form of the original: closed over its constants where that was."""
    if jax_internals.open_jaxpr(original) is original:
        return inner
    return original.replace(jaxpr=inner)
