"""Versions of a kernel for the roofline: from figures, or from ladders, which know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tpulab.errors import UsageError
from tpulab.roofline import Work

#: (name, operations per byte, operations per second or chip → operations per second), or ladders.
Climb = Iterable[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Version:
    """One version of a kernel.

    Attributes:
        name: as the learner calls it.
        on: chip → (operations per byte of the HBM traffic it causes, operations per second).
    """

    name: str
    on: Mapping[str, tuple[float, float]]


def versions(climb: Climb, chip: str) -> tuple[Version, ...]:
    """The versions in their order.

    Args:
        climb: ladders, or name → ladder, or (name, intensity, rate) each; see `roofline`.
        chip: whose rate a single number is.

    Raises:
        UsageError: something else is among them.
    """
    if isinstance(climb, Mapping):
        return tuple(_version(source, chip, name) for name, source in climb.items())
    if hasattr(climb, "chips") or hasattr(climb, "rungs"):
        climb = (climb,)
    return tuple(_version(source, chip, None) for source in climb)


def _version(source: Any, chip: str, name: str | None) -> Version:
    ladders = getattr(source, "chips", None)
    if isinstance(ladders, Mapping):
        found = {key: _of_ladder(one) for key, one in ladders.items()}
        name = name or str(source.function)
        return Version(name, {key: place for key, place in found.items() if place})
    if hasattr(source, "rungs") and hasattr(source, "predicted_seconds"):
        place = _of_ladder(source)
        return Version(name or str(source.function), {source.chip: place} if place else {})
    figures = tuple(source) if isinstance(source, (tuple, list)) else ()
    if name is None and len(figures) == 3 and isinstance(figures[0], str):
        name, figures = figures[0], figures[1:]
    if name is None or len(figures) != 2:
        raise UsageError(
            f"a version is (name, operations per byte, operations per second) or a ladder, "
            f"not {source!r:.80}"
        )
    intensity, reached = figures
    rates = reached if isinstance(reached, Mapping) else {chip: reached}
    return Version(name, {key: (float(intensity), float(rate)) for key, rate in rates.items()})


def _of_ladder(ladder: Any) -> tuple[float, float] | None:
    """Intensity and predicted rate of a ladder; None when the chip refused the kernel."""
    if ladder.kernel is None or not ladder.predicted_seconds or not ladder.hbm_bytes:
        return None
    flops = Work.of_kernel(ladder.kernel).flops
    if not flops:
        # a kernel without matrix products is placed by its elementwise work
        flops = float(ladder.kernel.vpu_flops + ladder.kernel.transcendentals)
    if not flops:
        return None
    return flops / ladder.hbm_bytes, flops / ladder.predicted_seconds
