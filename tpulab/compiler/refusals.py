"""The ways in which compiling can fail, each with the compiler's own words and an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpulab.errors import TpulabError

if TYPE_CHECKING:
    from tpulab.compiler.explanations import Explanation


class CompileError(TpulabError):
    """Base of everything that can go wrong on the way from a function to a program.

    Attributes:
        stage: ``"lower"`` or ``"compile"``.
        message: the compiler's own text, unchanged.
        explanation: what the text means; ``explanation.matched`` is False when it is not known.
        chip: the chip that was compiled for, or None.
    """

    stage = "compile"

    def __init__(
        self,
        what: str,
        *,
        message: str = "",
        explanation: Explanation | None = None,
        chip: str | None = None,
        why: str | None = None,
        hint: str | None = None,
        where: str | None = None,
    ) -> None:
        if explanation is not None and explanation.matched:
            why = why or explanation.cause
            hint = hint or explanation.remedy
        if where is None and explanation is not None:
            where = explanation.where
        super().__init__(what, why=why, hint=hint, where=where)
        self.message = message
        self.explanation = explanation
        self.chip = chip


class LoweringRefused(CompileError):
    """JAX refused to lower the function for the TPU: a Python error, before the compiler."""

    stage = "lower"


class CompileRefused(CompileError):
    """The TPU compiler read the program and refused it."""


class CompilerDied(CompileError):
    """The compiler's process ended in the middle of the work; the service starts a new one.

    Attributes:
        signal: name of the signal that ended it, e.g. ``"SIGABRT"``, or None.
        exit_code: the exit code when it was not a signal, or None.
        reason: ``"signal"``, ``"exit"``, ``"memory"`` or ``"cancelled"``.
    """

    signal: str | None = None
    exit_code: int | None = None
    reason: str = "signal"


class CompilerTimeout(CompileError):
    """The compiler did not answer before the deadline and was stopped."""


class CompilerMissing(CompileError):
    """There is no TPU compiler on this machine; everything up to lowering works."""


def compiler_missing() -> CompilerMissing:
    """The error that says what is missing here and how to get it."""
    from tpulab.compiler.environment import missing_reason

    why, hint = missing_reason() or ("the TPU compiler could not be started", None)
    return CompilerMissing(
        "this step needs the TPU compiler, which is not here", message=why, why=why, hint=hint
    )
