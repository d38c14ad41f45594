"""Cases that are not in the learner's copy: other shapes and other values.

They come from a secret of the person who grades, so that a class gets the same ones and nobody
knows them before. More can be written by hand in a TOML file::

    [[case]]
    exercise = "matmul.tiled"
    name = "everything ragged"
    arguments = ["bf16[520,712]", "bf16[712,648]"]
    fills = ["random", "ramp"]      # of tpulab.exercises.values; random when left out
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from tpulab.errors import TpulabError, UsageError
from tpulab.exercises import ArgumentSpec, Case, Exercise, get_exercise
from tpulab.exercises.model import ITEM_BYTES
from tpulab.exercises.values import FILLS, make_arguments

#: How many derived cases an exercise gets.
DERIVED_CASES = 2
_ATTEMPTS = 400
# as many times more are drawn as are taken
_CHOICE = 4
_ARGUMENT = re.compile(r"([a-z0-9_]+)\[([0-9, ]+)\]")
_LONG_NAMES = {
    "f32": "float32",
    "i32": "int32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i8": "int8",
    "f8_e4m3": "float8_e4m3fn",
}
#: elements of all arguments of a case written by hand; the interpreter takes minutes for more
_MAX_ELEMENTS = 1 << 24


def secret(home: Path) -> str:
    """The secret of this machine's grader, made on first use and kept from then on.

    A home that cannot be written gives another one for each run.
    """
    file = home / "grading-secret"
    with contextlib.suppress(OSError):
        known = file.read_text(encoding="ascii").strip()
        if known:
            return known
    made = secrets.token_hex(16)
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(made + "\n")
    return made


def seed_of(secret_text: str, exercise: str) -> int:
    """Seed of the random values that an exercise is graded with."""
    return _number("values", secret_text, exercise) % (1 << 31)


def _number(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8], "big")


# ---- derived cases


def derived(exercise: Exercise, secret_text: str, count: int = DERIVED_CASES) -> tuple[Case, ...]:
    """Cases of other shapes than the exercise shows, the same for the same secret.

    A shape is made of what the exercise's own shapes have in common: sizes that are always equal
    stay equal, sizes stay within what its cases use and keep their common divisor, their order and
    the divisors of their ratios. An exercise for whole blocks therefore never gets a ragged shape.
    Where no other shape can be made, the exercise's own get values that they are not shown with.

    Args:
        exercise: what is graded.
        secret_text: the grader's secret.
        count: how many cases at most.
    """
    rng = np.random.default_rng(_number("shapes", secret_text, exercise.name))
    own_fills = sorted({fill for case in exercise.cases for fill in case.fills} | {"random"})
    taken = {case.arguments for case in exercise.cases}
    most_elements = max(_elements(case.arguments) for case in exercise.cases)
    most_flops = max(_flops(exercise, case.arguments) for case in exercise.cases)
    ragged = any(case.ragged for case in exercise.cases)
    space = _ShapeSpace.of(exercise)
    drawn: dict[tuple[ArgumentSpec, ...], float] = {}
    for _ in range(_ATTEMPTS if space is not None else 0):
        assert space is not None
        arguments = space.draw(rng)
        if arguments is None or arguments in taken or _elements(arguments) > most_elements:
            continue
        if (flops := _flops(exercise, arguments)) <= most_flops:
            drawn[arguments] = flops
        if len(drawn) == _CHOICE * count:
            break
    # the smallest say the least and the largest take longest: begin between them
    ordered = sorted(drawn, key=drawn.__getitem__)
    ordered = ordered[len(ordered) // 4 :] + ordered[: len(ordered) // 4]
    found: list[Case] = []
    for arguments in ordered:
        if len(found) == count:
            break
        if not _answerable(exercise, arguments):
            continue
        fills = dict.fromkeys(("random", own_fills[rng.integers(len(own_fills))]))
        found.append(Case(f"hidden case {len(found) + 1}", arguments, tuple(fills), ragged))
    if found:
        return tuple(found)
    case = exercise.cases[0]
    other = tuple(fill for fill in own_fills if fill not in case.fills) or ("random",)
    return (Case("hidden case 1", case.arguments, other[:2], case.ragged),)


def _elements(arguments: Sequence[ArgumentSpec]) -> int:
    return sum(math.prod(spec.shape) for spec in arguments)


def _flops(exercise: Exercise, arguments: tuple[ArgumentSpec, ...]) -> float:
    """Work for a set of shapes; infinite where the exercise cannot say."""
    try:
        return exercise.work(arguments).flops
    except Exception:  # noqa: BLE001 - as the oracle, it may refuse a shape in any way
        return math.inf


def _answerable(exercise: Exercise, arguments: tuple[ArgumentSpec, ...]) -> bool:
    """Whether the oracle has an answer, of the shape that the exercise promises."""
    try:
        inputs = tuple(array.astype(np.float64) for array in make_arguments(arguments, "random", 0))
        with np.errstate(all="ignore"):
            want = exercise.oracle(*inputs)
            tolerance = exercise.tolerance_for(inputs, want)
    except Exception:  # noqa: BLE001 - an oracle may refuse a shape in any way
        return False
    return (
        tuple(want.shape) == tuple(exercise.result(arguments).shape)
        and bool(np.isfinite(want).all())
        and bool(np.isfinite(tolerance).all())
    )


class _ShapeSpace:
    """Shapes that obey whatever holds for all shapes of an exercise.

    A size is a column: its values in every set of shapes that the exercise names. Dimensions with
    the same column are the same size.
    """

    def __init__(
        self, specs: tuple[ArgumentSpec, ...], columns: list[list[tuple[int, ...]]], shown: int
    ) -> None:
        self.specs = specs
        self.columns = columns
        self.sizes = list(dict.fromkeys(column for shape in columns for column in shape))
        self.choices = {size: _choices(size, shown) for size in self.sizes}

    @classmethod
    def of(cls, exercise: Exercise) -> _ShapeSpace | None:
        """The space of an exercise; None when its shapes have different ranks."""
        cases = [case.arguments for case in exercise.cases]
        every = [*cases, exercise.faithful, exercise.speed]
        ranks = {tuple(len(spec.shape) for spec in arguments) for arguments in every}
        if len(ranks) != 1 or len({len(arguments) for arguments in every}) != 1:
            return None
        first = every[0]
        columns = [
            [
                tuple(arguments[position].shape[axis] for arguments in every)
                for axis in range(len(spec.shape))
            ]
            for position, spec in enumerate(first)
        ]
        space = cls(first, columns, shown=len(every) - 1)
        if exercise.mesh_axis is not None:
            # a mesh has as many devices as a slice of the chip can have
            devices = columns[0][0]
            space.choices[devices] = sorted(set(devices[:-1]))
        return space

    def draw(self, rng: np.random.Generator) -> tuple[ArgumentSpec, ...] | None:
        """One set of shapes, None when the draw breaks a relation between sizes."""
        drawn = {size: int(rng.choice(self.choices[size])) for size in self.sizes}
        for one, other in permutations(self.sizes, 2):
            if not _related_alike(one, other, drawn[one], drawn[other]):
                return None
        return tuple(
            ArgumentSpec(tuple(drawn[size] for size in shape), spec.dtype)
            for spec, shape in zip(self.specs, self.columns)
        )


def _choices(size: tuple[int, ...], shown: int) -> list[int]:
    """What a size may be: within the shown cases, with the divisor that all have in common."""
    low, high = min(size[:shown]), max(size[:shown])
    step = math.gcd(*size)
    values = range(low, high + 1, step)
    if all(value & (value - 1) == 0 for value in size):
        return [value for value in values if value & (value - 1) == 0]
    return list(values)


def _related_alike(
    one: tuple[int, ...], other: tuple[int, ...], drawn_one: int, drawn_other: int
) -> bool:
    """Whether two drawn sizes keep the order and the divisibility that all the known ones have."""
    if all(a <= b for a, b in zip(one, other)) and drawn_one > drawn_other:
        return False
    if all(b % a == 0 for a, b in zip(one, other)):
        common = math.gcd(*(b // a for a, b in zip(one, other)))
        return drawn_other % drawn_one == 0 and (drawn_other // drawn_one) % common == 0
    return True


# ---- cases written by hand


def from_file(path: Path) -> dict[str, tuple[Case, ...]]:
    """Cases by exercise, from a TOML file.

    Raises:
        UsageError: the file does not hold cases; the sentence says which one and why.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the hidden cases in {path} cannot be read: {error}") from error
    entries = data.get("case")
    if not isinstance(entries, list) or set(data) != {"case"}:
        raise UsageError(
            f"{path} holds no list of cases",
            hint='begin each case with [[case]] and exercise = "…"',
        )
    found: dict[str, tuple[Case, ...]] = {}
    for number, entry in enumerate(entries, 1):
        try:
            name, case = _case(entry, number)
        except TpulabError as error:
            raise UsageError(
                f"case {number} in {path.name}: {error.what}", why=error.why, hint=error.hint
            ) from error
        found[name] = (*found.get(name, ()), case)
    return found


