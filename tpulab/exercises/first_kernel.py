"""Lab 00: the five verdicts on additions."""

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

_WRONG = "tpulab.exercises.known_wrong.first_kernel"
_SOLUTION = "00_first_kernel.py"


def _f32(*shape: int) -> ArgumentSpec:
    return ArgumentSpec(shape, "float32")


def _wrong(function: str, step: str, mistake: str, *says: str) -> KnownWrong:
    return KnownWrong(f"{_WRONG}:{function}", step, mistake, says)


def _streaming_work(flops_per_element: int):  # type: ignore[no-untyped-def]
    def work(specs: tuple[ArgumentSpec, ...]) -> Work:
        elements = int(np.prod(specs[-1].shape))
        bytes_ = sum(spec.size_bytes for spec in specs) + specs[-1].size_bytes
        return Work(0, flops_per_element * elements, bytes_, "float32")

    return work


def _same_as_last(specs: tuple[ArgumentSpec, ...]) -> ArgumentSpec:
    return ArgumentSpec(specs[-1].shape, "float32")


def _two_terms(specs: tuple[ArgumentSpec, ...]) -> int:
    return 2


def _absolute_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(x) + np.abs(y)


def _rows_reversed_by_block(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    """X in its place, y from the mirrored block: an index map that runs backwards."""
    x, y = arguments[-2:]
    rows = blocks[-1][0] if len(blocks[-1]) == 2 else x.shape[0]
    if x.shape != y.shape or x.shape[0] % rows or x.shape[0] == rows:
        return None
    mirrored = y.reshape(-1, rows, y.shape[1])[::-1].reshape(y.shape)
    return np.asarray(x + mirrored)


def _first_block_everywhere(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    x, y = arguments[-2:]
    rows = blocks[-1][0] if len(blocks[-1]) == 2 else x.shape[0]
    if x.shape != y.shape or rows >= x.shape[0]:
        return None
    source = np.arange(x.shape[0]) % rows
    return np.asarray(x[source] + y[source])


_BLOCK_SUSPECTS = (
    Suspect(
        "the blocks of the inputs do not belong together: one index map runs another way",
        "give both inputs and the output the same index map, lambda i: (i, 0)",
        _rows_reversed_by_block,
        "index map",
    ),
    Suspect(
        "every step reads the first block: the index map does not use the grid index",
        "let the index map return the grid index, lambda i: (i, 0)",
        _first_block_everywhere,
        "index map",
    ),
)


def _last_rows_only(
    arguments: tuple[np.ndarray, ...], blocks: tuple[tuple[int, ...], ...]
) -> np.ndarray | None:
    (x,) = arguments
    rows = blocks[0][0]
    if len(blocks[0]) != 2 or rows >= x.shape[0]:
        return None
    start = (x.shape[0] - 1) // rows * rows
    return np.asarray(x[start:].sum(axis=0, keepdims=True))


ADD = Exercise(
    name="first_kernel.add",
    title="Add two arrays in one block",
    statement=(
        "Write a Pallas kernel that adds two `float32` arrays of the same shape. No grid, no "
        "block specs: both arrays fit into VMEM whole. The kernel gets a *Ref* for each array; "
        "`x_ref[...]` reads it, `out_ref[...] = …` writes it."
    ),
    signature=(
        "def add(x: jax.Array, y: jax.Array) -> jax.Array:\n"
        '    """x + y, both float32[rows, cols], in one block."""\n'
    ),
    solution=f"{_SOLUTION}:add",
    oracle=lambda x, y: x + y,
    magnitude=_absolute_sum,
    depth=_two_terms,
    result=_same_as_last,
    work=_streaming_work(1),
    cases=(
        Case("one tile", (_f32(8, 128), _f32(8, 128)), ("random", "ramp", "zeros", "extremes")),
        Case("not a multiple of a tile", (_f32(20, 200), _f32(20, 200)), ("random",)),
    ),
    faithful=(_f32(64, 256), _f32(64, 256)),
    speed=(_f32(256, 1024), _f32(256, 1024)),
    rungs=(Rung("it runs", 0.0),),
    hints=(
        "A kernel is a function of Refs and returns nothing: `def kernel(x_ref, y_ref, out_ref)`.",
        "`pl.pallas_call(kernel, out_shape=...)` returns a function; call it with x and y.",
        "`out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype)`, and in the kernel "
        "`out_ref[...] = x_ref[...] + y_ref[...]`.",
    ),
    known_wrong=(
        _wrong("add_outside", "correct", "result computed outside the kernel", "outside"),
        _wrong("add_without_kernel", "legal", "no pallas_call", "pallas_call"),
        _wrong("add_constant_luck", "correct", "right on zeros only", "zeros", "random"),
        _wrong("add_in_bf16", "correct", "computed in bfloat16", "bfloat16", "bf16"),
        _wrong("add_never_waits", "safe", "DMA never waited for", "wait", "never written"),
        _wrong("add_waits_without_start", "safe", "DMA waited for but never started", "wait"),
        _wrong("add_semaphore_left", "safe", "semaphore left non-zero", "semaphore"),
        _wrong("add_wrong_dtype", "correct", "wrong output dtype", "bf16"),
    ),
)

ADD_BLOCKS = Exercise(
    name="first_kernel.add_blocks",
    title="Add block by block",
    statement=(
        "The arrays no longer fit into VMEM. Add a grid over blocks of rows, with a `BlockSpec` "
        "for every array, so that the chip fetches the next block while it adds this one. The "
        "number of rows need not be a multiple of your block: Pallas cuts the last one for you."
    ),
    signature=(
        "def add_blocks(x: jax.Array, y: jax.Array) -> jax.Array:\n"
        '    """x + y, both float32[rows, cols], over a grid of blocks of rows."""\n'
    ),
    solution=f"{_SOLUTION}:add_blocks",
    oracle=lambda x, y: x + y,
    magnitude=_absolute_sum,
    depth=_two_terms,
    result=_same_as_last,
    work=_streaming_work(1),
    cases=(
        Case("whole blocks", (_f32(1024, 256), _f32(1024, 256)), ("random", "ramp", "extremes")),
        Case("ragged rows", (_f32(1100, 256), _f32(1100, 256)), ("random",), ragged=True),
    ),
    faithful=(_f32(1024, 128), _f32(1024, 128)),
    speed=(_f32(8192, 1024), _f32(8192, 1024)),
    rungs=(Rung("it streams", 0.1), Rung("half of the bandwidth", 0.5), Rung("in practice", 0.75)),
    hints=(
        "`grid=(pl.cdiv(rows, block_rows),)` runs the kernel once for each block of rows.",
        "`pl.BlockSpec((block_rows, cols), lambda i: (i, 0))`: the map returns *block* indices, "
        "not elements.",
        "Blocks of 1 to 2 MiB keep the DMA engine busy: 512 rows of 1024 float32 are 2 MiB. "
        "Three arrays with two buffers each must stay below 16 MiB.",
    ),
    known_wrong=(
        _wrong("add_blocks_whole", "compiles", "whole array in VMEM", "vmem"),
        _wrong("add_blocks_odd_block", "legal", "block not a multiple of the tile", "multiple"),
        _wrong("add_blocks_swapped", "correct", "index map runs the other way", "index map"),
        _wrong("add_blocks_first_only", "correct", "index map ignores the grid", "index map"),
        _wrong("add_blocks_floor", "correct", "last ragged block left out", "never written"),
        _wrong("add_blocks_tiny", "fast", "blocks of one tile row", "step", "block"),
        _wrong("add_blocks_out_of_range", "legal", "block index out of range", "index map"),
    ),
    suspects=_BLOCK_SUSPECTS,
)

SCALE_ADD = Exercise(
    name="first_kernel.scale_add",
    title="A scalar beside the arrays",
    statement=(
        "Compute `a * x + y` with a scalar `a` that arrives as `float32[1]`. VMEM holds tiles of "
        "8×128; a scalar belongs into SMEM, where the scalar core reads it. The arrays stream in "
        "blocks as before."
    ),
    signature=(
        "def scale_add(a: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:\n"
        '    """a * x + y; a: float32[1], x and y: float32[rows, cols]."""\n'
    ),
    solution=f"{_SOLUTION}:scale_add",
    oracle=lambda a, x, y: a * x + y,
    magnitude=lambda a, x, y: np.abs(a * x) + np.abs(y),
    depth=_two_terms,
    result=_same_as_last,
    work=_streaming_work(2),
    cases=(
        Case(
            "whole blocks",
            (_f32(1), _f32(1024, 256), _f32(1024, 256)),
            ("random", "ramp", "zeros", "extremes"),
        ),
        Case("ragged rows", (_f32(1), _f32(1100, 256), _f32(1100, 256)), ("random",), ragged=True),
    ),
    faithful=(_f32(1), _f32(1024, 128), _f32(1024, 128)),
    speed=(_f32(1), _f32(8192, 1024), _f32(8192, 1024)),
    rungs=(Rung("it streams", 0.1), Rung("half of the bandwidth", 0.5), Rung("in practice", 0.75)),
    hints=(
        "A BlockSpec may name a memory space instead of a block: "
        "`pl.BlockSpec(memory_space=pltpu.SMEM)`.",
        "In the kernel `a_ref[0]` is a scalar; multiplying a block by it costs no extra memory.",
        "`in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), block, block]` with "
        "`block = pl.BlockSpec((512, cols), lambda i: (i, 0))`.",
    ),
    known_wrong=(
        _wrong("scale_add_scaled_outside", "correct", "product computed outside", "outside"),
        _wrong("scale_add_scales_both", "correct", "scales both terms", "scale"),
        _wrong("scale_add_forgets_scale", "correct", "scale dropped", "scale"),
        _wrong("scale_add_vector_from_smem", "compiles", "vector load from SMEM", "smem"),
    ),
    suspects=(
        Suspect(
            "the scale is not applied: this is x + y",
            "multiply the block of x by a_ref[0]",
            lambda arguments, blocks: np.asarray(arguments[1] + arguments[2]),
        ),
        Suspect(
            "the scale is applied to both terms: this is a * (x + y)",
            "multiply the block of x only",
            lambda arguments, blocks: np.asarray(arguments[0] * (arguments[1] + arguments[2])),
        ),
        *_BLOCK_SUSPECTS,
    ),
)

COLUMN_SUM = Exercise(
    name="first_kernel.column_sum",
    title="Carry a sum from step to step",
    statement=(
        "Sum each column: `float32[rows, cols]` to `float32[1, cols]`. The grid runs over blocks "
        "of rows, and every step adds to the *same* output block, which stays in VMEM meanwhile. "
        "Nobody clears that block for you, and the last block may stick out below the array: what "
        "lies there is not zero."
    ),
    signature=(
        "def column_sum(x: jax.Array) -> jax.Array:\n"
        '    """Sum over rows: float32[rows, cols] -> float32[1, cols]."""\n'
    ),
    solution=f"{_SOLUTION}:column_sum",
    oracle=lambda x: x.sum(axis=0, keepdims=True),
    magnitude=lambda x: np.abs(x).sum(axis=0, keepdims=True),
    depth=lambda specs: specs[0].shape[0],
    result=lambda specs: ArgumentSpec((1, specs[0].shape[1]), "float32"),
    work=lambda specs: Work(
        0,
        (specs[0].shape[0] - 1) * specs[0].shape[1],
        specs[0].size_bytes + specs[0].shape[1] * 4,
        "float32",
    ),
    cases=(
        Case("whole blocks", (_f32(2048, 256),), ("random", "ramp", "ones")),
        Case("ragged rows", (_f32(1100, 256),), ("random",), ragged=True),
        Case("fewer rows than a block", (_f32(16, 256),), ("random",), ragged=True),
    ),
    faithful=(_f32(2500, 128),),
    speed=(_f32(8192, 1024),),
    rungs=(Rung("it streams", 0.1), Rung("half of the bandwidth", 0.5), Rung("in practice", 0.68)),
    hints=(
        "The output's index map returns (0, 0) at every step: the block is revisited.",
        "Set it to zero in the first step: `@pl.when(pl.program_id(0) == 0)`.",
        "Mask the rows beyond the end: compare `jax.lax.broadcasted_iota(jnp.int32, block, 0)` "
        "with the rows that are left, and `jnp.where` the rest to zero.",
    ),
    known_wrong=(
        _wrong("column_sum_uninitialised", "correct", "accumulator not initialised", "initialis"),
        _wrong("column_sum_overwrites", "correct", "output stored at every step", "overwrit"),
        _wrong("column_sum_reads_padding", "correct", "ragged edge read as data", "ragged", "edge"),
        _wrong("column_sum_parallel", "legal", "dependent axis marked parallel", "parallel"),
        _wrong("column_sum_bf16", "correct", "accumulated in bfloat16", "bfloat16", "bf16"),
    ),
    suspects=(
        Suspect(
            "only the last block of rows is in the sum: each step overwrites what the one before "
            "it stored",
            "add to the output block: out_ref[...] += …, after setting it to zero at step 0",
            _last_rows_only,
        ),
    ),
)

EXERCISES = (ADD, ADD_BLOCKS, SCALE_ADD, COLUMN_SUM)
