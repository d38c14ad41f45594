"""Capture of what a piece of code prints, through Python or below it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

#: Bytes of captured output that are kept; a runaway print must not eat the memory.
LIMIT_BYTES = 1 << 20


class Captured:
    """Text that was printed; complete once the ``captured_output`` block has ended."""

    text: str = ""


@contextlib.contextmanager
def captured_output() -> Iterator[Captured]:
    """Collect stdout and stderr, of Python and of C++ below it, in the order they end up in a file.

    JAX's TPU interpreter reports races and semaphores by printing from callback threads, so both
    ``sys.stdout`` and file descriptors 1 and 2 are redirected, for the whole process.
    """
    captured = Captured()
    saved = sys.stdout, sys.stderr
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:
        python = io.TextIOWrapper(
            os.fdopen(os.dup(file.fileno()), "wb"),
            encoding="utf-8",
            errors="replace",
            write_through=True,
        )
        for stream in saved:
            with contextlib.suppress(Exception):
                stream.flush()
        for descriptor in (1, 2):
            stack.callback(_restore, descriptor, _redirect(descriptor, file.fileno()))
        sys.stdout = sys.stderr = python
        root = logging.getLogger()
        handlers = root.handlers[:]
        # newer versions log what older ones print; without a handler of ours, the first message
        # would leave one behind that writes to this file after it is closed
        root.handlers[:] = [logging.StreamHandler(python)]
        try:
            yield captured
        finally:
            root.handlers[:] = handlers
            sys.stdout, sys.stderr = saved
            with contextlib.suppress(Exception):
                python.close()
            stack.close()
            file.seek(0)
            captured.text = file.read(LIMIT_BYTES).decode("utf-8", "replace")


def _redirect(descriptor: int, target: int) -> int | None:
    try:
        copy = os.dup(descriptor)
        os.dup2(target, descriptor)
    except OSError:
        # the descriptor is closed, as under some daemons: nothing to redirect
        return None
    return copy


def _restore(descriptor: int, copy: int | None) -> None:
    if copy is not None:
        os.dup2(copy, descriptor)
        os.close(copy)
