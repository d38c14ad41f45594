"""What needs no compiler to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from tpulab.grading.refusals import beyond_vmem, vmem_text

MIB = 1 << 20


def kernel(mebibytes: int, limit_mebibytes: int | None = None) -> dict[str, Any]:
    block = {
        "name": "lhs_ref",
        "where": "answer.py:7",
        "block_bytes_padded": mebibytes * MIB // 2,
        "buffer_count": 2,
        "is_pipelined": True,
        "space": "vmem",
    }
    call = {
        "grid": [4, 4],
        "where": "answer.py:5",
        "vmem_bytes": mebibytes * MIB,
        "vmem_limit_bytes": limit_mebibytes and limit_mebibytes * MIB,
        "operands": [block],
    }
    return {"calls": [call]}


@pytest.mark.parametrize(
    ("chip", "mebibytes", "limit", "says"),
    [
        ("v5e", 48, None, "takes 48 MiB of VMEM, and may take 16 MiB"),
        ("v5e", 180, None, "takes 180 MiB of VMEM, and a core has 128 MiB"),
        ("v5e", 180, 100, "takes 180 MiB of VMEM, and a core has 128 MiB"),
        ("v5e", 48, 20, "takes 48 MiB of VMEM, and may take 20 MiB"),
        ("v5e", 48, 64, ""),
        # near the limit the compiler knows better
        ("v5e", 20, None, ""),
        ("v6e", 48, None, ""),
    ],
)
def test_blocks_far_beyond_vmem_are_refused_at_once(
    chip: str, mebibytes: int, limit: int | None, says: str
) -> None:
    found = beyond_vmem(chip, kernel(mebibytes, limit))
    assert (found is None) == (not says)
    if found is not None:
        assert says in found.summary
        assert "lhs_ref" in found.detail
        assert "smaller blocks" in found.hint
        assert ("raise vmem_limit_bytes" in found.hint) == ("may take" in says)
        assert found.where == "answer.py:7"


def test_vmem_is_the_kernels_or_xlas() -> None:
    assert vmem_text(6 * MIB, 7 * MIB, 16 * MIB) == "7 of 16 MiB of VMEM"
    assert vmem_text(0, 0, 16 * MIB) == "0 of 16 MiB of VMEM"
    assert "XLA keeps 16 MiB" in vmem_text(0, 16 * MIB, 16 * MIB)
