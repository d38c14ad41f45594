"""Which compiler is here, what it can compile for, and the environment that keeps it quiet."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Mapping

# Without these libtpu looks for a Cloud TPU machine, prints five lines, writes logs to /tmp and
# takes a lock that keeps a second process out. The accelerator type need not match the chip.
QUIET_ENVIRONMENT: Mapping[str, str] = {
    "JAX_PLATFORMS": "cpu",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

# The dump labels that are read. Writing only these makes a compile two to four times as fast as
# dumping every pass (300 files, 20 MB a kernel).
DUMP_LABELS = (
    "final_bundles",
    "final_hlo-static-per-bundle-utilization",
    "register-pressure",
    "deduplication-map",
)

# More devices than the catalogue's topology has: the smallest large enough of these is used.
_LARGER_TOPOLOGIES: Mapping[int, tuple[str, ...]] = {
    2: ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    3: ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8"),
}


def dump_flags(directory: str) -> str:
    """The value of ``LIBTPU_INIT_ARGS`` that makes the compiler write its listings to a directory.

    Only the passes that are read, with the source line of every operation. An unknown flag ends the
    process; the service then goes on with :func:`plain_dump_flags`.
    """
    labels = "|".join(DUMP_LABELS)
    return (
        f"{plain_dump_flags(directory)} --xla_jf_dump_llo_pass_label_regex=^({labels})$"
        " --xla_mosaic_enable_llo_source_annotations=true"
    )


def plain_dump_flags(directory: str) -> str:
    """Dump flags without filter and source lines: slower, understood by every version."""
    return f"--xla_jf_dump_to={directory} --xla_jf_dump_llo_text=true"


def settle_platform() -> None:
    """Keep JAX from loading the TPU compiler into this process when there is no accelerator.

    Left alone, the first use of a backend would load libtpu, print five lines and take its lock.
    Nothing is changed when a platform was chosen already, or where a TPU or a GPU is attached.
    """
    from tpulab.kernel import jax_internals

    jax_internals.settle_platform()


def compiler_version() -> str | None:
    """Name and version of the installed TPU compiler, e.g. ``"libtpu 0.0.42"``, without loading it.

    Returns:
        None when no compiler is installed.
    """
    try:
        return f"libtpu {importlib.metadata.version('libtpu')}"
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_reason() -> tuple[str, str] | None:
    """Why nothing can be compiled here, and what to do about it; None when the compiler is here."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in ("x86_64", "AMD64"):
        return (
            "the TPU compiler (libtpu) exists for Linux on x86-64 only; "
            f"this is {system} on {machine}",
            "everything up to lowering works here; for the rest use a Linux x86-64 machine, "
            "a container or a cloud notebook",
        )
    if compiler_version() is None or importlib.util.find_spec("libtpu") is None:
        return (
            f"the TPU compiler (libtpu) is not installed in this environment ({sys.prefix})",
            "install it with: pip install 'jax[tpu]'",
        )
    return None


def available_chips() -> tuple[str, ...]:
    """Names of the chips that can be compiled for here; empty when there is no compiler."""
    if missing_reason() is not None:
        return ()
    from tpulab.hardware import chips

    return tuple(chip.name for chip in chips() if chip.topology)


def topology_name(default: str, devices: int, devices_per_chip: int = 1) -> str:
    """A topology with at least a number of devices.

    Args:
        default: the chip's own topology, e.g. ``"v5e:2x2"``.
        devices: how many JAX devices the program runs on.
        devices_per_chip: JAX devices per chip (2 on v4 and 7x).

    Raises:
        ValueError: no listed topology is that large.
    """
    generation, _, shape = default.partition(":")
    dimensions = shape.split("x")
    for candidate in (shape, *_LARGER_TOPOLOGIES.get(len(dimensions), ())):
        size = devices_per_chip
        for part in candidate.split("x"):
            size *= int(part)
        if size >= devices:
            return f"{generation}:{candidate}"
    raise ValueError(f"no {generation} topology with {devices} devices is known")
