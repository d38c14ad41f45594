"""Tracing for chips and devices that are not there."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from tpulab.hardware import get_chip

_REGISTRY_LOCK = threading.RLock()
_MESHES = itertools.count()


@contextlib.contextmanager
def tracing_for(chip: str, *, patch_registry: bool = False) -> Iterator[None]:
    """A context in which JAX traces for ``chip`` though there is none here.

    Rank-1 blocks, ``emit_pipeline`` and ``get_tpu_info`` ask for the device kind. An abstract mesh
    that names it answers; where the function brings a mesh of its own (``shard_map``), the two
    would clash, and ``patch_registry`` answers for the CPU device kind instead.
    """
    described = get_chip(chip)
    device_kind, cores = described.device_kind, described.cores_per_device
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
