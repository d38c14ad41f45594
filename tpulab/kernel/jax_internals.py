"""The one place that touches JAX structures which are not public API.

(But for those of its TPU interpreter while that runs, see ``interpreter_internals``.)

Checked with jax 0.10.2 and 0.12.0. Everything else in this room works on what these functions
return, so that a new JAX needs changes here only. Differences handled so far: 0.12 has one
``Jaxpr`` class (no ``ClosedJaxpr``), ``scan`` describes its operands by a flat tree and not by
counts, and the TPU interpreter raises on a race unless told to warn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

#: Primitives that run a Pallas kernel and take an ``interpret`` parameter.
KERNEL_PRIMITIVES = frozenset({"pallas_call", "core_map", "mpmd_map"})

#: ``device_kind`` strings by chip name, as in the topologies of libtpu; cores are per jax device.
_DEVICES = {
    "v2": ("TPU v2", 1),
    "v3": ("TPU v3", 1),
    "v4": ("TPU v4", 1),
    "v5e": ("TPU v5 lite", 1),
    "v5p": ("TPU v5", 2),
    "v6e": ("TPU v6 lite", 1),
    "7x": ("TPU7x", 1),
    "tpu7x": ("TPU7x", 1),
}

Literal = jex_core.Literal
_REGISTRY_LOCK = threading.RLock()
_MESHES = itertools.count()


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


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """(number of constants, number of carried values) of a ``scan`` equation."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()
    return len(constants), len(carry)


def while_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """(constants of the condition, constants of the body) of a ``while`` equation."""
    return params["cond_nconsts"], params["body_nconsts"]


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


def _location(traceback: Any) -> str | None:
    if traceback is None:
        return None
    from jax._src import source_info_util

    frame = source_info_util.user_frame(traceback)
    return f"{frame.file_name}:{frame.start_line}" if frame else None


def equation_location(equation: Any) -> str | None:
    """file:line in the user's code that made an equation, None when it is not known."""
    try:
        return _location(equation.source_info.traceback)
    except Exception:  # noqa: BLE001 - a place is a courtesy, whatever goes wrong with it
        return None


def function_and_location(jaxpr: Any) -> tuple[str, str | None]:
    """Name and file:line of the function that a jaxpr was traced from."""
    info = getattr(open_jaxpr(jaxpr), "debug_info", None)
    text = getattr(info, "func_src_info", None) or "?"
    name, _, place = text.partition(" at ")
    return name, place or None


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """Names of the function's flattened arguments, () when not known."""
    info = getattr(open_jaxpr(jaxpr), "debug_info", None)
    return tuple(getattr(info, "arg_names", None) or ())


def same_source(place: str | None) -> bool:
    """True when ``place`` is in the user's code and not inside JAX itself."""
    return place is not None and f"{os.sep}jax{os.sep}_src{os.sep}" not in place


@contextlib.contextmanager
def tracing_for(chip: str, *, patch_registry: bool = False) -> Iterator[None]:
    """A context in which JAX traces for ``chip`` though there is none here.

    Rank-1 blocks, ``emit_pipeline`` and ``get_tpu_info`` ask for the device kind. An abstract mesh
    that names it answers; where the function brings a mesh of its own (``shard_map``), the two
    would clash, and ``patch_registry`` answers for the CPU device kind instead.
    """
    device_kind, cores = _DEVICES.get(chip, _DEVICES["v5e"])
    if not patch_registry:
        from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

        device = AbstractDevice(device_kind=device_kind, num_cores=cores, platform="tpu")
        # automatic axes leave no trace in the types of the values; JAX keeps the traces of jitted
        # functions by function and mesh, so a mesh that never was makes it look at globals again
        name = f"tpulab{next(_MESHES)}"
        mesh = AbstractMesh((1,), (name,), (AxisType.Auto,), abstract_device=device)
        with use_abstract_mesh(mesh):
            yield
        return
    from jax._src.pallas.mosaic import tpu_info

    version = tpu_info.chip_version_from_device_kind(device_kind)
    with _REGISTRY_LOCK:
        kinds = {device.device_kind for device in jax.devices()}
        saved = {kind: tpu_info.registry.get(kind) for kind in kinds}
        for kind in kinds:
            tpu_info.registry[kind] = lambda: tpu_info.get_tpu_info_for_chip(version, cores)
        _forget_tpu_info(tpu_info)
        try:
            yield
        finally:
            for kind, entry in saved.items():
                if entry is None:
                    tpu_info.registry.pop(kind, None)
                else:
                    tpu_info.registry[kind] = entry
            _forget_tpu_info(tpu_info)


