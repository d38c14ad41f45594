"""The calculators from a shell: units, what they are, for which chip, and a sentence for a slip."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Run
from tpulab.roofline import Links, all_gather


def test_a_collective_says_time_limit_and_links(tpulab: Run) -> None:
    done = tpulab(
        "collectives", "all-gather", "bf16[2048,8192]", "--slice", "4", "--wraparound", "yes"
    )
    assert done.returncode == 0, done.stderr
    assert "a ring of 4, 45 GB/s each way" in done.stdout
    assert "bandwidth" in done.stdout
    assert "A bound, not a prediction" in done.stdout
    assert "tpulab chips v5e" in done.stdout


def test_collectives_as_json(tpulab: Run) -> None:
    done = tpulab("collectives", "all", "32MiB", "--chip", "v5e,v6e", "--json")
    answer = json.loads(done.stdout)
    assert list(answer) == ["v5e", "v6e"]
    kinds = [row["kind"] for row in answer["v6e"]]
    assert kinds == ["all-gather", "reduce-scatter", "all-reduce", "all-to-all"]
    row = answer["v5e"][0]
    assert row["seconds"] == all_gather(2**25, Links.of("v5e", (4, 4))).seconds
    assert row["limiting"] == "bandwidth"
    assert row["chips"] == 16
    assert row["balanced_bytes"] < 2**25


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("all-gathr", "1MB"), "did you mean all-gather?"),
        (("all-gather", "much"), "bf16[2048,8192]"),
        (("all-gather", "1MB", "--slice", "4y4"), "4x4 for two"),
        (("all-gather", "1MB", "--slice", "4x4x4"), "2 axes, not 3"),
        (("all-gather", "1MB", "--slice", "1"), "at least two chips"),
        (("all-gather", "1MB", "--wraparound", "maybe"), "yes,no"),
        (("all-gather", "1MB", "--chip", "v5x"), "v5e"),
    ],
)
def test_slips_are_bad_usage(tpulab: Run, words: tuple[str, ...], says: str) -> None:
    done = tpulab("collectives", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_each_operand_may_have_its_dtype(tpulab: Run) -> None:
    words = ("--matmul", "32", "4096", "14336", "--json")
    plain = json.loads(tpulab("roofline", *words).stdout)["v5e"]
    halved = json.loads(tpulab("roofline", *words, "--rhs-dtype", "int8").stdout)["v5e"]
    assert halved["flops"] == plain["flops"]
    assert plain["hbm_bytes"] - halved["hbm_bytes"] == 4096 * 14336
    assert tpulab("roofline", "--flops", "1e9", "--rhs-dtype", "int8").returncode == 2
    tiled = tpulab("tiling", "32", "4096", "14336", "--rhs-dtype", "int8", "--top", "1")
    assert "bfloat16 x int8" in tiled.stdout


def test_bytes_take_units(tpulab: Run) -> None:
    answers = [
        json.loads(tpulab("roofline", "--bytes", text, "--json").stdout)["v5e"]["hbm_bytes"]
        for text in ("1GB", "1e9")
    ]
    assert answers == [1e9, 1e9]
    slip = tpulab("roofline", "--bytes", "much")
    assert slip.returncode == 2
    assert "32MiB" in slip.stderr
    assert "counts bytes: 32 B" in tpulab("collectives", "all-gather", "32").stdout
    assert "counts bytes" not in tpulab("collectives", "all-gather", "32MiB").stdout


def test_what_is_not_legal_takes_no_time(tpulab: Run) -> None:
    words = ("tiling", "512", "512", "512", "--block", "100", "100", "100")
    row = next(line for line in tpulab(*words).stdout.splitlines() if "not legal" in line)
    assert row.split()[-4:-2] == ["–", "–"]


def test_figures_say_what_they_leave_out(tpulab: Run) -> None:
    assert "the memory does not count" in tpulab("roofline", "--flops", "1e12").stdout
    assert "the matrix unit does not count" in tpulab("roofline", "--bytes", "1e12").stdout
    illegal = tpulab("tiling", "512", "512", "512", "--block", "100", "100", "100").stdout
    assert "block m must be a multiple of 8, k and n of 128" in illegal
    first = tpulab("tiling", "512", "512", "512", "--order", "kmn", "--block", "128", "128", "128")
    assert "must walk k last" in first.stdout
    assert tpulab("tiling", "512", "512", "512", "--order", "mn").returncode == 2
