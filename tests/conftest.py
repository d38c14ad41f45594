"""Settings that every test needs before jax is imported."""

from __future__ import annotations

import os
import platform
import sys

import pytest

# No test may probe for a TPU, write into a person's home, or wait for a metadata server.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("MPLBACKEND", "agg")


def _libtpu_exists() -> bool:
    return sys.platform == "linux" and platform.machine() == "x86_64"


@pytest.fixture(autouse=True, scope="session")
def _home_of_the_test_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Progress and caches of a test run live and die with it, unless the caller chose a place."""
    if "TPULAB_HOME" not in os.environ:
        os.environ["TPULAB_HOME"] = str(tmp_path_factory.mktemp("tpulab-home"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what this system cannot do; on Linux x86-64 a missing libtpu is a failure."""
    if _libtpu_exists():
        return
    skip = pytest.mark.skip(reason="libtpu exists for Linux on x86-64 only")
    for item in items:
        if item.get_closest_marker("needs_libtpu"):
            item.add_marker(skip)
