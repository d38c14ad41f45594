"""Kernel calls, their block mappings and the copies in them, taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tpulab.kernel.jax_internals.places import (
    equation_location,
    function_and_location,
    same_source,
)
from tpulab.kernel.jax_internals.structure import (
    all_equations,
    dtype_of,
    memory_space,
    open_jaxpr,
    shape_of,
)


@dataclasses.dataclass(frozen=True)
class BlockMapping:
    """What is needed of JAX's block mapping, with its index-map jaxpr."""

    array_shape: tuple[int, ...]
    dtype: str
    block_shape: tuple[int | None, ...]
    element_dims: tuple[int, ...]
    memory_space: str
    buffer_count: int | None
    revisit_any: bool
    trivial: bool
    index_map: Any
    where: str | None
    origin: str


@dataclasses.dataclass(frozen=True)
class CallStructure:
    """A ``pallas_call`` equation taken apart."""

    name: str
    where: str | None
    grid: tuple[int | None, ...]
    vmapped_dims: tuple[int, ...]
    num_index_operands: int
    inputs: tuple[BlockMapping, ...]
    outputs: tuple[BlockMapping, ...]
    index_avals: tuple[Any, ...]
    scratch_avals: tuple[Any, ...]
    kernel: Any
    dimension_semantics: tuple[str, ...] | None
    vmem_limit_bytes: int | None
    aliases: tuple[tuple[int, int], ...]
    axis_names: tuple[str | None, ...] = ()
    collective_id: int | None = None
    barrier_where: str | None = None

    @property
    def dynamic_bounds(self) -> int:
        """Grid dimensions whose bound is an operand of the call."""
        return sum(1 for bound in self.grid if bound is None)


def kernels_in(equation: Any) -> tuple[CallStructure, ...]:
    """The TensorCore kernels of a ``pallas_call`` or ``mpmd_map`` (``pl.kernel``) equation."""
    if equation.primitive.name == "pallas_call":
        return (take_apart(equation),)
    if equation.primitive.name != "mpmd_map":
        return ()
    params = equation.params
    pairs = zip(params["meshes"], params["jaxprs"], strict=True)
    return tuple(
        _take_apart_mesh_kernel(equation, mesh, kernel)
        for mesh, kernel in pairs
        if "tensorcore" in type(mesh).__name__.lower()
    )


def _take_apart_mesh_kernel(equation: Any, mesh: Any, kernel: Any) -> CallStructure:
    """A kernel that runs once on every core of a mesh: its operands are whole arrays."""
    params = equation.params
    name, where = function_and_location(kernel)
    binder = [variable.aval for variable in open_jaxpr(kernel).invars]
    count, results = len(equation.invars), len(equation.outvars)
    whole = [_whole_array(aval, position) for position, aval in enumerate(binder)]
    aliases = params.get("input_output_aliases") or {}
    pairs = aliases.items() if isinstance(aliases, Mapping) else aliases
    cores = tuple(int(size) for size in mesh.shape.values())
    return CallStructure(
        name=params.get("name") or name,
        where=where or equation_location(equation),
        grid=cores,
        vmapped_dims=(),
        num_index_operands=0,
        inputs=tuple(whole[:count]),
        outputs=tuple(whole[count : count + results]),
        index_avals=(),
        scratch_avals=tuple(binder[count + results :]),
        kernel=kernel,
        dimension_semantics=("parallel",) * len(cores),
        vmem_limit_bytes=getattr(params.get("compiler_params"), "vmem_limit_bytes", None),
        aliases=tuple((int(i), int(o)) for i, o in pairs),
        axis_names=tuple(str(name) for name in mesh.shape),
    )


def _whole_array(aval: Any, position: int) -> BlockMapping:
    shape = shape_of(aval)
    return BlockMapping(
        array_shape=shape,
        dtype=dtype_of(aval),
        block_shape=shape,
        element_dims=(),
        memory_space=memory_space(aval),
        buffer_count=1,
        revisit_any=False,
        trivial=True,
        index_map=None,
        where=None,
        origin=f"args[{position}]",
    )


