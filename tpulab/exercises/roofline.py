"""Lab 02: what limits a kernel, the matrix unit or the memory; four kernels whose bound moves."""

from __future__ import annotations

import numpy as np

from tpulab.exercises import roofline_mistakes as mistakes
from tpulab.exercises.model import (
    ArgumentSpec,
    Case,
    Exercise,
    KnownWrong,
    Rung,
    Work,
)

_WRONG = "tpulab.exercises.known_wrong.roofline"
_SOLUTION = "02_roofline.py"

Specs = tuple[ArgumentSpec, ...]


def _wrong(function: str, step: str, mistake: str, *says: str) -> KnownWrong:
    return KnownWrong(f"{_WRONG}:{function}", step, mistake, says)


def _norm_product(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Bound of the sums of absolute terms by Cauchy and Schwarz: no second product is needed."""
    return np.outer(np.linalg.norm(lhs, axis=1), np.linalg.norm(rhs, axis=0))


# ---- stream: rows by their largest magnitude


def _rows_array(rows: int, cols: int) -> Specs:
    return (ArgumentSpec((rows, cols), "bfloat16"),)


STREAM = Exercise(
    name="roofline.stream",
    title="One pass over HBM",
    statement=(
        "Divide each row of a `bfloat16` array by the largest magnitude in it, the first half of "
        "quantising activations. The largest magnitude must be known before the first division, so "
        "the textbook way reads the array twice. Read it **once**: let the bytes be those of the "
        "input and the result, and nothing else. A row of zeros stays zero: divide by "
        "`1e-6` at least. The last block of rows may stick out."
    ),
    signature=(
        "def stream(x: jax.Array) -> jax.Array:\n"
        '    """x / max(row\'s largest |x|, 1e-6): '
        'bfloat16[rows, cols] -> bfloat16[rows, cols]."""\n'
    ),
    solution=f"{_SOLUTION}:stream",
    oracle=lambda x: mistakes.over_range(x, np.abs(x).max(axis=1, keepdims=True)),
    magnitude=lambda x: mistakes.over_range(np.abs(x), np.abs(x).max(axis=1, keepdims=True)),
    depth=lambda specs: 1,
    result=lambda specs: ArgumentSpec(specs[0].shape, "bfloat16"),
    work=lambda specs: Work(
        0, 2 * int(np.prod(specs[0].shape)), 2 * int(np.prod(specs[0].shape)) * 2, "float32"
    ),
    cases=(
        Case("four blocks", _rows_array(1024, 256), ("random", "ramp", "zeros", "extremes")),
        Case("a ragged block of rows", _rows_array(392, 384), ("random",), ragged=True),
    ),
    faithful=_rows_array(1024, 128),
    speed=_rows_array(8192, 4096),
    rungs=(Rung("one pass", 0.6), Rung("three quarters of the bandwidth", 0.75)),
    hints=(
        "Count bytes before you write: two calls move the array three times, one call twice.",
        "Once a whole row is in VMEM, reading it a second time costs no HBM traffic.",
        "A block is a strip of whole rows, `(256, cols)`; "
        "`jnp.max(jnp.abs(values), axis=1, keepdims=True)` is inside the kernel.",
        "The vector unit of a v5e computes in float32: cast the block, divide, cast back.",
    ),
    known_wrong=(
        _wrong("stream_two_passes", "fast", "array read twice", "traffic:"),
        _wrong("stream_outside", "correct", "largest magnitude computed outside", "outside"),
        _wrong("stream_signed", "correct", "largest value, not magnitude", "magnitude", "sign"),
        _wrong(
            "stream_whole_block", "correct", "one peak for a whole block", "magnitude of the block"
        ),
        _wrong("stream_zero_rows", "correct", "zero rows divided by zero", "divided by a zero"),
        _wrong("stream_floor", "correct", "last ragged strip left out", "never written"),
    ),
    suspects=mistakes.STREAM,
)


# ---- gemv_batched: every vector has a matrix of its own


def _gemv(batch: int, k: int, n: int) -> Specs:
    return ArgumentSpec((batch, k), "bfloat16"), ArgumentSpec((batch, k, n), "bfloat16")


