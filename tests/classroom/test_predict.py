"""Predictions: numbers written down before, compared after."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.classroom.predict import Predictions
from tpulab.classroom.showing import show_ladder, when_written
from tpulab.errors import UsageError


def test_near_far_and_missing_answers() -> None:
    predictions = Predictions({"near": 95, "far": 80.0, "open": None})
    comparison = predictions.compare({"near": 100, "far": 100.0, "open": 7})
    assert [near for *_, near in comparison.rows] == [True, False, None]
    assert comparison.made == 2
    assert comparison.right == 1
    assert str(comparison).splitlines()[-1].startswith("1 of 3 within 10%")
    assert "<td>no</td>" in comparison._repr_html_()


def test_nothing_predicted_is_not_attempted() -> None:
    predictions = Predictions({"a (MB)": None})
    assert str(predictions).startswith("not attempted")
    assert "not attempted" in str(predictions.compare({"a (MB)": 3.0}))


def test_outcome_that_needs_code_not_yet_written() -> None:
    def outcome() -> dict[str, float]:
        raise NotImplementedError

    assert str(Predictions({"a": 1}).compare(outcome)).startswith("not attempted")
    assert str(when_written(outcome)).startswith("not attempted")


def test_a_question_waits_only_for_its_own_kernel() -> None:
    def blank() -> float:
        raise NotImplementedError

    def broken() -> float:
        return undefined  # type: ignore[name-defined] # noqa: F821

    asked = []
    predictions = Predictions({"a": 2, "b": 3, "c": 4, "d": None})
    comparison = predictions.compare(
        {"a": lambda: 2, "b": blank, "c": broken, "d": lambda: asked.append(1) or 1}
    )
    assert [near for *_, near in comparison.rows] == [True, None, None, None]  # type: ignore[union-attr]
    assert str(comparison).count("not yet") == 3  # two lines and the sentence below them
    assert not asked
    assert "not yet" not in str(Predictions({"a": 2}).compare({"a": lambda: 2}))
    whole = predictions.compare(lambda: {"a": broken()})
    assert str(whole).startswith("not yet: the outcome needs a kernel that runs (NameError")


def test_a_mistake_is_a_sentence_and_the_cells_below_go_on() -> None:
    cell = "def wrong():\n    x = 1\n    return lax.exp(x)\n"
    names: dict[str, object] = {}
    exec(compile(cell, "/tmp/ipykernel_30143/130853382.py", "exec"), names)
    shown = when_written(names["wrong"])  # type: ignore[arg-type]
    assert shown == (
        "this does not run: see the verdict above "
        "(NameError: name 'lax' is not defined; the cell, line 3)"
    )

    def long() -> None:
        raise ValueError("shapes " * 400)

    assert len(str(when_written(long))) < 320

    def refused() -> None:
        raise UsageError("it hangs", why="nobody signals", where="/tmp/ipykernel_7/12.py:4")

    assert "(it hangs: nobody signals; the cell, line 4)" in str(when_written(refused))
    with pytest.raises(KeyboardInterrupt):
        when_written(_interrupted)


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_a_ladder_of_a_kernel_that_does_not_run_is_a_sentence() -> None:
    import jax
    import jax.numpy as jnp

    def misspelt(x):
        return undefined(x)  # noqa: F821

    def misshapen(x):
        return x + jnp.ones((3, 5))

    for function in (misspelt, misshapen):
        array = jax.ShapeDtypeStruct((8, 128), jnp.float32)
        shown = str(show_ladder(lambda ladder: ladder, function, array, chip="v5e"))
        assert shown.startswith(f"{function.__name__} does not run: see the verdict above (")
        assert "\n" not in shown


def test_a_scaffold_is_found_below_other_errors_and_a_refusal_of_jax_is_not_one() -> None:
    def wrapped(message: str | None) -> None:
        try:
            raise NotImplementedError if message is None else NotImplementedError(message)
        except NotImplementedError as error:
            raise ValueError("it cannot be traced") from error

    assert str(when_written(lambda: wrapped(None))).startswith("not attempted")
    refused = when_written(lambda: wrapped("Only take_along_axis-like gathers supported"))
    assert "does not run: see the verdict above (ValueError: it cannot be traced" in str(refused)


@pytest.mark.parametrize("answer", ["96", True, [1], float("nan"), "x" * 900])
def test_what_is_not_a_number_is_a_sentence_and_no_answer(answer: object) -> None:
    predictions = Predictions({"a": answer, "b": 2})  # type: ignore[dict-item]
    assert "is not a number" in str(predictions)
    assert len(str(predictions)) < 200
    assert predictions.answers == {"a": None, "b": 2}
    assert predictions.compare({"a": 7, "b": 2}).right == 1  # type: ignore[union-attr]


def test_an_outcome_is_shown_to_those_who_predicted_it() -> None:
    comparison = Predictions({"a (MB)": None, "b": 1}).compare({"a (MB)": 31337, "b": 2})
    assert "31337" not in str(comparison).replace(",", "")
    assert "31337" not in comparison._repr_html_().replace(",", "")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("question", "guess", "outcome", "unit"),
    [("t (MB)", 96, 100.663296, "MiB"), ("t (GB)", 2.03125, 2.18103808, "GiB")],
)
def test_binary_units_are_told_from_decimal_ones(
    question: str, guess: float, outcome: float, unit: str
) -> None:
    comparison = Predictions({question: guess}, tolerance=0.03).compare({question: outcome})
    assert f"no: these are {unit}" in str(comparison)


def test_other_questions_are_refused() -> None:
    with pytest.raises(UsageError, match="different questions"):
        Predictions({"a": 1}).compare({"b": 1})


def test_form_takes_numbers_and_ignores_words() -> None:
    predictions = Predictions({"a": None, "b": 2})
    form = predictions.form()
    first, second = form.children  # type: ignore[attr-defined]
    first.value = "3.5"
    second.value = "many"
    assert predictions.answers == {"a": 3.5, "b": None}


@given(outcome=st.floats(1e-9, 1e12), factor=st.floats(0.5, 1.5))
def test_the_tolerance_is_relative(outcome: float, factor: float) -> None:
    comparison = Predictions({"q": outcome * factor}, tolerance=0.1).compare({"q": outcome})
    ((*_, near),) = comparison.rows
    if abs(factor - 1) < 0.0999:
        assert near
    if abs(factor - 1) > 0.1001:
        assert not near


def test_html_escapes_what_a_learner_typed() -> None:
    text = Predictions({"<b>": 1}).compare({"<b>": 1})._repr_html_()
    assert "<b>" not in text


def test_counts_are_right_or_wrong() -> None:
    comparison = Predictions({"near": 24, "off by one": 7}, tolerance=0).compare(
        {"near": 24, "off by one": 6}
    )
    assert [near for *_, near in comparison.rows] == [True, False]
    assert str(comparison).splitlines()[-1] == "1 of 2 exactly right"
    assert "exactly right" in comparison._repr_html_()
