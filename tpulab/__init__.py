"""tpulab: write TPU kernels, and learn from the real compiler how good they are."""

# This file must parse on old Pythons and import nothing heavy: `python3 -m tpulab` runs it
# before the environment exists.

__version__ = "0.1.0"

# public name -> module that holds it; resolved on first use so that `import tpulab` stays instant
_EXPORTS = {
    "trace": "tpulab.kernel",
    "run": "tpulab.kernel",
    "start_host_devices": "tpulab.kernel",
    "on_devices": "tpulab.kernel",
    "ladder": "tpulab.ladder",
    "compare": "tpulab.ladder",
    "check": "tpulab.grading",
    "hint": "tpulab.grading",
    "solution": "tpulab.grading",
    "progress": "tpulab.grading",
    "reset": "tpulab.grading",
    "get_chip": "tpulab.hardware",
    "chips": "tpulab.hardware",
    "explain": "tpulab.compiler",
    "simulate": "tpulab.simulator",
    "TpulabError": "tpulab.errors",
}

__all__ = sorted([*_EXPORTS, "__version__"])


def __getattr__(name):  # type: ignore[no-untyped-def]
    """Resolve a public name lazily."""
    import importlib

    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError("module 'tpulab' has no attribute {!r}".format(name))


def __dir__():  # type: ignore[no-untyped-def]
    return __all__
