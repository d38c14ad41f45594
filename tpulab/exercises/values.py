"""The values that cases are filled with: random ones of a per-run seed, and structured ones.

Structured values each catch a kind of luck: zeros hide additions, ones hide orderings, a ramp makes
every element different (swapped blocks show), extremes overflow what is kept too narrow.
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


FILLS: dict[str, Callable[[np.random.Generator, tuple[int, ...], int], np.ndarray]] = {
    "random": _random,
    "zeros": _zeros,
    "ones": _ones,
    "ramp": _ramp,
    "extremes": _extremes,
    "identity": _identity,
}


def make_arguments(specs: tuple[ArgumentSpec, ...], fill: str, seed: int) -> tuple[np.ndarray, ...]:
    """Arrays of the given shapes and dtypes.

    Args:
        specs: shapes and dtypes.
        fill: a key of :data:`FILLS`.
        seed: the same seed gives the same arrays.
    """
    rng = np.random.default_rng([seed, sorted(FILLS).index(fill)])
    return tuple(
        np.ascontiguousarray(FILLS[fill](rng, spec.shape, position)).astype(as_dtype(spec.dtype))
        for position, spec in enumerate(specs)
    )