def _case(entry: Mapping[str, Any], number: int) -> tuple[str, Case]:
    unknown = set(entry) - {"exercise", "name", "arguments", "fills", "ragged"}
    if unknown:
        raise UsageError(f"there is no key {sorted(unknown)[0]!r}")
    exercise = get_exercise(entry.get("exercise", ""))
    arguments = tuple(_argument(text) for text in entry.get("arguments", ()))
    want = [spec.dtype for spec in exercise.speed]
    if [spec.dtype for spec in arguments] != want:
        raise UsageError(
            f"{exercise.name} takes {', '.join(map(str, exercise.speed))}",
            hint="give as many arguments, of the same dtypes",
        )
    fills = tuple(entry.get("fills", ("random",)))
    for fill in fills:
        if fill not in FILLS:
            raise UsageError(f"there is no fill {fill!r}", hint=f"one of {', '.join(FILLS)}")
    if _elements(arguments) > _MAX_ELEMENTS:
        raise UsageError(f"more than {_MAX_ELEMENTS:,} elements take minutes to interpret")
    if not _answerable(exercise, arguments):
        raise UsageError(
            f"the oracle of {exercise.name} has no answer for {', '.join(map(str, arguments))}",
            hint="do the shapes belong together?",
        )
    label = str(entry.get("name") or f"number {number} of the file")
    return exercise.name, Case(
        f"hidden case: {label}", arguments, fills, bool(entry.get("ragged", False))
    )


def _argument(text: Any) -> ArgumentSpec:
    found = _ARGUMENT.fullmatch(str(text).strip())
    dtype = _LONG_NAMES.get(found[1], found[1]) if found else ""
    if not found or dtype not in ITEM_BYTES:
        raise UsageError(f"{text!r} is no argument", hint="write 'bf16[512,640]'")
    shape = tuple(int(size) for size in found[2].split(",") if size.strip())
    if not shape or min(shape) < 1:
        raise UsageError(f"{text!r} has no elements")
    return ArgumentSpec(shape, dtype)


def hidden_cases(
    exercise: Exercise, secret_text: str, by_hand: Mapping[str, tuple[Case, ...]]
) -> tuple[Case, ...]:
    """All hidden cases of an exercise."""
    return (*derived(exercise, secret_text), *by_hand.get(exercise.name, ()))
