"""Several devices on a laptop: host devices to stand for chips, and a per-device function on them.

JAX splits the CPU into as many devices as asked for, once, when its backend starts. A function that
is written for one device of a ring runs on all of them under ``shard_map``, whose mesh is only
named, not occupied, while the function is traced or lowered.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from tpulab.errors import TpulabError, UsageError
from tpulab.kernel import jax_internals

#: The mesh axis of exercises and of ``on_devices`` unless told otherwise.
RING = "ring"


class TooFewDevices(TpulabError):
    """JAX's backend runs with fewer host devices than are needed."""


def start_host_devices(count: int = 8) -> int:
    """Make the CPU look like ``count`` devices. Must run before anything starts JAX's backend.

    Harmless when called again, or when there are already enough.

    Args:
        count: devices that are needed, at least 1.

    Returns:
        How many host devices there are.

    Raises:
        TooFewDevices: the backend has started with fewer; it can't be changed in this process.
        UsageError: ``count`` is not a positive whole number.
    """
    import jax

    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"the number of devices is a positive whole number, not {count!r}")
    jax_internals.settle_platform()
    if not jax_internals.backend_started():
        jax.config.update("jax_num_cpu_devices", count)
    there = len(jax.devices("cpu"))
    if there < count:
        raise TooFewDevices(
            f"JAX has started with {there} host device{'s' if there != 1 else ''}, "
            f"and {count} are needed",
            why="the number is fixed when JAX's backend starts, at its first array or device list",
            hint="restart the kernel (or the process) and call start_host_devices"
            f"({count}) before anything else uses JAX",
        )
    return there


def expect_host_devices(count: int) -> None:
    """As :func:`start_host_devices`, without starting: code that comes later may ask for others.

    Nothing happens when the backend runs, or when somebody has asked for a number before.
    """
    import os

    import jax

    asked = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if jax_internals.backend_started() or asked or jax.config.jax_num_cpu_devices >= 0:
        return
    jax.config.update("jax_num_cpu_devices", count)


def on_devices(function: Callable[..., Any], devices: int, axis: str = RING) -> Callable[..., Any]:
    """A function of whole arrays that runs ``function`` on every device of a ring.

    Args:
        function: what one device does: takes its own arrays, returns one array or a tuple of
            arrays. It may ask ``jax.lax.axis_index(axis)`` which device it is, and its kernels may
            copy to other devices. It does not mention the mesh.
        devices: how many devices the mesh has.
        axis: name of the mesh's only axis.

    Returns:
        A function with the same arguments and results, each with a leading dimension of size
        ``devices``: slice ``i`` belongs to device ``i``. Tracing and lowering it needs no host
        devices; running it needs that many (:func:`start_host_devices`).

    Raises:
        UsageError: from the returned function, when an argument's first dimension is not
            ``devices``.
    """
    if not callable(function):
        raise UsageError(
            f"on_devices takes a function, not {type(function).__name__}",
            hint="pass the function itself: on_devices(all_gather, 8)",
        )
    if not isinstance(devices, int) or isinstance(devices, bool) or devices < 1:
        raise UsageError(f"the number of devices is a positive whole number, not {devices!r}")

    def on_all(*arguments: Any) -> Any:
        import jax

        for leaf in jax.tree_util.tree_leaves(arguments):
            shape = tuple(getattr(leaf, "shape", ()))
            if shape[:1] != (devices,):
                raise UsageError(
                    f"an argument has shape {list(shape)}, and its first dimension must count the "
                    f"{devices} devices",
                    hint="stack the devices' arrays: argument[i] is what device i holds",
                )

        def one_device(*slices: Any) -> Any:
            own = jax.tree_util.tree_map(lambda value: value[0], slices)
            return jax.tree_util.tree_map(lambda value: value[None], function(*own))

        return jax_internals.map_on_mesh(one_device, devices, axis)(*arguments)

    with contextlib.suppress(AttributeError, TypeError):
        functools.update_wrapper(on_all, function)
    return on_all
