"""Messages between the service and its workers, and cache entries: JSON and byte segments."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

_LENGTHS = struct.Struct(">IQ")
# a length beyond these is a stream that has gone wrong, not a message
_MAX_HEADER_BYTES = 64 << 20
_MAX_BODY_BYTES = 4 << 30


class FrameError(ValueError):
    """The bytes are not a message of this format."""


def pack(header: Mapping[str, Any], segments: Mapping[str, bytes] | None = None) -> bytes:
    """One message: a JSON header and named byte segments."""
    segments = segments or {}
    index = [[name, len(data)] for name, data in segments.items()]
    text = json.dumps({"header": header, "segments": index}).encode()
    body = b"".join(segments.values())
    return _LENGTHS.pack(len(text), len(body)) + text + body


def read(receive: Callable[[int], bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read one message.

    Args:
        receive: returns exactly as many bytes as asked for.

    Raises:
        FrameError: the bytes are not a message.
    """
    text_length, body_length = _LENGTHS.unpack(receive(_LENGTHS.size))
    if text_length > _MAX_HEADER_BYTES or body_length > _MAX_BODY_BYTES:
        raise FrameError("message lengths are out of range")
    try:
        frame = json.loads(receive(text_length))
        header, index = frame["header"], frame["segments"]
        body = receive(body_length)
        segments: dict[str, bytes] = {}
        position = 0
        for name, length in index:
            segments[name] = body[position : position + length]
            position += length
    except (ValueError, KeyError, TypeError) as error:
        raise FrameError("message can't be read") from error
    if position != body_length:
        raise FrameError("message segments don't add up")
    return header, segments


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read one message from bytes that hold exactly it.

    Raises:
        FrameError: the bytes are not a message, or there are more of them.
    """
    position = 0

    def receive(count: int) -> bytes:
        nonlocal position
        chunk = data[position : position + count]
        if len(chunk) != count:
            raise FrameError("message is cut off")
        position += count
        return chunk

    try:
        result = read(receive)
    except struct.error as error:
        raise FrameError("message is cut off") from error
    if position != len(data):
        raise FrameError("bytes after the message")
    return result
