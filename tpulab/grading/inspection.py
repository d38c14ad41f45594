"""What the judge wants to know of a kernel, as plain data. Runs in the learner's process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# shape changes, casts and containers: they may stand outside the kernel on whole arrays
_FREE_OUTSIDE = frozenset(
    {
        "bitcast_convert_type",
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "copy_p",
        "device_put",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "iota",
        "optimization_barrier",
        "pad",
        "reshape",
        "rev",
        "sharding_constraint",
        "slice",
        "split",
        "squeeze",
        "stop_gradient",
        "transpose",
    }
)
_KERNELS = frozenset({"pallas_call", "core_map", "mpmd_map"})
_CALLBACKS = ("callback", "outside_call", "infeed", "outfeed")
# arithmetic on fewer elements than this is an index or a size, not the answer
_SMALL = 512
# a program that runs on a few inputs is compiled longer than it runs: without LLVM's expensive
# passes, compiling takes about a third less
_RUN_A_FEW_TIMES = {"xla_llvm_disable_expensive_passes": True}

# what the ladder reads of a call and of its products
_CALL_FIGURES = (
    "times",
    "hbm_bytes",
    "hbm_bytes_padded",
    "unique_bytes",
    "dma_read_bytes",
    "dma_written_bytes",
    "remote_bytes",
    "vpu_flops",
    "transcendentals",
)
_MATMUL_FIELDS = (
    "m",
    "k",
    "n",
    "batch",
    "count",
    "lhs_dtype",
    "rhs_dtype",
    "out_dtype",
    "dtype",
    "flops",
    "precision",
)


def inspect_kernel(
    function: Callable[..., Any], specs: Sequence[Any], chips: Sequence[str]
) -> dict[str, Any]:
    """Trace a function and describe its kernels.

    Args:
        function: the answer.
        specs: ``jax.ShapeDtypeStruct`` of the arguments.
        chips: names of the chips whose rules are checked.
    """
    from tpulab.grading import index_maps
    from tpulab.hardware import get_chip
    from tpulab.kernel import trace
    from tpulab.kernel.legality import illegalities

    kernel = trace(function, *specs)
    broken, warnings = [], []
    range_slip = index_maps.out_of_range(kernel) or {}
    for name in chips:
        for found in illegalities(kernel, get_chip(name), warnings=True):
            if found.severity != "error":
                warnings.append(
                    {"chip": name, "rule": found.rule, "what": found.what, "hint": found.hint}
                )
                continue
            if found.rule == "parallel-carry" and any(
                found.what.startswith(f"{buffer} ") for buffer in _uncleared(kernel)
            ):
                # never cleared at all: running it names that mistake
                continue
            broken.append(
                {
                    "chip": name,
                    "rule": str(found.rule),
                    "what": str(found.what),
                    "why": str(found.why or ""),
                    "hint": str(found.hint or ""),
                    "where": str(found.where or ""),
                }
                | (range_slip if found.rule == "block-out-of-range" else {})
            )
    outside, interpreted, depends = [], False, True
    if kernel.jaxpr is not None:
        outside = [
            {"primitive": name, "shape": shape, "where": where}
            for name, shape, where in _work_outside(kernel.jaxpr)
        ][:8]
        interpreted = any(_interpreted(kernel.jaxpr))
        depends = _results_come_from_kernels(kernel.jaxpr)
    return {
        "name": kernel.name,
        "calls": [_describe_call(call) for call in kernel.calls],
        "hbm_bytes": int(kernel.hbm_bytes),
        "unique_bytes": int(kernel.unique_bytes),
        "notes": [str(note)[:300] for note in kernel.notes[:4]],
        "results": [[list(item.shape), item.dtype] for item in kernel.results],
        "mxu_flops": int(kernel.mxu_flops),
        "vpu_flops": int(kernel.vpu_flops),
        "illegalities": broken[:16],
        "warnings": warnings[:16],
        "outside": outside,
        "interpreted": interpreted,
        "depends": depends,
    }


def _describe_call(call: Any) -> dict[str, Any]:
    return {
        "name": call.name,
        "grid": list(call.grid),
        "steps": int(call.steps),
        "where": call.where,
        "vmem_bytes": int(call.vmem_bytes),
        "vmem_limit_bytes": call.vmem_limit_bytes and int(call.vmem_limit_bytes),
        "operands": [
            {
                "name": operand.name,
                "shape": list(operand.shape),
                "dtype": operand.dtype,
                "block": list(operand.block_sizes),
                "space": operand.memory_space,
                "is_input": bool(operand.is_input),
                "is_pipelined": bool(operand.is_pipelined),
                "array_bytes": int(operand.array_bytes),
                "moved_bytes": int(operand.moved_bytes),
                "least_bytes": int(operand.least_bytes),
                "buffer_count": int(operand.buffer_count),
                "block_bytes_padded": int(operand.block_bytes_padded),
                "where": operand.where,
            }
            for operand in call.operands
        ],
        "scratch": [
            {"shape": list(item.shape), "dtype": item.dtype, "space": item.memory_space}
            for item in call.scratch
        ],
        "untouched": list(call.facts.untouched_outputs),
        "uncleared": _uncleared_in(call),
        "uncleared_where": next(
            (
                where
                for name, _, _, where in call.facts.carried
                if where and name in _uncleared_in(call)
            ),
            None,
        ),
        "matmuls": [
            {name: getattr(item, name) for name in _MATMUL_FIELDS} for item in call.matmuls[:64]
        ],
        "scalar_prefetch": len(call.scalar_prefetch),
    } | {name: int(getattr(call, name)) for name in _CALL_FIGURES}


def _uncleared_in(call: Any) -> list[str]:
    """Buffers read in the very first step, before anything was written to them."""
    return [name for name, _, steps, _ in call.facts.carried if len(steps) and steps[0]]


def _uncleared(kernel: Any) -> list[str]:
    return [name for call in kernel.calls for name in _uncleared_in(call)]


def _walk(jaxpr: Any) -> Iterator[Any]:
    """Equations outside kernels, nested ones included."""
    from tpulab.kernel import jax_internals

    for equation in jax_internals.open_jaxpr(jaxpr).eqns:
        yield equation
        if equation.primitive.name in _KERNELS:
            continue
        for _, _, inner in jax_internals.inner_jaxprs(equation.params):
            yield from _walk(inner)


def _work_outside(jaxpr: Any) -> list[tuple[str, list[int], str | None]]:
    """(primitive, shape, place) of work on whole arrays that no kernel does."""
    from tpulab.kernel import jax_internals

    found: list[tuple[str, list[int], str | None]] = []
    for equation in _walk(jaxpr):
        name = equation.primitive.name
        if _repeats(equation):
            shape = list(equation.outvars[0].aval.shape)
            found.append(("repeat", shape, jax_internals.equation_location(equation)))
            continue
        if name in _KERNELS or name in _FREE_OUTSIDE:
            continue
        if any(word in name for word in _CALLBACKS):
            found.append((name, [], jax_internals.equation_location(equation)))
            continue
        if any(True for _ in jax_internals.inner_jaxprs(equation.params)) and name not in (
            "reduce",
            "scatter-add",
            "custom_jvp_call",
        ):
            continue
        sizes = [
            (math.prod(shape), shape)
            for variable in (*equation.invars, *equation.outvars)
            if (shape := list(getattr(getattr(variable, "aval", None), "shape", ()) or ()))
        ]
        nothing: tuple[int, list[int]] = (0, [])
        largest = max(sizes, default=nothing)
        if largest[0] > _SMALL:
            found.append((name, largest[1], jax_internals.equation_location(equation)))
    return found


def _repeats(equation: Any) -> bool:
    """Whether an array is written out several times over: more bytes, and nothing new in them."""
    name = equation.primitive.name
    if name not in ("broadcast_in_dim", "concatenate", "gather", "tile"):
        return False
    sizes = [math.prod(getattr(item.aval, "shape", ())) for item in equation.invars]
    if not _SMALL < max(sizes) <= math.prod(equation.outvars[0].aval.shape) // 2:
        return False
    if name == "concatenate":
        return len({id(item) for item in equation.invars}) < len(sizes)
    return True


def _interpreted(jaxpr: Any) -> Iterator[bool]:
    for equation in _walk(jaxpr):
        if equation.primitive.name in _KERNELS:
            yield bool(equation.params.get("interpret"))


def _results_come_from_kernels(jaxpr: Any) -> bool:
    """Whether every result depends on the output of some kernel."""
    return all(_from_kernels(jaxpr, ()))


def _from_kernels(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """For each result whether it depends on a kernel's output, or on an input that does."""
    from tpulab.kernel import jax_internals

    inner = jax_internals.open_jaxpr(jaxpr)
    tainted = {id(variable) for variable, dirty in zip(inner.invars, inputs) if dirty}
    for equation in inner.eqns:
        dirty = [id(variable) in tainted for variable in equation.invars]
        subs = [sub for _, _, sub in jax_internals.inner_jaxprs(equation.params)]
        body = jax_internals.open_jaxpr(subs[0]) if len(subs) == 1 else None
        if equation.primitive.name == "shard_map" and body is not None:
            # the whole function of an exercise for several devices is in there
            marks = _from_kernels(body, dirty)
        else:
            has_kernel = equation.primitive.name in _KERNELS or any(
                nested.primitive.name in _KERNELS for sub in subs for nested in _walk(sub)
            )
            marks = [has_kernel or any(dirty)] * len(equation.outvars)
        tainted.update(id(v) for v, mark in zip(equation.outvars, marks) if mark)
    return [id(variable) in tainted for variable in inner.outvars]


def fast_function(function: Callable[..., Any], arrays: Sequence[Any]) -> Callable[..., Any]:
    """The function with its kernels interpreted, compiled once for these shapes."""
    import jax

    from tpulab.kernel import jax_internals
    from tpulab.kernel.tracing import stage

    specs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    jaxpr, _, _ = stage(function, specs, "v5e")
    rewritten = jax_internals.replace_interpret(jaxpr, True)
    compiled: Callable[..., Any] = (
        jax.jit(jax_internals.as_function(rewritten)).lower(*specs).compile(_RUN_A_FEW_TIMES)
    )
    return compiled


def exported_function(function: Callable[..., Any], specs: Sequence[Any]) -> bytes | None:
    """The function with its kernels interpreted, as the bytes of a program.

    Returns:
        None when it calls back into Python, as printing does: it can run in this process only.
    """
    import jax
    import jax.export

    from tpulab.kernel import jax_internals
    from tpulab.kernel.tracing import stage

    jaxpr, _, _ = stage(function, specs, "v5e")
    rewritten = jax_internals.as_function(jax_internals.replace_interpret(jaxpr, True))
    try:
        exported = jax.export.export(jax.jit(rewritten), platforms=["cpu"])(*specs)
        return bytes(exported.serialize())
    except (NotImplementedError, ValueError):
        return None


