"""Slips on the command line get a sentence, the close match and exit status 2."""

from __future__ import annotations

import json
import subprocess
import warnings

import pytest

from tests.cli.conftest import Run, command, environment

VERBS = ["lab", "pair", "list", "check", "hint", "solution", "reset", "new", "ladder", "explain"]
VERBS += ["chips", "roofline", "tiling", "doctor", "test", "release"]


def test_no_words_show_the_help(tpulab: Run) -> None:
    done = tpulab()
    assert done.returncode == 0
    for verb in VERBS:
        assert f"    {verb} " in done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(tpulab: Run, verb: str) -> None:
    done = tpulab(verb, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: tpulab {verb}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lader"], "tpulab ladder"),
        (["xyzzy"], "tpulab --help"),
        (["chips", "v5x"], "did you mean v5"),
        (["ladder", "a.py:f", "--chp", "v5e"], "--chip"),
        (["ladder"], "FILE.py:FUNCTION"),
        (["ladder", "kernels.py"], "FILE.py:FUNCTION"),
        (["ladder", "kernels.py:not a name"], "FILE.py:FUNCTION"),
        (["ladder", "nowhere.py:f"], "no file"),
        (["ladder", "a.py:f", "--deadline", "-1"], "positive"),
        (["ladder", "a.py:f", "--deadline", "nan"], "positive"),
        (["ladder", "a.py:f", "--jobs", "0"], "above zero"),
        (["tiling", "4096", "4096"], "N"),
        (["tiling", "4096", "x", "4096"], "whole number"),
        (["list", "matmull"], "matmul"),
        (["hint", "matmul.tile"], "matmul."),
        (["check", "matmul.tile", "a.py"], "matmul."),
        (["test", "--part", "unti"], "unit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_slips(tpulab: Run, words: list[str], says: str) -> None:
    done = tpulab(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 700


def test_unknown_chip_of_a_ladder(tpulab: Run, tmp_path) -> None:
    (tmp_path / "k.py").write_text("def f(): pass\n")
    done = tpulab("ladder", "k.py:f", "--chip", "v5e,v9")
    assert done.returncode == 2
    assert "v9" in done.stderr
    assert "v5e" in done.stderr


def test_version(tpulab: Run) -> None:
    import tpulab as package

    assert tpulab("--version").stdout == f"tpulab {package.__version__}\n"


def test_chips_as_json_holds_every_chip(tpulab: Run) -> None:
    answer = json.loads(tpulab("chips", "--json").stdout)
    assert json.dumps(answer).count("TPU v5 lite") >= 1
    one = json.loads(tpulab("chips", "v5e", "--json").stdout)
    assert one["name"] == "v5e"


def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen(
        command("chips", "v5e"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=60)
    assert said == ""


def test_debug_shows_the_traceback(tpulab: Run) -> None:
    assert "Traceback" in tpulab("chips", "v5x", TPULAB_DEBUG="1").stderr


def test_a_warning_is_one_plain_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tpulab import cli
    from tpulab.commands import calculators

    def warns(options: object) -> int:
        warnings.warn("something is less than it could be", stacklevel=1)
        return 0

    monkeypatch.setattr(calculators, "chips", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main(["chips"]) == 0
    assert capsys.readouterr().err == "tpulab: something is less than it could be\n"
