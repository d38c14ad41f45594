"""Settings that every test needs before jax is imported."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import pytest

# No test may probe for a TPU, write into a person's home, or wait for a metadata server.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("MPLBACKEND", "agg")
# A process that has started JAX has its number of devices for good, and tests share processes.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")


def _libtpu_exists() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


@pytest.fixture(scope="session")
def folder_of_the_test_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of one test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True, scope="session")
def _home_of_the_test_run(folder_of_the_test_run: Path) -> None:
    """Progress and caches of a test run live and die with it, unless the caller chose a place.

    The processes of the run share them: what one has compiled, another need not compile again.
    """
    if "TPULAB_HOME" not in os.environ:
        os.environ["TPULAB_HOME"] = str(folder_of_the_test_run / "tpulab-home")


def _missing_for(item: pytest.Item) -> str | None:
    """Why this system cannot run a test; on Linux x86-64 a missing libtpu is not a reason."""
    if item.get_closest_marker("needs_libtpu") and not _libtpu_exists():
        return "libtpu exists for Linux on x86-64 only"
    if item.get_closest_marker("needs_browser"):
        from tpulab.commands.testing import missing_browser

        return missing_browser()
    return None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what this system cannot do, and say which tests share one process."""
    for item in items:
        reason = _missing_for(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        # what a file's tests compile is cached in the process, so a file stays together; the
        # kernels that ship inside JAX are independent of each other and each of them is big
        group = item.nodeid.partition("::")[0]
        callspec = getattr(item, "callspec", None)
        if "kernels_in_jax" in group and callspec is not None:
            group += f"::{callspec.params.get('name', '')}"
        elif callspec is not None and "exercise" in callspec.params:
            # neither are the answers to different exercises
            group += f"::{callspec.params['exercise'].name}"
        elif callspec is not None and "lab" in callspec.params:
            # each lab's notebooks have kernels of their own
            group += f"::{callspec.params['lab'].name}"
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))
