"""How good is a kernel, and what is in the way: the rungs between the best possible and predicted.

``ladder(function, *arguments, chip="v5e")`` traces, compiles and simulates a function and says
where its time goes:

* **speed of light**: the arithmetic at peak, every operand through HBM once; the slower of the two.
* **traffic**: with the bytes that the blocks really move.
* **tile padding**: with shapes padded to native tiles and to the matrix unit.
* **schedule**: with the instructions that the compiler made, were all data in place.
* **pipeline**: with transfers, waits, first and last blocks: the predicted time.
* **measured**: only when a measurement is given.

A function on several devices (``shard_map``, or ``tpulab.on_devices``) whose kernels copy between
them has two rungs: speed of light, and **links**, by a model of the links between chips.

The first three are bounds from what the author wrote and the chip's data sheet; schedule and
pipeline are predicted by running the compiled program. Times are those of one JAX device.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tpulab.errors import TpulabError, UsageError
from tpulab.hardware import Chip, get_chip
from tpulab.ladder_climb import climb, simulate_for_ladder
from tpulab.ladder_links import link_ladder, talks_to_devices
from tpulab.ladder_model import (
    REASON_LIMIT,
    RUNGS,
    ChipLadder,
    Comparison,
    Ladder,
    Refusal,
    Rung,
    refused_entry,
)

__all__ = [
    "RUNGS",
    "ChipLadder",
    "Comparison",
    "Ladder",
    "Refusal",
    "Rung",
    "climb",
    "compare",
    "ladder",
    "refused_entry",
]


def ladder(
    function: Callable[..., Any],
    *arguments: Any,
    chip: str | Chip | Iterable[str | Chip] = "v5e",
    measured: Mapping[str, float] | float | None = None,
    deadline_seconds: float = 60.0,
) -> Ladder:
    """Where the time of a function goes, on one or several chips.

    Args:
        function: takes `arguments`; contains at least one ``pallas_call``.
        *arguments: arrays, ``jax.ShapeDtypeStruct`` or text like ``"bf16[4096,4096]"``. Values of
            scalar-prefetch operands must be given as arrays.
        chip: a chip or several.
        measured: seconds on a real chip, per chip name, or a number for the only chip.
        deadline_seconds: how long the compiler may take for one chip.

    Returns:
        A :class:`Ladder`. A chip that cannot answer has ``refusal`` set and the figures that this
        prevents are None; it does not stop the others.

    Raises:
        UnknownNameError: no such chip.
        UsageError: `function` is not a function, or `measured` does not fit the chips.
    """
    chips = _chips(chip)
    if not callable(function):
        raise UsageError(
            f"a ladder needs a function, not {type(function).__name__}",
            hint="pass the function itself, without calling it: ladder(f, x), not ladder(f(x))",
        )
    times = _measurements(measured, chips)
    from tpulab.compiler import compile_many, compiler_version
    from tpulab.kernel.tracing import normalise_arguments

    given, arguments = arguments, normalise_arguments(arguments)
    version = compiler_version()
    kernels: dict[str, Any] = {}
    refused: dict[str, Refusal] = {}
    for one in chips:
        kernels[one.name] = _trace(function, arguments, one, refused)
    willing = [one for one in chips if one.name not in refused]
    programs: dict[str, Any] = {}
    if willing:
        programs = compile_many(
            function, list(arguments), willing, deadline_seconds=deadline_seconds
        )
    answers = {
        one.name: _answer(
            one,
            kernels[one.name],
            refused.get(one.name),
            programs.get(one.name),
            times.get(one.name),
            version,
            function,
            arguments,
        )
        for one in chips
    }
    known = next((kernel for kernel in kernels.values() if kernel is not None), None)
    return Ladder(
        function=_name_of(function),
        arguments=tuple(str(a) for a in known.arguments)
        if known is not None
        else tuple(_argument_text(a) for a in given),
        compiler_version=version,
        chips=answers,
    )


def _chips(chip: str | Chip | Iterable[str | Chip]) -> list[Chip]:
    wanted: Iterable[str | Chip]
    if isinstance(chip, Chip):
        wanted = [chip]
    elif isinstance(chip, str):
        wanted = [part for part in chip.split(",") if part.strip()]
    else:
        wanted = chip
    found = list({get_chip(one).name: get_chip(one) for one in wanted}.values())
    if not found:
        raise UsageError("a ladder needs at least one chip", hint='for example chip="v5e"')
    return found


def _measurements(
    measured: Mapping[str, float] | float | None, chips: list[Chip]
) -> dict[str, float]:
    if measured is None:
        return {}
    if isinstance(measured, Mapping):
        times = {get_chip(name).name: float(seconds) for name, seconds in measured.items()}
    else:
        if len(chips) != 1:
            raise UsageError(
                "one measured time does not say which of several chips it is from",
                hint='measured={"v5e": 0.001, ...}',
            )
        times = {chips[0].name: float(measured)}
    if any(seconds <= 0 for seconds in times.values()):
        raise UsageError("a measured time must be above zero seconds")
    return times


def _name_of(function: Any) -> str:
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _argument_text(argument: Any) -> str:
    shape, dtype = getattr(argument, "shape", None), getattr(argument, "dtype", None)
    if shape is None or dtype is None:
        return argument if isinstance(argument, str) else type(argument).__name__
    return f"{getattr(dtype, 'name', dtype)}[{','.join(str(size) for size in shape)}]"


def _trace(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    chip: Chip,
    refused: dict[str, Refusal],
) -> Any:
    from tpulab.kernel import trace

    try:
        return trace(function, *arguments, chip=chip.name)
    except UsageError:
        raise
    except TpulabError as error:
        refused[chip.name] = Refusal("trace", str(error)[:REASON_LIMIT])
    return None


def _answer(
    chip: Chip,
    kernel: Any,
    refusal: Refusal | None,
    program: Any,
    measured: float | None,
    version: str | None,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> ChipLadder:
    """A chip's ladder from what the earlier rooms gave, or why there is none."""
    timeline = None
    compute = None
    if isinstance(program, TpulabError):
        stage = getattr(program, "stage", "compile")
        refusal = Refusal(stage, str(program)[:REASON_LIMIT])
        program = None
    elif program is not None and talks_to_devices(kernel):
        version = getattr(program, "compiler_version", None) or version
        return link_ladder(function, arguments, kernel, program, chip, version, _name_of(function))
    elif program is not None:
        try:
            timeline, compute = simulate_for_ladder(program, kernel, arguments)
        except TpulabError as error:
            refusal = Refusal("simulate", str(error)[:REASON_LIMIT])
        except Exception as error:  # noqa: BLE001 - one chip's defect must not cost the others
            refusal = Refusal(
                "simulate", f"the simulator failed: {type(error).__name__}: {error}"[:REASON_LIMIT]
            )
    return climb(
        kernel,
        program,
        timeline,
        chip=chip,
        compute_cycles=compute,
        measured_seconds=measured,
        refusal=refusal,
        compiler_version=getattr(program, "compiler_version", None) or version,
        function=_name_of(function),
    )


def compare(before: Ladder, after: Ladder) -> Comparison:
    """Two ladders side by side: which rung gained, which lost.

    Raises:
        UsageError: they have no chip in common.
    """
    result = Comparison(before, after)
    if not result.chips:
        raise UsageError(
            f"nothing to compare: {before.function} is on {', '.join(before.chips)}, "
            f"{after.function} on {', '.join(after.chips)}"
        )
    return result


class _CallableModule(types.ModuleType):
    """This module called is :func:`ladder`: both have the name ``tpulab.ladder``.

    Importing a submodule puts it into its package under its own name, over the function that the
    package offers; so whatever is imported first, ``tpulab.ladder(...)`` works.
    """

    def __call__(self, *arguments: Any, **options: Any) -> Ladder:
        return ladder(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
