"""The learner's copies and the server that shows them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tpulab.classroom import lab
from tpulab.classroom.lab import copy_labs, has_display, open_lab, reset_lab
from tpulab.classroom.server import LabError
from tpulab.errors import UnknownNameError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small set of released labs in place of the real ones."""
    folder = tmp_path / "labs"
    folder.mkdir()
    for name in ("00_first", "10_second"):
        write_lab(folder / f"{name}.ipynb", "one")
    monkeypatch.setattr(lab, "labs_folder", lambda: folder)
    return folder


def write_lab(path: Path, release: str) -> None:
    notebook = {
        "cells": [],
        "metadata": {"tpulab": {"lab": path.stem, "release": release}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(notebook), encoding="utf-8")


def test_an_update_never_meets_edits(released: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert copy_labs(work).new == ("00_first", "10_second")
    (work / "00_first.ipynb").write_text("my edits")
    write_lab(released / "00_first.ipynb", "two")
    write_lab(released / "20_third.ipynb", "one")

    copies = copy_labs(work)
    assert copies.new == ("20_third",)
    assert copies.kept == ("00_first", "10_second")
    assert copies.outdated == ("00_first",)
    assert (work / "00_first.ipynb").read_text() == "my edits"


def test_reset_keeps_what_was_there(released: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    copy_labs(work)
    for number in (1, 2, 3):
        (work / "00_first.ipynb").write_text(f"edit {number}")
        fresh, backup = reset_lab("00", work)
        assert backup is not None
        assert backup.read_text() == f"edit {number}"
        assert fresh.read_bytes() == (released / "00_first.ipynb").read_bytes()
    assert len(list(work.glob("00_first.backup-*.ipynb"))) == 3
    (work / "10_second.ipynb").unlink()
    assert reset_lab("10_second", work) == (work / "10_second.ipynb", None)
    with pytest.raises(UnknownNameError, match="00_first"):
        reset_lab("01", work)


def test_a_folder_that_cannot_be_written_is_a_sentence(released: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="cannot be copied"):
        copy_labs(tmp_path / "file" / "work")


def test_a_copy_that_is_interrupted_leaves_no_half_notebook(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: str) -> None:
        Path(target).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lab.shutil, "copyfile", full)
    with pytest.raises(LabError, match="cannot be copied") as raised:
        copy_labs(tmp_path / "work")
    assert "No space left" in str(raised.value)
    assert list((tmp_path / "work").iterdir()) == []


def test_an_unknown_lab_is_refused_before_anything_starts(released: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="10_second"):
        open_lab(tmp_path / "work", "11")
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, "darwin", False),
    ],
)
def test_a_browser_is_opened_only_where_someone_sees_it(
    environment: dict[str, str], platform: str, expected: bool
) -> None:
    assert has_display(environment, platform) is expected


def start_lab(work: Path, home: Path, *options: str) -> subprocess.Popen[str]:
    code = (
        "import sys; from tpulab.classroom.lab import open_lab;"
        f"sys.exit(open_lab({str(work)!r}, browser=False, {', '.join(options)}))"
    )
    environment = {**os.environ, "TPULAB_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_check_starts_and_stops_everything(tmp_path: Path) -> None:
    process = start_lab(tmp_path / "work", tmp_path / "home", "check=True")
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 0, output
    assert "answers" in output
    assert "starts a kernel" in output
    # nothing of JupyterLab's own lies beside the notebooks
    assert {path.suffix for path in (tmp_path / "work").iterdir()} == {".ipynb"}


@pytest.mark.slow
def test_serves_with_a_token_until_ctrl_c(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    process = start_lab(tmp_path / "work", tmp_path / "home", f"port={port}")
    assert process.stdout is not None
    url = ""
    deadline = time.monotonic() + 120
    while not url and time.monotonic() < deadline:
        line = process.stdout.readline()
        url = line.strip() if line.strip().startswith("http") else ""
    try:
        assert url.startswith(f"http://127.0.0.1:{port}/lab/tree/00_")
        token = url.partition("token=")[2]
        assert len(token) >= 32
        base = f"http://127.0.0.1:{port}/api/contents"
        with urllib.request.urlopen(f"{base}?token={token}", timeout=10) as answer:
            names = [entry["name"] for entry in json.load(answer)["content"]]
        assert "00_first_kernel.ipynb" in names
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(base, timeout=10)
        arguments = Path(f"/proc/{process.pid}/cmdline")
        if arguments.exists():
            assert (
                token
                not in subprocess.run(
                    ["ps", "-eo", "args"], capture_output=True, text=True, check=False
                ).stdout
            )
        # a second lab on the same port says so
        second = start_lab(tmp_path / "work", tmp_path / "home", f"port={port}")
        output, _ = second.communicate(timeout=100)
        assert f"port {port} is in use" in output
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopping JupyterLab" in rest
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=2)
