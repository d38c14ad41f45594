"""Functions from files, and what a file can do wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tpulab.errors import UsageError
from tpulab.kernel import LoadError, load_function
from tpulab.kernel.load import load_module

GOOD = """
import helper_beside_it

def double(x):
    return x * helper_beside_it.TWO

def triple(x):
    return x * 3

def make_args():
    return (1, 2)

def make_args_triple():
    return 5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(GOOD)
    (tmp_path / "helper_beside_it.py").write_text("TWO = 2\n")
    return tmp_path


def test_function_and_its_arguments(folder: Path) -> None:
    double, maker = load_function(f"{folder}/kernels.py:double")
    assert double(4) == 8
    assert maker is not None
    assert maker() == (1, 2)
    triple, maker = load_function(f"{folder}/kernels.py:triple")
    assert triple(4) == 12
    assert maker is not None
    assert maker() == (5,)
    assert str(folder) not in sys.path


def test_no_make_args(folder: Path) -> None:
    (folder / "one.py").write_text("def only(x):\n    return x\n")
    function, maker = load_function(f"{folder}/one.py:only")
    assert function(3) == 3
    assert maker is None
    assert load_function(f"{folder}/one.py")[0](4) == 4


def write(folder: Path, text: str) -> str:
    path = folder / "bad.py"
    path.write_text(text)
    return str(path)


def test_refusals_name_file_and_line(folder: Path) -> None:
    path = write(folder, "x = 1\ny = (\n")
    with pytest.raises(LoadError, match="not valid Python") as caught:
        load_function(f"{path}:f")
    assert caught.value.where == f"{path}:2"
    path = write(folder, "x = 1\n\nraise RuntimeError('boom')\n")
    with pytest.raises(LoadError, match="RuntimeError: boom") as caught:
        load_function(f"{path}:f")
    assert caught.value.where == f"{path}:3"
    path = write(folder, "import no_such_module_here\n")
    with pytest.raises(LoadError, match="no_such_module_here") as caught:
        load_function(f"{path}:f")
    assert "install no_such_module_here" in str(caught.value)
    path = write(folder, "import sys\nsys.exit(3)\n")
    with pytest.raises(LoadError, match="SystemExit"):
        load_function(f"{path}:f")


def test_a_failed_file_leaves_no_module(folder: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(LoadError):
        load_module(write(folder, "1/0\n"))
    assert set(sys.modules) == before


def test_missing_file_and_function(folder: Path) -> None:
    with pytest.raises(LoadError, match="no file") as caught:
        load_function(f"{folder}/kernel.py:double")
    assert caught.value.hint == "did you mean kernels.py?"
    with pytest.raises(LoadError, match="no function doubel") as caught:
        load_function(f"{folder}/kernels.py:doubel")
    assert caught.value.hint == "did you mean double?"
    with pytest.raises(LoadError, match="not a function"):
        load_function(f"{write(folder, 'f = 3')}:f")


@pytest.mark.parametrize("target", ["", ":f", "x.py:", "x.py:not a name", "x.py:1f"])
def test_bad_targets(target: str) -> None:
    with pytest.raises((UsageError, LoadError)):
        load_function(target)


def test_several_functions_and_no_name(folder: Path) -> None:
    with pytest.raises(UsageError, match="2 public functions .double, triple."):
        load_function(f"{folder}/kernels.py")


def test_make_args_that_raises(folder: Path) -> None:
    path = write(folder, "def f(x):\n    return x\n\ndef make_args():\n    return (1 / 0,)\n")
    _, maker = load_function(f"{path}:f")
    assert maker is not None
    with pytest.raises(LoadError, match=r"make_args\(\) .* ZeroDivisionError") as caught:
        maker()
    assert caught.value.where == f"{path}:5"
