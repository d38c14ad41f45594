"""How JupyterLab is set up for the labs: alone in `tpulab lab`, together in `tpulab pair`.

Nothing is written into the learner's folder or into their own Jupyter configuration: what a server
needs to know lies in a private folder that goes with it, and what is worth keeping (where windows
were) in tpulab's home.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Unix sockets have paths of at most 107 bytes; a kernel's adds about 60 to its folder's
_LONGEST_SOCKET_FOLDER = 45
_RUNTIME_PREFIX = "tpulab-jupyter-"
_AUTOSAVE_SECONDS = 15

#: Names of the people in a shared session, as JSON, for the notebooks of that session.
PARTNERS_VARIABLE = "TPULAB_PARTNERS"

# the server's and the browser's halves of working together; all of them or none
_SERVER_EXTENSIONS = ("jupyter_server_ydoc", "jupyter_server_fileid", "jupyter_server_nbmodel")
_BROWSER_EXTENSIONS = (
    "@jupyter/collaboration-extension",
    "@jupyter/docprovider-extension",
    "@datalayer/jupyter-server-nbmodel",
)


@dataclass(frozen=True)
class Partner:
    """Somebody in a shared session.

    Attributes:
        name: shown at their cursor and in the list of who is there.
        token: lets them in, under that name.
    """

    name: str
    token: str = field(repr=False)


def state_folder() -> Path:
    """Folder for what JupyterLab remembers from one start to the next."""
    chosen = os.environ.get("TPULAB_HOME")
    if chosen:
        home = Path(chosen)
    else:
        import platformdirs

        home = Path(platformdirs.user_data_dir("tpulab"))
    folder = home / "jupyter"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
    except OSError:
        # a read-only home serves labs all the same, and forgets window layouts
        folder = Path(tempfile.mkdtemp(prefix="tpulab-state-"))
    return folder


@contextlib.contextmanager
def runtime_folder() -> Iterator[Path]:
    """A private folder with a short path: connection files, kernel sockets, settings, stores."""
    base = _runtime_bases()[0]
    folder = Path(tempfile.mkdtemp(prefix=_RUNTIME_PREFIX, dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def runtime_folders() -> list[Path]:
    """The runtime folders of all running servers of this user, and of some that died."""
    return [
        folder for base in _runtime_bases() for folder in Path(base).glob(f"{_RUNTIME_PREFIX}*")
    ]


def _runtime_bases() -> list[str]:
    temporary = tempfile.gettempdir()
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.access(base, os.W_OK) and len(base) <= _LONGEST_SOCKET_FOLDER - 25:
        return [base, temporary]
    return [temporary]


def server_environment(
    state: Path, runtime: Path, partners: tuple[Partner, ...] = ()
) -> dict[str, str]:
    """The server's and its kernels' environment; writes the settings that it points at.

    Args:
        state: the folder of `state_folder`.
        runtime: the folder of `runtime_folder`.
        partners: who works together; nobody for a learner alone.
    """
    environment = dict(os.environ)
    settings = runtime / "config"
    _write_settings(settings, partners)
    paths = [str(settings), environment.get("JUPYTER_CONFIG_PATH", "")]
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(path for path in paths if path)
    environment["JUPYTER_RUNTIME_DIR"] = str(runtime)
    # the kernel named python3 is this Python, whatever an older installation left in the home
    environment["JUPYTER_PREFER_ENV_PATH"] = "1"
    environment["JUPYTERLAB_WORKSPACES_DIR"] = str(state / "workspaces")
    environment.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    environment.pop(PARTNERS_VARIABLE, None)
    if partners:
        environment[PARTNERS_VARIABLE] = json.dumps([partner.name for partner in partners])
    package = str(Path(__file__).resolve().parents[2])
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([package, before] if before else [package])
    if not os.access(Path.home(), os.W_OK):
        for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            environment.setdefault(name, str(state / name.lower()))
    return environment


def _write_settings(settings: Path, partners: tuple[Partner, ...]) -> None:
    disabled = {
        # no question about news at the first start, and no request for them
        "@jupyterlab/apputils-extension:announcements": True,
        # twins of notebooks overwrite each other while one is open
        "jupyterlab-jupytext": True,
    }
    if not partners:
        # somebody alone gains nothing from them, and a cell that fails would fill the browser's
        # console with errors about the cells behind it
        disabled.update(dict.fromkeys(_BROWSER_EXTENSIONS, True))
    (settings / "labconfig").mkdir(parents=True, exist_ok=True)
    page = {"disabledExtensions": disabled}
    (settings / "labconfig" / "page_config.json").write_text(json.dumps(page), encoding="utf-8")
    overrides = {
        # sliders and pictures show what they showed last, also before their cells run again
        "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
        # every two minutes by default
        "@jupyterlab/docmanager-extension:plugin": {"autosaveInterval": _AUTOSAVE_SECONDS},
    }
    (settings / "labconfig" / "default_setting_overrides.json").write_text(
        json.dumps(overrides), encoding="utf-8"
    )
    server: dict[str, Any] = {}
    if partners:
        # in a file and not among the arguments, which every user of the machine can list
        server["Partners"] = {"partners": {partner.token: partner.name for partner in partners}}
    (settings / "jupyter_server_config.json").write_text(json.dumps(server), encoding="utf-8")


def server_options(folder: Path, runtime: Path, port: int, together: bool) -> list[str]:
    """The words after ``python -m jupyterlab``.

    Args:
        folder: what is served.
        runtime: the folder of `runtime_folder`.
        port: the one port to listen on, on this machine only.
        together: whether several people work in the same notebooks.
    """
    extensions = {"jupyterlab_jupytext": False}
    extensions.update(dict.fromkeys(_SERVER_EXTENSIONS, together))
    options = [
        "--no-browser",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder.resolve()}",
        "--ServerApp.answer_yes=True",
        f"--ServerApp.jpserver_extensions={extensions}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--allow-root")
    if has_kernel_sockets(runtime):
        # sockets in a private folder: other users of the machine cannot talk to the kernel
        options.append("--KernelManager.transport=ipc")
    if together:
        stores = runtime / "stores"
        stores.mkdir(exist_ok=True)
        options += [
            "--ServerApp.identity_provider_class=tpulab.classroom.together.Partners",
            "--ServerApp.session_manager_class=tpulab.classroom.together.OneKernel",
            # outputs reach the notebook also when whoever ran the cell has closed the tab
            "--YDocExtension.server_side_execution=True",
            # by default these three lie in the served folder
            f"--ArbitraryFileIdManager.db_path={stores / 'file_ids.db'}",
            f"--SQLiteYStore.db_path={stores / 'ystore.db'}",
            f"--YDocExtension.session_store_path={stores / 'collaboration_sessions.json'}",
        ]
    return options


def has_kernel_sockets(runtime: Path) -> bool:
    """Whether kernels can be reached through sockets in the runtime folder."""
    return hasattr(socket, "AF_UNIX") and len(str(runtime)) <= _LONGEST_SOCKET_FOLDER
