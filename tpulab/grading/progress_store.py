"""Progress in a SQLite file: survives a killed process and two processes that write at once."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpulab.grading import store

_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (
    id INTEGER PRIMARY KEY,
    exercise TEXT NOT NULL,
    moment REAL NOT NULL,
    passed INTEGER NOT NULL,
    highest TEXT,
    failed TEXT,
    rung TEXT,
    top_rung INTEGER NOT NULL DEFAULT 0,
    predicted TEXT NOT NULL DEFAULT '{}',
    label TEXT NOT NULL DEFAULT '',
    learner TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS attempts_by_exercise ON attempts (exercise, id);
CREATE TABLE IF NOT EXISTS hints (
    exercise TEXT PRIMARY KEY,
    shown INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS solutions (
    exercise TEXT PRIMARY KEY,
    moment REAL NOT NULL
);
"""


@dataclass(frozen=True)
class State:
    """How far one exercise is.

    Attributes:
        attempts: how often it was checked, scaffolds not counted.
        passed: whether some attempt passed everything that could be judged.
        highest: the highest step any attempt passed.
        rung: the rung of the fastest attempt that passed.
        hints_shown: how many hints were shown.
        solution_shown: whether the solution was.
    """

    exercise: str
    attempts: int = 0
    passed: bool = False
    highest: str | None = None
    rung: str | None = None
    top_rung: bool = False
    hints_shown: int = 0
    solution_shown: bool = False

    @property
    def word(self) -> str:
        """One word for a list."""
        if self.passed:
            return "passed"
        return "started" if self.attempts else "open"


