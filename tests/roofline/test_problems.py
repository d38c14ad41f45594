"""Published worked problems and measurements, each answered by one call of a calculator.

`problems.csv` holds the questions with the published answers and their tolerances. Where a source
used a rounded rate of its own, the call passes that rate; everything else is the catalogue's.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from tpulab.hardware import get_chip
from tpulab.roofline import (
    Links,
    Transformer,
    Work,
    all_gather,
    all_reduce,
    all_to_all,
    attention_flops,
    bound,
    critical_batch,
    critical_contraction,
    decode_step,
    dot_product_intensity,
    matmul_bytes,
    matmul_flops,
    sharded_bytes,
    time_for,
    transfer,
    utilisation,
)
from tpulab.roofline.transformer import (
    LLAMA_3_70B,
    SECONDS_PER_YEAR,
    chips_to_hold,
    evicted_tokens_per_step,
    fsdp_minimum_tokens_per_chip,
    ici_intensity,
    mixed_minimum_tokens_per_chip,
    prefill_seconds,
    queries_per_second_per_chip,
    tensor_parallel_limit,
    tokens_per_second_per_chip,
    training_seconds,
)

PROBLEMS = {
    row["id"]: row for row in csv.DictReader(Path(__file__).with_name("problems.csv").open())
}

v4, v5e, v5p, v6e, ironwood = (get_chip(name) for name in ("v4", "v5e", "v5p", "v6e", "7x"))

# the book's 16-chip model of part 4: gated MLP, as many key-value heads as heads
MODEL_4096 = Transformer(
    layers=64, d_model=4096, d_ff=4 * 4096, heads=32, kv_heads=32, head_dim=128, vocabulary=32_000
)
# v5e axis of 4 that is part of a full ring ("if bidirectional")
RING_OF_4 = Links.of(v5e, 4, wraparound=True)
LINE_OF_4 = Links.of(v5e, 4)
# v4p cube of 4x4x4, which has wraparound on every axis
V4_AXIS = Links.of(v4, 4, wraparound=True)
V4_TWO_AXES = Links.of(v4, (4, 4), wraparound=True)

ANSWERS: dict[str, Callable[[], float]] = {
    "P001": lambda: time_for(1e12, v6e.peak()) * 1e3,
    "P002": lambda: time_for(1e12, 9.89e14) * 1e3,
    "P003": lambda: dot_product_intensity(10**6),
    "P004": lambda: v5e.ridge_point("bfloat16"),
    "P005": lambda: critical_batch(v5e.peak(), v5e.hbm_bandwidth()),
    "P006": lambda: critical_batch(3.94e14, 8.1e11, weight_dtype="int8"),
    "P011": lambda: critical_contraction(v5e.peak(), v5e.ici.link_bandwidth_bytes_per_second),
    "P012": lambda: time_for(200e9 * 2, 32 * 1.23e12) * 1e3,
    "P014": lambda: v5e.ici.pod_chips * v5e.peak(),
    "P016": lambda: v5p.ici.pod_chips / v5p.ici.chips_per_host,
    "P017": lambda: v5p.ici.pod_chips * v5p.cores_per_chip,
    "P018": lambda: v5p.ici.pod_chips * 96e9 / 1e12,
    "P021": lambda: critical_batch(3.94e14, 8.1e11, weight_dtype="int8", k=4096, n=16384),
    "P024": lambda: transfer(2 * 8 * 128 * 8192, LINE_OF_4, ports=2, hops=6).seconds * 1e6,
    "P027": lambda: time_for(16e9, v5e.hbm_bandwidth()) * 1e3,
    "P028": lambda: time_for(matmul_flops(8, 128 * 1024, 128 * 1024), v5e.peak()) * 1e3,
    "P029": lambda: sharded_bytes((128, 2048), "int8", {"X": 2, "Y": 8, "Z": 2}, ("X", "Y")),
    "P030": lambda: sharded_bytes((128, 2048), "int8", {"X": 2, "Y": 8, "Z": 2}, ("X", "Y"))
    * (2 * 8 * 2)
    / 1024,
    "P031": lambda: all_gather(2 * 2048 * 8192, RING_OF_4, textbook=True).seconds * 1e6,
    "P033": lambda: all_gather(2 * 256 * 256, LINE_OF_4, textbook=True).seconds * 1e6,
    "P034": lambda: sharded_bytes((64,), "int8", {"X": 4, "Y": 8, "Z": 2}, ("X",)) * 64 / 64,
    "P036": lambda: all_gather(2 * 1024 * 4096, V4_TWO_AXES, textbook=True).seconds * 1e6,
    "P037": lambda: all_reduce(2 * 1024 * 4096, V4_AXIS, textbook=True).seconds * 1e6,
    "P039": lambda: all_gather(1e9, Links((16,), (True,), 1e9, 0), textbook=True).seconds
    / all_to_all(1e9, Links((16,), (True,), 1e9, 0)).seconds,
    "P042": lambda: MODEL_4096.parameters,
    "P044": lambda: MODEL_4096.attention_share,
    "P046": lambda: MODEL_4096.attention_equals_projection_length,
    "P048": lambda: ici_intensity(v5p.peak(), v5p.ici.axis_bandwidth_bytes_per_second),
    "P049": lambda: fsdp_minimum_tokens_per_chip(2550, axes=3),
    "P054": lambda: LLAMA_3_70B.parameters,
    "P058": lambda: training_seconds(70e9, 15e12, v5p.peak()) / SECONDS_PER_YEAR,
    "P060": lambda: 4 * 1024 * 1024 / v5p.ici.pod_chips,
    "P061": lambda: mixed_minimum_tokens_per_chip(2550, 28672),
    "P064": lambda: decode_step(
        30e9, 256, 8192, 100e3, flops_per_second=16 * 1.97e14, bytes_per_second=16 * 8.1e11,
        weight_dtype="int8",
    ).seconds * 1e3,
    "P066": lambda: LLAMA_3_70B.kv_bytes_per_token("int8") / 1e3,
    "P068": lambda: chips_to_hold(112e9, 16e9),
    "P069": lambda: time_for(112e9, 8 * 8.1e11) * 1e3,
    "P070": lambda: tokens_per_second_per_chip(32, 17e-3, chips=8),
    "P074": lambda: queries_per_second_per_chip(67, 19e-3, 512, chips=4),
    "P075": lambda: tensor_parallel_limit(28672, 2550, axes=2),
    "P076": lambda: all_gather(2 * 64 * 8192, RING_OF_4, textbook=True).seconds * 1e6,
    "P078": lambda: time_for(matmul_flops(64, 8192, 28672), 32 * v5e.peak()) * 1e6,
    "P079": lambda: prefill_seconds(70e9, 8192, 16 * v5e.peak(), utilisation=0.4),
    "P080": lambda: evicted_tokens_per_step(32, 8192, 4096),
    "P083": lambda: matmul_bytes(1024, 1024, 1024, "float32"),
    "P087": lambda: utilisation(matmul_flops(8192, 8192, 8192), 6.04715e-3, v5e.peak()) * 100,
    "P089": lambda: v5p.ridge_point(),
    "P090": lambda: v4.ridge_point(),
    "P092": lambda: Work.matmul(4096, 4096, 4096).intensity,
    "P093": lambda: 128 * 32768
    * Transformer(1, 4096, 4, 32, 8, 128, 1).kv_bytes_per_token() / 2527e-6 / 2**30,
    "P095": lambda: attention_flops(32768, 32768, 32, 128) / 20614e-6 / 1e12,
    "P096": lambda: utilisation(853e12, 1.0, ironwood.peak() / 2) * 100,
    "P097": lambda: matmul_flops(8192, 8192, 28672),
    "P098": lambda: utilisation(matmul_flops(8192, 8192, 28672), 5.3218e-3, v6e.peak()) * 100,
    "P099": lambda: 2 * 8 * 2**30 / 5.3523e-3 / 1e9,
    "P100": lambda: matmul_flops(8192, 8192, 8192) / 1.328756e-3 / 1e12,
    "P101": lambda: bound(Work.of(824.6e9, 0), ironwood, per="chip").seconds * 1e3,
    "P102": lambda: utilisation(matmul_flops(8192, 4096, 14336), 5.255e-3, v5e.peak()) * 100,
    "P104": lambda: 2 * v6e.core.mxu_macs_per_cycle,
}  # fmt: skip


def test_every_problem_is_answered() -> None:
    assert set(ANSWERS) == set(PROBLEMS)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problem(problem: dict[str, str]) -> None:
    tolerance = float(problem["tolerance"].rstrip("%")) / 100
    published = float(problem["answer"])
    answer = ANSWERS[problem["id"]]()
    assert answer == pytest.approx(published, rel=tolerance + 1e-12), problem["question"]
