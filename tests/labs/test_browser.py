"""A learner's first minutes in a real browser: `tpulab lab` opens, cells run, a check answers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tpulab.classroom.lab import copy_labs
from tpulab.classroom.release import labs, solution_notebook

ROOT = Path(__file__).resolve().parents[2]
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
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
# the markdown and code cells up to and with the first check
CELLS_TO_FIRST_CHECK = 17

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.skipif(not BROWSER, reason="no Chromium on this machine"),
]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A learner's folder in which the first exercise of lab 00 has been answered."""
    folder = tmp_path / "work"
    copy_labs(folder)
    (lab,) = labs(ROOT, ["00"])
    solved = {cell["id"]: cell["source"] for cell in solution_notebook(lab)["cells"]}
    path = folder / "00_first_kernel.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["id"] == "first_kernel-add":
            cell["source"] = solved["first_kernel-add"]
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return folder


@pytest.fixture
def url(work: Path, tmp_path: Path) -> Iterator[str]:
    """The address that `tpulab lab` prints; the server is stopped with Ctrl-C afterwards."""
    code = f"from tpulab.classroom.lab import open_lab; open_lab({str(work)!r}, browser=False)"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TPULAB_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = next(line.strip() for line in process.stdout if line.strip().startswith("http"))
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.fixture
def page() -> Iterator[Any]:
    """A page of a fresh browser profile that remembers what went wrong in it."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=QUIET)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.problems = []
        page.on(
            "console",
            lambda message: page.problems.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:"))
                else page.problems.append(f"left this machine: {request.url}")
            ),
        )
        yield page
        browser.close()


@pytest.mark.needs_libtpu
def test_the_first_minutes_of_a_learner(url: str, page: Any) -> None:
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=90_000)
    page.click(".jp-Notebook .jp-Cell >> nth=0")
    page.keyboard.press("Escape")
    for _ in range(CELLS_TO_FIRST_CHECK):
        page.keyboard.press("Shift+Enter")
        time.sleep(0.2)

    # read in one go: JupyterLab takes cells that scroll out of sight off the page
    verdict = page.wait_for_function(
        """() => [...document.querySelectorAll(".jp-CodeCell .jp-OutputArea-output")]
            .map(output => output.innerText)
            .find(text => text.includes("first_kernel.add") && text.includes("all five passed")
                  && text.includes("fast"))""",
        timeout=180_000,
    ).json_value()
    words = verdict.split()
    for step in ("legal", "correct", "safe", "compiles", "fast"):
        assert step in words, verdict

    slider = page.get_by_label("grid step")
    slider.scroll_into_view_if_needed()
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text("Step 2 of 4 at (1): x_ref fetched, out_ref written back.").wait_for()
    page.get_by_role("button", name="step back").click()
    page.get_by_text("Step 1 of 4").wait_for()

    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, context=".tpulab-player").response["violations"]
    assert not found, [violation["id"] for violation in found]
    assert page.problems == []
