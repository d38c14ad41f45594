"""``tpulab explain`` takes a message from words, a file or a pipe."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cli.conftest import Run, command, environment

MESSAGE = (
    "The Pallas TPU lowering currently requires that the last two dimensions of your block shape "
    "are divisible by 8 and 128 respectively"
)


def test_words(tpulab: Run) -> None:
    done = tpulab("explain", *MESSAGE.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "128" in done.stdout


def test_file_and_pipe_say_the_same(tpulab: Run, tmp_path: Path) -> None:
    (tmp_path / "message.txt").write_text(MESSAGE)
    from_file = tpulab("explain", "message.txt", "--json")
    piped = subprocess.run(
        command("explain", "--json"),
        env=environment(),
        input=MESSAGE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(from_file.stdout) == json.loads(piped.stdout)
    assert json.loads(piped.stdout)["matched"] is True


def test_unknown_message_is_no(tpulab: Run) -> None:
    done = tpulab("explain", "the kettle is cold")
    assert done.returncode == 1
    assert "not in the catalogue" in done.stdout


def test_closest_entries_are_told_by_title_and_can_be_asked_for(tpulab: Run) -> None:
    unknown = tpulab("explain", "the kettle is cold")
    key, title = unknown.stdout.splitlines()[-1].split(maxsplit=1)
    assert " " in title
    asked = tpulab("explain", key)
    assert asked.returncode == 0
    assert asked.stdout.splitlines()[0] == title
    assert "instead:" in asked.stdout


def test_nothing_to_explain_is_bad_usage(tpulab: Run) -> None:
    done = tpulab("explain")
    assert done.returncode == 2
    assert "message" in done.stderr
    # the example of the hint is one
    example = done.stderr.partition("tpulab explain '")[2].partition("'")[0]
    assert tpulab("explain", example).returncode == 0
