"""``run``: a function with kernels on the CPU, with interpret mode set from outside."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import jax
import numpy as np

from tpulab.errors import TpulabError, UsageError
from tpulab.kernel import interpreter_internals, jax_internals
from tpulab.kernel.capture import captured_output
from tpulab.kernel.faults import Fault
from tpulab.kernel.mesh import TooFewDevices
from tpulab.kernel.observing import Deadlock, Observer
from tpulab.kernel.races import Race, races_in, without_races
from tpulab.kernel.tracing import function_name, stage
from tpulab.kernel.transfers import Transfer, Unmet, Unwaited


class RunError(TpulabError):
    """The function traced well but raised while it ran."""


@dataclasses.dataclass(frozen=True)
class UninitialisedOutput:
    """An output whose values depend on memory that nothing had written.

    Attributes:
        output: position among the flattened outputs. count: elements that depend on it.
        first: index of the first of them.
    """

    output: int
    count: int
    first: tuple[int, ...]

    def __str__(self) -> str:
        place = f" first at {list(self.first)}" if self.first else ""
        return (
            f"output {self.output}: {self.count:,} elements come from memory that was never "
            f"written,{place}"
        ).rstrip(",")


@dataclasses.dataclass(frozen=True)
class RunReport:
    """What the faithful interpreter saw.

    Attributes:
        races, uninitialised: as above.
        out_of_bounds: reads, writes or blocks outside their array, a sentence each.
        semaphores_nonzero: semaphores that a kernel left above zero, a sentence each.
        revisited: output blocks that were left and came back to, a sentence each.
        error: the interpreter's own error in one line when it stopped, else None.
        where: file:line in the user's code where it stopped, when known.
        unsupported: why the interpreter could not check this kernel, else None.
        printed: what the kernel itself printed.
        transfers: copies from device to device, in an order that is always the same.
        unmet: copies to devices that need not have entered the kernel, one for each pair.
        unwaited: copies whose end is not waited for, of a function on several devices.
        faults: what explains races and memory that nothing wrote, on several devices.
        deadlock: who waits for what never comes, when that stopped the run.
        grid: whether a kernel has a grid.
        devices: devices that ran the function. cores: TensorCores of each. seconds: wall time.
    """

    races: tuple[Race, ...] = ()
    uninitialised: tuple[UninitialisedOutput, ...] = ()
    out_of_bounds: tuple[str, ...] = ()
    semaphores_nonzero: tuple[str, ...] = ()
    revisited: tuple[str, ...] = ()
    error: str | None = None
    where: str | None = None
    unsupported: str | None = None
    printed: str = ""
    transfers: tuple[Transfer, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    unwaited: tuple[Unwaited, ...] = ()
    faults: tuple[Fault, ...] = ()
    deadlock: Deadlock | None = None
    grid: bool = True
    devices: int = 1
    cores: int = 1
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Nothing was found, and the kernel could be checked."""
        return not self.messages and self.unsupported is None

    @property
    def messages(self) -> tuple[str, ...]:
        """Everything found, a readable sentence each."""
        found = []
        if self.deadlock:
            found.append(f"{self.deadlock}" + (f" ({self.where})" if self.where else ""))
        found += _shortened(self.unwaited, "copy", "copies")
        if self.explained:
            found.append(_with_place(self.faults[0]))
        found += [*map(str, self.races), *map(str, self.uninitialised)]
        found += [*self.out_of_bounds, *self.revisited]
        found += _shortened(self.unmet, "pair of devices", "pairs of devices")
        found += self.semaphores_nonzero
        if self.error and not found:
            found.append(self.error + (f" ({self.where})" if self.where else ""))
        return tuple(found)

    @property
    def hint(self) -> str | None:
        """What to try for the first thing found."""
        if self.deadlock:
            return (
                "every wait needs a copy or a signal that ends it: look at the device that is sent "
                "to, and at the semaphore"
            )
        if self.unwaited and all(copy.source == copy.target for copy in self.unwaited):
            return (
                "wait() for a copy before what it brings is used, before its source changes, and "
                "before the kernel ends"
            )
        if self.unwaited:
            return (
                "wait for both ends of a remote copy: wait_send() before the source is used "
                "again, wait_recv() on the device that it arrives at; wait() does both"
            )
        if self.explained:
            return self.faults[0].hint
        if self.races:
            return self.races[0].hint(self.grid)
        if self.uninitialised and self.devices > 1 and not self.grid:
            return (
                "look at who sends what where: every part of the output is written by a copy or a "
                "store, and wait_recv() comes before what arrives is used"
            )
        if self.uninitialised:
            return (
                "write before reading: zero an accumulator in its first step, wait for a copy "
                "before using its buffer, write every output block, mask ragged edges"
            )
        if self.out_of_bounds and "the devices are" in self.out_of_bounds[0]:
            return "take the neighbour's number modulo the number of devices: lax.rem(me + 1, n)"
        if self.out_of_bounds:
            return "keep block indices and slices inside the array: clamp, then mask"
        if self.revisited:
            return "put the reduction axis last in the grid, so that an output block's steps follow"
        if self.unmet:
            return (
                "signal the barrier semaphore of every device that sends to this one, and wait "
                "for the signals of those that it sends to"
            )
        if self.semaphores_nonzero:
            return "every start needs one wait, and every signal is waited for"
        return None

    @property
    def explained(self) -> bool:
        """Whether the first fault says where a race, or memory that nothing wrote, comes from."""
        return bool(self.faults and (self.races or self.uninitialised))

    def __str__(self) -> str:
        if self.unsupported:
            return f"not checked: {self.unsupported}"
        if not self.messages:
            return "no race, no uninitialised read, no out-of-bounds access, semaphores at zero"
        lines = list(self.messages)
        if self.hint:
            lines.append(f"  try: {self.hint}")
        return "\n".join(lines)


