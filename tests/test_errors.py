"""Sentences of errors that every room raises."""

from __future__ import annotations

import pytest

from tpulab.errors import UnknownNameError

EXERCISES = [f"{track}.{name}" for track in ("matmul", "flash", "ring") for name in "abcdefgh"]


def test_few_names_are_all_listed() -> None:
    text = str(UnknownNameError("chip", "v9", ["v4", "v5e", "v6e"]))
    assert "known: v4, v5e, v6e" in text


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("matmul.z", "known: " + ", ".join(f"matmul.{name}" for name in "abcdefgh")),
        ("matmull", "known: matmul.…, flash.…, ring.…"),
    ],
)
def test_of_many_names_the_group_is_listed(name: str, listed: str) -> None:
    assert str(UnknownNameError("exercise", name, EXERCISES)).splitlines()[0].endswith(listed)


def test_of_many_names_without_groups_the_nearest_are_listed() -> None:
    known = [f"entry-{number}" for number in range(100)]
    text = str(UnknownNameError("entry", "entry-42x", known)).splitlines()
    assert "known: entry-42, " in text[0]
    assert text[0].count(",") == 12
    assert "did you mean entry-42?" in text[1]
