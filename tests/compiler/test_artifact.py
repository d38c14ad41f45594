from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

from tests.compiler import kernels
from tests.compiler.kernels import spec
from tpulab.compiler import Artifact, CompileError, LoweringRefused, lower
from tpulab.errors import TpulabError, UnknownNameError
from tpulab.hardware import chips

SOURCE = """
import jax
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * FACTOR

def double(x):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


def load(text: str, name: str):
    scope: dict[str, object] = {}
    exec(compile(text, name, "exec"), scope)
    return scope["double"]


def test_equal_kernels_have_equal_keys_wherever_they_stand():
    text = SOURCE.replace("FACTOR", "2")
    here = lower(load(text, "/a/one.py"), spec(8, 128))
    there = lower(load("# a comment\n\n" + text, "/b/two.py"), spec(8, 128))
    assert here.key == there.key
    assert len(here.places) == len(there.places) > 0
    assert any(place.startswith("/a/one.py:6:") for place in here.places)
    assert any(place.startswith("/b/two.py:8:") for place in there.places)
    assert here.source == "/a/one.py:8"


def test_lowering_twice_gives_the_same_bytes():
    function = load(SOURCE.replace("FACTOR", "2"), "/a/one.py")
    first, second = (lower(function, spec(8, 128)) for _ in range(2))
    assert first.data == second.data


def test_different_kernels_shapes_and_types_have_different_keys():
    two = load(SOURCE.replace("FACTOR", "2"), "/a/one.py")
    three = load(SOURCE.replace("FACTOR", "3"), "/a/one.py")
    keys = {
        lower(two, spec(8, 128)).key,
        lower(three, spec(8, 128)).key,
        lower(two, spec(16, 128)).key,
        lower(two, spec(8, 128, dtype=jnp.int32)).key,
        lower(jax.jit(lambda x: two(x) + 1), spec(8, 128)).key,
    }
    assert len(keys) == 5


def test_a_changed_global_is_noticed():
    # jax.jit would hand out its old trace: the function object is the same
    scope: dict[str, object] = {"FACTOR": 2}
    exec(compile(SOURCE, "/a/one.py", "exec"), scope)
    before = lower(scope["double"], spec(8, 128))
    exec("def kernel(x_ref, o_ref):\n    o_ref[...] = x_ref[...] * 5\n", scope)
    assert lower(scope["double"], spec(8, 128)).key != before.key


@pytest.mark.parametrize("chip", [chip.name for chip in chips()])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (kernels.rank_one_blocks, (4096,)),
        (kernels.asks_for_chip, (8, 128)),
        (kernels.pipeline_inside, (1024, 128)),
    ],
)
def test_kernels_that_ask_for_the_chip(chip, function, shape):
    artifact = lower(function, spec(*shape), chip=chip)
    assert artifact.chip == chip
    assert artifact.kernels == 1
    assert artifact.devices == 1


def test_arguments_may_be_arrays_specs_trees_and_numbers():
    def function(tree, scale):
        return kernels.add_one(tree["x"]) * scale

    with_array = lower(function, {"x": np.zeros((8, 128), np.float32)}, 2.0)
    with_spec = lower(function, {"x": spec(8, 128)}, 2.0)
    assert with_array.key == with_spec.key


def test_partials_and_jitted_functions():
    def function(factor, x):
        return kernels.scaled(factor)(x)

    assert lower(partial(function, 2.0), spec(8, 128)).name == "partial"
    assert lower(jax.jit(kernels.add_one), spec(8, 128)).name == "add_one"


def test_bad_input_gets_a_sentence():
    with pytest.raises(TpulabError, match="not a function"):
        lower(3, spec(8, 128))
    with pytest.raises(TpulabError, match="not an array"):
        lower(kernels.add_one, object())
    with pytest.raises(UnknownNameError, match="v5x"):
        lower(kernels.add_one, spec(8, 128), chip="v5x")
    with pytest.raises(LoweringRefused) as caught:
        lower(kernels.add_one)
    assert "missing 1 required" in caught.value.message


def test_an_error_in_the_function_names_its_line():
    def broken(x):
        raise RuntimeError("the learner's own")

    with pytest.raises(LoweringRefused) as caught:
        lower(broken, spec(8, 128))
    line = broken.__code__.co_firstlineno + 1
    assert caught.value.where == f"{__file__}:{line}"
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert isinstance(caught.value, CompileError)
    assert caught.value.stage == "lower"
    assert not caught.value.explanation.matched


@pytest.mark.parametrize("types", [None, (AxisType.Auto,)])
def test_mesh_of_the_function_is_found(types):
    mesh = AbstractMesh((4,), ("x",), axis_types=types or (AxisType.Auto,))
    artifact = lower(kernels.ring_on(mesh), spec(32, 128))
    assert artifact.devices == 4
    assert artifact.mesh == (("x", 4, "Auto"),)


def test_mesh_of_the_context():
    artifact = lower(kernels.ring_on(None), spec(32, 128), mesh={"x": 4})
    assert artifact.devices == 4


def test_round_trip_through_bytes():
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    for artifact in (
        lower(kernels.add_one, spec(8, 128)),
        lower(kernels.ring_on(mesh), spec(32, 128)),
    ):
        again = Artifact.from_bytes(artifact.to_bytes())
        assert again == artifact
        assert again.places == artifact.places
    for damaged in (b"", b"nonsense" * 10, artifact.to_bytes()[:-1]):
        with pytest.raises(ValueError):
            Artifact.from_bytes(damaged)


def test_text_arguments():
    assert lower(kernels.add_one, "f32[8,128]").key == lower(kernels.add_one, spec(8, 128)).key
    with pytest.raises(TpulabError, match="as an argument"):
        lower(kernels.add_one, "f32[8")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_changed_global_is_noticed_in_jitted_functions(wrapped):
    """JAX keeps traces by function; a constant changed in another cell must not go unnoticed."""
    from jax.experimental import pallas as pl

    settings = {"factor": 2.0}

    def body(x_ref, out_ref):
        out_ref[...] = x_ref[...] * settings["factor"]

    @jax.jit
    def jitted(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    def outer(x):
        return jitted(x)

    function = outer if wrapped else jitted
    first = lower(function, spec(8, 128)).key
    assert lower(function, spec(8, 128)).key == first
    settings["factor"] = 3.0
    assert lower(function, spec(8, 128)).key != first


def test_importing_the_room_imports_no_jax_and_lowering_loads_no_compiler():
    code = """
import sys, tpulab.compiler
assert "jax" not in sys.modules and "numpy" not in sys.modules
from tpulab.compiler import lower
from tests.compiler.kernels import add_one, spec
lower(add_one, spec(8, 128))
assert "libtpu" not in open("/proc/self/maps").read(), "the compiler was loaded here"
"""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "TPULAB_HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
