"""The one place that reaches into JAX's TPU interpreter while it runs several devices.

Checked with jax 0.10.2 and 0.12.0. The interpreter runs each device in a thread; what a device does
(starts, signals, waits) comes to it as callbacks, and those are what is observed here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from tpulab.kernel.jax_internals import argument_names, equation_location
from tpulab.kernel.transfers import End, Meet, Place, Signal, Start, Wait

#: What the TPU interpreter calls where devices meet: before a kernel, and after it.
MEETINGS = frozenset({"_barrier", "_clean_up_shared_memory"})


class _ObservedCallbacks:
    """Stands for the interpreter's callback module and tells an observer what devices do."""

    def __init__(self, module: Any, interpreter: Any, observer: Any) -> None:
        self._module, self._interpreter, self._observer = module, interpreter, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def io_callback(self, callback: Any, *arguments: Any, **keywords: Any) -> Any:
        inner = getattr(callback, "func", callback)
        kind = getattr(inner, "__name__", "")
        if kind in _EVENTS:
            # the equation whose interpretation makes this callback
            equation = sys._getframe(1).f_locals.get("eqn")
            where = (equation_location(equation) if equation is not None else None) or ""
            names = _names(sys._getframe(1).f_locals.get("jaxpr"), equation)
            callback = self._observed(callback, kind, where, names)
        return self._module.io_callback(callback, *arguments, **keywords)

    def _observed(
        self, callback: Any, kind: str, where: str, names: tuple[str, str]
    ) -> Callable[..., Any]:
        observer, interpreter, read = self._observer, self._interpreter, _EVENTS[kind]

        def observed(token: Any, device: Any, *rest: Any) -> Any:
            core, event = (int(device), 0), None
            with contextlib.suppress(Exception):
                core, event = read(interpreter, int(device), rest, where)
                if isinstance(event, Start):
                    event = _named(event, names)
            observer.begin(kind, core, event)
            try:
                return callback(token, device, *rest)
            finally:
                observer.end(kind, core, event)

        return observed


def _names(jaxpr: Any, equation: Any) -> tuple[str, str]:
    """What a kernel calls the source and the target of a copy, "" for what has no name here."""
    names: list[str] = []
    with contextlib.suppress(Exception):
        known = dict(zip(map(id, jaxpr.invars), argument_names(jaxpr), strict=False))
        refs = [
            variable
            for variable in equation.invars
            if "Ref" in type(variable.aval).__name__
            and "sem" not in str(getattr(variable.aval, "dtype", ""))
        ]
        names = [known.get(id(variable), "") for variable in refs[:2]]
    source, into = [*names, "", ""][:2]
    return source, into


def _named(event: Start, names: tuple[str, str]) -> Start:
    source, into = (
        dataclasses.replace(place, name=name) if place is not None else None
        for place, name in zip((event.source, event.into), names, strict=True)
    )
    return dataclasses.replace(event, source=source, into=into)


def _read_start(interpreter: Any, device: int, rest: Any, where: str) -> Any:
    core, space, buffer = (int(value) for value in rest[:3])
    source, target = (
        interpreter.interpret_utils.to_range(jax.tree.map(int, transforms))
        for transforms in (rest[3], rest[6])
    )
    remote = int(rest[9]) if rest[9] is not None else device
    remote_core = int(rest[10]) if len(rest) > 10 and rest[10] is not None else core
    shape, item_bytes = _buffer(interpreter, space, buffer, device, core)
    sizes = [size for _, size in map(_extent, source)] + list(shape[len(source) :])
    index = tuple(map(_extent, target))
    send = int(rest[8]) if rest[8] is not None else None
    size = math.prod(sizes) * item_bytes
    spaces = interpreter.TPU_MEMORY_SPACE_NAMES
    reads = Place(_hbm(spaces[space]), buffer, tuple(map(_extent, source)))
    writes = Place(_hbm(spaces[int(rest[4])]), int(rest[5]), index)
    start = Start(
        (remote, remote_core), send, int(rest[7]), size, index or None, where, reads, writes
    )
    return (device, core), start


def _hbm(space: str) -> str:
    """Its name, in lower case; what may lie anywhere is simulated in HBM."""
    return "hbm" if space.lower() in ("any", "hbm") else space.lower()


def _extent(item: Any) -> tuple[int, int]:
    """(start, size) of an index or a slice."""
    if not isinstance(item, slice):
        return int(item), 1
    return int(item.start), len(range(item.start, item.stop, item.step or 1))


