"""Hidden cases: of other shapes, of the same kind, secret, and taken from a teacher's file."""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from itertools import combinations

import pytest

from tpulab.classroom.submissions import credit, hidden
from tpulab.errors import UsageError
from tpulab.exercises import ArgumentSpec, Case, exercises, get_exercise
from tpulab.exercises.values import FILLS

ALL = exercises()


@pytest.mark.parametrize("exercise", ALL, ids=[e.name for e in ALL])
def test_derived_cases_are_new_and_of_the_same_kind(exercise) -> None:
    shown = [case.arguments for case in exercise.cases]
    every = [*shown, exercise.faithful, exercise.speed]
    largest = max(sum(math.prod(s.shape) for s in arguments) for arguments in shown)
    cases = hidden.derived(exercise, "autumn")
    assert 1 <= len(cases) <= hidden.DERIVED_CASES
    assert len({case.arguments for case in cases}) == len(cases)
    for case in cases:
        for known in exercise.cases:
            if known.arguments == case.arguments:
                assert set(case.fills) - set(known.fills) or case.fills == ("random",)
        assert [s.dtype for s in case.arguments] == [s.dtype for s in exercise.speed]
        assert sum(math.prod(s.shape) for s in case.arguments) <= largest
        assert set(case.fills) <= set(FILLS)
        _same_kind([_sizes(known) for known in every], _sizes(case.arguments))


def _sizes(arguments: tuple[ArgumentSpec, ...]) -> list[int]:
    return [size for spec in arguments for size in spec.shape]


def _same_kind(known: list[list[int]], new: list[int]) -> None:
    """What holds of all the exercise's shapes holds of the new one."""
    for column, size in zip(zip(*known), new):
        assert size % math.gcd(*column) == 0
        assert min(column) <= size <= max(column)
    for one, other in combinations(range(len(new)), 2):
        pairs = [(shape[one], shape[other]) for shape in known]
        if all(a == b for a, b in pairs):
            assert new[one] == new[other]
        if all(b % a == 0 for a, b in pairs):
            assert new[other] % new[one] == 0


def test_another_secret_gives_other_shapes_and_the_same_one_the_same() -> None:
    exercise = get_exercise("first_kernel.column_sum")
    assert hidden.derived(exercise, "autumn") == hidden.derived(exercise, "autumn")
    found = {hidden.derived(exercise, str(n))[0].arguments for n in range(8)}
    assert len(found) > 4


def test_whole_blocks_stay_whole() -> None:
    """An exercise whose statement promises multiples of 128 never gets anything else."""
    for number in range(10):
        for case in hidden.derived(get_exercise("matmul.grid"), str(number)):
            assert all(size % 128 == 0 for size in _sizes(case.arguments))


def test_a_ring_keeps_to_sizes_of_slices() -> None:
    sizes = (2, 4, 8)
    base = get_exercise("first_kernel.add")
    cases = tuple(
        Case(str(n), (ArgumentSpec((n, 16 * n, 128), "float32"),) * 2) for n in sizes
    )  # fmt: skip
    ring = dataclasses.replace(
        base, cases=cases, faithful=cases[0].arguments, speed=cases[-1].arguments, mesh_axis="ring"
    )
    for number in range(10):
        for case in hidden.derived(ring, str(number)):
            devices, rows, _ = case.arguments[0].shape
            assert devices in sizes
            assert rows % (16 * devices) == 0


def test_an_exercise_without_other_shapes_gets_other_values() -> None:
    base = get_exercise("first_kernel.add")
    only = ArgumentSpec((8, 128), "float32")
    fixed = dataclasses.replace(
        base, cases=(Case("one", (only, only), ("ramp",)),), faithful=(only, only),
        speed=(only, only),
    )  # fmt: skip
    (case,) = hidden.derived(fixed, "autumn")
    assert case.arguments == (only, only)
    assert case.fills == ("random",)


def test_the_secret_is_kept_and_private(tmp_path) -> None:
    home = tmp_path / "home"
    first = hidden.secret(home)
    assert hidden.secret(home) == first
    assert len(first) == 32
    (file,) = home.iterdir()
    if os.name == "posix":
        assert file.stat().st_mode & 0o077 == 0
    assert hidden.secret(tmp_path / "file" / "below") != first


def test_values_come_from_the_secret_too() -> None:
    seeds = {hidden.seed_of(secret, "matmul.tiled") for secret in ("a", "b", "c")}
    assert len(seeds) == 3
    assert all(0 <= seed < 1 << 31 for seed in seeds)


