"""Hold a result against the oracle, and name the mistake that the wrong numbers point to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tpulab.exercises.model import Case, Exercise, as_dtype

# a wrong result counts as explained by a suspect when this share of its elements agrees
_AGREES = 0.95


@dataclass(frozen=True)
class Outcome:
    """One run of an answer beside the oracle.

    Attributes:
        case, fill, seed: what it was run on.
        arguments: the float64 arguments.
        got: the result, in float64.
        want: the oracle's, in float64, with what the result's dtype cannot hold as infinity.
        allowed: allowed absolute error of each element.
        kernel: description of the kernel for these shapes (see ``inspection``).
    """

    case: Case
    fill: str
    seed: int
    arguments: tuple[np.ndarray, ...] = field(repr=False)
    got: np.ndarray = field(repr=False)
    want: np.ndarray = field(repr=False)
    allowed: np.ndarray = field(repr=False)
    kernel: Mapping[str, Any] = field(repr=False)

    @property
    def right(self) -> np.ndarray:
        """Which elements are right."""
        return _close(self.got, self.want, self.allowed)

    @property
    def passed(self) -> bool:
        """Whether all are."""
        return bool(self.right.all())

    @property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Block shapes of the operands of the only kernel; empty when there are several."""
        calls = self.kernel.get("calls") or []
        if len(calls) != 1:
            return ()
        return tuple(tuple(operand["block"]) for operand in calls[0]["operands"])


@dataclass(frozen=True)
class Diagnosis:
    """A named mistake.

    Attributes:
        at: the line to show: the kernel's "store", its "sum", or the call's "grid", "index map" or
            "output map".
    """

    mistake: str
    hint: str
    at: str = "store"


