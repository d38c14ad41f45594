"""Turn a compiler's message into cause, rule and remedy, from the catalogue ``errors.toml``."""

from __future__ import annotations

import difflib
import importlib.resources
import re
import tomllib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# lines of these packages are the library's, not the learner's
_LIBRARY_PATH = re.compile(
    r"(/site-packages/|/dist-packages/|/lib/python3\.\d+/|^<frozen |^<string>|"
    + re.escape(str(Path(__file__).parents[1]))
    + r"/(?!exercises/))"
)
_PLACE = re.compile(r'"?((?:/|[A-Za-z]:\\|\.{1,2}/)[^":\n]*?\.py|<[^>\n]+>)"?:(\d+)(?::\d+)?')
_MLIR_PLACE = re.compile(r'"([^"\n]+)":(\d+):\d+')
_PYTHON_PLACE = re.compile(r'File "([^"\n]+)", line (\d+)')


@dataclass(frozen=True)
class Explanation:
    """What a message means.

    Attributes:
        key: the catalogue entry, or ``"unknown"``.
        title: the refusal in a few words.
        cause: why the machine or the compiler refuses it.
        rule: what holds in general.
        remedy: what to write instead.
        example: two lines of code, wrong then right.
        matched: whether the message is in the catalogue.
        message: the part of the message that matters, on one line.
        where: the learner's ``file:line``, or None.
        closest: for unknown messages, the known entries that sound most like it.
    """

    key: str
    title: str
    cause: str
    rule: str
    remedy: str
    example: str
    matched: bool
    message: str
    where: str | None = None
    closest: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.matched:
            lines = ["This message is not in the catalogue.", f"  message: {self.message}"]
            if self.closest:
                lines.append(f"  closest: {', '.join(self.closest)}")
        else:
            lines = [
                self.title,
                f"  cause:   {self.cause}",
                f"  rule:    {self.rule}",
                f"  instead: {self.remedy}",
            ]
            lines.extend(f"    {line}" for line in self.example.splitlines())
        if self.where:
            lines.append(f"  where:   {self.where}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Entry:
    """One entry of the catalogue; ``pattern`` is searched in the message."""

    key: str
    title: str
    pattern: re.Pattern[str]
    cause: str
    rule: str
    remedy: str
    example: str
    chips: tuple[str, ...]
    signal: str | None


@cache
def catalogue() -> tuple[Entry, ...]:
    """Every known refusal, most specific first."""
    text = importlib.resources.files("tpulab.compiler").joinpath("errors.toml").read_text("utf-8")
    return tuple(
        Entry(
            key=key,
            title=entry["title"],
            pattern=re.compile(entry["pattern"]),
            cause=entry["cause"],
            rule=entry["rule"],
            remedy=entry["remedy"],
            example=entry["example"].strip("\n"),
            chips=tuple(entry.get("chips", ())),
            signal=entry.get("signal"),
        )
        for key, entry in tomllib.loads(text).items()
    )


def explain(error_or_text: BaseException | str, chip: str | None = None) -> Explanation:
    """Explain an error of JAX or of the TPU compiler.

    Args:
        error_or_text: the exception, its text, or the key of an entry.
        chip: the chip it was compiled for; entries that hold for other chips only are passed over.

    Returns:
        ``matched`` is False when the message is not known; then ``closest`` names known ones.
    """
    existing = getattr(error_or_text, "explanation", None)
    if isinstance(existing, Explanation):
        return existing
    if isinstance(error_or_text, BaseException):
        texts = [f"{type(error).__name__}: {error}" for error in _chain(error_or_text)]
        where = _place_of(error_or_text)
        message = _message(str(_most_telling(error_or_text)))
    else:
        texts = [error_or_text]
        where = None
        message = _message(error_or_text)
    if message in (known := {entry.key: entry for entry in catalogue()}):
        entry = known[message]
        told = (entry.title, entry.cause, entry.rule, entry.remedy, entry.example)
        return Explanation(entry.key, *told, True, entry.title, None)
    in_text = next(filter(None, map(place_in, texts)), None)
    # MLIR's locations name the operation itself; a traceback may only name the pallas_call
    exact = next((found for text in texts if (found := place_in(text, _MLIR_PLACE))), None)
    where = exact or where or in_text
    return _look_up("\n".join(texts), message, where, chip, None)


def explain_death(errors: str, signal: str | None, chip: str | None = None) -> Explanation:
    """Explain why the compiler's process ended.

    Args:
        errors: what it wrote to standard error.
        signal: the signal that ended it, or None.
        chip: the chip.
    """
    fatal = re.search(r"^F\d{4} \S+\s+\d+ (.*)$", errors, re.MULTILINE)
    message = fatal[1].strip() if fatal else (signal or "the process ended without a message")
    return _look_up(errors, message, None, chip, signal or "exit")


def _look_up(
    text: str, message: str, where: str | None, chip: str | None, signal: str | None
) -> Explanation:
    for entry in catalogue():
        if entry.chips and chip is not None and chip not in entry.chips:
            continue
        if entry.signal is not None and signal is not None and entry.signal != signal:
            continue
        if entry.pattern.search(text):
            return Explanation(
                entry.key,
                entry.title,
                entry.cause,
                entry.rule,
                _remedy(entry, text, chip),
                entry.example,
                True,
                message,
                where,
            )
    return Explanation(
        "unknown",
        "unknown message",
        "this message is not in the catalogue",
        "",
        "",
        "",
        False,
        message,
        where,
        _closest(message),
    )


_VMEM_LIMIT = re.compile(r"(?:[Uu]sed [\d.]+[KMG]? of|and limit) ([\d.]+)M")


def _remedy(entry: Entry, text: str, chip: str | None) -> str:
    """An entry's remedy, without a larger limit where the limit is all the memory there is."""
    limit = _VMEM_LIMIT.search(text)
    if entry.key != "vmem-exceeded" or limit is None or chip is None:
        return entry.remedy
    from tpulab.hardware import get_chip

    room = get_chip(chip).core.vmem.capacity_bytes
    if float(limit[1]) * 2**20 < room:
        return entry.remedy
    return f"use a grid with smaller blocks: the {room / 2**20:.0f} MiB are all that the chip has"


# words of four letters and more that say nothing about which refusal it is
_COMMON = frozenset({
    "block", "cannot", "compile", "compiler", "does", "error", "failed", "from", "function",
    "have", "kernel", "memory", "only", "operand", "pallas", "shape", "supported", "that", "this",
    "type", "value", "values", "vector", "when", "with",
})  # fmt: skip


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower())) - _COMMON


