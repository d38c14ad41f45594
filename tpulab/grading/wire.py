"""Messages between the judge and the process that runs the learner's code.

A message is a JSON header and any number of raw byte strings. Nothing is ever unpickled on the
judge's side: what comes back is text, numbers and plain arrays, and each is checked.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import numpy as np

#: A message larger than this is not read: the largest result of any exercise is far below.
MAX_MESSAGE_BYTES = 1 << 30
_LENGTHS = struct.Struct("<II")
_LONG = struct.Struct("<Q")

#: dtypes that a message may carry; anything else is refused.
ARRAY_DTYPES = frozenset(
    {
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "bfloat16",
        "int4",
        "uint4",
        "float8_e4m3fn",
        "float8_e5m2",
        "float4_e2m1fn",
    }
)


class MalformedMessageError(Exception):
    """The other side sent something that is not a message."""


def encode(header: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> bytes:
    """One message as bytes."""
    text = json.dumps(header).encode()
    parts = [_LENGTHS.pack(len(text), len(blobs)), text]
    for blob in blobs:
        parts.append(_LONG.pack(len(blob)))
        parts.append(bytes(blob))
    return b"".join(parts)


def decode(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]] | None:
    """The next message, or None at the end of the stream.

    Raises:
        MalformedMessageError: the bytes are not a message, or it is too large.
    """
    start = stream.read(_LENGTHS.size)
    if not start:
        return None
    _need(start, _LENGTHS.size)
    text_bytes, count = _LENGTHS.unpack(start)
    if text_bytes > MAX_MESSAGE_BYTES or count > 4096:
        raise MalformedMessageError("message too large")
    text = _need(stream.read(text_bytes), text_bytes)
    blobs: list[bytes] = []
    total = text_bytes
    for _ in range(count):
        (size,) = _LONG.unpack(_need(stream.read(_LONG.size), _LONG.size))
        total += size
        if total > MAX_MESSAGE_BYTES:
            raise MalformedMessageError("message too large")
        blobs.append(_need(stream.read(size), size))
    try:
        header = json.loads(text)
    except ValueError as error:
        raise MalformedMessageError("header is not JSON") from error
    if not isinstance(header, dict):
        raise MalformedMessageError("header is not an object")
    return header, blobs


def _need(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise MalformedMessageError("the message ends early")
    return data


def pack_arrays(arrays: Sequence[Any]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Descriptions (shape, dtype) and raw bytes of arrays."""
    import numpy as np

    described, blobs = [], []
    for array in arrays:
        array = np.ascontiguousarray(array)
        described.append({"shape": list(array.shape), "dtype": array.dtype.name})
        blobs.append(array.tobytes())
    return described, blobs


def unpack_arrays(described: Any, blobs: Sequence[bytes]) -> list[np.ndarray]:
    """Arrays from their descriptions and bytes.

    Raises:
        MalformedMessageError: a description does not fit its bytes, or its dtype is not allowed.
    """
    import numpy as np

    from tpulab.exercises.model import as_dtype

    if not isinstance(described, list) or len(described) != len(blobs):
        raise MalformedMessageError("descriptions and arrays do not pair up")
    arrays = []
    for item, blob in zip(described, blobs):
        shape, name = item.get("shape"), item.get("dtype")
        if name not in ARRAY_DTYPES or not isinstance(shape, list):
            raise MalformedMessageError(f"dtype {name!r} is not taken")
        if not all(isinstance(size, int) and 0 <= size < 1 << 31 for size in shape):
            raise MalformedMessageError("shape is not a list of sizes")
        dtype = as_dtype(name)
        if math.prod(shape) * dtype.itemsize != len(blob):
            raise MalformedMessageError("array has another size than its shape says")
        arrays.append(np.frombuffer(blob, dtype=dtype).reshape(shape))
    return arrays


Send = Callable[[dict[str, Any], Sequence[bytes]], None]
