"""A verdict's texts, its JSON, the cache of verdicts, and the comparison with the oracle."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpulab.exercises import Case, get_exercise
from tpulab.grading import StepResult, Verdict, check, check_file, shipping, store, wire
from tpulab.grading.comparing import diagnose, outcome
from tpulab.grading.problems import deadlock, from_exit
from tpulab.grading.sandbox import Limits

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ADD = textwrap.dedent(
    """
    import jax
    from jax.experimental import pallas as pl


    def add(x, y):
        def kernel(x_ref, y_ref, out_ref):
            out_ref[...] = x_ref[...] + y_ref[...]

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)
    """
)


def sample(passed=(True, False, None, None, None)):
    names = ("legal", "correct", "safe", "compiles", "fast")
    return Verdict(
        "matmul.grid",
        "A grid of 128³ blocks",
        tuple(
            StepResult(
                name,
                answer,
                f"summary of {name} <b>",
                "detail & more" if answer is False else "",
                "a hint" if answer is False else "",
                "kernel.py:12" if answer is False else "",
                {"figure": 1},
            )
            for name, answer in zip(names, passed)
        ),
        rung="five per cent" if all(passed) else None,
        predicted={"v5e": 1e-3},
        output="printed\n",
    )


def test_highest_failed_and_headline():
    verdict = sample()
    assert verdict.highest == "legal"
    assert verdict.failed is not None
    assert verdict.failed.name == "correct"
    assert not verdict.passed
    assert verdict.headline == "matmul.grid: correct failed"
    everything = sample((True,) * 5)
    assert everything.passed
    assert everything.highest == "fast"
    assert "all five passed: five per cent" in everything.headline
    partial = sample((True, True, True, None, None))
    assert partial.passed
    assert partial.highest == "safe"
    assert [step.name for step in partial.unavailable] == ["compiles", "fast"]
    assert "not available here" in partial.headline


def test_text_says_what_failed_and_what_to_try():
    text = str(sample())
    assert "✗ correct" in text
    assert "FAILED" in text
    assert "try a hint" in text
    assert "kernel.py:12" in text
    assert "detail & more" in text
    assert "your code printed" in text
    assert max(len(line) for line in text.splitlines()) < 200


class _Checker(HTMLParser):
    def __init__(self):
        super().__init__()
        self.stack, self.tags = [], []

    def handle_starttag(self, tag, attributes):
        self.stack.append(tag)
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_html_is_well_formed_escaped_and_does_not_speak_by_colour_alone():
    page = sample()._repr_html_()
    parser = _Checker()
    parser.feed(page)
    assert parser.stack == []
    assert "summary of legal &lt;b&gt;" in page
    assert "<b>" not in page
    assert "✗ failed" in page
    assert "✓ passed" in page
    scopes = [a.get("scope") for tag, a in parser.tags if tag == "th"]
    assert scopes.count("row") == 5
    assert scopes.count("col") == 3
    assert any(a.get("aria-label") for _, a in parser.tags)


def test_ladder_is_folded_into_the_page():
    verdict = sample((True,) * 5)
    rungs = [{"name": "speed of light", "seconds": 1e-6, "cause": "a < b", "advice": ""}]
    steps = (*verdict.steps[:4], StepResult("fast", True, "", data={"v5e": {"rungs": rungs}}))
    page = dataclasses.replace(verdict, steps=steps)._repr_html_()
    parser = _Checker()
    parser.feed(page)
    assert parser.stack == []
    assert "<details><summary>where the time goes on v5e" in page
    assert "a &lt; b" in page


def test_colours_have_contrast_with_white():
    from tpulab.grading.render import _COLOURS

    for colour in _COLOURS.values():
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert 1.05 / (luminance + 0.05) >= 4.5


def test_json_round_trip():
    verdict = sample()
    data = json.loads(verdict.to_json())
    assert data["failed"] == "correct"
    assert data["steps"][1]["answer"] == "failed"
    assert Verdict.from_dict(data, verdict.title).to_dict() == verdict.to_dict()


# ---- messages


def test_messages_round_trip_and_refuse_damage():
    import io

    import ml_dtypes

    arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.ones((4,), ml_dtypes.bfloat16),
        np.zeros((0, 3), np.int8),
        np.float64(3.5),
    ]
    described, blobs = wire.pack_arrays(arrays)
    data = wire.encode({"arrays": described}, blobs)
    message = wire.decode(io.BytesIO(data))
    assert message is not None
    for sent, got in zip(arrays, wire.unpack_arrays(message[0]["arrays"], message[1])):
        np.testing.assert_array_equal(np.asarray(sent), got)
        assert np.asarray(sent).dtype == got.dtype
    assert wire.decode(io.BytesIO(b"")) is None
    for cut in (1, 7, 9, len(data) - 1):
        with pytest.raises(wire.MalformedMessageError):
            wire.decode(io.BytesIO(data[:cut]))
    with pytest.raises(wire.MalformedMessageError):
        wire.decode(io.BytesIO(b"\xff" * 64))
    for bad in (
        [{"shape": [2], "dtype": "object"}],
        [{"shape": [3], "dtype": "float32"}],
        [{"shape": [-1], "dtype": "float32"}],
        "arrays",
    ):
        with pytest.raises(wire.MalformedMessageError):
            wire.unpack_arrays(bad, [bytes(8)])


@settings(max_examples=60, deadline=None)
@given(
    header=st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=20), max_size=4),
    blobs=st.lists(st.binary(max_size=200), max_size=5),
    cut=st.integers(0, 400),
)
def test_any_message_round_trips_and_any_cut_is_noticed(header, blobs, cut):
    import io

    data = wire.encode(header, blobs)
    assert wire.decode(io.BytesIO(data)) == (header, blobs)
    if 0 < cut < len(data):
        with pytest.raises(wire.MalformedMessageError):
            wire.decode(io.BytesIO(data[:cut]))


@settings(max_examples=60, deadline=None)
@given(data=st.binary(min_size=1, max_size=300))
def test_noise_is_never_taken_for_more_than_a_message(data):
    import io

    stream = io.BytesIO(data)
    try:
        while wire.decode(stream) is not None:
            pass
    except wire.MalformedMessageError:
        pass


# ---- comparison


def _run(name, got, fill="random", case=None, blocks=(), uncleared=False, seed=1):
    exercise = get_exercise(name)
    case = case or exercise.cases[0]
    from tpulab.exercises.values import make_arguments

    arguments = make_arguments(case.arguments, fill, seed)
    exact = [a.astype(np.float64) for a in arguments]
    operands = [{"block": list(block)} for block in blocks]
    kernel = {"calls": [{"operands": operands, "uncleared": ["acc"] if uncleared else []}]}
    return outcome(exercise, case, fill, seed, arguments, got(*exact), kernel)


def test_exact_results_and_infinities_are_right():
    assert _run("matmul.grid", lambda a, b: a @ b).passed
    assert _run("first_kernel.add", lambda x, y: x + y, "extremes").passed
    assert not _run("matmul.grid", lambda a, b: a @ b + 0.1).passed
    assert not _run("matmul.grid", lambda a, b: np.full((256, 256), np.nan)).passed


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda a, b: a[:, 128:] @ b[128:], "overwrites"),
        (lambda a, b: a[:, :128] @ b[:128], "first block"),
        (lambda a, b: 2 * (a[:, :128] @ b[:128]), "same block of k"),
        (lambda a, b: 3 * (a @ b), "3 times"),
        (lambda a, b: np.full((256, 256), np.nan), "NaN"),
        (lambda a, b: (a @ b).T, "not what was asked"),
    ],
)
def test_diagnosis_names_the_mistake(result, words):
    blocks = [(128, 128), (128, 128), (128, 128)]
    run = _run("matmul.grid", result, blocks=blocks)
    assert words in diagnose(get_exercise("matmul.grid"), [run], []).mistake


def test_diagnosis_of_unwritten_and_uncleared_memory():
    exercise = get_exercise("matmul.grid")
    nothing = _run("matmul.grid", lambda a, b: np.full((256, 256), np.nan), uncleared=True)
    assert "not initialised" in diagnose(exercise, [nothing], []).mistake

    def tail(a, b):
        want = a @ b
        want[128:] = np.nan
        return want

    assert "never written" in diagnose(exercise, [_run("matmul.grid", tail)], []).mistake


def test_diagnosis_of_luck():
    exercise = get_exercise("matmul.whole")
    case = exercise.cases[0]
    wrong = _run("matmul.whole", lambda a, b: np.abs(a) @ b, case=case)
    right = _run("matmul.whole", lambda a, b: np.abs(a) @ b, "identity", case=case)
    assert right.passed
    found = diagnose(exercise, [wrong], [right])
    assert "right on identity" in found.mistake


def test_ragged_edge():
    exercise = get_exercise("matmul.tiled")
    ragged = next(case for case in exercise.cases if case.name == "ragged k")
    assert isinstance(ragged, Case)
    run = _run("matmul.tiled", lambda a, b: np.full((512, 512), np.nan), case=ragged)
    assert "ragged edge is read as data" in diagnose(exercise, [run], []).mistake


# ---- ends of processes


@pytest.mark.parametrize(
    ("code", "output", "words"),
    [
        (-11, "", "SIGSEGV"),
        (-9, "", "SIGKILL"),
        (-24, "", "did not finish"),
        (-25, "", "file larger"),
        (-6, "std::bad_alloc", "more memory"),
        (7, "", "exit status 7"),
        (None, "", "gone"),
    ],
)
def test_every_end_has_a_sentence(code, output, words):
    problem = from_exit(code, "it runs", output, Limits(), flooded=False, malformed=None)
    assert words in problem.summary
    assert problem.hint


def test_where_it_hung_is_read_from_the_dump():
    dump = (
        "Timeout (0:00:03)!\nThread 0x01 (most recent call first):\n"
        '  File "/x/site-packages/jax/a.py", line 3 in f\n  File "/home/me/mine.py", line 7 in k\n'
    )
    assert deadlock(3, dump).where == "/home/me/mine.py:7"


# ---- shipping


def test_content_knows_code_and_ignores_places():
    def load(text, file):
        space = {"__name__": "__main__"}
        exec(compile(text, file, "exec"), space)
        return space["add"]

    one = shipping.ship(load(ADD, "/a/one.py"))
    moved = shipping.ship(load("# a comment\n\n" + ADD, "/b/two.py"))
    changed = shipping.ship(load(ADD.replace("+ y_ref", "- y_ref"), "/a/one.py"))
    assert one.content == moved.content
    assert one.content != changed.content
    constant = ADD.replace("+ y_ref[...]", "+ FACTOR * y_ref[...]")
    first = shipping.ship(load("FACTOR = 1.0\n" + constant, "/a/one.py"))
    second = shipping.ship(load("FACTOR = 2.0\n" + constant, "/a/one.py"))
    assert first.content != second.content


def test_content_is_the_same_in_another_process(tmp_path):
    (tmp_path / "answer.py").write_text(ADD)
    program = (
        "import runpy, sys; from tpulab.grading import shipping;"
        "space = runpy.run_path(sys.argv[1], run_name='__main__');"
        "print(shipping.ship(space['add']).content)"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "answer.py")],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


# ---- files and the cache


def test_file_is_checked_without_being_imported_here(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "home"))
    path = tmp_path / "answer.py"
    path.write_text(ADD + "\nimport os\nprint('process', os.getpid())\n")
    verdict = check_file("first_kernel.add", str(path), quiet=True, until="correct")
    assert verdict.passed, str(verdict)
    assert "process" in verdict.output
    assert str(os.getpid()) not in verdict.output.split()
    # the second time nothing runs
    again = check_file("first_kernel.add", f"{path}:add", quiet=True, until="correct")
    assert again.from_cache
    assert again.to_dict() == verdict.to_dict()
    assert again.output == ""
    # another text is another answer
    path.write_text(path.read_text().replace("+ y_ref", "- y_ref"))
    changed = check_file("first_kernel.add", str(path), quiet=True, until="correct")
    assert not changed.passed
    assert not changed.from_cache


def test_neighbours_of_a_file(tmp_path, monkeypatch):
    """Beside it or in a package below; imported at the top or within the function."""
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "home"))
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "body.py").write_text(ADD)
    (tmp_path / "beside.py").write_text("from parts.body import add as inner\n")
    path = tmp_path / "answer.py"
    path.write_text("def add(x, y):\n    from beside import inner\n    return inner(x, y)\n")
    verdict = check_file("first_kernel.add", str(path), quiet=True, until="correct")
    assert verdict.passed, str(verdict)
    assert check_file("first_kernel.add", str(path), quiet=True, until="correct").from_cache
    # a change two files away is a change
    (tmp_path / "parts" / "body.py").write_text(ADD.replace("+ y_ref", "- y_ref"))
    changed = check_file("first_kernel.add", str(path), quiet=True, until="correct")
    assert not changed.from_cache
    assert not changed.passed


def test_the_file_that_is_named_is_the_one_that_is_judged(tmp_path):
    """Two files in one folder, the right one first: nothing else changes between the checks."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(ADD)
    wrong.write_text(ADD.replace("x_ref[...] + y_ref[...]", "x_ref[...] - y_ref[...]"))
    assert right.read_text() != wrong.read_text()
    assert check_file("first_kernel.add", str(right), quiet=True, until="correct").passed
    verdict = check_file("first_kernel.add", str(wrong), quiet=True, until="correct")
    assert verdict.failed is not None, str(verdict)
    assert not verdict.from_cache