GEMV_BATCHED = Exercise(
    name="roofline.gemv_batched",
    title="A batch that does not help",
    statement=(
        "Multiply each vector of a batch by a matrix of its own, `out[b] = vectors[b] @ "
        "matrices[b]`, as decode attention does with the keys and values of each sequence. Every "
        "matrix element is used once, whatever the batch: one multiplication and one addition for "
        "two bytes. So be a perfect stream of matrices: sum in `float32`, read each byte once, and "
        "give each step enough of them. The batch is a multiple of 4."
    ),
    signature=(
        "def gemv_batched(vectors: jax.Array, matrices: jax.Array) -> jax.Array:\n"
        '    """out[b] = vectors[b] @ matrices[b].\n\n'
        "    bfloat16[batch, k] × bfloat16[batch, k, n] -> float32[batch, n].\n"
        '    """\n'
    ),
    solution=f"{_SOLUTION}:gemv_batched",
    oracle=mistakes.gemv_product,
    magnitude=lambda vectors, matrices: mistakes.gemv_product(np.abs(vectors), np.abs(matrices)),
    depth=lambda specs: specs[0].shape[1],
    result=lambda specs: ArgumentSpec((specs[1].shape[0], specs[1].shape[2]), "float32"),
    work=lambda specs: Work(
        2 * int(np.prod(specs[1].shape)),
        0,
        specs[0].size_bytes + specs[1].size_bytes + 4 * specs[1].shape[0] * specs[1].shape[2],
        "bfloat16",
    ),
    cases=(
        Case("eight small products", _gemv(8, 128, 128), ("random", "ramp", "ones")),
        Case("a deep sum", _gemv(4, 1024, 256), ("random",)),
    ),
    faithful=_gemv(8, 256, 128),
    speed=_gemv(128, 1024, 512),
    rungs=(Rung("half of the bandwidth", 0.5), Rung("70 % of the bandwidth", 0.7)),
    hints=(
        "The grid runs over the batch; a step takes one matrix or several whole ones.",
        "A block's last two dimensions are tiles: reshape `vectors` to (batch, 1, k) and the "
        "result from (batch, 1, n), outside the kernel, and both have a legal block.",
        "Inside, one `jnp.dot` of (1, k) by (k, n) for each matrix of the block, with "
        "`preferred_element_type=jnp.float32`, in a Python loop.",
        "One matrix of 1024 × 512 is 1 MiB. Four of them a step give the copy time to get going.",
    ),
    known_wrong=(
        _wrong("gemv_float32_outside", "fast", "matrices cast outside", "xla operations"),
        _wrong("gemv_first_vector", "correct", "index map ignores the batch", "first vectors"),
        _wrong("gemv_bf16_sum", "correct", "bfloat16 accumulation", "bfloat16"),
        _wrong("gemv_reduction_first", "legal", "non-consecutive revisit", "come back to"),
        _wrong("gemv_constant_luck", "correct", "right on ones only", "luck"),
    ),
    suspects=mistakes.GEMV_BATCHED,
)


# ---- int8_weights: half the bytes of the operand that matters


def _weights(m: int, k: int, n: int) -> Specs:
    return (
        ArgumentSpec((m, k), "bfloat16"),
        ArgumentSpec((k, n), "int8"),
        ArgumentSpec((1, n), "float32"),
    )


