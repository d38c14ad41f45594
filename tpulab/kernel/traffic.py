"""Which block of an operand moves at which grid step, and how many bytes that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.counting import Counter
from tpulab.kernel.evaluate import UNKNOWN, is_known
from tpulab.kernel.jax_internals import BlockMapping
from tpulab.kernel.model import (
    PIPELINED_SPACES,
    Operand,
    array_bytes,
    dtype_bits,
    native_tile,
    padded_bytes,
)
from tpulab.kernel.refs import Ref, make_ref
from tpulab.kernel.regions import elements_touched


def changes(keys: np.ndarray) -> np.ndarray:
    """Bool array [steps]: the row differs from the one before it (the first one always does)."""
    changed = np.ones(keys.shape[0], bool)
    if keys.shape[0] > 1:
        changed[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return changed


def moving_steps(keys: np.ndarray, is_input: bool) -> np.ndarray:
    """When the pipeline moves a block whose identity at each step is a row of ``keys``.

    An input block is fetched when it differs from the previous step's; an output block is written
    back when the next step's differs, and at the last step.
    """
    changed = changes(keys)
    if is_input or not changed.size:
        return changed
    return np.concatenate([changed[1:], np.ones(1, bool)])


def evaluate_index_map(
    mapping: BlockMapping,
    coordinates: np.ndarray,
    grid: tuple[int, ...],
    prefetch: tuple[np.ndarray | None, ...],
    index_avals: tuple[Any, ...],
) -> tuple[list[np.ndarray | None], np.ndarray]:
    """Results of an index map at every grid step.

    Args:
        coordinates: int array [steps, grid rank]. prefetch: scalar-prefetch values.

    Returns:
        One int array [steps] per array dimension, or None where it depends on unknown values; and
        keys [steps, n], equal rows of which certainly mean the same block. Where a result is
        unknown, the keys hold the grid coordinates that it depends on.
    """
    steps = coordinates.shape[0]
    counter = Counter(coordinates, grid, ())
    arguments: list[Any] = [coordinates[:, axis].astype(np.int32) for axis in range(len(grid))]
    for position, (value, aval) in enumerate(zip(prefetch, index_avals, strict=True)):
        ref = make_ref(f"prefetch{position}", aval, "prefetch")
        ref.table = value
        arguments.append(ref if jax_internals.is_ref(aval) else _scalar(value))
    results = counter.walk(mapping.index_map, arguments, np.ones(1, np.int64))
    columns: list[np.ndarray | None] = []
    keys: list[np.ndarray] = []
    unknown = False
    for value in results:
        if is_known(value):
            column = np.broadcast_to(value.astype(np.int64), (steps,))
            columns.append(column)
            keys.append(column)
        else:
            columns.append(None)
            unknown = True
    if unknown:
        used = _coordinates_used(mapping.index_map, len(grid))
        keys.extend(coordinates[:, axis].astype(np.int64) for axis in used)
    stacked = np.stack(keys, axis=1) if keys else np.zeros((steps, 1), np.int64)
    return columns, stacked


def _scalar(value: np.ndarray | None) -> Any:
    return UNKNOWN if value is None else np.asarray(value)[None]


def _coordinates_used(index_map: Any, rank: int) -> list[int]:
    """Grid axes that an index map's results depend on."""
    inner = jax_internals.open_jaxpr(index_map)
    axes: dict[Any, frozenset[int]] = {
        variable: frozenset({position}) for position, variable in enumerate(inner.invars[:rank])
    }
    for equation in inner.eqns:
        found: frozenset[int] = frozenset()
        for atom in equation.invars:
            if not isinstance(atom, jax_internals.Literal):
                found |= axes.get(atom, frozenset())
        for variable in equation.outvars:
            axes[variable] = found
    used: frozenset[int] = frozenset()
    for atom in inner.outvars:
        if not isinstance(atom, jax_internals.Literal):
            used |= axes.get(atom, frozenset())
    return sorted(used)


