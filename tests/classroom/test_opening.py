"""A browser gets the name of a private file; the token stands in no argument."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import webbrowser
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpulab.classroom import lab, pair
from tpulab.classroom.opening import redirect_file

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "f00d" * 12
URL = f"http://127.0.0.1:8888/lab/tree/00_first.ipynb?token={TOKEN}&x='\"<"


def target(file: Path) -> str:
    """Where a page leads on to."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            values = dict(attributes)
            if tag == "meta" and values.get("http-equiv") == "refresh":
                found.append(values["content"].partition("url=")[2])

    Reader().feed(file.read_text("utf-8"))
    (address,) = found
    return address


def test_the_page_is_its_users_and_leads_on(tmp_path: Path) -> None:
    (tmp_path / "open-lab.html").write_text("somebody else's")
    os.chmod(tmp_path / "open-lab.html", 0o644)
    file = redirect_file(URL, tmp_path)
    assert target(file) == URL
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="the browser here is a shell script")
def test_no_argument_of_the_browser_holds_the_token(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$0" "$@" > {tmp_path}/arguments\n')
    browser.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from tpulab.classroom.opening import *;"
        "sys.exit(not open_in_browser(sys.stdin.read(), Path('.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        input=URL,
        text=True,
        env={**os.environ, "BROWSER": f"{browser} %s", "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert len(arguments) == 2
    assert arguments[1].startswith("file://")
    assert TOKEN not in "".join(arguments)


@pytest.mark.parametrize("together", [False, True])
def test_lab_and_pair_open_the_page(
    together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = SimpleNamespace(
        url="http://127.0.0.1:8888/", token=TOKEN, port=8888, start_kernel=lambda notebook: None
    )

    @contextlib.contextmanager
    def session(*_: object, **__: object):
        yield lab.Session(server, "00_first.ipynb", tmp_path, {}, tmp_path)  # type: ignore[arg-type]

    opened: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)))
    monkeypatch.setattr(lab.Session, "wait", lambda self, say: 0)
    if together:
        monkeypatch.setattr(pair, "session", session)
        monkeypatch.setattr(pair, "_require_packages", lambda: None)
        pair.open_pair(browser=True, say=said.append)
    else:
        monkeypatch.setattr(lab, "session", session)
        lab.open_lab(browser=True, say=said.append)
    assert [url.partition(":")[0] for url in opened] == ["file"]
    address = target(tmp_path / "open-lab.html")
    token = address.partition("token=")[2]
    assert len(token) >= 48
    assert token not in json.dumps(opened)
    # whoever's browser cannot read the file opens what is printed
    assert address in "\n".join(said)
