"""Lower a function for a TPU in this process, into bytes that a compile worker can take."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpulab.compiler import frames
from tpulab.compiler.environment import settle_platform
from tpulab.compiler.placement import place_on_mesh
from tpulab.compiler.refusals import LoweringRefused
from tpulab.errors import UsageError

if TYPE_CHECKING:
    from tpulab.hardware import Chip

_BODY = re.compile(r"\\22body\\22: ?\\22([A-Za-z0-9+/=]+)\\22")
_NAME_OF_LOCATION = re.compile(r'loc\("((?:[^"\\]|\\.)*)"\(')
# the innermost place: "kernel.py":13:22
_PLACE_OF_LOCATION = re.compile(r'"([^"]+)":(\d+):(\d+)')
# the fake registry entry below is process-wide state of JAX
_registry_lock = threading.RLock()
_meshes = itertools.count()


@dataclass(frozen=True)
class Artifact:
    """A function lowered for one kind of chip, ready for the compiler.

    Attributes:
        name: the function's name.
        chip: name of the chip it was lowered for.
        data: the serialised ``jax.export`` program.
        key: SHA-256 over everything in the program but source files and line numbers; equal kernels
            have equal keys, also when a comment was added above them.
        devices: how many JAX devices it runs on (more than one under ``shard_map``).
        mesh: name, size and axis type of the device mesh's axes; empty for one device.
        kernels: how many Pallas kernels it calls (static count).
        jax_version: the JAX that lowered it; the compiler worker must run the same.
        source: ``file:line`` of the function's definition, or None.
        places: ``file:line:column`` of every operation of the kernels, in order; two artifacts with
            the same key have as many, so that a cached listing can be given this one's lines.
    """

    name: str
    chip: str
    data: bytes = field(repr=False)
    key: str
    devices: int
    kernels: int
    jax_version: str
    mesh: tuple[tuple[str, int, str], ...] = ()
    source: str | None = None
    places: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def to_bytes(self) -> bytes:
        """The artifact as bytes, to carry it to another process."""
        fields = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "data"
        }
        return frames.pack(fields, {"data": self.data})

    @classmethod
    def from_bytes(cls, data: bytes) -> Artifact:
        """The inverse of :meth:`to_bytes`.

        Raises:
            ValueError: the bytes are not an artifact.
        """
        header, segments = frames.unpack(data)
        try:
            mesh = tuple((str(n), int(s), str(t)) for n, s, t in header.pop("mesh"))
            places = tuple(map(str, header.pop("places")))
            return cls(data=segments["data"], mesh=mesh, places=places, **header)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("the bytes are not an artifact") from error


def lower(
    function: Callable[..., Any],
    *arguments: Any,
    chip: str | Chip = "v5e",
    mesh: Any = None,
) -> Artifact:
    """Lower a function for a chip. Needs no TPU compiler and never leaves this process.

    Args:
        function: a JAX function; it may hold any number of ``pallas_call`` and may be jitted.
        arguments: arrays, ``jax.ShapeDtypeStruct`` or text like ``"bf16[4096,4096]"``, mixed; only
            shapes and dtypes are used.
        chip: name or :class:`tpulab.hardware.Chip`.
        mesh: for functions that take their mesh from the context (``jax.shard_map`` without
            ``mesh=``): a mapping of axis name to size, or a JAX mesh. A function that brings its
            own mesh, concrete or abstract, needs none.

    Raises:
        LoweringRefused: JAX can't lower it for this chip; the JAX error is chained.
        UnknownNameError: no such chip.
    """
    import jax
    from jax import export

    from tpulab.hardware import get_chip

    settle_platform()
    target = get_chip(chip) if isinstance(chip, str) else chip
    if not callable(function):
        raise UsageError(
            f"{function!r} is not a function", hint="pass the function itself, then its arguments"
        )
    specs = tuple(jax.tree.map(_spec, argument) for argument in arguments)
    jitted = function if hasattr(function, "trace") else jax.jit(_fresh(function))
    checks = [export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    source = _source_of(function)

    def attempt(
        context: contextlib.AbstractContextManager[Any],
    ) -> tuple[export.Exported, tuple[tuple[str, int, str], ...]]:
        with context:
            placed, axes = place_on_mesh(jitted.trace(*specs).jaxpr, specs)
            exporter = export.export(jitted, platforms=["tpu"], disabled_checks=checks)
            return exporter(*placed), axes

    try:
        try:
            exported, axes = attempt(_target_mesh(target, mesh))
        except ValueError as error:
            # the function brings a mesh of its own, so the target can't be named by the context's
            if "context mesh" not in str(error) or "should match" not in str(error):
                raise
            own_mesh = True
        else:
            own_mesh = False
        if own_mesh:
            # here nothing keeps JAX from giving the trace that it made of a jitted function before
            getattr(function, "clear_cache", lambda: None)()
            exported, axes = attempt(_pretend_host_is(target))
        data = bytes(exported.serialize())
    except Exception as error:
        raise _refusal(error, target.name, source) from error
    key, kernels, places = _content_key(exported, data)
    return Artifact(
        name=getattr(function, "__name__", type(function).__name__),
        chip=target.name,
        data=data,
        key=key,
        devices=int(exported.nr_devices),
        kernels=kernels,
        jax_version=jax.__version__,
        mesh=axes,
        source=source,
        places=places,
    )


def _source_of(function: Callable[..., Any]) -> str | None:
    """``file:line`` of a function's definition, through wrappers and partials."""
    current: Any = function
    for _ in range(16):
        inner = getattr(current, "__wrapped__", None) or getattr(current, "func", None)
        if inner is None:
            break
        current = inner
    code = getattr(current, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function under a new identity.

    JAX remembers traces by function; a block size that is a global, changed in another cell of a
    notebook, would go unnoticed.
    """

    def fresh(*arguments: Any) -> Any:
        return function(*arguments)

    with contextlib.suppress(AttributeError, TypeError):
        fresh.__name__ = getattr(function, "__name__", None) or type(function).__name__
        fresh.__qualname__ = fresh.__name__
    return fresh


def _spec(leaf: Any) -> Any:
    """Shape and dtype of one argument, without its values; a placement on several devices stays."""
    import jax
    import numpy

    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        placed = getattr(leaf, "sharding", None)
        keep = isinstance(placed, jax.sharding.NamedSharding) and placed.mesh.size > 1
        return jax.ShapeDtypeStruct(
            leaf.shape,
            leaf.dtype,
            sharding=placed if keep else None,
            weak_type=bool(getattr(leaf, "weak_type", False)),
        )
    if isinstance(leaf, (bool, int, float, complex, numpy.generic)):
        return leaf
    if isinstance(leaf, str):
        from tpulab.kernel.arguments import parse_argument

        return _spec(parse_argument(leaf))
    raise UsageError(
        f"an argument of type {type(leaf).__name__} is not an array",
        hint="pass arrays, jax.ShapeDtypeStruct(shape, dtype) or text like 'bf16[4096,4096]'; bind "
        "the rest with partial",
    )


@contextlib.contextmanager
def _target_mesh(chip: Chip, mesh: Any) -> Iterator[None]:
    """Tell JAX through the context's mesh which chip is lowered for.

    Rank-1 blocks, ``emit_pipeline`` and ``get_tpu_info`` ask for it, and find the CPU otherwise.
    """
    import jax
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType

    device = AbstractDevice(
        device_kind=chip.device_kind, num_cores=chip.cores_per_device, platform="tpu"
    )
    if mesh is None:
        shape: tuple[int, ...] = (1,)
        # JAX keeps the traces of jitted functions by function and mesh: a mesh that never was makes
        # it look at the function's globals again
        names: tuple[Any, ...] = (f"_chip{next(_meshes)}",)
        types: tuple[Any, ...] | None = (AxisType.Auto,)
    elif isinstance(mesh, Mapping):
        shape, names = tuple(mesh.values()), tuple(mesh)
        types = (AxisType.Auto,) * len(shape)
    else:
        shape, names = tuple(mesh.shape.values()), tuple(mesh.axis_names)
        types = getattr(mesh, "axis_types", None)
    target = AbstractMesh(shape, names, axis_types=types, abstract_device=device)
    with jax.sharding.use_abstract_mesh(target):
        yield


@contextlib.contextmanager
def _pretend_host_is(chip: Chip) -> Iterator[None]:
    """For functions with a mesh of their own: answer questions about the CPU with the chip's facts.

    ``tpu_info.registry`` is JAX's own hook for device kinds it does not know; the entry is removed
    again.
    """
    import jax
    from jax.experimental.pallas import tpu as pltpu

    version = next(
        (v for v in pltpu.ChipVersion if v.value.lower() == _chip_version_value(chip)), None
    )
    registry = _tpu_info_registry()
    kind = jax.devices("cpu")[0].device_kind
    with _registry_lock:
        if version is None or registry is None or kind in registry:
            yield
            return
        registry[kind] = lambda: pltpu.get_tpu_info_for_chip(version, chip.cores_per_device)
        try:
            yield
        finally:
            registry.pop(kind, None)


def _chip_version_value(chip: Chip) -> str:
    return "7x" if chip.name in ("7x", "tpu7x") else chip.name


def _tpu_info_registry() -> dict[str, Any] | None:
    """JAX's table of extra device kinds; it moved between the 0.10 and 0.12 lines."""
    import importlib

    for module in ("jax._src.tpu_info", "jax._src.pallas.mosaic.tpu_info"):
        try:
            found = getattr(importlib.import_module(module), "registry", None)
        except ImportError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _refusal(error: Exception, chip: str, source: str | None) -> LoweringRefused:
    from tpulab.compiler.explanations import explain, first_sentence, own_text

    explanation = explain(error, chip)
    return LoweringRefused(
        f"JAX can't lower this for {chip}: {first_sentence(explanation.message)}",
        message=own_text(error),
        explanation=explanation,
        chip=chip,
        where=explanation.where or source,
    )


def _content_key(exported: Any, data: bytes) -> tuple[str, int, tuple[str, ...]]:
    """A key that ignores where the source code stands; the number of kernels; where they stand.

    Names of operations stay in: the compiler names the pieces of the program after them.
    """
    digest = hashlib.sha256()
    kernels = data.count(b"tpu_custom_call")
    places: list[str] = []
    try:
        from jax._src.interpreters import mlir
        from jaxlib.mlir import ir

        with mlir.make_ir_context():
            module = ir.Module.parse(exported.mlir_module())
            names: list[str] = []

            def collect(operation: Any) -> Any:
                found = _NAME_OF_LOCATION.match(str(operation.location))
                names.append(found.group(1) if found else "")
                return ir.WalkResult.ADVANCE

            module.operation.walk(collect)
            text = module.operation.get_asm(enable_debug_info=False)
        bodies = _BODY.findall(text)
        kernels = len(bodies)
        digest.update(_BODY.sub("", text).encode())
        digest.update("\n".join(names).encode())
        for body in bodies:
            kernel = base64.b64decode(body)
            digest.update(_kernel_text(kernel, places))
    except Exception:  # noqa: BLE001 - only a key is lost
        # a JAX that prints its modules differently: equal bytes still have equal keys
        digest = hashlib.sha256(data)
        places = []
    digest.update(repr((exported.nr_devices, exported.in_shardings_hlo)).encode())
    return digest.hexdigest(), kernels, tuple(places)


def _kernel_text(body: bytes, places: list[str]) -> bytes:
    """A Mosaic kernel as text without locations, which are appended to ``places``.

    The bytes themselves where it can't be read.
    """
    from jaxlib.mlir import ir

    found: list[str] = []

    def collect(operation: Any) -> Any:
        match = _PLACE_OF_LOCATION.search(str(operation.location))
        found.append(":".join(match.groups()) if match else "")
        return ir.WalkResult.ADVANCE

    try:
        from jax._src.interpreters import mlir
        from jax._src.lib import tpu

        context = mlir.make_ir_context()
        context.allow_unregistered_dialects = True
        with context:
            tpu.register_dialect(context)
            module = ir.Module.parse(body)
            module.operation.walk(collect)
            text = str(module.operation.get_asm(enable_debug_info=False)).encode()
    except Exception:  # noqa: BLE001 - the bytes are a key too
        return body
    places.extend(found)
    return text