def make_operand(
    mapping: BlockMapping,
    name: str,
    index: int,
    is_input: bool,
    coordinates: np.ndarray,
    grid: tuple[int, ...],
    prefetch: tuple[np.ndarray | None, ...],
    index_avals: tuple[Any, ...],
    aliased_with: int | None,
) -> tuple[Operand, bool]:
    """An operand with its moves over the grid; and whether its index map was fully known."""
    steps = coordinates.shape[0]
    sizes = tuple(1 if size is None else size for size in mapping.block_shape)
    dtype = mapping.dtype
    bytes_full = array_bytes(sizes, dtype)
    kept = tuple(size for size in mapping.block_shape if size is not None) or (1,)
    padded = padded_bytes(kept, dtype)
    columns: list[np.ndarray | None] = [np.zeros(steps, np.int64)] * len(sizes)
    known = True
    if mapping.memory_space not in PIPELINED_SPACES:
        moving = np.zeros(steps, bool)
        step_bytes = step_padded = np.zeros(steps, np.int64)
    elif mapping.trivial:
        moving = moving_steps(np.zeros((steps, 1), np.int64), is_input)
        step_bytes, step_padded = _bytes_at_step(mapping, sizes, columns, steps)
    else:
        columns, keys = evaluate_index_map(mapping, coordinates, grid, prefetch, index_avals)
        known = all(column is not None for column in columns)
        moving = moving_steps(keys, is_input)
        step_bytes, step_padded = _bytes_at_step(mapping, sizes, columns, steps)
    indices = (
        np.stack([c for c in columns if c is not None], axis=1)
        if known and columns
        else np.zeros((steps, 0), np.int64)
        if known
        else None
    )
    buffers = mapping.buffer_count or 2
    if mapping.trivial or not grid or mapping.memory_space not in PIPELINED_SPACES:
        # the lowering forces single buffering for a window that never moves
        buffers = 1
    operand = Operand(
        name=name,
        index=index,
        shape=mapping.array_shape,
        dtype=dtype,
        block_shape=mapping.block_shape,
        element_dims=mapping.element_dims,
        memory_space=mapping.memory_space,
        is_input=is_input,
        buffer_count=buffers,
        block_bytes=bytes_full,
        block_bytes_padded=padded,
        indices=indices,
        moving=moving,
        step_bytes=step_bytes,
        step_bytes_padded=step_padded,
        trivial=mapping.trivial,
        where=mapping.where,
        aliased_with=aliased_with,
        revisit_any=mapping.revisit_any,
        least_bytes=_least_bytes(mapping, sizes, indices, moving, step_bytes),
    )
    return operand, known


def _least_bytes(
    mapping: BlockMapping,
    sizes: tuple[int, ...],
    indices: np.ndarray | None,
    moving: np.ndarray,
    step_bytes: np.ndarray,
) -> int:
    """Bytes that the pipeline moves at least once; one block where it is not known which ones."""
    if not moving.any():
        return 0
    if mapping.trivial:
        return int(step_bytes.max())
    if indices is None:
        return int(step_bytes.min())
    units = [1 if axis in mapping.element_dims else size for axis, size in enumerate(sizes)]
    starts = np.unique(indices, axis=0) * np.asarray(units, np.int64)
    count = elements_touched(mapping.array_shape, starts, sizes)
    return array_bytes((count,), mapping.dtype)


def _bytes_at_step(
    mapping: BlockMapping,
    sizes: tuple[int, ...],
    columns: list[np.ndarray | None],
    steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the block that lie inside the array, at each step: exact, and in native tiles."""
    exact = np.ones(steps, np.int64)
    tiled = np.ones(steps, np.int64)
    rank = len(sizes)
    sublanes, lanes = native_tile(mapping.dtype)
    bits = dtype_bits(mapping.dtype)
    packing = max(1, 32 // bits)
    for axis, (size, block, column) in enumerate(
        zip(mapping.array_shape, sizes, columns, strict=True)
    ):
        if column is None:
            inside: np.ndarray | int = block
        else:
            start = column if axis in mapping.element_dims else column * block
            # a block index out of range is an error of its own; it moves a full block here
            inside = np.where((start >= size) | (start < 0), block, np.minimum(size - start, block))
        exact = exact * inside
        tile = 1
        if axis == rank - 1:
            tile = lanes * packing if rank == 1 else lanes
        elif axis == rank - 2:
            tile = sublanes
            while tile > packing and tile // 2 >= block:
                tile //= 2
        tiled = tiled * (-(-np.asarray(inside) // tile) * tile)
    stored = 8 if mapping.dtype == "bool" else bits
    return -(-exact * stored // 8), -(-tiled * stored // 8)


def whole_refs(
    structure: jax_internals.CallStructure,
    names: tuple[str, ...],
    prefetch: tuple[np.ndarray | None, ...],
    smem: Mapping[int, np.ndarray],
) -> list[Ref]:
    """The kernel's parameters in order: scalar prefetch, inputs, outputs, scratch.

    Args:
        prefetch: values of the scalar-prefetch operands. smem: of inputs that lie in SMEM as a
            whole, by position among the inputs.
    """
    kernel = jax_internals.open_jaxpr(structure.kernel)
    variables = kernel.invars
    first_input = structure.num_index_operands
    first_output = first_input + len(structure.inputs)
    first_scratch = first_output + len(structure.outputs)
    refs = []
    for position, variable in enumerate(variables):
        role = (
            "prefetch"
            if position < first_input
            else "input"
            if position < first_output
            else "output"
            if position < first_scratch
            else "scratch"
        )
        ref = make_ref(names[position], variable.aval, role)
        if role == "prefetch":
            ref.table = prefetch[position]
            if ref.table is not None:
                ref.table = np.array(ref.table)
                ref.table_known = np.ones(ref.table.shape, bool)
        elif role == "input" and position - first_input in smem:
            ref.table = np.array(smem[position - first_input])
            ref.table_known = np.ones(ref.table.shape, bool)
        elif ref.space == "smem" and role == "scratch" and all(ref.shape):
            ref.follow_contents()
        refs.append(ref)
    return refs
