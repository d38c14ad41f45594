"""Makes and updates tpulab's environment. Standard library only; used by ``bootstrap``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# an environment of this size was measured with tpulab doctor's own disk count, rounded up
_ROOM_NEEDED_BYTES = 2_000_000_000
_STAMP = "tpulab-stamp.json"
_LOG = "tpulab-install.log"
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


def short_hash(text: str) -> str:
    """Ten hexadecimal digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def missing_compiler_sentence() -> str | None:
    """What this platform loses because libtpu does not exist for it; None on Linux x86-64."""
    if sys.platform == "linux" and platform.machine().lower() in ("x86_64", "amd64"):
        return None
    return (
        f"The TPU compiler (libtpu) exists for Linux on x86-64 only, not for {sys.platform} on "
        f"{platform.machine()}: here you get the verdicts legal, correct and safe; compiles and "
        "fast need a Linux x86-64 machine, container or Colab."
    )


@dataclass(frozen=True)
class Environment:
    """tpulab's virtual environment for one clone.

    Args:
        root: the clone.
        directory: where the environment is or will be.
    """

    root: Path
    directory: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.script("python")

    def script(self, name: str) -> Path:
        """An executable of the environment."""
        if sys.platform == "win32":
            return self.directory / "Scripts" / f"{name}.exe"
        return self.directory / "bin" / name

    @property
    def _stamp(self) -> Path:
        return self.directory / _STAMP

    def _key(self) -> str:
        """Changes when the environment has to be made again or brought up to date."""
        digest = hashlib.sha256()
        for name in ("pyproject.toml", "constraints.txt"):
            digest.update((self.root / name).read_bytes())
        return digest.hexdigest()

    def _read_stamp(self) -> dict:
        try:
            stamp = json.loads(self._stamp.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def is_complete(self) -> bool:
        """Whether an installation has run to its end here, for this clone."""
        # python is asked for too: its symbolic link dangles after the system's Python was replaced
        in_place = self._read_stamp().get("place") == [str(self.root), str(self.directory)]
        return in_place and self.python.exists()

    def is_current(self, extras: Sequence[str]) -> bool:
        """Whether the environment holds exactly what the clone asks for, and these extras."""
        stamp = self._read_stamp()
        return (
            self.is_complete()
            and stamp.get("key") == self._key()
            and set(extras) <= set(stamp.get("extras", ()))
        )

    def make(self, extras: Sequence[str]) -> None:
        """Create the environment or bring it up to date; say what is done and how long it takes.

        Raises:
            SetupError: with a sentence that says what is missing and what to do.
        """
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"can't create {self.directory.parent} ({error.strerror}). Name a folder that you "
                "can write with TPULAB_VENV=/path/to/folder."
            ) from error
        lock = self.directory.parent / f".{self.directory.name.lstrip('.')}.lock"
        try:
            with _lock(lock):
                if self.is_current(extras):
                    return  # another process did it while this one waited
                self._make(extras)
        except OSError as error:
            raise SetupError(
                f"can't make the environment in {self.directory}: {error.strerror or error} "
                f"({error.filename or lock}). TPULAB_VENV=/path/to/folder names another folder."
            ) from error

    def _make(self, extras: Sequence[str]) -> None:
        started = time.monotonic()
        before = self._read_stamp()
        usable_before = self.is_complete()
        wanted = sorted(set(extras) | set(before.get("extras", ())))
        installer = _find_installer()
        if usable_before:
            _say(f"Updating the environment in {self.directory} with {installer.name}.")
        else:
            self._check_room()
            _say(
                f"Setting up tpulab, once: an environment with Python {platform.python_version()} "
                f"in {self.directory}, with {installer.name}. About 2 minutes, 1.1 GB."
            )
        if not usable_before and (before or not self._looks_usable()):
            self._remove_own()
        log = self.directory / _LOG
        if not self.python.exists() or self._mark() == "creating":
            self.directory.mkdir(exist_ok=True)
            self._set_mark("creating")
            installer.create(self.directory)
        self._set_mark("installing")
        requirement = str(self.root) + (f"[{','.join(wanted)}]" if wanted else "")
        constraints = self.root / "constraints.txt"
        # the stamp goes first: whatever happens from here, no half-made environment has one
        self._stamp.unlink(missing_ok=True)
        try:
            installer.install(self.python, requirement, constraints, log)
        except InstallerError as error:
            if usable_before and error.offline and self._works():
                self._write_stamp(before)
                _say(f"{error}\nGoing on with the environment as it was.")
                return
            raise
        if not self._works():
            raise SetupError(
                f"the packages are installed, but can't be imported; see {log}, then delete "
                f"{self.directory} and try again."
            )
        self._write_stamp(
            {
                "key": self._key(),
                "place": [str(self.root), str(self.directory)],
                "extras": wanted,
                "python": platform.python_version(),
                "installer": installer.name,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
        _say(f"Ready after {time.monotonic() - started:.0f} s.")
        sentence = missing_compiler_sentence()
        if sentence and not usable_before:
            _say(sentence)

    def _check_room(self) -> None:
        free = shutil.disk_usage(self.directory.parent).free
        if free < _ROOM_NEEDED_BYTES:
            raise SetupError(
                f"{self.directory.parent} has {free / 1e9:.1f} GB free; the environment needs "
                f"{_ROOM_NEEDED_BYTES / 1e9:.0f} GB while it is made. Free some, or name another "
                "folder with TPULAB_VENV=/path/to/folder."
            )

    def _looks_usable(self) -> bool:
        return not self.directory.exists() or self.python.exists()

    @property
    def _mark_file(self) -> Path:
        return self.directory / "tpulab-made-this"

    def _mark(self) -> str:
        """How far the making of this environment got; empty if tpulab did not make it."""
        try:
            return self._mark_file.read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def _set_mark(self, how_far: str) -> None:
        self._mark_file.write_text(how_far + "\n", encoding="utf-8")

    def _remove_own(self) -> None:
        """Remove a broken or moved environment, if it is one that tpulab made."""
        if not self.directory.exists():
            return
        ours = bool(self._mark()) or self._stamp.exists()
        if not ours and any(self.directory.iterdir()):
            raise SetupError(
                f"{self.directory} exists, has no working Python and wasn't made by tpulab. "
                "Remove it, or name another folder with TPULAB_VENV=/path/to/folder."
            )
        shutil.rmtree(self.directory)

    def _works(self) -> bool:
        """Whether the environment's Python finds the packages that every verb counts on."""
        names = ("tpulab", "jax", "jaxlib", "numpy", "rich", "jupyterlab", "cloudpickle")
        program = (
            "import importlib.util as u, sys;"
            f"sys.exit(any(u.find_spec(n) is None for n in {names!r}))"
        )
        command = [str(self.python), "-I", "-c", program]
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
        return done.returncode == 0

    def _write_stamp(self, stamp: dict) -> None:
        part = self._stamp.with_suffix(".part")
        part.write_text(json.dumps(stamp, indent=1) + "\n", encoding="utf-8")
        os.replace(part, self._stamp)


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
            _say("uv could not install; trying pip, which has settings of its own here.")
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


def _find_installer() -> Uv | Pip:
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


def _say(sentence: str) -> None:
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
            if line.strip():
                return line.strip()
    return ""


def _show_progress(what: str, seconds: float, line: str) -> None:
    text = f"{what}: {seconds:.0f} s"
    if line:
        text += f"  {line}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
    else:
        _say(text[:120])


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


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock that the system releases when its holder dies; if taken, say so and wait."""
    with path.open("a+b") as stream:
        if not _try_lock(stream.fileno()):
            _say("another tpulab is setting up the same environment; waiting for it.")
            while not _try_lock(stream.fileno()):
                time.sleep(0.2)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
