from __future__ import annotations

import re
from pathlib import Path

import jax
import pytest

from tests.compiler import refused_kernels
from tpulab.compiler import CompileError, CompilerDied, explain
from tpulab.compiler.explanations import catalogue, explain_death, place_in
from tpulab.hardware import chips

LINE = "0.12" if tuple(map(int, jax.__version__.split(".")[:2])) >= (0, 12) else "0.10"
CASES = [
    pytest.param(case, chip, id=f"{case.make.__name__}-{chip}")
    for case in refused_kernels.ALL
    for chip in case.chips
    if case.only_jax in (None, LINE)
]

# messages that can't be had from a small kernel here, with the entry they belong to
TEXTS = {
    "only-interpret-on-cpu": "ValueError: Only interpret mode is supported on CPU backend.",
    "window-params": "Mosaic failed to compile: Failed to set window params for input 1: x",
    "hbm-exceeded": "E1000: CompileTimeHbmOom: Ran out of memory in memory space hbm",
    "device-kind": "ValueError: Unsupported TPU device kind: cpu",
    "compiler-lock": "ABORTED: Internal error when accessing libtpu multi-process lockfile.",
    "unknown-flag": "ERROR: Unknown command line flag 'xla_no_such_flag'",
    "dump-directory": "F1201 llo_dumper.cc:749] Check failed: status is OK (NOT_FOUND: mkdir)",
    "stack-size": "RecursionError: maximum recursion depth exceeded in comparison",
    "mesh-differs": "The context mesh AbstractMesh('a') should match the mesh passed to shard_map",
    "narrow-masking": "MOSAIC: 8-bit subelement masking is only supported for TPU v5+.",
    "operation-not-on-this-generation": "LLO_CHECK failure (llo_region.cc:1) target()",
    "matmul-precision": "NotImplementedError: Unsupported dot precision: HIGH",
    "matmul-batch-dimensions": "'tpu.matmul' op Not implemented: Up to 1 batch dim supported",
    "arg-reduction-crash": "PC: @ 0x7fc9b03da965 (unknown) mlir::tpu::selectWithBounds()",
    "matmul-operand-type": "float acc with int lhs. Expected float lhs.",
    "reduction-type": "Unsupported element type for the selected reduction",
    "general-gather": "Not implemented: Gather indices and result have different bitwidths",
}


@pytest.mark.needs_libtpu
@pytest.mark.parametrize(("case", "chip"), CASES)
def test_every_refusal_gets_its_entry_and_points_at_the_kernel(compiler, case, chip):
    function, arguments = case.make()
    with pytest.raises(CompileError) as caught:
        compiler.compile(function, *arguments, chip=chip)
    error = caught.value
    assert error.explanation is not None
    assert error.explanation.key == case.key, error.message[:2000]
    assert error.explanation.matched
    assert error.why == error.explanation.cause
    assert error.hint == error.explanation.remedy
    assert error.chip == chip
    if not isinstance(error, CompilerDied):
        assert error.message
    path, _, line = (error.where or "").rpartition(":")
    assert path == refused_kernels.__file__
    assert int(line) > 0
    # the sentence must not be a page
    assert len(error.what) < 320


def test_a_kernel_line_is_named_exactly():
    case = next(c for c in refused_kernels.ALL if c.make.__name__ == "bf16_accumulator")
    function, arguments = case.make()
    source = Path(refused_kernels.__file__).read_text().splitlines()
    from tpulab.compiler import LoweringRefused, lower

    with pytest.raises(LoweringRefused) as caught:
        lower(function, *arguments)
    line = int(caught.value.where.rpartition(":")[2])
    assert "jnp.dot(x[...], y[...])" in source[line - 1]


@pytest.mark.parametrize("key", TEXTS)
def test_known_texts(key):
    assert explain(TEXTS[key]).key == key


def test_every_entry_is_whole_and_held_by_a_kernel_or_a_text():
    held = {case.key for case in refused_kernels.ALL} | set(TEXTS)
    known = {chip.name for chip in chips()}
    assert len(catalogue()) >= 35
    for entry in catalogue():
        assert entry.key in held, f"nothing tests {entry.key}"
        for text in (entry.title, entry.cause, entry.rule, entry.remedy):
            assert text
            assert not text.endswith(".")
        assert len(entry.example.splitlines()) == 2, entry.key
        assert set(entry.chips) <= known


