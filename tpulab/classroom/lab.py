"""`tpulab lab`: a learner's own copy of the labs, served by JupyterLab on this machine.

Learners work on copies in a folder of their own. A copy that exists is never written again by an
update; a fresh one is made only on request, and what was there before stays beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tpulab.classroom.jupyter_settings import (
    Partner,
    runtime_folder,
    server_environment,
    state_folder,
)
from tpulab.classroom.opening import open_in_browser
from tpulab.classroom.server import (
    LabError,
    Server,
    check_answers,
    check_kernel,
    running_servers,
    served,
    variables,
)
from tpulab.errors import UnknownNameError

Say = Callable[[str], None]


@dataclass(frozen=True)
class Copies:
    """What a copy of the labs into the learner's folder did.

    Attributes:
        folder: the learner's folder.
        new: names of labs that were not there before.
        kept: names of labs that were there and were left alone.
        outdated: those of the kept ones that have a newer release.
    """

    folder: Path
    new: tuple[str, ...]
    kept: tuple[str, ...]
    outdated: tuple[str, ...]


def labs_folder() -> Path:
    """Where the released labs are: in the clone, or inside an installed package.

    Raises:
        LabError: neither is there.
    """
    here = Path(__file__).resolve()
    for folder in (here.parents[2] / "labs", here.parent / "_labs"):
        if any(folder.glob("*.ipynb")):
            return folder
    raise LabError(
        "the labs are missing from this installation",
        where=str(here.parents[2]),
        hint="in a clone, `tpulab release` writes them; otherwise install tpulab again",
    )


def work_folder() -> Path:
    """Where a learner's copies go by default.

    ``work/`` in a clone, which git ignores; ``tpulab-work/`` in the current folder otherwise.
    """
    root = Path(__file__).resolve().parents[2]
    in_clone = (root / "labs").is_dir() and (root / "pyproject.toml").is_file()
    return root / "work" if in_clone else Path.cwd() / "tpulab-work"


def copy_labs(folder: Path | str | None = None) -> Copies:
    """Give the learner a copy of every lab that they do not have yet.

    Args:
        folder: the learner's folder, `work_folder` by default; made when missing.

    Raises:
        LabError: the folder cannot be written.
    """
    folder = Path(folder) if folder else work_folder()
    new, kept, outdated = [], [], []
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for lab in sorted(labs_folder().glob("*.ipynb")):
            copy = folder / lab.name
            if not os.path.lexists(copy):
                _copy_whole(lab, copy)
                new.append(lab.stem)
            else:
                kept.append(lab.stem)
                if _release_of(copy) != _release_of(lab):
                    outdated.append(lab.stem)
    return Copies(folder, tuple(new), tuple(kept), tuple(outdated))


def reset_lab(name: str, folder: Path | str | None = None) -> tuple[Path, Path | None]:
    """Give the learner a fresh copy of one lab and keep what they had beside it.

    Args:
        name: the lab in full (``"10_matmul_ladder"``) or by its number (``"10"``).
        folder: the learner's folder, `work_folder` by default.

    Returns:
        the fresh copy, and the backup of the old one (None when there was none).

    Raises:
        UnknownNameError: no such lab.
        LabError: the lab is open in JupyterLab, or the folder cannot be written.
    """
    folder = Path(folder) if folder else work_folder()
    known = {lab.stem: lab for lab in sorted(labs_folder().glob("*.ipynb"))}
    lab = known.get(name) or next((known[n] for n in known if n[:2] == name), None)
    if lab is None:
        raise UnknownNameError("lab", name, known)
    copy = folder / lab.name
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            _copy_whole(lab, copy)
            return copy, None
        if _open_in_jupyter(copy):
            raise LabError(
                f"{copy.name} is open in JupyterLab",
                why="replacing a file under an open notebook would lose what was typed there",
                hint="close its tab, shut down its kernel, and try again",
            )
        stamp = time.strftime("%Y%m%d-%H%M%S")
        backup = copy.with_name(f"{copy.stem}.backup-{stamp}.ipynb")
        number = 1
        while backup.exists():
            number += 1
            backup = copy.with_name(f"{copy.stem}.backup-{stamp}-{number}.ipynb")
        copy.rename(backup)
        _copy_whole(lab, copy)
    return copy, backup


def trust(folder: Path, environment: Mapping[str, str] | None = None) -> bool:
    """Sign the notebooks of a folder, so that pictures and forms show on a partner's screen too.

    Jupyter shows widgets and HTML only in notebooks that were run on this machine or signed.

    Returns:
        whether it worked; where the signature store cannot be written, the labs still open.
    """
    import sqlite3

    import nbformat
    from nbformat.sign import NotebookNotary

    with variables(environment or {}):
        try:
            notary = NotebookNotary()
            for path in sorted(folder.glob("*.ipynb")):
                try:
                    notary.sign(nbformat.read(path, as_version=4))
                except (OSError, ValueError, nbformat.ValidationError):
                    continue  # a learner's damaged file is JupyterLab's to report
            notary.store.close()
        except (OSError, sqlite3.Error):
            return False
    return True


def open_lab(
    folder: Path | str | None = None,
    lab: str | None = None,
    *,
    check: bool = False,
    browser: bool | None = None,
    port: int | None = None,
    say: Say = print,
) -> int:
    """Copy the labs, start JupyterLab on the first one, print the URL, serve until Ctrl-C.

    The server listens on this machine only and asks for a token that is new at every start.

    Args:
        folder: the learner's folder, `work_folder` by default.
        lab: the lab to open, in full or by number; by default the first.
        check: stop again as soon as it is known that the server and a kernel answer.
        browser: open a browser; by default when this machine has a display.
        port: the port to listen on; by default the first free one from 8888 upwards.
        say: gets every line that is for the person at the terminal.

    Returns:
        exit status: 0 when the server was stopped as asked, 1 when it died by itself.

    Raises:
        LabError: the labs cannot be copied or JupyterLab does not start.
        UnknownNameError: no such lab.
    """
    with session(folder, lab, port=port, say=say) as opened:
        if check:
            opened.check(say)
            return 0
        opened.server.start_kernel(opened.notebook)
        url = opened.url(opened.server.token)
        say(f"\n  {url}\n")
        if has_display() if browser is None else browser:
            opened.open(url)
        else:
            port = opened.server.port
            say("Open this address in a browser. From another machine, forward the port first:")
            say(f"  ssh -L {port}:127.0.0.1:{port} THIS-MACHINE")
        return opened.wait(say)


@dataclass(frozen=True)
class Session:
    """A lab that is being served.

    Attributes:
        server: the JupyterLab.
        notebook: the lab's file name.
        folder: the learner's folder.
        environment: the server's and its kernels' environment.
        runtime: the server's private folder.
    """

    server: Server
    notebook: str
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    runtime: Path

    def open(self, url: str) -> None:
        """Open an address of :meth:`url` in this machine's browser; it is printed in any case."""
        open_in_browser(url, self.runtime)

    def url(self, token: str) -> str:
        """Address of the lab for whoever has the token."""
        return f"{self.server.url}lab/tree/{self.notebook}?token={token}"

    def check(self, say: Say) -> None:
        """See that the lab can be opened and run.

        Raises:
            LabError: it cannot.
        """
        check_answers(self.server, self.notebook)
        check_kernel(self.environment, self.folder)
        say(f"JupyterLab answers on {self.server.url}, opens {self.notebook} and starts a kernel")

    def wait(self, say: Say) -> int:
        """Serve until Ctrl-C; 0 then, 1 when the server died by itself."""
        say(f"Ctrl-C here stops it; your notebooks are in {self.folder}")
        return _wait(self.server, say)


