"""What the compiler refused, with the figures of the kernel in hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpulab.errors import TpulabError
from tpulab.grading.problems import Problem, explained

_SCOPED = re.compile(
    r"[Ss]coped allocation with size (?P<wanted>[\d.]+[KMG]?) and limit (?P<limit>[\d.]+[KMG]?)"
    r"|Used (?P<used>[\d.]+[KMG]?) of (?P<all>[\d.]+[KMG]?) vmem"
)
# blocks of this many times the limit are refused without a compiler, which takes a minute to
_FAR_BEYOND = 1.5
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _bytes(text: str) -> float:
    unit = text[-1] if text[-1] in _UNITS else ""
    return float(text.rstrip("KMG").rstrip(".") or 0) * _UNITS[unit]


def refusal(error: TpulabError, chip_name: str, kernel: Mapping[str, Any]) -> Problem:
    """A compiler's refusal: its meaning first, then its own words.

    Args:
        error: from the compiler room.
        chip_name: the chip it was compiled for.
        kernel: description of the kernel (see ``inspection``), for the sizes of its blocks.
    """
    message = str(getattr(error, "message", "") or "")
    explanation = getattr(error, "explanation", None)
    scoped = _SCOPED.search(message)
    if scoped is not None:
        return _too_much_vmem(scoped, chip_name, kernel, error.where or "")
    if explanation is not None and explanation.matched and explanation.cause:
        return explained(
            explanation.cause, message or error.what, error.hint or "", error.where or ""
        )
    return Problem(error.what, error.why or message[:600], error.hint or "", error.where or "")


def _too_much_vmem(
    scoped: re.Match[str], chip_name: str, kernel: Mapping[str, Any], where: str
) -> Problem:
    from tpulab.hardware import get_chip

    wanted = _bytes(scoped["wanted"] or scoped["used"])
    limit = _bytes(scoped["limit"] or scoped["all"])
    capacity = get_chip(chip_name).core.vmem.capacity_bytes or 0
    room = (
        f"; or raise vmem_limit_bytes in pltpu.CompilerParams: the core has "
        f"{capacity / 2**20:.0f} MiB"
        if capacity > 1.1 * wanted
        else ""
    )
    whole = any(not call.get("grid") for call in kernel["calls"])
    smaller = "use a grid with blocks" if whole else "take smaller blocks"
    return Problem(
        f"the kernel takes {_mebibytes(wanted)} of VMEM, and may take {_mebibytes(limit)}",
        "\n".join(filter(None, (_shares(kernel), f"the compiler says: {scoped[0]}"))),
        smaller + room,
        _largest(kernel) or where,
    )


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:,.3g} MiB" if size < 1000 * 2**20 else f"{size / 2**20:,.0f} MiB"


def _largest(kernel: Mapping[str, Any]) -> str:
    """Where the largest block is declared."""
    call = max(kernel["calls"], key=lambda call: call["vmem_bytes"])
    blocks = [item for item in call["operands"] if item["where"]]
    largest = max(blocks, key=lambda item: item["block_bytes_padded"], default=None)
    return str(largest["where"]) if largest else ""


def _shares(kernel: Mapping[str, Any]) -> str:
    """The largest blocks and how often each is held."""
    call = max(kernel["calls"], key=lambda call: call["vmem_bytes"])
    held = [
        (item["buffer_count"] * item["block_bytes_padded"], item)
        for item in call["operands"]
        if item["is_pipelined"] and item["space"] == "vmem"
    ]
    parts = [
        f"{item['name']} {_mebibytes(item['block_bytes_padded'])}"
        + (f" × {item['buffer_count']} buffers" if item["buffer_count"] > 1 else "")
        for size, item in sorted(held, key=lambda entry: -entry[0])[:4]
        if size
    ]
    scratch = call["vmem_bytes"] - sum(size for size, _ in held)
    if scratch > 0:
        parts.append(f"scratch {_mebibytes(scratch)}")
    return f"blocks of {', '.join(parts)}; the compiler adds its own" if parts else ""


def beyond_vmem(chip_name: str, kernel: Mapping[str, Any]) -> Problem | None:
    """Blocks and scratch far beyond what a kernel may take, or a core has: no compiler is asked.

    There is room for estimates: what lies a little above a limit is left to the compiler.
    """
    from tpulab.hardware import get_chip

    core = get_chip(chip_name).core
    capacity = core.vmem.capacity_bytes
    for call in kernel["calls"]:
        limit = call.get("vmem_limit_bytes") or core.default_scoped_vmem_bytes
        if _FAR_BEYOND * limit < call["vmem_bytes"] <= capacity:
            smaller = "use a grid with blocks" if not call["grid"] else "take smaller blocks"
            return Problem(
                f"the kernel takes {_mebibytes(call['vmem_bytes'])} of VMEM, and may take "
                f"{_mebibytes(limit)}",
                _shares(kernel),
                f"{smaller}; or raise vmem_limit_bytes in pltpu.CompilerParams: the core has "
                f"{_mebibytes(capacity)}",
                _largest(kernel) or str(call.get("where") or ""),
            )
        if call["vmem_bytes"] > 1.25 * capacity:
            return Problem(
                f"the kernel takes {_mebibytes(call['vmem_bytes'])} of VMEM, and a core has "
                f"{_mebibytes(capacity)}",
                _shares(kernel),
                "use a grid with blocks" if not call["grid"] else "take smaller blocks",
                _largest(kernel) or str(call.get("where") or ""),
            )
    return None


def vmem_text(own: int, used: int, limit: int) -> str:
    """What a program takes of VMEM, and who takes it.

    Args:
        own: bytes of the kernel's blocks and scratch. used: the compiler's figure, which is that of
            arrays in VMEM for a kernel without buffers of its own. limit: of the kernel.
    """
    if own or not used:
        return f"{used / 2**20:.3g} of {limit / 2**20:.3g} MiB of VMEM"
    return (
        f"no VMEM of the kernel's own; XLA keeps {used / 2**20:.3g} MiB of its arrays there, which "
        f"does not count against the {limit / 2**20:.3g} MiB that a kernel may take"
    )
