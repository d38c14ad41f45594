"""What `tpulab new` refuses, and in which words; what it writes is lint-clean under any name."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpulab.cli import main
from tpulab.commands import parser
from tpulab.commands.scaffolding import this_python
from tpulab.errors import TpulabError, UnknownNameError, UsageError
from tpulab.scaffolds import KINDS, write
from tpulab.scaffolds.writing import source, template

LONGEST = "a_name_of_28_characters_long"


@pytest.mark.parametrize(
    ("name", "says", "instead"),
    [
        ("fast-matmul", "a dash", "fast_matmul"),
        ("my.kernel", "a dot", "my_kernel"),
        ("kernel.py", "a dot", "kernel"),
        ("2d_matmul", "no digit first", "kernel_2d_matmul"),
        ("my kernel", "cannot be the name", "my_kernel"),
        ("../escape", "cannot be the name", "escape"),
        ("", "cannot be the name", "my_kernel"),
        ("-", "a dash", "my_kernel"),
        ("noyau_rapidé", "cannot be the name", "noyau_rapid"),
        ("lambda", "a word of Python's own", "lambda_kernel"),
        ("_hidden", "underscore", "hidden"),
        ("jax", "in place of the module jax", "jax_kernel"),
        ("json", "in place of the module json", "json_kernel"),
        ("lhs", "uses the name lhs itself", "my_lhs"),
        ("np", "uses the name np itself", "my_np"),
        ("oracle", "uses the name oracle itself", "my_oracle"),
        ("min", "uses the name min itself", "my_min"),
        ("x" * 29, "29 characters", "x" * 28),
    ],
)
def test_a_name_that_cannot_be_gets_one_that_can(tmp_path, name, says, instead):
    with pytest.raises(UsageError) as caught:
        write(name, "matmul", tmp_path)
    assert says in str(caught.value)
    assert caught.value.hint == f"for example {instead}"
    assert list(tmp_path.iterdir()) == []
    # what is proposed would do, if in another kind's file
    assert instead.isidentifier()


def test_an_unknown_kind_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean matmul"):
        write("mine", "matmull")


def test_help_lists_the_kinds_there_are():
    # the parser may import nothing, so it says them again
    kind = next(action for action in parser.verbs()["new"]._actions if action.dest == "kind")
    assert kind.metavar == "|".join(KINDS)
    folder = Path(sys.modules[write.__module__].__file__).parent / "templates"
    assert {path.stem for path in folder.glob("*.py")} == set(KINDS)


def test_a_file_that_is_there_stays_as_it_is(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("precious")
    with pytest.raises(TpulabError, match="already, and it stays as it is"):
        write("mine", "vector", tmp_path)
    assert mine.read_text() == "precious"
    # nor is anything written through a link that leads nowhere yet
    (tmp_path / "linked.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(TpulabError, match="already"):
        write("linked", "vector", tmp_path)
    assert not (tmp_path / "elsewhere.py").exists()


def test_the_folder_is_made_and_a_file_is_no_folder(tmp_path):
    assert write("mine", "vector", tmp_path / "a" / "b") == tmp_path / "a" / "b" / "mine.py"
    (tmp_path / "file").write_text("")
    with pytest.raises(TpulabError, match="cannot be a folder"):
        write("mine", "vector", tmp_path / "file")


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    opened = Path.open

    def refuse(path, mode="r", **more):
        if mode == "x":
            raise PermissionError(13, "Permission denied")
        return opened(path, mode, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TpulabError, match="cannot be written: Permission denied"):
        write("mine", "vector", tmp_path)


def test_the_command_says_what_to_do_next(tmp_path, capsys):
    assert main(["new", "mine", "--kind", "attention", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f" {tmp_path / 'mine.py'}\n" in shown
    assert f" -m tpulab ladder {tmp_path / 'mine.py'}:mine" in shown
    assert main(["new", "mine", "--kind", "attention", "--out", str(tmp_path)]) == 1
    assert main(["new", "mi-ne", "--kind", "attention", "--out", str(tmp_path)]) == 2
    assert "mi_ne" in capsys.readouterr().err


def test_the_python_it_names_is_the_one_that_has_jax(tmp_path, monkeypatch):
    """From a clone ``python3 -m tpulab`` works with any Python; a kernel file does not."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "other"):
        (tmp_path / ".venv" / "bin" / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / ".venv" / "bin"))
    monkeypatch.chdir(tmp_path)
    assert this_python() == "python"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert this_python() == os.path.join(".venv", "bin", "python")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert this_python() == str(tmp_path / ".venv" / "bin" / "python")


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_name_differs_from_the_template(kind):
    text = source("zz", kind)
    assert text.replace("zz", "scaffold") == template(kind)
    functions = {n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    assert {"zz", "zz_kernel", "oracle", "make_args", "check", "benchmark", "main"} <= functions


@pytest.mark.parametrize("name", ["f", LONGEST])
def test_what_is_written_is_lint_clean(tmp_path, name):
    for kind in KINDS:
        write(name, kind, tmp_path / kind)
    # as a person has it: in a folder of their own, with ruff's defaults and with more rules
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--isolated", "--line-length", "100", "--target-version", "py311"]
    more = [
        "--select",
        "E,W,F,I,UP,B,C4,PIE,SIM,RET,D",
        "--config",
        "lint.pydocstyle.convention='google'",
    ]
    for words in (["check", *rules, *more], ["check", "--isolated", "--ignore", "E501"]):
        result = subprocess.run([*ruff, *words, "."], cwd=tmp_path, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout
