from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.compiler import kernels
from tests.compiler.kernels import spec
from tpulab.compiler import (
    CompileCache,
    CompilerMissing,
    CompilerService,
    available_chips,
    compiler_version,
    environment,
    lower,
    missing_reason,
)
from tpulab.compiler.environment import topology_name
from tpulab.hardware import chips


@pytest.mark.needs_libtpu
def test_what_is_here():
    version = compiler_version()
    assert version is not None
    assert version.startswith("libtpu 0.")
    assert missing_reason() is None
    assert available_chips() == tuple(chip.name for chip in chips())


@pytest.mark.parametrize(
    ("system", "machine"), [("Darwin", "arm64"), ("Windows", "AMD64"), ("Linux", "aarch64")]
)
def test_other_systems_lower_and_then_say_what_is_missing(monkeypatch, tmp_path, system, machine):
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert available_chips() == ()
    artifact = lower(kernels.add_one, spec(8, 128))
    assert artifact.kernels == 1
    with CompilerService(cache=CompileCache(tmp_path)) as service:
        service.prewarm()
        with pytest.raises(CompilerMissing) as caught:
            service.compile_artifact(artifact)
        found = service.compile_many(kernels.add_one, [spec(8, 128)], ["v5e", "v6e"])
        assert service.worker_pids == ()
    assert all(isinstance(error, CompilerMissing) for error in found.values())
    assert f"{system} on {machine}" in str(caught.value)
    assert caught.value.hint


def test_not_installed(monkeypatch):
    def gone(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(importlib.metadata, "version", gone)
    assert compiler_version() is None
    reason = missing_reason()
    assert reason is not None
    assert "not installed" in reason[0]
    assert "jax[tpu]" in reason[1]


@pytest.mark.parametrize(
    ("default", "devices", "per_chip", "expected"),
    [
        ("v5e:2x2", 1, 1, "v5e:2x2"),
        ("v5e:2x2", 4, 1, "v5e:2x2"),
        ("v5e:2x2", 5, 1, "v5e:2x4"),
        ("v5e:2x2", 256, 1, "v5e:16x16"),
        ("v4:2x2x1", 8, 2, "v4:2x2x1"),
        ("v4:2x2x1", 9, 2, "v4:2x2x2"),
        ("v5p:2x2x1", 64, 1, "v5p:4x4x4"),
    ],
)
def test_the_smallest_topology_that_is_large_enough(default, devices, per_chip, expected):
    assert topology_name(default, devices, per_chip) == expected


def test_no_topology_is_large_enough():
    with pytest.raises(ValueError, match="100000 devices"):
        topology_name("v5e:2x2", 100_000)


def test_import_and_version_are_instant():
    code = (
        "import time; t = time.perf_counter(); import tpulab.compiler as c; c.compiler_version();"
        "print(time.perf_counter() - t); import sys; assert 'jax' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    best = min(
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
            ).stdout
        )
        for _ in range(3)
    )
    # 30 ms on an idle machine
    assert best < 0.5


def test_the_platform_is_left_alone_where_one_was_chosen(monkeypatch):
    import jax

    before = jax.config.jax_platforms
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    environment.settle_platform()
    assert jax.config.jax_platforms == before


def test_flags_name_the_directory_and_only_what_is_read():
    flags = environment.dump_flags("/somewhere")
    assert "--xla_jf_dump_to=/somewhere " in flags
    for label in environment.DUMP_LABELS:
        assert label in flags
    assert time.monotonic() > 0