# ---- the teacher's own

GOOD = """
[[case]]
exercise = "matmul.tiled"
name = "everything ragged"
arguments = ["bf16[520,712]", "bfloat16[712, 648]"]
fills = ["random", "ramp"]

[[case]]
exercise = "first_kernel.add"
arguments = ["f32[24,136]", "f32[24,136]"]
"""


def test_cases_from_a_file(tmp_path) -> None:
    (tmp_path / "cases.toml").write_text(GOOD)
    found = hidden.from_file(tmp_path / "cases.toml")
    (tiled,) = found["matmul.tiled"]
    assert (str(tiled), tiled.fills) == ("bf16[520,712], bf16[712,648]", ("random", "ramp"))
    assert tiled.name == "hidden case: everything ragged"
    (add,) = found["first_kernel.add"]
    assert add.fills == ("random",)
    both = hidden.hidden_cases(get_exercise("first_kernel.add"), "autumn", found)
    assert both[-1] == add
    assert len({case.name for case in both}) == len(both)


def test_the_example_in_the_documentation_works(tmp_path) -> None:
    example = (hidden.__doc__ or "").partition("::")[2]
    (tmp_path / "cases.toml").write_text("\n".join(s.strip() for s in example.splitlines()))
    assert list(hidden.from_file(tmp_path / "cases.toml")) == ["matmul.tiled"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('"matmul.tiled"', '"matmul.tilde"', "matmul.tiled"),
        ('"bf16[520,712]"', '"f32[520,712]"', "takes bf16"),
        (', "bfloat16[712, 648]"', "", "takes bf16"),
        ("712, 648", "711, 648", "no answer for"),
        ("bf16[520,712]", "bf16(520)", "no argument"),
        ("520,712", "0,712", "no elements"),
        ("520,712", "52000,712", "minutes to interpret"),
        ('"ramp"', '"steep"', "no fill 'steep'"),
        ("name =", "nane =", "no key 'nane'"),
        ("[[case]]", "[[cases]]", "no list of cases"),
        ('"ramp"]', '"ramp"', "cannot be read"),
    ],
)
def test_a_slip_in_the_file_gives_a_sentence(tmp_path, before, after, words) -> None:
    assert before in GOOD
    (tmp_path / "cases.toml").write_text(GOOD.replace(before, after))
    with pytest.raises(UsageError, match="(?s)" + words.replace("[", r"\[")) as caught:
        hidden.from_file(tmp_path / "cases.toml")
    assert "cases.toml" in str(caught.value)


# ---- points


def verdict(last: str | None, failed: str | None = None, **rung) -> dict:
    names = ("legal", "correct", "safe", "compiles", "fast")
    answers = {}
    passed = names[: names.index(last) + 1] if last else ()
    for name in names:
        answers[name] = "passed" if name in passed else "not judged"
    if failed:
        answers[failed] = "failed"
    return {
        "attempted": True, "top_rung": False, "rung_number": 1, "rung_count": 3,
        "steps": [{"name": name, "answer": answer} for name, answer in answers.items()], **rung,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "share"),
    [
        (verdict(None, "legal"), 0.0),
        (verdict("legal", "correct"), 0.1),
        (verdict("correct", "safe"), 0.4),
        (verdict("safe", "compiles"), 0.5),
        (verdict("compiles", "fast"), 0.6),
        (verdict("compiles"), 0.6),
        (verdict("fast"), 0.7),
        (verdict("fast", rung_number=2), 0.85),
        (verdict("fast", rung_number=3, top_rung=True), 1.0),
        (verdict("fast", rung_count=1), 1.0),
        ({**verdict("fast"), "attempted": False}, 0.0),
    ],
)
def test_shares_by_steps_and_rungs(given, share) -> None:
    assert credit.load().share(given) == pytest.approx(share)


def test_a_table_of_ones_own(tmp_path) -> None:
    file = tmp_path / "credit.toml"
    text = (credit.resources.files(credit.__package__) / "credit.toml").read_text("utf-8")
    assert tomllib.loads(text)["steps"]["correct"] == 0.4
    file.write_text(text.replace("correct = 0.4", "correct = 0.3"))
    assert credit.load(file).share(verdict("correct", "safe")) == pytest.approx(0.3)
    for wrong in ("correct = 0.05", "correct = 1.5", "correct = 'much'", "korrect = 0.4"):
        file.write_text(text.replace("correct = 0.4", wrong))
        with pytest.raises(UsageError):
            credit.load(file)
