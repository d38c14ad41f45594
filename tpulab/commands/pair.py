"""``tpulab pair``."""

from __future__ import annotations

import argparse


def pair(options: argparse.Namespace) -> int:
    """Copy the labs, serve them to several people, print an address for each."""
    from tpulab.classroom.pair import NAMES, open_pair

    return open_pair(
        options.folder,
        options.name,
        names=options.names.split(",") if options.names is not None else NAMES,
        check=options.check,
        browser=False if options.no_browser else None,
        port=options.port,
    )