def _with_place(found: Any) -> str:
    return f"{found}" + (f" ({found.where})" if found.where else "")


def _shortened(found: Sequence[Any], one: str, many: str) -> list[str]:
    """The first of several findings of one kind, and how many more there are."""
    if not found:
        return []
    rest = len(found) - 1
    more = f"; so it is with {rest} more {many if rest > 1 else one}" if rest else ""
    return [f"{_with_place(found[0])}{more}"]


@overload
def run(
    function: Callable[..., Any],
    *arguments: Any,
    mode: Literal["fast"] = "fast",
    chip: str = ...,
) -> Any: ...


@overload
def run(
    function: Callable[..., Any],
    *arguments: Any,
    mode: Literal["faithful"],
    chip: str = ...,
    cores: int = ...,
    seed: int | None = ...,
    eager_copies: bool = ...,
) -> tuple[Any, RunReport]: ...


def run(
    function: Callable[..., Any],
    *arguments: Any,
    mode: Literal["fast", "faithful"] = "fast",
    chip: str = "v5e",
    cores: int = 1,
    seed: int | None = None,
    eager_copies: bool = False,
) -> Any:
    """Run a function with Pallas kernels on the CPU.

    Args:
        function: as for ``trace``; it does not mention interpret mode.
        *arguments: concrete arrays, or text with values.
        mode: "fast" runs each kernel as plain JAX; "faithful" simulates memories, copies and
            semaphores, and looks for races. Keep a faithful run below about 100 grid steps.
        chip: the chip to trace for.
        cores: TensorCores of one device in faithful mode; 2 finds a value that is carried
            along a "parallel" axis.
        seed: order in which faithful mode walks "parallel" axes.
        eager_copies: start copies at once; by default they run as late as they may, at the wait.

    Returns:
        "fast": what the function returns. "faithful": that (None when the interpreter had to
        stop) and a ``RunReport``.

    Raises:
        TraceError: the function can't be traced. RunError: "fast" mode, it raised while running.
        A kernel that deadlocks in faithful mode is ended after a second of standstill. One that
        loops for ever never returns and ignores Ctrl-C: call it in a process that can be killed.
    """
    if mode not in ("fast", "faithful"):
        raise UsageError(f"mode is 'fast' or 'faithful', not {mode!r}")
    closed, out_tree, leaves = stage(function, arguments, chip)
    values = [_concrete(leaf) for leaf in leaves]
    _need_devices(function, closed)
    if mode == "fast":
        try:
            flat = execute(closed, True, values)
        except Exception as error:
            raise _run_failure(function, error, jax_internals.leaves_device(closed)) from error
        return out_tree.unflatten(flat)
    flat_outputs, report = run_faithfully(closed, values, cores, seed, eager_copies)
    if report.printed:
        sys.stdout.write(report.printed)
    outputs = None if flat_outputs is None else out_tree.unflatten(flat_outputs)
    return outputs, report


def transfers_between(
    function: Callable[..., Any], *arguments: Any, chip: str = "v5e"
) -> tuple[Transfer, ...]:
    """What devices send each other, without looking for races or at what is computed.

    Args:
        function, arguments, chip: as for :func:`run` in faithful mode.

    Raises:
        TraceError: the function can't be traced. RunError: it does not come to an end.
    """
    closed, _, leaves = stage(function, arguments, chip)
    values = [_concrete(leaf) for leaf in leaves]
    _need_devices(function, closed)
    observer = Observer()
    with observer, interpreter_internals.observed_interpreter(observer):
        _, text, error = _interpreted(closed, values, "zero", False, {})
    if observer.deadlock is not None or observer.stranger is not None:
        sentence, where = observer.stranger or (
            str(observer.deadlock),
            observer.deadlock.where if observer.deadlock else None,
        )
        raise RunError(
            f"{function_name(function)} does not come to an end: {sentence}", where=where
        )
    if error is not None:
        stopped = _read_error(error, text, closed)
        raise RunError(
            f"{function_name(function)} stops: {stopped['error']}", where=stopped["where"]
        )
    return observer.account().transfers


