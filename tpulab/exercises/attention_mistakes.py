"""What attention gives when one thing in its kernel is wrong.

Everything here is NumPy in float32, whose range is the chip's: an exponential that overflows there
overflows here. Arrays are [heads, rows, head_dim]; two-dimensional ones stand for one head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Arguments = tuple[np.ndarray, ...]
Blocks = tuple[tuple[int, ...], ...]
Compute = Callable[[Arguments, Blocks], np.ndarray | None]
#: (row, column) of every score → whether the query of that row sees the key of that column.
Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: (block of queries of every row, block of keys) → whether the step is computed.
Live = Callable[[np.ndarray, int, int, int], np.ndarray]

# exp of this is the largest that float32 holds, nearly
_OVERFLOWS = 88.0


def sizes(blocks: Blocks) -> tuple[int, int] | None:
    """Rows of a block of queries and of a block of keys, when the kernel has the plain operands."""
    if len(blocks) != 4 or any(len(block) < 2 for block in blocks):
        return None
    return blocks[0][-2], blocks[1][-2]


def by_head(arguments: Arguments) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values as float32 [query heads, rows, head_dim], keys repeated."""
    query, key, value = (np.asarray(item, np.float32) for item in arguments)
    if query.ndim == 2:
        query, key, value = query[None], key[None], value[None]
    group = query.shape[0] // key.shape[0]
    return query, np.repeat(key, group, axis=0), np.repeat(value, group, axis=0)


def scores_of(query: np.ndarray, key: np.ndarray, scale_power: float = 1.0) -> np.ndarray:
    """Scores: query · keyᵀ × head_dim^(-scale_power/2)."""
    return np.asarray(
        query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** (-scale_power / 2))
    )


def softmax_times(
    scores: np.ndarray,
    value: np.ndarray,
    *,
    shift: bool = True,
    floor: float = -math.inf,
    divide: bool = True,
) -> np.ndarray:
    """softmax(scores) @ value over the last axis, with or without shift and division."""
    top = np.maximum(scores.max(axis=-1, keepdims=True), np.float32(floor)) if shift else 0.0
    weights = np.exp(scores - top)
    out = weights @ value
    return np.asarray(out / weights.sum(axis=-1, keepdims=True) if divide else out)


