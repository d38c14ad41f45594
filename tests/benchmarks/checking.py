"""`check("matmul.best", ...)` on the 4096^3 exercise: cold, warm and from the cache."""

from __future__ import annotations

from tests.benchmarks.common import Row, fresh_home, in_process, median

TITLE = "check matmul.best (targets: first verdict 2 s; all five, two chips, 10 s warm; cached 2 s)"
_SCRIPT = """
import json, time
started = time.perf_counter()
import tpulab
from tests.exercises.answers.matmul_other import best, tiled
from tpulab.grading import display, check
imported = time.perf_counter()
times = []
class Watch(display.Silent):
    def step(self, result):
        times.append((result.name, result.passed, time.perf_counter()))
display.listener = lambda quiet: Watch()
def run(cache=True, name="matmul.best", function=best):
    times.clear()
    begun = time.perf_counter()
    verdict = check(name, function, cache=cache, seed=0)
    total = time.perf_counter() - begun
    return {
        "total": total,
        "steps": {name: moment - begun for name, _, moment in times},
        "passed": verdict.passed,
        "from_cache": verdict.from_cache,
        "rung": verdict.rung,
    }
first = run()
again = run()
check("matmul.tiled", tiled, quiet=True)
changed = run(cache=False)
print(json.dumps({"import": imported - started, "first": first, "again": again, "judged": changed}))
"""
_WARM = _SCRIPT.replace(
    "first = run()",
    'run(name="matmul.tiled", function=tiled); first = run()',
)


def measure(repeat: int) -> list[Row]:
    """Medians of `repeat` processes, each with an empty home folder."""
    cold, warm = [], []
    for _ in range(repeat):
        with fresh_home() as home:
            cold.append(in_process(_SCRIPT, home))
        with fresh_home() as home:
            warm.append(in_process(_WARM, home))
    one = cold[0]["first"]
    reached = f"passed: {one['passed']}, rung: {one['rung']}"

    def middle(runs: list[dict[str, dict[str, float]]], which: str) -> float:
        return median([run[which]["total"] for run in runs])

    rows = [
        Row("importing", median([run["import"] for run in cold]), "s", "JAX, grading, the answer"),
        Row("cold: all five verdicts", middle(cold, "first"), "s", reached),
    ]
    for step in one["steps"]:
        seconds = median([run["first"]["steps"][step] for run in cold])
        rows.append(Row(f"  {step} known after", seconds, "s"))
    rows.append(
        Row("warm: all five verdicts", middle(warm, "first"), "s", "another exercise before")
    )
    for step in warm[0]["first"]["steps"]:
        seconds = median([run["first"]["steps"][step] for run in warm])
        rows.append(Row(f"  {step} known after", seconds, "s"))
    rows += [
        Row("same code judged again", middle(cold, "judged"), "s", "only compiled programs cached"),
        Row("same code from the cache", middle(cold, "again"), "s"),
    ]
    return rows
