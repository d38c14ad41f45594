"""Beginners' mistakes that end in an exception of Python or JAX: what, why, and what to try."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_BLOCKED = re.compile(r"\w+\(block_size=(\d+)\)")
_ORIGIN = re.compile(r"(?P<list>args|outputs?)(?:\[(?P<number>\d+)\])?")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class Mistake:
    """An entry of the catalogue; see the head of ``mistakes.toml``."""

    key: str
    types: tuple[str, ...]
    pattern: re.Pattern[str]
    what: str
    why: str
    remedy: str
    during: str
    at: str


@dataclass(frozen=True)
class Recognised:
    """A mistake with the names and figures of the case in hand.

    Attributes:
        key: name of the entry.
        what, why, remedy: its sentences.
        at: which line to show, see ``mistakes.toml``.
        place: ``file:line`` that the message itself gave, or empty.
    """

    key: str
    what: str
    why: str
    remedy: str
    at: str
    place: str


@cache
def catalogue() -> tuple[Mistake, ...]:
    """All entries, in the order in which they are tried."""
    text = resources.files("tpulab.grading").joinpath("mistakes.toml").read_text("utf-8")
    return tuple(
        Mistake(
            key,
            tuple(entry["types"]),
            re.compile(entry["pattern"], re.DOTALL),
            entry["what"],
            entry.get("why", ""),
            entry["try"],
            entry.get("during", ""),
            entry.get("at", ""),
        )
        for key, entry in tomllib.loads(text).items()
    )


def recognise(error: Mapping[str, Any]) -> Recognised | None:
    """The entry that an exception of the learner's process fits.

    Args:
        error: ``type``, ``message`` and ``during`` as ``child.describe_error`` gives them.
    """
    kind, text = str(error.get("type", "")), str(error.get("message", ""))
    during = error.get("during") if isinstance(error.get("during"), Mapping) else {}
    assert isinstance(during, Mapping)
    for mistake in catalogue():
        if kind not in mistake.types:
            continue
        if mistake.during and during.get("what") != mistake.during:
            continue
        found = mistake.pattern.search(text)
        if found is None:
            continue
        words = _words(found, during)
        return Recognised(
            mistake.key,
            mistake.what.format_map(words),
            mistake.why.format_map(words),
            mistake.remedy.format_map(words),
            mistake.at,
            words.get("place", ""),
        )
    return None


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "…"


def _words(found: re.Match[str], during: Mapping[str, Any]) -> _Words:
    """What the sentences may name."""
    words = _Words({name: value for name, value in found.groupdict().items() if value})
    words.update({name: _BLOCKED.sub(r"\1", value) for name, value in words.items()})
    words["operand"] = operand(str(during.get("operand") or ""))
    axes, takes = during.get("axes"), during.get("takes")
    if isinstance(axes, int):
        words["axes"] = _count(axes, "axis", "axes")
        names = ", ".join("ijklmn"[:axes])
        words["example"] = f"lambda {names}: …" if axes else "lambda: …"
    if isinstance(takes, int):
        words["takes"] = _count(takes, "index", "indices")
    for name, one in (("specs", "BlockSpec"), ("inputs", "array")):
        if name in words:
            words[f"{name}_count"] = _count(int(words[name]), one, f"{one}s")
    if "got" in words and words["got"].isdigit():
        words["got_numbers"] = _count(int(words["got"]), "number", "numbers")
    if words.get("want", "").isdigit():
        want = int(words["want"])
        words["want_dimensions"] = _count(want, "dimension", "dimensions")
        words["tuple"] = f"({', '.join(['i', *['0'] * (want - 1)])}{',' if want == 1 else ''})"
    return words


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def operand(origin: str) -> str:
    """``args[1]`` as ``the second input``."""
    found = _ORIGIN.search(origin)
    if found is None:
        return "an operand"
    what = "input" if found["list"] == "args" else "result"
    if found["number"] is None:
        return f"the {what}"
    number = int(found["number"])
    return f"the {_ORDINALS[number] if number < len(_ORDINALS) else number + 1} {what}"
