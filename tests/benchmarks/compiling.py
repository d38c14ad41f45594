"""Compiling a 4096^3 matmul in blocks of 512: first time, warm worker, from the cache."""

from __future__ import annotations

from tests.benchmarks.common import Row, fresh_home, in_process, median

TITLE = "Compiling matmul 4096^3 (JAX's own kernel, 256 x 256 x 256 blocks) for v5e"
_SCRIPT = """
import json, sys, time
started = time.perf_counter()
from tests.kernels_in_jax import example_kernel
from tests.kernels_in_jax.matmul import make_args, matmul_small_blocks
from tpulab.compiler import compile
imported = time.perf_counter()
if sys.argv[1] == "warm":
    compile(example_kernel.double, *example_kernel.make_args(), chip="v5e")
ready = time.perf_counter()
program = compile(matmul_small_blocks, *make_args(), chip="v5e")
done = time.perf_counter()
other = None
if sys.argv[1] == "warm":
    compile(matmul_small_blocks, *make_args(), chip="v6e")
    other = time.perf_counter() - done
bundles = sum(len(piece.listing.bundles) for piece in program.pieces if piece.kind == "kernel")
print(json.dumps({
    "import": imported - started,
    "compile": done - ready,
    "other": other,
    "inside": program.seconds_to_compile,
    "cached": program.from_cache,
    "bundles": bundles,
}))
"""


def measure(repeat: int) -> list[Row]:
    """Medians of `repeat` runs; a home folder is kept for the cached ones only."""
    cold, warm, cached = [], [], []
    for _ in range(repeat):
        with fresh_home() as home:
            cold.append(in_process(_SCRIPT, home, "cold"))
            cached.append(in_process(_SCRIPT, home, "cold"))
        with fresh_home() as home:
            warm.append(in_process(_SCRIPT, home, "warm"))
    assert all(one["cached"] for one in cached)
    assert not any(one["cached"] for one in cold + warm)

    def middle(runs: list[dict[str, float]], key: str) -> float:
        return median([one[key] for one in runs])

    return [
        Row("importing JAX and the compiler room", middle(cold, "import"), "s"),
        Row("cold", middle(cold, "compile"), "s", "lower, start a worker, compile, read"),
        Row("  of that inside the compiler", middle(cold, "inside"), "s"),
        Row("warm worker", middle(warm, "compile"), "s", "it compiled another kernel before"),
        Row("warm worker, v6e after v5e", middle(warm, "other"), "s"),
        Row(
            "from the cache, new process",
            middle(cached, "compile"),
            "s",
            "lowers, for the key",
        ),
        Row("bundles in the kernel", middle(cold, "bundles"), "bundles"),
    ]
