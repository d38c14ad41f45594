"""Lab 03: grids, blocks and index maps; in four of six puzzles only the call is to be written."""

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

_WRONG = "tpulab.exercises.known_wrong.grids"
_SOLUTION = "03_grids_and_blocks.py"
_Specs = tuple[ArgumentSpec, ...]
_Arrays = tuple[np.ndarray, ...]
_Blocks = tuple[tuple[int, ...], ...]


def _f32(*shape: int) -> ArgumentSpec:
    return ArgumentSpec(shape, "float32")


def _bf16(*shape: int) -> ArgumentSpec:
    return ArgumentSpec(shape, "bfloat16")


def _wrong(function: str, step: str, mistake: str, *says: str) -> KnownWrong:
    return KnownWrong(f"{_WRONG}:{function}", step, mistake, says)


def _one_term(specs: _Specs) -> int:
    return 1


def _two_terms(specs: _Specs) -> int:
    return 2


def _like_first(specs: _Specs) -> ArgumentSpec:
    return _f32(*specs[0].shape)


def _column(specs: _Specs) -> ArgumentSpec:
    return _f32(specs[0].shape[0], 1)


def _addition_work(specs: _Specs) -> Work:
    """One addition an element of the first argument, which is read and written once."""
    elements = int(np.prod(specs[0].shape))
    return Work(0, elements, 2 * specs[0].size_bytes + specs[1].size_bytes, "float32")


def _reduction_work(specs: _Specs) -> Work:
    rows, cols = specs[0].shape
    return Work(0, rows * (cols - 1), specs[0].size_bytes + 4 * rows, "float32")


def _bias(rows: int, cols: int) -> _Specs:
    return _f32(rows, cols), _f32(1, cols)


