"""Quantities as people read them: three significant figures and the unit that suits."""

from __future__ import annotations

import re

_MICROSECONDS = re.compile(r"(?<=\d )us\b")


def seconds_text(seconds: float) -> str:
    """A time: ``"889 µs"``, ``"11.7 ms"``, ``"2.50 ns"``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds / 1e-9)} ns" if seconds else "0 s"


def bytes_text(count: float) -> str:
    """A number of bytes in binary units: ``2**20`` is written ``"1 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if abs(count) < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    raise AssertionError


def rate_text(per_second: float, unit: str) -> str:
    """A rate in decimal units, as data sheets print it.

    Args:
        per_second: how many in a second.
        unit: of what: ``rate_text(819e9, "B/s")`` is ``"819 GB/s"``, and with ``"FLOP/s"`` it
            would be ``"819 GFLOP/s"``.
    """
    # data sheets stay with giga for the bytes of a memory, 2765 GB/s, and with tera for peaks
    least = {"P": 1e16, "T": 1e13 if unit.startswith("B") else 1e12, "G": 1e9, "M": 1e6}
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(per_second) >= least[prefix]:
            return f"{_three(per_second / size, trim=True)} {prefix}{unit}"
    return f"{_three(per_second, trim=True)} {unit}"


def count_text(count: float) -> str:
    """A number of operations: ``"137 G"`` would be mistaken for bytes, so ``"137 billion"``."""
    for word, size in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if abs(count) >= size:
            return f"{_three(count / size, trim=True)} {word}"
    return f"{count:,.0f}"


def with_micro(sentence: str) -> str:
    """A sentence of a tool that writes "us" for microseconds, with "µs"."""
    return _MICROSECONDS.sub("µs", sentence)


def _three(value: float, trim: bool = False) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
    return text.rstrip("0").rstrip(".") if trim else text