def test_an_entry_by_its_key():
    entry = catalogue()[0]
    explanation = explain(entry.key)
    assert explanation.matched
    assert (explanation.key, explanation.title) == (entry.key, entry.title)


def test_the_closest_entries_speak_of_the_same_things():
    explanation = explain("here some scalar is stored to the memory of vectors")
    assert not explanation.matched
    assert "scalar-store-to-vmem" in explanation.closest


def test_an_unknown_message_is_said_to_be_unknown():
    explanation = explain("Mosaic failed to compile TPU kernel: the flux capacitor is empty")
    assert not explanation.matched
    assert explanation.key == "unknown"
    assert explanation.message == "the flux capacitor is empty"
    assert 1 <= len(explanation.closest) <= 3
    assert set(explanation.closest) <= {entry.key for entry in catalogue()}
    assert "not in the catalogue" in str(explanation)


@pytest.mark.parametrize("text", ["", " ", "\n", "x" * 100_000, "\0", '"":1:1'])
def test_odd_texts_are_survived(text):
    assert not explain(text).matched


def test_explaining_an_error_again_gives_the_same():
    first = explain("ValueError: Cannot store scalars to VMEM")
    error = CompileError("refused", explanation=first)
    assert explain(error) is first


def test_an_ordinary_exception_is_explained_with_its_place():
    try:
        raise ValueError("Cannot store scalars to VMEM")
    except ValueError as error:
        explanation = explain(error)
        assert explanation.key == "scalar-store-to-vmem"
        assert explanation.where.startswith(__file__)


def test_entries_for_other_chips_are_passed_over():
    text = "Sublane gather not supported by this TPU generation"
    assert explain(text, "v4").key == "lane-reduction-to-rank-1"
    assert explain(text, "v6e").key != "lane-reduction-to-rank-1"


def test_a_death_is_known_by_its_signal_too():
    crash = "PC: @ 0x1 (unknown) mlir::tpu::selectWithBounds()"
    assert explain_death(crash, "SIGSEGV").key == "arg-reduction-crash"
    assert not explain_death(crash, "SIGBUS").matched
    fatal = "F1201 10:38:41.925621 27933 some_file.cc:12] Check failed: the moon is full\nstack"
    assert explain_death(fatal, "SIGABRT").message == (
        "some_file.cc:12] Check failed: the moon is full"
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('loc("get"(callsite("k"("/home/me/kernel.py":10:25 to :46))))', "/home/me/kernel.py:10"),
        ('File "/tmp/ipykernel_7/123.py", line 4, in kernel', "/tmp/ipykernel_7/123.py:4"),
        ("/x/lib/python3.11/site-packages/jax/core.py:7 then /me/a.py:9:1", "/me/a.py:9"),
        ("platforms/xla/service/jellyfish/llo_region.cc:393", None),
        ("12:30:55 and 7:8", None),
        ("", None),
    ],
)
def test_the_place_in_a_message(text, place):
    assert place_in(text) == place


def test_patterns_are_quick_on_long_texts():
    # a pattern that backtracks would make this take minutes
    text = ("Pytree for `in_specs` check_vma=True got vector-int16 " * 2000)[:100_000]
    for entry in catalogue():
        assert isinstance(entry.pattern, re.Pattern)
    explain(text + "\n")


def test_the_two_numbers_of_a_full_vector_memory_are_in_the_headline():
    text = (
        "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of memory in memory space "
        "vmem while allocating on stack for %f.1 = f32[2048,2048]{1,0:T(8,128)} custom-call(%x). "
        "Scoped allocation with size 32.00M and limit 16.00M exceeded scoped vmem limit by 16.00M."
    )
    assert explain(text).message == (
        "Ran out of memory in memory space vmem: "
        "scoped allocation with size 32.00M and limit 16.00M"
    )


def test_nobody_is_told_to_ask_for_more_memory_than_there_is():
    text = "Ran out of memory in memory space vmem. Used 163.92M of {}. Exceeded vmem capacity"
    # 128 MiB are the v5e's whole VMEM, 64 MiB the 7x core's
    assert "raise vmem_limit_bytes" in explain(text.format("16.00M"), "v5e").remedy
    for chip, limit in (("v5e", "128.00M"), ("7x", "64.00M")):
        remedy = explain(text.format(limit), chip).remedy
        assert "raise" not in remedy
        assert f"the {limit[:-4]} MiB are all that the chip has" in remedy
