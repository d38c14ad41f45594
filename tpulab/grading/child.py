"""The process that runs the learner's code: loads, traces, lowers and runs it, and says what came.

It answers one request after another on a stream and judges nothing: no oracle, no expected value
and no verdict is ever in this process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tpulab.errors import TpulabError
from tpulab.grading import wire
from tpulab.grading.sandbox import Limits

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = re.compile(r"[/\\](site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")
_MAX_TEXT = 6000
_MAX_FRAMES = 12


def is_learners(filename: str) -> bool:
    """Whether a file is the learner's code and not a library's, Python's or tpulab's own."""
    if filename.startswith("<frozen") or _LIBRARY.search(filename):
        return False
    if filename.startswith(_PACKAGE + os.sep):
        return f"{os.sep}known_wrong{os.sep}" in filename
    return not filename.startswith("<") or filename in ("<string>", "<stdin>")


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: type, text, the learner's frames, outermost first."""
    # tpulab's own exceptions wrap what the learner's code raised
    original = error
    while isinstance(original, TpulabError) and isinstance(original.__cause__, Exception):
        original = original.__cause__
    frames: list[list[Any]] = []
    during: dict[str, Any] = {}
    innermost_is_learners = False
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        found: list[list[Any]] = []
        innermost = False
        traceback = current.__traceback__
        while traceback is not None:
            code = traceback.tb_frame.f_code
            innermost = is_learners(code.co_filename)
            if innermost:
                found.append([code.co_filename, traceback.tb_lineno, code.co_name])
            during = _called_for(traceback.tb_frame) or during
            traceback = traceback.tb_next
        if current is original:
            innermost_is_learners = innermost
        if found and not frames:
            frames = found
        current = current.__cause__ or current.__context__
    described: dict[str, Any] = {
        "type": type(original).__name__,
        "kind": type(error).__name__,
        "message": _text(original),
        "frames": frames[-_MAX_FRAMES:],
        "innermost_is_learners": innermost_is_learners,
        "during": during,
    }
    for name in ("what", "why", "hint", "where", "message", "stage"):
        value = getattr(error, name, None)
        if isinstance(value, str):
            described[f"error_{name}"] = value[:_MAX_TEXT]
    explanation = getattr(error, "explanation", None)
    if explanation is not None:
        described["explanation"] = {
            name: str(getattr(explanation, name))[:_MAX_TEXT]
            for name in ("key", "cause", "rule", "remedy", "example")
            if getattr(explanation, name, None)
        } | {"matched": bool(getattr(explanation, "matched", False))}
    return described


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_MAX_TEXT]
    except Exception:  # noqa: BLE001 - an exception of the learner's may fail to say what it is
        return ""


def _called_for(frame: Any) -> dict[str, Any]:
    """What Pallas was doing in one of its frames: tracing a kernel, or calling an index map."""
    name, values = frame.f_code.co_name, frame.f_locals
    if name == "_trace_kernel_to_jaxpr":
        return {"what": "kernel"}
    if "block" not in name or not {"block_spec", "origin", "grid"} <= values.keys():
        return {}
    called: dict[str, Any] = {"what": "index map", "operand": str(values["origin"])[:100]}
    with contextlib.suppress(Exception):
        called["axes"] = len(values["grid"])
        code = inspect.unwrap(values["block_spec"].index_map).__code__
        called["takes"] = code.co_argcount
        called["where"] = f"{code.co_filename}:{code.co_firstlineno}"
    return called


