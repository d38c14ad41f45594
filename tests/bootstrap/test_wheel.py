"""A wheel holds the labs and their solutions; an editable install leaves them in the clone."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    # hatchling lives in the build's own environment; the hook needs nothing of it but its base
    module = ModuleType("interface")
    module.BuildHookInterface = object  # type: ignore[attr-defined]
    name = "hatchling.builders.hooks.plugin.interface"
    for end in range(1, name.count(".") + 1):
        monkeypatch.setitem(sys.modules, ".".join(name.split(".")[:end]), ModuleType("package"))
    monkeypatch.setitem(sys.modules, name, module)
    return runpy.run_path(str(ROOT / "hatch_build.py"))["LabsHook"]()


def test_labs_and_solutions_lie_where_the_package_looks_for_them(hook: Any) -> None:
    from tpulab.classroom import lab
    from tpulab.grading import learning

    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    assert all((ROOT / source).is_dir() for source in data["force_include"])
    assert data["force_include"]["labs"] == "tpulab/classroom/_labs"
    assert '"_labs"' in Path(lab.__file__).read_text(encoding="utf-8")
    assert data["force_include"]["solutions"] == "tpulab/classroom/solutions"
    assert '"classroom" / "solutions"' in Path(learning.__file__).read_text(encoding="utf-8")


def test_an_editable_install_has_the_clone(hook: Any) -> None:
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("editable", data)
    assert data["force_include"] == {}
