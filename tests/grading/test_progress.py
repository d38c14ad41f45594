"""Progress survives kill -9, two writers, damage and a read-only home; hints and solutions."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.exercises import exercises, get_exercise
from tpulab.grading import ProgressStore, attempts, climb, hint, progress, reset, solution
from tpulab.grading.learning import SolutionLockedError, solution_file

NAME = "first_kernel.add"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def add(store, name=NAME, passed=True, seconds=1e-3, failed=None, label="add"):
    store.record(
        name,
        passed=passed,
        highest="fast" if passed else "legal",
        failed=failed,
        rung="it runs" if passed else None,
        top_rung=passed,
        predicted={"v5e": seconds} if passed else {},
        label=label,
    )


def the_store():
    from tpulab.grading.progress_store import progress_store

    return progress_store()


def test_attempts_come_back(home):
    store = the_store()
    add(store, passed=False, failed="correct")
    add(store, seconds=2e-3)
    add(store, "matmul.best", seconds=8e-4, label="mine")
    rows = attempts()
    assert [row["name"] for row in rows] == [NAME, NAME, "matmul.best"]
    assert rows[0]["failed"] == "correct"
    assert rows[1]["predicted"] == {"v5e": 2e-3}
    assert [row["name"] for row in attempts(track="matmul")] == ["matmul.best"]
    assert [row["name"] for row in attempts(NAME)] == [NAME, NAME]
    state = store.state(NAME)
    assert state.passed
    assert state.attempts == 2
    assert state.highest == "fast"
    assert state.rung == "it runs"
    assert store.state("matmul.grid").word == "open"
    # another process sees it
    other = ProgressStore(home / "progress.sqlite")
    assert other.state("matmul.best").passed
    assert "mine" in str(climb("matmul"))
    assert "<table>" in climb("matmul")._repr_html_()
    assert "nothing" in str(climb("first_kernel")) or climb("first_kernel").rows


def test_list_shows_every_exercise():
    add(the_store())
    text = str(progress())
    for exercise in exercises():
        assert exercise.name in text
    assert f"1 of {len(exercises())} passed" in text
    assert "✓ passed" in text
    assert progress("matmul").to_dict()[0]["state"] == "open"
    assert "<table>" in progress()._repr_html_()
    with pytest.raises(UnknownNameError):
        progress("nothing")


def test_reset_forgets_one_or_all():
    store = the_store()
    add(store)
    add(store, "matmul.best")
    hint(NAME)
    assert "1 attempt forgotten" in reset(NAME)
    assert store.state(NAME).attempts == 0
    assert store.hints_shown(NAME) == 0
    assert store.state("matmul.best").passed
    reset()
    assert attempts() == []
    with pytest.raises(UnknownNameError):
        reset("nothing.here")


def test_hints_one_by_one_are_remembered(home):
    total = len(get_exercise(NAME).hints)
    shown = [hint(NAME) for _ in range(total + 1)]
    assert shown[0].startswith(f"hint 1 of {total}")
    assert shown[1].startswith(f"hint 2 of {total}")
    assert shown[-1] == shown[-2]
    assert ProgressStore(home / "progress.sqlite").hints_shown(NAME) == total
    assert hint(NAME, 1) == shown[0]
    with pytest.raises(TpulabError, match="hints 1 to"):
        hint(NAME, 99)
    with pytest.raises(UnknownNameError):
        hint("first_kernel.ad")


def test_solution_is_locked_until_passed_or_asked_for():
    with pytest.raises(SolutionLockedError, match="not passed") as locked:
        solution(NAME)
    assert "reveal" in str(locked.value)
    if solution_file(get_exercise(NAME)) is None:
        pytest.fail("solutions/ is not beside the package")
    text = solution(NAME, reveal=True)
    assert "def add(" in text
    assert "pallas_call" in text
    assert "### " not in text
    assert "TODO" not in text
    add(the_store())
    assert solution(NAME) == text
    assert the_store().state(NAME).solution_shown


@pytest.mark.parametrize("exercise", exercises(), ids=[e.name for e in exercises()])
def test_every_solution_is_found(exercise):
    assert f"def {exercise.function_name}(" in solution(exercise.name, reveal=True)


_WRITER = """
import sys
from tpulab.grading import ProgressStore
from pathlib import Path
store = ProgressStore(Path(sys.argv[1]))
count = int(sys.argv[2])
print("ready", flush=True)
i = 0
while count < 0 or i < count:
    store.record("first_kernel.add", passed=True, highest="fast", failed=None, rung="it runs",
                 top_rung=True, predicted={"v5e": 1e-3}, label=f"{sys.argv[3]}{i}")
    i += 1
    if count < 0:
        print(i, flush=True)
