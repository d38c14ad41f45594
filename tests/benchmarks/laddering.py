"""`tpulab ladder` from the shell, as a person calls it: everything from start to printed answer."""

from __future__ import annotations

from tests.benchmarks.common import Row, command_seconds, fresh_home, median

TITLE = "tpulab ladder FILE:FUNCTION --chip v5e,v6e, whole command"
_KERNELS = (
    "matmul.py:matmul",
    "flash_attention.py:flash_attention_causal",
    "paged_attention.py:paged_attention",
    "megablox.py:gmm",
)


def measure(repeat: int) -> list[Row]:
    """Medians of `repeat` runs: with an empty cache, then with the one they filled."""
    rows = []
    for kernel in _KERNELS:
        words = ["-m", "tpulab", "ladder", f"tests/kernels_in_jax/{kernel}", "--chip", "v5e,v6e"]
        words.append("--json")
        cold, cached = [], []
        for _ in range(repeat):
            with fresh_home() as home:
                # 1: answered, but a chip was refused; that takes as long
                cold.append(command_seconds(words, home, statuses=(0, 1)))
                cached.append(command_seconds(words, home, statuses=(0, 1)))
        name = kernel.partition(":")[2]
        rows += [
            Row(f"{name}, cold", median(cold), "s"),
            Row(f"{name}, compiled before", median(cached), "s"),
        ]
    return rows
