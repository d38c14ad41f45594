"""Put the arguments of a function on the device mesh that its ``shard_map`` names."""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 16


def place_on_mesh(
    jaxpr: Any, specs: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[tuple[str, int, str], ...]]:
    """Give every argument the sharding that ``shard_map`` wants of it.

    ``jax.export`` counts the devices of a program by its arguments' shardings; without them a
    ``shard_map`` over an abstract mesh would be exported for one device. Arguments that reach the
    ``shard_map`` through something else are replicated.

    Args:
        jaxpr: the traced function.
        specs: its arguments, trees of ``jax.ShapeDtypeStruct`` and Python scalars.

    Returns:
        The arguments with shardings, and name, size and axis type of the mesh's axes; unchanged and
        empty when one device is all that is used.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    inner = getattr(jaxpr, "jaxpr", jaxpr)
    origins = {variable: index for index, variable in enumerate(inner.invars)}
    mesh, wanted = _shard_map(inner, origins, 0)
    leaves, tree = jax.tree.flatten(specs)
    if mesh is None:
        shardings = [getattr(leaf, "sharding", None) for leaf in leaves]
        mesh = next((sharding.mesh for sharding in shardings if sharding is not None), None)
    if mesh is None or mesh.size <= 1:
        return specs, ()
    # inside a context with an abstract device JAX compares the whole mesh, so it is used as it is
    placed = [
        jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=leaf.sharding or NamedSharding(mesh, wanted.get(index) or PartitionSpec()),
        )
        if isinstance(leaf, jax.ShapeDtypeStruct)
        else leaf
        for index, leaf in enumerate(leaves)
    ]
    types = getattr(mesh, "axis_types", None) or ("Auto",) * len(mesh.axis_names)
    axes = tuple(
        (str(name), int(mesh.shape[name]), getattr(kind, "name", str(kind)))
        for name, kind in zip(mesh.axis_names, types, strict=True)
    )
    return tuple(jax.tree.unflatten(tree, placed)), axes


def _shard_map(jaxpr: Any, origins: dict[Any, int], depth: int) -> tuple[Any, dict[int, Any]]:
    """The first mesh of a ``shard_map`` and the partition of the arguments that go straight in."""
    if depth > _MAX_DEPTH:
        return None, {}
    for equation in jaxpr.eqns:
        parameters = equation.params
        inputs = [origins.get(v) if _is_variable(v) else None for v in equation.invars]
        if equation.primitive.name == "shard_map":
            partitions = parameters.get("in_specs") or ()
            return parameters["mesh"], {
                index: partition
                for index, partition in zip(inputs, partitions, strict=False)
                if index is not None
            }
        for value in parameters.values():
            inner = getattr(value, "jaxpr", value)
            if not hasattr(inner, "eqns"):
                continue
            known = {
                variable: index
                for variable, index in zip(inner.invars, inputs, strict=False)
                if index is not None and len(inner.invars) == len(inputs)
            }
            mesh, found = _shard_map(inner, known, depth + 1)
            if mesh is not None:
                return mesh, found
    return None, {}


def _is_variable(value: Any) -> bool:
    # literals are not hashable in every version
    return not hasattr(value, "val")
