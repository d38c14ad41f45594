"""Running jaxprs: equation by equation, and kernels in one of JAX's interpreters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from tpulab.kernel.jax_internals.calls import semantics_name
from tpulab.kernel.jax_internals.structure import KERNEL_PRIMITIVES, inner_jaxprs, open_jaxpr


def evaluate_equation(equation: Any, values: Sequence[Any]) -> list[Any]:
    """Run one equation eagerly on concrete values."""
    params = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        result = equation.primitive.bind(*values, **params)
    return list(result) if equation.primitive.multiple_results else [result]


def evaluate_vectorised(equation: Any, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run one equation on values with a leading lane axis (length 1 broadcasts)."""
    lanes = max(value.shape[0] for value in values)
    axes = [0 if value.shape[0] == lanes else None for value in values]
    arguments = [value if axis == 0 else value[0] for value, axis in zip(values, axes, strict=True)]
    if lanes == 1:
        results = evaluate_equation(equation, [value[0] for value in values])
        return [np.asarray(result)[None] for result in results]
    results = jax.vmap(lambda *args: evaluate_equation(equation, args), in_axes=tuple(axes))(
        *arguments
    )
    return [np.asarray(result) for result in results]


def as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """A closed jaxpr as a function of its flat arguments."""
    function: Callable[..., list[Any]] = jex_core.jaxpr_as_fun(jaxpr)
    return function


def replace_interpret(jaxpr: Any, interpret: Any) -> Any:
    """The same jaxpr with ``interpret`` set in every kernel call, nested jaxprs included.

    The TPU interpreter takes grids only whose parallel axes come first; the compiler takes any. A
    parallel axis after another one is therefore run as "arbitrary", in order.
    """
    effects = _interpret_effects(interpret)
    return _rewrite(jaxpr, interpret, effects)[0]


def _with_host_devices(mesh: Any) -> Any:
    """A mesh that names no devices, put on host devices where there are enough."""
    from jax.sharding import AbstractMesh

    hosts = jax.devices("cpu")
    if not isinstance(mesh, AbstractMesh) or len(hosts) < mesh.size:
        return mesh
    return jax.make_mesh(
        tuple(mesh.shape.values()),
        tuple(mesh.axis_names),
        axis_types=mesh.axis_types,
        devices=hosts[: mesh.size],
    )


def _interpret_effects(interpret: Any) -> set[Any]:
    from jax._src.pallas import core as pallas_core

    return set(pallas_core.get_interpret_effects(interpret))


def _rewrite(jaxpr: Any, interpret: Any, effects: set[Any]) -> tuple[Any, bool]:
    inner = open_jaxpr(jaxpr)
    equations = []
    changed = False
    for equation in inner.eqns:
        params = dict(equation.params)
        touched = False
        if equation.primitive.name in KERNEL_PRIMITIVES:
            params["interpret"] = interpret
            if interpret is True and "jaxpr" in params:
                from tpulab.kernel.hoisting import hoist_grid_indices

                params["jaxpr"] = hoist_grid_indices(params["jaxpr"])
            if interpret is not True and "compiler_params" in params:
                params["compiler_params"] = _parallel_first(params["compiler_params"])
            touched = True
        else:
            for key, position, sub in list(inner_jaxprs(equation.params)):
                new, sub_changed = _rewrite(sub, interpret, effects)
                if not sub_changed:
                    continue
                touched = True
                if position is None:
                    params[key] = new
                else:
                    items = list(params[key])
                    items[position] = new
                    params[key] = tuple(items)
            if touched and equation.primitive.name == "shard_map":
                params["mesh"] = _with_host_devices(params["mesh"])
        if touched:
            changed = True
            equation = equation.replace(params=params, effects=equation.effects | effects)
        equations.append(equation)
    if not changed:
        return jaxpr, False
    new_inner = inner.replace(eqns=equations, effects=inner.effects | effects)
    if new_inner is not jaxpr and inner is not jaxpr:
        return jaxpr.replace(jaxpr=new_inner), True
    return new_inner, True


def _parallel_first(compiler_params: Any) -> Any:
    semantics = getattr(compiler_params, "dimension_semantics", None)
    if not semantics:
        return compiler_params
    names = [semantics_name(item) for item in semantics]
    leading = next((i for i, name in enumerate(names) if name != "parallel"), len(names))
    if "parallel" not in names[leading:]:
        return compiler_params
    ordered = [
        "arbitrary" if name == "parallel" and axis >= leading else item
        for axis, (name, item) in enumerate(zip(names, semantics, strict=True))
    ]
    return dataclasses.replace(compiler_params, dimension_semantics=tuple(ordered))


def faithful_params(**options: Any) -> Any:
    """``pltpu.InterpretParams`` with the options that this JAX knows; others are left out."""
    from jax.experimental.pallas import tpu as pltpu

    known = {field.name for field in dataclasses.fields(pltpu.InterpretParams)}
    # newer versions raise at the first race; the report wants all of them
    options.setdefault("on_race", "warn")
    return pltpu.InterpretParams(**{key: value for key, value in options.items() if key in known})


def reset_interpreter() -> None:
    """Forget the TPU interpreter's shared state, as is needed after it raised."""
    from jax._src import dispatch
    from jax.experimental.pallas import tpu as pltpu

    pltpu.reset_tpu_interpret_mode_state()
    # the token of a failed callback would fail every later callback, and the exit of the process
    dispatch.runtime_tokens.clear()
