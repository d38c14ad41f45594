"""Arguments as text: ``"bf16[4096,4096]"``, ``"i32[3]=[0,1,2]"``, ``"f32[]=1.5"``."""

from __future__ import annotations

import json
import re
from typing import Any

from tpulab.errors import UsageError

#: Short dtype names, as in HLO, beside the canonical ones.
_DTYPES = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "s2": "int2",
    "s4": "int4",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "i2": "int2",
    "i4": "int4",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "u2": "uint2",
    "u4": "uint4",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "bool": "bool",
    "pred": "bool",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3b11fnuz": "float8_e4m3b11fnuz",
    "f8e5m2": "float8_e5m2",
    "f4e2m1fn": "float4_e2m1fn",
    "fp8": "float8_e4m3fn",
    "fp4": "float4_e2m1fn",
}
_WIDE = {"f64": "float64", "i64": "int64", "s64": "int64", "u64": "uint64"}
_FORM = re.compile(r"\s*([A-Za-z]\w*)\s*\[([^\]]*)\]\s*(?:=(.*))?\Z", re.DOTALL)
_HINT = "write DTYPE[SIZES], for example bf16[4096,4096], or with values i32[3]=[0,1,2]"


def parse_argument(text: str) -> Any:
    """Read one argument.

    Args:
        text: ``DTYPE[SIZES]`` gives a ``jax.ShapeDtypeStruct``; ``DTYPE[SIZES]=VALUES`` with a
            JSON list or number gives a numpy array of that shape (a single number fills it).

    Raises:
        UsageError: not of that form, unknown dtype, or values that don't fit.
    """
    match = _FORM.match(text)
    if match is None:
        raise UsageError(f"can't read {text!r} as an argument", hint=_HINT)
    name, sizes, values = match.groups()
    dtype = _dtype(name, text)
    shape = _shape(sizes, text)
    if values is None:
        import jax

        return jax.ShapeDtypeStruct(shape, dtype)
    return _array(values, shape, dtype, text)


def _dtype(name: str, text: str) -> Any:
    import jax.numpy as jnp

    canonical = _DTYPES.get(name.lower(), name.lower())
    if canonical in _WIDE or canonical in _WIDE.values():
        raise UsageError(
            f"{name} in {text!r} is a 64-bit type",
            why="a TPU core is a 32-bit machine",
            hint="use f32, i32 or u32",
        )
    if canonical not in _DTYPES.values():
        import difflib

        close = difflib.get_close_matches(name.lower(), _DTYPES, n=1)
        known = "bf16, f32, i32, u32, i8, u8, i4, bool, f8e4m3fn, f8e5m2, f4e2m1fn"
        raise UsageError(
            f"{name!r} in {text!r} is not a dtype; known: {known}",
            hint=f"did you mean {close[0]}?" if close else _HINT,
        )
    return jnp.dtype(canonical)


def _shape(sizes: str, text: str) -> tuple[int, ...]:
    if not sizes.strip():
        return ()
    shape = []
    for part in sizes.split(","):
        if not re.fullmatch(r"\s*\d+(_\d+)*\s*", part, re.ASCII):
            raise UsageError(f"{part.strip()!r} in {text!r} is not a size", hint=_HINT)
        shape.append(int(part))
    return tuple(shape)


def _array(values: str, shape: tuple[int, ...], dtype: Any, text: str) -> Any:
    import numpy as np

    try:
        array = np.asarray(json.loads(values))
        if array.dtype == object or array.dtype.kind not in "iufb":
            raise ValueError("not a list of numbers")
    except ValueError as error:
        raise UsageError(
            f"can't read the values in {text!r}: {error}",
            hint="write a JSON list of numbers, nested as the shape is, or one number",
        ) from error
    if array.ndim == 0:
        array = np.full(shape, array)
    if array.shape != shape:
        raise UsageError(
            f"the values in {text!r} have shape {list(array.shape)}, not {list(shape)}",
            hint="give as many values as the shape says, or one number to fill it",
        )
    if np.issubdtype(dtype, np.integer) and array.dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise UsageError(f"a value in {text!r} doesn't fit {dtype}")
    return array.astype(dtype)
