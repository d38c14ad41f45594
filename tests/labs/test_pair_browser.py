"""Two people in one notebook: two browsers on a `tpulab pair` server, from opening to its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tpulab.classroom.release import labs, solution_notebook
from tpulab.commands.testing import find_browser

ROOT = Path(__file__).resolve().parents[2]
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
SLOW_MACHINE_SECONDS = 90
NAMES = ("Ada", "Grace Hopper")
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # as /proc/net writes them

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.needs_libtpu,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(
        find_spec("jupyter_server_nbmodel") is None,
        reason="working together needs more packages (extra: pair)",
    ),
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder with a copy of lab 00 that somebody has shortened and answered already."""
    (lab,) = labs(ROOT, ["00"])
    cells = [cell for cell in solution_notebook(lab)["cells"] if cell["cell_type"] == "code"]

    def source(wanted: str) -> str:
        found = [c["source"] for c in cells if c["id"] == wanted or wanted in c["source"]]
        assert found, f"lab 00 has no cell with {wanted}"
        return str(found[0])

    sources = {
        "typed": "",
        "setup": "\n".join(map(source, ('chip = "', "import jax\n", "first_kernel-add"))),
        "check": source("first_kernel-add-check"),
        "widget": "\n".join(map(source, ("def double(", "step_through("))),
        "turns": "from tpulab.classroom import turns\nturns()",
        "slow": f"""\
import pathlib, time
from IPython.display import Pretty, display
shown = display(Pretty("not yet updated"), display_id=True)
print("before the tab is closed", flush=True)
while not pathlib.Path({str(tmp_path / "closed")!r}).exists():
    time.sleep(0.05)
for line in range(5):
    print("afterwards", line, flush=True)
shown.update(Pretty("updated in place"))
""",
    }
    folder = tmp_path / "work"
    folder.mkdir()
    notebook = {
        "cells": [
            {
                "id": name,
                "cell_type": "code",
                "source": text,
                "metadata": {},
                "outputs": [],
                "execution_count": None,
            }
            for name, text in sources.items()
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "00_first_kernel.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    return folder


class Pair:
    """A running `tpulab pair`.

    Attributes:
        lines: what it printed before it was ready.
        urls: the partners' addresses.
    """

    def __init__(self, work: Path, home: Path) -> None:
        words = ["pair", "00", "--folder", str(work), "--names", ",".join(NAMES), "--no-browser"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tpulab.cli", *words],
            cwd=ROOT,
            env={**os.environ, "TPULAB_HOME": str(home), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("Ctrl-C"):
                break
        self.urls = [line for line in self.lines if line.startswith("http")]
        self.root = self.urls[0].partition("lab/")[0] if self.urls else ""

    def processes(self) -> list[int]:
        """The process and all its descendants that are alive."""
        parents: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        found = [self.process.pid]
        for process in found:
            found += parents.get(process, [])
        return found

    def runtime_folder(self) -> Path:
        """Where the server keeps what goes with it."""
        for process in self.processes()[1:]:
            for entry in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                if entry.startswith(b"JUPYTER_RUNTIME_DIR="):
                    return Path(entry.partition(b"=")[2].decode())
        raise AssertionError("no server among the processes")

    def listens_on(self) -> set[str]:
        """Addresses, in the kernel's notation, on which any of the processes takes connections."""
        inodes = set()
        for process in self.processes():
            for descriptor in Path(f"/proc/{process}/fd").glob("*"):
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(descriptor).removeprefix("socket:[").rstrip("]"))
        found = set()
        for name, listening in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
            with contextlib.suppress(FileNotFoundError):  # a machine without IPv6
                for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[9] in inodes and fields[3] == listening:
                        found.add(fields[1].partition(":")[0])
        return found

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


@pytest.fixture
def pair(work: Path, tmp_path: Path) -> Iterator[Pair]:
    started = Pair(work, tmp_path / "home")
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
def screens() -> Iterator[tuple[Any, Any]]:
    """The pages of two people, who share no cookies."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=find_browser(), args=QUIET)
        pages = []
        for _ in NAMES:
            page = browser.new_context(viewport={"width": 1280, "height": 1600}).new_page()
            page.set_default_timeout(1000 * SLOW_MACHINE_SECONDS)
            page.problems = []
            page.on("pageerror", lambda error, page=page: page.problems.append(str(error)))
            page.on("request", lambda request, page=page: _note_if_outside(request.url, page))
            # JupyterLab asks after some seconds whether to go on waiting for the document
            wait = page.get_by_role("button", name="Continue waiting")
            page.add_locator_handler(wait, lambda button: button.click())
            pages.append(page)
        yield pages[0], pages[1]
        browser.close()


def _note_if_outside(url: str, page: Any) -> None:
    if not url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")):
        page.problems.append(f"left this machine: {url}")


def cell(page: Any, number: int) -> Any:
    return page.locator(".jp-Notebook .jp-CodeCell").nth(number)


def run(page: Any, number: int) -> None:
    cell(page, number).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def output(page: Any, number: int, text: str) -> Any:
    """The output of a cell, once it shows a text."""
    area = cell(page, number).locator(".jp-OutputArea").filter(has_text=text).first
    area.wait_for()
    return area


def milliseconds_until_seen(writer: Any, reader: Any, text: str) -> float:
    started = time.monotonic()
    writer.keyboard.insert_text(text)
    cell(reader, 0).locator(".cm-content").filter(has_text=text).wait_for()
    return 1000 * (time.monotonic() - started)


def status_without_token(url: str) -> int:
    """What a stranger gets; a redirection counts as itself."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    headers["Sec-WebSocket-Key"] = "MDEyMzQ1Njc4OWFiY2RlZg=="
    request = urllib.request.Request(url, headers=headers if "/room/" in url else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay)
    try:
        with opener.open(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def kernels(processes: list[int]) -> list[int]:
    """Those of the processes that are alive and notebook kernels."""
    found = []
    for process in processes:
        with contextlib.suppress(OSError):
            if b"ipykernel" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
    return found


def saved_is_complete(notebook: Path) -> bool:
    """Whether the file holds all that the slow cell put out."""
    (slow,) = [c for c in json.loads(notebook.read_text())["cells"] if c["id"] == "slow"]
    text = json.dumps(slow["outputs"])
    return all(f"afterwards {line}" in text for line in range(5)) and "updated in place" in text


def test_two_people_in_one_notebook(
    pair: Pair, screens: tuple[Any, Any], work: Path, tmp_path: Path
) -> None:
    ada, grace = screens
    notebook = work / "00_first_kernel.ipynb"

    # one address each, and a way in for somebody elsewhere that names no address but loopback
    assert len(set(pair.urls)) == 2, pair.lines
    assert set(NAMES) <= set(pair.lines)
    port = pair.root.rstrip("/").rpartition(":")[2]
    assert any(line.startswith(f"ssh -N -L {port}:127.0.0.1:{port} ") for line in pair.lines)

    # strangers stay outside: files, kernels, the shared document, the page itself
    for path in ("api/contents", "api/kernels", "api/sessions", "api/collaboration/room/x"):
        assert status_without_token(pair.root + path) == 403, path
    assert status_without_token(f"{pair.root}lab") == 302

    # both open it in the same moment
    for page, url in zip(screens, pair.urls, strict=True):
        page.goto(url, wait_until="commit")
    for page in screens:
        page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]')

    # what one types the other sees, and under which name
    cell(ada, 0).locator(".cm-content").click()
    milliseconds_until_seen(ada, grace, "print('typed by Ada', 6 * 7)")
    flag = grace.locator(".jp-remote-userFlag-name").filter(has_text="Ada")
    flag.first.wait_for(state="attached")
    delays = [milliseconds_until_seen(ada, grace, f" # {edit}") for edit in range(5)]
    print(f"an edit is seen after {sorted(delays)[2]:.0f} ms (median of 5)")
    assert sorted(delays)[2] < 3000

    # what one runs shows on both screens, also verdicts and widgets
    run(grace, 0)
    for page in screens:
        output(page, 0, "typed by Ada 42")
    for number in (1, 2, 3):
        run(ada, number)
    for page in screens:
        verdict = output(page, 2, "all five passed")
        assert verdict.locator("table").count(), "a verdict without its table"
    slider = grace.get_by_label("grid step")
    slider.wait_for()
    slider.focus()
    grace.keyboard.press("ArrowRight")
    output(ada, 3, "Step 2 of")

    # either of them hands over, and both see who drives
    run(ada, 4)
    grace.get_by_role("button", name="Hand over to Grace Hopper").click()
    for page in screens:
        output(page, 4, "Grace Hopper drives, Ada navigates.")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(grace, context=".tpulab-turns").response["violations"]
    assert not found, [violation["id"] for violation in found]

    # one kernel for both, and everything stays on this machine
    assert len(kernels(pair.processes())) == 1
    assert pair.listens_on() <= LOOPBACK

    # the output of a running cell survives the tab of the one who ran it
    run(ada, 5)
    output(grace, 5, "before the tab is closed")
    ada.close()
    (tmp_path / "closed").touch()
    output(grace, 5, "afterwards 4")
    output(grace, 5, "updated in place")
    deadline = time.monotonic() + SLOW_MACHINE_SECONDS
    while not saved_is_complete(notebook) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert saved_is_complete(notebook)
    assert ada.problems == grace.problems == []

    # nothing is left behind: no store beside the notebooks, no process, no folder with tokens
    processes, runtime = pair.processes(), pair.runtime_folder()
    assert runtime.stat().st_mode & 0o077 == 0
    pair.stop()
    assert {p.name for p in work.iterdir() if p.suffix != ".ipynb"} <= {".ipynb_checkpoints"}
    assert not runtime.exists()
    assert kernels(processes) == []