def test_file_problems(tmp_path):
    from tpulab.errors import TpulabError

    with pytest.raises(TpulabError, match="there is no file"):
        check_file("first_kernel.add", str(tmp_path / "missing.py"), quiet=True)
    path = tmp_path / "broken.py"
    path.write_text("def add(x, y:\n")
    verdict = check_file("first_kernel.add", str(path), quiet=True, until="legal", record=False)
    assert verdict.failed is not None
    assert "broken.py" in str(verdict)
    path.write_text("def subtract(x, y):\n    return x\n")
    with pytest.raises(TpulabError, match="broken.py has no function add") as error:
        check_file("first_kernel.add", str(path), quiet=True)
    assert "broken.py:subtract" in str(error.value)
    # a name that only running the file would bind is left to the run
    path.write_text("from os.path import *\n")
    verdict = check_file("first_kernel.add", str(path), quiet=True, until="legal", record=False)
    assert verdict.failed is not None
    assert "add" in str(verdict)


def test_cache_survives_what_it_cannot_write_or_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path))
    key = store.content_key("test", 1)
    assert store.cached(key) is None
    store.remember(key, {"a": 1})
    assert store.cached(key) == {"a": 1}
    store._file(key).write_text("{")
    assert store.cached(key) is None
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "blocked"))
    store.remember(key, {"a": 1})
    assert store.cached(key) is None


