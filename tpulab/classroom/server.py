"""A JupyterLab server of one learner: private, quiet, and gone with its kernels when it is stopped.

It listens on this machine only and asks for a token that is new at every start. What JupyterLab
stores for itself goes into tpulab's home, never into the learner's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpulab.errors import TpulabError

_FIRST_PORT = 8888
_PORTS_TRIED = 100
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
# Unix sockets have paths of at most 107 bytes; a kernel's adds about 60 to its folder's
_LONGEST_SOCKET_FOLDER = 45
RUNTIME_PREFIX = "tpulab-jupyter-"


class LabError(TpulabError):
    """The labs cannot be copied or served."""


@dataclass
class Server:
    """A running JupyterLab: its process, where it listens, and what lets one in."""

    process: subprocess.Popen[bytes]
    port: int
    token: str
    log: Path

    @property
    def url(self) -> str:
        """Root of its addresses, with a slash at the end."""
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path: str, timeout: float = 10.0) -> bytes:
        """What it answers to a GET of ``path``, with the token."""
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"token {self.token}"}
        )
        # a proxy set for the outside world must not see a request to this machine
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=timeout) as answer:
            return bytes(answer.read())

    def last_words(self) -> str:
        """The end of its log."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return "\n".join(lines[-5:])
        return ""


