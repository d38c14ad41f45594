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

from tpulab._installers import InstallerError, SetupError, find_installer, say

# the environment takes 1.6 GB (du -sh .venv), and what is downloaded another 0.5 GB until unpacked
_ROOM_NEEDED_BYTES = 2_200_000_000
_STAMP = "tpulab-stamp.json"
_LOG = "tpulab-install.log"


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
        installer = find_installer()
        if usable_before:
            say(f"Updating the environment in {self.directory} with {installer.name}.")
        else:
            self._check_room()
            say(
                f"Setting up tpulab, once: an environment with Python {platform.python_version()} "
                f"in {self.directory}, with {installer.name}. About 2 minutes, 1.6 GB on disk."
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
                say(f"{error}\nGoing on with the environment as it was.")
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
        say(f"Ready after {time.monotonic() - started:.0f} s.")
        sentence = missing_compiler_sentence()
        if sentence and not usable_before:
            say(sentence)

    def _check_room(self) -> None:
        free = shutil.disk_usage(self.directory.parent).free
        if free < _ROOM_NEEDED_BYTES:
            raise SetupError(
                f"{self.directory.parent} has {free / 1e9:.1f} GB free; the environment needs "
                f"{_ROOM_NEEDED_BYTES / 1e9:.1f} GB while it is made. Free some, or name another "
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


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock that the system releases when its holder dies; if taken, say so and wait."""
    with path.open("a+b") as stream:
        if not _try_lock(stream.fileno()):
            say("another tpulab is setting up the same environment; waiting for it.")
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
