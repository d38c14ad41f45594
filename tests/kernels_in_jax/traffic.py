"""HBM bytes each kernel must move, worked out by hand from its algorithm.

Nothing here looks at a jaxpr, an index map or a compiled program: these are the sums one writes on
paper. An automatic pipeline fetches a block when its index differs from the step before, and writes
a block back when it is left. All figures are for the Pallas kernels alone, without what XLA does
around them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import (
    flash_attention,
    matmul,
    megablox,
    paged_attention,
    paged_attention_int8,
    ragged_paged_attention,
    random_bits,
    splash_attention_mha,
    splash_attention_mqa,
)

BF16, F32, I8, I32 = 2, 4, 1, 4
LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class Traffic:
    """Bytes read from and written to HBM by the kernels, and floating-point work on the MXU."""

    read: int
    written: int
    mxu_flops: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.read + other.read, self.written + other.written, self.mxu_flops + other.mxu_flops
        )


def _matmul(size: int, rows: int, columns: int, depth: int, wide: int, result: int) -> Traffic:
    """A block of each factor a step: the left is read per block column, the right per block row."""
    assert size // depth > 1, "with one block along the depth, factors would be kept"
    left = size * size * wide * (size // columns)
    right = size * size * wide * (size // rows)
    return Traffic(left + right, size * size * result, 2 * size**3)


# -- flash attention -----------------------------------------------------------------------------

_HEADS = flash_attention.BATCH * flash_attention.HEADS
_BLOCKS = flash_attention.SEQUENCE // flash_attention.BLOCK
_FLASH = _HEADS * flash_attention.SEQUENCE * flash_attention.HEAD * BF16  # one of q, k, v, o


def _causal_fetches(blocks: int) -> int:
    """Key blocks fetched a head when skipped steps wait on block 0.

    Row 0 fetches block 0. Row i finds block 0 there, fetches 1..i, and, unless it is the last row,
    block 0 again for its skipped steps.
    """
    return 1 + sum(range(1, blocks)) + max(0, blocks - 2)


def _flash(blocks: int) -> Traffic:
    """q and o once, k and v once per row of query blocks."""
    flops = 2 * 2 * _HEADS * flash_attention.SEQUENCE**2 * flash_attention.HEAD
    return Traffic(_FLASH + 2 * blocks * _FLASH, _FLASH, flops)


def _flash_causal() -> Traffic:
    block = _FLASH // (_HEADS * _BLOCKS)
    pairs = _BLOCKS * (_BLOCKS + 1) // 2
    flops = 2 * 2 * _HEADS * pairs * flash_attention.BLOCK**2 * flash_attention.HEAD
    read = _FLASH + 2 * _HEADS * _causal_fetches(_BLOCKS) * block
    return Traffic(read, _FLASH, flops)


def _flash_backward() -> Traffic:
    """Forward with residuals l and m, kept 128 lanes wide; then dkv; then dq."""
    block = _FLASH // (_HEADS * _BLOCKS)
    wide = _HEADS * flash_attention.SEQUENCE * LANES * F32  # l, m or di across the lanes
    wide_block = wide // (_HEADS * _BLOCKS)
    forward = _flash_causal() + Traffic(0, 2 * wide, 0)
    # keys outside, queries inside: key block j waits on query block 0, then takes j..last
    waiting = sum((j > 0) + _BLOCKS - j for j in range(_BLOCKS))
    dkv_read = (
        2 * _FLASH  # k, v
        + 2 * _HEADS * waiting * block  # q, do
        + _HEADS * waiting * wide_block  # di
        + 2 * _HEADS * _BLOCKS**2 * wide_block  # l and m don't wait: every step
    )
    pairs = _BLOCKS * (_BLOCKS + 1) // 2
    product = 2 * _HEADS * pairs * flash_attention.BLOCK**2 * flash_attention.HEAD
    dkv = Traffic(dkv_read, 2 * _FLASH, 4 * product)
    dq_read = 2 * _FLASH + 2 * _HEADS * _causal_fetches(_BLOCKS) * block + 3 * wide
    return forward + dkv + Traffic(dq_read, _FLASH, 3 * product)


# -- splash attention ----------------------------------------------------------------------------


def _splash_mha(scratch_outputs: bool) -> Traffic:
    """Like causal flash; positions of the queries come in 128 lanes wide.

    Up to jax 0.11 the accumulators are outputs that nobody reads, written once a batch entry.
    """
    m = splash_attention_mha
    heads, blocks = m.BATCH * m.HEADS, m.SEQUENCE // m.BLOCK
    whole = heads * m.SEQUENCE * m.HEAD * BF16
    block = m.BLOCK * m.HEAD * BF16
    positions = heads * m.SEQUENCE * LANES * I32
    tables = 2 * blocks * blocks * I8
    read = whole + 2 * heads * _causal_fetches(blocks) * block + positions + tables
    accumulators = 3 * m.BATCH * m.BLOCK * LANES * F32 if scratch_outputs else 0
    pairs = heads * blocks * (blocks + 1) // 2
    return Traffic(read, whole + accumulators, 2 * 2 * pairs * m.BLOCK**2 * m.HEAD)


def _splash_mha_backward(scratch_outputs: bool) -> Traffic:
    """Forward with residuals, then dkv and dq; per-query scalars come as rows of 512 lanes."""
    m = splash_attention_mha
    heads, blocks = m.BATCH * m.HEADS, m.SEQUENCE // m.BLOCK
    whole = heads * m.SEQUENCE * m.HEAD * BF16
    block = m.BLOCK * m.HEAD * BF16
    row = m.BLOCK * F32
    tables = 2 * blocks * blocks * I8
    accumulator = m.BATCH * m.BLOCK * LANES * F32 if scratch_outputs else 0
    product = 2 * heads * (blocks * (blocks + 1) // 2) * m.BLOCK**2 * m.HEAD
    sums = heads * m.SEQUENCE * LANES * F32
    forward = _splash_mha(scratch_outputs) + Traffic(0, sums, 0)
    # keys outside, queries inside: key block j waits on query block 0, then takes j..last
    waiting = heads * sum((j > 0) + blocks - j for j in range(blocks))
    # q and do; logsumexp, di and the positions in eight sublanes
    dkv_read = 2 * whole + waiting * (2 * block + 3 * SUBLANES * row) + tables
    dkv = Traffic(dkv_read, 2 * whole + 2 * accumulator, 4 * product)
    positions = heads * m.SEQUENCE * LANES * I32
    keys = 2 * heads * _causal_fetches(blocks) * block
    dq_read = 2 * whole + keys + 2 * heads * blocks * row + positions + tables
    return forward + dkv + Traffic(dq_read, whole + accumulator, 3 * product)


def _splash_mqa(scratch_outputs: bool) -> Traffic:
    """A window of 1024 keys ends inside the second block before: at most three blocks a row."""
    m = splash_attention_mqa
    rows, width = m.SEQUENCE // m.BLOCK, 3
    fetches, previous = 0, None
    for _head in range(m.HEADS):
        for row in range(rows):
            blocks = list(range(max(0, row - 2), row + 1))
            following = max(0, row - 1) if row + 1 < rows else 0
            for block in blocks + [following] * (width - len(blocks)):
                fetches += block != previous
                previous = block
    whole = m.HEADS * m.SEQUENCE * m.HEAD * BF16
    positions = m.HEADS * m.SEQUENCE * LANES * I32
    tables = 2 * rows * width * I8
    read = whole + 2 * fetches * m.BLOCK * m.HEAD * BF16 + positions + tables
    accumulators = 3 * m.BLOCK * LANES * F32 if scratch_outputs else 0
    pairs = m.HEADS * sum(min(row + 1, width) for row in range(rows))
    return Traffic(read, whole + accumulators, 2 * 2 * pairs * m.BLOCK**2 * m.HEAD)


# -- paged attention -----------------------------------------------------------------------------


def _blocks(length: int, block: int) -> int:
    return -(-length // block)


def _pages(module: Any, wide: int) -> int:
    """Bytes of k and v of all key/value heads in whole blocks of pages."""
    tokens = module.PAGES_PER_BLOCK * module.PAGE
    blocks = sum(_blocks(length, tokens) for length in module.LENGTHS)
    return 2 * blocks * tokens * module.KV_HEADS * module.HEAD * wide


def _paged(module: Any, wide: int, query: int) -> Traffic:
    """Whole blocks of pages of k and v for every key/value head; query and results once."""
    m = module
    tokens = m.PAGES_PER_BLOCK * m.PAGE
    blocks = sum(_blocks(length, tokens) for length in m.LENGTHS) * m.KV_HEADS
    pages = _pages(m, wide)
    queries = m.BATCH * m.QUERY_HEADS * m.HEAD
    prefetched = (m.BATCH + m.BATCH * m.PAGES_PER_SEQUENCE + 1 + 1) * I32
    maxima_and_sums = 2 * m.BATCH * m.QUERY_HEADS * F32
    group = m.QUERY_HEADS // m.KV_HEADS
    flops = 2 * 2 * blocks * group * tokens * m.HEAD
    return Traffic(pages + queries * query + prefetched, queries * query + maxima_and_sums, flops)


def _ragged() -> Traffic:
    """Every block of queries reads all keys of every sequence that has a query in it."""
    m = ragged_paged_attention
    tokens = m.PAGES_PER_BLOCK * m.PAGE
    fetched, start = 0, 0
    for queries, keys in zip(m.QUERY_LENGTHS, m.KV_LENGTHS, strict=True):
        first, last = start // m.QUERIES_PER_BLOCK, (start + queries - 1) // m.QUERIES_PER_BLOCK
        fetched += (last - first + 1) * _blocks(keys, tokens)
        start += queries
    pages = fetched * tokens * 2 * m.KV_HEADS * m.HEAD * BF16
    queries = m.TOKENS * m.QUERY_HEADS * m.HEAD * BF16
    prefetched = m.SEQUENCES + m.SEQUENCES * m.PAGES_PER_SEQUENCE + m.SEQUENCES + 1 + 2 + 1
    rows = m.QUERIES_PER_BLOCK * m.QUERY_HEADS
    flops = 2 * 2 * fetched * rows * tokens * m.HEAD
    return Traffic(pages + queries + prefetched * I32, queries, flops)


# -- grouped matrix products ---------------------------------------------------------------------


def _visits(with_empty: bool) -> int:
    """Tiles of rows that the groups touch; a tile on a border counts for both its groups."""
    rows, _, _ = megablox.TILING
    visits, start = 0, 0
    for size in megablox.GROUP_SIZES:
        end = start + size
        visits += -(-end // rows) - start // rows if size else int(with_empty)
        start = end
    return visits


def _metadata() -> int:
    """Group offsets, group and tile of each visit, and the offset of the first group."""
    groups, tiles = len(megablox.GROUP_SIZES), megablox.ROWS // megablox.TILING[0]
    return (groups + 1 + 2 * (tiles + groups - 1) + 1) * I32


def _gmm() -> Traffic:
    """Depth is innermost with several tiles, so every step fetches both factors."""
    tm, tk, tn = megablox.TILING
    steps = (megablox.COLUMNS // tn) * _visits(with_empty=False) * (megablox.DEPTH // tk)
    read = steps * (tm * tk + tk * tn) * BF16 + _metadata()
    return Traffic(read, megablox.ROWS * megablox.COLUMNS * BF16, 2 * steps * tm * tk * tn)


def _tgmm() -> Traffic:
    """Visits are innermost, so a tile on a border is kept; every group is written."""
    tm, tk, tn = megablox.TILING
    outer = (megablox.COLUMNS // tn) * (megablox.DEPTH // tk)
    tiles = megablox.ROWS // tm
    read = outer * tiles * (tm * tk + tm * tn) * BF16 + _metadata()
    written = len(megablox.GROUP_SIZES) * megablox.DEPTH * megablox.COLUMNS * BF16
    return Traffic(read, written, 2 * outer * _visits(with_empty=False) * tm * tk * tn)


def expected(name: str, *, scratch_outputs: bool) -> Traffic | None:
    """The traffic of a case by name; None where there is no formula (see ``cases.toml``).

    Args:
        name: function name of the case.
        scratch_outputs: whether this JAX's splash attention keeps its accumulators in outputs.
    """
    size = matmul.SIZE
    rows, columns = random_bits.SHAPE
    bits = rows * columns * 4
    formulas = {
        "matmul": lambda: _matmul(size, 512, 1024, 1024, BF16, BF16),
        "matmul_small_blocks": lambda: _matmul(size, 256, 256, 256, BF16, BF16),
        "matmul_int8": lambda: _matmul(size, 512, 1024, 1024, I8, I32),
        "flash_attention": lambda: _flash(_BLOCKS),
        "flash_attention_causal": _flash_causal,
        "flash_attention_default_blocks": lambda: _flash(flash_attention.SEQUENCE // 128),
        "flash_attention_backward": _flash_backward,
        "splash_attention_mha": lambda: _splash_mha(scratch_outputs),
        "splash_attention_mha_backward": lambda: _splash_mha_backward(scratch_outputs),
        "splash_attention_mqa": lambda: _splash_mqa(scratch_outputs),
        "paged_attention": lambda: _paged(paged_attention, BF16, F32),
        "paged_attention_grid": lambda: _paged(paged_attention, BF16, F32),
        # int8 values, and a float32 scale that the wrapper has copied to every lane
        "paged_attention_int8": lambda: _paged(paged_attention_int8, I8 + F32, BF16),
        "ragged_paged_attention": _ragged,
        "gmm": _gmm,
        "gmm_backward": lambda: _gmm() + _gmm() + _tgmm(),
        "tgmm": _tgmm,
        "threefry_bits": lambda: Traffic(2 * 4, bits, 0),
        "threefry_bits_padded": lambda: Traffic(2 * 4, 1024 * 2048 * 4, 0),
        "philox_bits": lambda: Traffic(2 * 4 + 4, bits, 0),
        "double": lambda: Traffic(1024 * 1024 * F32, 1024 * 1024 * F32, 0),
    }
    formula = formulas.get(name)
    return formula() if formula else None


def must_read(name: str) -> int:
    """Bytes that can't stay in HBM whatever XLA does: arguments the answer depends on, once."""
    heads = flash_attention.BATCH * flash_attention.HEADS * flash_attention.SEQUENCE
    splash = splash_attention_mha.BATCH * splash_attention_mha.HEADS * splash_attention_mha.SEQUENCE
    shared = (splash_attention_mqa.HEADS + 2) * splash_attention_mqa.SEQUENCE
    rows = megablox.ROWS * megablox.DEPTH * BF16
    used = sum(size > 0 for size in megablox.GROUP_SIZES)
    weights = used * megablox.DEPTH * megablox.COLUMNS * BF16
    arguments = {
        "flash_attention_backward": 3 * heads * flash_attention.HEAD * BF16,
        "splash_attention_mha": 3 * splash * splash_attention_mha.HEAD * BF16,
        "splash_attention_mha_backward": 3 * splash * splash_attention_mha.HEAD * BF16,
        "splash_attention_mqa": shared * splash_attention_mqa.HEAD * BF16,
        "paged_attention": _pages(paged_attention, BF16),
        "paged_attention_grid": _pages(paged_attention, BF16),
        "paged_attention_int8": _pages(paged_attention_int8, I8),
        "gmm": rows + weights,
        "gmm_backward": rows + weights,
        "tgmm": 2 * rows,
        "threefry_bits_padded": 0,
    }
    return arguments[name]


def xla_may_add(name: str) -> int:
    """Bytes that XLA's own operations move around a kernel, where they are not small."""
    if name != "paged_attention_int8":
        return 0
    # the wrapper broadcasts the scales of every page, used or not, to the head size
    m = paged_attention_int8
    tokens = 2 * m.KV_HEADS * m.BATCH * m.PAGES_PER_SEQUENCE * m.PAGE
    return tokens * (m.HEAD * F32 + F32)