"""


def _writer(path, count, label):
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(count), label],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    )


def test_two_writers_lose_nothing(tmp_path):
    path = tmp_path / "progress.sqlite"
    writers = [_writer(path, 60, label) for label in "ab"]
    for writer in writers:
        assert writer.wait(60) == 0
    labels = {row["label"] for row in ProgressStore(path).attempts()}
    assert labels == {f"{label}{i}" for label in "ab" for i in range(60)}


def test_kill_minus_nine_in_the_middle(tmp_path):
    path = tmp_path / "progress.sqlite"
    told = 0
    for _ in range(4):
        writer = _writer(path, -1, "k")
        assert writer.stdout is not None
        assert writer.stdout.readline().strip() == "ready"
        before = told
        for _ in range(5):
            told = before + int(writer.stdout.readline())
        time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait()
        told = before + int(rest[-1]) if rest else told
        store = ProgressStore(path)
        # every attempt that was reported is there
        kept = len(store.attempts())
        assert kept >= told
        assert kept <= told + 1
        assert store.notice is None
        store.close()
        told = kept


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 100, None])
def test_damaged_file_is_set_aside(home, damage, capsys):
    path = home / "progress.sqlite"
    store = ProgressStore(path)
    for _ in range(200):
        add(store)
    store.close()
    data = path.read_bytes()
    if damage is None:
        # pages in the middle overwritten
        middle = bytearray(data)
        middle[4096 : len(data) - 64] = b"\xa5" * (len(data) - 64 - 4096)
        damage = bytes(middle)
    path.write_bytes(damage)
    for suffix in ("-wal", "-shm"):
        (home / f"progress.sqlite{suffix}").unlink(missing_ok=True)
    again = ProgressStore(path)
    add(again)
    assert len(again.attempts()) == 1
    if damage:
        assert again.notice is not None
        assert "damaged" in again.notice
        assert capsys.readouterr().err.count("damaged") == 2
        kept = list(home.glob("progress.damaged-*.sqlite"))
        assert len(kept) == 1
        assert kept[0].read_bytes() == damage
    # and the new file is a good one
    assert len(ProgressStore(path).attempts()) == 1


def test_home_that_cannot_be_written(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    store = ProgressStore(blocked / "progress.sqlite")
    add(store)
    add(store)
    assert store.state(NAME).attempts == 2
    assert "TPULAB_HOME" in (store.notice or "")
    # said once
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_read_only_file_keeps_going_in_memory(home):
    path = home / "progress.sqlite"
    add(ProgressStore(path))
    store = ProgressStore(path)
    readonly = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        # what a read-only home does, also for root, whom file modes do not stop
        store._open_file = lambda: _raise_readonly()  # type: ignore[method-assign]
        add(store)
        assert store.state(NAME).attempts == 1
        assert "cannot be written" in (store.notice or "")
    finally:
        readonly.close()


def _raise_readonly():
    raise sqlite3.OperationalError("attempt to write a readonly database")


def test_after_a_fork_the_child_opens_its_own(home):
    store = the_store()
    add(store)
    pid = os.fork()
    if pid == 0:
        try:
            add(store, "matmul.best")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert {row["name"] for row in store.attempts()} == {NAME, "matmul.best"}


def test_state_of_learners_and_pairs(monkeypatch):
    monkeypatch.setenv("TPULAB_LEARNER", "ada+grace")
    add(the_store())
    assert attempts()[0]["learner"] == "ada+grace"


def test_a_file_that_is_replaced_while_it_is_open(home):
    """A restored backup takes the place of a file that a notebook holds open."""
    path = home / "progress.sqlite"
    held = ProgressStore(path)
    add(held)
    path.rename(home / "elsewhere.sqlite")
    for suffix in ("-wal", "-shm"):
        (home / f"progress.sqlite{suffix}").unlink(missing_ok=True)
    backup = ProgressStore(path)
    for _ in range(3):
        add(backup)
    backup.close()
    # the notebook goes on with the file that lies there now
    add(held)
    assert len(held.attempts()) == 4
    assert len(ProgressStore(path).attempts()) == 4
    assert held.notice is None


def test_a_journal_of_another_file_is_moved_away(home):
    path = home / "progress.sqlite"
    store = ProgressStore(path)
    add(store)
    store.close()
    journal = home / "progress.sqlite-wal"
    journal.write_bytes(b"of another file")
    again = ProgressStore(path)
    opens = again._open_file

    def open_file():
        # what SQLite says when the shared memory belongs to a file that is gone
        if journal.exists() and journal.read_bytes() == b"of another file":
            raise sqlite3.OperationalError("disk I/O error")
        return opens()

    again._open_file = open_file  # type: ignore[method-assign]
    assert len(again.attempts()) == 1
    assert again.notice is None
    assert len(list(home.glob("progress.sqlite-wal.stale-*"))) == 1
