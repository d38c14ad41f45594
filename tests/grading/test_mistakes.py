"""What beginners write: each slip is named, with its line, figures and a remedy that is true."""

from __future__ import annotations

import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tpulab.errors import TpulabError, UnknownNameError
from tpulab.grading import check, mistakes, places
from tpulab.grading.problems import from_error
from tpulab.grading.sandbox import Limits

KERNEL = "def kernel(x_ref, y_ref, out_ref):\n    {body}\n\n\n"
ADD = (
    "def add(x, y):\n"
    "    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)\n"
)
BLOCKS = """def add_blocks(x, y):
    rows = {rows}

    def kernel(x_ref, y_ref, out_ref):
        out_ref[...] = x_ref[...] + y_ref[...]

    block = pl.BlockSpec({shape}, {index_map})
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, {dtype}),
        grid={grid},
        in_specs={specs},
        out_specs=block,
    )(x, y)
"""
INITIALISE = """@pl.when(pl.program_id(0) == 0)
        def _(): out_ref[...] = jnp.zeros_like(out_ref)"""
COLUMNS = """def column_sum(x):
    rows = 512

    def kernel(x_ref, out_ref):
        {first}
        row = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0) + pl.program_id(0) * rows
        values = {values}
        out_ref[...] {sign} jnp.sum(values, axis=0, keepdims=True)

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(x.shape[0], rows),),
        in_specs=[pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, x.shape[1]), lambda i: {out}),
        out_shape=jax.ShapeDtypeStruct((1, x.shape[1]), x.dtype),
    )(x)
"""


def blocks(**changes):
    parts = {
        "rows": "512",
        "shape": "(rows, x.shape[1])",
        "index_map": "lambda i: (i, 0)",
        "dtype": "x.dtype",
        "grid": "(pl.cdiv(x.shape[0], rows),)",
        "specs": "[block, block]",
    }
    return BLOCKS.format(**parts | changes)


def columns(**changes):
    parts = {
        "first": INITIALISE,
        "values": "jnp.where(row < x.shape[0], x_ref[...], 0)",
        "sign": "+=",
        "out": "(0, 0)",
    }
    return COLUMNS.format(**parts | changes)


_cells = iter(range(1, 10_000))


def cell(source, name):
    """A function as a notebook's cell defines it, with its source where tracebacks look."""
    file = f"/tmp/ipykernel_4711/{next(_cells)}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    space = {"__name__": "__main__", "jax": jax, "jnp": jnp, "pl": pl, "pltpu": pltpu, "np": np}
    exec(compile(source, file, "exec"), space)
    return space[name]


def verdict_on(exercise, source, until="correct", **options):
    function = cell(source, exercise.partition(".")[2])
    return check(exercise, function, quiet=True, until=until, cache=False, record=False, **options)


TRACED = [
    ("return x_ref[...] + y_ref[...]", "returns a value", "out_ref[...] = …", 2),
    ("out_ref = x_ref + y_ref", "as if it were an array", "x_ref[...]", 2),
    ("out_ref[...] = jnp.add(x_ref, y_ref)", "as if it were an array", "x_ref[...]", 2),
    ("out_ref = x_ref[...] + y_ref[...]", "`out_ref = …` is no store", "out_ref[...] = …", 2),
    ("out_ref[...] = np.add(x_ref[...], y_ref[...])", "NumPy", "jnp in place of np", 2),
    ("if x_ref[0, 0] > 0: out_ref[...] = x_ref[...]", "Python if", "pl.when", 2),
    ("out_ref[...] = x_ref[0, :]", "shape (1024,)", "(256, 1024)", 2),
    ("out_ref[...] = x_ref[...].astype(jnp.bfloat16)", "bfloat16 value", "float32", 2),
    (
        "out_ref[...] = jnp.dot(x_ref[...].astype('bfloat16'), jnp.ones((1024, 1024), 'bfloat16'))",
        "a bfloat16 value is stored into a float32 Ref",
        "preferred_element_type=jnp.float32",
        2,
    ),
    ("out_ref[...] = x_ref[...] + z_ref[...]", "z_ref is not known", "spelling", 2),
]


@pytest.mark.parametrize(("body", "says", "remedy", "line"), TRACED)
def test_slips_in_a_kernel(body, says, remedy, line):
    verdict = verdict_on("first_kernel.add", KERNEL.format(body=body) + ADD, "legal")
    assert says in str(verdict), str(verdict)
    assert remedy in verdict.failed.hint, str(verdict)
    assert verdict.failed.where.endswith(f".py:{line}"), str(verdict)
    assert f"the cell, line {line}: {body.splitlines()[0]}"[:60] in str(verdict)
    assert "/tmp/" not in str(verdict)
    assert "/tmp/" not in verdict._repr_html_()


