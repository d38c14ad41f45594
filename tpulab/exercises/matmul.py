"""Lab 10: a matrix product, from the whole array in VMEM to three quarters of the chip."""

from __future__ import annotations

import numpy as np

from tpulab.exercises.model import (
    ArgumentSpec,
    Case,
    Exercise,
    KnownWrong,
    Rung,
    Suspect,
    Work,
)

_WRONG = "tpulab.exercises.known_wrong.matmul"
_SOLUTION = "10_matmul_ladder.py"


def _product(m: int, k: int, n: int) -> tuple[ArgumentSpec, ArgumentSpec]:
    return ArgumentSpec((m, k), "bfloat16"), ArgumentSpec((k, n), "bfloat16")


def _wrong(function: str, step: str, mistake: str, *says: str) -> KnownWrong:
    return KnownWrong(f"{_WRONG}:{function}", step, mistake, says)


def _result(dtype: str):  # type: ignore[no-untyped-def]
    return lambda specs: ArgumentSpec((specs[0].shape[0], specs[1].shape[1]), dtype)


def _work(result_bytes: int):  # type: ignore[no-untyped-def]
    def work(specs: tuple[ArgumentSpec, ...]) -> Work:
        (m, k), n = specs[0].shape, specs[1].shape[1]
        bytes_ = specs[0].size_bytes + specs[1].size_bytes + m * n * result_bytes
        return Work(2 * m * k * n, 0, bytes_, "bfloat16")

    return work


