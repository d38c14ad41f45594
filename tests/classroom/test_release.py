"""A lab's source becomes two notebooks, the same ones every time."""

# the headers of cells are one line, as jupytext reads them
# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.classroom.release import (
    Lab,
    ReleaseError,
    labs,
    release,
    released_notebook,
    scaffold,
    solution_notebook,
)
from tpulab.errors import UnknownNameError, UsageError

SOURCE = '''\
# %% [markdown]
# # A lab
#
# Text.

# %% tags=["parameters"]
chip = "v5e"

# %% [markdown]
# ## Write

# %% nbgrader={"grade": false, "grade_id": "track-one", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one(x):
    """One more than x."""
    # TODO(learner): write it
    ### BEGIN SOLUTION
    return x + 1
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "track-one-check", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
try:
    answer = one(1)
except NotImplementedError:
    answer = None
### BEGIN HIDDEN TESTS
assert answer == 2
### END HIDDEN TESTS
answer

# %% tags=["hidden-test"]
assert one(3) == 4

# %% [markdown] nbgrader={"grade": true, "grade_id": "track-talk", "locked": false, "points": 1, "schema_version": 3, "solution": true, "task": false}
# The answer of the author.
'''


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "07_example.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


def the_lab(clone: Path) -> Lab:
    (lab,) = labs(clone)
    return lab


def by_id(notebook: dict) -> dict[str, dict]:
    return {cell["id"]: cell for cell in notebook["cells"]}


def test_learner_gets_a_scaffold_and_no_hidden_test(clone: Path) -> None:
    cells = by_id(released_notebook(the_lab(clone)))
    assert cells["track-one"]["source"].endswith(
        "# TODO(learner): write it\n    raise NotImplementedError"
    )
    assert "assert" not in cells["track-one-check"]["source"]
    assert cells["track-one-check"]["source"].endswith("\nanswer")
    text = json.dumps(cells)
    for secret in ("x + 1", "BEGIN", "one(3)", "answer of the author"):
        assert secret not in text
    assert cells["track-talk"]["source"] == "*Write your answer here.*"


def test_solution_keeps_everything_nbgrader_needs(clone: Path) -> None:
    cells = by_id(solution_notebook(the_lab(clone)))
    assert "### BEGIN SOLUTION" in cells["track-one"]["source"]
    assert cells["track-one"]["metadata"]["nbgrader"]["schema_version"] == 3
    assert cells["track-talk"]["source"] == "The answer of the author."


def test_both_notebooks_are_valid_and_ids_are_told_from_the_text(clone: Path) -> None:
    for notebook in (released_notebook(the_lab(clone)), solution_notebook(the_lab(clone))):
        nbformat.validate(nbformat.from_dict(notebook))
    ids = [cell["id"] for cell in released_notebook(the_lab(clone))["cells"]]
    assert ids == ["a-lab", "a-lab-2", "write", "track-one", "track-one-check", "track-talk"]


def test_release_is_the_same_bytes_every_time(clone: Path) -> None:
    first = release(clone)
    assert sorted(first.written) == ["labs/07_example.ipynb", "solutions/07_example.ipynb"]
    before = {path: path.read_bytes() for path in clone.rglob("*.ipynb")}
    second = release(clone)
    assert second.written == []
    assert {path: path.read_bytes() for path in clone.rglob("*.ipynb")} == before


def test_check_writes_nothing(clone: Path) -> None:
    report = release(clone, check=True)
    assert len(report.written) == 2
    assert not list(clone.rglob("*.ipynb"))


def test_outputs_survive_a_change_of_text_but_not_of_code(clone: Path) -> None:
    release(clone)
    lab = the_lab(clone)
    notebook = json.loads(lab.solution.read_text())
    output = {"output_type": "stream", "name": "stdout", "text": ["kept\n"]}
    next(c for c in notebook["cells"] if c["id"] == "track-one")["outputs"] = [output]
    lab.solution.write_text(json.dumps(notebook))

    lab.source.write_text(SOURCE.replace("# Text.", "# Other text."), encoding="utf-8")
    release(clone)
    kept = by_id(json.loads(lab.solution.read_text()))
    assert kept["track-one"]["outputs"] == [output]

    lab.source.write_text(SOURCE.replace("x + 1", "1 + x"), encoding="utf-8")
    release(clone)
    lost = by_id(json.loads(lab.solution.read_text()))
    assert lost["track-one"]["outputs"] == []


def test_execution_stores_outputs_and_a_failing_solution_is_named(clone: Path) -> None:
    report = release(clone, execute=True)
    assert report.executed["07_example"] > 0
    cells = by_id(json.loads(the_lab(clone).solution.read_text()))
    (output,) = cells["track-one-check"]["outputs"]
    assert output["data"]["text/plain"] == ["2"]
    assert set(cells["track-one-check"]["metadata"]) == {"nbgrader"}

    the_lab(clone).source.write_text(SOURCE.replace("x + 1", "x + 2"), encoding="utf-8")
    with pytest.raises(ReleaseError, match="track-one-check"):
        release(clone, execute=True)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    ### END SOLUTION\n", "", "no end"),
        ("    ### BEGIN SOLUTION\n", "", "no block that was begun"),
        (
            '"schema_version": 3, "solution": true',
            '"schema_version": 2, "solution": true',
            "schema",
        ),
        ('"points": 1, ', "", "points"),
        ("track-one-check", "track-one", "two cells"),
        ("track-one-check", "track.one.check", "letters"),
        (
            'nbgrader={"grade": false, "grade_id": "track-one", "locked": false, '
            '"schema_version": 3, "solution": true, "task": false}',
            "",
            "no nbgrader metadata",
        ),
    ],
)
def test_a_source_that_nbgrader_would_refuse_is_refused(
    clone: Path, old: str, new: str, says: str
) -> None:
    assert old in SOURCE
    the_lab(clone).source.write_text(SOURCE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ReleaseError, match=says):
        release(clone)


def test_names_and_places_that_do_not_exist(clone: Path, tmp_path: Path) -> None:
    assert [lab.name for lab in labs(clone, ["07"])] == ["07_example"]
    with pytest.raises(UnknownNameError, match="07_example"):
        labs(clone, ["08"])
    with pytest.raises(UsageError, match="clone"):
        labs(tmp_path / "solutions")


def test_a_block_at_the_margin_leaves_the_line_above_it() -> None:
    cell = "answer = None\n### BEGIN SOLUTION\nanswer = 42\n### END SOLUTION\nprint(answer)"
    assert scaffold(cell) == "answer = None\nprint(answer)"


_LINES = st.lists(st.sampled_from(["x = 1", "", "    y = 2", "# note", "z()"]), max_size=6)


@given(before=_LINES, secret=_LINES, after=_LINES, indent=st.sampled_from(["", "    "]))
def test_scaffold_runs_and_keeps_nothing_of_the_block(
    before: list[str], secret: list[str], after: list[str], indent: str
) -> None:
    cell = "\n".join(
        [
            *before,
            f"{indent}### BEGIN SOLUTION",
            *(f"{indent}secret_{line}" for line in secret),
            f"{indent}### END SOLUTION",
            *after,
        ]
    )
    text = scaffold(cell)
    assert "secret_" not in text
    assert "SOLUTION" not in text
    assert ("raise NotImplementedError" in text) == bool(indent)
    assert scaffold(text) == text