@pytest.mark.parametrize(
    ("source", "says", "line"),
    [
        (
            "def kernel(x_ref, out_ref):\n    out_ref[...] = x_ref[...]\n\n\n" + ADD,
            "takes 2 Refs",
            1,
        ),
        ("def kernel(a, b, c, d):\n    c[...] = a[...] + b[...]\n\n\n" + ADD, "no Ref: 'd'", 1),
        (
            "def kernel(x_ref, y_ref, out_ref):\n    out_ref[...] = x_ref[...]\n\n\n"
            "def add(x, y):\n    return pl.pallas_call(kernel, out_shape=x)\n",
            "returns a function",
            6,
        ),
        (
            "def kernel(x_ref, y_ref, out_ref):\n    out_ref[...] = x_ref[...]\n\n\n"
            "def add(x, y):\n    return pl.pallas_call(kernel, out_shape=x.shape)(x, y)\n",
            "out_shape is not a shape together with a dtype",
            6,
        ),
    ],
)
def test_slips_in_a_call(source, says, line):
    verdict = verdict_on("first_kernel.add", source, "legal")
    assert says in str(verdict), str(verdict)
    assert verdict.failed.where.endswith(f".py:{line}"), str(verdict)


@pytest.mark.parametrize(
    ("changes", "says", "remedy", "line"),
    [
        ({"index_map": "lambda i: (i * rows, 0)"}, "asks for block 512", "factor 512", 7),
        ({"index_map": "lambda i: (0, i)"}, "along dimension 1", "indices are swapped", 7),
        ({"index_map": "lambda i: (i + 1, 0)"}, "its last is 15", "pl.cdiv(8192, 512) = 16", 7),
        ({"index_map": "lambda i: (i - 1, 0)"}, "asks for block -1", "subtracted", 7),
        ({"index_map": "lambda i, j: (i, j)"}, "takes 2 indices", "lambda i: … for a grid of 1", 7),
        (
            {"index_map": "lambda: (0, 0)"},
            "takes 0 indices, and the grid has 1 axis",
            "lambda i",
            7,
        ),
        (
            {"grid": "(pl.cdiv(x.shape[0], rows), 1)"},
            "takes 1 index, and the grid has 2 axes",
            "lambda i, j: …",
            7,
        ),
        ({"index_map": "lambda i: i"}, "returns 1 number", "(i, 0)", 7),
        ({"shape": "(rows,)"}, "is (512,), and the array is (8192, 1024)", "every dimension", 7),
        ({"grid": "(x.shape[0] / rows,)"}, "the grid is (16.0,)", "pl.cdiv", 11),
        ({"specs": "[block]"}, "in_specs has 1 BlockSpec, and the call is given 2", "list", 8),
    ],
)
def test_slips_in_blocks(changes, says, remedy, line):
    verdict = verdict_on("first_kernel.add_blocks", blocks(**changes), "legal")
    assert says in str(verdict), str(verdict)
    assert remedy in verdict.failed.hint, str(verdict)
    assert verdict.failed.where.endswith(f".py:{line}"), str(verdict)


@pytest.mark.parametrize(
    ("changes", "step", "says", "line"),
    [
        ({"first": "pass"}, "correct", "not initialised", 8),
        ({"values": "x_ref[...]"}, "correct", "ragged edge is read as data", 9),
        ({"sign": "="}, "correct", "overwrites what the one before it stored", 9),
        ({"out": "(i, 0)"}, "legal", "return 0 along dimension 0", 15),
    ],
)
def test_the_line_of_a_wrong_sum(changes, step, says, line):
    verdict = verdict_on("first_kernel.column_sum", columns(**changes))
    assert verdict.failed.name == step
    assert says in str(verdict), str(verdict)
    assert verdict.failed.where.endswith(f".py:{line}"), str(verdict)


def test_a_grid_that_ends_early_points_at_the_grid():
    verdict = verdict_on("first_kernel.add_blocks", blocks(grid="(x.shape[0] // rows,)"))
    assert "never written" in str(verdict)
    assert "the cell, line 11: grid=" in str(verdict)


