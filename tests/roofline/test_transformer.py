"""Transformer arithmetic against counting matrices one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpulab.errors import TpulabError
from tpulab.roofline import Transformer, decode_step
from tpulab.roofline.transformer import LLAMA_3_70B, training_seconds

MODELS = st.builds(
    lambda layers, d_model, d_ff, kv, group, head_dim, vocabulary, gated, tied, experts: (
        Transformer(
            layers, d_model, d_ff, kv * group, kv, head_dim, vocabulary, gated, tied, experts, 1
        )
    ),
    st.integers(1, 8), st.integers(1, 64), st.integers(1, 64), st.integers(1, 4),
    st.integers(1, 4), st.integers(1, 16), st.integers(1, 99), st.booleans(), st.booleans(),
    st.integers(1, 4),
)  # fmt: skip


def _matrices(model: Transformer, experts: int) -> list[tuple[int, int]]:
    """Shapes of all matrices with `experts` of the MLP copies."""
    queries = model.heads * model.head_dim
    keys = model.kv_heads * model.head_dim
    layer = [(model.d_model, queries), (model.d_model, keys), (model.d_model, keys)]
    layer.append((queries, model.d_model))
    mlp = [(model.d_model, model.d_ff), (model.d_ff, model.d_model)]
    if model.gated:
        mlp.append((model.d_model, model.d_ff))
    ends = [(model.vocabulary, model.d_model)] * (1 if model.tied_embeddings else 2)
    return model.layers * (layer + experts * mlp) + ends


@given(MODELS)
def test_parameters_are_the_matrices(model: Transformer) -> None:
    every = sum(a * b for a, b in _matrices(model, model.experts))
    assert model.parameters == every
    active = sum(a * b for a, b in _matrices(model, model.experts_per_token))
    assert model.active_parameters == active
    assert model.forward_flops_per_token() == 2 * active
    assert model.training_flops_per_token() == 6 * active


@given(MODELS, st.integers(1, 1000))
def test_attention_counted_by_shapes(model: Transformer, context: int) -> None:
    per_head = 2 * context * model.head_dim + 2 * model.head_dim * context
    flops = model.layers * model.heads * per_head
    assert model.attention_flops_per_token(context) == flops
    assert model.attention_flops_per_token(context, causal=True) == flops / 2
    length = model.attention_equals_projection_length
    assert model.attention_flops_per_token(length) == pytest.approx(
        model.projection_flops_per_token
    )
    assert model.kv_bytes_per_token("int8") * 2 == model.kv_bytes_per_token("bf16")


def test_decode_step_limits() -> None:
    rates = {"flops_per_second": 197e12, "bytes_per_second": 819e9}
    assert decode_step(70e9, 1, 1, 160e3, **rates).limiting == "weights"
    assert decode_step(70e9, 512, 1, 160e3, **rates).limiting == "compute"
    assert decode_step(70e9, 64, 32768, 160e3, **rates).limiting == "KV cache"
    step = decode_step(1e9, 1, 0, 0, weight_dtype="int8", **rates)
    assert step.seconds == pytest.approx(1e9 / 819e9)


def test_training_time_scales() -> None:
    assert training_seconds(1e9, 6e9, 36e18) == 1.0
    assert training_seconds(1e9, 6e9, 36e18, utilisation=0.5) == 2.0


def test_summary_names_the_dtype() -> None:
    text = LLAMA_3_70B.summary("int8")
    assert "70.55 G" in text
    assert "163.8 kB" in text


def test_impossible_models() -> None:
    with pytest.raises(TpulabError, match="share"):
        Transformer(1, 8, 8, 6, 4, 8, 8)
    with pytest.raises(TpulabError, match="experts"):
        Transformer(1, 8, 8, 4, 4, 8, 8, experts=2, experts_per_token=3)
    with pytest.raises(TpulabError, match="positive"):
        Transformer(0, 8, 8, 4, 4, 8, 8)