def take_apart(equation: Any) -> CallStructure:
    """Read a ``pallas_call`` equation."""
    params = equation.params
    mapping = params["grid_mapping"]
    compiler_params = params.get("compiler_params")
    if isinstance(compiler_params, Mapping):
        compiler_params = next(iter(compiler_params.values()), None)
    semantics = getattr(compiler_params, "dimension_semantics", None)
    name, where = function_and_location(params["jaxpr"])
    if not same_source(where):
        where = where or equation_location(equation)
    mappings = tuple(_block_mapping(block) for block in mapping.block_mappings)
    count = mapping.num_inputs
    rank = len(mapping.grid)
    return CallStructure(
        name=params.get("name") or name,
        where=where,
        grid=tuple(int(bound) if isinstance(bound, int) else None for bound in mapping.grid),
        vmapped_dims=tuple(mapping.vmapped_dims),
        num_index_operands=mapping.num_index_operands,
        inputs=mappings[:count],
        outputs=mappings[count:],
        index_avals=tuple(mapping.index_map_avals[rank:]),
        scratch_avals=tuple(mapping.scratch_avals),
        kernel=params["jaxpr"],
        dimension_semantics=(
            tuple(semantics_name(item) for item in semantics) if semantics is not None else None
        ),
        vmem_limit_bytes=getattr(compiler_params, "vmem_limit_bytes", None),
        aliases=tuple((int(i), int(o)) for i, o in params.get("input_output_aliases") or ()),
        axis_names=tuple(mapping.grid_names or ()),
        collective_id=getattr(compiler_params, "collective_id", None),
        barrier_where=_barrier_place(params["jaxpr"]),
    )


def _barrier_place(kernel: Any) -> str | None:
    """Where a kernel takes the barrier semaphore ("" when the place is not known), None if not."""
    for equation in all_equations(kernel):
        if equation.primitive.name == "get_barrier_semaphore":
            return equation_location(equation) or ""
    return None


def semantics_name(item: Any) -> str:
    """Name of a dimension's semantics, such as "parallel", whether it came as text or as enum."""
    return str(getattr(item, "value", item)).lower().rpartition(".")[2]


def _block_mapping(block: Any) -> BlockMapping:
    sizes: list[int | None] = []
    elements = []
    for position, dimension in enumerate(block.block_shape):
        kind = type(dimension).__name__
        if kind == "Squeezed" or dimension is None:
            sizes.append(None)
            continue
        sizes.append(int(getattr(dimension, "block_size", dimension)))
        if kind in ("Element", "BoundedSlice"):
            elements.append(position)
    mode = block.pipeline_mode
    count = getattr(mode, "buffer_count", None)
    revisit = getattr(mode, "revisit", None)
    _, where = function_and_location(block.index_map_jaxpr)
    return BlockMapping(
        array_shape=tuple(int(size) for size in block.array_aval.shape),
        dtype=dtype_of(block.array_aval),
        block_shape=tuple(sizes),
        element_dims=tuple(elements),
        memory_space=memory_space(block.transformed_block_aval),
        buffer_count=count if isinstance(count, int) else None,
        revisit_any=str(getattr(revisit, "name", revisit)).upper() == "ANY",
        trivial=bool(block.has_trivial_window()),
        index_map=block.index_map_jaxpr,
        where=where if where and same_source(where) else None,
        origin=str(block.origin),
    )


@dataclasses.dataclass(frozen=True)
class Copy:
    """A DMA: source and destination Ref, the transforms of each, whether it leaves the device."""

    source: Any
    source_transforms: tuple[Any, ...]
    destination: Any
    destination_transforms: tuple[Any, ...]
    remote: bool


def take_apart_copy(tree: Any, flat: Sequence[Any]) -> Copy:
    """Put a ``dma_start`` or ``dma_wait`` equation's flat operands together."""
    source, destination, _, _, device = tree.unflatten(list(flat))
    return Copy(
        getattr(source, "ref", source),
        tuple(getattr(source, "transforms", ())),
        getattr(destination, "ref", destination),
        tuple(getattr(destination, "transforms", ())),
        device is not None,
    )


def leaves_device(jaxpr: Any) -> bool:
    """Whether a jaxpr's kernels copy to other devices or wait at a barrier of several."""
    return any(
        equation.primitive.name == "get_barrier_semaphore"
        or (equation.primitive.name == "dma_start" and _is_remote(equation))
        for equation in all_equations(jaxpr)
    )


def _is_remote(equation: Any) -> bool:
    return take_apart_copy(equation.params["tree"], equation.invars).remote