def _forget_tpu_info(tpu_info: Any) -> None:
    clear = getattr(tpu_info.get_tpu_info, "cache_clear", None)
    if clear is not None:
        clear()


def settle_platform() -> None:
    """Keep JAX from loading the TPU compiler into this process when there is no accelerator.

    Left alone, the first use of a backend would load libtpu, print five lines and take its lock.
    Nothing is changed when a platform was chosen already, or where a TPU or a GPU is attached.
    """
    attached = any(
        next(Path("/dev").glob(pattern), None)
        for pattern in ("accel*", "vfio/[0-9]*", "nvidia[0-9]*")
    )
    if attached or os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms:
        return
    with contextlib.suppress(Exception):
        jax.config.update("jax_platforms", "cpu")


def backend_started() -> bool:
    """Whether JAX's backends run already, after which their number of devices is fixed."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def map_on_mesh(function: Callable[..., Any], devices: int, axis: str) -> Callable[..., Any]:
    """``shard_map`` of a function over one mesh axis, every argument and result split by rows.

    The mesh is of host devices where there are enough, else an abstract one, which is good for
    tracing and lowering. What varies over the axis is not checked: kernels don't say it.
    """
    from jax.sharding import AbstractMesh, AxisType, PartitionSpec

    hosts = jax.devices("cpu")
    automatic = (AxisType.Auto,)
    mesh: Any
    if len(hosts) < devices:
        mesh = AbstractMesh((devices,), (axis,), axis_types=automatic)
    else:
        mesh = jax.make_mesh((devices,), (axis,), axis_types=automatic, devices=hosts[:devices])
    rows = PartitionSpec(axis)
    mapped: Callable[..., Any] = jax.shard_map(
        function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False
    )
    return mapped


def make_jaxpr(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
    """(closed jaxpr, output structure) of ``function`` at abstract ``arguments``."""
    jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return jaxpr, jax.tree_util.tree_structure(shape)


def without_dead_code(jaxpr: Any) -> Any:
    """A closed jaxpr without equations whose results nobody needs, as XLA will not run them."""
    from jax.interpreters import partial_eval

    inner = open_jaxpr(jaxpr)
    alive, _ = partial_eval.dce_jaxpr(inner, [True] * len(inner.outvars), instantiate=True)
    return jaxpr.replace(jaxpr=alive)


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


def kernel_equations(jaxpr: Any) -> Iterator[Any]:
    """Every ``pallas_call`` equation of a jaxpr, nested ones included, in order."""
    for equation in open_jaxpr(jaxpr).eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
        elif equation.primitive.name not in KERNEL_PRIMITIVES:
            for _, _, sub in inner_jaxprs(equation.params):
                yield from kernel_equations(sub)


def leaves_device(jaxpr: Any) -> bool:
    """Whether a jaxpr's kernels copy to other devices or wait at a barrier of several."""
    return any(
        equation.primitive.name == "get_barrier_semaphore"
        or (equation.primitive.name == "dma_start" and _is_remote(equation))
        for equation in _all_equations(jaxpr)
    )


def _all_equations(jaxpr: Any) -> Iterator[Any]:
    for equation in open_jaxpr(jaxpr).eqns:
        yield equation
        for _, _, sub in inner_jaxprs(equation.params):
            yield from _all_equations(sub)


def _is_remote(equation: Any) -> bool:
    return take_apart_copy(equation.params["tree"], equation.invars).remote


