"""How fast the simulator runs compiled programs, in grid steps and bundles a second."""

from __future__ import annotations

from tests.benchmarks.common import Row, fresh_home, in_process, median

TITLE = "Simulator speed (v5e)"
_SCRIPT = """
import importlib, json, sys, time
from tpulab.compiler import compile
from tpulab.kernel import trace
from tpulab.simulator import Options, simulate
results = {}
for file, name in (
    ("matmul", "matmul_small_blocks"),
    ("matmul", "matmul"),
    ("flash_attention", "flash_attention_default_blocks"),
    ("flash_attention", "flash_attention_causal"),
    ("paged_attention", "paged_attention"),
):
    module = importlib.import_module("tests.kernels_in_jax." + file)
    function, arguments = getattr(module, name), module.make_args()
    started = time.perf_counter()
    kernel = trace(function, *arguments)
    traced = time.perf_counter()
    program = compile(function, *arguments, chip="v5e")
    for piece in program.pieces:
        if getattr(piece, "has_listing", True):
            piece.listing
    ready = time.perf_counter()
    timeline = simulate(program, kernel=kernel)
    first = time.perf_counter()
    simulate(program, kernel=kernel, options=Options(max_events=0))
    done = time.perf_counter()
    results[name] = {
        "trace": traced - started,
        "first": first - ready,
        "seconds": done - first,
        "steps": kernel.steps,
        "bundles": timeline.bundles_issued,
        "cycles": timeline.cycles,
    }
print(json.dumps(results))
"""


def measure(repeat: int) -> list[Row]:
    """Medians of `repeat` runs in fresh processes; compiled programs come from a kept cache."""
    with fresh_home() as home:
        runs = [in_process(_SCRIPT, home) for _ in range(repeat)]
    rows = []
    for name in runs[0]:

        def middle(key: str, name: str = name) -> float:
            return median([run[name][key] for run in runs])

        steps, seconds = middle("steps"), middle("seconds")
        rows += [
            Row(name, seconds, "s", f"{steps:,.0f} grid steps, {middle('cycles'):,.0f} cycles"),
            Row("  with events, first time", middle("first"), "s", "generates its code"),
            Row("  speed", steps / seconds, "grid steps/s"),
            Row("  speed", middle("bundles") / seconds, "bundles/s"),
            Row("  tracing the kernel", middle("trace"), "s"),
        ]
    return rows
