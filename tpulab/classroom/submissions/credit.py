"""Points for an answer: shares by the steps it passed, from a table."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tpulab.errors import UsageError
from tpulab.exercises.model import STEPS


@dataclass(frozen=True)
class Credit:
    """Shares of an exercise's points, each between 0 and 1.

    Attributes:
        steps: by the last step passed, without ``fast``.
        lowest_rung, highest_rung: of an answer that passed all five.
    """

    steps: Mapping[str, float]
    lowest_rung: float
    highest_rung: float

    def share(self, verdict: Mapping[str, Any]) -> float:
        """The share for a verdict's :meth:`~tpulab.grading.Verdict.to_dict`."""
        if not verdict["attempted"]:
            return 0.0
        answers = {step["name"]: step["answer"] for step in verdict["steps"]}
        share = 0.0
        for name in STEPS:
            answer = answers.get(name, "not judged")
            if answer == "failed":
                break
            # a step that this machine cannot judge gives nothing and takes nothing
            if answer == "passed":
                share = self._fast(verdict) if name == "fast" else self.steps[name]
        return share

    def _fast(self, verdict: Mapping[str, Any]) -> float:
        number, count = verdict["rung_number"], verdict["rung_count"]
        if verdict["top_rung"] or count <= 1:
            return self.highest_rung
        height = max(0, number - 1) / (count - 1)
        return self.lowest_rung + height * (self.highest_rung - self.lowest_rung)


def load(path: Path | None = None) -> Credit:
    """The table of a file, by default tpulab's own.

    Raises:
        UsageError: it is no such table, or a share is not between 0 and 1 or falls.
    """
    try:
        if path is None:
            text = resources.files(__package__).joinpath("credit.toml").read_text("utf-8")
        else:
            text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
        steps = {name: float(data["steps"][name]) for name in STEPS[:-1]}
        credit = Credit(
            steps, float(data["fast"]["lowest_rung"]), float(data["fast"]["highest_rung"])
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the credit table {path} cannot be used: {error}",
            hint="take tpulab/classroom/submissions/credit.toml as a model",
        ) from error
    shares = [*steps.values(), credit.lowest_rung, credit.highest_rung]
    if shares != sorted(shares) or not 0 <= shares[0] <= shares[-1] <= 1:
        raise UsageError(f"the shares in {path} do not rise from 0 to 1", why=f"they are {shares}")
    return credit