def _close(got: np.ndarray, want: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(got - want) <= allowed
    return np.asarray(near | (got == want) | (np.isnan(got) & np.isnan(want)))


def outcome(
    exercise: Exercise,
    case: Case,
    fill: str,
    seed: int,
    arguments: Sequence[np.ndarray],
    got: np.ndarray,
    kernel: Mapping[str, Any],
) -> Outcome:
    """Compute the oracle and the tolerance for one run."""
    exact = tuple(np.asarray(argument, dtype=np.float64) for argument in arguments)
    want = np.asarray(exercise.oracle(*exact), dtype=np.float64)
    allowed = exercise.tolerance_for(exact, want)
    held = as_dtype(exercise.result(case.arguments).dtype)
    with np.errstate(over="ignore"):
        rounded = want.astype(held).astype(np.float64)
    want = np.where(np.isinf(rounded), rounded, want)
    return Outcome(case, fill, seed, exact, np.asarray(got, np.float64), want, allowed, kernel)


def describe(wrong: Outcome) -> str:
    """Where the wrong elements are and what they are."""
    bad = ~wrong.right
    count, size = int(bad.sum()), bad.size
    first = tuple(int(index) for index in np.argwhere(bad)[0])
    lines = [
        f"{count:,} of {size:,} elements differ; at {list(first)} it is "
        f"{wrong.got[first]:.6g}, and should be {wrong.want[first]:.6g} "
        f"(± {wrong.allowed[first]:.2g})"
    ]
    if bad.ndim == 2 and 0 < count < size:
        rows, cols = np.flatnonzero(bad.any(axis=1)), np.flatnonzero(bad.any(axis=0))
        # the corners of the whole array say nothing
        if (rows[-1] - rows[0] + 1, cols[-1] - cols[0] + 1) != bad.shape:
            lines.append(
                f"they lie in rows {rows[0]}…{rows[-1]} and columns {cols[0]}…{cols[-1]} "
                f"of {bad.shape[0]} × {bad.shape[1]}"
            )
    return "\n".join(lines)


def diagnose(exercise: Exercise, wrong: Sequence[Outcome], right: Sequence[Outcome]) -> Diagnosis:
    """The mistake that the failed runs point to.

    Args:
        exercise: what was asked for.
        wrong: the runs that failed, at least one.
        right: the runs that passed.
    """
    plain = [run for run in wrong if not run.case.ragged] or list(wrong)
    telling = next((run for run in plain if run.fill == "random"), plain[0])
    ragged_only = all(run.case.ragged for run in wrong)
    if all(run.fill == "zeros" for run in wrong) and np.isnan(telling.got).any():
        return Diagnosis(
            "zeros give NaN: something is divided by a zero",
            "keep the divisor away from zero: jnp.maximum(divisor, smallest)",
        )
    # a suspect may leave NaN itself, where an exponential overflows: it knows better where from
    known = _suspect(exercise, telling) if np.isnan(telling.got).any() else None
    unread = known or _not_a_number(telling, ragged_only)
    if unread is not None:
        return unread
    for run in dict.fromkeys(id(run) for run in (telling, *plain)):
        found = _suspect(exercise, next(r for r in wrong if id(r) == run))
        if found is not None:
            return found
    for rule in (_precision, _factor):
        found = rule(telling)
        if found is not None:
            return found
    if ragged_only:
        return Diagnosis(
            "only shapes with a ragged edge are wrong: what lies beyond the edge is not handled",
            "mask what lies beyond the array before you use it",
        )
    lucky = sorted({run.fill for run in right} - {run.fill for run in wrong})
    if lucky and any(run.fill == "random" for run in wrong):
        names = " and ".join(lucky)
        return Diagnosis(
            f"right on {names}, wrong on random values: the agreement there is luck",
            "work through two or three elements by hand",
        )
    return Diagnosis("the result is not what was asked for", "compare the first wrong element")


def _not_a_number(run: Outcome, ragged_only: bool) -> Diagnosis | None:
    strange = np.isnan(run.got) & ~np.isnan(run.want)
    if not strange.any():
        return None
    if "devices" in run.kernel and not (run.kernel.get("vpu_flops") or run.kernel.get("mxu_flops")):
        return _never_sent(run, strange)
    calls = run.kernel.get("calls") or [{}]
    ragged_k = ragged_only and strange.mean() > 0.5
    if ragged_only and (ragged_k or not _is_tail(strange)):
        return Diagnosis(
            "the ragged edge is read as data: a block that sticks out of its array holds anything "
            "beyond the edge, here NaN, and it enters the sum",
            "mask every block you read with jnp.where before you use it; NaN times zero is NaN",
            "sum",
        )
    read_early = any(
        warning.get("rule") == "uninitialised-read" for warning in run.kernel.get("warnings") or ()
    )
    if not strange.all() and read_early:
        return Diagnosis(
            "an accumulator is initialised for some blocks of the output only: the first step of "
            "the others adds to whatever VMEM held, here NaN",
            "clear it in the first step of every block: @pl.when(pl.program_id(axis) == 0) for the "
            "axis that adds up, and for no other",
            "sum",
        )
    if not strange.all() and _one_block_written(run, strange):
        return Diagnosis(
            "part of the output is never written: every step of the grid writes the same block",
            "let the output's index map follow the grid: it returns the same indices at each step",
            "output map",
        )
    if not strange.all():
        return Diagnosis(
            "part of the output is never written: no step of the grid covers it",
            "round the grid up, pl.cdiv(size, block), and check the output's index map",
            "grid",
        )
    uncleared = any(call.get("uncleared") for call in calls)
    if uncleared:
        return Diagnosis(
            "an accumulator is not initialised: the first step adds to whatever VMEM held, which "
            "the interpreter fills with NaN",
            "set it to zero in the first step: @pl.when(pl.program_id(axis) == 0)",
            "sum",
        )
    return Diagnosis(
        "the output is never written, or from memory that nothing has written: every element is "
        "NaN, which is what the interpreter fills memory with",
        "check when the store runs, and that everything it reads has been written or waited for",
    )


def _one_block_written(run: Outcome, strange: np.ndarray) -> bool:
    """Whether only the first block of the output is written, by a grid of several steps."""
    calls = run.kernel.get("calls") or [{}]
    outputs = [item for item in calls[0].get("operands") or [] if not item.get("is_input")]
    if len(calls) != 1 or len(outputs) != 1 or np.prod(calls[0].get("grid") or [1]) < 2:
        return False
    block = tuple(int(size) for size in outputs[0]["block"])
    if len(block) != strange.ndim:
        return False
    first = strange[tuple(slice(size) for size in block)]
    return not first.any() and int((~strange).sum()) == first.size


def _never_sent(run: Outcome, strange: np.ndarray) -> Diagnosis:
    """Which copy is missing, of a kernel on several devices that does nothing but copy."""
    devices = int(run.kernel["devices"])
    sent = {(int(source), int(target)) for source, target in run.kernel["sent"]}
    reached = {target for source, target in sent if source != target}
    empty = [device for device in range(devices) if strange[device].any()]
    unsent = [device for device in empty if device not in reached]
    what = "part of the output is never written"
    if not reached:
        return Diagnosis(
            f"{what}: no copy goes from one device to another",
            "device_id names the device that receives: a neighbour, not the device itself",
            "copy",
        )
    if unsent:
        return Diagnosis(
            f"{what}: nobody sends to device {' or '.join(map(str, unsent))}",
            "work out for each device whom it sends to: each one must be named by another",
            "copy",
        )
    parts = strange[empty[0]]
    place = ""
    if parts.ndim > 1:
        rows = np.flatnonzero(parts.reshape(len(parts), -1).all(axis=1))
        shown = ", ".join(map(str, rows[:4])) + (" …" if len(rows) > 4 else "")
        place = f" [{shown}] of its result" if len(rows) else " a part of its result"
    return Diagnosis(
        f"{what}: on device {empty[0]} no copy comes into{place or ' its result'}",
        "count the steps, and work out which slot each of them fills on this device",
        "copy",
    )


def _is_tail(mask: np.ndarray) -> bool:
    """Whether the marked elements are whole rows or columns at the end, as unwritten blocks are."""
    if mask.ndim > 2:
        return bool(mask.any()) and all(_is_tail(part) for part in mask if part.any())
    if mask.ndim != 2:
        return False
    rows, cols = np.asarray(mask.all(axis=1)), np.asarray(mask.all(axis=0))
    covered = rows[:, None] | cols[None, :]
    return bool((covered == mask).all() and mask.any())


def _suspect(exercise: Exercise, run: Outcome) -> Diagnosis | None:
    if not run.blocks:
        return None
    for suspect in exercise.suspects:
        with np.errstate(all="ignore"):
            looks_like = suspect.compute(run.arguments, run.blocks)
        if looks_like is None or looks_like.shape != run.got.shape:
            continue
        # the suspect must explain the wrong elements, not only those that are right anyway, and be
        # wrong there itself: an error a little beyond the tolerance resembles the right result
        itself_wrong = ~_close(looks_like, run.want, run.allowed)
        bad = ~run.right
        agrees = _close(run.got, looks_like, 1.01 * run.allowed)
        if (
            agrees.mean() >= _AGREES
            and agrees[bad].mean() >= 0.8
            and itself_wrong[bad].mean() >= 0.5
        ):
            return Diagnosis(suspect.mistake, suspect.hint, suspect.at)
    return None


def _precision(run: Outcome) -> Diagnosis | None:
    with np.errstate(all="ignore"):
        scale = np.abs(run.want) + np.sqrt(np.mean(np.square(run.want)))
        relative = np.abs(run.got - run.want) / scale
    if not np.isfinite(relative).all():
        return None
    if relative.max() < 2.0**-6:
        return Diagnosis(
            "right to two or three digits only: somewhere the values pass through bfloat16",
            "keep float32 until the result is stored; ask jnp.dot for "
            "preferred_element_type=jnp.float32",
        )
    return None


def _factor(run: Outcome) -> Diagnosis | None:
    used = np.abs(run.want) > 1e-3 * np.abs(run.want).max(initial=0.0)
    if not used.any():
        return None
    with np.errstate(all="ignore"):
        ratio = run.got[used] / run.want[used]
    middle = float(np.median(ratio))
    if middle != 0 and np.isfinite(middle) and np.allclose(ratio, middle, rtol=1e-2):
        return Diagnosis(
            f"every element is {middle:.4g} times what it should be",
            "count how often each term is added",
        )
    return None
