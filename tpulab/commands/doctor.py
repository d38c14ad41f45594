"""``tpulab doctor``: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tpulab.errors import TpulabError

_TESTED_PYTHONS = ((3, 11), (3, 12), (3, 13))
_SMALL_DISK_BYTES = 1_000_000_000
_SMALL_MEMORY_BYTES = 4_000_000_000
_COMPILE_DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what was looked at.
        state: ``"ok"``, ``"less"`` (the lab can be used, something is missing) or ``"no"`` (the
            lab cannot be used).
        found: what is there.
        remedy: what to do; None when nothing has to be done.
    """

    name: str
    state: str
    found: str
    remedy: str | None = None


_SIGNS = {"ok": "ok  ", "less": "less", "no": "NO  "}


def doctor(options: argparse.Namespace) -> int:
    """Print the findings; 0 when the lab can be used."""
    findings = []
    if not options.json:
        print("What works here:", flush=True)
    looks = [_python, _jax, _compiler, _jupyterlab, _browser, _pairing, _home, _disk, _machine]
    if not options.quick:
        looks.insert(3, _chips)
    for look in looks:
        try:
            finding = look()
        except Exception as error:  # noqa: BLE001 - a doctor reports what is broken, whatever it is
            name = look.__name__.strip("_")
            finding = Finding(name, "less", f"{type(error).__name__}: {error}"[:300])
        findings.append(finding)
        if not options.json:
            _print(finding)
    usable = all(finding.state != "no" for finding in findings)
    if options.json:
        answer = {"usable": usable, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(answer, indent=2))
    else:
        print("\nThe lab can be used." if usable else "\nThe lab can't be used yet; see NO above.")
    return 0 if usable else 1


def _print(finding: Finding) -> None:
    print(f"  {_SIGNS[finding.state]}  {finding.name:<14} {finding.found}")
    if finding.remedy:
        print(f"        {'':<14} -> {finding.remedy}")
    sys.stdout.flush()


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _python() -> Finding:
    found = f"{platform.python_version()} in {sys.prefix}"
    if sys.version_info[:2] in _TESTED_PYTHONS:
        return Finding("python", "ok", found)
    return Finding("python", "less", found, "tpulab is tested on Python 3.11, 3.12 and 3.13")


def _jax() -> Finding:
    version = _version("jax")
    if version is None:
        return Finding("jax", "no", "not installed", _INSTALL)
    try:
        import jax
    except Exception as error:  # noqa: BLE001 - a broken installation fails in many ways
        return Finding("jax", "no", f"{version}, but: {error}"[:300], _INSTALL)
    return Finding("jax", "ok", f"{jax.__version__} (jaxlib {_version('jaxlib')})")


_INSTALL = "run  python3 -m tpulab lab  in the clone; it sets the environment up"


def _compiler() -> Finding:
    from tpulab.compiler import compiler_version, missing_reason

    missing = missing_reason()
    if missing:
        return Finding(
            "TPU compiler",
            "less",
            f"{missing[0]}; you get the verdicts legal, correct and safe, not compiles and fast",
            _compiler_remedy(missing[1]),
        )
    return Finding("TPU compiler", "ok", str(compiler_version()))