class ProgressStore:
    """The progress of whoever works with one home folder.

    Args:
        path: the file; the default is ``progress.sqlite`` in tpulab's home.

    Attributes:
        notice: a sentence when progress is not kept as usual (read-only home, damaged file).
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or store.home() / "progress.sqlite"
        self.notice: str | None = None
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._abandoned: list[sqlite3.Connection] = []

    # ---- the file

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._owner == os.getpid():
            if self._inode is None or self._inode == _inode(self.path):
                return self._connection
            # another file lies there now (restored, or set aside by another process); closing the
            # old connection would delete the new file's journal
            self._abandoned.append(self._connection)
        # a connection must not cross a fork
        self._owner = os.getpid()
        self._inode = None
        try:
            self._connection = self._open_file()
            self._inode = _inode(self.path)
        except sqlite3.DatabaseError as error:
            if "disk I/O" in str(error) and self._drop_stale_journal():
                with contextlib.suppress(sqlite3.Error, OSError):
                    self._connection = self._open_file()
                    self._inode = _inode(self.path)
                    return self._connection
            if _is_damage(error):
                self._set_aside(error)
                with contextlib.suppress(sqlite3.Error, OSError):
                    self._connection = self._open_file()
                    self._inode = _inode(self.path)
                    return self._connection
            self._connection = self._in_memory(str(error))
        except OSError as error:
            self._connection = self._in_memory(error.strerror or str(error))
        return self._connection

    def _open_file(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(
            self.path, timeout=20.0, check_same_thread=False, isolation_level=None
        )
        try:
            connection.execute("PRAGMA busy_timeout=20000")
            # readers and one writer at a time, and a killed process loses nothing committed
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(f"malformed: {state}")
            connection.executescript(_SCHEMA)
            # a read-only file opens well and fails at the first write
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop_stale_journal(self) -> bool:
        """Move a journal away that belongs to a file that lay here before."""
        moved = False
        stamp = time.strftime("%Y%m%d-%H%M%S")
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.replace(f"{self.path}{suffix}", f"{self.path}{suffix}.stale-{stamp}")
                moved = True
        return moved

    def _set_aside(self, error: Exception) -> None:
        aside = self.path.with_name(
            f"{self.path.stem}.damaged-{time.strftime('%Y%m%d-%H%M%S')}{self.path.suffix}"
        )
        with contextlib.suppress(OSError):
            os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        self._say(
            f"the progress file was damaged ({error}); it is kept as {aside.name}, and a new one "
            "was started"
        )

    def _in_memory(self, reason: str) -> sqlite3.Connection:
        self._say(
            f"progress cannot be written to {self.path} ({reason}); it lasts as long as this "
            "process. Set TPULAB_HOME to a folder that you may write to."
        )
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        connection.executescript(_SCHEMA)
        return connection

    def _say(self, sentence: str) -> None:
        if self.notice is None:
            # one line a person can act on; a Python warning would show this file's source
            print(f"tpulab: {sentence}", file=sys.stderr)
        self.notice = sentence

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._open()
            try:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                # a disk that fills up in the middle must not cost the verdict
                self._say(f"progress was not written ({error})")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _read(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._open().execute(query, values).fetchall()
            except sqlite3.Error as error:
                self._say(f"progress cannot be read ({error})")
                return []

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    # ---- what is kept

    def record(
        self,
        exercise: str,
        *,
        passed: bool,
        highest: str | None,
        failed: str | None,
        rung: str | None,
        top_rung: bool,
        predicted: Mapping[str, float],
        label: str = "",
    ) -> None:
        """Add an attempt."""
        learner = os.environ.get("TPULAB_LEARNER", "")
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO attempts (exercise, moment, passed, highest, failed, rung, top_rung,"
                " predicted, label, learner) VALUES (?,?,?,?,?,?,?,?,?,?)",
                (
                    exercise,
                    time.time(),
                    int(passed),
                    highest,
                    failed,
                    rung,
                    int(top_rung),
                    json.dumps(dict(predicted)),
                    label,
                    learner,
                ),
            )

    def attempts(
        self, exercise: str | None = None, track: str | None = None
    ) -> list[dict[str, Any]]:
        """All attempts, oldest first, as plain values."""
        rows = self._read(
            "SELECT exercise, moment, passed, highest, failed, rung, top_rung, predicted, label,"
            " learner FROM attempts ORDER BY id"
        )
        names = (
            "name",
            "when",
            "passed",
            "highest",
            "failed",
            "rung",
            "top_rung",
            "predicted",
            "label",
            "learner",
        )
        found = []
        for row in rows:
            item = dict(zip(names, row))
            if exercise is not None and item["name"] != exercise:
                continue
            if track is not None and item["name"].partition(".")[0] != track:
                continue
            item["passed"], item["top_rung"] = bool(item["passed"]), bool(item["top_rung"])
            item["predicted"] = json.loads(item["predicted"])
            found.append(item)
        return found

    def state(self, exercise: str) -> State:
        """How far an exercise is."""
        from tpulab.exercises.model import STEPS

        tries = self.attempts(exercise)
        passed = [item for item in tries if item["passed"]]
        fastest = min(
            passed,
            key=lambda item: min(item["predicted"].values(), default=float("inf")),
            default=None,
        )
        highest = max(
            (item["highest"] for item in tries if item["highest"] in STEPS),
            key=STEPS.index,
            default=None,
        )
        return State(
            exercise,
            attempts=len(tries),
            passed=bool(passed),
            highest=highest,
            rung=fastest["rung"] if fastest else None,
            top_rung=any(item["top_rung"] for item in passed),
            hints_shown=self.hints_shown(exercise),
            solution_shown=bool(
                self._read("SELECT 1 FROM solutions WHERE exercise = ?", (exercise,))
            ),
        )

    def hints_shown(self, exercise: str) -> int:
        """How many hints of an exercise were shown."""
        rows = self._read("SELECT shown FROM hints WHERE exercise = ?", (exercise,))
        return int(rows[0][0]) if rows else 0

    def show_hints(self, exercise: str, count: int) -> None:
        """Note that ``count`` hints were shown."""
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO hints VALUES (?, ?) ON CONFLICT (exercise)"
                " DO UPDATE SET shown = max(shown, excluded.shown)",
                (exercise, count),
            )

    def show_solution(self, exercise: str) -> None:
        """Note that the solution was shown."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR IGNORE INTO solutions VALUES (?, ?)", (exercise, time.time())
            )

    def reset(self, exercise: str | None = None) -> int:
        """Forget an exercise, or everything.

        Returns:
            How many attempts were forgotten.
        """
        count = 0
        with self._writing() as connection:
            for table in ("attempts", "hints", "solutions"):
                if exercise is None:
                    cursor = connection.execute(f"DELETE FROM {table}")
                else:
                    cursor = connection.execute(
                        f"DELETE FROM {table} WHERE exercise = ?", (exercise,)
                    )
                if table == "attempts":
                    count = cursor.rowcount
        return count


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    text = str(error)
    return any(
        word in text for word in ("malformed", "not a database", "corrupt", "encrypted", "schema")
    )


_stores: dict[Path, ProgressStore] = {}
_stores_lock = threading.Lock()


def progress_store() -> ProgressStore:
    """The store of the present home folder."""
    path = store.home() / "progress.sqlite"
    with _stores_lock:
        if path not in _stores:
            _stores[path] = ProgressStore(path)
        return _stores[path]
