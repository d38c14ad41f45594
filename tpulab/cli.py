"""The command line: ``tpulab VERB``.

Exit status: 0 when the question was answered with yes, 1 when it was answered with no or something
failed, 2 for bad usage, 130 after Ctrl-C. Only this module's ``main`` turns exceptions into
sentences; ``TPULAB_DEBUG=1`` shows the traceback as well.
"""

from __future__ import annotations

# Nothing else is imported here: an interrupt while a module loads must already be caught below.
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit status.

    Args:
        arguments: the words after ``tpulab``; ``sys.argv`` by default.
    """
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        _write_error("\ntpulab: stopped.")
        return 130
    except BrokenPipeError:
        return _leave_broken_pipe()
    except SystemExit as error:  # from argparse, whose message is already out, or from SIGTERM
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception as error:  # noqa: BLE001 - this is the place where every error becomes a sentence
        try:
            return _explain(error)
        except KeyboardInterrupt:
            return 130


def _run(arguments: list[str]) -> int:
    import signal

    def terminate(_signal: int, _frame: object) -> None:
        # an exception, so that every supervised process is ended on the way out
        sys.exit(143)

    try:
        signal.signal(signal.SIGTERM, terminate)
    except ValueError:
        pass  # not the main thread: whoever called us owns the signals
    import warnings

    warnings.showwarning = _show_warning  # type: ignore[assignment]
    from tpulab.commands import parser

    options = parser.parse(arguments)
    status = options.run(options)
    sys.stdout.flush()
    return status


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    """A warning as a sentence: the line of our source that gave it helps nobody."""
    _write_error(f"tpulab: {message}")


def _explain(error: Exception) -> int:
    import os

    from tpulab.errors import TpulabError, UnknownNameError, UsageError

    if os.environ.get("TPULAB_DEBUG"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, TpulabError):
        _write_error(f"tpulab: {error}")
        return 2 if isinstance(error, UsageError | UnknownNameError) else 1
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename else ""
        _write_error(f"tpulab: {error.strerror}{name}")
        return 1
    what = f"{type(error).__name__}: {error}".strip(": ")
    _write_error(
        f"tpulab: something went wrong that tpulab did not foresee: {what}\n"
        "  try:   the same command with TPULAB_DEBUG=1 in front, and report what it shows"
    )
    return 1


def _leave_broken_pipe() -> int:
    """The reader of our output is gone (``tpulab chips | head``); end without a word."""
    import os

    # python flushes stdout once more at exit; give it somewhere to go
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


def _write_error(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody is listening


if __name__ == "__main__":
    sys.exit(main())
