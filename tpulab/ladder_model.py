"""What a ladder is: rungs, the ladder of a chip, of several chips, and two side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulab.hardware import get_chip

RUNGS = ("speed of light", "traffic", "tile padding", "schedule", "pipeline")
_KINDS = {
    "speed of light": "bound",
    "traffic": "bound",
    "tile padding": "bound",
    "schedule": "predicted",
    "pipeline": "predicted",
    "links": "predicted",
    "measured": "measured",
}
REASON_LIMIT = 4000


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    Attributes:
        seconds: cumulative: with this rung's loss and all before it.
        cause: what this rung adds, in numbers. advice: what to try; empty when nothing is lost.
    """

    name: str
    seconds: float
    cause: str
    advice: str = ""

    @property
    def kind(self) -> str:
        """``"bound"``, ``"predicted"`` or ``"measured"``."""
        return _KINDS[self.name]


@dataclass(frozen=True)
class Refusal:
    """Why a chip has no prediction: the stage that refused and its reason."""

    stage: str
    reason: str

    def __str__(self) -> str:
        return f"refused at {self.stage}: {self.reason}"


@dataclass(frozen=True)
class ChipLadder:
    """The ladder of one function on one chip.

    Attributes:
        rungs: all rungs; empty when the chip refused.
        known_rungs: those that could still be computed when it refused; else the same as `rungs`.
        bound_seconds: the speed of light; None when the function could not be traced.
        predicted_seconds: the pipeline rung; None when refused.
        hbm_bytes: bytes that the program moves, over all cores of the device.
        stall_seconds: time lost by cause, largest first. vmem_bytes: VMEM that the kernel uses.
        spills: vector spills and reloads in the listing. limiting_unit: the busiest unit.
        kernel, program, timeline: what the figures come from; None where it was not reached.
        prediction_error: what is known of the error of predictions for this chip, as a sentence.
    """

    function: str
    chip: str
    compiler_version: str | None
    rungs: tuple[Rung, ...] = ()
    known_rungs: tuple[Rung, ...] = ()
    bound_seconds: float | None = None
    predicted_seconds: float | None = None
    measured_seconds: float | None = None
    cycles: float | None = None
    hbm_bytes: int | None = None
    stall_seconds: Mapping[str, float] | None = None
    vmem_bytes: int | None = None
    spills: int | None = None
    limiting_unit: str | None = None
    warnings: tuple[str, ...] = ()
    refusal: Refusal | None = None
    prediction_error: str = ""
    kernel: Any = field(default=None, repr=False, compare=False)
    program: Any = field(default=None, repr=False, compare=False)
    timeline: Any = field(default=None, repr=False, compare=False)

    @property
    def fraction_of_bound(self) -> float | None:
        """Speed of light / predicted: 1 is perfect."""
        if self.bound_seconds is None or not self.predicted_seconds:
            return None
        return self.bound_seconds / self.predicted_seconds

    @property
    def largest_loss(self) -> Rung | None:
        """The rung of a loss that is largest and has advice."""
        gaps = [
            (after.seconds - before.seconds, after)
            for before, after in zip(self.rungs, self.rungs[1:])
            if after.advice and after.seconds > before.seconds
        ]
        return max(gaps, key=lambda gap: gap[0])[1] if gaps else None

    def to_json(self, *, detail: bool = False) -> dict[str, Any]:
        """The chip's entry in the documented JSON; `detail` adds kind and advice of each rung."""
        by_name = {rung.name: rung for rung in (self.rungs or self.known_rungs)}
        names = [*RUNGS, *(name for name in by_name if name not in RUNGS)]
        rungs: list[dict[str, Any]] = []
        for name in names:
            rung = by_name.get(name)
            entry: dict[str, Any] = {
                "name": name,
                "seconds": rung.seconds if rung else None,
                "cause": rung.cause if rung else None,
            }
            if detail:
                entry["kind"] = _KINDS[name]
                entry["advice"] = rung.advice if rung else None
            rungs.append(entry)
        return {
            "bound_seconds": self.bound_seconds,
            "predicted_seconds": self.predicted_seconds,
            "rungs": rungs,
            "cycles": self.cycles,
            "hbm_bytes": self.hbm_bytes,
            "stall_seconds": None if self.stall_seconds is None else dict(self.stall_seconds),
            "vmem_bytes": self.vmem_bytes,
            "spills": self.spills,
            "limiting_unit": self.limiting_unit,
            "warnings": list(self.warnings),
            "refusal": None
            if self.refusal is None
            else {"stage": self.refusal.stage, "reason": self.refusal.reason},
        }

    def __str__(self) -> str:
        from tpulab.ladder_render import chip_text

        return chip_text(self)

    def _repr_html_(self) -> str:
        from tpulab.ladder_render import chip_html

        return chip_html(self)


@dataclass(frozen=True)
class Ladder:
    """The ladders of one function on one or several chips.

    With one chip, everything of its :class:`ChipLadder` (``rungs``, ``predicted_seconds``,
    ``timeline``...) is also here; with several, ``ladder["v5e"]`` gives one.
    """

    function: str
    arguments: tuple[str, ...]
    compiler_version: str | None
    chips: Mapping[str, ChipLadder]

    def __getitem__(self, chip: str) -> ChipLadder:
        return self.chips[get_chip(chip).name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        chips = self.__dict__.get("chips") or {}
        if name in ChipLadder.__dataclass_fields__ or isinstance(
            getattr(ChipLadder, name, None), property
        ):
            if len(chips) != 1:
                raise AttributeError(
                    f"this ladder has {len(chips)} chips; take one, as in ladder['v5e'].{name}"
                )
            return getattr(next(iter(chips.values())), name)
        raise AttributeError(f"a ladder has no attribute {name!r}")

    def to_json(self, *, detail: bool = False) -> dict[str, Any]:
        """The documented JSON (``tpulab/ladder_schema.json``); `detail` adds kind and advice."""
        return {
            "function": self.function,
            "arguments": list(self.arguments),
            "compiler_version": self.compiler_version,
            "chips": {name: one.to_json(detail=detail) for name, one in self.chips.items()},
        }

    def __str__(self) -> str:
        return "\n\n".join(str(one) for one in self.chips.values())

    def _repr_html_(self) -> str:
        return "\n".join(one._repr_html_() for one in self.chips.values())


def refused_entry(stage: str, reason: str) -> dict[str, Any]:
    """The JSON entry of a chip that could not be asked at all."""
    return ChipLadder(
        function="", chip="", compiler_version=None, refusal=Refusal(stage, reason[:REASON_LIMIT])
    ).to_json()


@dataclass(frozen=True)
class Comparison:
    """Two ladders side by side, on the chips that both have."""

    before: Ladder
    after: Ladder

    @property
    def chips(self) -> tuple[str, ...]:
        """Chips in both."""
        return tuple(name for name in self.before.chips if name in self.after.chips)

    @property
    def speedup(self) -> dict[str, float | None]:
        """Predicted before / predicted after; above 1 is faster; None where one refused."""
        result: dict[str, float | None] = {}
        for name in self.chips:
            old = self.before.chips[name].predicted_seconds
            new = self.after.chips[name].predicted_seconds
            result[name] = old / new if old and new else None
        return result

    def __str__(self) -> str:
        from tpulab.ladder_render import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        from tpulab.ladder_render import comparison_html

        return comparison_html(self)
