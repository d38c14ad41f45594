"""Compiled programs on disk, by what was compiled, for which chip, by which compiler.

An entry is one file, written beside its place and renamed into it, so that two processes and a
crash at any moment leave whole entries only. Trouble with the disk costs the cache, never the work:
every method reports it as a sentence in ``warnings`` and carries on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpulab.compiler import frames

FORMAT_VERSION = 2
_MAGIC = b"tpulab-program\n"
_DIGEST_BYTES = 32
_SUFFIX = ".program"
DEFAULT_LIMIT_BYTES = 1 << 30
# pruning reads the whole directory; once in this many writes is enough
_WRITES_BETWEEN_PRUNES = 64


def home_directory() -> Path:
    """Where tpulab keeps its files: ``TPULAB_HOME``, or the user's data directory."""
    if given := os.environ.get("TPULAB_HOME"):
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("tpulab", appauthor=False))


class CompileCache:
    """A directory of compiled programs.

    Args:
        directory: where; the default is ``<home>/cache/programs``.
        limit_bytes: entries used longest ago are deleted beyond this.
    """

    def __init__(
        self, directory: Path | None = None, *, limit_bytes: int = DEFAULT_LIMIT_BYTES
    ) -> None:
        self.directory = directory or home_directory() / "cache" / "programs"
        self.limit_bytes = limit_bytes
        self.warnings: list[str] = []
        self._lock = threading.Lock()
        self._writes = 0

    @staticmethod
    def key(artifact_key: str, chip: str, compiler: str, jax_version: str) -> str:
        """The name of an entry."""
        parts = (str(FORMAT_VERSION), artifact_key, chip, compiler, jax_version)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.directory / key[:2] / f"{key}{_SUFFIX}"

    def get(self, key: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Read an entry and mark it as used; None when there is none, or it is damaged."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"the compile cache can't be read ({error}); compiling instead")
            return None
        try:
            entry = self._decode(data)
        except frames.FrameError:
            self._warn(f"a damaged entry of the compile cache was removed ({path.name})")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return entry

    def put(self, key: str, header: Mapping[str, Any], segments: Mapping[str, bytes]) -> bool:
        """Write an entry; False, with a warning, when the disk does not let us."""
        path = self.path(key)
        temporary: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(self._encode(header, segments))
            os.replace(temporary, path)
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            reason = error.strerror or str(error)
            self._warn(
                f"the compile cache in {self.directory} can't be written ({reason}); "
                "results are kept for this session only"
            )
            return False
        with self._lock:
            self._writes += 1
            due = self._writes % _WRITES_BETWEEN_PRUNES == 1
        if due:
            self.prune()
        return True

    def prune(self) -> int:
        """Delete the entries used longest ago until the limit is kept.

        Returns:
            How many bytes were deleted.
        """
        entries = []
        total = 0
        for path in self._files():
            with contextlib.suppress(OSError):
                status = path.stat()
                if path.name.startswith(".writing-"):
                    # left behind by a process that was killed in the middle of a write
                    if time.time() - status.st_mtime > 3600:
                        path.unlink()
                    continue
                entries.append((status.st_mtime, status.st_size, path))
                total += status.st_size
        deleted = 0
        # a little below the limit, so that the next write does not prune again
        goal = int(self.limit_bytes * 0.9) if total > self.limit_bytes else total
        for _, size, path in sorted(entries, key=lambda entry: entry[0]):
            if total - deleted <= goal:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                deleted += size
        return deleted

    def clear(self) -> None:
        """Delete every entry."""
        for path in self._files():
            with contextlib.suppress(OSError):
                path.unlink()

    def size_bytes(self) -> int:
        """Bytes of all entries."""
        total = 0
        for path in self._files():
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total

    def _files(self) -> list[Path]:
        try:
            shelves = [path for path in self.directory.iterdir() if len(path.name) == 2]
            return [path for shelf in shelves for path in shelf.iterdir()]
        except OSError:
            return []

    def _warn(self, sentence: str) -> None:
        with self._lock:
            if sentence not in self.warnings:
                self.warnings.append(sentence)

    @staticmethod
    def _encode(header: Mapping[str, Any], segments: Mapping[str, bytes]) -> bytes:
        data = frames.pack(header, segments)
        return _MAGIC + hashlib.sha256(data).digest() + data

    @staticmethod
    def _decode(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
        start = len(_MAGIC) + _DIGEST_BYTES
        digest, body = data[len(_MAGIC) : start], data[start:]
        if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
            raise frames.FrameError("the entry is damaged")
        return frames.unpack(body)