def online(
    arguments: Arguments,
    blocks: tuple[int, int],
    *,
    mask: Mask | None = None,
    live: Live | None = None,
    rescale_sum: bool = True,
    rescale_acc: bool = True,
    local_maximum: bool = False,
    store: Callable[[np.ndarray], np.ndarray] = lambda x: x,
    key_block: Callable[[np.ndarray, int, int, int], np.ndarray] | None = None,
) -> np.ndarray:
    """Online softmax over blocks of keys, every row at once.

    Args:
        arguments: query, key, value.
        blocks: rows of a block of queries and of keys.
        mask, live: which scores count, which steps are computed.
        rescale_sum, rescale_acc: whether sum and accumulator follow the maximum.
        local_maximum: the maximum of this block only is taken for the shift.
        store: what keeping a value between two steps does to it.
        key_block: (block of queries of every row, block of keys, sizes) → block that is fetched.
    """
    query, key, value = by_head(arguments)
    block_q, block_k = blocks
    heads, length, depth = query.shape
    rows = np.arange(length)
    maximum = np.full((heads, length, 1), -np.inf, np.float32)
    total = np.zeros((heads, length, 1), np.float32)
    acc = np.zeros((heads, length, depth), np.float32)
    for step in range(-(-key.shape[1] // block_k)):
        fetched = np.full(length, step)
        if key_block is not None:
            fetched = key_block(rows // block_q, step, block_q, block_k)
        scores = _by_block(partial(_scores, query, key), fetched, block_k)
        if mask is not None:
            columns = step * block_k + np.arange(scores.shape[-1])
            scores = np.where(mask(rows[:, None], columns[None]), scores, np.float32(-np.inf))
        top = scores.max(axis=-1, keepdims=True)
        new = top if local_maximum else np.maximum(maximum, top)
        weights, factor = np.exp(scores - new), np.exp(maximum - new)
        part = _by_block(partial(_weighted, weights, value), fetched, block_k)
        new_total = total * (factor if rescale_sum else 1) + weights.sum(axis=-1, keepdims=True)
        new_acc = acc * (factor if rescale_acc else 1) + part
        takes = True if live is None else live(rows // block_q, step, block_q, block_k)[:, None]
        maximum = np.where(takes, store(new), maximum)
        total = np.where(takes, store(new_total), total)
        acc = np.where(takes, store(new_acc), acc)
    return np.asarray(acc / total)


def _scores(query: np.ndarray, key: np.ndarray, rows: np.ndarray, piece: slice) -> np.ndarray:
    return scores_of(query[:, rows], key[:, piece])


def _weighted(weights: np.ndarray, value: np.ndarray, rows: np.ndarray, piece: slice) -> np.ndarray:
    return np.asarray(weights[:, rows] @ value[:, piece])


def _by_block(
    product: Callable[[np.ndarray, slice], np.ndarray], fetched: np.ndarray, block_k: int
) -> np.ndarray:
    """A product of the rows with the block of keys that each of them gets."""
    out: np.ndarray | None = None
    for block in np.unique(fetched):
        part = fetched == block
        found = product(part, slice(block * block_k, (block + 1) * block_k))
        if out is None:
            out = np.zeros((found.shape[0], fetched.size, found.shape[-1]), np.float32)
        out[:, part] = found
    assert out is not None
    return out


def _shaped(out: np.ndarray | None, arguments: Arguments) -> np.ndarray | None:
    return None if out is None else out.reshape(arguments[0].shape).astype(np.float64)


def whole(change: Callable[[Arguments], np.ndarray | None]) -> Compute:
    """A mistake that does not depend on the blocks."""
    return lambda arguments, blocks: _shaped(change(arguments), arguments)


def streamed(**changes: Any) -> Compute:
    """A mistake of the online update; it shows only with several blocks of keys."""

    def compute(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
        found = sizes(blocks)
        if found is None or found[1] >= arguments[1].shape[-2]:
            return None
        return _shaped(online(arguments, found, **changes), arguments)

    return compute


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16 and back."""
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def seen_before(row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """The causal mask: a query sees the keys up to its own position."""
    return column <= row


def _masked(scores: np.ndarray, mask: Mask | None, fill: float = -math.inf) -> np.ndarray:
    if mask is None:
        return scores
    row, column = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
    return np.asarray(np.where(mask(row, column), scores, np.float32(fill)))


def changed(
    mask: Mask | None = None, *, fill: float = -math.inf, heads: str = "group", **options: Any
) -> Callable[[Arguments], np.ndarray | None]:
    """Attention over whole rows with one change.

    Args:
        mask: which scores count; the others are ``fill``.
        fill: what stands for a score that does not count.
        heads: which key head a query head gets: "group", "modulo" or "first".
        **options: of :func:`softmax_times`, ``scale_power`` of :func:`scores_of`, ``store``: what
            keeping the scores does to them, and ``scaled``: what keeping the queries does to them
            when it is they that are scaled.
    """
    scale_power = options.pop("scale_power", 1.0)
    store = options.pop("store", lambda x: x)
    scaled: Callable[[Any], Any] | None = options.pop("scaled", None)

    def compute(arguments: Arguments) -> np.ndarray | None:
        query, key, value = by_head(arguments)
        if heads != "group":
            count = arguments[1].shape[0]
            if arguments[0].ndim != 3 or count == arguments[0].shape[0]:
                return None
            each = np.arange(query.shape[0])
            wanted = each % count if heads == "modulo" else 0 * each
            key = np.asarray(arguments[1], np.float32)[wanted]
            value = np.asarray(arguments[2], np.float32)[wanted]
        power = scale_power
        if scaled is not None:
            # JAX gives a Python number the dtype of the array that it is multiplied with
            query, power = scaled(query * scaled(np.float32(query.shape[-1] ** -0.5))), 0.0
        scores = _masked(store(scores_of(query, key, power)), mask, fill)
        if options.get("shift") is False and scores.max() < _OVERFLOWS:
            return None
        return softmax_times(scores, value, **options)

    return compute


def padded_with_zeros(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
    """Keys beyond the edge have the score 0 and the value 0."""
    found = sizes(blocks)
    if found is None or arguments[1].shape[-2] % found[1] == 0:
        return None
    beyond = -arguments[1].shape[-2] % found[1]
    query, key, value = by_head(arguments)
    padding = ((0, 0), (0, beyond), (0, 0))
    return _shaped(
        softmax_times(scores_of(query, np.pad(key, padding)), np.pad(value, padding)), arguments
    )


def over_queries(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
    """The softmax runs over the queries of a block."""
    found = sizes(blocks)
    query, key, value = by_head(arguments)
    if found is None or query.shape[1] % found[0]:
        return None
    scores = scores_of(query, key)
    split = scores.reshape(scores.shape[0], -1, found[0], scores.shape[-1])
    weights = np.exp(split - split.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return _shaped(weights.reshape(scores.shape) @ value, arguments)


def carried_on(mask: Mask | None) -> Compute:
    """Maximum, sum and accumulator are cleared for the first block of queries only."""

    def compute(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
        found = sizes(blocks)
        query, key, value = by_head(arguments)
        if found is None or query.shape[1] % found[0] or query.shape[:2] == (1, found[0]):
            return None
        block_q = found[0]
        scores = _masked(scores_of(query, key), mask)
        out = np.zeros_like(query)
        maximum = np.full((block_q, 1), -np.inf, np.float32)
        total, acc = np.zeros_like(maximum), np.zeros((block_q, query.shape[-1]), np.float32)
        for head in range(query.shape[0]):
            for start in range(0, query.shape[1], block_q):
                mine = scores[head, start : start + block_q]
                new = np.maximum(maximum, mine.max(axis=-1, keepdims=True))
                weights, factor = np.exp(mine - new), np.exp(maximum - new)
                total = total * factor + weights.sum(axis=-1, keepdims=True)
                acc, maximum = acc * factor + weights @ value[head], new
                out[head, start : start + block_q] = acc / total
        return _shaped(out, arguments)

    return compute


def up_to_diagonal(block: np.ndarray, step: int, block_q: int, block_k: int) -> np.ndarray:
    """The steps that a causal kernel computes: those with a key that some query sees."""
    return step * block_k < (block + 1) * block_q


def within_the_block(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
    """The mask compares positions inside the blocks, as if every block were the first."""
    found = sizes(blocks)
    if found is None:
        return None
    block_q, block_k = found

    def mask(row: np.ndarray, column: np.ndarray) -> np.ndarray:
        return np.asarray(column % block_k <= row % block_q)

    return _shaped(online(arguments, found, mask=mask, live=up_to_diagonal), arguments)


def unequal(**changes: Any) -> Compute:
    """A mistake of a causal kernel that shows only where the blocks' sizes differ."""
    update = streamed(mask=seen_before, **changes)

    def compute(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
        found = sizes(blocks)
        if found is None or found[0] == found[1] or arguments[1].shape[-2] % found[1]:
            return None
        return update(arguments, blocks)

    return compute


def values_beyond_the_edge(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
    """Causal: queries whose block sees the ragged block of keys get 0 × NaN from its values."""
    found = sizes(blocks)
    length = arguments[1].shape[-2]
    if found is None or length % found[1] == 0:
        return None
    block_q, block_k = found
    out = changed(seen_before)(arguments)
    assert out is not None
    first_ragged = length - length % block_k
    reached = (np.arange(out.shape[-2]) // block_q + 1) * block_q > first_ragged
    out[:, reached] = np.nan
    return _shaped(out, arguments)