def _first_bias_everywhere(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    x, bias = arguments
    if len(blocks) != 3 or len(blocks[1]) != 2 or blocks[1][1] >= bias.shape[1]:
        return None
    return np.asarray(x + bias[:, np.arange(bias.shape[1]) % blocks[1][1]])


BROADCAST_ADD = Exercise(
    name="grids.broadcast_add",
    title="An operand that does not follow",
    statement=(
        "Write only the call. Add one row `bias` to every row of `x`; the kernel is given:\n\n"
        "```python\n"
        "def kernel(x_ref, bias_ref, out_ref):\n"
        "    out_ref[...] = x_ref[...] + bias_ref[...]\n"
        "```\n\n"
        "Cut `x` into blocks along *both* dimensions: rows and cols are multiples of 512. The "
        "block of `bias` follows one axis of the grid and ignores the other."
    ),
    signature=(
        "def broadcast_add(x: jax.Array, bias: jax.Array) -> jax.Array:\n"
        '    """x + bias: float32[rows, cols] + float32[1, cols], over a grid of two axes."""\n'
    ),
    solution=f"{_SOLUTION}:broadcast_add",
    oracle=lambda x, bias: x + bias,
    magnitude=lambda x, bias: np.abs(x) + np.abs(bias),
    depth=_two_terms,
    result=_like_first,
    work=_addition_work,
    cases=(
        Case("several blocks", _bias(1024, 1536), ("random", "ramp", "extremes")),
        Case("one block", _bias(512, 512), ("random",)),
    ),
    faithful=_bias(1024, 1024),
    speed=_bias(8192, 2048),
    rungs=(
        Rung("past small blocks", 0.3),
        Rung("half of the bandwidth", 0.5),
        Rung("in practice", 0.75),
    ),
    hints=(
        "An index map gets every index of the grid. It need not use them all.",
        "One row can be a block: (1, cols) is legal because 1 is the whole first dimension.",
        "The block of x is (i, j), and so is that of the result; bias has one row of blocks, so "
        "its map returns 0 first.",
    ),
    known_wrong=(
        _wrong("broadcast_add_follows_rows", "legal", "index map out of range", "index map"),
        _wrong("broadcast_add_first_only", "correct", "index map ignores the grid", "index map"),
        _wrong("broadcast_add_odd_block", "legal", "block shape illegal", "multiple of"),
        _wrong("broadcast_add_elements", "legal", "elements in place of blocks", "counts blocks"),
        _wrong("broadcast_add_tiny", "fast", "blocks of one tile", "step", "block"),
    ),
    suspects=(
        Suspect(
            "every step adds the first block of bias: its index map does not use the grid index",
            "find the axis of the grid that walks along the columns, and return its index",
            _first_bias_everywhere,
            "index map",
        ),
    ),
)


def _swap_blocks(array: np.ndarray, rows: int, cols: int) -> np.ndarray | None:
    """The array with block (i, j) where block (j, i) belongs, if that is possible and differs."""
    if array.shape[0] % rows or array.shape[1] % cols:
        return None
    down, across = array.shape[0] // rows, array.shape[1] // cols
    if down != across or down == 1:
        return None
    grid = array.reshape(down, rows, across, cols)
    return np.asarray(grid.transpose(2, 1, 0, 3).reshape(array.shape))


def _in_place(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    """Each block transposed where it was."""
    (x,) = arguments
    return _swap_blocks(x.T, *blocks[-1]) if len(blocks[-1]) == 2 else None


def _blocks_only(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    """Blocks in their new places, and nothing turned inside them."""
    (x,) = arguments
    if len(blocks) != 2 or len(blocks[0]) != 2 or blocks[0] != blocks[1]:
        return None
    rows, cols = blocks[0]
    if rows != cols or x.shape[0] % rows or x.shape[1] % cols:
        return None
    down, across = x.shape[0] // rows, x.shape[1] // cols
    grid = x.reshape(down, rows, across, cols)
    return np.asarray(grid.transpose(2, 1, 0, 3).reshape(x.shape[::-1]))


TRANSPOSE = Exercise(
    name="grids.transpose",
    title="Blocks change places",
    statement=(
        "Write only the call. Transpose a matrix; the kernel turns one block:\n\n"
        "```python\n"
        "def kernel(x_ref, out_ref):\n"
        "    out_ref[...] = x_ref[...].T\n"
        "```\n\n"
        "You say where each turned block belongs. Rows and columns may be ragged, and the block of "
        "the result has to be legal as well: its columns are the rows of the block you read."
    ),
    signature=(
        "def transpose(x: jax.Array) -> jax.Array:\n"
        '    """x.T: float32[rows, cols] -> float32[cols, rows], block by block."""\n'
    ),
    solution=f"{_SOLUTION}:transpose",
    oracle=lambda x: x.T,
    magnitude=lambda x: np.abs(x.T),
    depth=_one_term,
    result=lambda specs: _f32(*specs[0].shape[::-1]),
    work=lambda specs: Work(0, 0, 2 * specs[0].size_bytes, "float32"),
    cases=(
        Case("square", (_f32(1024, 1024),), ("random", "ramp")),
        Case("wide", (_f32(512, 1536),), ("random",)),
        Case("ragged", (_f32(700, 1100),), ("random",), ragged=True),
    ),
    faithful=(_f32(1024, 600),),
    speed=(_f32(4096, 2048),),
    rungs=(
        Rung("past blocks of 128 × 128", 0.45),
        Rung("two thirds of the bandwidth", 0.66),
        Rung("in practice", 0.75),
    ),
    hints=(
        "Take a sheet of paper: 2 × 3 blocks. Where does block (0, 2) go?",
        "A block of 8 rows is legal to read. Turned, it has 8 columns: is that legal to write?",
        "Blocks of 512 × 512 on both sides, read at (i, j) and written at (j, i).",
    ),
    known_wrong=(
        _wrong("transpose_not_moved", "legal", "output index map not swapped", "swapped"),
        _wrong("transpose_blocks_only", "correct", "blocks moved, not turned", "inside"),
        _wrong("transpose_flat_blocks", "legal", "block of the result illegal", "multiple of"),
        _wrong("transpose_floor", "correct", "ragged blocks left out", "never written"),
        _wrong("transpose_outside", "correct", "result computed outside the kernel", "outside"),
        _wrong("transpose_whole", "compiles", "whole array in VMEM", "vmem"),
        _wrong("transpose_small", "fast", "blocks of 128", "step", "block"),
    ),
    suspects=(
        Suspect(
            "every block is turned and left where it was: the output's index map looks swapped",
            "write the block that was read at (i, j) to (j, i)",
            _in_place,
            "index map",
        ),
        Suspect(
            "the blocks are in their places, but nothing is turned inside them",
            "transpose the block in the kernel as well: x_ref[...].T",
            _blocks_only,
        ),
    ),
)


def _products(batch: int, m: int, k: int, n: int) -> _Specs:
    return _bf16(batch, m, k), _bf16(batch, k, n)


def _batched_work(specs: _Specs) -> Work:
    (batch, m, k), n = specs[0].shape, specs[1].shape[2]
    bytes_ = specs[0].size_bytes + specs[1].size_bytes + 4 * batch * m * n
    return Work(2 * batch * m * k * n, 0, bytes_, "bfloat16")


BATCHED_MATMUL = Exercise(
    name="grids.batched_matmul",
    title="A dimension that the kernel does not see",
    statement=(
        "Write only the call. Multiply `batch` pairs of matrices; the kernel knows two dimensions "
        "and no batch:\n\n"
        "```python\n"
        "def kernel(lhs_ref, rhs_ref, out_ref):\n"
        "    lhs, rhs = lhs_ref[...], rhs_ref[...]\n"
        "    out_ref[...] = jnp.dot(lhs, rhs, preferred_element_type=jnp.float32)\n"
        "```\n\n"
        "`None` in a block's shape takes one slice along that dimension and squeezes it out. One "
        "pair fits into VMEM whole: m, k and n are at most 512."
    ),
    signature=(
        "def batched_matmul(lhs: jax.Array, rhs: jax.Array) -> jax.Array:\n"
        '    """lhs @ rhs: bfloat16[batch, m, k] × bfloat16[batch, k, n] -> '
        'float32[batch, m, n]."""\n'
    ),
    solution=f"{_SOLUTION}:batched_matmul",
    oracle=lambda lhs, rhs: lhs @ rhs,
    magnitude=lambda lhs, rhs: np.abs(lhs) @ np.abs(rhs),
    depth=lambda specs: specs[0].shape[2],
    result=lambda specs: _f32(specs[0].shape[0], specs[0].shape[1], specs[1].shape[2]),
    work=_batched_work,
    cases=(
        Case("four pairs", _products(4, 128, 256, 128), ("random", "ramp")),
        Case("three pairs of odd sizes", _products(3, 72, 200, 328), ("random",)),
    ),
    faithful=_products(3, 128, 128, 256),
    speed=_products(64, 512, 512, 512),
    # rhs read anew for each quarter of lhs: 4 / 7 of what is possible
    rungs=(
        Rung("every matrix moves once", 0.6),
        Rung("two thirds of the bandwidth", 0.66),
        Rung("in practice", 0.75),
    ),
    hints=(
        "One axis is enough for the grid: one step a pair.",
        "A squeezed dimension still has its index: the map returns three numbers for an array of "
        "three dimensions.",
        "pl.BlockSpec((None, m, k), lambda b: (b, 0, 0)), and the like for rhs and the result.",
    ),
    known_wrong=(
        _wrong("batched_matmul_one", "legal", "block of 1 in place of None", "shape"),
        _wrong("batched_matmul_same_rhs", "correct", "rhs does not move", "rhs"),
        _wrong("batched_matmul_two_indices", "legal", "index map of two results", "index map"),
        _wrong("batched_matmul_backwards", "correct", "index map runs backwards", "index map"),
        _wrong("batched_matmul_eight", "compiles", "eight pairs in VMEM", "vmem"),
        _wrong("batched_matmul_refetches", "fast", "operand fetched anew", "rhs_ref 4 times"),
    ),
    suspects=(
        Suspect(
            "every product is made with the first rhs: its index map does not use the grid index",
            "let all three index maps return the batch index first",
            lambda arguments, blocks: np.asarray(arguments[0] @ arguments[1][:1]),
            "index map",
        ),
        Suspect(
            "lhs and rhs of different pairs are multiplied: one index map runs backwards",
            "let all three index maps return the batch index first",
            lambda arguments, blocks: np.asarray(arguments[0] @ arguments[1][::-1]),
            "index map",
        ),
    ),
)


def _last_columns_only(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    (x,) = arguments
    if len(blocks[0]) != 2 or blocks[0][1] >= x.shape[1]:
        return None
    start = (x.shape[1] - 1) // blocks[0][1] * blocks[0][1]
    return np.asarray(x[:, start:].sum(axis=1, keepdims=True))


def _first_columns_repeated(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    (x,) = arguments
    if len(blocks[0]) != 2 or blocks[0][1] >= x.shape[1]:
        return None
    steps = -(-x.shape[1] // blocks[0][1])
    return np.asarray(steps * x[:, : blocks[0][1]].sum(axis=1, keepdims=True))


ROW_SUMS = Exercise(
    name="grids.row_sums",
    title="Come back to a block, and in the right order",
    statement=(
        "Sum each row: `float32[rows, cols]` to `float32[rows, 1]`. The grid has two axes, one "
        "over blocks of rows and one over blocks of columns. All steps of a row of blocks add to "
        "one block of the result. Rows and cols are multiples of 512.\n\n"
        "Write the kernel and the call. Which axis must be the last? When is the sum cleared?"
    ),
    signature=(
        "def row_sums(x: jax.Array) -> jax.Array:\n"
        '    """Sum along rows: float32[rows, cols] -> float32[rows, 1], grid of two axes."""\n'
    ),
    solution=f"{_SOLUTION}:row_sums",
    oracle=lambda x: x.sum(axis=1, keepdims=True),
    magnitude=lambda x: np.abs(x).sum(axis=1, keepdims=True),
    depth=lambda specs: specs[0].shape[1],
    result=_column,
    work=_reduction_work,
    cases=(
        Case("two by three blocks", (_f32(1024, 1536),), ("random", "ramp", "ones")),
        Case("one block", (_f32(512, 512),), ("random",)),
    ),
    faithful=(_f32(1024, 1024),),
    speed=(_f32(4096, 4096),),
    rungs=(Rung("it streams", 0.1), Rung("half of the bandwidth", 0.5), Rung("in practice", 0.68)),
    hints=(
        "A block of the result is kept as long as the *next* step wants it too.",
        "So the axis over columns comes last. Clear the sum where that axis is at 0, not just "
        "once at the very first step.",
        "@pl.when(pl.program_id(1) == 0) clears, then out_ref[...] += jnp.sum(x_ref[...], axis=1, "
        "keepdims=True); the map of the result ignores the last index.",
    ),
    known_wrong=(
        _wrong("row_sums_columns_first", "legal", "non-consecutive revisit", "come back to"),
        _wrong("row_sums_uninitialised", "correct", "sum not initialised", "initialis"),
        _wrong("row_sums_cleared_once", "correct", "cleared in one step only", "initialis"),
        _wrong("row_sums_overwrites", "correct", "output stored at every step", "overwrit"),
        _wrong("row_sums_first_block", "correct", "index map ignores columns", "index map"),
        _wrong("row_sums_swapped", "legal", "index map swapped", "swapped"),
        _wrong("row_sums_parallel", "legal", "dependent axis marked parallel", "parallel"),
    ),
    suspects=(
        Suspect(
            "only the last block of columns is in the sum: each step overwrites what the one "
            "before it stored",
            "add to the output block, and clear it only where the axis over columns is at 0",
            _last_columns_only,
        ),
        Suspect(
            "the first block of columns is added again and again: the index map of the input does "
            "not use the index over columns",
            "let the map of x return both grid indices",
            _first_columns_repeated,
            "index map",
        ),
    ),
)


def _not_below_zero(arguments: _Arrays, blocks: _Blocks) -> np.ndarray:
    return np.asarray(np.maximum(arguments[0].max(axis=1, keepdims=True), 0.0))


def _without_last_columns(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    (x,) = arguments
    whole = x.shape[1] // blocks[0][1] * blocks[0][1] if len(blocks[0]) == 2 else 0
    if not 0 < whole < x.shape[1]:
        return None
    return np.asarray(x[:, :whole].max(axis=1, keepdims=True))


def _last_columns_max(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    (x,) = arguments
    if len(blocks[0]) != 2 or blocks[0][1] >= x.shape[1]:
        return None
    start = (x.shape[1] - 1) // blocks[0][1] * blocks[0][1]
    return np.asarray(x[:, start:].max(axis=1, keepdims=True))


ROW_MAX = Exercise(
    name="grids.row_max",
    title="Over the edge",
    statement=(
        "The largest number of each row: `float32[rows, cols]` to `float32[rows, 1]`, for any rows "
        "and cols. What sticks out of the array on the right enters your maximum unless you mask "
        "it, and it can be anything. What sticks out below is cut off when the block is written. "
        "Mask with a number that never wins."
    ),
    signature=(
        "def row_max(x: jax.Array) -> jax.Array:\n"
        '    """Maximum along rows: float32[rows, cols] -> float32[rows, 1], any shape."""\n'
    ),
    solution=f"{_SOLUTION}:row_max",
    oracle=lambda x: x.max(axis=1, keepdims=True),
    magnitude=lambda x: np.abs(x).max(axis=1, keepdims=True),
    depth=_one_term,
    result=_column,
    work=_reduction_work,
    cases=(
        Case("whole blocks", (_f32(512, 2048),), ("random", "ramp")),
        Case("ragged columns", (_f32(512, 1300),), ("random", "ramp"), ragged=True),
        Case("ragged both ways", (_f32(600, 1300),), ("random",), ragged=True),
    ),
    faithful=(_f32(600, 1300),),
    speed=(_f32(4096, 5000),),
    rungs=(Rung("past small blocks", 0.25), Rung("a third", 0.33), Rung("in practice", 0.5)),
    hints=(
        "Round both axes of the grid up with pl.cdiv.",
        "jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1) numbers the columns of a block; how "
        "many of them lie inside at this step?",
        "jnp.where(column < cols - j * block_cols, x_ref[...], -jnp.inf), and start from -inf, "
        "not from 0.",
    ),
    known_wrong=(
        _wrong("row_max_reads_padding", "correct", "ragged edge read as data", "ragged", "edge"),
        _wrong("row_max_masks_with_zero", "correct", "masked with a number that wins", "zero"),
        _wrong("row_max_starts_at_zero", "correct", "initialised with 0", "zero"),
        _wrong("row_max_floor_columns", "correct", "last columns left out", "no step reads"),
        _wrong("row_max_overwrites", "correct", "output stored at every step", "overwrit"),
        _wrong("row_max_columns_first", "legal", "non-consecutive revisit", "come back to"),
        _wrong("row_max_small", "fast", "small blocks", "step", "block"),
    ),
    suspects=(
        Suspect(
            "rows without a positive number come out as zero: a zero takes part in the maximum",
            "mask with -jnp.inf, and start from -jnp.inf: it never wins",
            _not_below_zero,
        ),
        Suspect(
            "only the last block of columns counts: each step overwrites what the one before it "
            "stored",
            "store the larger of what is there and the block's maximum",
            _last_columns_max,
        ),
        Suspect(
            "the last, ragged block of columns does not count: no step reads it, or what lies "
            "beyond the edge spoils its maximum",
            "round the grid up, pl.cdiv(cols, block_cols), and mask what lies beyond the edge",
            _without_last_columns,
        ),
    ),
)


def _positions(batch: int, length: int, features: int) -> _Specs:
    return _f32(batch, length, features), _f32(length, features)


def _first_positions_everywhere(arguments: _Arrays, blocks: _Blocks) -> np.ndarray | None:
    x, table = arguments
    rows = blocks[1][-2] if len(blocks) == 3 and len(blocks[1]) >= 2 else table.shape[0]
    if rows >= table.shape[0]:
        return None
    return np.asarray(x + table[np.arange(table.shape[0]) % rows])


ADD_POSITIONS = Exercise(
    name="grids.add_positions",
    title="The order of the grid",
    statement=(
        "Write only the call. Every sequence of a batch gets the same table of positions added; "
        "the kernel sees one block of one sequence:\n\n"
        "```python\n"
        "def kernel(x_ref, table_ref, out_ref):\n"
        "    out_ref[...] = x_ref[...] + table_ref[...]\n"
        "```\n\n"
        "The length is a multiple of 512. There are two orders of the grid. Both are right. In "
        "one of them each block of the table moves once."
    ),
    signature=(
        "def add_positions(x: jax.Array, table: jax.Array) -> jax.Array:\n"
        '    """x + table: float32[batch, length, features] + float32[length, features]."""\n'
    ),
    solution=f"{_SOLUTION}:add_positions",
    oracle=lambda x, table: x + table,
    magnitude=lambda x, table: np.abs(x) + np.abs(table),
    depth=_two_terms,
    result=_like_first,
    work=_addition_work,
    cases=(
        Case("two sequences", _positions(2, 1024, 128), ("random", "ramp", "extremes")),
        Case("three sequences, one block each", _positions(3, 512, 256), ("random",)),
    ),
    faithful=_positions(2, 1024, 128),
    speed=_positions(16, 2048, 1024),
    # read anew for each sequence, the table makes it (2 + 1/16) / 3 = 69 % of what is possible
    rungs=(Rung("three fifths of the bandwidth", 0.6), Rung("in practice", 0.75)),
    hints=(
        "The last axis of the grid runs fastest. A block that ignores it stays.",
        "The table does not know about the batch; so let the batch run fastest.",
        "grid=(length // 512, batch), with the map of the table returning (i, 0) and that of x "
        "(b, i, 0) for blocks of (None, 512, features).",
    ),
    known_wrong=(
        _wrong("add_positions_batch_first", "fast", "table fetched for each sequence", "16 times"),
        _wrong("add_positions_by_batch", "legal", "table follows the batch", "index map"),
        _wrong("add_positions_first_only", "correct", "index map ignores the grid", "index map"),
        _wrong("add_positions_swapped", "legal", "index map swapped", "swapped"),
        _wrong("add_positions_whole", "compiles", "whole sequences in VMEM", "vmem"),
    ),
    suspects=(
        Suspect(
            "every step adds the first block of the table: its index map does not use the index "
            "over the length",
            "let the map of the table return the index over blocks of the length",
            _first_positions_everywhere,
            "index map",
        ),
    ),
)

EXERCISES: tuple[Exercise, ...] = (
    BROADCAST_ADD,
    TRANSPOSE,
    BATCHED_MATMUL,
    ROW_SUMS,
    ROW_MAX,
    ADD_POSITIONS,
)