def _closest(message: str) -> tuple[str, ...]:
    """Keys of the entries that share most words with a message, then of those most like it."""
    words = _words(message)

    def likeness(entry: Entry) -> tuple[int, float]:
        shared = words & _words(f"{entry.title} {entry.cause} {entry.pattern.pattern}")
        alike = difflib.SequenceMatcher(None, message.lower(), entry.title.lower()).ratio()
        return len(shared), alike

    return tuple(entry.key for entry in sorted(catalogue(), key=likeness, reverse=True)[:3])


def own_text(error: BaseException) -> str:
    """The text of the error that was raised first, unchanged."""
    return str(_most_telling(error))


def first_sentence(message: str) -> str:
    """The start of a message, short enough for a headline."""
    text = " ".join(message.split())
    return text if len(text) <= 200 else text[:197].rstrip() + "..."


def place_in(text: str, *patterns: re.Pattern[str]) -> str | None:
    """The first ``file:line`` in a message that is not inside a library."""
    for pattern in patterns or (_PYTHON_PLACE, _PLACE):
        for match in pattern.finditer(text):
            if not _LIBRARY_PATH.search(match[1]):
                return f"{match[1]}:{match[2]}"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )


def _most_telling(error: BaseException) -> BaseException:
    """The innermost error with a message; JAX wraps the real one."""
    best = error
    for current in _chain(error):
        if str(current).strip() and "JaxStackTrace" not in type(current).__name__:
            best = current
    return best


def _place_of(error: BaseException) -> str | None:
    """The learner's line: the innermost frame of any of the tracebacks that is not a library's."""
    for current in reversed(list(_chain(error))):
        frames = traceback.extract_tb(current.__traceback__)
        for frame in reversed(frames):
            if not _LIBRARY_PATH.search(frame.filename) and not frame.filename.startswith(
                "<frozen"
            ):
                return f"{frame.filename}:{frame.lineno}"
    return None


# the two numbers that matter in a page about vector memory
_OUT_OF_VMEM = re.compile(
    r"(Ran out of memory in memory space vmem).*?"
    r"(Scoped allocation with size \S+ and limit \S+?(?=[\s,]|\.\s|\.?$)|Used \S+ of \S+ vmem)",
    re.DOTALL,
)
_NOISE = (
    (re.compile(r"Mosaic failed to compile TPU kernel with MLIR module name.*?: ", re.DOTALL), ""),
    (re.compile(r"Mosaic failed to compile TPU kernel: "), ""),
    (re.compile(r"Suspected Python Code Location:.*", re.DOTALL), ""),
    (re.compile(r"Internal error details.*", re.DOTALL), ""),
    (
        re.compile(r"(The MLIR operation involved|at location:|Block spec for|note:).*", re.DOTALL),
        "",
    ),
    (re.compile(r"^(INTERNAL|INVALID_ARGUMENT|UNIMPLEMENTED|RESOURCE_EXHAUSTED): "), ""),
    (re.compile(r" ?See https?://\S+.*", re.DOTALL), ""),
)


def _message(text: str) -> str:
    """The part of a message that says something, on one line."""
    if match := _OUT_OF_VMEM.search(text):
        return f"{match[1]}: {match[2][0].lower()}{match[2][1:].rstrip('.,')}"
    for pattern, replacement in _NOISE:
        shorter = pattern.sub(replacement, text)
        if shorter.strip():
            text = shorter
    return " ".join(text.split())
