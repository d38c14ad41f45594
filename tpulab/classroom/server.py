"""A JupyterLab server: private, quiet, and gone with its kernels when it is stopped.

It listens on this machine only and asks for a token that is new at every start.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpulab.classroom.jupyter_settings import (
    has_kernel_sockets,
    runtime_folders,
    server_options,
)
from tpulab.errors import TpulabError

_FIRST_PORT = 8888
_PORTS_TRIED = 100
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0


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
        return self._ask(path, None, timeout)

    def start_kernel(self, notebook: str) -> None:
        """Start a notebook's kernel before anybody opens it.

        All who open it find that one, and JupyterLab drops no cell that is run in the first second
        because no kernel is there yet.

        Raises:
            LabError: it does not start.
        """
        wanted = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {}}
        try:
            self._ask("api/sessions", json.dumps(wanted).encode(), timeout=60.0)
        except OSError as error:
            raise LabError("a notebook kernel does not start", why=str(error)) from error

    def _ask(self, path: str, body: bytes | None, timeout: float) -> bytes:
        request = urllib.request.Request(
            self.url + path, body, headers={"Authorization": f"token {self.token}"}
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


@contextlib.contextmanager
def served(
    folder: Path,
    environment: Mapping[str, str],
    runtime: Path,
    port: int | None,
    together: bool = False,
) -> Iterator[Server]:
    """A server that answers, and that is gone with all its kernels afterwards.

    Args:
        folder: what it serves.
        environment: of `jupyter_settings.server_environment`.
        runtime: of `jupyter_settings.runtime_folder`.
        port: the port to listen on; None for the first free one from 8888 upwards.
        together: whether several people work in the same notebooks.

    Raises:
        LabError: it does not start.
    """
    try:
        import jupyterlab  # noqa: F401
    except ImportError as error:
        raise LabError(
            "JupyterLab is not installed here",
            hint="`python3 -m tpulab lab` in the clone installs it",
        ) from error
    server = _start(folder, environment, runtime, port, together)
    try:
        yield server
    finally:
        _stop(server.process)


def _start(
    folder: Path,
    environment: Mapping[str, str],
    runtime: Path,
    port: int | None,
    together: bool,
) -> Server:
    token = secrets.token_hex(24)
    log = runtime / "server.log"
    for _ in range(3):
        chosen = port or _free_port()
        options = server_options(folder, runtime, chosen, together)
        with log.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *options],
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
            transport="ipc" if has_kernel_sockets(runtime) else "tcp",
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


@dataclass(frozen=True)
class Running:
    """A JupyterLab of this user that runs already.

    Attributes:
        url: root of its addresses, without its token.
        token: lets one in.
        process: its process id.
        root: the folder it serves.
    """

    url: str
    token: str
    process: int
    root: Path

    def opened(self) -> list[Path]:
        """Files that have a kernel there; empty when it does not answer."""
        request = urllib.request.Request(
            self.url + "api/sessions", headers={"Authorization": f"token {self.token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with contextlib.suppress(OSError, ValueError), opener.open(request, timeout=3) as answer:
            sessions = json.load(answer)
            return [(self.root / session.get("path", "")).resolve() for session in sessions]
        return []

    def serves(self, folder: Path) -> bool:
        """Whether files of a folder can be opened there."""
        return folder.resolve().is_relative_to(self.root.resolve())


def running_servers() -> list[Running]:
    """Every JupyterLab of this user on this machine, whoever started it."""
    try:
        from jupyter_server.serverapp import list_running_servers
    except ImportError:
        return []
    found: dict[int, Running] = {}
    for runtime in (None, *map(str, runtime_folders())):
        with contextlib.suppress(OSError, ValueError, KeyError):
            for server in list_running_servers(runtime):
                process = int(server["pid"])
                root = Path(server["root_dir"])
                found[process] = Running(server["url"], server["token"], process, root)
    return list(found.values())
