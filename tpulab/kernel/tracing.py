"""``trace``: from a function and example arguments to a ``Kernel``."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tpulab.errors import TpulabError, UsageError
from tpulab.kernel import jax_internals
from tpulab.kernel.arguments import parse_argument
from tpulab.kernel.counting import Counter, facts_of, matmuls_of
from tpulab.kernel.instructions import Programs
from tpulab.kernel.lazy import Lazy, resolve
from tpulab.kernel.model import Kernel, Operand, PallasCall, ShapeDtype, array_bytes
from tpulab.kernel.origins import least_traffic
from tpulab.kernel.outer import OuterWalk
from tpulab.kernel.refs import Ref, make_ref, scratch_of
from tpulab.kernel.traffic import make_operand, whole_refs

#: Grid steps beyond which a call is not described: the arrays of what moves would fill the memory.
MOST_STEPS = 1 << 22
#: Elements of an input in SMEM beyond which its values are not looked at.
_MOST_SMEM_ELEMENTS = 1 << 20


class TraceError(TpulabError):
    """The function can't be traced: it isn't one, has the wrong arity, or raises."""


class NoPallasCall(TraceError):
    """The function traced well but contains no ``pallas_call``."""


def trace(function: Callable[..., Any], *arguments: Any, chip: str = "v5e") -> Kernel:
    """Describe every ``pallas_call`` in a function.

    Args:
        function: takes ``arguments``, returns arrays; jit, scan, cond, shard_map and custom_vjp
            around the calls are fine. It need not and should not mention interpret mode.
        *arguments: arrays, ``jax.ShapeDtypeStruct`` or text such as ``"bf16[4096,4096]"``, nested
            in containers or not. Scalar-prefetch values are known only from concrete arrays.
        chip: name of the chip to trace for ("v5e", "v6e", ...).

    Returns:
        The ``Kernel``, with the calls in program order.

    Raises:
        TraceError: not a function, wrong number of arguments, or the function raises; ``where``
            points at the line in the caller's file.
        NoPallasCall: there is no ``pallas_call`` in it.
    """
    closed, _, leaves = stage(function, arguments, chip)
    where = jax_internals.source_of(function)
    name = function_name(function)
    alive = jax_internals.without_dead_code(closed)
    walk = OuterWalk(alive, leaves)
    if walk.calls or walk.other_kernels:
        closed = alive
    else:
        # a function that throws all its kernels' results away is described as it was written
        walk = OuterWalk(closed, leaves)
    if not walk.calls and walk.other_kernels:
        raise NoPallasCall(
            f"{name} contains no kernel for the TensorCore",
            why="kernels for the SparseCore are not described yet",
            where=where,
        )
    if not walk.calls:
        raise NoPallasCall(
            f"{name} contains no pallas_call",
            why="there is no kernel in it, only XLA operations",
            hint="do the work in a kernel and call it with pl.pallas_call(kernel, ...)(...)",
            where=where,
        )
    calls = tuple(
        describe_call(found.structure, index, found.operands, found.times, tuple(found.notes))
        for index, found in enumerate(walk.calls)
    )
    if jax.config.jax_enable_x64:
        walk.notes["traced with jax_enable_x64 on; a TPU core is a 32-bit machine"] = None
    notes = dict.fromkeys([*walk.notes, *(note for call in calls for note in call.notes)])
    return Kernel(
        name=name,
        chip=chip,
        calls=calls,
        arguments=tuple(_shape_dtype(leaf) for leaf in leaves),
        results=tuple(_aval_shape_dtype(aval) for aval in closed.out_avals),
        where=where,
        unique_bytes=least_traffic(walk, calls, leaves),
        notes=tuple(notes),
        jaxpr=closed,
    )


def function_name(function: Any) -> str:
    """A readable name for a callable."""
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def normalise_arguments(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Text arguments parsed, in containers too; everything else as it is."""
    return tuple(
        jax.tree_util.tree_map(
            lambda leaf: parse_argument(leaf) if isinstance(leaf, str) else leaf, argument
        )
        for argument in arguments
    )


def abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of one argument leaf.

    Raises:
        UsageError: it is not an array, a number or a ShapeDtypeStruct.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    try:
        aval = jax.typeof(leaf) if isinstance(leaf, jax.Array) else np.asarray(leaf)
        if aval.dtype == object:
            raise TypeError("object dtype")
        dtype = jax.dtypes.canonicalize_dtype(aval.dtype)
        # shard_map over explicit mesh axes looks at how its arguments are laid out
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, jax.sharding.NamedSharding):
            return jax.ShapeDtypeStruct(aval.shape, dtype, sharding=sharding)
        return jax.ShapeDtypeStruct(aval.shape, dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"an argument is {_an(type(leaf).__name__)}, not an array",
            hint="pass jax or numpy arrays, jax.ShapeDtypeStruct, or text like 'bf16[4096,4096]'",
        ) from error


def stage(
    function: Callable[..., Any], arguments: Sequence[Any], chip: str
) -> tuple[Any, Any, list[Any]]:
    """(closed jaxpr, output structure, flat argument leaves) of a function traced for ``chip``."""
    if not callable(function):
        raise TraceError(
            f"this is {_an(type(function).__name__)}, not a function",
            hint="pass the function itself, without calling it: trace(f, x), not trace(f(x))",
        )
    arguments = normalise_arguments(arguments)
    _check_arity(function, arguments)
    leaves, structure = jax.tree_util.tree_flatten(
        arguments, is_leaf=lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    )
    shapes = structure.unflatten([abstract(leaf) for leaf in leaves])
    try:
        closed, out_tree = _stage_for(function, shapes, chip)
    except TpulabError:
        raise
    except Exception as error:
        raise explain_trace_failure(function, error) from error
    return closed, out_tree, leaves


def _stage_for(function: Callable[..., Any], shapes: tuple[Any, ...], chip: str) -> tuple[Any, Any]:
    try:
        with jax_internals.tracing_for(chip):
            return jax_internals.make_jaxpr(function, shapes)
    except Exception as error:
        # a mesh of the function's own (shard_map) does not go together with ours
        if "mesh" not in str(error).lower() and "Unsupported TPU" not in str(error):
            raise
    # here nothing keeps JAX from giving the trace that it made of a jitted function before
    getattr(function, "clear_cache", lambda: None)()
    with jax_internals.tracing_for(chip, patch_registry=True):
        return jax_internals.make_jaxpr(function, shapes)


