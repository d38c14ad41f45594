"""Lab 20: attention that never writes its scores to memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tpulab.exercises.attention_mistakes import seen_before
from tpulab.exercises.attention_suspects import (
    CAUSAL,
    HEADS,
    OVER_QUERIES,
    PADDING_COUNTS,
    online_suspects,
    softmax_suspects,
)
from tpulab.exercises.model import (
    ArgumentSpec,
    Case,
    Exercise,
    KnownWrong,
    Rung,
    Suspect,
    Tolerance,
    Work,
)

_WRONG = "tpulab.exercises.known_wrong.flash_attention"
_SOLUTION = "20_flash_attention.py"

Specs = tuple[ArgumentSpec, ...]


def _one_head(queries: int, keys: int, depth: int) -> Specs:
    key = ArgumentSpec((keys, depth), "bfloat16")
    return ArgumentSpec((queries, depth), "bfloat16"), key, key


def _heads(
    heads: int, queries: int, depth: int, *, keys: int | None = None, key_heads: int | None = None
) -> Specs:
    key = ArgumentSpec((key_heads or heads, keys or queries, depth), "bfloat16")
    return ArgumentSpec((heads, queries, depth), "bfloat16"), key, key


def _wrong(function: str, step: str, mistake: str, *says: str) -> KnownWrong:
    return KnownWrong(f"{_WRONG}:{function}", step, mistake, says)


def _weights(query: np.ndarray, key: np.ndarray, causal: bool) -> np.ndarray:
    """Softmax of the scores, float64 [..., queries, keys]."""
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    if causal:
        row, column = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
        scores = np.where(seen_before(row, column), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _shared(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Keys or values with one head for each query head."""
    return key if key.ndim == 2 else np.repeat(key, query.shape[0] // key.shape[0], axis=0)


def _oracle(causal: bool) -> Callable[..., np.ndarray]:
    def oracle(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        weights = _weights(query, _shared(query, key), causal)
        return np.asarray(weights @ _shared(query, value))

    return oracle


def _magnitude(causal: bool) -> Callable[..., np.ndarray]:
    """Root of the sum of the squared terms of each element.

    The matrix unit takes the weights in bfloat16. Their rounding errors are independent of each
    other, so the error of a sum grows like this root and not like the sum of absolute terms.
    """

    def magnitude(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        weights = _weights(query, _shared(query, key), causal)
        return np.asarray(np.sqrt(np.square(weights) @ np.square(_shared(query, value))))

    return magnitude


def _work(causal: bool) -> Callable[[Specs], Work]:
    def work(specs: Specs) -> Work:
        query, key, value = specs
        depth, keys = query.shape[-1], key.shape[-2]
        rows = math.prod(query.shape[:-1])
        scores = rows * (keys + 1) // 2 if causal else rows * keys
        bytes_ = 2 * query.size_bytes + key.size_bytes + value.size_bytes
        return Work(4 * scores * depth, 0, bytes_, "bfloat16")

    return work


def _attention(
    function: str,
    title: str,
    statement: str,
    docstring: str,
    *,
    causal: bool = False,
    cases: tuple[Case, ...],
    faithful: Specs,
    speed: Specs,
    rungs: tuple[Rung, ...],
    hints: tuple[str, ...],
    known_wrong: tuple[KnownWrong, ...],
    suspects: tuple[Suspect, ...],
) -> Exercise:
    """An attention; all of them share the oracle and the tolerance.

    The tolerance allows weights that are rounded to bfloat16 for the second product, as production
    kernels do (a relative error of 2^-8 each at most, 1.5 × 2^-7 of the root of their squares
    covers the largest of some hundred thousand elements), and one rounding of the result.
    """
    return Exercise(
        name=f"flash_attention.{function}",
        title=title,
        statement=statement,
        signature=(
            f"def {function}(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:\n"
            f'    """{docstring}"""\n'
        ),
        solution=f"{_SOLUTION}:{function}",
        oracle=_oracle(causal),
        magnitude=_magnitude(causal),
        depth=lambda specs: 1,
        result=lambda specs: ArgumentSpec(specs[0].shape, "bfloat16"),
        work=_work(causal),
        cases=cases,
        faithful=faithful,
        speed=speed,
        rungs=rungs,
        hints=hints,
        tolerance=Tolerance(accumulator="bfloat16", rounding=1.0, growth=1.5),
        known_wrong=known_wrong,
        suspects=suspects,
    )


ROWS = _attention(
    "rows",
    "Whole rows of scores",
    "One head: each query is compared with all keys, the scores are scaled by 1/sqrt(head_dim), "
    "their softmax weighs the values. Keys and values fit into VMEM whole; let a one-dimensional "
    "grid walk down the queries. Scores, maximum and sum are `float32`; the weights may be "
    "`bfloat16` for the second product. Subtract the maximum of each row first. The last block of "
    "queries may stick out.",
    "softmax(query @ keyᵀ / sqrt(d)) @ value: bfloat16[m, d], 2 × bfloat16[n, d] -> bfloat16[m, d]",
    cases=(
        Case(
            "two blocks of queries",
            _one_head(512, 384, 128),
            ("random", "ones", "large", "opposed"),
        ),
        Case(
            "a small head, many keys, a ragged block of queries",
            _one_head(700, 2048, 64),
            ("random", "rising"),
            ragged=True,
        ),
    ),
    faithful=_one_head(1024, 384, 64),
    speed=_one_head(4096, 4096, 128),
    rungs=(
        Rung("it runs", 0.0),
        Rung("a third of the bound", 0.33),
        Rung("half of the bound", 0.5),
    ),
    hints=(
        "The kernel has four lines: scores, weights, the sum of the weights, the product.",
        "query · keyᵀ without a transpose: `jax.lax.dot_general(query_ref[...], key_ref[...], "
        "(((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)` contracts the last "
        "dimension of both.",
        "`weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))`; divide the *result* by "
        "`weights.sum(axis=1, keepdims=True)`: it has fewer columns than the weights.",
        "128 or 256 queries a block: float32 scores of 256 × 4096 are 4 MiB.",
    ),
    known_wrong=(
        _wrong("rows_not_shifted", "correct", "maximum not subtracted", "overflow"),
        _wrong("rows_not_scaled", "correct", "scale forgotten", "not scaled"),
        _wrong("rows_scaled_twice", "correct", "scale applied twice", "scaled twice"),
        _wrong("rows_over_queries", "correct", "softmax along the wrong axis", "wrong axis"),
        _wrong("rows_not_divided", "correct", "sum not divided by", "divided by"),
        # XLA's rounding of bfloat16 on a CPU is its own: the mistake is caught, and not yet named
        _wrong("rows_in_bfloat16", "correct", "scores in bfloat16", "agreement there is luck"),
        _wrong("rows_scores_outside", "correct", "scores made outside", "outside the kernel"),
        _wrong("rows_floor", "correct", "last block of queries left out", "never written"),
        KnownWrong(
            f"{_WRONG}:rows_one_block", "compiles", "scores beyond VMEM", ("vmem",), chips=("v5e",)
        ),
    ),
    suspects=(*softmax_suspects(), OVER_QUERIES),
)

STREAMING = _attention(
    "streaming",
    "Blocks of keys: online softmax",
    "Now there are many heads, and too many keys for VMEM. Let the grid be (heads, blocks of "
    "queries, blocks of keys), keys last. Carry three things from one block of keys to the next "
    "in `float32` scratch: the maximum so far, the sum so far, and the accumulator. A new maximum "
    "rescales the other two. Scores never reach HBM. Queries and keys may be ragged: a key beyond "
    "the edge has the score −∞, and its value must not enter the sum either.",
    "Attention by blocks of keys: bfloat16[h, m, d], 2 × bfloat16[h, n, d] -> bfloat16[h, m, d]",
    cases=(
        Case(
            "several blocks each way",
            _heads(1, 2048, 64),
            ("random", "large", "opposed", "rising"),
        ),
        Case(
            "two heads, many blocks of keys, ragged",
            _heads(2, 200, 128, keys=8300),
            ("random", "ones", "opposed"),
            ragged=True,
        ),
    ),
    faithful=_heads(1, 2048, 64),
    speed=_heads(1, 16384, 128),
    rungs=(
        Rung("past what blocks of 128 can do", 0.15),
        Rung("a third of the chip", 0.33),
        Rung("three fifths of the chip", 0.6),
    ),
    hints=(
        "Block shape `(None, block_q, head_dim)`: `None` picks one head and drops the dimension, "
        "so that the kernel sees matrices. Keys and values move with the last axis of the grid.",
        "Scratch: `pltpu.VMEM((block_q, 1), jnp.float32)` for maximum and sum, "
        "`(block_q, head_dim)` for the accumulator. In the first step of the keys they are −∞, 0 "
        "and 0.",
        "`new = jnp.maximum(old, scores.max(axis=1, keepdims=True))`, "
        "`rescale = jnp.exp(old - new)`, then `sum * rescale + …` and `accumulator * rescale + …`.",
        "Ragged keys: `jnp.where(column < keys, scores, -jnp.inf)`, and rows of the value beyond "
        "the edge to zero, for 0 × NaN is NaN. Decide in Python whether there are any.",
        "A column of statistics is spread over 128 lanes for every block of scores, which costs "
        "the same however wide the block is. Take block_q = block_k = 1024, or keep maximum and "
        "sum 128 lanes wide and repeat them with `jnp.tile`.",
    ),
    known_wrong=(
        _wrong("streaming_no_rescale", "correct", "rescale forgotten", "rescale is forgotten"),
        _wrong("streaming_sum_only", "correct", "accumulator not rescaled", "not rescaled"),
        _wrong("streaming_local_maximum", "correct", "own maximum per block", "own maximum"),
        _wrong("streaming_not_shifted", "correct", "maximum not subtracted", "overflow"),
        _wrong("streaming_from_zero", "correct", "maximum starts at 0", "starts at 0"),
        _wrong("streaming_in_bfloat16", "correct", "statistics in bfloat16", "bfloat16"),
        _wrong("streaming_uncleared", "correct", "accumulator not initialised", "initialis"),
        _wrong("streaming_cleared_once", "correct", "not cleared for the next block", "only once"),
        _wrong("streaming_reads_padding", "correct", "ragged keys read as data", "ragged"),
        _wrong("streaming_padding_is_zero", "correct", "mask with 0 instead of -inf", "score 0"),
        _wrong("streaming_keys_parallel", "legal", "keys marked parallel", "parallel"),
        _wrong("streaming_small_blocks", "fast", "blocks of 128", "block", "step"),
    ),
    suspects=(*softmax_suspects(), *online_suspects(), PADDING_COUNTS),
)

CAUSAL_RUNGS = (
    Rung("past what blocks of 256 can do", 0.2),
    Rung("dead blocks are not computed", 0.36),
    Rung("dead blocks are not fetched", 0.45),
)

CAUSAL_ATTENTION = _attention(
    "causal",
    "Causal: half of the work",
    "Query *i* sees the keys up to *i*. Blocks above the diagonal are dead: do not compute them, "
    "and do not fetch them either (a step that asks for the block that is there already moves "
    "nothing). Only blocks that the diagonal crosses need a mask by element. The blocks of queries "
    "and keys may have different sizes, so compare positions, not block indices. The sequence may "
    "be ragged.",
    "Causal attention: query, key, value bfloat16[h, n, d] -> bfloat16[h, n, d]",
    causal=True,
    cases=(
        Case(
            "several blocks each way",
            _heads(1, 2048, 64),
            ("random", "large", "rising"),
        ),
        Case("two heads, ragged", _heads(2, 1300, 128), ("random", "ones"), ragged=True),
    ),
    faithful=_heads(1, 2048, 64),
    speed=_heads(8, 4096, 128),
    rungs=CAUSAL_RUNGS,
    hints=(
        "Block j of keys is dead for block i of queries when its first key, j * block_k, lies "
        "behind the last query, (i + 1) * block_q - 1. Put the whole update under `pl.when`.",
        "In the index map of keys and values: `jnp.minimum(j, last)` with "
        "`last = ((i + 1) * block_q - 1) // block_k`. A repeated index is not fetched again.",
        "The mask: `jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0) + i * block_q` are the "
        "rows, dimension 1 and `j * block_k` give the columns; keep column <= row.",
        "The diagonal hides ragged keys from every query that is there. Their values are another "
        "matter: 0 × NaN is NaN.",
        "block_q = block_k = 1024: 10 of 16 blocks are live. Smaller blocks waste less on the "
        "diagonal, but each costs more.",
    ),
    known_wrong=(
        _wrong("causal_block_index", "correct", "test by block index", "block indices"),
        _wrong("causal_mask_is_zero", "correct", "mask with 0 instead of -inf", "diagonal at 0"),
        _wrong("causal_strict", "correct", "row without any key", "first query"),
        _wrong("causal_no_offset", "correct", "positions within the block", "inside the blocks"),
        _wrong("causal_unmasked_diagonal", "correct", "diagonal not masked", "crosses"),
        _wrong("causal_wrong_clamp", "correct", "wrong block of keys", "wrong block of keys"),
        _wrong("causal_reads_padding", "correct", "ragged values read as data", "0 × nan"),
        _wrong("causal_dead_blocks", "fast", "dead blocks computed", "times the matrix operations"),
    ),
    suspects=(*CAUSAL, *softmax_suspects(seen_before), *online_suspects(seen_before)),
)

GROUPED = _attention(
    "grouped",
    "Groups of heads that share keys",
    "Grouped-query attention: `key` and `value` have fewer heads than `query`, and neighbouring "
    "query heads share one: with 8 and 2, query heads 0…3 use key head 0. Causal again. Do not "
    "repeat keys in HBM, that is what the groups are meant to save: let the index map find the "
    "head.",
    "Causal attention, shared keys: bfloat16[h, n, d], 2 × bfloat16[g, n, d] -> bfloat16[h, n, d]",
    causal=True,
    cases=(
        Case(
            "four heads share two",
            _heads(4, 1024, 64, key_heads=2),
            ("random", "rising"),
        ),
        Case(
            "six heads share one, ragged",
            _heads(6, 700, 128, key_heads=1),
            ("random", "ones"),
            ragged=True,
        ),
    ),
    faithful=_heads(4, 1024, 64, key_heads=2),
    speed=_heads(8, 4096, 128, key_heads=2),
    rungs=CAUSAL_RUNGS,
    hints=(
        "Nothing changes in the kernel's body. `group = query.shape[0] // key.shape[0]`.",
        "The index map of keys and values divides the head: `lambda h, i, j: (h // group, …, 0)`.",
        "`//` on grid indices rounds down; `h % key_heads` would deal the heads out like cards.",
    ),
    known_wrong=(
        _wrong("grouped_repeats", "correct", "keys repeated in HBM", "repeated in hbm"),
        _wrong("grouped_modulo", "correct", "heads dealt out", "wrong key head"),
        _wrong("grouped_first_head", "correct", "first key head for all", "first key head"),
        _wrong("grouped_no_division", "legal", "key head beyond the last", "block"),
        _wrong("grouped_small_blocks", "fast", "blocks of 128", "block", "step"),
    ),
    suspects=(
        *HEADS,
        *CAUSAL,
        *softmax_suspects(seen_before),
        *online_suspects(seen_before),
    ),
)

EXERCISES = (ROWS, STREAMING, CAUSAL_ATTENTION, GROUPED)
