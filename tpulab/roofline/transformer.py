"""Transformer arithmetic: parameters, FLOP, KV bytes, step times, when communication takes over.

D is `d_model`, F `d_ff`, N heads, K key-value heads, H `head_dim`, V vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpulab.errors import TpulabError
from tpulab.hardware import bits

SECONDS_PER_YEAR = 365 * 24 * 3600


@dataclass(frozen=True)
class Transformer:
    """A decoder-only transformer.

    Attributes:
        gated: three MLP matrices (gate, up, down) and not two.
        tied_embeddings: input and output embedding are one matrix.
        experts, experts_per_token: MLP copies, and how many a token goes through.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    gated: bool = True
    tied_embeddings: bool = False
    experts: int = 1
    experts_per_token: int = 1

    def __post_init__(self) -> None:
        if min(self.layers, self.d_model, self.d_ff, self.heads, self.kv_heads) < 1:
            raise TpulabError("a transformer's sizes must be positive")
        if self.heads % self.kv_heads:
            raise TpulabError(
                f"{self.heads} query heads cannot share {self.kv_heads} key-value heads equally"
            )
        if not 1 <= self.experts_per_token <= self.experts:
            raise TpulabError(
                f"a token cannot go through {self.experts_per_token} of {self.experts} experts"
            )

    @property
    def mlp_parameters(self) -> int:
        """Of all layers and experts: 3 D F (2 D F without gate) each; router not counted."""
        matrices = 3 if self.gated else 2
        return self.layers * self.experts * matrices * self.d_model * self.d_ff

    @property
    def attention_parameters(self) -> int:
        """Of all layers: queries and output 2 D N H, keys and values 2 D K H."""
        return self.layers * 2 * self.d_model * self.head_dim * (self.heads + self.kv_heads)

    @property
    def embedding_parameters(self) -> int:
        """V D, twice unless tied."""
        return self.vocabulary * self.d_model * (1 if self.tied_embeddings else 2)

    @property
    def parameters(self) -> int:
        """All matrices; norms and biases are left out (below 0.1 %)."""
        return self.mlp_parameters + self.attention_parameters + self.embedding_parameters

    @property
    def active_parameters(self) -> int:
        """Those a token is multiplied with: all, but only its own experts."""
        unused = self.mlp_parameters * (self.experts - self.experts_per_token) // self.experts
        return self.parameters - unused

    @property
    def attention_share(self) -> float:
        """Attention parameters / parameters of the layers."""
        return self.attention_parameters / (self.attention_parameters + self.mlp_parameters)

    @property
    def projection_flops_per_token(self) -> float:
        """Forward FLOP of the query, key, value and output matrices: 2 per parameter."""
        return 2.0 * self.attention_parameters

    def attention_flops_per_token(self, context: float, *, causal: bool = False) -> float:
        """Forward FLOP of scores and weighted sums: 4 L context N H, half of it if causal."""
        flops = 4.0 * self.layers * context * self.heads * self.head_dim
        return flops / 2 if causal else flops

    def forward_flops_per_token(self, context: float = 0, *, causal: bool = False) -> float:
        """2 FLOP per active parameter, plus attention over `context` tokens."""
        return 2.0 * self.active_parameters + self.attention_flops_per_token(context, causal=causal)

    def training_flops_per_token(self, context: float = 0, *, causal: bool = False) -> float:
        """Three times the forward pass: the backward pass costs two."""
        return 3.0 * self.forward_flops_per_token(context, causal=causal)

    @property
    def attention_equals_projection_length(self) -> float:
        """Context at which attention FLOP reach those of the four projection matrices (no mask)."""
        return self.projection_flops_per_token / self.attention_flops_per_token(1)

    def kv_bytes_per_token(self, dtype: Any = "bfloat16") -> float:
        """Keys and values of all layers: 2 L K H elements."""
        return 2.0 * self.layers * self.kv_heads * self.head_dim * bits(dtype) / 8

    def weight_bytes(self, dtype: Any = "bfloat16") -> float:
        """Bytes of all parameters."""
        return self.parameters * bits(dtype) / 8

    def summary(self, dtype: Any = "bfloat16") -> str:
        """Parameters, FLOP and bytes as text."""
        lines = [
            f"parameters             {self.parameters / 1e9:.4g} G "
            f"(active {self.active_parameters / 1e9:.4g} G)",
            f"attention share        {self.attention_share:.1%} of layers",
            f"forward FLOP per token {self.forward_flops_per_token() / 1e9:.4g} G + "
            f"{self.attention_flops_per_token(1) / 1e6:.4g} M per token of context",
            f"weights in {dtype}    {self.weight_bytes(dtype) / 1e9:.4g} GB",
            f"KV cache in {dtype}   {self.kv_bytes_per_token(dtype) / 1e3:.4g} kB per token",
        ]
        return "\n".join(lines)


