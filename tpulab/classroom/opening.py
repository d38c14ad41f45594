"""An address with a token, opened in a browser without a word of it in an argument.

The arguments of a process can be listed by every user of the machine, and a browser is started
with the address among them. What it gets here is the name of a file that only its user can read,
and which leads on to the address.
"""

from __future__ import annotations

import html
import os
import webbrowser
from pathlib import Path

_FILE = "open-lab.html"


def redirect_file(url: str, folder: Path) -> Path:
    """Write a page, for its user alone, that leads on to an address.

    Args:
        url: the address.
        folder: a private one that goes when the server stops.
    """
    file = folder / _FILE
    address = html.escape(url, quote=True)
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f'<meta http-equiv="refresh" content="0; url={address}">\n'
        "<title>Opening the lab</title></head>\n"
        f'<body><p>If nothing happens, <a href="{address}">open the lab</a>.</p></body>\n</html>\n'
    )
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    return file


def open_in_browser(url: str, folder: Path) -> bool:
    """Open an address with a token; whether a browser was found.

    Args:
        url: the address.
        folder: the private folder of :func:`redirect_file`.
    """
    return webbrowser.open(redirect_file(url, folder).resolve().as_uri())