def state_folder() -> Path:
    """Folder for what JupyterLab stores beside the notebooks: never the learner's folder."""
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
    """A private folder with a short path, for connection files and kernel sockets."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    if not os.access(base, os.W_OK) or len(base) > _LONGEST_SOCKET_FOLDER - 25:
        base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix=RUNTIME_PREFIX, dir=base))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def server_environment(state: Path, runtime: Path) -> dict[str, str]:
    """The server's and its kernels' environment."""
    environment = dict(os.environ)
    settings = state / "config"
    (settings / "labconfig").mkdir(parents=True, exist_ok=True)
    (settings / "labconfig" / "page_config.json").write_text(
        json.dumps(
            {
                "disabledExtensions": {
                    # no question about news at the first start, and no request for them
                    "@jupyterlab/apputils-extension:announcements": True,
                    # twins of notebooks overwrite each other while one is open
                    "jupyterlab-jupytext": True,
                }
            }
        ),
        encoding="utf-8",
    )
    paths = [str(settings), environment.get("JUPYTER_CONFIG_PATH", "")]
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(path for path in paths if path)
    environment["JUPYTER_RUNTIME_DIR"] = str(runtime)
    # the kernel named python3 is this Python, whatever an older installation left in the home
    environment["JUPYTER_PREFER_ENV_PATH"] = "1"
    environment["JUPYTERLAB_WORKSPACES_DIR"] = str(state / "workspaces")
    environment.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    package = str(Path(__file__).resolve().parents[2])
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([package, before] if before else [package])
    if not os.access(Path.home(), os.W_OK):
        for name in ("JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            environment.setdefault(name, str(state / name.lower()))
    return environment


def _options(folder: Path, state: Path, runtime: Path, port: int) -> list[str]:
    options = [
        "--no-browser",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder.resolve()}",
        "--ServerApp.answer_yes=True",
        # jupytext is an author's tool; open notebooks must have one writer
        "--ServerApp.jpserver_extensions={'jupyterlab_jupytext': False}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--allow-root")
    if _has_kernel_sockets(runtime):
        # sockets in a private folder: other users of the machine cannot talk to the kernel
        options.append("--KernelManager.transport=ipc")
    with contextlib.suppress(ImportError):
        import jupyter_server_ydoc  # noqa: F401

        options += [
            f"--ArbitraryFileIdManager.db_path={state / 'file_ids.db'}",
            f"--SQLiteYStore.db_path={state / 'ystore.db'}",
            f"--YDocExtension.session_store_path={state / 'collaboration_sessions.json'}",
        ]
    return options


def _has_kernel_sockets(runtime: Path) -> bool:
    return hasattr(socket, "AF_UNIX") and len(str(runtime)) <= _LONGEST_SOCKET_FOLDER


@contextlib.contextmanager
def served(
    folder: Path, environment: Mapping[str, str], state: Path, runtime: Path, port: int | None
) -> Iterator[Server]:
    """A server that answers, and that is gone with all its kernels afterwards."""
    try:
        import jupyterlab  # noqa: F401
    except ImportError as error:
        raise LabError(
            "JupyterLab is not installed here",
            hint="`python3 -m tpulab lab` in the clone installs it",
        ) from error
    server = _start(folder, environment, state, runtime, port)
    try:
        yield server
    finally:
        _stop(server.process)


def _start(
    folder: Path, environment: Mapping[str, str], state: Path, runtime: Path, port: int | None
) -> Server:
    token = secrets.token_hex(24)
    log = runtime / "server.log"
    for _ in range(3):
        chosen = port or _free_port()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *_options(folder, state, runtime, chosen)],
                # in the environment and not among the arguments, which every user can list
                env={**environment, "JUPYTER_TOKEN": token},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for us; we stop the server in order
                start_new_session=True,
            )
        server = Server(process, chosen, token, log)
        try:
            if _answers_in_time(server):
                return server
        except BaseException:
            _stop(process)
            raise
        _stop(process)
        words = server.last_words()
        if port or "already in use" not in words:
            break
    if "already in use" in words:
        raise LabError(
            f"port {chosen} is in use by another program",
            hint="leave --port out, and a free one is found",
        )
    raise LabError(
        "JupyterLab did not start", why=words or None, hint="`tpulab doctor` looks for the reason"
    )


def _answers_in_time(server: Server) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            return False
        try:
            server.get("api/status", timeout=2)
            return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def _free_port() -> int:
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS_TRIED):
        with socket.socket() as trial:
            if os.name == "posix":
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise LabError(
        f"no free port between {_FIRST_PORT} and {_FIRST_PORT + _PORTS_TRIED - 1}",
        hint="stop an old JupyterLab, or choose one with --port",
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a server and its kernels: ask first, then insist."""
    for sent in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
        if process.poll() is None:
            process.send_signal(sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            break
    if os.name == "posix":
        # helpers of the server; kernels have a session of their own and end when their server does
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def check_answers(server: Server, notebook: str) -> None:
    """Make sure that the server shows a notebook to whoever has the token, and to nobody else.

    Raises:
        LabError: it does not.
    """
    try:
        page = server.get("lab", timeout=30)
        content = json.loads(server.get(f"api/contents/{notebook}?content=0"))
    except (OSError, ValueError) as error:
        raise LabError("JupyterLab started but does not answer", why=str(error)) from error
    if b"jupyter-config-data" not in page or content.get("type") != "notebook":
        raise LabError("JupyterLab started but does not show the labs")
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"{server.url}api/contents", timeout=10
        )
    except urllib.error.HTTPError as refused:
        if refused.code in (401, 403):
            return
    raise LabError("JupyterLab lets strangers in: a request without the token was answered")


def check_kernel(environment: Mapping[str, str], folder: Path) -> None:
    """Run the labs' first import in a kernel of its own."""
    from jupyter_client.manager import KernelManager

    with variables(environment):
        runtime = Path(environment["JUPYTER_RUNTIME_DIR"])
        manager = KernelManager(
            kernel_name="python3",
            connection_file=str(runtime / "kernel-check.json"),
            transport="ipc" if _has_kernel_sockets(runtime) else "tcp",
        )
        try:
            manager.start_kernel(cwd=str(folder))
            client = manager.blocking_client()
            client.start_channels()
            client.wait_for_ready(timeout=60)
            reply = client.execute_interactive(
                "import tpulab", timeout=60, output_hook=lambda message: None
            )
            client.stop_channels()
        except (RuntimeError, OSError, TimeoutError) as error:
            raise LabError("a notebook kernel does not start", why=str(error)) from error
        finally:
            manager.shutdown_kernel(now=True)
        if reply["content"]["status"] != "ok":
            raise LabError("a notebook cannot import tpulab", why=reply["content"].get("evalue"))


@contextlib.contextmanager
def variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Environment variables of this process, for the time of a call."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