@pytest.mark.needs_libtpu
def test_too_much_vmem_in_figures():
    """Three float32 blocks of 1024 × 1024 are 4 MiB each, held twice: 24 MiB."""
    verdict = verdict_on("first_kernel.add_blocks", blocks(rows="1024"), "compiles", chips="v5e")
    assert verdict.failed.name == "compiles"
    text = " ".join(str(verdict).split())
    assert "takes 24 MiB of VMEM, and may take 16 MiB" in text
    assert "x_ref 4 MiB × 2 buffers" in text
    assert "Scoped allocation with size 24.00M and limit 16.00M" in text
    assert "vmem_limit_bytes" in verdict.failed.hint
    assert "the core has 128 MiB" in verdict.failed.hint


@pytest.mark.needs_libtpu
def test_a_pass_below_the_top_looks_like_one():
    verdict = verdict_on("first_kernel.add_blocks", blocks(rows="8"), "fast")
    assert verdict.passed
    assert not verdict.at_top
    assert (verdict.rung_number, verdict.rung_count) == (1, 3)
    assert "passed, not yet at the top: rung 1 of 3, it streams; next: half" in verdict.headline
    text = str(verdict)
    assert "◐ fast" in text
    assert "✓ fast" not in text
    assert "try use larger blocks" in text
    assert " us;" not in text
    assert " µs;" in text
    page = verdict._repr_html_()
    assert "◐ passed, not at the top" in page
    assert "#8a5a00" in page
    # and from the cache it is the same
    again = type(verdict).from_dict(verdict.to_dict(), verdict.title)
    assert str(again) == text
    # symptoms only: figures, and neither cause nor advice
    symptoms = verdict.undiagnosed
    assert "larger blocks" not in str(symptoms)
    assert "35 % of the bound" in str(symptoms)
    assert "latency" not in symptoms._repr_html_()


def test_symptoms_only(capsys):
    function = cell(columns(first="pass"), "column_sum")
    verdict = check(
        "first_kernel.column_sum",
        function,
        until="correct",
        cache=False,
        record=False,
        diagnose=False,
    )
    shown = capsys.readouterr().out
    page = verdict._repr_html_().replace("\N{NO-BREAK SPACE}", " ")
    for text in (shown, str(verdict), page):
        assert "initialised" not in text
        assert "pl.when" not in text
        assert "the cell, line" not in text
        assert "wrong on 5 of 5 inputs" in text
        assert "256 of 256 elements differ" in text
    assert verdict.failed.name == "correct"


@pytest.mark.needs_libtpu
def test_symptoms_of_a_refused_program():
    verdict = verdict_on(
        "first_kernel.add_blocks", blocks(rows="1024"), "compiles", chips="v5e", diagnose=False
    )
    text = str(verdict)
    assert "v5e: the compiler refuses it" in text
    assert "size 24.00M and limit 16.00M" in text
    assert "smaller blocks" not in text
    assert "may take" not in text


def test_a_race_names_lines_of_the_cell_and_as_a_symptom_none():
    from types import SimpleNamespace

    from tpulab.grading.safe import _unsafe

    file = "/tmp/ipykernel_7/12.py"
    message = (
        f"race on a VMEM buffer: the write at {file}:26 and the read at {file}:27 are not ordered "
        f"by a wait ({file}:26)"
    )
    inquiry = SimpleNamespace(warning=lambda name: None)
    step = _unsafe(inquiry, {"messages": [message]}, "f32[8]")
    assert "the write at the cell, line 26 and the read at the cell, line 27" in step.summary
    assert step.symptom.endswith("the write and the read are not ordered by a wait")
    assert "ipykernel" not in step.summary + step.symptom


def test_a_grid_index_inside_a_loop():
    body = (
        "jax.lax.fori_loop(0, 2, lambda n, c: c + pl.program_id(0), 0)\n"
        "    @pl.when(pl.program_id(0) >= 0)\n"
        "    def _():\n        out_ref[...] = x_ref[...] + y_ref[...] + 0 * jax.lax.fori_loop("
        "0, 2, lambda n, c: c + pl.program_id(0), 0).astype(jnp.float32)"
    )
    verdict = verdict_on(
        "first_kernel.add",
        KERNEL.format(body=body) + ADD.replace("out_shape", "grid=(1,), out_shape"),
    )
    assert "pl.program_id is asked for inside a loop" in str(verdict), str(verdict)
    assert "i = pl.program_id(0)" in verdict.failed.hint


# ---- the catalogue


def test_every_sentence_can_be_written():
    words = mistakes._Words({"kernel": "k"})
    for mistake in mistakes.catalogue():
        for sentence in (mistake.what, mistake.why, mistake.remedy):
            assert "{" not in sentence.format_map(words), mistake.key
        assert mistake.at in ("", "return", "grid", "kernel"), mistake.key
        assert mistake.during in ("", "kernel", "index map"), mistake.key


