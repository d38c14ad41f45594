"""Every Pallas TPU kernel that ships inside JAX goes through the ladder for two chips.

Expected figures come from `traffic.py` (sums on paper) and `cases.toml`; refusals are listed, with
their reasons, in `refusals.toml`.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jax
import jsonschema
import pytest

import tpulab
from tpulab.hardware import get_chip
from tpulab.kernel import TraceError
from tpulab.kernel.legality import illegalities
from tpulab.ladder import RUNGS, ladder

from .traffic import Traffic, expected, must_read, xla_may_add

HERE = Path(__file__).parent
CHIPS = ("v5e", "v6e")
CASES = {
    case["function"]: case for case in tomllib.loads((HERE / "cases.toml").read_text())["case"]
}
REFUSALS = {
    (entry["function"], chip): entry
    for entry in tomllib.loads((HERE / "refusals.toml").read_text())["refusal"]
    for chip in entry["chips"]
}
# from jax 0.12 on, splash attention keeps its accumulators in scratch memory
SCRATCH_OUTPUTS = jax.__version_info__ < (0, 12)


def load(name: str) -> tuple[Any, tuple[Any, ...]]:
    module = importlib.import_module(f".{Path(CASES[name]['file']).stem}", __package__)
    return getattr(module, name), module.make_args()


def by_hand(name: str) -> Traffic:
    traffic = expected(name, scratch_outputs=SCRATCH_OUTPUTS)
    assert traffic is not None, f"no formula for {name}"
    return traffic


@functools.cache
def traced(name: str, chip: str) -> Any:
    function, arguments = load(name)
    return tpulab.trace(function, *arguments, chip=chip)


@pytest.fixture(scope="session")
def climbed(folder_of_the_test_run: Path) -> Callable[[str], dict[str, Any]]:
    """The ladder's JSON of a kernel for both chips, after a trip through a file.

    Ladders of big kernels take seconds: each is made once in a test run, by whoever needs it first.
    """

    @functools.cache
    def climb(name: str) -> dict[str, Any]:
        kept = folder_of_the_test_run / f"ladder-{name}.json"
        if not kept.exists():
            function, arguments = load(name)
            made = kept.with_suffix(f".{os.getpid()}")
            made.write_text(json.dumps(ladder(function, *arguments, chip=CHIPS).to_json()))
            made.replace(kept)
        return json.loads(kept.read_text())

    return climb


Climbed = Callable[[str], dict[str, Any]]
BY_LINKS = [name for name, case in CASES.items() if case.get("judge") == "links"]
ANSWERED = [name for name in CASES if (name, "v5e") not in REFUSALS and name not in BY_LINKS]


def test_every_kernel_in_jax_has_a_case() -> None:
    """A new file in JAX's folder must not go unnoticed."""
    from jax.experimental.pallas.ops import tpu

    folder = Path(tpu.__file__).parent
    holders = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if "pl.pallas_call(" in path.read_text()
    }
    assert holders == {
        "matmul.py",
        "flash_attention.py",
        "splash_attention/splash_attention_kernel.py",
        "paged_attention/paged_attention_kernel.py",
        "ragged_paged_attention/kernel.py",
        "megablox/gmm.py",
        "random/threefry.py",
        "random/philox.py",
        "all_gather.py",
        "example_kernel.py",
    }


@pytest.mark.parametrize("name", ANSWERED)
def test_traced_work_is_what_the_algorithm_says(name: str) -> None:
    kernel = traced(name, "v5e")
    traffic = by_hand(name)
    assert (kernel.hbm_read_bytes, kernel.hbm_written_bytes) == (traffic.read, traffic.written)
    assert kernel.mxu_flops == traffic.mxu_flops


@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("_tuned")])
def test_legality_rules_raise_no_false_alarm(name: str) -> None:
    """All of these run on TPUs every day."""
    for chip in CHIPS:
        assert illegalities(traced(name, "v5e"), chip) == ()


