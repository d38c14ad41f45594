"""The book builds without a warning, gives nothing away, leaves nothing out and reads offline."""

from __future__ import annotations

import html
import json
import re
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tpulab.classroom.book import ROOMS, lab_page, start_page
from tpulab.classroom.release import labs, released_notebook
from tpulab.commands.book import build_command
from tpulab.commands.parser import verbs
from tpulab.commands.testing import find_browser
from tpulab.compiler.explanations import catalogue
from tpulab.exercises import exercises
from tpulab.hardware import chips

ROOT = Path(__file__).resolve().parents[2]
LABS = labs(ROOT)


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> Path:
    pytest.importorskip("myst_nb", reason="the book needs Sphinx (extra: book)")
    out = tmp_path_factory.mktemp("book")
    built = subprocess.run(build_command(ROOT, out), capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return out


def text_of(page: Path) -> str:
    """What a reader sees of a page."""
    body = re.sub(r"(?s)<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"))
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def answers_in(source: str) -> list[str]:
    """Lines that a lab's source marks as solution and that are long enough to be telling."""
    marked = re.findall(r"(?s)### BEGIN SOLUTION(.*?)### END SOLUTION", source)
    lines = [line.strip() for block in marked for line in block.splitlines()]
    return [line for line in lines if len(line) > 40]


@pytest.mark.parametrize("lab", LABS, ids=[lab.name for lab in LABS])
def test_a_labs_page_is_the_lab_with_its_hints(book: Path, lab) -> None:
    page = book / "pages" / "labs" / f"{lab.name}.html"
    shown = text_of(page)
    for exercise in exercises():
        if exercise.solution.startswith(lab.source.name):
            assert f"def {exercise.function_name} (" in shown.replace("(", " (").replace("  ", " ")
    hints = page.read_text(encoding="utf-8").count("<summary>Hint ")
    assert hints == sum(
        len(exercise.hints)
        for exercise in exercises()
        if exercise.solution.startswith(lab.source.name)
    )
    assert "<svg" in page.read_text(encoding="utf-8"), "its pictures are on the page"


@pytest.mark.parametrize("lab", LABS, ids=[lab.name for lab in LABS])
def test_a_labs_page_gives_nothing_away(lab) -> None:
    page = lab_page(released_notebook(lab), json.loads(lab.solution.read_text("utf-8")))
    shown = json.dumps([cell for cell in page["cells"] if "hints" not in cell["id"]])
    blank = json.dumps(released_notebook(lab)["cells"])
    for line in answers_in(lab.source.read_text("utf-8")):
        quoted = json.dumps(line)[1:-1]
        assert quoted not in shown or quoted in blank
    after_writing = False
    for cell in page["cells"]:
        after_writing = after_writing or "".join(cell["source"]).startswith("## Write")
        assert not (after_writing and cell.get("outputs"))
    assert after_writing


@pytest.mark.parametrize("lab", LABS, ids=[lab.name for lab in LABS])
def test_what_a_lab_folds_is_folded_on_its_page(lab) -> None:
    released = released_notebook(lab)
    page = lab_page(released, json.loads(lab.solution.read_text("utf-8")))
    folded = {
        cell["id"]
        for cell in released["cells"]
        if cell["metadata"].get("jupyter", {}).get("source_hidden")
    }
    assert folded, "every lab has a kernel to diagnose"
    hidden = {cell["id"] for cell in page["cells"] if cell["metadata"].get("tags")}
    assert hidden == folded


def test_every_chip_verb_message_and_public_name_is_there(book: Path) -> None:
    reference = book / "pages" / "reference"
    shown = text_of(reference / "chips.html")
    for chip in chips():
        assert chip.device_kind in shown
    shown = text_of(reference / "command_line.html")
    for verb, parser in verbs().items():
        assert f"tpulab {verb}" in shown
        for action in parser._actions:
            assert all(option in shown for option in action.option_strings)
    shown = text_of(reference / "messages.html")
    for entry in catalogue():
        assert entry.key in shown
    for room in ROOMS:
        module = __import__(f"tpulab.{room}", fromlist=["__all__"])
        page = (reference / f"{room}.html").read_text(encoding="utf-8")
        for name in module.__all__:
            value = getattr(module, name)
            assert not callable(value) or f'id="tpulab.{room}.{name}"' in page


def test_the_start_page_names_files_and_keeps_links() -> None:
    page = start_page(
        "# tpulab\n\nSee [the schema](a/b.json) and [uv](https://docs.astral.sh/uv/).\n"
    )
    assert page == "# Getting started\n\nSee `a/b.json` and [uv](https://docs.astral.sh/uv/).\n"


def test_no_page_asks_another_machine_for_a_part_of_itself(book: Path) -> None:
    parts = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"(https?:)?//|<link[^>]*stylesheet[^>]*href=\"(https?:)?//"
    )
    for page in book.rglob("*.html"):
        assert not parts.search(page.read_text(encoding="utf-8")), page.name


@pytest.mark.needs_browser
def test_it_reads_and_searches_offline_in_a_browser(book: Path) -> None:
    from playwright.sync_api import sync_playwright

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(book)))
    Thread(target=server.serve_forever, daemon=True).start()
    front = f"http://127.0.0.1:{server.server_port}"
    asked: list[str] = []
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
            page = browser.new_page()
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"{front}/index.html")
            assert page.get_by_role("link", name="Labs").first.is_visible()
            for lab in LABS:
                page.goto(f"{front}/pages/labs/{lab.name}.html")
                assert page.locator(".cell_output svg").first.is_visible()
            page.goto(f"{front}/search.html?q=semaphore")
            page.locator("#search-results li a").first.wait_for(timeout=20_000)
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    foreign = [url for url in asked if not url.startswith((front, "data:", "blob:"))]
    assert foreign == []


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """A request a line would drown the test's own output."""
