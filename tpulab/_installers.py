"""Runs uv or pip for the bootstrap: quietly, with signs of life, and with sentences when it fails.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEARTBEAT_SECONDS = 15.0

_NETWORK_SIGNS = (
    "failed to fetch",
    "dns error",
    "error sending request",
    "connection refused",
    "name resolution",
    "failed to establish a new connection",
    "network is unreachable",
    "connect timeout",
    "connection error",
    "max retries exceeded",
    "tunnel error",
    "no route to host",
    "could not connect",
)


class SetupError(Exception):
    """The environment can't be made; the message is a sentence for the person at the prompt."""


class InstallerError(SetupError):
    """The installer ended with an error; ``offline`` says whether the network was the cause."""

    def __init__(self, message: str, *, offline: bool) -> None:
        super().__init__(message)
        self.offline = offline


@dataclass(frozen=True)
class Uv:
    """The installer uv: seconds where pip needs minutes."""

    executable: str
    name: str = "uv"

    def create(self, directory: Path) -> None:
        """Make an empty environment with the Python that runs this."""
        command = [self.executable, "venv", "--quiet", "--allow-existing"]
        _run([*command, "--python", sys.executable, str(directory)], None, "environment")

    def install(self, python: Path, requirement: str, constraints: Path, log: Path) -> None:
        """Install the clone, editable, with its pins."""
        # pip itself goes in too, for the %pip of notebooks
        command = [self.executable, "pip", "install", "--python", str(python), "pip"]
        try:
            _run([*command, "-e", requirement, "-c", str(constraints)], log, "packages")
        except InstallerError:
            # uv does not read pip's settings; where there are some (a mirror, a proxy), pip may
            # well get through
            pip = _find_pip()
            if pip is None or not _pip_is_configured():
                raise
            say("uv could not install; trying pip, which has settings of its own here.")
            pip.install(python, requirement, constraints, log)


@dataclass(frozen=True)
class Pip:
    """pip, either the environment's own (from ensurepip) or the one of the Python that runs this.

    Args:
        own: whether a new environment gets its own pip.
    """

    own: bool
    name: str = "pip"

    def create(self, directory: Path) -> None:
        """Make an empty environment with the Python that runs this."""
        command = [sys.executable, "-m", "venv", *([] if self.own else ["--without-pip"])]
        _run([*command, str(directory)], None, "environment")

    def install(self, python: Path, requirement: str, constraints: Path, log: Path) -> None:
        """Install the clone, editable, with its pins."""
        if self.own and _succeeds([str(python), "-m", "pip", "--version"]):
            command = [str(python), "-m", "pip"]
        else:
            command = [sys.executable, "-m", "pip", "--python", str(python)]
        command += ["--disable-pip-version-check", "--no-input", "install", "--progress-bar=off"]
        _run([*command, "-e", requirement, "-c", str(constraints)], log, "packages")


def find_installer() -> Uv | Pip:
    wish = os.environ.get("TPULAB_INSTALLER", "").lower()
    if wish not in ("", "uv", "pip"):
        raise SetupError(f"TPULAB_INSTALLER is {wish!r}; it can be uv or pip.")
    if wish != "pip":
        uv = shutil.which("uv")
        # a version manager's stand-in may be on the PATH without a uv behind it
        if uv and _succeeds([uv, "--version"]):
            return Uv(uv)
        if wish == "uv":
            raise SetupError("TPULAB_INSTALLER asks for uv, but no working uv is on the PATH.")
    pip = _find_pip()
    if pip is not None:
        return pip
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    raise SetupError(
        f"this Python ({sys.executable}) can make no environment with pip in it. "
        f"On Debian and Ubuntu:  sudo apt install python{version}-venv   then try again. "
        "Or install uv."
    )


def _find_pip() -> Pip | None:
    from importlib.util import find_spec

    if find_spec("venv") is None:
        return None
    if find_spec("ensurepip") is not None and _has_bundled_pip():
        return Pip(own=True)
    # Debian takes ensurepip out of python3; its pip can install into an environment without pip
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--version"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    words = done.stdout.split()
    with contextlib.suppress(IndexError, ValueError):
        if done.returncode == 0 and tuple(map(int, words[1].split(".")[:2])) >= (22, 3):
            return Pip(own=False)
    return None


