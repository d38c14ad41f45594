"""Scalar arithmetic of index maps and kernels, evaluated for all grid steps at once with numpy.

A known value is a numpy array with a leading axis of *lanes*: one entry per grid step, or a single
entry when all steps agree. What depends on data that is not at hand is ``UNKNOWN``, and stays so
through arithmetic. Integer operations wrap and truncate as they do on the chip's 32-bit core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpulab.kernel import jax_internals
from tpulab.kernel.instructions import UNKNOWN, Instruction, lanes_of

__all__ = ["SIMPLE", "UNKNOWN", "evaluate", "is_known", "lanes_of"]

#: Elements, over all lanes, beyond which a value is not worth following.
_MAX_ELEMENTS = 1 << 22


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if np.issubdtype(x.dtype, np.floating):
        return x / y
    safe = np.where(y == 0, 1, y)
    # lax.div truncates towards zero, numpy's // floors
    return (np.sign(x) * np.sign(safe)) * (np.abs(x) // np.abs(safe))


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if np.issubdtype(x.dtype, np.floating):
        return np.fmod(x, y)
    safe = np.where(y == 0, 1, y)
    return np.fmod(x, safe)


def _not(x: np.ndarray) -> np.ndarray:
    return ~x if x.dtype != np.bool_ else np.logical_not(x)


def _logical_shift(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return (x.view(unsigned) >> y.astype(unsigned)).view(x.dtype)


_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "rem": _remainder,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": _not,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "shift_right_logical": _logical_shift,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "is_finite": np.isfinite,
    "square": np.square,
    "nextafter": np.nextafter,
}

_PASS_THROUGH = frozenset(
    {"copy", "copy_p", "stop_gradient", "multiple_of", "optimization_barrier", "pvary", "touch"}
)

#: primitives whose evaluation would run or wait for something
_NEVER = frozenset({"dma_start", "dma_wait", "semaphore_signal", "semaphore_wait", "delay"})


#: Primitives that numpy evaluates here, without JAX.
SIMPLE = (
    frozenset(_ELEMENTWISE)
    | _PASS_THROUGH
    | {"convert_element_type", "select_n", "clamp", "integer_pow"}
    | {"squeeze", "reshape", "expand_dims"}
)


def is_known(*values: Any) -> bool:
    """True when none of the values is ``UNKNOWN`` or a Ref."""
    return all(isinstance(value, np.ndarray) for value in values)


def _align(values: Sequence[np.ndarray], rank: int) -> list[np.ndarray]:
    """Give scalars among array operands the trailing axes that broadcasting needs."""
    return [
        value.reshape(value.shape + (1,) * (rank + 1 - value.ndim)) if value.ndim <= rank else value
        for value in values
    ]


def evaluate(instruction: Instruction, values: Sequence[Any]) -> list[Any]:
    """Results of one equation without sub-jaxprs; ``UNKNOWN`` where it can't be told."""
    for value in values:
        if not isinstance(value, np.ndarray):
            return _partly_known(instruction, values) or [UNKNOWN] * len(instruction.outputs)
    if instruction.name in _NEVER:
        return [UNKNOWN] * len(instruction.outputs)
    shape = instruction.out_shape
    if shape:
        lanes = max((value.shape[0] for value in values), default=1)
        if math.prod(shape) * lanes > _MAX_ELEMENTS:
            return [UNKNOWN] * len(instruction.outputs)
    try:
        return _evaluate_known(instruction, values)
    except Exception:  # noqa: BLE001 - a value that can't be followed is less precise, no error
        return [UNKNOWN] * len(instruction.outputs)


def _evaluate_known(instruction: Instruction, values: Sequence[np.ndarray]) -> list[Any]:
    name, shape = instruction.name, instruction.out_shape
    rank = len(shape)
    if name in _ELEMENTWISE:
        operands = values if not shape else _align(values, rank)
        result = _ELEMENTWISE[name](*operands)
        return [result.astype(instruction.out_dtype, copy=False)]
    if name in _PASS_THROUGH:
        return list(values)
    if name == "convert_element_type":
        return [values[0].astype(instruction.out_dtype)]
    if name == "select_n":
        which, *cases = _align(values, rank)
        if len(cases) == 2:
            result = np.where(which, cases[1], cases[0])
        else:
            result = cases[0]
            for position, case in enumerate(cases[1:], start=1):
                result = np.where(which == position, case, result)
        return [result.astype(instruction.out_dtype, copy=False)]
    if name == "clamp":
        low, value, high = _align(values, rank)
        return [np.minimum(np.maximum(value, low), high)]
    if name == "integer_pow":
        return [(values[0] ** instruction.params["y"]).astype(values[0].dtype)]
    if name in ("squeeze", "reshape", "expand_dims"):
        return [values[0].reshape((values[0].shape[0], *shape))]
    if name == "broadcast_in_dim" and values[0].ndim == 1:
        flat = values[0].reshape((-1,) + (1,) * rank)
        return [np.broadcast_to(flat, (flat.shape[0], *shape))]
    # anything else small and known: ask JAX itself
    if any(True for _ in jax_internals.inner_jaxprs(instruction.params)):
        return [UNKNOWN] * len(instruction.outputs)
    return list(jax_internals.evaluate_vectorised(instruction.equation, values))


def _partly_known(instruction: Instruction, values: Sequence[Any]) -> list[Any] | None:
    """Results that one known operand decides alone: false and x, true or x, 0 times x."""
    name = instruction.name
    if name not in ("and", "or", "mul") or len(values) != 2 or instruction.out_shape:
        return None
    for value in values:
        if not isinstance(value, np.ndarray):
            continue
        if name in ("and", "mul") and not value.any():
            return [value]
        if name == "or" and value.dtype == np.bool_ and value.all():
            return [value]
    return None
