"""``tpulab test``: its exit status, its report, what it leaves out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from tpulab.commands import testing
from tpulab.errors import UnknownNameError, UsageError


def options(**more: object) -> argparse.Namespace:
    return argparse.Namespace(**{"fast": False, "part": None, "rest": [], "device": "cpu", **more})


def ending_with(status: int, name: str = "unit") -> testing.Part:
    return testing.Part(name, "a stand-in", (sys.executable, "-c", f"raise SystemExit({status})"))


@pytest.mark.parametrize(
    ("statuses", "expected"), [([0, 0], 0), ([0, 1], 1), ([5], 1), ([2, 0], 1)]
)
def test_exit_status_is_that_of_the_worst_part(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    statuses: list[int],
    expected: int,
) -> None:
    parts = [ending_with(status, f"part{number}") for number, status in enumerate(statuses)]
    monkeypatch.setattr(testing, "all_parts", lambda fast, words=(): parts)
    assert testing.test(options()) == expected
    report = capfd.readouterr().out
    assert "time by part" in report
    assert report.count("FAILED") == sum(status != 0 for status in statuses)


def test_every_test_folder_belongs_to_exactly_one_part() -> None:
    parts = {part.name: part for part in testing.all_parts(False)}
    unit = parts["unit"].command
    ignored = {word.removeprefix("--ignore=") for word in unit if "--ignore" in word}
    assert ignored == {*testing.NOTEBOOK_TESTS, *testing.BOOK_TESTS}
    assert set(testing.NOTEBOOK_TESTS) <= set(parts["notebooks"].command)
    assert set(testing.BOOK_TESTS) <= set(parts["book"].command)


def test_the_part_for_another_jax_is_run_only_when_asked_for() -> None:
    parts = testing.all_parts(False)
    everything = testing.choose(parts, None)
    assert "jax" not in {part.name for part in everything}
    assert [part.name for part in testing.choose(parts, ["jax"])] == ["jax"]
    assert not any("jax" in sentence for sentence in testing.left_out(options(), everything))


def test_the_folders_of_the_parts_exist() -> None:
    for folder in (*testing.NOTEBOOK_TESTS, *testing.BOOK_TESTS, *testing.JAX_TESTS):
        assert list((testing.clone() / folder).glob("test_*.py")), folder


def test_fast_leaves_slow_tests_out_and_says_so() -> None:
    for part in testing.all_parts(True):
        assert "not slow" in " ".join(part.command) or "pytest" not in part.command
    sentences = testing.left_out(options(fast=True), testing.all_parts(True))
    assert any("--fast" in sentence for sentence in sentences)


def test_what_is_not_asked_for_is_named() -> None:
    parts = testing.choose(testing.all_parts(False), ["lint"])
    assert [part.name for part in parts] == ["lint"]
    assert any("unit" in sentence for sentence in testing.left_out(options(), parts))


def test_unknown_part_gets_the_close_match() -> None:
    with pytest.raises(UnknownNameError) as caught:
        testing.choose(testing.all_parts(False), ["notebook"])
    assert "notebooks" in str(caught.value)


def test_missing_browser_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "find_browser", lambda: None)
    sentences = testing.left_out(options(), testing.all_parts(False))
    assert any("browser" in sentence for sentence in sentences)


def test_missing_sphinx_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = testing.find_spec
    monkeypatch.setattr(testing, "find_spec", lambda name: None if "myst" in name else found(name))
    sentences = testing.left_out(options(), testing.all_parts(False))
    assert any("book" in sentence and "Sphinx" in sentence for sentence in sentences)


def test_installed_without_tests_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(testing, "__file__", str(tmp_path / "tpulab" / "commands" / "testing.py"))
    with pytest.raises(UsageError, match="come with a clone"):
        testing.clone()


def test_tpu_runs_notebooks_only() -> None:
    part = testing.notebooks_on("tpu")
    assert part.command[-1] == "tpu"
