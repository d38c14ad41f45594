"""Arguments as text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.errors import UsageError
from tpulab.kernel import parse_argument


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("bf16[4096,4096]", (4096, 4096), jnp.bfloat16),
        ("f32[]", (), jnp.float32),
        (" i8 [ 3 , 4 ] ", (3, 4), jnp.int8),
        ("float32[1_024]", (1024,), jnp.float32),
        ("s4[8]", (8,), jnp.int4),
        ("f8e4m3fn[2,2]", (2, 2), jnp.float8_e4m3fn),
        ("F8E5M2[2]", (2,), jnp.float8_e5m2),
        ("pred[5]", (5,), jnp.bool_),
        ("u32[0]", (0,), jnp.uint32),
    ],
)
def test_shapes(text: str, shape: tuple[int, ...], dtype: object) -> None:
    found = parse_argument(text)
    assert isinstance(found, jax.ShapeDtypeStruct)
    assert found.shape == shape
    assert found.dtype == jnp.dtype(dtype)


def test_values() -> None:
    found = parse_argument("i32[3]=[0,1,2]")
    assert found.dtype == np.int32
    assert found.tolist() == [0, 1, 2]
    assert parse_argument("f32[2,2]=[[1,2],[3,4.5]]").tolist() == [[1, 2], [3, 4.5]]
    assert parse_argument("f32[]=1.5") == np.float32(1.5)
    assert parse_argument("i8[2,3]=7").tolist() == [[7] * 3] * 2
    assert parse_argument("bf16[2]=[1,2]").dtype == jnp.bfloat16
    assert parse_argument("bool[2]=[true,false]").tolist() == [True, False]


@given(
    dtype=st.sampled_from(["f32", "bf16", "i32", "u8"]),
    shape=st.lists(st.integers(0, 9999), max_size=4),
)
def test_round_trip(dtype: str, shape: list[int]) -> None:
    found = parse_argument(f"{dtype}[{','.join(map(str, shape))}]")
    assert list(found.shape) == shape


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "can't read"),
        ("bf16", "can't read"),
        ("bf16[4", "can't read"),
        ("[4]", "can't read"),
        ("bf17[4]", "not a dtype"),
        ("f64[4]", "64-bit"),
        ("i64[4]", "64-bit"),
        ("float64[4]", "64-bit"),
        ("f32[4,]", "not a size"),
        ("f32[-4]", "not a size"),
        ("f32[4.0]", "not a size"),
        ("f32[٣]", "not a size"),
        ("i32[3]=[1,2]", "shape [2], not [3]"),
        ("i32[2]=[1,x]", "can't read the values"),
        ("i32[2]=", "can't read the values"),
        ('i32[1]=["a"]', "can't read the values"),
        ("i32[2]=[[1],[2,3]]", "can't read the values"),
        ("i8[1]=[300]", "doesn't fit"),
        ("u8[1]=[-1]", "doesn't fit"),
    ],
)
def test_refusals(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_argument(text)
    assert word in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_gives_an_argument_or_a_usage_error(text: str) -> None:
    try:
        parse_argument(text)
    except UsageError:
        pass


def test_close_dtype_is_offered() -> None:
    with pytest.raises(UsageError) as caught:
        parse_argument("bf6[4]")
    assert caught.value.hint == "did you mean bf16?"
