"""What a traced function must move between HBM and the cores, from where its calls' arrays lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tpulab.kernel import jax_internals
from tpulab.kernel.lazy import Lazy, Origin
from tpulab.kernel.model import PallasCall, array_bytes

if TYPE_CHECKING:
    from tpulab.kernel.outer import OuterWalk

#: Operations of XLA that need each byte they give from their operand, and may be fused away.
_MOVES = frozenset({
    "bitcast_convert_type", "convert_element_type", "copy", "expand_dims", "reshape", "rev",
    "sharding_constraint", "squeeze", "transpose",
})  # fmt: skip


def origin_of(value: Lazy) -> Origin | None:
    """Where a value comes from, through operations that only move or convert it."""
    for _ in range(64):
        if value.origin is not None:
            return value.origin
        node = value.node
        if node is None or not node.operands:
            return None
        # without an equation it is a device's part of an array
        if node.equation is not None and node.equation.primitive.name not in _MOVES:
            return None
        value = node.operands[0]
    return None


def least_traffic(walk: OuterWalk, calls: Sequence[PallasCall], leaves: Sequence[Any]) -> int:
    """Bytes that must pass between HBM and the cores at least once in one run of the function.

    Arguments lie in HBM before, results after; each counts as far as the calls use or make it, and
    once however many do. Results that XLA makes from what calls return count whole. Arrays between
    calls may stay in VMEM and count nothing.
    """
    read: dict[int, int] = {}
    for found, call in zip(walk.calls, calls, strict=True):
        dynamic = found.structure.dynamic_bounds
        prefetched = len(call.scalar_prefetch_shapes)
        used = [0] * dynamic + [shape.bytes for shape in call.scalar_prefetch_shapes]
        used += [operand.least_bytes for operand in call.inputs]
        assert len(used) == dynamic + prefetched + len(call.inputs)
        for value, amount in zip(found.operands, used, strict=False):
            origin = origin_of(value)
            if origin is not None and origin.kind == "argument" and found.times:
                whole = _bytes_of(leaves[origin.index])
                amount = min(whole, amount * origin.slices)
                read[origin.index] = max(read.get(origin.index, 0), amount)
    written: dict[tuple[int, int], int] = {}
    made_by_xla = 0
    for value, aval in zip(walk.results, walk.result_avals, strict=True):
        origin = origin_of(value)
        whole = array_bytes(jax_internals.shape_of(aval), jax_internals.dtype_of(aval))
        if origin is None:
            # XLA makes it, for example by cutting a kernel's result to size: it lies in HBM after
            made_by_xla += whole
            continue
        if origin.kind != "result" or not calls[origin.index].times:
            continue
        made = calls[origin.index].outputs[origin.position].least_bytes * origin.slices
        key = origin.index, origin.position
        written[key] = max(written.get(key, 0), min(whole, made))
    return sum(read.values()) + sum(written.values()) + made_by_xla


def _bytes_of(leaf: Any) -> int:
    shape = tuple(getattr(leaf, "shape", ()))
    dtype = getattr(leaf, "dtype", None)
    return array_bytes(shape, str(dtype)) if dtype is not None else 4 * math.prod(shape)
