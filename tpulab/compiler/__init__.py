"""Compile a kernel with the real TPU compiler, on a machine without a TPU.

``compile(function, *arguments, chip="v5e")`` lowers in this process and compiles in a supervised
worker process, because the compiler is C++ that may abort; the result is a :class:`Program`. When
the compiler refuses, the error carries its own words and an :class:`Explanation`.

Nothing heavy is imported until it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpulab.compiler.artifact import Artifact as Artifact
    from tpulab.compiler.artifact import lower as lower
    from tpulab.compiler.cache import CompileCache as CompileCache
    from tpulab.compiler.compiling import CompilerService as CompilerService
    from tpulab.compiler.compiling import compile as compile
    from tpulab.compiler.compiling import compile_many as compile_many
    from tpulab.compiler.compiling import service as service
    from tpulab.compiler.environment import available_chips as available_chips
    from tpulab.compiler.environment import compiler_version as compiler_version
    from tpulab.compiler.environment import missing_reason as missing_reason
    from tpulab.compiler.explanations import Explanation as Explanation
    from tpulab.compiler.explanations import explain as explain
    from tpulab.compiler.listing import Bundle as Bundle
    from tpulab.compiler.listing import Listing as Listing
    from tpulab.compiler.listing import Op as Op
    from tpulab.compiler.listing import parse_listing as parse_listing
    from tpulab.compiler.program import Piece as Piece
    from tpulab.compiler.program import Program as Program
    from tpulab.compiler.refusals import CompileError as CompileError
    from tpulab.compiler.refusals import CompilerDied as CompilerDied
    from tpulab.compiler.refusals import CompileRefused as CompileRefused
    from tpulab.compiler.refusals import CompilerMissing as CompilerMissing
    from tpulab.compiler.refusals import CompilerTimeout as CompilerTimeout
    from tpulab.compiler.refusals import LoweringRefused as LoweringRefused
    from tpulab.compiler.reports import Allocation as Allocation
    from tpulab.compiler.reports import SlotUse as SlotUse
    from tpulab.compiler.reports import VmemReport as VmemReport

_EXPORTS = {
    "Allocation": "reports",
    "Artifact": "artifact",
    "Bundle": "listing",
    "CompileCache": "cache",
    "CompileError": "refusals",
    "CompileRefused": "refusals",
    "CompilerDied": "refusals",
    "CompilerMissing": "refusals",
    "CompilerService": "compiling",
    "CompilerTimeout": "refusals",
    "Explanation": "explanations",
    "Listing": "listing",
    "LoweringRefused": "refusals",
    "Op": "listing",
    "Piece": "program",
    "Program": "program",
    "SlotUse": "reports",
    "VmemReport": "reports",
    "available_chips": "environment",
    "compile": "compiling",
    "compile_many": "compiling",
    "compiler_version": "environment",
    "explain": "explanations",
    "lower": "artifact",
    "missing_reason": "environment",
    "parse_listing": "listing",
    "service": "compiling",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tpulab.compiler' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tpulab.compiler.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
