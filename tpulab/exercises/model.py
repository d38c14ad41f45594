"""What an exercise is made of: frozen dataclasses without behaviour beyond small derived values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: The order of the verdicts; a known-wrong answer names one of them.
STEPS = ("legal", "correct", "safe", "compiles", "fast")

#: Bytes of one element, for the dtypes that exercises use.
ITEM_BYTES: Mapping[str, int] = {
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    "float8_e4m3fn": 1,
}

_SHORT = {
    "float32": "f32",
    "int32": "i32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int8": "i8",
    "float8_e4m3fn": "f8_e4m3",
}


@dataclass(frozen=True)
class ArgumentSpec:
    """Shape and dtype of one argument or result."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the array, unpadded."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{_SHORT.get(self.dtype, self.dtype)}[{','.join(map(str, self.shape))}]"


#: Results are described like arguments.
ResultSpec = ArgumentSpec


@dataclass(frozen=True)
class Case:
    """One set of shapes that the answer is run on, and the values it is filled with.

    Attributes:
        name: what the case is about, as the learner reads it.
        arguments: shapes and dtypes of the arguments.
        fills: names of the value patterns (:mod:`tpulab.exercises.values`), one run each.
        ragged: whether blocks of the size that the statement suggests stick out of an array.
    """

    name: str
    arguments: tuple[ArgumentSpec, ...]
    fills: tuple[str, ...] = ("random",)
    ragged: bool = False

    def __str__(self) -> str:
        return ", ".join(map(str, self.arguments))


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the float64 oracle, element by element.

    ``rounding × eps(result) × |oracle| + growth × sqrt(depth) × eps(accumulator) × magnitude``

    ``magnitude`` is the float64 sum of the absolute values of the terms of each element and
    ``depth`` their number: rounding errors of a sum grow with them in proportion, with the square
    root of the depth in the usual case (Higham, *Accuracy and Stability of Numerical Algorithms*,
    section 4.2).
    """

    accumulator: str = "float32"
    rounding: float = 1.0
    growth: float = 4.0


@dataclass(frozen=True)
class Rung:
    """A band of speed: reached when bound ÷ predicted time is at least ``fraction``."""

    name: str
    fraction: float


@dataclass(frozen=True)
class Suspect:
    """A mistake that can be recognised from the wrong numbers it leaves.

    Attributes:
        mistake: the sentence that names it.
        hint: one thing to try.
        compute: what the result would be with this mistake, in float64, from the float64
            arguments and the block shape of each operand (inputs, then outputs; None where the
            kernel has another number of operands). Returns None when it does not apply.
        at: the line that is shown with it: the kernel's "store" or "sum", or the call's "grid" or
            "index map".
    """

    mistake: str
    hint: str
    compute: Callable[[tuple[np.ndarray, ...], tuple[tuple[int, ...], ...]], np.ndarray | None]
    at: str = "store"


@dataclass(frozen=True)
class KnownWrong:
    """An answer that must not pass.

    Attributes:
        function: ``module:function`` of the answer.
        step: the verdict it must fail at, one of :data:`STEPS`.
        mistake: the mistake in the terms of the field.
        says: words of which the verdict must contain at least one, lower case.
        chips: chips to judge it on when not the exercise's own.
    """

    function: str
    step: str
    mistake: str
    says: tuple[str, ...]
    chips: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Work:
    """The least that the exercise demands for given shapes, whoever does it.

    Attributes:
        matmul_flops: multiply-adds of matrix products, two operations each.
        vector_flops: other arithmetic.
        bytes: each argument read once, each result written once.
        dtype: the dtype whose matrix peak bounds the time.
        collective: what the links between devices have to do at least, for an exercise with a
            mesh: "all-gather", "reduce-scatter", "all-reduce", "all-to-all", or "permute" when
            every device sends to one neighbour. Its least time on a slice of the chip, by
            :func:`tpulab.roofline.links.collective_cost` (both ways of every link in use, and
            never less than the hops that cannot be avoided), is the bound that ``fast`` and the
            rungs are held against.
        link_bytes: what the collective is about: bytes of the whole gathered, reduced or exchanged
            array, over all devices; for "permute" what one device sends.

    With a mesh all other figures are of one device.
    """

    matmul_flops: int
    vector_flops: int
    bytes: int
    dtype: str
    collective: str = ""
    link_bytes: int = 0

    @property
    def flops(self) -> int:
        """All arithmetic."""
        return self.matmul_flops + self.vector_flops


@dataclass(frozen=True)
class Exercise:
    """One thing to write, and everything needed to judge it.

    Attributes:
        name: ``track.function``.
        title: a few words.
        statement: what to write, in Markdown, second person.
        signature: the ``def`` line and docstring of the scaffold.
        solution: ``NN_name.py:function`` below ``solutions/``.
        oracle: float64 arguments → float64 result; pure NumPy.
        magnitude: float64 arguments → sum of absolute terms, broadcastable to the result.
        depth: arguments → number of terms of one element.
        result: arguments → shape and dtype of the result.
        work: arguments → least work.
        cases: what correctness is judged on; the first is the smallest.
        faithful: arguments for the faithful interpreter: few grid steps, several blocks.
        speed: arguments for the compiler and the clock.
        chips: chips it is judged on unless told otherwise; the first one leads.
        rungs: speed bands, slowest first; the first is what ``fast`` needs.
        hints: from a nudge to nearly the answer.
        allowed_outside: primitives that may work on whole arrays outside the kernel besides
            casts and changes of shape.
        mesh_axis: name of the mesh axis of an exercise for several devices, None for one device.
            With it, the first dimension of every argument and of the result counts the devices:
            each device runs the answer under ``shard_map`` on its own slice, that dimension
            removed, and the slices of all devices make up the result. How many devices there are
            is therefore part of the shapes, for cases, for the faithful run and for speed.
    """

    name: str
    title: str
    statement: str
    signature: str
    solution: str
    oracle: Callable[..., np.ndarray]
    magnitude: Callable[..., np.ndarray]
    depth: Callable[[tuple[ArgumentSpec, ...]], int]
    result: Callable[[tuple[ArgumentSpec, ...]], ArgumentSpec]
    work: Callable[[tuple[ArgumentSpec, ...]], Work]
    cases: tuple[Case, ...]
    faithful: tuple[ArgumentSpec, ...]
    speed: tuple[ArgumentSpec, ...]
    hints: tuple[str, ...]
    rungs: tuple[Rung, ...]
    chips: tuple[str, ...] = ("v5e", "v6e")
    tolerance: Tolerance = field(default_factory=Tolerance)
    known_wrong: tuple[KnownWrong, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    allowed_outside: frozenset[str] = frozenset()
    deadline_seconds: float = 60.0
    mesh_axis: str | None = None

    def devices(self, arguments: tuple[ArgumentSpec, ...]) -> int:
        """How many devices these arguments are spread over: 1 without a mesh."""
        return 1 if self.mesh_axis is None else arguments[0].shape[0]

    @property
    def track(self) -> str:
        """The part of the name before the dot."""
        return self.name.partition(".")[0]

    @property
    def function_name(self) -> str:
        """The part of the name after the dot: the function to write."""
        return self.name.partition(".")[2]

    @property
    def scaffold(self) -> str:
        """Source of a module that runs as it stands and is *not attempted*."""
        body = "    # TODO(learner): write the kernel and the call\n    raise NotImplementedError\n"
        return f"import jax\n\n\n{self.signature.rstrip()}\n{body}"

    @property
    def arity(self) -> int:
        """Number of arguments."""
        return len(self.speed)

    def tolerance_for(self, arguments: tuple[np.ndarray, ...], want: np.ndarray) -> np.ndarray:
        """Allowed absolute error of each element.

        Args:
            arguments: the float64 arguments.
            want: the float64 oracle's result.

        Returns:
            float64 array of ``want``'s shape.
        """
        specs = tuple(ArgumentSpec(tuple(a.shape), "float32") for a in arguments)
        magnitude = np.broadcast_to(self.magnitude(*arguments), want.shape)
        result_dtype = self.result(specs).dtype
        rounding = self.tolerance.rounding * machine_epsilon(result_dtype)
        growth = (
            self.tolerance.growth
            * math.sqrt(max(1, self.depth(specs)))
            * machine_epsilon(self.tolerance.accumulator)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            return rounding * np.abs(want) + growth * magnitude


def machine_epsilon(dtype: str) -> float:
    """Distance from 1 to the next number of ``dtype``; 0 for integers."""
    return {
        "float64": 2.0**-52,
        "float32": 2.0**-23,
        "float16": 2.0**-10,
        "bfloat16": 2.0**-7,
        "float8_e4m3fn": 2.0**-3,
    }.get(dtype, 0.0)


def as_dtype(dtype: str) -> Any:
    """The NumPy dtype of a name, with bfloat16 and fp8 from ml_dtypes."""
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype))