def _has_bundled_pip() -> bool:
    import ensurepip

    try:
        return bool(ensurepip.version())
    except Exception:  # noqa: BLE001 - distributions patch this function in many ways
        return False


def _pip_is_configured() -> bool:
    if os.environ.get("PIP_CONFIG_FILE") == os.devnull:
        return False  # pip's own way to say that no settings count
    if any(name.startswith("PIP_") and "INDEX" in name for name in os.environ):
        return True
    home = Path.home()
    places = [
        Path("/etc/pip.conf"),
        Path("/etc/xdg/pip/pip.conf"),
        home / ".pip" / "pip.conf",
        home / ".config" / "pip" / "pip.conf",
        Path(sys.prefix) / "pip.conf",
        home / "AppData" / "Roaming" / "pip" / "pip.ini",
    ]
    if os.environ.get("PIP_CONFIG_FILE"):
        places.append(Path(os.environ["PIP_CONFIG_FILE"]))
    return any(place.is_file() for place in places)


def _succeeds(command: list[str]) -> bool:
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def say(sentence: str) -> None:
    print(f"tpulab: {sentence}", file=sys.stderr, flush=True)


def _run(command: list[str], log: Path | None, what: str) -> None:
    """Run an installer quietly; show that it lives; on failure tell why in one sentence."""
    environment = dict(os.environ, UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1")
    # an active environment of the user's must not attract the installer
    environment.pop("VIRTUAL_ENV", None)
    environment.pop("PYTHONHOME", None)
    environment.pop("PYTHONPATH", None)
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        if log is None:
            import tempfile

            output = stack.enter_context(tempfile.TemporaryFile("w+b"))
        else:
            output = stack.enter_context(log.open("w+b"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=sys.platform != "win32",
        )
        try:
            for seconds in _beats(process, started):
                _show_progress(what, seconds, _last_line(output.fileno(), log))
        except BaseException:
            _stop(process)
            raise
        finally:
            _clear_progress()
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode != 0:
        raise _explain_failure(command, text, log)


def _beats(process: subprocess.Popen, started: float) -> Iterator[float]:
    """Yield the seconds since the start now and then until the process ends."""
    on_terminal = sys.stderr.isatty()
    pause = 0.5 if on_terminal else _HEARTBEAT_SECONDS
    while True:
        try:
            process.wait(timeout=pause)
            return
        except subprocess.TimeoutExpired:
            yield time.monotonic() - started


def _last_line(descriptor: int, log: Path | None) -> str:
    if log is None:
        return ""
    with contextlib.suppress(OSError):
        size = os.fstat(descriptor).st_size
        with log.open("rb") as stream:
            stream.seek(max(0, size - 2000))
            lines = stream.read().decode(errors="replace").split("\n")
        for line in reversed(lines):
            if line.strip() and not line.startswith("WARNING"):
                return line.strip().replace("Installing collected packages: ", "installing ")
    return ""


def _show_progress(what: str, seconds: float, line: str) -> None:
    text = f"{what}: {seconds:.0f} s"
    if line:
        text += f"  {line}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
    else:
        say(text[:90])


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _stop(process: subprocess.Popen) -> None:
    """End the installer and what it started."""
    import signal

    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _explain_failure(command: list[str], text: str, log: Path | None) -> InstallerError:
    low = text.lower()
    tool = Path(command[0]).name if "pip" not in command else "the installer"
    if any(sign in low for sign in _NETWORK_SIGNS):
        return InstallerError(
            "can't reach the package index: no network, or a proxy is in the way. Nothing is "
            "lost; connect and run the same command again.",
            offline=True,
        )
    if "no space left" in low:
        return InstallerError(
            "the disk is full. Free about 2 GB, or name another folder with "
            "TPULAB_VENV=/path/to/folder, and run the same command again.",
            offline=False,
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().lstrip("×✗ ").startswith("error")]
    told = (errors or lines or ["no message"])[-1][:300]
    where = f" The whole output is in {log}." if log is not None else ""
    return InstallerError(f"{tool} failed: {told}{where}", offline=False)
