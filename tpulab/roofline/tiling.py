"""Block shapes of a tiled matmul: does it fit, what does it move, how long does it take at best.

Everything is vectorised: block sizes may be arrays of any shapes that broadcast together, and a
whole space of choices is one call. The model is the one of a `pallas_call` whose grid walks blocks
of the result and of the contraction, last axis of `order` fastest, with automatic pipelining:
a block is moved only when its index changes.
"""

from __future__ import annotations

import functools
import itertools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from tpulab.errors import TpulabError
from tpulab.hardware import Chip, bits, canonical_dtype, dtype_name, get_chip, native_tile
from tpulab.roofline.bounds import Work, bound

Sizes = npt.ArrayLike
_AXES = ("m", "k", "n")
# part of the VMEM limit that ranking leaves to the compiler, whose windows and scratch are exactly
# those counted here; on top come spilled registers, 0.3 to 2.8 MiB for 512 to 1024 wide blocks
_RESERVE = 0.15


@functools.cache
def _step_overhead_cycles() -> float:
    text = resources.files("tpulab.roofline").joinpath("constants.toml").read_text("utf-8")
    return float(tomllib.loads(text)["step_overhead_cycles"]["value"])


def _round_up(value: Any, multiple: Any) -> Any:
    return -(-value // multiple) * multiple


def _padded_block_bytes(rows: np.ndarray, columns: np.ndarray, dtype: str) -> np.ndarray:
    """VMEM bytes of blocks [rows, columns]: whole tiles; few rows use smaller tiles."""
    sublanes, lanes = native_tile(dtype)
    packing = max(1, 32 // bits(dtype))
    tile = np.full(np.shape(rows), sublanes, np.int64)
    while True:
        smaller = (tile > packing) & (tile // 2 >= rows)
        if not smaller.any():
            break
        tile = np.where(smaller, tile // 2, tile)
    padded: np.ndarray = _round_up(rows, tile) * _round_up(columns, lanes) * bits(dtype) // 8
    return padded


@dataclass(frozen=True, eq=False)
class Tilings:
    """Tiled matmuls [m, k] x [k, n], one for each choice of block; arrays share one shape.

    Attributes:
        block_m, block_k, block_n: the choice.
        steps: grid steps.
        legal: block shapes obey the (8, 128) rule and the result is not revisited after other work.
        fits: `vmem_bytes` within `vmem_limit_bytes`.
        vmem_bytes: blocks x buffers + accumulator, in native tiles.
        hbm_read_bytes, hbm_written_bytes: traffic, revisits elided.
        compute_seconds: matrix unit at peak on blocks padded to the array size.
        memory_seconds: traffic at the HBM bandwidth.
        bound_seconds: max of the two.
        estimate_seconds: bound + first fetch + last write-back + overhead of every grid step; an
            estimate that ranks choices, not a prediction from compiled code.
        padding_efficiency: useful FLOP / FLOP of padded blocks.
    """

    m: int
    k: int
    n: int
    chip: str
    dtype: str
    rhs_dtype: str
    out_dtype: str
    order: str
    vmem_limit_bytes: int
    speed_of_light_seconds: float
    block_m: np.ndarray
    block_k: np.ndarray
    block_n: np.ndarray
    steps: np.ndarray
    legal: np.ndarray
    fits: np.ndarray
    vmem_bytes: np.ndarray
    hbm_read_bytes: np.ndarray
    hbm_written_bytes: np.ndarray
    compute_seconds: np.ndarray
    memory_seconds: np.ndarray
    bound_seconds: np.ndarray
    estimate_seconds: np.ndarray
    padding_efficiency: np.ndarray

    @property
    def hbm_bytes(self) -> np.ndarray:
        """Bytes read and written."""
        return self.hbm_read_bytes + self.hbm_written_bytes

    @property
    def limiting(self) -> np.ndarray:
        """``"compute"`` or ``"HBM"`` for every choice."""
        return np.where(self.compute_seconds >= self.memory_seconds, "compute", "HBM")

    @property
    def utilisation(self) -> np.ndarray:
        """Speed of light / estimate: the fraction of the best possible that a choice reaches."""
        return self.speed_of_light_seconds / self.estimate_seconds

    def select(self, index: Any) -> Tilings:
        """The choices at a NumPy index."""
        arrays = {
            name: np.asarray(value)[index]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray)
        }
        scalars = {
            name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)
        }
        return Tilings(**scalars, **arrays)

    def to_json(self) -> dict[str, Any]:
        """The problem, and one dict a choice under ``"tilings"``."""
        flat = self.select(Ellipsis)
        rows = []
        for index in np.ndindex(flat.steps.shape):
            rows.append(
                {
                    "block": [int(flat.block_m[index]), int(flat.block_k[index]),
                              int(flat.block_n[index])],
                    "steps": int(flat.steps[index]),
                    "legal": bool(flat.legal[index]),
                    "fits": bool(flat.fits[index]),
                    "vmem_bytes": int(flat.vmem_bytes[index]),
                    "hbm_read_bytes": int(flat.hbm_read_bytes[index]),
                    "hbm_written_bytes": int(flat.hbm_written_bytes[index]),
                    "compute_seconds": float(flat.compute_seconds[index]),
                    "memory_seconds": float(flat.memory_seconds[index]),
                    "bound_seconds": float(flat.bound_seconds[index]),
                    "estimate_seconds": float(flat.estimate_seconds[index]),
                    "limiting": str(flat.limiting[index]),
                    "utilisation": float(flat.utilisation[index]),
                }
            )  # fmt: skip
        return {
            "m": self.m,
            "k": self.k,
            "n": self.n,
            "chip": self.chip,
            "dtype": self.dtype,
            "rhs_dtype": self.rhs_dtype,
            "out_dtype": self.out_dtype,
            "order": self.order,
            "vmem_limit_bytes": self.vmem_limit_bytes,
            "speed_of_light_seconds": self.speed_of_light_seconds,
            "tilings": rows,
        }

    def table(self) -> str:
        """The choices as text, one a line."""
        header = [
            "block m,k,n", "steps", "VMEM MiB", "HBM MiB", "compute µs", "HBM µs", "estimate µs",
            "of best", "limited by",
        ]  # fmt: skip
        rows = [header]
        for entry in self.to_json()["tilings"]:
            remark = entry["limiting"]
            legal = entry["legal"]
            if not legal:
                remark = "not legal"
            elif not entry["fits"]:
                remark += ", does not fit"
            rows.append(
                [
                    ",".join(str(size) for size in entry["block"]),
                    f"{entry['steps']:,}",
                    f"{entry['vmem_bytes'] / 2**20:.2f}",
                    f"{(entry['hbm_read_bytes'] + entry['hbm_written_bytes']) / 2**20:.1f}",
                    f"{entry['compute_seconds'] * 1e6:.1f}",
                    f"{entry['memory_seconds'] * 1e6:.1f}",
                    # what cannot be compiled takes no time
                    f"{entry['estimate_seconds'] * 1e6:.1f}" if legal else "–",
                    f"{entry['utilisation']:.0%}" if legal else "–",
                    remark,
                ]
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        kinds = self.dtype if self.rhs_dtype == self.dtype else f"{self.dtype} x {self.rhs_dtype}"
        lines = [
            f"matmul [{self.m}, {self.k}] x [{self.k}, {self.n}] {kinds} -> {self.out_dtype} on "
            f"{self.chip}: at best {self.speed_of_light_seconds * 1e6:.1f} µs"
        ]
        for row in rows:
            last = len(row) - 1
            cells = [
                cell.ljust(width) if column in (0, last) else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths))
            ]
            lines.append("  ".join(cells).rstrip())
        if not np.all(self.legal):
            lines.append(
                "Not legal: block m must be a multiple of 8, k and n of 128, or the whole dimension"
                + ("." if self.order.endswith("k") else ", and the grid must walk k last.")
            )
        lines.append(
            f"VMEM limit {self.vmem_limit_bytes / 2**20:.0f} MiB; spilled registers come on top. "
            "The estimate is max(compute, HBM) + first fetch, last write-back, a fixed cost a step."
        )
        return "\n".join(lines)


def matmul_tilings(
    m: int,
    k: int,
    n: int,
    block_m: Sizes,
    block_k: Sizes,
    block_n: Sizes,
    *,
    chip: str | Chip = "v5e",
    dtype: Any = "bfloat16",
    rhs_dtype: Any = None,
    out_dtype: Any = None,
    order: str = "mnk",
    buffers: int = 2,
    vmem_limit_bytes: int | None = None,
) -> Tilings:
    """Figures of a tiled [m, k] x [k, n] matmul for block sizes given as scalars or arrays.

    Args:
        block_m, block_k, block_n: block sizes; blocks larger than a dimension are cut to it.
        dtype, rhs_dtype, out_dtype: of lhs, rhs (`dtype`) and result (`dtype`).
        order: grid axes, slowest first; ``"mnk"`` walks the contraction fastest.
        buffers: VMEM buffers of every block (2: double buffering).
        vmem_limit_bytes: what the kernel may use; the compiler's default for the chip if None.

    A float32 accumulator [block_m, block_n] is counted when the contraction takes several blocks.
    """
    if sorted(order) != sorted(_AXES):
        raise TpulabError(f"order must name m, n and k once each, not {order!r}")
    if min(m, k, n) < 1:
        raise TpulabError(f"matmul sizes must be positive, not {m}, {k}, {n}")
    chip = get_chip(chip)
    lhs_dtype = dtype_name(dtype)
    right_dtype = dtype_name(rhs_dtype or dtype)
    result_dtype = dtype_name(out_dtype or dtype)
    sizes = dict(zip(_AXES, (m, k, n)))
    blocks = dict(
        zip(_AXES, np.broadcast_arrays(*(np.asarray(b, np.int64) for b in
                                         (block_m, block_k, block_n))))
    )  # fmt: skip
    if any((block < 1).any() for block in blocks.values()):
        raise TpulabError("block sizes must be positive")
    blocks = {axis: np.minimum(block, sizes[axis]) for axis, block in blocks.items()}
    counts = {axis: -(-sizes[axis] // block) for axis, block in blocks.items()}
    steps = counts["m"] * counts["k"] * counts["n"]

    def repeats(axes: str) -> np.ndarray:
        """How often all of an operand indexed by `axes` is moved."""
        # its block changes whenever a loop advances that lies at or outside the innermost of its
        # own loops that has more than one step; loops inside that one leave it in place
        total = np.ones(steps.shape, np.int64)
        active = np.zeros(steps.shape, bool)
        for axis in reversed(order):
            if axis in axes:
                active = active | (counts[axis] > 1)
            else:
                total = np.where(active, total * counts[axis], total)
        return total

    def array_bytes(first: int, second: int, kind: str) -> int:
        return -(-first * second * bits(kind) // 8)

    lhs_block = _padded_block_bytes(blocks["m"], blocks["k"], lhs_dtype)
    rhs_block = _padded_block_bytes(blocks["k"], blocks["n"], right_dtype)
    out_block = _padded_block_bytes(blocks["m"], blocks["n"], result_dtype)
    accumulator = np.where(
        counts["k"] > 1, _padded_block_bytes(blocks["m"], blocks["n"], "float32"), 0
    )
    # a block whose index map depends on the grid is buffered even where it happens not to move
    vmem = buffers * (lhs_block + rhs_block + out_block) + accumulator
    read = repeats("mk") * array_bytes(m, k, lhs_dtype) + repeats("kn") * array_bytes(
        k, n, right_dtype
    )
    written = repeats("mn") * array_bytes(m, n, result_dtype)

    wider = lhs_dtype if bits(lhs_dtype) >= bits(right_dtype) else right_dtype
    rate = chip.peak(canonical_dtype(wider), per="device")
    bandwidth = chip.hbm_bandwidth("device")
    sublanes, _ = native_tile(lhs_dtype)
    padded_flops = 2.0 * steps
    for axis, tile in (("m", sublanes), ("k", chip.core.mxu_size), ("n", chip.core.mxu_size)):
        padded_flops = padded_flops * _round_up(blocks[axis], tile)
    compute = padded_flops / rate
    memory = (read + written) / bandwidth
    fill = (lhs_block + rhs_block + out_block) / bandwidth
    overhead = _step_overhead_cycles() / chip.core.clock_hertz / chip.cores_per_device
    bound_seconds = np.maximum(compute, memory)

    def divisible(axis: str, multiple: int) -> np.ndarray:
        return (blocks[axis] % multiple == 0) | (blocks[axis] == sizes[axis])

    legal = divisible("m", 8) & divisible("k", 128) & divisible("n", 128)
    after_k = order[order.index("k") + 1 :]
    for axis in after_k:
        # between two visits of a result block the grid would visit others: its sum would be lost
        legal &= (counts[axis] == 1) | (counts["k"] == 1)
    limit = vmem_limit_bytes or chip.core.default_scoped_vmem_bytes
    light = bound(
        Work.matmul(m, k, n, lhs_dtype, rhs_dtype=right_dtype, out_dtype=result_dtype), chip
    )
    return Tilings(
        m=m,
        k=k,
        n=n,
        chip=chip.name,
        dtype=lhs_dtype,
        rhs_dtype=right_dtype,
        out_dtype=result_dtype,
        order=order,
        vmem_limit_bytes=limit,
        speed_of_light_seconds=light.seconds,
        block_m=blocks["m"],
        block_k=blocks["k"],
        block_n=blocks["n"],
        steps=steps,
        legal=legal,
        fits=vmem <= limit,
        vmem_bytes=vmem,
        hbm_read_bytes=read,
        hbm_written_bytes=written,
        compute_seconds=compute,
        memory_seconds=memory,
        bound_seconds=bound_seconds,
        estimate_seconds=bound_seconds + fill + steps * overhead,
        padding_efficiency=2.0 * m * k * n / padded_flops,
    )


def candidate_sizes(size: int, multiple: int, *, ragged: bool = True) -> np.ndarray:
    """Block sizes worth trying along a dimension: the whole, and multiples of a tile.

    Exact divisors of `size` that are multiples of `multiple`; with `ragged` also powers of two
    times it, and three times those (384, 768, 1536...), whose last block may stick out.
    """
    found = {size}
    step = multiple
    while ragged and step < size:
        found.update((step, 3 * step))
        step *= 2
    for part in range(1, size // multiple + 1):
        if size % (multiple * part) == 0:
            found.add(multiple * part)
    return np.array(sorted(value for value in found if value <= size), np.int64)


def best_tilings(
    m: int,
    k: int,
    n: int,
    *,
    top: int = 10,
    chip: str | Chip = "v5e",
    dtype: Any = "bfloat16",
    rhs_dtype: Any = None,
    out_dtype: Any = None,
    orders: tuple[str, ...] = ("mnk", "nmk"),
    vmem_limit_bytes: int | None = None,
) -> Tilings:
    """The `top` legal block choices that fit, best estimate first; ties go to less VMEM.

    All of `orders` are tried; the result is for the order whose best choice is best. 15 % of the
    VMEM limit stay free for registers that the compiler spills.

    Raises:
        TpulabError: nothing fits into the VMEM limit.
    """
    sublanes, _ = native_tile(dtype)
    blocks = np.array(
        list(
            itertools.product(
                candidate_sizes(m, max(sublanes, 8)),
                # a block that sticks out of the contraction would add what lies beyond it
                candidate_sizes(k, 128, ragged=False),
                candidate_sizes(n, 128),
            )
        ),
        np.int64,
    )
    best: Tilings | None = None
    for order in orders:
        every = matmul_tilings(
            m, k, n, blocks[:, 0], blocks[:, 1], blocks[:, 2],
            chip=chip, dtype=dtype, rhs_dtype=rhs_dtype, out_dtype=out_dtype, order=order,
            vmem_limit_bytes=vmem_limit_bytes,
        )  # fmt: skip
        roomy = every.vmem_bytes <= (1 - _RESERVE) * every.vmem_limit_bytes
        usable = every.select(np.flatnonzero(every.legal & roomy))
        if not usable.steps.size:
            continue
        ranking = np.lexsort((usable.vmem_bytes, usable.estimate_seconds))
        ranked = usable.select(ranking[:top])
        if best is None or ranked.estimate_seconds[0] < best.estimate_seconds[0]:
            best = ranked
    if best is None:
        limit = vmem_limit_bytes or get_chip(chip).core.default_scoped_vmem_bytes
        raise TpulabError(
            f"no block shape of this matmul fits into {limit / 2**20:.0f} MiB of VMEM",
            hint="allow more with vmem_limit_bytes",
        )
    return best
