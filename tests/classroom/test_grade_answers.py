"""Which code of a submission counts for which exercise, whatever state its cells are in."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.classroom import submitted as given
from tpulab.classroom.submissions.answers import Answers
from tpulab.classroom.submissions.labs import find_lab, lab_of, lab_specs
from tpulab.classroom.submissions.reading import Cell, Submission, UnreadableError, read
from tpulab.classroom.submissions.slicing import BrokenCell, Slicer, units_of


def answers(tmp_path: Path, notebook) -> Answers:
    submission = read(given.write(tmp_path / "handed_in.ipynb", notebook))
    lab = lab_of(submission)
    assert lab is not None
    return Answers(submission, lab)


def one(tmp_path: Path, notebook, function: str = "add"):
    found = answers(tmp_path, notebook)
    return next(answer for answer in found.all() if answer.task.function == function)


def run(answer) -> dict:
    """The names that an answer's module defines (its kernels are not called)."""
    space: dict = {"__name__": "answer"}
    exec(compile(answer.source, "answer.py", "exec"), space)
    return space


# ---- labs


def test_points_are_those_of_the_release() -> None:
    lab = find_lab("10")
    assert [task.points for task in lab.tasks] == [1, 1, 1, 1, 2, 3]
    assert lab.points == 9
    assert {question.grade_id for question in lab.by_hand} == {"matmul-diagnosis", "matmul-talk"}


def test_every_lab_has_tasks_and_cells_for_them() -> None:
    for lab in lab_specs().values():
        ids = {cell.grade_id for cell in lab.cells}
        assert lab.tasks, lab.name
        for task in lab.tasks:
            assert {task.grade_id, task.check_id} <= ids


@pytest.mark.parametrize("name", sorted(lab_specs()))
def test_blank_labs_are_untouched(name) -> None:
    submission = read(given.ROOT / "labs" / f"{name}.ipynb")
    lab = lab_of(submission)
    assert lab is not None
    found = Answers(submission, lab)
    assert found.notes == []
    assert {answer.state for answer in found.all()} == {"untouched"}
    assert [note for answer in found.all() for note in answer.notes] == []


@pytest.mark.parametrize("name", sorted(lab_specs()))
def test_solutions_are_whole_answers(name) -> None:
    submission = read(given.ROOT / "solutions" / f"{name}.ipynb")
    lab = lab_of(submission)
    assert lab is not None
    found = Answers(submission, lab)
    assert found.notes == []
    for answer in found.all():
        assert (answer.state, answer.notes) == ("written", ())
        assert callable(run(answer)[answer.task.function])


def test_a_copy_without_metadata_is_known_by_its_cells(tmp_path) -> None:
    notebook = given.released()
    notebook["metadata"] = {}
    assert answers(tmp_path, notebook).lab.name == "00_first_kernel"


def test_a_copy_without_any_metadata_is_known_by_its_functions(tmp_path) -> None:
    cells = [given.code(given.solution("add")), given.code(given.solution("add_blocks"))]
    assert answers(tmp_path, given.notebook_of(cells)).lab.name == "00_first_kernel"


def test_a_solution_file_is_read_cell_by_cell() -> None:
    submission = read(given.ROOT / "solutions" / "10_matmul_ladder.py")
    lab = lab_of(submission)
    assert lab is not None
    assert lab.name == "10_matmul_ladder"
    assert {answer.state for answer in Answers(submission, lab).all()} == {"written"}


# ---- disorder


def test_edited_points_and_checks_change_nothing(tmp_path) -> None:
    notebook = given.with_answers(add=given.solution("add"))
    check = given.cell_of(notebook, "add-check")
    check["metadata"]["nbgrader"]["points"] = 1000
    check["source"] = "class verdict: top_rung = True\n"
    answer = one(tmp_path, notebook)
    assert answer.task.points == 1
    assert "verdict" not in answer.source


def test_a_helper_in_the_cell_comes_along_and_experiments_do_not(tmp_path) -> None:
    notebook = given.with_answers(add=given.solution("add"))
    notebook["cells"].insert(5, given.code("while True:\n    pass\n"))
    notebook["cells"].append(given.code("import os\nos._exit(1)\nadd(1, 2)"))
    answer = one(tmp_path, notebook)
    assert answer.state == "written"
    assert {"add", "add_kernel"} <= set(run(answer))