def test_operands_have_ordinals():
    assert mistakes.operand("args[1]") == "the second input"
    assert mistakes.operand("outputs[0]") == "the first result"
    assert mistakes.operand("something") == "an operand"


def test_an_unknown_exception_keeps_its_own_words_without_paths():
    error = {
        "type": "ValueError",
        "message": "bad thing at /tmp/ipykernel_12/345.py:6 and /home/me/work/mine.py",
        "frames": [],
    }
    problem = from_error(error, "it runs", Limits())
    assert problem.summary == "ValueError while it runs: bad thing at the cell, line 6 and mine.py"
    assert problem.hint == "call your function in a cell of its own"


def test_places():
    source = (
        "def f(x_ref, o_ref):\n    o_ref[...] = 0\n    o_ref[...] += x_ref[...]\n    return 1\n"
    )
    linecache.cache["/x/f.py"] = (len(source), None, source.splitlines(True), "/x/f.py")
    assert places.return_with_value("/x/f.py:1") == "/x/f.py:4"
    assert places.addition("/x/f.py:1") == "/x/f.py:3"
    assert places.store("/x/f.py:1", "o_ref") == "/x/f.py:3"
    assert places.rebinding("/x/f.py:1", "o_ref") == ""
    assert places.definition("/x/f.py:4", "f") == "/x/f.py:1"
    # what cannot be found stays where it was
    for finder in (places.return_with_value, places.addition, places.store):
        assert finder("/x/missing.py:3") == "/x/missing.py:3"
        assert finder("") == ""
    assert places.readable("/tmp/ipykernel_1/2.py:3") == "the cell, line 3"
    assert places.without_paths("at <ipython-input-3-abc>:7") == "at the cell, line 7"


def test_an_error_in_a_notebook_is_its_sentence():
    lines = TpulabError("it is so", why="because", hint="do this")._render_traceback_()
    assert lines == ["it is so", "  why:   because", "  try:   do this"]
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shown = []
    shell._showtraceback = lambda kind, value, lines: shown.extend(lines)
    try:
        raise UnknownNameError("exercise", "first_kernel.ad", ["first_kernel.add"])
    except UnknownNameError:
        shell.showtraceback()
    assert len(shown) == 2
    assert "did you mean first_kernel.add?" in shown[1]


BIAS = """def broadcast_add(x, bias):
    m, n = x.shape
    block = pl.BlockSpec((512, 1024), lambda i, j: (i, j))

    def kernel(x_ref, bias_ref, out_ref):
        out_ref[...] = x_ref[...] + bias_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(m, 512), pl.cdiv(n, 1024)),
        in_specs=[block, pl.BlockSpec((1, 1024), lambda i, j: (0, i))],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x, bias)
"""
TRANSPOSE = """def transpose(x):
    rows, cols = x.shape

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...].T

    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, 256), pl.cdiv(cols, 256)),
        in_specs=[pl.BlockSpec((256, 256), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((256, 256), lambda i, j: (j, i)),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x)
"""


def test_an_index_that_follows_the_wrong_axis_is_not_blamed_on_the_grid():
    verdict = verdict_on("grids.broadcast_add", BIAS, "legal")
    assert "it follows grid axis 0" in verdict.failed.detail, str(verdict)
    assert "does bias_ref follow another axis of the grid? Axis 1" in verdict.failed.hint
    assert "pl.cdiv" not in verdict.failed.hint


def test_a_wrong_out_shape_is_said_before_its_index_map():
    verdict = verdict_on("grids.transpose", TRANSPOSE, "legal")
    assert "wrong output shape" in verdict.failed.summary, str(verdict)
    assert "out_shape" in verdict.failed.hint
    assert verdict.failed.where.endswith(".py:12")


def test_an_output_map_that_stands_still_is_not_blamed_on_the_grid():
    source = TRANSPOSE.replace("lambda i, j: (j, i)", "lambda i, j: (0, 0)").replace(
        "jax.ShapeDtypeStruct(x.shape, x.dtype)", "jax.ShapeDtypeStruct((cols, rows), x.dtype)"
    )
    verdict = verdict_on("grids.transpose", source)
    assert "every step of the grid writes the same block" in verdict.failed.summary, str(verdict)
    assert "index map follow the grid" in verdict.failed.hint
    assert verdict.failed.where.endswith(".py:11")