def _read_signal(interpreter: Any, device: int, rest: Any, where: str) -> Any:
    core, semaphore, amount = (int(value) for value in rest[:3])
    target = device if rest[3] is None else int(rest[3])
    target_core = 0 if rest[4] is None else int(rest[4])
    return (device, core), Signal((target, target_core), semaphore, amount, where)


def _read_wait(copies: bool) -> Callable[..., Any]:
    def read(interpreter: Any, device: int, rest: Any, where: str) -> Any:
        core, semaphore, amount = (int(value) for value in rest[:3])
        return (device, core), Wait(semaphore, amount, copies, where)

    return read


def _read_meeting(interpreter: Any, device: int, rest: Any, where: str) -> Any:
    return (device, 0), Meet()


def _read_end(interpreter: Any, device: int, rest: Any, where: str) -> Any:
    return (device, 0), End()


_EVENTS: Mapping[str, Callable[..., Any]] = {
    "dma_start": _read_start,
    "dma_wait": _read_wait(True),
    "semaphore_signal": _read_signal,
    "semaphore_wait": _read_wait(False),
    "_barrier": _read_meeting,
    "_clean_up_shared_memory": _read_end,
}


def _buffer(
    interpreter: Any, space: int, buffer: int, device: int, core: int
) -> tuple[tuple[int, ...], int]:
    """Shape and bytes of an element of a buffer in the interpreter's memory."""
    memory = interpreter._get_shared_memory().mem
    name = interpreter.TPU_MEMORY_SPACE_NAMES[space]
    for owner in (core, 0):
        found = memory.get((name, buffer, device, owner))
        if found is not None:
            shape = getattr(found, "logical_shape", None) or found.shape
            return tuple(shape), found.dtype.itemsize
    return (), 0


@contextlib.contextmanager
def observed_interpreter(observer: Any) -> Iterator[None]:
    """Tell ``observer`` what the TPU interpreter's devices do in functions traced meanwhile.

    ``observer.begin`` and ``observer.end`` are called in the devices' threads, around every start
    of a copy, signal, wait and meeting, with the interpreter's name for it, (device, core), and
    the event of :mod:`tpulab.kernel.transfers`.
    """
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    before = interpreter.callback
    interpreter.callback = _ObservedCallbacks(before, interpreter, observer)
    try:
        yield
    finally:
        interpreter.callback = before


class _WithoutPlacement:
    """Stands for JAX's API in its callback module, and leaves NumPy arrays where they are."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def device_put(self, arguments: Any, *rest: Any, **keywords: Any) -> Any:
        if all(isinstance(leaf, np.ndarray) for leaf in jax.tree_util.tree_leaves(arguments)):
            return arguments
        return self._api.device_put(arguments, *rest, **keywords)


@contextlib.contextmanager
def callbacks_on_the_host() -> Iterator[None]:
    """Hand callbacks their arguments as the NumPy arrays that they are.

    JAX puts them on the first CPU device. From 32 KiB or so on that needs a thread of a pool whose
    threads may all stand in callbacks, each of them waiting for the others: with eight devices on
    two processors it never ends. The interpreter copies what it keeps.
    """
    from jax._src import callback

    before = getattr(callback, "api", None)
    if before is None:
        yield
        return
    callback.api = _WithoutPlacement(before)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        callback.api = before  # type: ignore[attr-defined]


def interpreted_devices() -> int:
    """How many devices run the kernel that is being interpreted, 1 when there is none."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    try:
        return int(interpreter._get_shared_memory().num_devices)
    except AssertionError:
        return 1


def semaphore_state(semaphore: int, core: tuple[int, int]) -> tuple[int, int]:
    """(value, copies under way that would raise it) of a semaphore on a core of a device."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    try:
        memory = interpreter._get_shared_memory()
        known = memory.fixed_id_sem if semaphore in memory.fixed_id_sem else memory.sem
        found = known[semaphore]
        number = memory.get_global_core_id(*core)
        return int(found.count_by_core[number]), len(found.tasks[number])
    except (AssertionError, KeyError, IndexError):
        return 0, 0


def stop_interpreter(error: Exception) -> None:
    """Let every device's thread that waits raise an error."""
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

    with contextlib.suppress(AssertionError):
        # not at the top level: the threads meet for the clean-up without this one
        interpreter._get_shared_memory().set_failed(error, top_level=False)