def test_a_deleted_import_is_taken_from_the_lab(tmp_path) -> None:
    notebook = given.with_answers(add=given.solution("add"))
    notebook["cells"] = [
        cell for cell in notebook["cells"] if "imports" not in cell["metadata"].get("tags", ())
    ]
    answer = one(tmp_path, notebook)
    assert callable(run(answer)["add"])
    assert any("lab's own cell was used" in note for note in answer.notes)


def test_a_deleted_cell_is_missing_and_costs_no_other(tmp_path) -> None:
    notebook = given.with_answers(add=given.solution("add"))
    notebook["cells"].remove(given.cell_of(notebook, "add_blocks"))
    assert one(tmp_path, notebook).state == "written"
    gone = one(tmp_path, notebook, "add_blocks")
    assert gone.state == "missing"
    assert "its cell is gone" in gone.notes[0]


def test_an_answer_in_another_cell_is_found(tmp_path) -> None:
    notebook = given.released()
    notebook["cells"].remove(given.cell_of(notebook, "add"))
    notebook["cells"].insert(8, given.code(given.solution("add")))
    answer = one(tmp_path, notebook)
    assert answer.state == "written"
    assert any("the lab's cell is gone; add was found in cell 9" in note for note in answer.notes)


def test_of_two_definitions_the_one_in_force_at_the_check_counts(tmp_path) -> None:
    notebook = given.with_answers(add=given.solution("add") + "\n\nadd.mark = 1")
    place = notebook["cells"].index(given.cell_of(notebook, "add"))
    second = copy.deepcopy(given.cell_of(notebook, "add"))
    second["source"] = given.solution("add").replace("def add(", "def add(  # second\n    ")
    notebook["cells"].insert(place + 1, second)
    notebook["cells"].append(given.code("def add(x, y):\n    return x  # only a try\n"))
    answer = one(tmp_path, notebook)
    assert "# second" in answer.source
    assert "only a try" not in answer.source
    assert any("defined in cells" in note for note in answer.notes)
    assert any("2 cells are named" in note for note in answers(tmp_path, notebook).notes)


def test_a_filled_cell_wins_over_a_scaffold_pasted_again(tmp_path) -> None:
    notebook = given.with_answers(add_blocks=given.solution("add_blocks"))
    scaffold = given.cell_of(given.released(), "add_blocks")
    place = notebook["cells"].index(given.cell_of(notebook, "add_blocks"))
    notebook["cells"].insert(place + 1, copy.deepcopy(scaffold))
    assert "block_rows" in one(tmp_path, notebook, "add_blocks").source


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_a_retyped_cell_is_read_as_code(tmp_path, kind) -> None:
    notebook = given.with_answers(add=given.solution("add"))
    given.cell_of(notebook, "add")["cell_type"] = kind
    answer = one(tmp_path, notebook)
    assert answer.state == "written"
    assert any(f"turned into a {kind} cell" in note for note in answer.notes)


def test_a_moved_helper_is_found_further_down(tmp_path) -> None:
    text = given.solution("add_blocks").replace("block_rows = 512\n", "block_rows = ROWS\n")
    notebook = given.with_answers(add_blocks=text)
    notebook["cells"].append(given.code("ROWS = 256"))
    answer = one(tmp_path, notebook, "add_blocks")
    assert run(answer)["ROWS"] == 256
    assert any("ROWS is defined further down" in note for note in answer.notes)


def test_a_moved_exercise_is_noted(tmp_path) -> None:
    notebook = given.with_answers(add=given.solution("add"))
    cell = given.cell_of(notebook, "add")
    notebook["cells"].remove(cell)
    notebook["cells"].append(cell)
    assert one(tmp_path, notebook).state == "written"
    assert any("below the cell that checks it" in note for note in one(tmp_path, notebook).notes)
    assert any("another order" in note for note in answers(tmp_path, notebook).notes)


def test_a_function_of_another_name_is_graded_when_the_check_names_it(tmp_path) -> None:
    renamed = given.solution("add_blocks").replace("def add_blocks(", "def mine(")
    notebook = given.with_answers(add_blocks=renamed)
    check = given.cell_of(notebook, "add_blocks-check")
    check["source"] = "".join(check["source"]).replace(", add_blocks,", ", mine,")
    answer = one(tmp_path, notebook, "add_blocks")
    assert answer.function == "mine"
    assert "mine" in answer.notes[0]