def _compiler_remedy(remedy: str) -> str:
    """A command for this environment where the compiler could be here; else the remedy as it is."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        return remedy
    from tpulab.bootstrap import clone_root

    # libtpu must be the one that belongs to this jax
    version = _version("jax")
    where = f"'jax[tpu]=={version}'" if version else "'jax[tpu]'"
    if clone_root():
        where = "-e . -c constraints.txt"
    return f"{_pip_install()} {where}"


def _chips() -> Finding:
    """Really compile a small kernel for every chip: nothing from a cache."""
    from tpulab.compiler import available_chips, missing_reason

    if missing_reason():
        return Finding("chips", "less", "none without the TPU compiler")
    started = time.monotonic()
    results = _compile_small_kernel(available_chips())
    good = [chip for chip, why in results.items() if why is None]
    bad = [f"{chip} ({why})" for chip, why in results.items() if why is not None]
    found = f"compiled a kernel for {', '.join(good)}" if good else "no chip"
    found += f" in {time.monotonic() - started:.1f} s"
    if bad:
        return Finding("chips", "less", f"{found}; not for {'; '.join(bad)}", _COMPILER_REMEDY)
    return Finding("chips", "ok", found)


_COMPILER_REMEDY = "delete the environment folder and run  python3 -m tpulab lab  again"


def _compile_small_kernel(chips: tuple[str, ...]) -> dict[str, str | None]:
    """For each chip None when a small kernel compiles, else why it does not."""
    import tempfile

    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    from tpulab.compiler import CompileCache, CompilerService

    def add_one(x_ref, out_ref):  # type: ignore[no-untyped-def]
        out_ref[...] = x_ref[...] + 1.0

    argument = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    call = pl.pallas_call(add_one, out_shape=argument)
    with (
        tempfile.TemporaryDirectory(prefix="tpulab-doctor-") as folder,
        CompilerService(cache=CompileCache(Path(folder))) as service,
    ):
        programs = service.compile_many(
            call, (argument,), chips, deadline_seconds=_COMPILE_DEADLINE_SECONDS
        )
    return {
        chip: program.what[:160] if isinstance(program, TpulabError) else None
        for chip, program in programs.items()
    }


def _jupyterlab() -> Finding:
    version = _version("jupyterlab")
    if version is None:
        return Finding(
            "JupyterLab", "no", "not installed", _INSTALL + "; the other verbs work without it"
        )
    return Finding("JupyterLab", "ok", version)


def _browser() -> Finding:
    from tpulab.classroom.lab import has_display
    from tpulab.commands.testing import missing_browser

    display = "opens by itself" if has_display() else "no desktop: tpulab lab prints an address"
    tests = missing_browser()
    if tests:
        return Finding("browser", "ok", f"{display}; browser tests are left out: {tests}")
    return Finding("browser", "ok", f"{display}; browser tests can run")


def _pairing() -> Finding:
    from tpulab.bootstrap import clone_root

    parts = {name: _version(name) for name in ("jupyter-collaboration", "jupyter-server-nbmodel")}
    if all(parts.values()):
        return Finding("pairing", "ok", ", ".join(f"{name} {v}" for name, v in parts.items()))
    missing = ", ".join(name for name, version in parts.items() if not version)
    where = "-e '.[pair]' -c constraints.txt" if clone_root() else "'tpulab[pair]'"
    return Finding(
        "pairing",
        "less",
        f"two people in one notebook needs {missing}",
        f"{_pip_install()} {where}",
    )


def _pip_install() -> str:
    """The start of a command that installs into this environment; uv's have no pip of their own."""
    from importlib.util import find_spec

    if find_spec("pip"):
        return f"{sys.executable} -m pip install"
    return f"uv pip install --python {sys.executable}"


def _home() -> Finding:
    """Where progress and caches are kept, and whether they can be written."""
    import platformdirs

    chosen = os.environ.get("TPULAB_HOME")
    home = Path(chosen) if chosen else Path(platformdirs.user_data_dir("tpulab"))
    import tempfile

    try:
        # written for real: what a file's mode says does not hold for root and network folders
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home) as trial:
            trial.write(b"x")
        return Finding("home", "ok", f"progress and cache in {home}")
    except OSError as error:
        reason = error.strerror
    return Finding(
        "home",
        "less",
        f"{home} can't be written ({reason}): nothing is remembered from one run to the next",
        "set TPULAB_HOME to a folder that you can write",
    )


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / 1e9:.0f} GB free here"
    if free < _SMALL_DISK_BYTES:
        return Finding("disk", "less", found, "free a gigabyte; a full disk ends long compilations")
    return Finding("disk", "ok", found)


def _machine() -> Finding:
    cores = os.cpu_count() or 1
    system = f"{platform.system()} on {platform.machine()}"
    found = f"{system}, {cores} core{'s' if cores > 1 else ''}"
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return Finding("machine", "ok", found)
    found += f", {memory / 1e9:.0f} GB of memory"
    if memory < _SMALL_MEMORY_BYTES:
        return Finding("machine", "less", found, "4 GB are comfortable; close other programs")
    return Finding("machine", "ok", found)


#: for tests: every look that the doctor takes
LOOKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _jax,
    _compiler,
    _chips,
    _jupyterlab,
    _browser,
    _pairing,
    _home,
    _disk,
    _machine,
)
