"""The bootstrap from an empty clone, with an installer that installs nothing.

The stand-in for uv makes a real virtual environment whose packages are empty files, so that every
path (first time, again, interrupted, offline, twice at once, moved) is run as a person would.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tpulab import bootstrap

ROOT = Path(__file__).resolve().parents[2]
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="uses a shell script as uv")
pytestmark = posix_only

FAKE_UV = textwrap.dedent(
    """\
    #!{python} -I
    import os, pathlib, sys, time, subprocess
    words = sys.argv[1:]
    log = pathlib.Path({log!r})
    with log.open("a") as stream:
        stream.write(" ".join(words) + "\\n")
    mode = pathlib.Path({mode!r}).read_text().strip()
    if words == ["--version"]:
        print("uv 9.9")
    elif words[0] == "venv":
        subprocess.run([{python!r}, "-m", "venv", "--without-pip", words[-1]], check=True)
    elif words[:2] == ["pip", "install"]:
        if mode == "offline":
            print("error: Failed to fetch: dns error: failed to lookup address", file=sys.stderr)
            sys.exit(2)
        if mode == "conflict":
            print("  x No solution\\nerror: because a needs b, unsatisfiable", file=sys.stderr)
            sys.exit(1)
        python = pathlib.Path(words[words.index("--python") + 1])
        packages = next((python.parent.parent / "lib").glob("python*")) / "site-packages"
        for name in ("jax", "jaxlib", "numpy", "rich", "jupyterlab", "cloudpickle"):
            (packages / name).mkdir(exist_ok=True)
            (packages / name / "__init__.py").write_text("")
            if mode == "slow":
                print("Downloading", name, flush=True)
                time.sleep(0.5)
        clone = words[words.index("-e") + 1].partition("[")[0]
        (packages / "tpulab.pth").write_text(clone + "\\n")
        script = python.parent / "tpulab"
        script.write_text("#!" + str(python) + "\\nimport sys, json\\n"
            "print(json.dumps([sys.prefix, sys.argv[1:]]))\\n")
        script.chmod(0o755)
    """
)


class Clone:
    """A clone in a temporary folder, with its own stand-in for uv."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        self.root.mkdir(parents=True)
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root)
        skip = shutil.ignore_patterns("__pycache__")
        (self.root / "tpulab").mkdir()
        for name in (
            "__init__.py",
            "__main__.py",
            "bootstrap.py",
            "_install.py",
            "_installers.py",
            "cli.py",
        ):
            shutil.copy(ROOT / "tpulab" / name, self.root / "tpulab")
        shutil.copytree(
            ROOT / "tpulab" / "commands", self.root / "tpulab" / "commands", ignore=skip
        )
        self.tools = folder / "tools"
        self.tools.mkdir()
        self.log = folder / "uv.log"
        self.log.touch()
        self.mode_file = folder / "mode"
        self.mode("works")
        uv = self.tools / "uv"
        uv.write_text(
            FAKE_UV.format(python=_base_python(), log=str(self.log), mode=str(self.mode_file))
        )
        uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            "PATH": f"{self.tools}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(folder / "home"),
            "PYTHONDONTWRITEBYTECODE": "1",
            # this machine's settings for pip would make it the second try
            "PIP_CONFIG_FILE": os.devnull,
        }
        (folder / "home").mkdir()

    def mode(self, name: str) -> None:
        self.mode_file.write_text(name)

    def command(self, *words: str) -> list[str]:
        return [_base_python(), "-m", "tpulab", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.root,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def installs(self) -> int:
        return sum(line.startswith("pip install") for line in self.log.read_text().splitlines())

    @property
    def stamp(self) -> Path:
        return self.root / ".venv" / "tpulab-stamp.json"


def _base_python() -> str:
    """A Python that is in no environment with tpulab: the one that made the test's own."""
    if sys.prefix == sys.base_prefix:
        return sys.executable
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return str(Path(sys.base_prefix) / "bin" / name)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_first_time_makes_the_environment_and_hands_over(clone: Clone) -> None:
    done = clone.run("lab", "10", "--no-browser")
    assert done.returncode == 0, done.stderr
    prefix, words = json.loads(done.stdout)
    assert Path(prefix) == clone.root / ".venv"
    assert words == ["lab", "10", "--no-browser"]
    assert "GB" in done.stderr
    assert "minutes" in done.stderr


def test_second_time_installs_nothing_and_says_nothing(clone: Clone) -> None:
    clone.run("lab")
    done = clone.run("lab")
    assert done.returncode == 0
    assert done.stderr == ""
    assert clone.installs() == 1


def test_changed_pins_are_installed(clone: Clone) -> None:
    clone.run("lab")
    with (clone.root / "constraints.txt").open("a") as stream:
        stream.write("# changed\n")
    done = clone.run("lab")
    assert clone.installs() == 2
    assert "Updating" in done.stderr


def test_tests_bring_their_extra_and_keep_it(clone: Clone) -> None:
    clone.run("lab")
    clone.run("test")
    assert clone.installs() == 2
    assert "test] -c" in clone.log.read_text()
    clone.run("lab")
    clone.run("test")
    assert clone.installs() == 2
    assert json.loads(clone.stamp.read_text())["extras"][-1:] == ["test"]


def test_help_and_slips_need_no_environment(clone: Clone) -> None:
    helped = clone.run("--help")
    assert helped.returncode == 0
    assert "ladder" in helped.stdout
    slipped = clone.run("lader")
    assert slipped.returncode == 2
    assert "ladder" in slipped.stderr
    assert not (clone.root / ".venv").exists()


def test_no_network_at_first_is_a_sentence_and_leaves_no_stamp(clone: Clone) -> None:
    clone.mode("offline")
    done = clone.run("lab")
    assert done.returncode == 1
    assert "no network" in done.stderr
    assert "Traceback" not in done.stderr
    assert not clone.stamp.exists()
    clone.mode("works")
    assert clone.run("lab").returncode == 0


def test_no_network_later_goes_on_with_what_is_there(clone: Clone) -> None:
    clone.run("lab")
    with (clone.root / "constraints.txt").open("a") as stream:
        stream.write("# changed\n")
    clone.mode("offline")
    done = clone.run("lab", "x")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[1] == ["lab", "x"]
    assert "Going on" in done.stderr
    # and the update is tried again as soon as there is a network
    clone.mode("works")
    clone.run("lab")
    assert "Updating" not in clone.run("lab").stderr


def test_installer_error_shows_its_own_words(clone: Clone) -> None:
    clone.mode("conflict")
    done = clone.run("lab")
    assert done.returncode == 1
    assert "because a needs b" in done.stderr
    assert "tpulab-install.log" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_installation_resumes(clone: Clone, number: signal.Signals) -> None:
    clone.mode("slow")
    process = clone.start("lab")
    deadline = time.monotonic() + 60
    while clone.installs() == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert not clone.stamp.exists()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped" in said
        assert "Traceback" not in said
    clone.mode("works")
    done = clone.run("lab")
    assert done.returncode == 0, done.stderr
    assert clone.stamp.exists()


def test_two_at_once_install_once(clone: Clone) -> None:
    clone.mode("slow")
    both = [clone.start("lab", str(number)) for number in range(2)]
    said = [process.communicate(timeout=90) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert clone.installs() == 1
    assert "waiting" in said[0][1] + said[1][1]


def test_read_only_clone_uses_the_users_cache(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # root may write anywhere, so the system's answer is replaced and not the folder's mode
    may = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != clone.root and may(path, mode)
    )
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TPULAB_VENV", raising=False)
    directory = bootstrap.choose_venv_directory(clone.root)
    assert directory.parent == tmp_path / "home"
    # two clones must not share one environment
    assert bootstrap.choose_venv_directory(clone.root.with_name("other")) != directory


def test_read_only_clone_that_is_prepared_is_used(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.run("lab")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.delenv("TPULAB_VENV", raising=False)
    assert bootstrap.choose_venv_directory(clone.root) == clone.root / ".venv"


def test_chosen_folder_is_used(clone: Clone, tmp_path: Path) -> None:
    done = clone.run("lab", TPULAB_VENV=str(tmp_path / "elsewhere" / "venv"))
    assert json.loads(done.stdout)[0] == str(tmp_path / "elsewhere" / "venv")
    assert not (clone.root / ".venv").exists()


def test_folder_that_cannot_be_made_is_a_sentence(clone: Clone) -> None:
    done = clone.run("lab", TPULAB_VENV="/proc/nowhere/venv")
    assert done.returncode == 1
    assert "TPULAB_VENV" in done.stderr
    assert "Traceback" not in done.stderr


def test_moved_clone_gets_a_new_environment(clone: Clone) -> None:
    clone.run("lab")
    moved = clone.root.with_name("moved")
    clone.root.rename(moved)
    clone.root = moved
    done = clone.run("lab")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == str(moved / ".venv")


def test_environment_whose_python_is_gone_is_made_again(clone: Clone) -> None:
    clone.run("lab")
    for name in (clone.root / ".venv" / "bin").glob("python*"):
        name.unlink()
        name.symlink_to("/nowhere/python")
    done = clone.run("lab")
    assert done.returncode == 0, done.stderr


def test_foreign_broken_folder_is_not_touched(clone: Clone) -> None:
    (clone.root / ".venv").mkdir()
    (clone.root / ".venv" / "precious").write_text("mine")
    done = clone.run("lab")
    assert done.returncode == 1
    assert "wasn't made by tpulab" in done.stderr
    assert (clone.root / ".venv" / "precious").read_text() == "mine"


def test_environment_of_another_python_stays(clone: Clone) -> None:
    (clone.root / ".venv").mkdir()
    (clone.root / ".venv" / "pyvenv.cfg").write_text("home = /x\nversion = 3.99.1\n")
    done = clone.run("lab")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert json.loads(done.stdout)[0] == str(clone.root / f".venv-{version}")


def test_uv_that_is_only_a_stand_in_is_passed_over(clone: Clone) -> None:
    (clone.tools / "uv").write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    done = clone.run("lab", TPULAB_INSTALLER="uv")
    assert done.returncode == 1
    assert "no working uv" in done.stderr


def test_python_without_venv_and_pip_is_told_the_package(clone: Clone) -> None:
    (clone.tools / "uv").unlink()
    # what Debian's python3 looks like without python3-venv and python3-pip
    broken = clone.root.parent / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import sys; sys.modules['ensurepip'] = None; sys.modules['pip'] = None\n"
    )
    done = clone.run("lab", PYTHONPATH=str(broken))
    assert done.returncode == 1
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"apt install python{version}-venv" in done.stderr
    assert "Traceback" not in done.stderr


def test_old_python_gets_a_sentence() -> None:
    program = (
        "import sys; sys.version_info = (3, 9, 2); sys.argv = ['tpulab', 'lab'];"
        "import runpy; runpy.run_module('tpulab', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "needs Python 3.11" in done.stderr
    assert "3.9" in done.stderr


@pytest.mark.parametrize("name", ["__init__.py", "__main__.py"])
def test_front_door_parses_on_old_pythons(name: str) -> None:
    import ast

    ast.parse((ROOT / "tpulab" / name).read_text(), feature_version=(3, 6))


def test_starting_again_costs_little(clone: Clone) -> None:
    clone.run("lab")

    def best(command: list[str]) -> float:
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            subprocess.run(command, cwd=clone.root, env=clone.environment, capture_output=True)
            times.append(time.perf_counter() - begun)
        return min(times)

    plain = best([str(clone.root / ".venv" / "bin" / "tpulab"), "lab"])
    through_bootstrap = best(clone.command("lab"))
    # 0.04 s on a quiet machine; the margin is for busy ones
    assert through_bootstrap - plain < 0.5
