"""Jaxprs, their equations and the types of values, alike for every JAX that is supported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core

#: Primitives that run a Pallas kernel and take an ``interpret`` parameter.
KERNEL_PRIMITIVES = frozenset({"pallas_call", "core_map", "mpmd_map"})

Literal = jex_core.Literal


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr with ``eqns``, ``invars`` and ``outvars``, whether or not it came closed."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxpr_constants(jaxpr: Any) -> tuple[Any, ...]:
    """Values that a closed jaxpr binds to its ``constvars``."""
    return tuple(getattr(jaxpr, "consts", ()) or ())


def binders(jaxpr: Any) -> list[Any]:
    """Constvars, then invars: all variables a jaxpr expects values for."""
    inner = open_jaxpr(jaxpr)
    return [*inner.constvars, *inner.invars]


def is_jaxpr(value: Any) -> bool:
    """True for a jaxpr, open or closed."""
    return hasattr(open_jaxpr(value), "eqns") and hasattr(open_jaxpr(value), "invars")


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[tuple[str, int | None, Any]]:
    """(parameter, position in a tuple or None, jaxpr) of every jaxpr among an equation's params."""
    for key, value in params.items():
        if is_jaxpr(value):
            yield key, None, value
        elif isinstance(value, (tuple, list)):
            for position, item in enumerate(value):
                if is_jaxpr(item):
                    yield key, position, item


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """Every equation of a jaxpr, each before those nested in it, kernels included."""
    for equation in open_jaxpr(jaxpr).eqns:
        yield equation
        for _, _, sub in inner_jaxprs(equation.params):
            yield from all_equations(sub)


def kernel_equations(jaxpr: Any) -> Iterator[Any]:
    """Every ``pallas_call`` equation of a jaxpr, nested ones included, in order."""
    for equation in open_jaxpr(jaxpr).eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
        elif equation.primitive.name not in KERNEL_PRIMITIVES:
            for _, _, sub in inner_jaxprs(equation.params):
                yield from kernel_equations(sub)


def mesh_axes(jaxpr: Any) -> tuple[tuple[str, int], ...]:
    """Name and size of each axis of the first ``shard_map``'s mesh; () without one."""
    for equation in all_equations(jaxpr):
        if equation.primitive.name == "shard_map":
            return tuple((str(n), int(s)) for n, s in equation.params["mesh"].shape.items())
    return ()


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """(number of constants, number of carried values) of a ``scan`` equation."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


def while_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """(constants of the condition, constants of the body) of a ``while`` equation."""
    return params["cond_nconsts"], params["body_nconsts"]


def without_dead_code(jaxpr: Any) -> Any:
    """A closed jaxpr without equations whose results nobody needs, as XLA will not run them."""
    from jax.interpreters import partial_eval

    inner = open_jaxpr(jaxpr)
    alive, _ = partial_eval.dce_jaxpr(inner, [True] * len(inner.outvars), instantiate=True)
    return jaxpr.replace(jaxpr=alive)


def memory_space(aval: Any) -> str:
    """Memory space of a Ref: "vmem", "smem", "any", "hbm", "semaphore" or "host"."""
    space = getattr(aval, "memory_space", None)
    text = str(getattr(space, "value", space)).lower()
    if space is None or text in ("default", "none"):
        return "vmem"
    if "semaphore" in text:
        return "semaphore"
    if text.startswith("memoryspace."):
        text = text.partition(".")[2]
    return {"index": "smem", "key": "smem", "error": "smem", "device": "any"}.get(text, text)


def is_ref(aval: Any) -> bool:
    """True for the aval of a mutable reference."""
    return hasattr(aval, "inner_aval")


def shape_of(aval: Any) -> tuple[int, ...]:
    """Shape of a value or Ref, () for what has none."""
    return tuple(getattr(aval, "shape", ()))


def dtype_of(aval: Any) -> str:
    """Canonical dtype name of a value or Ref; "semaphore" for every kind of semaphore."""
    dtype = getattr(aval, "dtype", None)
    name = getattr(dtype, "name", None) or str(dtype)
    return "semaphore" if "sem" in name else name


def indexers(tree: Any, flat: Sequence[Any]) -> list[Any] | None:
    """The transforms of a load or store from its flat operands; None if they are not indexing."""
    transforms = jax.tree_util.tree_unflatten(tree, flat)
    for transform in transforms:
        if not hasattr(transform, "indices"):
            return None
    return list(transforms)


def is_slice(index: Any) -> bool:
    """True for the slice type that indexers use."""
    return hasattr(index, "start") and hasattr(index, "size")
