"""Puts the labs into the wheel: outside a clone they come out of the package."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LabsHook(BuildHookInterface):
    """Adds the labs to a wheel, but not to an editable install, which has the clone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if version == "standard":
            build_data["force_include"]["labs"] = "tpulab/classroom/_labs"
            build_data["force_include"]["solutions"] = "tpulab/classroom/solutions"
