"""What a kernel file of ``tpulab new`` calls: hold it against an oracle, compile it, time it."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpulab.errors import TpulabError
from tpulab.units import bytes_text, seconds_text


class CheckFailed(TpulabError):
    """A kernel is wrong, unsafe, or refused."""


def run(main: Callable[[str], None]) -> None:
    """Call ``main(chip)`` with the chip of the command line, ``--chip v5e`` unless it says another.

    An error that tpulab raises on purpose ends the program with its sentence and exit status 1;
    a chip that there is not, with 2, as for any verb.
    """
    words = argparse.ArgumentParser(description="Check a kernel, then say how fast it is.")
    words.add_argument("--chip", default="v5e", help="tpulab chips lists them (default: v5e)")
    from tpulab.compiler.environment import settle_platform
    from tpulab.hardware import get_chip

    settle_platform()
    asked = words.parse_args().chip
    try:
        chip = get_chip(asked).name
    except TpulabError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        main(chip)
    except TpulabError as error:
        sys.stdout.flush()
        print(f"✗ {error}", file=sys.stderr)
        sys.exit(1)


def agree(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    want: np.ndarray,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    modes: Sequence[str] = ("fast", "faithful"),
) -> None:
    """See that the function gives what the oracle gives, in each interpreter, and say so.

    The fast interpreter is JAX's own. The faithful one simulates memories, copies and their order,
    and reports races, uninitialised reads, what is out of bounds, and semaphores left above zero.

    Args:
        function: with kernels in it; takes ``arguments`` and returns one array.
        arguments: arrays.
        want: the oracle's float64 result.
        rtol, atol: right is ``|result - want| <= atol + rtol * |want|``, element by element.
        modes: interpreters to run it in.

    Raises:
        CheckFailed: it does not; the sentence names the first wrong element, or what was seen.
    """
    import tpulab

    shapes = ", ".join(_described(argument) for argument in arguments)
    for mode in modes:
        result = tpulab.run(function, *arguments, mode=mode)
        if mode == "faithful":
            result, report = result
            if not report.ok:
                found = report.messages or (f"it cannot be checked: {report.unsupported}",)
                raise CheckFailed(
                    f"{shapes}, {mode} interpreter: {found[0]}",
                    hint=report.hint,
                    where=report.where,
                )
        _compare(np.asarray(result), want, rtol, atol, f"{shapes}, {mode} interpreter")
    print(f"✓ {shapes}: equals the oracle ({' and '.join(modes)} interpreter)")


def _compare(got: np.ndarray, want: np.ndarray, rtol: float, atol: float, what: str) -> None:
    if got.shape != want.shape:
        raise CheckFailed(f"{what}: the result is {got.shape}, and the oracle's is {want.shape}")
    exact = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        right = np.abs(exact - want) <= atol + rtol * np.abs(want)
    if right.all():
        return
    first = tuple(int(index) for index in np.argwhere(~right)[0])
    raise CheckFailed(
        f"{what}: {int((~right).sum()):,} of {right.size:,} elements are wrong; at {list(first)} "
        f"it is {exact[first]:.6g} and should be {want[first]:.6g}",
        hint="NaN is what the interpreters fill memory with that nothing has written"
        if np.isnan(exact[first])
        else None,
    )


def accepted(function: Callable[..., Any], arguments: Sequence[Any], chip: str) -> None:
    """See that the function obeys the chip's rules and its compiler takes it; say what it needs.

    Rules are more than refusals: a sum along an axis that is marked parallel compiles, and is wrong
    on a chip that shares the axis between two cores. Where there is no TPU compiler, that is said.

    Raises:
        CheckFailed: a rule is broken.
        TpulabError: the compiler or JAX's lowering refuses it.
    """
    from tpulab.compiler import CompilerMissing, compile
    from tpulab.kernel import illegalities, trace

    for broken in illegalities(trace(function, *arguments, chip=chip), chip):
        raise CheckFailed(
            f"{chip}: {broken.what}", why=broken.why, hint=broken.hint, where=broken.where
        )
    try:
        program = compile(function, *arguments, chip=chip)
    except CompilerMissing as error:
        print(f"· not compiled for {chip}: {error.what}")
        return
    used, limit = bytes_text(program.vmem.used_bytes), bytes_text(program.vmem.limit_bytes)
    spills = f"{program.spills:,} register spills" if program.spills else "no spills"
    print(f"✓ {chip}: the compiler takes it; {used} of {limit} of VMEM, {spills}")


def measured_seconds(
    function: Callable[..., Any], arguments: Sequence[Any], chip: str
) -> float | None:
    """Median seconds of one call on this machine's TPU, None unless it has one of that chip.

    Args:
        arguments: arrays or ``jax.ShapeDtypeStruct``, which are filled with random values.
    """
    from tpulab.grading.measuring import median_seconds, on_tpu
    from tpulab.hardware import get_chip

    if not on_tpu():
        print("· not measured: this machine has no TPU")
        return None
    import jax

    kind = jax.devices()[0].device_kind
    if get_chip(kind).name != chip:
        print(f"· not measured: this machine's TPU is a {get_chip(kind).name}")
        return None
    return median_seconds(function, [_filled(argument) for argument in arguments])


def time_on_links(
    function: Callable[..., Any], small: Sequence[Any], arguments: Sequence[Any], chip: str
) -> str:
    """What the links between chips take for a function on several devices, in sentences.

    The copies are those of a run on small arrays in the faithful interpreter, enlarged to the bytes
    of the arguments: that is right for kernels that make as many copies for any size. Memory and
    arithmetic are left out.

    Args:
        small: arrays, whose first dimension counts the devices.
        arguments: arrays or shapes of as many devices.
    """
    import tpulab
    from tpulab.roofline.links import link_time

    _, report = tpulab.run(function, *small, mode="faithful")
    larger = sum(map(_size_bytes, arguments)) / sum(map(_size_bytes, small))
    transfers = [
        dataclasses.replace(transfer, size_bytes=round(transfer.size_bytes * larger))
        for transfer in report.transfers
    ]
    cost = link_time(transfers, chip, report.devices)
    rounds = f"{len(cost.rounds)} round{'s' if len(cost.rounds) != 1 else ''}"
    text = (
        f"links of {report.devices} × {chip}: {seconds_text(cost.seconds)} in {rounds}, "
        f"{seconds_text(cost.bandwidth_seconds)} for bytes and "
        f"{seconds_text(cost.latency_seconds)} for hops"
    )
    unused, used = len(cost.unused_links), len(cost.bytes_per_link)
    if unused:
        text += (
            f"\n  {unused} of {unused + used} links carry nothing; each pair of neighbours has one "
            "for either way"
        )
    return text


def _size_bytes(argument: Any) -> int:
    return math.prod(argument.shape) * np.dtype(argument.dtype).itemsize


def _filled(argument: Any) -> Any:
    """An array of random values for a shape; an array as it is."""
    if hasattr(argument, "__array__"):
        return argument
    rng = np.random.default_rng(0)
    if np.issubdtype(argument.dtype, np.integer):
        return np.zeros(argument.shape, argument.dtype)
    return rng.standard_normal(argument.shape, np.float32).astype(argument.dtype)


def _described(argument: Any) -> str:
    return f"{argument.dtype}[{','.join(map(str, argument.shape))}]"
