"""`tpulab pair`: two people in one notebook, each in a browser of their own.

Both type into the same document, share one kernel, and see the same outputs and widgets. What one
of them runs goes on when they close the tab, and its output stays. The server listens on this
machine only; somebody elsewhere comes in through SSH.
"""

from __future__ import annotations

import getpass
import secrets
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from tpulab.classroom.jupyter_settings import Partner
from tpulab.classroom.lab import has_display, session
from tpulab.classroom.server import LabError
from tpulab.errors import UsageError

Say = Callable[[str], None]

#: Who works together when nobody says.
NAMES = ("Partner 1", "Partner 2")
#: JupyterLab has that many colours for cursors.
MOST_PARTNERS = 7
_LONGEST_NAME = 30


def open_pair(
    folder: Path | str | None = None,
    lab: str | None = None,
    *,
    names: Sequence[str] = NAMES,
    check: bool = False,
    browser: bool | None = None,
    port: int | None = None,
    say: Say = print,
) -> int:
    """Copy the labs, start JupyterLab for several people, print an address for each, serve.

    Args:
        folder: the learners' folder, ``work_folder()`` by default. A copy of a lab that is there
            is never written by this.
        lab: the lab to open, in full or by number; by default the first.
        names: who works together, 2 to 7 people; shown at their cursors.
        check: stop again as soon as it is known that the server and a kernel answer.
        browser: open the first address in a browser; by default when this machine has a display.
        port: the port to listen on; by default the first free one from 8888 upwards.
        say: gets every line that is for the person at the terminal.

    Returns:
        exit status: 0 when the server was stopped as asked, 1 when it died by itself.

    Raises:
        LabError: the packages for working together are missing, the labs cannot be copied, or
            JupyterLab does not start.
        UnknownNameError: no such lab.
        UsageError: names that cannot be told apart.
    """
    partners = tuple(Partner(name, secrets.token_hex(24)) for name in _checked(names))
    _require_packages()
    with session(folder, lab, port=port, say=say, partners=partners) as opened:
        if check:
            opened.check(say)
            return 0
        opened.server.start_kernel(opened.notebook)
        urls = [opened.url(partner.token) for partner in partners]
        say("\nOne address for each of you:\n")
        for partner, url in zip(partners, urls, strict=True):
            say(f"  {partner.name}\n  {url}\n")
        say("On this machine each opens theirs in a browser of their own (or a private window).")
        say("Somebody elsewhere first runs this there, leaves it running, then opens theirs:\n")
        say(f"  {tunnel(opened.server.port)}\n")
        say("They need an account here. Who has an address can run code as you: send it privately.")
        if has_display() if browser is None else browser:
            opened.open(urls[0])
        return opened.wait(say)


def tunnel(port: int) -> str:
    """The command that brings a port of this machine to another one."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "YOU"
    return f"ssh -N -L {port}:127.0.0.1:{port} {user}@{socket.gethostname()}"


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    cleaned = tuple(name.strip() for name in names)
    if not 2 <= len(cleaned) <= MOST_PARTNERS:
        raise UsageError(
            f"a shared session has 2 to {MOST_PARTNERS} people, not {len(cleaned)}",
            hint="names are separated by commas: --names Ada,Grace",
        )
    for name in cleaned:
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            raise UsageError(
                f"{name!r} cannot stand at a cursor",
                hint=f"take a name of 1 to {_LONGEST_NAME} letters",
            )
    if len(set(cleaned)) < len(cleaned):
        raise UsageError(
            "two people have the same name", why="their cursors could not be told apart"
        )
    return cleaned


def _require_packages() -> None:
    missing = [
        package
        for module, package in (
            ("jupyter_server_ydoc", "jupyter-collaboration"),
            ("jupyter_collaboration", "jupyter-collaboration"),
            ("jupyter_server_nbmodel", "jupyter-server-nbmodel"),
        )
        if find_spec(module) is None
    ]
    if missing:
        raise LabError(
            f"working together needs {' and '.join(dict.fromkeys(missing))}, which this "
            "environment does not have",
            hint="in a clone, `python3 -m tpulab pair` installs what is missing; elsewhere: "
            "pip install 'tpulab[pair]'",
        )
