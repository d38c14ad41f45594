"""``tpulab doctor`` finds what is broken, says what to do, and its exit status means "usable"."""

from __future__ import annotations

import json
import sys

import pytest

from tests.cli.conftest import Run
from tpulab.commands import doctor


def test_quick_look_at_this_machine(tpulab: Run) -> None:
    done = tpulab("doctor", "--quick", "--json")
    assert done.returncode == 0, done.stdout
    answer = json.loads(done.stdout)
    assert answer["usable"] is True
    states = {finding["name"]: finding["state"] for finding in answer["findings"]}
    assert states["jax"] == "ok"
    assert states["JupyterLab"] == "ok"


@pytest.mark.needs_libtpu
@pytest.mark.slow
def test_it_compiles_for_every_chip(tpulab: Run) -> None:
    findings = json.loads(tpulab("doctor", "--json").stdout)["findings"]
    (chips,) = [finding for finding in findings if finding["name"] == "chips"]
    assert chips["state"] == "ok", chips
    for name in ("v4", "v5e", "v5p", "v6e", "7x"):
        assert name in chips["found"]


def test_home_that_cannot_be_written_is_said(tpulab: Run) -> None:
    done = tpulab("doctor", "--quick", TPULAB_HOME="/proc/nowhere")
    assert done.returncode == 0
    assert "TPULAB_HOME" in done.stdout


def test_missing_compiler_costs_two_verdicts_and_not_the_lab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    finding = doctor._compiler()
    assert finding.state == "less"
    assert "compiles and fast" in finding.found
    assert finding.remedy


@pytest.mark.parametrize("clone", [True, False])
def test_missing_compiler_is_installed_into_this_environment(
    monkeypatch: pytest.MonkeyPatch, clone: bool
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("tpulab.bootstrap.clone_root", lambda: "/clone" if clone else None)
    monkeypatch.setattr(
        "tpulab.compiler.missing_reason", lambda: ("it is not installed", "pip install 'jax[tpu]'")
    )
    remedy = str(doctor._compiler().remedy)
    assert sys.executable in remedy
    assert ("constraints.txt" in remedy) == clone
    assert clone or f"jax[tpu]=={doctor._version('jax')}" in remedy


def test_missing_jupyterlab_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    assert doctor._jupyterlab().state == "no"
    assert doctor._jax().state == "no"
    assert doctor._pairing().state == "less"
    assert "install" in str(doctor._pairing().remedy)


def test_a_look_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse

    def broken() -> doctor.Finding:
        raise RuntimeError("something odd")

    monkeypatch.setattr(doctor, "_disk", broken)
    options = argparse.Namespace(json=True, quick=True)
    assert doctor.doctor(options) == 0
    assert "something odd" in capsys.readouterr().out