def execute(closed: Any, interpret: Any, values: Sequence[Any]) -> list[Any]:
    """Run a closed jaxpr on CPU with ``interpret`` in every kernel call."""
    rewritten = jax_internals.replace_interpret(closed, interpret)
    function = jax.jit(jax_internals.as_function(rewritten))
    if interpret is True:
        return list(jax.block_until_ready(function(*values)))
    # the faithful interpreter's time goes into compiling its many callbacks, which optimising
    # does not make faster
    options = {"xla_backend_optimization_level": 0}
    compiled = function.lower(*values).compile(compiler_options=options)
    return list(jax.block_until_ready(compiled(*values)))


def _need_devices(function: Callable[..., Any], closed: Any) -> None:
    """Enough host devices for the mesh that a function brings."""
    count = math.prod(size for _, size in jax_internals.mesh_axes(closed))
    there = len(jax.devices("cpu")) if count > 1 else count
    if there < count:
        raise TooFewDevices(
            f"{function_name(function)} runs on {count} devices, and JAX has started with {there}",
            why="each device of the mesh is stood for by a host device",
            hint=f"call tpulab.start_host_devices({count}) before anything else uses JAX",
        )


def _concrete(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise UsageError(
            "run needs values, and one argument is only a shape and dtype",
            hint="pass an array, or text with values such as 'f32[8,128]=0'",
        )
    return leaf


def _run_failure(
    function: Callable[..., Any], error: Exception, between_devices: bool = False
) -> RunError:
    if between_devices:
        return RunError(
            f"{function_name(function)} copies or signals between devices, which plain JAX on CPU "
            "can't run",
            hint="run it with mode='faithful'",
            where=jax_internals.user_line(error),
        )
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    hint = None
    if isinstance(error, NotImplementedError):
        hint = "plain JAX on CPU can't run this operation; try mode='faithful'"
    return RunError(
        f"{function_name(function)} raised {type(error).__name__} while it ran: {first}",
        hint=hint,
        where=jax_internals.user_line(error),
    )


def run_faithfully(
    closed: Any,
    values: Sequence[Any],
    cores: int = 1,
    seed: int | None = None,
    eager_copies: bool = False,
) -> tuple[list[Any] | None, RunReport]:
    """Run a closed jaxpr under the TPU interpreter and report what it saw."""
    began = time.perf_counter()
    options = {
        "num_cores_or_threads": cores,
        "random_seed": seed,
        "dma_execution_mode": "eager" if eager_copies else "on_wait",
    }
    observer = Observer(cores)
    with observer, interpreter_internals.observed_interpreter(observer):
        flat, text, error = _interpreted(closed, values, "nan", True, options)
    uninitialised: tuple[UninitialisedOutput, ...] = ()
    if flat is not None and any(_suspicious(output) for output in flat):
        zeroed, _, _ = _interpreted(closed, values, "zero", False, options)
        if zeroed is not None:
            uninitialised = _differences(flat, zeroed)
    account = observer.account()
    stopped: dict[str, Any] = {}
    if observer.stranger is not None:
        sentence, where = observer.stranger
        stopped = {"out_of_bounds": (sentence,), "where": where, "error": sentence}
    elif observer.deadlock is not None:
        stopped = {"error": observer.deadlock.sentence, "where": observer.deadlock.where}
    elif error is not None:
        stopped = _read_error(error, text, closed)
    report = RunReport(
        races=races_in(text, account.starts, observer.devices),
        uninitialised=uninitialised,
        semaphores_nonzero=_semaphores_in(text),
        printed=_SEMAPHORE.sub("", without_races(text)).lstrip("\n") if error is None else "",
        transfers=account.transfers,
        unmet=account.unmet,
        # of one device's copies the trace tells more: how many, and of what size
        unwaited=account.unwaited if observer.devices > 1 else (),
        faults=account.faults if observer.devices > 1 else (),
        deadlock=observer.deadlock,
        grid=any(
            jax_internals.take_apart(equation).grid
            for equation in jax_internals.kernel_equations(closed)
        ),
        devices=observer.devices,
        cores=cores,
        seconds=time.perf_counter() - began,
        **stopped,
    )
    return flat, report


def _interpreted(
    closed: Any, values: Sequence[Any], memory: str, races: bool, options: dict[str, Any]
) -> tuple[list[Any] | None, str, Exception | None]:
    params = jax_internals.faithful_params(
        detect_races=races, uninitialized_memory=memory, **options
    )
    jax_internals.reset_interpreter()
    flat: list[Any] | None = None
    failure: Exception | None = None
    with captured_output() as captured, interpreter_internals.callbacks_on_the_host():
        try:
            flat = execute(closed, params, values)
        except Exception as error:  # noqa: BLE001 - the report says what it was
            failure = error
    if failure is not None:
        jax_internals.reset_interpreter()
    return flat, captured.text, failure


def _suspicious(output: Any) -> bool:
    """Whether an output holds the pattern that uninitialised memory is filled with."""
    array = np.asarray(output)
    if array.size == 0:
        return False
    if array.dtype.kind in "iu":
        return bool((array == np.iinfo(array.dtype).max).any())
    if array.dtype.kind == "b":
        return bool(array.any())
    return bool(np.isnan(array.astype(np.float32)).any())


def _differences(first: Sequence[Any], second: Sequence[Any]) -> tuple[UninitialisedOutput, ...]:
    found = []
    for position, (one, other) in enumerate(zip(first, second, strict=True)):
        a, b = np.asarray(one), np.asarray(other)
        if a.dtype.kind not in "iub":
            a, b = a.astype(np.float32), b.astype(np.float32)
            different = (a != b) & ~(np.isnan(a) & np.isnan(b))
        else:
            different = a != b
        if different.any():
            index = np.argwhere(np.atleast_1d(different))[0]
            place = tuple(int(i) for i in index) if a.ndim else ()
            found.append(UninitialisedOutput(position, int(different.sum()), place))
    return tuple(found)


_SEMAPHORE = re.compile(
    r"Semaphore (\S+) has non-zero count for (\S+) \(global core (\S+)\) at kernel exit:\s*(\S+)\n?"
)


def _semaphores_in(text: str) -> tuple[str, ...]:
    """A sentence for each count that a semaphore was left at."""
    return tuple(
        dict.fromkeys(
            f"a semaphore is left at {count} when the kernel ends, it must be back at 0"
            for _, _, _, count in _SEMAPHORE.findall(text)
        )
    )


_OUT_OF_BOUNDS = re.compile(r"Out-of-bounds (?:block index|read|write|access)[^\n]*", re.I)
_REVISITED = re.compile(r"Revisited block[^\n]*")
_UNSUPPORTED = ("parallel", "not supported", "not implemented", "NotImplementedError")


def _read_error(error: Exception, text: str, closed: Any) -> dict[str, Any]:
    """Sort the interpreter's exception into the report's fields."""
    everything = f"{error}\n{text}"
    where = _line_in(everything) or _place_of_operand(everything, closed)
    match = _OUT_OF_BOUNDS.search(everything)
    if match:
        return {
            "out_of_bounds": (_shorten(match.group(0)),),
            "where": where,
            "error": str(match[0]),
        }
    match = _REVISITED.search(everything)
    if match:
        return {"revisited": (_shorten(match.group(0)),), "where": where, "error": str(match[0])}
    line = _last_line(str(error) if isinstance(error, ValueError) else everything)
    if isinstance(error, (NotImplementedError, ValueError)) and any(
        word in line for word in _UNSUPPORTED
    ):
        return {"unsupported": line, "error": line, "where": where}
    return {"error": line, "where": where}


def _place_of_operand(text: str, closed: Any) -> str | None:
    """Where the index map of the operand that a message names is written, else the kernel."""
    kernels = [jax_internals.take_apart(e) for e in jax_internals.kernel_equations(closed)]
    match = re.search(r'(?:of|for) (input|output) "?(\w+)"?', text)
    if match is None or not kernels:
        return kernels[0].where if len(kernels) == 1 else None
    kind, name = match.groups()
    for structure in kernels:
        names = jax_internals.argument_names(structure.kernel)[structure.num_index_operands :]
        mappings = structure.inputs + structure.outputs
        if name.isdigit():
            of_kind = structure.inputs if kind == "input" else structure.outputs
            if int(name) < len(of_kind):
                return of_kind[int(name)].where or structure.where
        for mapping, known in zip(mappings, names, strict=False):
            if known == name or known == f"{name}_ref":
                return mapping.where or structure.where
    return None


def _shorten(sentence: str) -> str:
    return re.sub(r"\s+", " ", sentence).strip().rstrip(".")


def _last_line(text: str) -> str:
    candidates = re.findall(r"^(?:[\w.]*(?:Error|Exception)): .+$", text, re.M)
    if candidates:
        return _shorten(candidates[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    return _shorten(lines[0]) if lines else "the interpreter stopped without a message"


def _line_in(text: str) -> str | None:
    """The last place in user code that a traceback printed as text names."""
    place = None
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, line in re.findall(r'File "([^"]+)", line (\d+)', text):
        library = "site-packages" in name or name.startswith(("<frozen", package))
        if not library and "/lib/python" not in name:
            place = f"{name}:{line}"
    return place