@pytest.mark.parametrize("damage", ["{}", "[]", "{", '{"steps": 5, "exercise": "x"}', "\x00"])
def test_a_damaged_verdict_in_the_cache_is_judged_anew(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "home"))
    path = tmp_path / "answer.py"
    path.write_text(ADD)
    assert check_file("first_kernel.add", str(path), quiet=True, until="legal").passed
    entries = list((tmp_path / "home").rglob("verdicts/*/*.json"))
    assert entries
    for entry in entries:
        entry.write_text(damage)
    again = check_file("first_kernel.add", str(path), quiet=True, until="legal")
    assert again.passed
    assert not again.from_cache


@pytest.mark.needs_libtpu
def test_damaged_figures_in_the_cache_are_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path / "home"))
    path = tmp_path / "answer.py"
    path.write_text(ADD)
    first = check_file("first_kernel.add", str(path), quiet=True, chips="v5e")
    assert first.passed
    for entry in (tmp_path / "home").rglob("verdicts/*/*.json"):
        entry.write_text("{}")
    again = check_file("first_kernel.add", str(path), quiet=True, chips="v5e")
    assert again.passed, str(again)
    assert again.predicted == first.predicted


def test_disk_full_costs_only_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    store.remember(store.content_key("x"), {"a": 1})
    assert not list(tmp_path.rglob("*.part"))