@contextlib.contextmanager
def session(
    folder: Path | str | None,
    lab: str | None,
    *,
    port: int | None,
    say: Say,
    partners: tuple[Partner, ...] = (),
) -> Iterator[Session]:
    """Serve the learner's copies of the labs for as long as the context lasts.

    Args:
        folder: the learner's folder, `work_folder` by default.
        lab: the lab to open, in full or by number; by default the first.
        port: the port to listen on; by default the first free one from 8888 upwards.
        say: gets every line that is for the person at the terminal.
        partners: who works together; nobody for a learner alone.

    Raises:
        LabError: the labs cannot be copied or JupyterLab does not start.
        UnknownNameError: no such lab.
    """
    # validated first, so that a typing error costs a second and not a start of the server
    first = _lab_to_open(lab)
    copies = copy_labs(folder)
    _say_copies(copies, say)
    for other in running_servers():
        if other.serves(copies.folder):
            say(
                f"careful: {other.url} (process {other.process}) serves {copies.folder} already. "
                "Two servers do not see each other's edits: a notebook that is open in both loses "
                "what was typed in one of them. Stop the other one first."
            )
    state = state_folder()
    with runtime_folder() as runtime:
        environment = server_environment(state, runtime, partners)
        if not trust(copies.folder, environment):
            say("the labs could not be marked as trusted; pictures may show as text until you run")
        say("starting JupyterLab ...")
        with served(copies.folder, environment, runtime, port, bool(partners)) as server:
            yield Session(server, first, copies.folder, environment, runtime)


def has_display(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Whether a browser opened here would be seen by somebody."""
    if platform in ("darwin", "win32"):
        return "SSH_CONNECTION" not in environment
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


# the learner's copies ----------------------------------------------------------------------------


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabError(
            f"the labs cannot be copied to {folder}",
            why=error.strerror or str(error),
            hint="give another folder: `tpulab lab --folder PATH`",
        ) from error


def _copy_whole(source: Path, target: Path) -> None:
    # a copy that is interrupted or meets a full disk must not leave half a notebook behind
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=target.parent)
    os.close(descriptor)
    try:
        shutil.copyfile(source, name)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _release_of(notebook: Path) -> str | None:
    try:
        content = json.loads(notebook.read_text(encoding="utf-8"))
        return str(content["metadata"]["tpulab"]["release"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _say_copies(copies: Copies, say: Say) -> None:
    if copies.new:
        say(f"{len(copies.new)} labs copied to {copies.folder}")
    if copies.kept:
        say(f"{len(copies.kept)} labs were already in {copies.folder} and are untouched")
    for name in copies.outdated:
        say(f"  {name} has a newer release: `tpulab reset {name[:2]}` keeps yours as a backup")


def _lab_to_open(name: str | None) -> str:
    known = sorted(path.stem for path in labs_folder().glob("*.ipynb"))
    if name is None:
        return f"{known[0]}.ipynb"
    for stem in known:
        if name in (stem, stem[:2], f"{stem}.ipynb"):
            return f"{stem}.ipynb"
    raise UnknownNameError("lab", name, known)


def _open_in_jupyter(notebook: Path) -> bool:
    """Whether a JupyterLab of this user has a session on the file."""
    return any(notebook.resolve() in server.opened() for server in running_servers())


def _wait(server: Server, say: Say) -> int:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        server.process.wait()
        say("JupyterLab has stopped")
        if server.process.returncode:
            say(server.last_words())
        return 1 if server.process.returncode else 0
    except KeyboardInterrupt:
        say("\nstopping JupyterLab ...")
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)
