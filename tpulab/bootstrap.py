"""From an empty clone to a running environment, with the standard library only.

``python3 -m tpulab VERB`` comes here. In a clone, an environment is made once (``.venv``), stamped
with a hash of what it was made from, and the verb is handed over to the ``tpulab`` inside it; later
starts only compare the stamp. Outside a clone, or in an environment that already holds tpulab, the
verb runs right here.

Environment variables: ``TPULAB_VENV`` names another folder for the environment,
``TPULAB_INSTALLER`` (``uv`` or ``pip``) chooses the installer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

from tpulab import _install

# answered by the parser alone, so nothing has to be installed for them
_NEEDS_NOTHING = {"-h", "--help", "--version"}


def main(arguments: list[str]) -> int:
    """Run a verb in tpulab's environment, which is made first when it is missing.

    Args:
        arguments: the command line after ``python3 -m tpulab``.

    Returns:
        The exit status, where the process is not replaced by the environment's ``tpulab``.
    """
    try:
        return _main(arguments)
    except _install.SetupError as error:
        print(f"tpulab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\ntpulab: stopped. Run the same command again; it goes on from here.", file=sys.stderr
        )
        return 130


def _main(arguments: list[str]) -> int:
    root = clone_root()
    asks_for_help = not arguments or any(a in _NEEDS_NOTHING for a in arguments)
    if root is None or asks_for_help:
        return _run_here(arguments)
    venv_directory = choose_venv_directory(root)
    inside_it = Path(sys.prefix).resolve() == venv_directory.resolve()
    if not inside_it and this_python_has_tpulab():
        return _run_here(arguments)
    extras = _extras(arguments[0])
    environment = _install.Environment(root=root, directory=venv_directory)
    if not environment.is_current(extras):
        from tpulab.commands import parser

        parser.parse(arguments)  # a slip in the command line is told before minutes of installing
        environment.make(extras)
    if inside_it:
        return _run_here(arguments)
    return _hand_over(environment, arguments)


def _extras(verb: str) -> tuple[str, ...]:
    """What a verb needs beyond the lab itself."""
    if verb in ("book", "pair"):
        return (verb,)
    if verb != "test":
        return ()
    # the tests in a browser drive one that is there; without one their driver would be of no use
    has_browser = any(shutil.which(name) for name in ("chromium", "google-chrome"))
    return ("test", "book", "browser", "pair") if has_browser else ("test", "book")


def _run_here(arguments: list[str]) -> int:
    try:
        from tpulab import cli
    except ModuleNotFoundError as error:
        raise _install.SetupError(
            f"this Python ({sys.executable}) lacks the package {error.name!r}. "
            "Install tpulab with its dependencies:  pip install tpulab"
        ) from error
    return cli.main(arguments)


def clone_root() -> Path | None:
    """The clone that this very file lies in, or None for an installed package."""
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file() and (root / "constraints.txt").is_file():
        return root
    return None


def this_python_has_tpulab() -> bool:
    """Whether tpulab was installed, with what it needs, into the Python that runs this."""
    # a look at the folders instead of importlib.metadata, which costs as much as all the rest
    for entry in sys.path:
        folder = Path(entry)
        if folder.name in ("site-packages", "dist-packages") and folder.is_dir():
            names = set(os.listdir(folder))
            has = any(n.startswith("tpulab-") and n.endswith(".dist-info") for n in names)
            if has and {"jax", "rich", "jupyterlab"} <= names:
                return True
    return False


def choose_venv_directory(root: Path) -> Path:
    """Where the environment for this clone and this Python lives.

    ``.venv`` in the clone; ``.venv-3.12`` when ``.venv`` belongs to another Python version; a
    folder in the user's cache when the clone is read-only.
    """
    chosen = os.environ.get("TPULAB_VENV")
    if chosen:
        return Path(chosen).expanduser().absolute()
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    here = root / ".venv"
    if _python_version_of(here) in (None, version):
        directory = here
    else:
        directory = root / f".venv-{version}"
    if os.access(directory if directory.is_dir() else root, os.W_OK):
        return directory
    if _install.Environment(root=root, directory=directory).is_complete():
        return directory  # a read-only clone that somebody prepared
    return _cache_directory() / f"environment-{_install.short_hash(str(root))}-{version}"


def _python_version_of(venv_directory: Path) -> str | None:
    """Major and minor version from the environment's own record, None if there is none."""
    with contextlib.suppress(OSError):
        for line in (venv_directory / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() in ("version", "version_info"):
                return ".".join(value.strip().split(".")[:2])
    return None


def _cache_directory() -> Path:
    if os.environ.get("TPULAB_HOME"):
        return Path(os.environ["TPULAB_HOME"]).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tpulab"


def _hand_over(environment: _install.Environment, arguments: list[str]) -> int:
    """Become the environment's ``tpulab``."""
    script = environment.script("tpulab")
    command = [str(script)] if script.is_file() else [str(environment.python), "-m", "tpulab.cli"]
    command += arguments
    # so that tools started from a lab find the environment's python, jupyter and pytest
    os.environ["VIRTUAL_ENV"] = str(environment.directory)
    os.environ["PATH"] = str(script.parent) + os.pathsep + os.environ.get("PATH", "")
    os.environ.pop("PYTHONHOME", None)
    if sys.platform == "win32":
        import subprocess  # exec on Windows would give the prompt back at once

        return subprocess.call(command)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)
    raise AssertionError("exec returned")