def test_without_a_compiler_the_last_two_steps_say_so(tmp_path, monkeypatch):
    """A machine without libtpu: not failed, not available, with the reason."""
    monkeypatch.setenv("TPULAB_HOME", str(tmp_path))
    import tpulab.compiler.compiling as compiling

    monkeypatch.setattr(compiling, "missing_reason", lambda: "libtpu is not installed")
    path = tmp_path / "answer.py"
    path.write_text(ADD)
    verdict = check_file("first_kernel.add", str(path), quiet=True)
    assert verdict.passed, str(verdict)
    assert verdict.highest == "safe"
    assert verdict.step("compiles").passed is None
    assert "not available here" in verdict.step("compiles").summary
    assert "not available here" in verdict.step("fast").summary
    assert "the rest is not available here" in verdict.headline


def test_module_of_the_learner_is_sent_by_value(tmp_path, monkeypatch):
    (tmp_path / "helper_of_mine.py").write_text(ADD)
    (tmp_path / "answer_of_mine.py").write_text(
        "from helper_of_mine import add as inner\n\n\ndef add(x, y):\n    return inner(x, y)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import answer_of_mine

    verdict = check(
        "first_kernel.add", answer_of_mine.add, quiet=True, until="correct", record=False
    )
    assert verdict.passed, str(verdict)


def test_import_stays_light():
    program = "import sys, tpulab.grading, tpulab.exercises; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"


def test_lines_in_a_terminal(capsys):
    def add(x, y):
        raise ValueError("no idea")

    check("first_kernel.add", add, until="legal", record=False)
    shown = capsys.readouterr().out
    assert shown.count("ValueError while") == 1
    assert "first_kernel.add · Add two arrays" in shown
    assert "→ first_kernel.add: legal failed" in shown


# ---- on a TPU, and Ctrl-C late


def test_measured_time_stands_beside_the_prediction(monkeypatch):
    from tpulab.grading import measuring

    monkeypatch.setattr(measuring, "on_tpu", lambda: True)
    exercise = get_exercise("first_kernel.add")
    verdict = sample((True,) * 5)
    measured = measuring.with_measurement(verdict, exercise, lambda x, y: x + y)
    assert measured.measured_seconds is not None
    assert measured.measured_seconds > 0
    assert measured.predicted == verdict.predicted
    assert "measured here" in measured.step("fast").summary
    assert measured.step("fast").summary.startswith(verdict.step("fast").summary)

    def refuses(x, y):
        raise ValueError("not on this chip")

    refused = measuring.with_measurement(verdict, exercise, refuses)
    assert refused.measured_seconds is None
    assert "not on this chip" in refused.step("fast").summary


def test_a_tpu_is_not_looked_for_where_there_is_none(monkeypatch):
    from tpulab.grading import measuring

    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(measuring.os.path, "exists", lambda path: False)
    assert not measuring.on_tpu()


def test_interrupt_while_compiling(tmp_path, monkeypatch):
    from tpulab.grading import speed

    def interrupted(future):
        raise KeyboardInterrupt

    monkeypatch.setattr(speed.SpeedJudge, "_wait", staticmethod(interrupted))
    path = tmp_path / "answer.py"
    path.write_text(ADD)
    verdict = check_file("first_kernel.add", str(path), quiet=True, cache=False, record=False)
    assert verdict.interrupted
    assert verdict.highest == "safe"
    assert verdict.step("compiles").summary == "interrupted"


def test_verdict_is_shown_once_in_its_cell(monkeypatch):
    from tpulab.grading import display

    shown = []
    cell = [1]
    monkeypatch.setattr(display, "_cell", lambda: cell[0])
    monkeypatch.setattr("IPython.display.display", lambda *things, **_: shown.append(things))
    verdict = sample()
    display._mark_shown(verdict)
    verdict._ipython_display_()
    assert shown == []
    cell[0] = 2
    verdict._ipython_display_()
    assert len(shown) == 1
    bundle = shown[0][0]._repr_mimebundle_()
    assert bundle["text/plain"] == str(verdict)
    assert bundle["text/html"] == verdict._repr_html_()
