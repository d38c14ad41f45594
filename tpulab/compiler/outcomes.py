"""Turn what comes back from a worker, or its death, into the errors that say what it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpulab.compiler.artifact import Artifact
from tpulab.compiler.refusals import CompileError, CompilerDied, CompileRefused, CompilerTimeout
from tpulab.compiler.supervisor import WorkerDied

# signals that say nothing about the kernel; one more attempt is made
FROM_OUTSIDE = ("SIGKILL", "SIGTERM")


def moved_places(then: Sequence[str], now: Sequence[str]) -> dict[str, str]:
    """Where the source places of a cached listing are now."""
    if len(then) != len(now):
        return {}
    # the first use of a place decides, should one line have become two
    return {old: new for old, new in reversed(list(zip(then, now, strict=True))) if old != new}


def last_line(text: str) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def rejects_flags(death: WorkerDied) -> bool:
    """Whether the compiler ended because it does not know one of our flags."""
    return death.exit_code not in (None, 0) and "command line flag" in death.errors


def refusal(header: dict[str, Any], artifact: Artifact) -> CompileRefused:
    """The error for a worker's answer that is a refusal."""
    from tpulab.compiler.explanations import explain, first_sentence

    explanation = explain(str(header["error"]), artifact.chip)
    return CompileRefused(
        f"the TPU compiler refuses this for {artifact.chip}: {first_sentence(explanation.message)}",
        message=str(header["error"]),
        explanation=explanation,
        chip=artifact.chip,
        where=explanation.where or artifact.source,
    )


def death_error(death: WorkerDied, artifact: Artifact, seconds: float) -> CompileError:
    """Turn the end of a worker into the error that says what it means."""
    from tpulab.compiler.explanations import explain_death

    if death.reason == "deadline":
        return CompilerTimeout(
            f"the TPU compiler did not finish for {artifact.chip} in {seconds:.0f} s; "
            "it was stopped",
            message=death.errors,
            chip=artifact.chip,
            why="very large blocks, or code unrolled many times in Python, can take this long",
            hint="make the block smaller or use lax.fori_loop, or pass a longer deadline_seconds",
        )
    if death.reason == "cancelled":
        error = CompilerDied("the compile was cancelled", chip=artifact.chip)
    elif death.reason == "memory":
        what = f"the TPU compiler ran out of memory for {artifact.chip} and was stopped"
        error = CompilerDied(
            what,
            message=death.errors,
            chip=artifact.chip,
            why="the program it was given is far too large",
            hint="make the block smaller or use lax.fori_loop instead of unrolling in Python",
        )
    elif death.signal in FROM_OUTSIDE:
        error = CompilerDied(
            f"the TPU compiler was killed from outside while it worked for {artifact.chip}",
            message=death.errors,
            chip=artifact.chip,
            why="most often because the machine ran out of memory",
            hint="close other programs, or compile for one chip at a time",
        )
    else:
        explanation = explain_death(death.errors, death.signal, artifact.chip)
        how = death.signal or f"exit code {death.exit_code}"
        error = CompilerDied(
            f"the TPU compiler crashed on this kernel for {artifact.chip} ({how}); "
            "nothing of yours is lost, the next compile gets a fresh one",
            message=death.errors,
            explanation=explanation,
            chip=artifact.chip,
            where=artifact.source,
        )
    error.signal, error.exit_code, error.reason = death.signal, death.exit_code, death.reason
    return error