LLAMA_3_70B = Transformer(
    layers=80, d_model=8192, d_ff=28672, heads=64, kv_heads=8, head_dim=128, vocabulary=128256
)


def training_seconds(
    parameters: float,
    tokens: float,
    flops_per_second: float,
    *,
    utilisation: float = 1.0,
) -> float:
    """Time to train: 6 FLOP per parameter and token at a fraction of the given peak."""
    return 6.0 * parameters * tokens / (flops_per_second * utilisation)


def prefill_seconds(
    parameters: float, tokens: float, flops_per_second: float, *, utilisation: float = 1.0
) -> float:
    """Time of a forward pass over `tokens`: 2 FLOP per parameter and token."""
    return 2.0 * parameters * tokens / (flops_per_second * utilisation)


@dataclass(frozen=True)
class DecodeStep:
    """One token for each sequence of a batch.

    Attributes:
        weight_seconds: all weights through HBM. flops_seconds: matmuls of the batch.
        kv_seconds: all KV caches through HBM; attention is bound by it in decoding.
    """

    weight_seconds: float
    flops_seconds: float
    kv_seconds: float

    @property
    def seconds(self) -> float:
        """Matmul layers at the slower of weights and FLOP, then attention."""
        return max(self.weight_seconds, self.flops_seconds) + self.kv_seconds

    @property
    def limiting(self) -> str:
        """``"KV cache"``, ``"weights"`` or ``"compute"``."""
        if self.kv_seconds >= max(self.weight_seconds, self.flops_seconds):
            return "KV cache"
        return "weights" if self.weight_seconds >= self.flops_seconds else "compute"


def decode_step(
    parameters: float,
    batch: int,
    context: float,
    kv_bytes_per_token: float,
    *,
    flops_per_second: float,
    bytes_per_second: float,
    weight_dtype: Any = "bfloat16",
) -> DecodeStep:
    """Least time of a decoding step on chips whose rates (all together) are given."""
    return DecodeStep(
        weight_seconds=parameters * bits(weight_dtype) / 8 / bytes_per_second,
        flops_seconds=2.0 * parameters * batch / flops_per_second,
        kv_seconds=batch * context * kv_bytes_per_token / bytes_per_second,
    )


def chips_to_hold(total_bytes: float, bytes_per_chip: float) -> int:
    """Fewest chips whose HBM holds so many bytes."""
    return int(-(-total_bytes // bytes_per_chip))


def tokens_per_second_per_chip(batch: int, step_seconds: float, chips: int) -> float:
    """Throughput of decoding."""
    return batch / step_seconds / chips


def queries_per_second_per_chip(
    batch: int, step_seconds: float, tokens_per_query: float, chips: int
) -> float:
    """Finished queries: a query takes `tokens_per_query` steps of the whole batch."""
    return tokens_per_second_per_chip(batch, step_seconds, chips) / tokens_per_query


def evicted_tokens_per_step(batch: int, prompt_length: int, generated_length: int) -> float:
    """KV entries freed per decoding step in steady state.

    Each sequence lives `generated_length` steps and then frees prompt and generated tokens.
    """
    return batch * (prompt_length + generated_length) / generated_length


def ici_intensity(flops_per_second: float, axis_bytes_per_second: float) -> float:
    """FLOP per byte over one ICI axis: the tokens per chip at which FSDP over it is hidden.

    Per layer, FSDP gathers weights of 2 bytes per parameter while the batch does 2 FLOP per
    parameter and token: tokens per chip > FLOP/s / (axis bytes/s).
    """
    return flops_per_second / axis_bytes_per_second


def fsdp_minimum_tokens_per_chip(intensity: float, axes: int) -> float:
    """Least batch per chip, in tokens, for FSDP over `axes` mesh axes to be bound by compute."""
    return intensity / axes


def mixed_minimum_tokens_per_chip(
    intensity: float, d_ff: int, *, fsdp_axes: int = 2, tensor_axes: int = 1
) -> float:
    """Least batch per chip when FSDP and tensor parallelism are combined at the best ratio.

    With X chips of FSDP and Y of tensor parallelism the two communications take, per layer,
    4 D F / (Y W Mx) and 4 B D / (X W My); their sum is least when they are equal, and is then
    below the matmul time when B / chips > 4 intensity^2 / (Mx My F).
    """
    return 4.0 * intensity**2 / (fsdp_axes * tensor_axes * d_ff)


def tensor_parallel_limit(d_ff: int, intensity: float, *, axes: int = 1) -> float:
    """Ways of tensor parallelism from which the MLP is bound by ICI: F axes / intensity."""
    return d_ff * axes / intensity
