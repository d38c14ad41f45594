"""What went wrong in the learner's process, in sentences."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpulab.grading import places
from tpulab.grading.child import is_learners
from tpulab.grading.mistakes import Recognised, recognise
from tpulab.grading.places import without_paths
from tpulab.grading.sandbox import Limits
from tpulab.grading.verdict import StepResult

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_MEMORY = re.compile(
    r"MemoryError|bad_alloc|RESOURCE_EXHAUSTED|[Oo]ut of memory|Cannot allocate memory"
    r"|failed to allocate|Unable to allocate",
)


@dataclass(frozen=True)
class Problem:
    """A failure that is the learner's news, whatever step it is told at."""

    summary: str
    detail: str = ""
    hint: str = ""
    where: str = ""
    symptom: str = ""


def failed(name: str, problem: Problem) -> StepResult:
    """A failed step from a problem."""
    return StepResult(
        name,
        False,
        problem.summary,
        problem.detail,
        problem.hint,
        problem.where,
        symptom=problem.symptom or problem.summary,
    )


class EndedError(Exception):
    """The learner's process cannot go on; ``problem`` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.summary)
        self.problem = problem


class NotAttemptedError(Exception):
    """The scaffold has not been filled in."""


def last_frame(frames: Any) -> str:
    """``file:line`` of the innermost of the learner's frames."""
    if isinstance(frames, list) and frames:
        file, line, _ = frames[-1]
        return f"{file}:{line}"
    return ""


def from_error(error: Mapping[str, Any], doing: str, limits: Limits) -> Problem:
    """A problem from an exception that the learner's process described."""
    if not isinstance(error, Mapping):
        raise TypeError("an error that is not described")
    kind, text = str(error.get("type", "")), str(error.get("message", ""))
    first, _, rest = text.strip().partition("\n")
    where = last_frame(error.get("frames")) or str(error.get("error_where", ""))
    symptom = f"{kind} while {doing}"
    if kind == "MemoryError" or _MEMORY.search(text):
        return memory(limits, where)
    if kind == "SystemExit":
        return Problem(
            f"your code ends Python while {doing}",
            hint="take out exit() and sys.exit(); return the result instead",
            where=where,
        )
    known = recognise(error)
    if known is not None:
        return Problem(known.what, known.why, known.remedy, _place(known, error, where), symptom)
    if kind == error.get("kind") and error.get("error_what"):
        # a sentence of tpulab's own
        return Problem(
            without_paths(str(error["error_what"])),
            str(error.get("error_why", "")),
            str(error.get("error_hint", "")),
            where,
            symptom,
        )
    explanation = error.get("explanation") or {}
    if explanation.get("matched") and explanation.get("cause"):
        return explained(
            str(explanation["cause"]),
            without_paths(first),
            str(explanation.get("remedy") or error.get("error_hint") or ""),
            where,
        )
    detail, hint = str(error.get("error_why", "")), str(error.get("error_hint", ""))
    if not detail and rest:
        detail = _shortened("\n".join(line for line in rest.splitlines() if line.strip()), 400)
    said = _shortened(without_paths(first), 300)
    return Problem(
        f"{kind} while {doing}: {said}" if said else f"{kind} while {doing}",
        detail=without_paths(detail),
        hint=hint or ("look at that line" if where else "call your function in a cell of its own"),
        where=where,
        symptom=symptom,
    )


def _place(known: Recognised, error: Mapping[str, Any], raised: str) -> str:
    """The line to show for a recognised mistake."""
    during = error.get("during") or {}
    if known.at == "return" and known.place:
        return places.return_with_value(known.place)
    if known.at == "return":
        return places.return_with_value(raised)
    if known.at == "grid":
        return places.keyword(raised, "pallas_call", "grid")
    if during.get("what") == "index map" and during.get("where"):
        return str(during["where"])
    if known.at == "kernel":
        name = str(error.get("message", "")).partition("(")[0].rpartition(".")[2]
        return places.definition(raised, name)
    return raised


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return (text[:most].rpartition(" ")[0] or text[:most]) + " …"


def explained(cause: str, message: str, hint: str, where: str) -> Problem:
    """A refusal whose meaning is known: the meaning first, then the compiler's own words."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    # a heading alone ("CompileTimeScopedVmemOom:") says nothing without the line below it
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else "".join(lines[:1])
    said = _shortened(said, 240)
    return Problem(
        cause,
        f"the compiler says: {said}" if said else "",
        hint,
        where,
        "it is refused",
    )


def memory(limits: Limits, where: str = "") -> Problem:
    """The answer wanted more memory than it may have."""
    return Problem(
        f"your code asked for more memory than the {limits.memory_bytes / 2**30:.3g} GiB that it "
        "may use",
        hint="look for an array whose shape is a product of sizes that should stay apart",
        where=where,
    )


def too_slow(seconds: float, doing: str, output: str) -> Problem:
    """The answer did not finish in time."""
    return Problem(
        f"your code did not finish within {seconds:.3g} s while {doing}",
        hint="look for a loop that never ends, or a grid of very many steps",
        where=_stuck_at(output),
    )


def deadlock(seconds: float, output: str) -> Problem:
    """The faithful interpreter did not come back."""
    return Problem(
        f"the kernel hangs: after {seconds:.3g} s it still waits for a semaphore",
        detail="a DMA is waited for that was never started, or a semaphore that nobody signals",
        hint="pair them: each start() one wait(), each signal one wait of the same count",
        where=_stuck_at(output),
    )


def _stuck_at(output: str) -> str:
    """The learner's innermost line in a dump of all threads that faulthandler wrote."""
    for file, line, _ in _FRAME.findall(output):
        if is_learners(file):
            return f"{file}:{line}"
    return ""


def from_exit(
    exit_code: int | None,
    doing: str,
    output: str,
    limits: Limits,
    *,
    flooded: bool,
    malformed: str | None,
) -> Problem:
    """The learner's process is gone."""
    where = _stuck_at(output)
    if flooded:
        return Problem(
            f"your code printed more than {limits.output_bytes / 2**20:.3g} MiB while {doing}",
            hint="take out the print, or use pl.debug_print for a few values",
        )
    if malformed is not None:
        return Problem(
            f"the process that runs your code sent something unreadable while {doing}: {malformed}",
            hint="do not write to open file descriptors",
        )
    if _MEMORY.search(output) and exit_code != 0:
        return memory(limits, where)
    if exit_code is None:
        return Problem(
            f"the process that runs your code is gone while {doing}",
            detail="something ended it from outside, or your code ended its parent",
            hint="check again; a new process is started by itself",
            where=where,
        )
    if exit_code >= 0:
        return Problem(
            f"your code ended the whole process with exit status {exit_code} while {doing}",
            hint="take out os._exit() and whatever else ends Python",
            where=where,
        )
    name = _signal_name(-exit_code)
    if name == "SIGXCPU":
        return too_slow(limits.stage_seconds, doing, output)
    if name == "SIGXFSZ":
        return Problem(
            f"your code wrote a file larger than {limits.file_bytes / 2**20:.3g} MiB while {doing}",
            hint="a kernel needs no files",
            where=where,
        )
    return Problem(
        f"the process that runs your code crashed ({name}) while {doing}",
        hint="look for what is not plain JAX: ctypes, signals, a library of its own",
        where=where,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