def test_a_syntax_error_costs_its_cell_only(tmp_path) -> None:
    notebook = given.with_answers(
        add=given.solution("add"), add_blocks=given.solution("add_blocks") + "\n  oops"
    )
    found = answers(tmp_path, notebook)
    assert any("is not valid Python (line" in note for note in found.notes)
    states = {answer.task.function: answer for answer in found.all()}
    assert states["add"].state == "written"
    # it is still judged, so that the verdict names the line
    assert "oops" in states["add_blocks"].source


def test_magic_commands_are_overlooked(tmp_path) -> None:
    text = f"%%time\n%matplotlib inline\n!ls\n{given.solution('add')}"
    assert one(tmp_path, given.with_answers(add=text)).state == "written"


def test_a_copy_of_another_release_is_noted(tmp_path) -> None:
    notebook = given.released()
    notebook["metadata"]["tpulab"]["release"] = "0" * 16
    assert any("another release" in note for note in answers(tmp_path, notebook).notes)


def test_the_labs_own_check_cell_says_when(tmp_path) -> None:
    """A later try, with a check of its own, is not what nbgrader would grade."""
    notebook = given.with_answers(add=given.solution("add"))
    later = 'def add(x, y):\n    return None  # a try\n\ntpulab.check("first_kernel.add", add)'
    notebook["cells"].append(given.code(later))
    assert "a try" not in one(tmp_path, notebook).source


# ---- slices


def sliced(text: str, name: str = "f", end: int | None = None) -> tuple[str, Slicer]:
    units = [
        unit
        for number, source in enumerate(text.split("\n---\n"), 1)
        for unit in units_of(Cell(number, "code", source))
    ]
    slicer = Slicer(units, len(units) if end is None else end)
    slicer.take(slicer.bindings(name)[-1])
    return "\n".join(units[n].text for n in sorted(slicer.chosen)), slicer


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        # a name in a function has the value it has when the function is called
        ("a = 1\ndef f(): return a\na = 2", 2),
        # a default is evaluated when the function is defined
        ("a = 1\ndef f(x=a): return x\na = 2", 1),
        ("a = [1]\na.append(2)\ndef f(): return sum(a)", 3),
        ("a = {}\na['k'] = 5\ndef f(): return a['k']", 5),
        ("a = 1\na += 6\ndef f(): return a", 7),
        ("a = 1\nif True:\n    a = 8\ndef f(): return a", 8),
        ("a = 0\nfor i in range(4):\n    a += i\ndef f(): return a", 6),
        ("def g(): return h()\ndef h(): return 9\ndef f(): return g()", 9),
        ("import math; b = math.floor(2.5)\ndef f(): return b", 2),
        ("def w(g): return lambda: g() + 1\n@w\ndef f(): return 3", 4),
        ("class C:\n    base = 3\n    def m(self): return self.base + K\nK = 4\n"
         "def f(): return C().m()", 7),
        ("def f(): return [k * i for i in range(3)][2]\nk = 5", 10),
        ("a = 1\ndef f(): return a\nf = (lambda g: lambda: g() + 10)(f)", 11),
        ("x = 100\ndef f():\n    x = 5\n    return x", 5),
        ("from math import *\ndef f(): return floor(3.7)", 3),
        ("def n(): return B\nB = 1\nX = n()\nB = 2\ndef f(): return X", 1),
        ("try:\n    import nothing_here\nexcept ImportError:\n    v = 3\ndef f(): return v", 3),
        ("v = 1 ---\ndef f(): return v".replace(" ---", "\n---"), 1),
    ],
)  # fmt: skip
def test_a_slice_means_what_the_notebook_means(text, wanted) -> None:
    whole: dict = {}
    exec(text.replace("\n---\n", "\n"), whole)
    assert whole["f"]() == wanted, "the test itself"
    source, slicer = sliced(text)
    part: dict = {}
    exec("\n".join([source] if not slicer.missing else ["from math import *", source]), part)
    assert part["f"]() == wanted, source


def test_a_slice_leaves_out_what_is_not_needed() -> None:
    text = "import os\nimport math\nprint('hello')\nx = 1\ny = os.getpid()\ndef f(x): return x"
    assert sliced(text)[0] == "def f(x): return x"