def imported_function(data: bytes, arrays: Sequence[Any]) -> Callable[..., Any]:
    """The program again, compiled for arrays of these shapes."""
    import jax
    import jax.export

    specs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    exported = jax.export.deserialize(bytearray(data))
    compiled: Callable[..., Any] = jax.jit(exported.call).lower(*specs).compile(_RUN_A_FEW_TIMES)
    return compiled


def faithful_run(function: Callable[..., Any], arrays: Sequence[Any]) -> tuple[Any, dict[str, Any]]:
    """Outputs of the faithful interpreter (None when it stopped) and its report as plain data."""
    from tpulab.kernel import run

    outputs, report = run(function, *arrays, mode="faithful")
    # what makes the numbers wrong, whatever the kernel computes
    explains = (
        report.error is not None
        or report.races
        or report.unwaited
        or report.explained
        or report.deadlock is not None
    )
    places = [one.where for one in report.unwaited]
    places += [report.faults[0].where] if report.explained else []
    places += [one.where for one in report.unmet]
    where = report.where or next(iter(places), None)
    return outputs, {
        "explains": bool(explains),
        "hangs": report.deadlock is not None,
        "devices": report.devices,
        "sent": sorted({(one.source, one.target) for one in report.transfers}),
        "messages": [message.replace(f" ({where})", "")[:600] for message in report.messages[:8]],
        "symptom": _symptom(report),
        "hint": report.hint,
        "where": where,
        "unsupported": report.unsupported,
        "races": len(report.races),
        "uninitialised": len(report.uninitialised),
    }


def _symptom(report: Any) -> str:
    """The first finding without what explains it, "" when it explains nothing."""
    if report.deadlock or report.unwaited:
        return ""
    if report.explained:
        return "a race: what the result is depends on which device is faster"
    if report.races:
        race = report.races[0]
        return str(type(race)(race.buffer, race.first, race.first_where, race.second,
                              race.second_where))  # fmt: skip
    return ""


def transfers_of(function: Callable[..., Any], specs: Sequence[Any]) -> dict[str, Any]:
    """The transfers between devices as plain data, from a run on zeros without looking for races.

    Returns:
        ``transfers``: [round, source, target, bytes] of each.
    """
    import numpy as np

    from tpulab.kernel.running import transfers_between

    found = transfers_between(function, *(np.zeros(spec.shape, spec.dtype) for spec in specs))
    return {
        "transfers": [[one.round, one.source, one.target, one.size_bytes] for one in found],
    }
