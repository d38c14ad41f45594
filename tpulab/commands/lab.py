"""``tpulab lab`` and ``tpulab release``."""

from __future__ import annotations

import argparse


def lab(options: argparse.Namespace) -> int:
    """Copy the labs, serve them, print the address."""
    from tpulab.classroom import open_lab

    return open_lab(
        options.folder,
        options.name,
        check=options.check,
        browser=False if options.no_browser else None,
        port=options.port,
    )


def release(options: argparse.Namespace) -> int:
    """Write the labs from their solutions, or say what would change."""
    from tpulab.classroom.release import release as write_labs

    report = write_labs(names=options.names or None, execute=options.execute, check=options.check)
    print(report.summary())
    return 1 if options.check and report.written else 0
