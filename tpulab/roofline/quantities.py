"""Sizes as people write them, for the command line and for forms: ``32 MiB``, ``4x4``."""

from __future__ import annotations

import math
import re

from tpulab.errors import TpulabError

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_AMOUNT = re.compile(r"([0-9][0-9_,]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)")
_ARRAY = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\s*\[([0-9,\s]*)\]")


def parse_bytes(text: str) -> int:
    """Bytes from ``"32 MiB"`` (2**20), ``"32 MB"`` (10**6), ``"4.5e6"`` or ``"bf16[2048,8192]"``.

    Raises:
        TpulabError: it is none of these, or not at least one byte.
    """
    text = str(text).strip()
    array = _ARRAY.fullmatch(text)
    if array:
        from tpulab.hardware import bytes_of, dtype_name

        sizes = [int(size) for size in array[2].split(",") if size.strip()]
        count = float(bytes_of(math.prod(sizes), dtype_name(array[1])))
    else:
        amount = _AMOUNT.fullmatch(text)
        unit = _UNITS.get(amount[2].lower()) if amount else None
        if amount is None or unit is None:
            raise TpulabError(
                f"{text!r} is not an amount of bytes",
                hint="write 32MiB, 4.5e6 or an array such as bf16[2048,8192]",
            )
        count = float(amount[1].replace("_", "").replace(",", "")) * unit
    if not 1 <= count < 2**63:
        raise TpulabError(f"{text} is not between one byte and 8 EiB")
    return round(count)


def parse_slice(text: str) -> tuple[int, ...]:
    """Chips along each axis from ``"4x4"`` or ``"16"``.

    Raises:
        TpulabError: it is not one to three positive whole numbers with an x between them.
    """
    parts = re.split(r"\s*[x×,]\s*", str(text).strip().lower())
    if not 1 <= len(parts) <= 3 or not all(re.fullmatch(r"[1-9][0-9]{0,4}", p) for p in parts):
        raise TpulabError(
            f"{text!r} is not the shape of a slice",
            hint="write the chips along each axis: 8 for one axis, 4x4 for two, 4x4x4 for three",
        )
    return tuple(int(part) for part in parts)


def parse_size(text: str, name: str = "a size") -> int:
    """A whole number of at least 1 from ``"4096"`` or ``"4_096"``, at most 2**31 - 1.

    Raises:
        TpulabError: it is not; `name` says which number is meant.
    """
    plain = str(text).strip().replace("_", "").replace(",", "")
    if not re.fullmatch(r"[0-9]{1,12}", plain) or not 1 <= int(plain) < 2**31:
        raise TpulabError(f"{name} is {str(text).strip()!r}, and must be a whole number from 1")
    return int(plain)
