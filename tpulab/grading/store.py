"""What was judged before, by content: figures of programs and verdicts that passed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

_MAX_FILES = 4000


def home() -> Path:
    """Where tpulab keeps its files: ``TPULAB_HOME``, or the user's data folder."""
    given = os.environ.get("TPULAB_HOME")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("tpulab", appauthor=False))


@cache
def code_fingerprint() -> str:
    """SHA-256 of everything in tpulab that a verdict depends on."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    rooms = ("exercises", "grading", "hardware", "kernel", "roofline", "compiler", "simulator")
    files = [file for room in rooms for file in sorted((package / room).rglob("*"))]
    for file in [*files, *sorted(package.glob("ladder*"))]:
        if file.suffix in (".py", ".toml", ".json"):
            with contextlib.suppress(OSError):
                digest.update(str(file.relative_to(package)).encode() + file.read_bytes())
    return digest.hexdigest()


def content_key(*parts: Any) -> str:
    """A key from plain values and the state of tpulab's own code."""
    return hashlib.sha256(json.dumps([code_fingerprint(), *parts]).encode()).hexdigest()


def _file(key: str) -> Path:
    return home() / "cache" / "verdicts" / key[:2] / f"{key}.json"


def cached(key: str) -> dict[str, Any] | None:
    """What was remembered under a key; None as well when it cannot be read."""
    if os.environ.get("TPULAB_NO_VERDICT_CACHE"):
        return None
    try:
        data = json.loads(_file(key).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def remember(key: str, value: dict[str, Any]) -> None:
    """Keep a value; a full disk or a read-only home costs the cache and nothing else."""
    path = _file(key)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(value, file)
        # complete or not at all, also when two processes write the same entry
        os.replace(temporary, path)
        temporary = None
    except OSError:
        pass
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def prune() -> None:
    """Delete the oldest entries when there are too many."""
    folder = home() / "cache" / "verdicts"
    with contextlib.suppress(OSError):
        files = [(file.stat().st_mtime, file) for file in folder.glob("*/*.json")]
        for _, file in sorted(files)[: max(0, len(files) - _MAX_FILES)]:
            file.unlink(missing_ok=True)