def _magnitude(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Bound of the sums of absolute terms by Cauchy and Schwarz: no second product is needed."""
    return np.outer(np.linalg.norm(lhs, axis=1), np.linalg.norm(rhs, axis=0))


def _block_sizes(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> tuple[int, int, int] | None:
    """Block sizes of m, k and n when the kernel has the plain three operands."""
    if len(blocks) != 3 or any(len(block) != 2 for block in blocks):
        return None
    return blocks[0][0], blocks[0][1], blocks[1][1]


def _one_k_block(which: str):  # type: ignore[no-untyped-def]
    def compute(
        arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
    ) -> np.ndarray | None:
        sizes = _block_sizes(arguments, blocks)
        lhs, rhs = arguments
        if sizes is None or sizes[1] >= lhs.shape[1]:
            return None
        if which == "repeated":
            steps = -(-lhs.shape[1] // sizes[1])
            return np.asarray(steps * (lhs[:, : sizes[1]] @ rhs[: sizes[1]]))
        start = (lhs.shape[1] - 1) // sizes[1] * sizes[1] if which == "last" else 0
        piece = slice(start, min(start + sizes[1], lhs.shape[1]))
        return np.asarray(lhs[:, piece] @ rhs[piece])

    return compute


def _rhs_blocks_swapped(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    """The rhs block (j, k) where (k, j) belongs."""
    sizes = _block_sizes(arguments, blocks)
    lhs, rhs = arguments
    if sizes is None or rhs.shape[0] != rhs.shape[1] or sizes[1] != sizes[2]:
        return None
    side = sizes[1]
    if rhs.shape[0] % side or rhs.shape[0] == side:
        return None
    count = rhs.shape[0] // side
    grid = rhs.reshape(count, side, count, side)
    return np.asarray(lhs @ grid.transpose(2, 1, 0, 3).reshape(rhs.shape))


def _output_blocks_swapped(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    lhs, rhs = arguments
    want = lhs @ rhs
    rows, cols = blocks[-1] if len(blocks[-1]) == 2 else want.shape
    if want.shape[0] % rows or want.shape[1] % cols:
        return None
    down, across = want.shape[0] // rows, want.shape[1] // cols
    if down != across or down == 1:
        return None
    grid = want.reshape(down, rows, across, cols)
    return np.asarray(grid.transpose(2, 1, 0, 3).reshape(want.shape))


def _accumulated_in_bfloat16(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    import ml_dtypes

    sizes = _block_sizes(arguments, blocks)
    lhs, rhs = arguments
    if sizes is None or sizes[1] >= lhs.shape[1]:
        return None
    total = np.zeros((lhs.shape[0], rhs.shape[1]), ml_dtypes.bfloat16)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, lhs.shape[1], sizes[1]):
            piece = slice(start, start + sizes[1])
            part = (lhs[:, piece] @ rhs[piece]).astype(ml_dtypes.bfloat16)
            total = (total.astype(np.float32) + part.astype(np.float32)).astype(ml_dtypes.bfloat16)
    return total.astype(np.float64)


def _accumulated_rounding_each_step(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    """The sum is taken in float32 but stored in bfloat16 at each step."""
    import ml_dtypes

    sizes = _block_sizes(arguments, blocks)
    lhs, rhs = arguments
    if sizes is None or sizes[1] >= lhs.shape[1]:
        return None
    total = np.zeros((lhs.shape[0], rhs.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, lhs.shape[1], sizes[1]):
            piece = slice(start, start + sizes[1])
            total = (total + lhs[:, piece] @ rhs[piece]).astype(ml_dtypes.bfloat16)
            total = total.astype(np.float64)
    return total


def _summed_over_blocks(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    """Every output block also holds the sums of the blocks before it."""
    lhs, rhs = arguments
    want = lhs @ rhs
    rows, cols = blocks[-1] if len(blocks[-1]) == 2 else want.shape
    if want.shape[0] % rows or want.shape[1] % cols or want.shape == (rows, cols):
        return None
    down, across = want.shape[0] // rows, want.shape[1] // cols
    grid = want.reshape(down, rows, across, cols).transpose(0, 2, 1, 3)
    sums = grid.reshape(-1, rows, cols).cumsum(axis=0).reshape(grid.shape)
    return np.asarray(sums.transpose(0, 2, 1, 3).reshape(want.shape))


def _first_strip_everywhere(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    lhs, rhs = arguments
    rows = blocks[0][0] if len(blocks[0]) == 2 else lhs.shape[0]
    if rows >= lhs.shape[0]:
        return None
    return np.asarray(lhs[np.arange(lhs.shape[0]) % rows] @ rhs)


_BFLOAT16_SUM = (
    "the sum over k is kept in bfloat16: 8 bits of mantissa lose what is small beside the sum"
)
_BFLOAT16_HINT = "accumulate in float32 and cast once, when the last block of k is in"

_SUSPECTS = (
    Suspect(
        "every step multiplies the first block of rows: lhs's index map does not use the grid "
        "index of the rows",
        "lhs needs lambda i: (i, 0), or lambda i, j, k: (i, k)",
        _first_strip_everywhere,
    ),
    Suspect(
        "the sum is carried from one output block into the next: the accumulator is cleared only "
        "once",
        "clear it in the first step of k of every output block: pl.program_id(2) == 0",
        _summed_over_blocks,
    ),
    Suspect(
        "only the last block of k is in the result: each step overwrites what the one before it "
        "stored",
        "add to the accumulator (acc_ref[...] += …) instead of assigning to it",
        _one_k_block("last"),
    ),
    Suspect(
        "only the first block of k is in the result: it is stored before the others are added",
        "store when pl.program_id(2) == pl.num_programs(2) - 1",
        _one_k_block("first"),
    ),
    Suspect(
        "the same block of k is added at every step: an index map does not use the k index",
        "lhs needs lambda i, j, k: (i, k) and rhs lambda i, j, k: (k, j)",
        _one_k_block("repeated"),
    ),
    Suspect(
        "the index map of rhs is swapped: it fetches block (j, k) where (k, j) belongs",
        "use lambda i, j, k: (k, j) for rhs",
        _rhs_blocks_swapped,
    ),
    Suspect(
        "the index map of the output is swapped: block (i, j) lies where (j, i) belongs",
        "use lambda i, j, k: (i, j) for the output",
        _output_blocks_swapped,
    ),
    Suspect(_BFLOAT16_SUM, _BFLOAT16_HINT, _accumulated_in_bfloat16),
    Suspect(_BFLOAT16_SUM, _BFLOAT16_HINT, _accumulated_rounding_each_step),
)


def _matmul(
    function: str,
    title: str,
    statement: str,
    docstring: str,
    *,
    result_dtype: str,
    cases: tuple[Case, ...],
    faithful: tuple[ArgumentSpec, ...],
    speed: tuple[ArgumentSpec, ...],
    rungs: tuple[Rung, ...],
    hints: tuple[str, ...],
    known_wrong: tuple[KnownWrong, ...],
) -> Exercise:
    """A matrix product; all of them share the oracle, the tolerance and the suspects."""
    return Exercise(
        name=f"matmul.{function}",
        title=title,
        statement=statement,
        signature=(
            f'def {function}(lhs: jax.Array, rhs: jax.Array) -> jax.Array:\n    """{docstring}"""\n'
        ),
        solution=f"{_SOLUTION}:{function}",
        oracle=lambda lhs, rhs: lhs @ rhs,
        magnitude=_magnitude,
        depth=lambda specs: specs[0].shape[1],
        result=_result(result_dtype),
        work=_work(4 if result_dtype == "float32" else 2),
        cases=cases,
        faithful=faithful,
        speed=speed,
        rungs=rungs,
        hints=hints,
        known_wrong=known_wrong,
        suspects=_SUSPECTS,
    )


WHOLE = _matmul(
    "whole",
    "The whole product in one block",
    "Multiply two small `bfloat16` matrices that fit into VMEM whole, into `float32`. One kernel "
    "call, no grid. The matrix unit multiplies bfloat16 and adds in float32: ask for that with "
    "`preferred_element_type`.",
    "lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> float32[m, n], in one block.",
    result_dtype="float32",
    cases=(
        Case("one array of the matrix unit", _product(128, 128, 128), ("random", "identity")),
        Case("three sizes", _product(64, 384, 256), ("random", "ramp", "extremes")),
    ),
    faithful=_product(64, 256, 128),
    speed=_product(512, 512, 512),
    rungs=(Rung("it runs", 0.0),),
    hints=(
        "The kernel is one line: read both Refs, multiply, write.",
        "`jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)`.",
        "`out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32)`; no grid and no block specs.",
    ),
    known_wrong=(
        _wrong("whole_outside", "correct", "product computed outside the kernel", "outside"),
        _wrong("whole_constant_luck", "correct", "right on an identity only", "random", "right on"),
        _wrong("whole_rounded", "correct", "product rounded to bfloat16", "bfloat16", "bf16"),
        _wrong("whole_bf16_accumulator", "compiles", "bfloat16 accumulator", "32", "float32"),
        _wrong("whole_wrong_shape", "correct", "wrong output shape", "shape"),
    ),
)

STRIPS = _matmul(
    "strips",
    "Strips of rows",
    "Keep all of `rhs` in VMEM and let a one-dimensional grid walk down `lhs` in strips of rows. "
    "The next strip arrives while this one is multiplied. The last strip may stick out.",
    "lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> float32[m, n], by strips of rows of lhs.",
    result_dtype="float32",
    cases=(
        Case("two strips", _product(512, 256, 256), ("random", "ramp", "extremes")),
        Case("a ragged strip", _product(300, 256, 128), ("random",), ragged=True),
    ),
    faithful=_product(1024, 128, 128),
    speed=_product(2048, 1024, 1024),
    rungs=(Rung("it runs", 0.0), Rung("a quarter of the bound", 0.25), Rung("half", 0.5)),
    hints=(
        "One grid axis: `grid=(pl.cdiv(m, block_m),)`.",
        "lhs moves with the grid, `(block_m, k)` at `lambda i: (i, 0)`; rhs stays at (0, 0).",
        "256 rows a strip are plenty: the strip, rhs and the output must fit twice into VMEM.",
    ),
    known_wrong=(
        _wrong("strips_first_only", "correct", "index map ignores the grid", "index map"),
        _wrong("strips_floor", "correct", "last ragged strip left out", "never written"),
        _wrong("strips_odd_block", "legal", "strip not a multiple of the tile", "multiple"),
    ),
)

GRID = _matmul(
    "grid",
    "A grid of 128³ blocks",
    "Cut m, n and k into blocks of 128 and let a three-dimensional grid (i, j, k) multiply them. "
    "The output is `float32` and its block stays in VMEM while k runs, so that you can add up in "
    "it. k must be the last axis, and somebody has to clear the block first. m, n and k are "
    "multiples of 128.",
    "lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> float32[m, n], in blocks of 128.",
    result_dtype="float32",
    cases=(
        Case("two blocks each way", _product(256, 256, 256), ("random", "ramp", "identity")),
        Case("a deep sum", _product(128, 1024, 256), ("random", "extremes")),
        Case("odd numbers of blocks", _product(384, 640, 384), ("random",)),
    ),
    faithful=_product(256, 384, 256),
    speed=_product(1024, 1024, 1024),
    rungs=(Rung("it runs", 0.0), Rung("five per cent of the chip", 0.05)),
    hints=(
        "`grid=(m // 128, n // 128, k // 128)`; the last axis changes fastest.",
        "lhs block (i, k), rhs block (k, j), output block (i, j).",
        "`@pl.when(pl.program_id(2) == 0)` clears `out_ref`; after that every step adds.",
        "`dimension_semantics=('parallel', 'parallel', 'arbitrary')`: k carries the sum.",
    ),
    known_wrong=(
        _wrong("grid_uninitialised", "correct", "accumulator not initialised", "initialis"),
        _wrong("grid_overwrites", "correct", "output stored on every K step", "overwrit"),
        _wrong("grid_reduction_not_last", "legal", "reduction axis not last", "revisit", "last"),
        _wrong("grid_rhs_swapped", "legal", "index map swapped", "swapped"),
        _wrong("grid_output_swapped", "legal", "output's index map swapped", "swapped"),
        _wrong("grid_same_block", "correct", "index map ignores k", "index map"),
        _wrong("grid_parallel_k", "legal", "dependent axis marked parallel", "parallel"),
        _wrong("grid_map_arity", "legal", "index map with too few arguments", "index map"),
    ),
)

BF16_SCRATCH = _matmul(
    "bf16_scratch",
    "bfloat16 out, float32 inside",
    "Write `bfloat16` results: half the bytes. A bfloat16 output block cannot hold the sum (8 "
    "bits of mantissa), so add up in a `float32` scratch block in VMEM and cast once, in the last "
    "step of k. m, n and k are multiples of 128.",
    "lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], float32 accumulator.",
    result_dtype="bfloat16",
    cases=(
        Case("two blocks each way", _product(256, 256, 256), ("random", "ramp", "identity")),
        Case("a deep sum", _product(128, 2048, 256), ("random",)),
        Case("odd numbers of blocks", _product(384, 640, 384), ("random",)),
    ),
    faithful=_product(256, 384, 256),
    speed=_product(1024, 1024, 1024),
    rungs=(Rung("it runs", 0.0), Rung("five per cent of the chip", 0.05)),
    hints=(
        "`scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)]` adds a Ref at the end.",
        "Clear it in the first step of k, store it in the last: "
        "`pl.program_id(2) == pl.num_programs(2) - 1`.",
        "`out_ref[...] = acc_ref[...].astype(out_ref.dtype)`.",
    ),
    known_wrong=(
        _wrong("scratch_uninitialised", "correct", "accumulator not initialised", "initialis"),
        _wrong("scratch_initialised_once", "correct", "accumulator cleared only once", "only once"),
        _wrong("scratch_in_bf16", "correct", "bfloat16 accumulation", "bfloat16"),
        _wrong("scratch_stored_first", "correct", "stored in the first step", "first block"),
        _wrong("scratch_k_first", "legal", "non-consecutive revisit", "revisit", "last"),
        _wrong("scratch_never_stored", "legal", "output never written", "never stores"),
    ),
)

TILED = _matmul(
    "tiled",
    "Blocks that feed the matrix unit",
    "Take blocks of the 512 class, chosen from the shape, so that each byte fetched is used 512 "
    "times. Now m, n *and* k may be ragged. Rows and columns beyond the edge are cut off when the "
    "block is written, but a ragged k brings values from beyond the array into the sum: mask them.",
    "lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], any m, k and n.",
    result_dtype="bfloat16",
    cases=(
        Case("whole blocks", _product(512, 1024, 512), ("random", "ramp")),
        Case("ragged m and n", _product(600, 512, 640), ("random",), ragged=True),
        Case("ragged k", _product(512, 700, 512), ("random",), ragged=True),
    ),
    faithful=_product(640, 700, 640),
    speed=_product(4096, 4096, 4096),
    rungs=(
        Rung("past what 128³ blocks can do", 0.15),
        Rung("a third of the chip", 0.33),
        Rung("half of the chip", 0.5),
    ),
    hints=(
        "`block_m = min(512, m)` and so on, and `pl.cdiv` for the grid.",
        "Decide in Python whether k is ragged (`k % block_k`): then whole shapes pay nothing.",
        "Compare `jax.lax.broadcasted_iota(jnp.int32, block.shape, axis)` with "
        "`k - pl.program_id(2) * block_k` and `jnp.where` *both* operands to zero: NaN times zero "
        "is NaN.",
    ),
    known_wrong=(
        _wrong("tiled_reads_padding", "correct", "ragged edge read as data", "ragged", "edge"),
        _wrong("tiled_masks_lhs_only", "correct", "one operand masked", "ragged", "edge"),
        _wrong("tiled_floor", "correct", "ragged blocks left out", "never written"),
        _wrong("tiled_small_blocks", "fast", "blocks of 128", "block", "step"),
    ),
)

BEST = _matmul(
    "best",
    "Three quarters of the chip",
    "Multiply 4096³ in `bfloat16` at 75 % of the chip's peak or better. The ladder says what is in "
    "the way of your blocks: traffic, padding, schedule or pipeline. Blocks of 512 × 1024 × 1024 "
    "are a good place to start from. m, n and k are multiples of 512.",
    "lhs @ rhs: bfloat16[m, k] × bfloat16[k, n] -> bfloat16[m, n], as fast as you can.",
    result_dtype="bfloat16",
    cases=(
        Case("one block", _product(512, 512, 512), ("random", "ramp")),
        Case("several blocks", _product(1024, 2048, 1024), ("random",)),
    ),
    faithful=_product(1024, 1024, 512),
    speed=_product(4096, 4096, 4096),
    rungs=(
        Rung("past what 128³ blocks can do", 0.15),
        Rung("a third of the chip", 0.33),
        Rung("half of the chip", 0.5),
        Rung("three quarters of the chip", 0.75),
    ),
    hints=(
        "Arithmetic intensity grows with the block: bytes per step go with "
        "block_m·block_k + block_k·block_n, work with block_m·block_n·block_k.",
        "Two buffers of each block and the accumulator must fit: 16 MiB on v5e unless you raise "
        "`vmem_limit_bytes`.",
        "block_m = 512, block_n = block_k = 1024, float32 accumulator, k last.",
    ),
    known_wrong=(
        _wrong("best_small_blocks", "fast", "blocks of 128", "block", "step"),
        _wrong("best_over_vmem", "compiles", "blocks beyond VMEM", "vmem"),
        _wrong("best_in_bf16", "correct", "bfloat16 accumulation", "bfloat16"),
        _wrong("best_by_xla", "legal", "XLA's own product", "pallas_call"),
    ),
)

EXERCISES = (WHOLE, STRIPS, GRID, BF16_SCRATCH, TILED, BEST)
