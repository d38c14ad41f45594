"""Names, widths and native tiles of the element types that TPUs store."""

from __future__ import annotations

from typing import Any

from tpulab.errors import UnknownNameError

_BITS = {
    "float64": 64,
    "int64": 64,
    "uint64": 64,
    "float32": 32,
    "int32": 32,
    "uint32": 32,
    "bfloat16": 16,
    "float16": 16,
    "int16": 16,
    "uint16": 16,
    "int8": 8,
    "uint8": 8,
    "bool": 8,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float8_e4m3b11fnuz": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "int2": 2,
    "uint2": 2,
}

_SHORT = {
    "f64": "float64",
    "f32": "float32",
    "float": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "s32": "int32",
    "int": "int32",
    "i16": "int16",
    "s16": "int16",
    "i8": "int8",
    "s8": "int8",
    "i4": "int4",
    "s4": "int4",
    "i2": "int2",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "u4": "uint4",
    "u2": "uint2",
    "bool_": "bool",
    "pred": "bool",
    "fp8": "float8_e4m3fn",
    "f8": "float8_e4m3fn",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp4": "float4_e2m1fn",
    "f4e2m1fn": "float4_e2m1fn",
}

# operand types that the matrix unit treats like a catalogued one
_PEAK_OF = {
    "float8_e5m2": "float8_e4m3fn",
    "float8_e4m3b11fnuz": "float8_e4m3fn",
    "uint8": "int8",
    "uint4": "int4",
}


def dtype_name(dtype: Any) -> str:
    """Full name of a dtype given as a name, a short name ("bf16"), a NumPy or a JAX dtype.

    Raises:
        UnknownNameError: no element type of that name.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name is None:
        name = getattr(dtype, "__name__", str(dtype))
    name = name.strip().lower()
    name = _SHORT.get(name, name)
    if name not in _BITS:
        raise UnknownNameError("dtype", name, _BITS)
    return name


def canonical_dtype(dtype: Any) -> str:
    """The catalogued operand dtype whose matmul peak applies to `dtype`."""
    name = dtype_name(dtype)
    return _PEAK_OF.get(name, name)


def bits(dtype: Any) -> int:
    """Bits one element takes in memory."""
    return _BITS[dtype_name(dtype)]


def bytes_of(count: int, dtype: Any) -> int:
    """Bytes that `count` elements take; sub-byte types are packed, the last byte rounded up."""
    return -(-count * bits(dtype) // 8)


def native_tile(dtype: Any) -> tuple[int, int]:
    """(sublanes, lanes) of the VMEM tile of a dtype: one 8x128 register of 32-bit words.

    Narrower types pack along sublanes: float32 (8, 128), bfloat16 (16, 128), int8 (32, 128),
    int4 (64, 128). 64-bit types have no tile of their own and are given that of 32-bit words.
    Source: JAX Pallas documentation, TPU details; `infer_tiling` in JAX's TpuInfo.
    """
    return 8 * max(1, 32 // bits(dtype)), 128