@pytest.mark.parametrize("chip", CHIPS)
def test_what_jax_itself_refuses_is_passed_on(chip: str) -> None:
    function, arguments = load("ragged_paged_attention_tuned")
    with pytest.raises(TraceError, match="TPU version must be 4 or higher"):
        tpulab.trace(function, *arguments, chip=chip)


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("name", CASES)
def test_json_follows_the_schema(climbed: Climbed, name: str) -> None:
    schema = json.loads(resources.files("tpulab").joinpath("ladder_schema.json").read_text())
    answer = climbed(name)
    jsonschema.validate(answer, schema)
    assert answer["function"] == name
    assert list(answer["chips"]) == list(CHIPS)


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_answered_or_refused_as_listed(climbed: Climbed, name: str, chip: str) -> None:
    answer = climbed(name)["chips"][chip]
    listed = REFUSALS.get((name, chip))
    if listed is None:
        assert answer["refusal"] is None
        assert answer["predicted_seconds"] > 0
        return
    assert answer["refusal"]["stage"] == listed["stage"]
    assert listed["contains"] in answer["refusal"]["reason"]
    assert answer["predicted_seconds"] is None
    assert answer["hbm_bytes"] is None


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", ANSWERED)
def test_prediction_stands_above_the_bound(climbed: Climbed, name: str, chip: str) -> None:
    answer = climbed(name)["chips"][chip]
    bound, predicted = answer["bound_seconds"], answer["predicted_seconds"]
    seconds = [rung["seconds"] for rung in answer["rungs"]]
    assert [rung["name"] for rung in answer["rungs"]] == list(RUNGS)
    assert seconds == sorted(seconds)
    assert (seconds[0], seconds[-1]) == (bound, predicted)
    assert bound <= predicted <= CASES[name]["ratio"][chip] * bound
    assert sum(answer["stall_seconds"].values()) < predicted
    assert answer["vmem_bytes"] < 128 * 2**20


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", BY_LINKS)
def test_links_carry_what_the_algorithm_sends(climbed: Climbed, name: str, chip: str) -> None:
    """Half of each of four shards of 1 MiB goes each way round, in three rounds."""
    answer = climbed(name)["chips"][chip]
    ici = get_chip(chip).ici
    carried = 3 * 2**19 / ici.link_bandwidth_bytes_per_second
    assert answer["bound_seconds"] == pytest.approx(carried)
    assert answer["predicted_seconds"] == pytest.approx(carried + 3 * ici.hop_latency_seconds)
    assert [rung["name"] for rung in answer["rungs"] if rung["seconds"]] == [
        "speed of light",
        "links",
    ]


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", ANSWERED)
def test_program_moves_what_the_algorithm_must_move(climbed: Climbed, name: str, chip: str) -> None:
    moved = climbed(name)["chips"][chip]["hbm_bytes"]
    traffic = by_hand(name)
    total = traffic.read + traffic.written
    if CASES[name]["bytes"] == "exact":
        assert total <= moved <= 1.01 * total + 16 * 1024
        return
    function, arguments = load(name)
    results = jax.tree.leaves(jax.eval_shape(function, *arguments))
    written = sum(result.size * result.dtype.itemsize for result in results)
    assert written <= moved
    assert must_read(name) <= moved - written
    assert moved <= 2 * total + xla_may_add(name)


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        ("matmul", "matmul_small_blocks"),
        ("matmul_int8", "matmul"),
        ("flash_attention_causal", "flash_attention"),
        ("flash_attention", "flash_attention_default_blocks"),
        ("flash_attention_causal", "flash_attention_backward"),
        ("splash_attention_mha", "splash_attention_mha_backward"),
        ("paged_attention", "paged_attention_grid"),
        ("threefry_bits_padded", "philox_bits"),
    ],
)
def test_order_of_kernels(climbed: Climbed, faster: str, slower: str, chip: str) -> None:
    """Less work, or the same work in better blocks, must not be predicted to take longer."""
    quick, slow = climbed(faster)["chips"][chip], climbed(slower)["chips"][chip]
    assert quick["predicted_seconds"] < slow["predicted_seconds"]


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("name", [name for name in ANSWERED if "paged" not in name])
def test_newer_chip_is_not_slower(climbed: Climbed, name: str) -> None:
    """v6e has 4.7 times v5e's arithmetic and twice its HBM bandwidth, at 1.17 times its clock."""
    chips = climbed(name)["chips"]
    assert chips["v6e"]["predicted_seconds"] < 1.1 * chips["v5e"]["predicted_seconds"]