def _an(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


def _check_arity(function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted = ", ".join(str(p) for p in signature.parameters.values())
        raise TraceError(
            f"{function_name(function)} takes ({wanted}) and was given {len(arguments)} "
            f"argument{'s' if len(arguments) != 1 else ''}: {error}",
            hint="give one argument per parameter, in order",
            where=jax_internals.source_of(function),
        ) from error


def explain_trace_failure(function: Callable[..., Any], error: Exception) -> TraceError:
    """A sentence for an exception that a function raised while it was traced."""
    name = function_name(function)
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    why, hint = None, None
    if jax.config.jax_enable_x64:
        why = "jax_enable_x64 is on, and a TPU core is a 32-bit machine"
        hint = "trace kernels with jax.enable_x64(False) and give dtypes explicitly"
    elif isinstance(error, jax.errors.ConcretizationTypeError):
        why = "the value is not known while the function is traced"
        hint = "make it a static Python value, or use jax.lax.cond, pl.when or fori_loop on it"
    return TraceError(
        f"{name} raised {type(error).__name__}: {first}",
        why=why,
        hint=hint,
        where=jax_internals.user_line(error) or jax_internals.source_of(function),
    )


def _shape_dtype(leaf: Any) -> ShapeDtype:
    shape = abstract(leaf)
    return ShapeDtype(tuple(shape.shape), jax_internals.dtype_of(shape))


def _aval_shape_dtype(aval: Any) -> ShapeDtype:
    return ShapeDtype(jax_internals.shape_of(aval), jax_internals.dtype_of(aval))


def describe_call(
    structure: jax_internals.CallStructure,
    index: int,
    operands: Sequence[Lazy],
    times: int,
    outer_notes: tuple[str, ...] = (),
) -> PallasCall:
    """Describe one kernel call.

    Args:
        structure: of the call. operands: of its equation; called, they give their value, or None
            when it is not known.
        times: how often the call runs.
    """
    notes = dict.fromkeys(outer_notes)
    # together, so that what they have in common is compiled once
    resolve(operands[: structure.dynamic_bounds + structure.num_index_operands])
    grid = _evaluate_grid(structure, operands, notes)
    if math.prod(grid) > MOST_STEPS:
        raise TraceError(
            f"{structure.name} has a grid of {math.prod(grid):,} steps, {grid}",
            why=f"more than {MOST_STEPS:,} are not described; each step costs the chip a fixed "
            "time of its own",
            hint="use larger blocks, or put a loop inside the kernel",
            where=structure.where,
        )
    dynamic = structure.dynamic_bounds
    prefetch: list[np.ndarray | None] = []
    for position in range(structure.num_index_operands):
        value = operands[dynamic + position]()
        if value is None:
            notes[
                f"the value of scalar-prefetch operand {position} is not known; "
                "pass a concrete array to count what depends on it exactly"
            ] = None
        prefetch.append(None if value is None else np.asarray(value))
    prefetched = tuple(prefetch)
    coordinates = np.indices(grid).reshape(len(grid), -1).T if grid else np.zeros((1, 0), np.int64)
    names = _parameter_names(structure)
    aliases = dict(structure.aliases)
    inputs: list[Operand] = []
    outputs: list[Operand] = []
    for is_input, mappings, into in (
        (True, structure.inputs, inputs),
        (False, structure.outputs, outputs),
    ):
        base = structure.num_index_operands + (0 if is_input else len(structure.inputs))
        for position, mapping in enumerate(mappings):
            alias = None
            if is_input:
                alias = aliases.get(position + structure.num_index_operands + dynamic)
            else:
                alias = next(
                    (
                        i - structure.num_index_operands - dynamic
                        for i, o in structure.aliases
                        if o == position
                    ),
                    None,
                )
            operand, known = make_operand(
                mapping,
                names[base + position],
                position,
                is_input,
                coordinates,
                grid,
                prefetched,
                structure.index_avals,
                alias,
            )
            if not known:
                notes[
                    f"the index map of {operand.name} depends on unknown data; "
                    "every step that may move a block counts as moving one"
                ] = None
            into.append(operand)
    smem = _smem_values(structure, operands)
    counter, refs = _count(structure, coordinates, grid, names, prefetched, smem)
    notes.update(counter.notes)
    tally = counter.tally
    first = structure.num_index_operands
    inputs = [_with_copies(o, refs[first + position]) for position, o in enumerate(inputs)]
    first += len(inputs)
    guesses = [ref.name for ref in refs if ref.places_are_guessed]
    if guesses:
        notes[
            f"the kernel's own copies of {' and '.join(guesses)} count as copies of different "
            "parts in the bound; which parts they are was not followed"
        ] = None
    outputs = [_with_copies(o, refs[first + position]) for position, o in enumerate(outputs)]
    scratch = tuple(
        scratch_of(make_ref(names[position - len(structure.scratch_avals)], aval, "scratch"))
        for position, aval in enumerate(structure.scratch_avals)
    )
    semantics = _semantics(structure, len(grid))
    return PallasCall(
        name=structure.name,
        index=index,
        grid=grid,
        dimension_semantics=semantics,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        scratch=scratch + tuple(counter.scoped.values()),
        scalar_prefetch=prefetched,
        scalar_prefetch_shapes=tuple(_aval_shape_dtype(aval) for aval in structure.index_avals),
        vmem_limit_bytes=structure.vmem_limit_bytes,
        times=times,
        where=structure.where,
        mxu_flops=int(tally.mxu.sum()),
        vpu_flops=int(tally.vpu.sum()),
        transcendentals=int(tally.transcendental.sum()),
        mxu_flops_at_step=tally.mxu,
        vpu_flops_at_step=tally.vpu,
        transcendentals_at_step=tally.transcendental,
        matmuls=matmuls_of(tally),
        dma_read_bytes=tally.read_bytes,
        dma_written_bytes=tally.written_bytes,
        dma_count=tally.dma_count,
        dma_wait_count=tally.wait_count,
        dma_started_bytes=tally.started_bytes,
        dma_waited_bytes=tally.waited_bytes,
        dma_counts_exact=tally.dma_exact,
        remote_bytes=tally.remote_bytes,
        notes=tuple(notes),
        facts=facts_of(counter, refs),
        collective_id=structure.collective_id,
        barrier_where=structure.barrier_where,
    )


def _with_copies(operand: Operand, ref: Ref) -> Operand:
    """The operand with what the kernel's own copies move of it."""
    if operand.is_pipelined:
        return operand
    touched = [ref.copied_from, ref.copied_to]
    count = sum(each.elements for each in touched if each is not None)
    return dataclasses.replace(operand, least_bytes=array_bytes((count,), operand.dtype))


def _smem_values(
    structure: jax_internals.CallStructure, operands: Sequence[Lazy]
) -> dict[int, np.ndarray]:
    """Known values of inputs that lie in SMEM as a whole, by position among the inputs."""
    first = structure.dynamic_bounds + structure.num_index_operands
    found: dict[int, np.ndarray] = {}
    for position, mapping in enumerate(structure.inputs):
        small = math.prod(mapping.array_shape) <= _MOST_SMEM_ELEMENTS
        if mapping.memory_space == "smem" and mapping.trivial and small:
            value = operands[first + position]()
            if value is not None:
                found[position] = np.asarray(value)
    return found


def _semantics(structure: jax_internals.CallStructure, rank: int) -> tuple[str, ...]:
    """One name per grid axis; the author's names don't count the axes that vmap added."""
    given = structure.dimension_semantics
    axes = [axis for axis in range(rank) if axis not in structure.vmapped_dims]
    # the lowering marks vmapped axes parallel
    semantics = ["parallel"] * rank
    for position, axis in enumerate(axes):
        semantics[axis] = given[position] if given and position < len(given) else "arbitrary"
    return tuple(semantics)


def _evaluate_grid(
    structure: jax_internals.CallStructure,
    operands: Sequence[Lazy],
    notes: dict[str, None],
) -> tuple[int, ...]:
    bounds: list[int] = []
    dynamic = iter(range(structure.dynamic_bounds))
    for axis, bound in enumerate(structure.grid):
        if bound is not None:
            bounds.append(bound)
            continue
        value = operands[next(dynamic)]()
        if value is None:
            notes[
                f"grid dimension {axis} depends on unknown data and counts as 1; "
                "pass concrete arrays to count it exactly"
            ] = None
            bounds.append(1)
        else:
            bounds.append(int(np.asarray(value)))
    return tuple(bounds)


def _parameter_names(structure: jax_internals.CallStructure) -> list[str]:
    given = jax_internals.argument_names(structure.kernel)
    count = len(jax_internals.open_jaxpr(structure.kernel).invars)
    names = list(given) if len(given) == count else [""] * count
    inputs, outputs = structure.num_index_operands, len(structure.inputs)
    for position in range(count):
        # names like args[3] come from a kernel that takes its Refs as *args
        if names[position] and "[" not in names[position]:
            continue
        if position < inputs:
            names[position] = f"prefetch{position}"
        elif position < inputs + outputs:
            names[position] = f"input{position - inputs}"
        elif position < inputs + outputs + len(structure.outputs):
            names[position] = f"output{position - inputs - outputs}"
        else:
            names[position] = f"scratch{position - inputs - outputs - len(structure.outputs)}"
    return names


def _count(
    structure: jax_internals.CallStructure,
    coordinates: np.ndarray,
    grid: tuple[int, ...],
    names: Sequence[str],
    prefetch: tuple[np.ndarray | None, ...],
    smem: Mapping[int, np.ndarray],
) -> tuple[Counter, list[Any]]:
    def fresh(values: tuple[np.ndarray | None, ...]) -> list[Ref]:
        return whole_refs(structure, tuple(names), values, smem)

    programs = Programs()
    refs = fresh(prefetch)
    rest = structure.vmapped_dims, programs, structure.axis_names
    counter = Counter(coordinates, grid, *rest)
    counter.count(structure.kernel, refs)
    if any(
        ref.role == "input" and ref.table is not None and ref.written is not None for ref in refs
    ):
        return _count(structure, coordinates, grid, names, prefetch, {})
    # prefetched values that the kernel overwrites hold for its first step only
    overwritten = any(ref.role == "prefetch" and ref.written is not None for ref in refs)
    many = coordinates.shape[0] > 1
    if not many or not (overwritten or (counter.unresolved and counter.smem_written)):
        return counter, refs
    # what the kernel keeps in SMEM from step to step decides what it does: follow it in order
    again_refs = fresh(prefetch)
    again = Counter(coordinates, grid, *rest)
    finished = again.count_sequentially(structure.kernel, again_refs)
    if finished and (overwritten or len(again.notes) <= len(counter.notes)):
        return again, again_refs
    if overwritten:
        kept = tuple(
            None if ref.written is not None else value
            for ref, value in zip(refs, prefetch, strict=False)
        )
        refs = fresh(kept)
        counter = Counter(coordinates, grid, *rest)
        counter.count(structure.kernel, refs)
    return counter, refs