class _Session:
    """One learner's function and what is done with it; or, without one, programs and their runs."""

    def __init__(self) -> None:
        self.function: Callable[..., Any] | None = None
        self.returned = ""
        self.limits = Limits()
        # of an exercise for several devices: the mesh axis that they stand on
        self.mesh_axis: str | None = None
        self.compiled: dict[Any, Callable[..., Any]] = {}
        self.programs: dict[int, Callable[..., Any]] = {}

    # one method a request; each returns a header and blobs

    def enter(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Give up what the rest of this process's life does not need."""
        from tpulab.grading import sandbox

        self.limits = Limits(**request["limits"])
        for entry in request["sys_path"]:
            if entry not in sys.path:
                sys.path.append(entry)
        os.chdir(request["folder"])
        os.environ["TMPDIR"] = request["folder"]
        away = sandbox.leave_network()
        fenced = sandbox.fence(request["folder"])
        sandbox.apply(self.limits)
        return {"network": not away, "fenced": fenced}, []

    def load(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Unpickle or import the function."""
        reply, _ = self.enter(request, [])
        self.mesh_axis = request.get("mesh_axis")
        if self.mesh_axis is not None:
            from tpulab.kernel import start_host_devices

            # before the learner's code, which may start JAX's backend
            start_host_devices(request["devices"])
        if request["kind"] == "pickle":
            import cloudpickle

            loaded = cloudpickle.loads(blobs[0])
        else:
            loaded = _load_file(request["path"], request["name"])
            # a neighbour may also be imported later, inside the function
            sys.path.append(os.path.dirname(request["path"]))
        reply |= {"type": type(loaded).__name__, "callable": callable(loaded)}
        if callable(loaded):
            self.function = _whole(loaded)
            reply |= _signature(loaded, request["arity"])
        return reply, []

    def trace(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """What the kernel is made of, for one set of shapes, and which chip rules it breaks."""
        from tpulab.grading.inspection import inspect_kernel

        assert self.function is not None
        specs = _specs(request["specs"])
        result = inspect_kernel(self._probe(specs), specs, request["chips"])
        result["returned"] = self.returned
        return result, []

    def lower(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Lower for one chip; the artifact's bytes go back as they are."""
        from tpulab.compiler.artifact import lower

        assert self.function is not None
        specs = _specs(request["specs"])
        artifact = lower(self._on_mesh(self.function, specs), *specs, chip=request["chip"])
        return {}, [artifact.to_bytes()]

    def export(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The function with its kernels interpreted, as a program for another process."""
        from tpulab.grading.inspection import exported_function

        assert self.function is not None
        specs = _specs(request["specs"])
        data = exported_function(self._probe(specs), specs)
        return ({"in_process": True}, []) if data is None else ({}, [data])

    def run_program(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Run an exported program on given arrays."""
        from tpulab.grading.inspection import imported_function

        number, (data, *packed) = request["program"], blobs
        arrays = wire.unpack_arrays(request["arrays"], packed)
        if number not in self.programs:
            self.programs[number] = imported_function(data, arrays)
        return self._outputs(self.programs[number](*arrays))

    def run(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Run on given arrays with the fast interpreter."""
        from tpulab.grading.inspection import fast_function

        assert self.function is not None
        arrays = wire.unpack_arrays(request["arrays"], blobs)
        key = tuple((array.shape, array.dtype.name) for array in arrays)
        if key not in self.compiled:
            self.compiled[key] = fast_function(self._probe(arrays), arrays)
        return self._outputs(self.compiled[key](*arrays))

    def faithful(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Run on given arrays with the faithful interpreter."""
        from tpulab.grading.inspection import faithful_run

        assert self.function is not None
        arrays = wire.unpack_arrays(request["arrays"], blobs)
        outputs, report = faithful_run(self._probe(arrays), arrays)
        reply, out_blobs = self._outputs(outputs)
        return reply | {"report": report}, out_blobs

    def transfers(
        self, request: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        """What the devices send each other, for shapes whose values do not matter."""
        from tpulab.grading.inspection import transfers_of

        assert self.function is not None
        specs = _specs(request["specs"])
        return transfers_of(self._probe(specs), specs), []

    def _outputs(self, outputs: Any) -> tuple[dict[str, Any], list[bytes]]:
        import jax
        import numpy as np

        described, blobs = wire.pack_arrays(
            [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(outputs)]
        )
        return {"arrays": described}, blobs

    def _on_mesh(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """The function on as many devices as the first dimension counts, if it is for several."""
        if self.mesh_axis is None:
            return function
        from tpulab.kernel import on_devices

        return on_devices(function, arguments[0].shape[0], self.mesh_axis)

    def _probe(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        """The function for arguments of these shapes, noting what kind of thing it returns."""
        function = self.function
        assert function is not None

        def probe(*arguments: Any) -> Any:
            result = function(*arguments)
            self.returned = type(result).__name__
            if isinstance(result, (tuple, list)):
                self.returned += f" of {len(result)}"
            return result

        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(probe, function)
        mapped: Callable[..., Any] = self._on_mesh(probe, arguments)
        return mapped


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted function loses what ``trace`` and ``lower`` need when it is pickled: wrap it."""
    if not hasattr(function, "trace") or hasattr(function, "_fun"):
        return function

    def plain(*arguments: Any) -> Any:
        return function(*arguments)

    plain.__name__ = getattr(function, "__name__", "answer")
    plain.__wrapped__ = getattr(function, "__wrapped__", function)  # type: ignore[attr-defined]
    return plain


def _load_file(path: str, name: str | None) -> Any:
    from tpulab.kernel.load import load_function

    target = f"{path}:{name}" if name else path
    loaded = load_function(target)
    return loaded[0] if isinstance(loaded, tuple) else loaded


def _signature(function: Callable[..., Any], arity: int) -> dict[str, Any]:
    """Whether the function takes ``arity`` positional arguments, its name, and where it stands."""
    reply: dict[str, Any] = {"name": getattr(function, "__name__", type(function).__name__)}
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        code = inspect.unwrap(function).__code__
        reply["where"] = [code.co_filename, code.co_firstlineno]
    try:
        signature = inspect.signature(function)
        reply["signature"] = str(signature)[:200]
        signature.bind(*range(arity))
        reply["takes"] = True
    except TypeError:
        reply["takes"] = False
    except ValueError:
        reply["takes"] = True
    return reply


def _specs(described: list[list[Any]]) -> list[Any]:
    import jax

    from tpulab.exercises.model import as_dtype

    return [jax.ShapeDtypeStruct(tuple(shape), as_dtype(dtype)) for shape, dtype in described]


def serve(reader: Any, writer: Any) -> None:
    """Answer requests until the stream ends."""
    session = _Session()
    faulthandler.enable()
    while (message := wire.decode(reader)) is not None:
        request, blobs = message
        reply: dict[str, Any]
        out: list[bytes]
        # where a loop that never ends was, for the judge to read from the output
        faulthandler.dump_traceback_later(max(0.5, 0.9 * float(request.get("seconds", 60.0))))
        try:
            reply, out = getattr(session, request["do"])(request, blobs)
        except BaseException as error:  # noqa: BLE001 - the learner's own, Ctrl-C never comes here
            reply, out = {"error": describe_error(error), "returned": session.returned}, []
        faulthandler.cancel_dump_traceback_later()
        reply["id"] = request["id"]
        writer.write(wire.encode(reply, out))
        writer.flush()


def main() -> int:
    """Serve on standard input and output; what the learner prints goes to standard error."""
    reader = os.fdopen(os.dup(0), "rb")
    writer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    serve(reader, writer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
