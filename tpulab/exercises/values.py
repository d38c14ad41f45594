"""The values that cases are filled with: random ones of a per-run seed, and structured ones.

Structured values each catch a kind of luck: zeros hide additions, ones hide orderings, a ramp makes
every element different (swapped blocks show), extremes overflow what is kept too narrow. For a
softmax: exponentials of large products overflow, those of opposed ones vanish, and where values are
rising the maximum comes late.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tpulab.exercises.model import ArgumentSpec, as_dtype


def _random(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    return rng.standard_normal(shape)


def _zeros(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    return np.zeros(shape)


def _ones(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    return np.ones(shape)


def _ramp(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    size = int(np.prod(shape))
    ramp = (np.arange(size) - size / 2) / max(1, size / 4)
    return (ramp if position % 2 == 0 else ramp[::-1]).reshape(shape)


def _extremes(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    # big enough that float16 or a product of three would overflow, and never beyond float32
    exponents = rng.integers(-40, 41, size=shape)
    signs = rng.choice(np.array([-1.0, 1.0]), size=shape)
    return signs * np.exp2(exponents)


def _identity(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    # the first argument selects rows of the others, which keep different values everywhere
    if position == 0 and len(shape) == 2:
        return np.eye(*shape)
    return rng.standard_normal(shape)


def _large(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    # products of two arguments reach hundreds: their exponential overflows float32
    return 6 * rng.standard_normal(shape)


def _opposed(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    # products of two neighbouring arguments are far below zero, and nearly equal
    return (-1) ** position * (4 + 0.25 * rng.standard_normal(shape))


def _rising(rng: np.random.Generator, shape: tuple[int, ...], position: int) -> np.ndarray:
    # rows grow towards the end: a maximum over rows comes late
    rows = shape[-2] if len(shape) > 1 else shape[-1]
    growth = 4 * np.arange(1, rows + 1) / rows
    return rng.standard_normal(shape) * (growth[:, None] if len(shape) > 1 else growth)


#: The number of a pattern in this table is part of its seed: new ones go to the end.
FILLS: dict[str, Callable[[np.random.Generator, tuple[int, ...], int], np.ndarray]] = {
    "extremes": _extremes,
    "identity": _identity,
    "ones": _ones,
    "ramp": _ramp,
    "random": _random,
    "zeros": _zeros,
    "large": _large,
    "opposed": _opposed,
    "rising": _rising,
}


def make_arguments(specs: tuple[ArgumentSpec, ...], fill: str, seed: int) -> tuple[np.ndarray, ...]:
    """Arrays of the given shapes and dtypes.

    Args:
        specs: shapes and dtypes.
        fill: a key of :data:`FILLS`.
        seed: the same seed gives the same arrays.
    """
    rng = np.random.default_rng([seed, list(FILLS).index(fill)])
    return tuple(
        _held(np.ascontiguousarray(FILLS[fill](rng, spec.shape, position)), spec.dtype)
        for position, spec in enumerate(specs)
    )


def _held(values: np.ndarray, dtype: str) -> np.ndarray:
    """The values in a dtype; what is not whole is spread over the range of int8, as weights are."""
    if dtype == "int8" and not np.array_equal(values, np.rint(values)):
        values = np.clip(np.rint(40 * values), -127, 127)
    return values.astype(as_dtype(dtype))
