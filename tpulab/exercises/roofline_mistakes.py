"""What the exercises of lab 02 would give with a mistake in them, so that numbers name it."""

from __future__ import annotations

import numpy as np

from tpulab.exercises.model import Suspect

Arrays = tuple[np.ndarray, ...]
Blocks = tuple[tuple[int, ...], ...]

_TINY = 1e-6


def _in_bfloat16(values: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return values.astype(ml_dtypes.bfloat16).astype(np.float64)


def over_range(values: np.ndarray, peak: np.ndarray) -> np.ndarray:
    """Divide by a peak that is kept away from zero: values / max(peak, 1e-6)."""
    return np.asarray(values / np.maximum(peak, _TINY))


def _stream_of_blocks(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    """One largest magnitude for a whole block of rows."""
    (x,) = arguments
    rows = blocks[0][0] if blocks and len(blocks[0]) == 2 else x.shape[0]
    if x.shape[0] % rows:
        return None
    peaks = np.abs(x).reshape(-1, rows * x.shape[1]).max(axis=1)
    return over_range(x, np.repeat(peaks, rows)[:, None])


def _stream_of_columns(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    """The largest magnitude of each column of a block."""
    (x,) = arguments
    rows = blocks[0][0] if blocks and len(blocks[0]) == 2 else x.shape[0]
    if x.shape[0] % rows:
        return None
    peaks = np.abs(x).reshape(-1, rows, x.shape[1]).max(axis=1)
    return over_range(x, np.repeat(peaks, rows, axis=0))


def _stream_signed(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    (x,) = arguments
    return over_range(x, x.max(axis=1, keepdims=True))


def gemv_product(vectors: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Multiply vectors[b] @ matrices[b] for every b: [batch, k] × [batch, k, n] -> [batch, n]."""
    return np.asarray(np.matmul(vectors[:, None, :], matrices)[:, 0, :])


def _gemv_first(which: int):  # type: ignore[no-untyped-def]
    """The first block of vectors (0) or of matrices (1) for every block of the batch."""

    def compute(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
        batch = arguments[0].shape[0]
        taken = next((block[0] for block in blocks if len(block) == 3), 1)
        if taken >= batch:
            return None
        operands = list(arguments)
        operands[which] = operands[which][np.arange(batch) % taken]
        return gemv_product(*operands)

    return compute


def _gemv_in_bfloat16(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    """The sum is rounded to bfloat16 after each block of k."""
    vectors, matrices = arguments
    deep = next((block[1] for block in blocks if len(block) == 3 and block[1] > 1), 0)
    if not 0 < deep <= vectors.shape[1]:
        return None
    total = np.zeros((vectors.shape[0], matrices.shape[2]))
    for start in range(0, vectors.shape[1], deep):
        piece = slice(start, start + deep)
        total = _in_bfloat16(
            total + _in_bfloat16(gemv_product(vectors[:, piece], matrices[:, piece]))
        )
    return total


def _scale_along_k(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    x, weights, scale = arguments
    if scale.shape[1] < x.shape[1]:
        return None
    return _in_bfloat16((x * scale[:, : x.shape[1]]) @ weights)


def _scale_forgotten(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    x, weights, _ = arguments
    return _in_bfloat16(x @ weights)


def _scale_each_step(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    """The running sum is scaled after every block of k."""
    x, weights, scale = arguments
    if len(blocks) < 2 or len(blocks[1]) != 2 or blocks[1][0] >= x.shape[1]:
        return None
    total = np.zeros((x.shape[0], weights.shape[1]))
    for start in range(0, x.shape[1], blocks[1][0]):
        piece = slice(start, start + blocks[1][0])
        total = (total + x[:, piece] @ weights[piece]) * scale
    return _in_bfloat16(total)


def _activations_in_int8(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    x, weights, scale = arguments
    return _in_bfloat16((np.trunc(x) @ weights) * scale)


def _weights_rounded(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    x, weights, scale = arguments
    return np.asarray(x @ _in_bfloat16(weights * scale))


def _weights_and_scale_rounded(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    x, weights, scale = arguments
    return np.asarray(x @ _in_bfloat16(weights * _in_bfloat16(scale)))


def _int8_in_bfloat16(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    x, weights, scale = arguments
    deep = blocks[1][0] if len(blocks) > 1 and len(blocks[1]) == 2 else x.shape[1]
    total = np.zeros((x.shape[0], weights.shape[1]))
    for start in range(0, x.shape[1], deep):
        piece = slice(start, start + deep)
        total = _in_bfloat16(total + _in_bfloat16(x[:, piece] @ weights[piece]))
    return np.asarray(total * scale)


def _first_columns_everywhere(arguments: Arrays, blocks: Blocks) -> np.ndarray | None:
    x, weights = arguments
    cols = blocks[1][1] if len(blocks) == 3 and len(blocks[1]) == 2 else weights.shape[1]
    if cols >= weights.shape[1]:
        return None
    return _in_bfloat16(x @ weights[:, np.arange(weights.shape[1]) % cols])


_ROUNDED_WEIGHTS = (
    "the weights are rounded to bfloat16 after they are scaled: each loses 8 of its bits before "
    "it is multiplied"
)
_SCALE_LATE = (
    "int8 fits into bfloat16 exactly: multiply the integers, and scale the float32 sum once"
)

STREAM = (
    Suspect(
        "rows are divided by their largest value, not by their largest magnitude: the sign of "
        "negative values is not taken off",
        "take jnp.abs before jnp.max",
        _stream_signed,
    ),
    Suspect(
        "the maximum is taken along the wrong axis: every column is divided by its own",
        "axis=1 runs along a row; keepdims=True keeps the result broadcastable",
        _stream_of_columns,
    ),
    Suspect(
        "all rows of a block are divided by one number, the largest magnitude of the block",
        "reduce along axis=1 only: every row has a maximum of its own",
        _stream_of_blocks,
    ),
)

GEMV_BATCHED = (
    Suspect(
        "every step uses the first vectors: their index map ignores the batch",
        "vectors need the grid index of the batch first, as matrices do",
        _gemv_first(0),
        "index map",
    ),
    Suspect(
        "every step uses the first matrices: their index map ignores the batch",
        "matrices need the grid index of the batch first, as vectors do",
        _gemv_first(1),
        "index map",
    ),
    Suspect(
        "the sum is kept in bfloat16: 8 bits of mantissa lose what is small beside the sum",
        "ask for float32 with preferred_element_type, and add in float32",
        _gemv_in_bfloat16,
        "sum",
    ),
)

INT8_WEIGHTS = (
    Suspect(
        "the scale runs along the wrong axis: it multiplies rows of the weights (k), and each "
        "belongs to a column (n)",
        "scale the sum: its columns are those of the weights",
        _scale_along_k,
    ),
    Suspect("the scale is missing", "multiply the sum by scale_ref[...]", _scale_forgotten),
    Suspect(
        "the scale is applied at every step of k, also to what was scaled before",
        "scale once, in the last step of k",
        _scale_each_step,
    ),
    Suspect(
        "the activations became int8 and lost what is behind the point",
        "cast the weights to bfloat16, not the activations to int8",
        _activations_in_int8,
        "sum",
    ),
    Suspect(_ROUNDED_WEIGHTS, _SCALE_LATE, _weights_rounded, "sum"),
    Suspect(_ROUNDED_WEIGHTS, _SCALE_LATE, _weights_and_scale_rounded, "sum"),
    Suspect(
        "the sum over k is kept in bfloat16: 8 bits of mantissa lose what is small beside it",
        "accumulate in float32 and cast once, when the last block of k is in",
        _int8_in_bfloat16,
        "sum",
    ),
)

REREAD = (
    Suspect(
        "every step multiplies the first columns of the weights: their index map does not use "
        "the grid index of n",
        "the weights need lambda j: (0, j)",
        _first_columns_everywhere,
        "index map",
    ),
)
