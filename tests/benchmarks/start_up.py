"""What a person waits for before anything happens: help, import, the catalogue of chips."""

from __future__ import annotations

from tests.benchmarks.common import Row, command_seconds, fresh_home, in_process, median

TITLE = "Start-up (target: help under 0.3 s, import under 0.05 s)"
_IMPORT = """
import json, sys, time
started = time.perf_counter()
import tpulab
print(json.dumps({"seconds": time.perf_counter() - started, "jax": "jax" in sys.modules}))
"""


def measure(repeat: int) -> list[Row]:
    """Medians of `repeat` runs in fresh processes."""
    with fresh_home() as home:
        python = median([command_seconds(["-c", "pass"], home) for _ in range(repeat)])
        imports = [in_process(_IMPORT, home) for _ in range(repeat)]
        rows = [
            Row("python -c pass", python, "s", "what Python itself takes"),
            Row(
                "import tpulab",
                median([one["seconds"] for one in imports]),
                "s",
                "JAX is loaded!" if any(one["jax"] for one in imports) else "JAX is not loaded",
            ),
        ]
        for words in (
            ["--help"],
            ["--version"],
            ["chips"],
            ["list"],
            ["tiling", "512", "512", "512"],
        ):
            seconds = median(
                [command_seconds(["-m", "tpulab", *words], home) for _ in range(repeat)]
            )
            rows.append(Row("tpulab " + " ".join(words), seconds, "s"))
    return rows
