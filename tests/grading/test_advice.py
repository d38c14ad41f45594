"""What is said first about a program that is below the top."""

from __future__ import annotations

from typing import Any

import pytest

from tpulab.exercises.model import Work
from tpulab.grading.advice import advice_for

WORK = Work(2 << 20, 0, 1 << 20, "bfloat16")
RUNGS = [
    {"name": "traffic", "seconds": 1e-3, "cause": "every operand moves once", "advice": ""},
    {"name": "pipeline", "seconds": 2e-3, "cause": "waiting for lhs", "advice": "Fetch further."},
]


def figures(unit: str, **more: Any) -> dict[str, Any]:
    return {"rungs": RUNGS, "seconds": 2e-3, "limiting_unit": unit, "stall_seconds": {}, **more}


@pytest.mark.parametrize(
    ("unit", "matmul_seconds", "first"),
    [
        ("mxu", 0.0, "8 times the matrix operations"),
        ("vpu", 0.0, "8 times the matrix operations"),
        ("hbm", 1.2e-3, "8 times the matrix operations"),
        ("hbm", 1e-4, "pipeline: waiting for lhs"),
        ("dma", 1e-4, "pipeline: waiting for lhs"),
    ],
)
def test_idle_products_are_said_first_where_arithmetic_limits(
    unit: str, matmul_seconds: float, first: str
) -> None:
    cause, _ = advice_for(figures(unit), WORK, 16, 8 * WORK.matmul_flops, matmul_seconds)
    assert first in cause


def test_idle_products_are_said_when_nothing_else_is_in_the_way() -> None:
    cause, advice = advice_for(figures("hbm", rungs=RUNGS[:1]), WORK, 16, 8 * WORK.matmul_flops)
    assert "8 times the matrix operations" in cause
    assert "pl.when" in advice
