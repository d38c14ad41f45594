"""The compile worker: ``python -m tpulab.compiler.worker DUMP_DIRECTORY``.

Started by the service in a process of its own, because the compiler may abort it. Takes requests on
standard input, answers on standard output (see ``frames``), ends when its input ends or its parent
dies. The environment, with the compiler's flags, is set by the one who starts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tpulab.compiler import dumps, frames


class Worker:
    """Answers one request after another.

    Args:
        directory: where the compiler's dumps go; cleared after every compile.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._topologies: dict[str, Any] = {}

    def topology(self, name: str) -> Any:
        """Compile-only devices by topology name, cached."""
        if name not in self._topologies:
            from jax.experimental import topologies

            self._topologies[name] = topologies.get_topology_desc(name, platform="tpu")
        return self._topologies[name]

    def warm(self, name: str) -> None:
        """Load the compiler and let it compile a trifle, so that the first kernel is quick."""
        import jax
        from jax.sharding import SingleDeviceSharding

        place = SingleDeviceSharding(self.topology(name).devices[0])
        argument = jax.ShapeDtypeStruct((8, 128), "float32", sharding=place)
        traced = jax.jit(lambda x: x + 1).trace(argument)
        traced.lower(lowering_platforms=("tpu",)).compile()

    def answer(
        self, request: dict[str, Any], segments: dict[str, bytes]
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Compile what is asked for; an ordinary error becomes an answer with ``"error"``."""
        dumps.clear(self.directory)
        started = time.perf_counter()
        try:
            if "warm" in request:
                self.warm(request["warm"])
                return {}, {}
            compiled = self._compile(
                request["topology"], segments["artifact"], request.get("mesh", []), request["name"]
            )
            seconds = time.perf_counter() - started
            found = dumps.collect(self.directory)
        except Exception as error:  # noqa: BLE001 - a refusal is an answer
            return {
                "error": str(error),
                "error_type": type(error).__name__,
                "seconds": time.perf_counter() - started,
            }, {}
        finally:
            with contextlib.suppress(OSError):
                dumps.clear(self.directory)
        return {
            "seconds": seconds,
            "read_seconds": time.perf_counter() - started - seconds,
            "memory": _memory(compiled),
        }, found

    def _compile(
        self, topology: str, data: bytes, mesh_axes: list[tuple[str, int, str]], name: str
    ) -> Any:
        import jax
        import numpy
        from jax import export
        from jax.sharding import (
            AxisType,
            Mesh,
            NamedSharding,
            PartitionSpec,
            SingleDeviceSharding,
        )

        devices = self.topology(topology).devices
        exported = export.deserialize(bytearray(data))
        count = exported.nr_devices
        places: list[Any]
        results: Any
        if count == 1:
            results = SingleDeviceSharding(devices[0])
            places = [results] * len(exported.in_avals)
        else:
            axes = mesh_axes or [("_device", count, "Auto")]
            mesh = Mesh(
                numpy.array(devices[:count]).reshape([size for _, size, _ in axes]),
                tuple(axis for axis, _, _ in axes),
                axis_types=tuple(AxisType[kind] for _, _, kind in axes),
            )
            everywhere = NamedSharding(mesh, PartitionSpec())
            places = [place or everywhere for place in exported.in_shardings_jax(mesh)]
            results = jax.tree.unflatten(exported.out_tree, exported.out_shardings_jax(mesh))
        leaves = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=place)
            for aval, place in zip(exported.in_avals, places, strict=True)
        ]
        positional, keywords = jax.tree.unflatten(exported.in_tree, leaves)

        def call(*positional: Any, **keywords: Any) -> Any:
            return exported.call(*positional, **keywords)

        call.__name__ = call.__qualname__ = name
        wide = {"int64", "uint64", "float64", "complex128"}
        avals = [*exported.in_avals, *exported.out_avals]
        # the caller's x64 setting is in the program; without it here JAX would narrow the arguments
        with jax.enable_x64(any(str(aval.dtype) in wide for aval in avals)):
            lowered = (
                jax.jit(call, out_shardings=results)
                .trace(*positional, **keywords)
                .lower(lowering_platforms=("tpu",))
            )
            return lowered.compile()


def _memory(compiled: Any) -> dict[str, int]:
    """The numbers of ``memory_analysis()``; empty when the compiler gives none."""
    try:
        analysis = compiled.memory_analysis()
    except Exception:  # noqa: BLE001 - differs between versions, and nothing depends on it
        return {}
    found = {}
    for name in dir(analysis):
        value = getattr(analysis, name, None)
        if name.endswith("_in_bytes") and isinstance(value, int):
            found[name.removesuffix("_in_bytes").removesuffix("_size") + "_bytes"] = value
    return found


def _die_with_parent(directory: Path, parent: int) -> None:
    """End this process when the parent is gone, however the parent went."""

    def watch() -> None:
        while True:
            time.sleep(0.5)
            if os.getppid() != parent:
                shutil.rmtree(directory, ignore_errors=True)
                os._exit(0)

    # A thread, not PR_SET_PDEATHSIG alone: that one fires when the parent's *thread* ends.
    threading.Thread(target=watch, daemon=True).start()


def _be_named() -> None:
    """Show up as ``tpulab-compile`` in ``ps``, and leave no core files behind."""
    with contextlib.suppress(Exception):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # the caller's limit for its own code says nothing about what the compiler may reserve; the
        # supervisor minds what it really uses
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with contextlib.suppress(Exception):
        # PR_SET_NAME = 15
        ctypes.CDLL(None).prctl(15, b"tpulab-compile", 0, 0, 0)


def main(directory: str, parent: int) -> int:
    """Serve requests until the input ends."""
    # Messages go over private descriptors, so that a print in the compiler can't break them.
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    target = os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path = Path(directory)
    _be_named()
    _die_with_parent(path, parent)

    def receive(count: int) -> bytes:
        parts = []
        while count:
            part = source.read(count)
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def send(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[target.write(view) :]

    worker = Worker(path)
    import jax

    send(frames.pack({"hello": os.getpid(), "jax_version": jax.__version__}))
    try:
        while True:
            request, segments = frames.read(receive)
            header, found = worker.answer(request, segments)
            send(frames.pack(header, found))
    except (EOFError, BrokenPipeError):
        return 0
    finally:
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]))
    sys.stderr.flush()
    # the compiler's threads need not be waited for
    os._exit(code)