def replace_interpret(jaxpr: Any, interpret: Any) -> Any:
    """The same jaxpr with ``interpret`` set in every kernel call, nested jaxprs included.

    The TPU interpreter takes grids only whose parallel axes come first; the compiler takes any. A
    parallel axis after another one is therefore run as "arbitrary", in order.
    """
    effects = _interpret_effects(interpret)
    return _rewrite(jaxpr, interpret, effects)[0]


def mesh_axes(jaxpr: Any) -> tuple[tuple[str, int], ...]:
    """Name and size of each axis of the first ``shard_map``'s mesh; () without one."""
    for equation in _all_equations(jaxpr):
        if equation.primitive.name == "shard_map":
            return tuple((str(n), int(s)) for n, s in equation.params["mesh"].shape.items())
    return ()


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
    names = [_semantics_name(item) for item in semantics]
    leading = next((i for i, name in enumerate(names) if name != "parallel"), len(names))
    if "parallel" not in names[leading:]:
        return compiler_params
    ordered = [
        "arbitrary" if name == "parallel" and axis >= leading else item
        for axis, (name, item) in enumerate(zip(names, semantics, strict=True))
    ]
    return dataclasses.replace(compiler_params, dimension_semantics=tuple(ordered))


def as_function(jaxpr: Any) -> Callable[..., list[Any]]:
    """A closed jaxpr as a function of its flat arguments."""
    function: Callable[..., list[Any]] = jex_core.jaxpr_as_fun(jaxpr)
    return function


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


def races_found() -> bool:
    """Whether the TPU interpreter's last run saw a race."""
    module = sys.modules.get("jax._src.pallas.mosaic.interpret.interpret_pallas_call")
    state = getattr(module, "races", None)
    return bool(getattr(state, "races_found", False))


def user_line(error: BaseException) -> str | None:
    """file:line of the innermost frame of ``error`` in code that is neither JAX nor tpulab."""
    place: str | None = None
    seen: set[int] = set()
    current: BaseException | None = error
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    while current is not None and id(current) not in seen and place is None:
        seen.add(id(current))
        traceback = current.__traceback__
        while traceback is not None:
            name = traceback.tb_frame.f_code.co_filename
            if not _is_library(name, package):
                place = f"{name}:{traceback.tb_lineno}"
            traceback = traceback.tb_next
        current = current.__cause__ or current.__context__
    return place


_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")


def _is_library(filename: str, package: str) -> bool:
    if filename.startswith((package, "<frozen")):
        return True
    return bool(_LIBRARY.search(filename)) and not filename.endswith(".ipynb")


def source_of(function: Any) -> str | None:
    """file:line where a function is defined, None when it can't be told."""
    try:
        target = inspect.unwrap(function)
        while hasattr(target, "func"):
            target = target.func
        code = target.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"
    except (AttributeError, ValueError):
        return None


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
            tuple(_semantics_name(item) for item in semantics) if semantics is not None else None
        ),
        vmem_limit_bytes=getattr(compiler_params, "vmem_limit_bytes", None),
        aliases=tuple((int(i), int(o)) for i, o in params.get("input_output_aliases") or ()),
        axis_names=tuple(mapping.grid_names or ()),
        collective_id=getattr(compiler_params, "collective_id", None),
        barrier_where=_barrier_place(params["jaxpr"]),
    )


def _barrier_place(kernel: Any) -> str | None:
    """Where a kernel takes the barrier semaphore ("" when the place is not known), None if not."""
    for equation in _all_equations(kernel):
        if equation.primitive.name == "get_barrier_semaphore":
            return equation_location(equation) or ""
    return None


def _semantics_name(item: Any) -> str:
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


def indexers(tree: Any, flat: Sequence[Any]) -> list[Any] | None:
    """The transforms of a load or store from its flat operands; None if they are not indexing."""
    transforms = jax.tree_util.tree_unflatten(tree, flat)
    for transform in transforms:
        if not hasattr(transform, "indices"):
            return None
    return list(transforms)


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


def is_slice(index: Any) -> bool:
    """True for the slice type that indexers use."""
    return hasattr(index, "start") and hasattr(index, "size")