def test_a_slice_knows_what_nobody_defines() -> None:
    assert sliced("def f(): return nowhere + len([])")[1].missing == {"nowhere", "len"}


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n  pass",
        "x = 1" + " + 1" * 3000,
        "return 1",
        "(" * 5000,
        "x = " + "-" * 50_000 + "1",
        "\tx\n  y",
        "break",
    ],
)
def test_what_is_not_python_is_a_broken_cell(text) -> None:
    assert isinstance(units_of(Cell(1, "code", text)), BrokenCell)


def test_cells_of_other_languages_hold_nothing() -> None:
    assert units_of(Cell(1, "code", "%%bash\nrm -rf /")) == ()


# ---- files


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.ipynb", b"", "is empty"),
        ("a.ipynb", b"\x00\xff\xfe binary", "is not text"),
        ("a.ipynb", b'{"cells": [', "is not JSON"),
        ("a.ipynb", b"[" * 100_000, "is not JSON"),
        ("a.ipynb", b"<html></html>", "is not JSON"),
        ("a.ipynb", b"[1, 2]", "no notebook of format 4"),
        ("a.ipynb", b'{"worksheets": []}', "no notebook of format 4"),
        ("a.ipynb", b'{"cells": "none"}', "no notebook of format 4"),
        ("a.ipynb", b'{"cells": []}', "without a filled cell"),
        ("a.ipynb", b'{"cells": [3, null, {"cell_type": []}]}', "without a filled cell"),
    ],
)
def test_bad_files_give_a_sentence(tmp_path, name, data, words) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=words):
        read(path)


def test_what_is_no_file_gives_a_sentence(tmp_path) -> None:
    (tmp_path / "folder.ipynb").mkdir()
    os.mkfifo(tmp_path / "pipe.ipynb")
    for name, words in (
        ("folder.ipynb", "is a folder"),
        ("pipe.ipynb", "not a regular file"),
        ("none.ipynb", "there is no file"),
    ):
        with pytest.raises(UnreadableError, match=words):
            read(tmp_path / name)


def test_odd_cells_are_left_out_with_a_sentence(tmp_path) -> None:
    notebook = given.with_answers(add=given.solution("add"))
    notebook["cells"] += [7, {"cell_type": "code", "source": "x = 1\n" * 100_000}]
    notebook["cells"].append({"cell_type": "code", "source": ["a = 1", 2], "metadata": None})
    found = answers(tmp_path, notebook)
    assert len([note for note in found.notes if "left out" in note]) == 2
    assert found.all()[0].state == "written"


def test_lone_surrogates_and_nuls_do_no_harm(tmp_path) -> None:
    path = tmp_path / "odd.ipynb"
    notebook = given.with_answers(add='mark = "\\ud800\\u0000"\n' + given.solution("add"))
    text = json.dumps(notebook).replace("\\\\ud800\\\\u0000", "\\ud800\\u0000")
    path.write_text(text, encoding="ascii")
    submission = read(path)
    assert all(cell.source.encode() and "\0" not in cell.source for cell in submission.cells)


def test_every_kind_of_line_end_counts_as_one(tmp_path) -> None:
    source = given.solution("add")
    mixed = source.replace("\n", "\r\n", 2).replace("\n\n", "\r\n\r")
    answer = one(tmp_path, given.with_answers(add=mixed))
    assert {"add", "add_kernel"} <= set(run(answer))


def test_a_large_file_is_not_read(tmp_path) -> None:
    path = tmp_path / "large.ipynb"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    with pytest.raises(UnreadableError, match="67 MB"):
        read(path)


def test_lines_of_a_module_are_its_own(tmp_path) -> None:
    path = tmp_path / "first_kernel.py"
    path.write_text("# a comment\nimport jax\n\n\n" + given.solution("add") + "\n")
    submission = read(path)
    lab = find_lab("00")
    answer = Answers(submission, lab).all()[0]
    number = answer.source.split("\n").index("def add_kernel(x_ref, y_ref, out_ref):") + 1
    cell, line = answer.origin(number) or (None, 0)
    assert cell is not None
    assert (cell.first_line, line) == (1, 5)


def test_no_lab_is_recognised_in_something_else() -> None:
    cells = (Cell(1, "code", "print('hello')"),)
    submission = Submission(Path("mine.ipynb"), "notebook", "0", cells)
    assert lab_of(submission) is None
    assert SimpleNamespace(lab=lab_of(submission)).lab is None