INT8_WEIGHTS = Exercise(
    name="roofline.int8_weights",
    title="Half the bytes",
    statement=(
        "Multiply `bfloat16` activations of a small batch by `int8` weights; each column of the "
        "weights has a `float32` scale: `out = (x @ weights) * scale`. A small batch waits for "
        "weight bytes, and int8 halves them, but only if the weights cross HBM **as int8** and "
        "once. Turn a block into `bfloat16` in the kernel, add up in `float32`, and scale the sum, "
        "not the weights. All rows of x are one block; k and n are multiples of 128."
    ),
    signature=(
        "def int8_weights(x: jax.Array, weights: jax.Array, scale: jax.Array) -> jax.Array:\n"
        '    """(x @ weights) * scale.\n\n'
        "    bfloat16[m, k] × int8[k, n] × float32[1, n] -> bfloat16[m, n], m small.\n"
        '    """\n'
    ),
    solution=f"{_SOLUTION}:int8_weights",
    oracle=lambda x, weights, scale: (x @ weights) * scale,
    magnitude=lambda x, weights, scale: _norm_product(x, weights) * np.abs(scale),
    depth=lambda specs: specs[0].shape[1],
    result=lambda specs: ArgumentSpec((specs[0].shape[0], specs[1].shape[1]), "bfloat16"),
    work=lambda specs: Work(
        2 * specs[0].shape[0] * int(np.prod(specs[1].shape)),
        0,
        sum(spec.size_bytes for spec in specs) + 2 * specs[0].shape[0] * specs[1].shape[1],
        "bfloat16",
    ),
    cases=(
        Case("small", _weights(16, 256, 256), ("random", "ramp", "identity")),
        Case("a deep sum", _weights(32, 1024, 1152), ("random",)),
    ),
    faithful=_weights(16, 512, 512),
    speed=_weights(32, 4096, 14336),
    rungs=(
        Rung("past what bfloat16 weights can do", 0.52),
        Rung("two thirds of the bandwidth", 0.66),
    ),
    hints=(
        "What crosses HBM is what you pass to `pallas_call`: pass the int8 array.",
        "In the kernel: `weights_ref[...].astype(jnp.bfloat16)`, then `jnp.dot` with "
        "`preferred_element_type=jnp.float32`.",
        "scale has one row, so its block is `(1, block_n)` at `lambda j, k: (0, j)`, and it "
        "broadcasts over the rows of the sum.",
        "Grid (n, k), k last, a float32 scratch block for the sum; clear it first, scale and store "
        "it last. A weight block of 1 MiB or more keeps the copies long.",
    ),
    known_wrong=(
        _wrong("int8_cast_outside", "fast", "weights cast outside", "traffic:"),
        _wrong("int8_dequantised_outside", "correct", "dequantised outside", "outside"),
        _wrong("int8_scale_along_k", "correct", "scale along the wrong axis", "the wrong axis"),
        _wrong("int8_weights_rounded", "correct", "weights rounded", "rounded to bfloat16"),
        _wrong("int8_activations_truncated", "correct", "activations as int8", "became int8"),
        _wrong("int8_bf16_sum", "correct", "bfloat16 accumulation", "bfloat16"),
        _wrong("int8_uninitialised", "correct", "accumulator not initialised", "initialis"),
    ),
    suspects=mistakes.INT8_WEIGHTS,
)


# ---- reread: the same work, across the ridge


def _product(m: int, k: int, n: int) -> Specs:
    return ArgumentSpec((m, k), "bfloat16"), ArgumentSpec((k, n), "bfloat16")


REREAD = Exercise(
    name="roofline.reread",
    title="Each weight once",
    statement=(
        "The same product for 1024 rows: its intensity lies far right of the ridge, so the matrix "
        "unit should decide. It does not, if your blocks fetch the weights once for every strip of "
        "rows: traffic is what *moves*, not what exists. Choose blocks and the order of the grid "
        "so that no weight crosses HBM twice. A strip of all rows and all of k fits into VMEM "
        "(m ≤ 1024, k ≤ 2048); n may be ragged."
    ),
    signature=(
        "def reread(x: jax.Array, weights: jax.Array) -> jax.Array:\n"
        '    """x @ weights: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], '
        'each weight read once."""\n'
    ),
    solution=f"{_SOLUTION}:reread",
    oracle=lambda x, weights: x @ weights,
    magnitude=_norm_product,
    depth=lambda specs: specs[0].shape[1],
    result=lambda specs: ArgumentSpec((specs[0].shape[0], specs[1].shape[1]), "bfloat16"),
    work=lambda specs: Work(
        2 * specs[0].shape[0] * int(np.prod(specs[1].shape)),
        0,
        specs[0].size_bytes + specs[1].size_bytes + 2 * specs[0].shape[0] * specs[1].shape[1],
        "bfloat16",
    ),
    cases=(
        Case("whole blocks", _product(256, 256, 1024), ("random", "ramp", "identity")),
        Case("a ragged n", _product(128, 384, 1152), ("random",), ragged=True),
    ),
    faithful=_product(128, 256, 1024),
    speed=_product(1024, 2048, 8192),
    rungs=(Rung("across the ridge", 0.5), Rung("four fifths of the matrix unit", 0.8)),
    hints=(
        "A block is fetched when its index differs from the step before. Which of your blocks "
        "keeps its index while the fastest axis runs?",
        "Let x stay: all rows in one block, index map to (0, 0). Then one axis is left, over n.",
        "`grid=(pl.cdiv(n, 512),)`, x block (m, k), weight block (k, 512), output block (m, 512): "
        "14 MiB with two buffers of each.",
    ),
    known_wrong=(
        _wrong("reread_strips", "fast", "weights read once a strip", "traffic:"),
        _wrong("reread_same_columns", "correct", "index map ignores n", "index map"),
        _wrong("reread_swapped", "legal", "weights' index map swapped", "swapped"),
        _wrong("reread_by_xla", "legal", "XLA's own product", "pallas_call"),
    ),
    suspects=mistakes.REREAD,
)

EXERCISES = (STREAM, GEMV_BATCHED, INT8_WEIGHTS, REREAD)
