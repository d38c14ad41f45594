"""What a kernel's author wrote, as plain data: grid, blocks, scratch, work and traffic.

Everything here is independent of JAX; ``tracing`` fills it in. Arrays are numpy, one row a grid
step, in the order in which a TensorCore walks the grid (last axis fastest).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

#: Memory spaces whose operands the automatic pipeline copies block by block.
PIPELINED_SPACES = frozenset({"vmem", "smem"})

#: Bits of an element as it is stored on the chip; booleans are held as 32-bit words in VMEM.
_BITS = {
    "bool": 32,
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "semaphore": 32,
}


def dtype_bits(dtype: str) -> int:
    """Bits that one element of ``dtype`` (a canonical dtype name) takes.

    Narrow types that numpy stores one to a byte (int4, float4) count as what they are on the chip.
    """
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype.startswith(("float8", "int8", "uint8")):
        return 8
    if dtype == "bfloat16":
        return 16
    return int(np.dtype(dtype).itemsize) * 8


def array_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of an array without any padding; sub-byte types are packed."""
    bits = 8 if dtype == "bool" else dtype_bits(dtype)
    return -(-math.prod(shape) * bits // 8)


def native_tile(dtype: str) -> tuple[int, int]:
    """The (sublanes, lanes) of the native VMEM tile: (8, 128) words, narrow types packed along
    sublanes. Agrees with ``hardware.native_tile``; repeated here on plain strings.
    """
    return 8 * max(1, 32 // dtype_bits(dtype)), 128


def padded_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes that an array takes in VMEM, its last two dimensions rounded up to native tiles.

    Rank-1 arrays are laid out in rows of 128 lanes; a second-minor dimension that is smaller than
    the tile uses the next smaller power of two of sublanes, as the compiler's small tiles do.
    """
    if not shape:
        return 4
    sublanes, lanes = native_tile(dtype)
    bits = dtype_bits(dtype)
    if len(shape) == 1:
        row = lanes * max(1, 32 // bits)
        return -(-shape[0] // row) * row * bits // 8
    *leading, second, minor = shape
    packing = max(1, 32 // bits)
    tile = sublanes
    while tile > packing and tile // 2 >= second:
        tile //= 2
    rows = -(-second // tile) * tile
    columns = -(-minor // lanes) * lanes
    return math.prod(leading) * rows * columns * bits // 8


@dataclasses.dataclass(frozen=True)
class ShapeDtype:
    """Shape and canonical dtype name of an array."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        return array_bytes(self.shape, self.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Operand:
    """One blocked argument or result of a ``pallas_call``.

    Attributes:
        name: the kernel's parameter name.
        index: position among the call's inputs, or among its outputs.
        shape, dtype: of the whole array.
        block_shape: one entry per array dimension; ``None`` where the dimension is squeezed out.
        element_dims: dimensions whose index map counts elements and not blocks (``pl.Element``).
        memory_space: "vmem", "smem", "any", "hbm" or "semaphore".
        is_input: False for an output.
        buffer_count: VMEM buffers the pipeline keeps (1 for a window that never moves, else 2).
        block_bytes: bytes of a full block; block_bytes_padded: with native-tile padding.
        indices: int array [steps, rank], what the index map returned at each step, or None
            when it depends on values that are not known.
        moving: bool array [steps]: fetched (input) or written back (output) at that step.
        step_bytes: int array [steps]: bytes of the block that lie inside the array.
        step_bytes_padded: the same in whole native tiles.
        trivial: the window is the whole array and never moves.
        where: file:line of the index map, when known.
        aliased_with: position of the output that shares this input's buffer (and the reverse).
        revisit_any: the BlockSpec allows blocks to be revisited in any order.
        least_bytes: bytes of the array that must move at least once: different blocks of the
            pipeline, different places of the kernel's own copies.
    """

    name: str
    index: int
    shape: tuple[int, ...]
    dtype: str
    block_shape: tuple[int | None, ...]
    element_dims: tuple[int, ...]
    memory_space: str
    is_input: bool
    buffer_count: int
    block_bytes: int
    block_bytes_padded: int
    indices: np.ndarray | None
    moving: np.ndarray
    step_bytes: np.ndarray
    step_bytes_padded: np.ndarray
    trivial: bool
    where: str | None = None
    aliased_with: int | None = None
    revisit_any: bool = False
    least_bytes: int = 0

    @property
    def rank(self) -> int:
        """Rank of the whole array."""
        return len(self.shape)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Block shape with squeezed dimensions as 1."""
        return tuple(1 if size is None else size for size in self.block_shape)

    @property
    def block_counts(self) -> tuple[int, ...]:
        """Number of blocks along each dimension, the ragged last one included."""
        return tuple(
            -(-size // block) if block else 0
            for size, block in zip(self.shape, self.block_sizes, strict=True)
        )

    @property
    def is_pipelined(self) -> bool:
        """True when the automatic pipeline copies this operand's blocks."""
        return self.memory_space in PIPELINED_SPACES

    @property
    def array_bytes(self) -> int:
        """Bytes of the whole array without padding."""
        return array_bytes(self.shape, self.dtype)

    @property
    def move_count(self) -> int:
        """How many times a block is fetched (input) or written back (output)."""
        return int(self.moving.sum())

    @property
    def moved_bytes(self) -> int:
        """Bytes the pipeline moves between HBM and the core; parts outside the array left out."""
        return int(self.step_bytes[self.moving].sum())

    @property
    def moved_bytes_padded(self) -> int:
        """As ``moved_bytes`` in whole native tiles."""
        return int(self.step_bytes_padded[self.moving].sum())


@dataclasses.dataclass(frozen=True)
class Scratch:
    """One scratch buffer, from ``scratch_shapes`` or ``pl.run_scoped``.

    ``memory_space`` is "vmem", "smem", "hbm" or "semaphore"; ``scoped`` is True for run_scoped.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    memory_space: str
    bytes: int
    bytes_padded: int
    scoped: bool = False


@dataclasses.dataclass(frozen=True)
class Matmul:
    """One shape of matrix product in the kernel and how often it runs over the whole grid.

    ``batch`` products of (m, k) by (k, n); ``flops`` = 2·batch·m·k·n·count.
    """

    m: int
    k: int
    n: int
    batch: int
    lhs_dtype: str
    rhs_dtype: str
    out_dtype: str
    count: int
    precision: str | None = None
    where: str | None = None

    @property
    def dtype(self) -> str:
        """The wider of the two operand dtypes: what the matrix unit has to work in."""
        if dtype_bits(self.rhs_dtype) > dtype_bits(self.lhs_dtype):
            return self.rhs_dtype
        return self.lhs_dtype

    @property
    def flops(self) -> int:
        """Multiplies and adds of all products."""
        return 2 * self.batch * self.m * self.k * self.n * self.count


@dataclasses.dataclass(frozen=True, eq=False)
class PallasCall:
    """One ``pallas_call``: its grid, operands, and the work and traffic of the whole grid.

    Counts are of one call; multiply by ``times`` (how often the call runs, for example in a scan).

    Attributes:
        name: the kernel function's name; index: position in the traced function.
        grid: dynamic bounds evaluated; () for a call without a grid.
        dimension_semantics: one of "parallel", "arbitrary", ... per grid axis.
        scalar_prefetch: values of the scalar-prefetch operands, None where they are not known.
        mxu_flops: 2·m·k·n of every matrix product; vpu_flops: one per element of every other
            arithmetic operation or reduction.
        transcendentals: elements through exp, log, tanh, sqrt, ...
        mxu_flops_at_step, vpu_flops_at_step, transcendentals_at_step: int arrays [steps].
        dma_read_bytes, dma_written_bytes: HBM traffic of copies the kernel starts itself.
        dma_count: how many copies the kernel starts itself; remote_bytes: sent to other devices.
        dma_wait_count: waits for copies; dma_started_bytes, dma_waited_bytes: their sizes.
        dma_counts_exact: False when a condition or loop around copies depends on data.
        notes: what was assumed because it could not be evaluated.
        collective_id: of the kernel's barrier semaphore, None without one.
        barrier_where: file:line where it takes that semaphore, None when it does not.
    """

    name: str
    index: int
    grid: tuple[int, ...]
    dimension_semantics: tuple[str, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scratch: tuple[Scratch, ...]
    scalar_prefetch: tuple[np.ndarray | None, ...]
    scalar_prefetch_shapes: tuple[ShapeDtype, ...]
    vmem_limit_bytes: int | None
    times: int
    where: str | None
    mxu_flops: int
    vpu_flops: int
    transcendentals: int
    mxu_flops_at_step: np.ndarray
    vpu_flops_at_step: np.ndarray
    transcendentals_at_step: np.ndarray
    matmuls: tuple[Matmul, ...]
    dma_read_bytes: int
    dma_written_bytes: int
    dma_count: int
    dma_wait_count: int
    dma_started_bytes: int
    dma_waited_bytes: int
    dma_counts_exact: bool
    remote_bytes: int
    notes: tuple[str, ...]
    facts: KernelFacts
    collective_id: int | None = None
    barrier_where: str | None = None

    @property
    def source(self) -> str | None:
        """file:line of the kernel function."""
        return self.where

    @property
    def steps(self) -> int:
        """Number of grid steps; 1 without a grid."""
        return math.prod(self.grid)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    @property
    def flops(self) -> int:
        """All arithmetic: ``mxu_flops`` + ``vpu_flops`` (transcendentals not included)."""
        return self.mxu_flops + self.vpu_flops

    @property
    def pipeline_read_bytes(self) -> int:
        """Bytes the pipeline fetches, revisits elided."""
        return sum(operand.moved_bytes for operand in self.inputs)

    @property
    def pipeline_written_bytes(self) -> int:
        """Bytes the pipeline writes back, revisits elided."""
        return sum(operand.moved_bytes for operand in self.outputs)

    @property
    def hbm_read_bytes(self) -> int:
        """HBM bytes read: pipeline fetches, scalar prefetch, and copies the kernel starts."""
        prefetch = sum(shape.bytes for shape in self.scalar_prefetch_shapes)
        return self.pipeline_read_bytes + prefetch + self.dma_read_bytes

    @property
    def hbm_written_bytes(self) -> int:
        """HBM bytes written: pipeline write-backs and copies the kernel starts."""
        return self.pipeline_written_bytes + self.dma_written_bytes

    @property
    def hbm_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.hbm_read_bytes + self.hbm_written_bytes

    @property
    def hbm_bytes_padded(self) -> int:
        """As ``hbm_bytes`` with blocks in whole native tiles."""
        prefetch = sum(shape.bytes for shape in self.scalar_prefetch_shapes)
        blocks = sum(operand.moved_bytes_padded for operand in self.operands)
        return blocks + prefetch + self.dma_read_bytes + self.dma_written_bytes

    @property
    def unique_bytes(self) -> int:
        """What must move at least once, whatever the schedule: no byte of an array twice."""
        total = sum(shape.bytes for shape in self.scalar_prefetch_shapes)
        return total + sum(operand.least_bytes for operand in self.operands)

    @property
    def vmem_bytes(self) -> int:
        """VMEM the blocks and scratch take: blocks × buffers, padded to native tiles.

        An estimate of what the compiler allocates; it adds its own spills and temporaries.
        """
        blocks = sum(
            operand.block_bytes_padded * operand.buffer_count
            for operand in self.operands
            if operand.memory_space == "vmem"
        )
        return blocks + sum(s.bytes_padded for s in self.scratch if s.memory_space == "vmem")

    @property
    def smem_bytes(self) -> int:
        """SMEM taken by scalar prefetch, SMEM blocks and SMEM scratch (without padding)."""
        prefetch = sum(shape.bytes for shape in self.scalar_prefetch_shapes)
        blocks = sum(
            operand.block_bytes * operand.buffer_count
            for operand in self.operands
            if operand.memory_space == "smem"
        )
        return prefetch + blocks + sum(s.bytes for s in self.scratch if s.memory_space == "smem")

    def operand(self, which: Operand | str | int) -> Operand:
        """An operand by itself, by name, or by position among inputs then outputs."""
        if isinstance(which, Operand):
            return which
        if isinstance(which, int):
            return self.operands[which]
        for operand in self.operands:
            if operand.name == which:
                return operand
        from tpulab.errors import UnknownNameError

        raise UnknownNameError("operand", which, [operand.name for operand in self.operands])

    def moves(self, operand: Operand | str | int) -> np.ndarray:
        """Bool array [steps]: the block is fetched (input) or written back (output) at the step."""
        return self.operand(operand).moving

    def block_indices(self, operand: Operand | str | int) -> np.ndarray | None:
        """Int array [steps, rank] of the index map's results; None if that needs unknown data."""
        return self.operand(operand).indices

    def step_coordinates(self) -> np.ndarray:
        """Int array [steps, len(grid)]: the grid coordinates in the order they are walked."""
        if not self.grid:
            return np.zeros((1, 0), np.int64)
        return np.indices(self.grid).reshape(len(self.grid), -1).T

    def __repr__(self) -> str:
        return (
            f"PallasCall({self.name!r}, grid={self.grid}, flops={self.flops:,}, "
            f"hbm_read_bytes={self.hbm_read_bytes:,}, hbm_written_bytes={self.hbm_written_bytes:,},"
            f" vmem_bytes={self.vmem_bytes:,})"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class KernelFacts:
    """What the legality rules need to know about a kernel's body, gathered while counting.

    Attributes:
        wide_types: (dtype, place) of 64-bit values inside the kernel or an index map.
        any_accesses: (operand, place) of loads or stores on a Ref that stays in HBM.
        smem_vector_loads, vmem_scalar_stores: (ref, place) of accesses the core has no path for.
        carried: (name, "output" or "scratch", bool array [steps], place) of buffers read in a step
            before that step has written them: what they hold comes from an earlier step.
        stored: for each output, bool array [steps]: the step stores to it.
        untouched_outputs: outputs that the kernel never writes.
    """

    wide_types: tuple[tuple[str, str | None], ...] = ()
    any_accesses: tuple[tuple[str, str | None], ...] = ()
    smem_vector_loads: tuple[tuple[str, str | None], ...] = ()
    vmem_scalar_stores: tuple[tuple[str, str | None], ...] = ()
    carried: tuple[tuple[str, str, np.ndarray, str | None], ...] = ()
    stored: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    untouched_outputs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """A traced function: every ``pallas_call`` in it, in order, with totals.

    Attributes:
        name: of the function; chip: the chip it was traced for.
        arguments, results: flattened.
        where: file:line of the function. notes: assumptions, calls' notes included.
        unique_bytes: what must pass between HBM and the cores at least once: the function's
            arguments as far as the calls use them, and results that come from calls. What one call
            hands to the next may stay in VMEM.
    """

    name: str
    chip: str
    calls: tuple[PallasCall, ...]
    arguments: tuple[ShapeDtype, ...]
    results: tuple[ShapeDtype, ...]
    where: str | None
    unique_bytes: int
    notes: tuple[str, ...] = ()
    jaxpr: Any = dataclasses.field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the jaxpr, which can't leave its process."""
        return {**self.__dict__, "jaxpr": None}

    @property
    def source(self) -> str | None:
        """file:line of the function."""
        return self.where

    def _sum(self, attribute: str) -> int:
        return sum(getattr(call, attribute) * call.times for call in self.calls)

    @property
    def flops(self) -> int:
        """All arithmetic of all calls, each as often as it runs."""
        return self._sum("flops")

    @property
    def mxu_flops(self) -> int:
        """2·m·k·n of every matrix product."""
        return self._sum("mxu_flops")

    @property
    def vpu_flops(self) -> int:
        """Arithmetic outside the matrix unit."""
        return self._sum("vpu_flops")

    @property
    def transcendentals(self) -> int:
        """Elements through exp, log, tanh, sqrt, ..."""
        return self._sum("transcendentals")

    @property
    def hbm_read_bytes(self) -> int:
        """HBM bytes that the calls read."""
        return self._sum("hbm_read_bytes")

    @property
    def hbm_written_bytes(self) -> int:
        """HBM bytes that the calls write."""
        return self._sum("hbm_written_bytes")

    @property
    def hbm_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.hbm_read_bytes + self.hbm_written_bytes

    @property
    def handed_on_bytes(self) -> int:
        """Bytes of arrays between calls or XLA's operations: they pass through HBM or stay in VMEM.

        Read and written, each call's least.
        """
        return max(0, self._sum("unique_bytes") - self.unique_bytes)

    @property
    def vmem_bytes(self) -> int:
        """The largest VMEM use of any call."""
        return max((call.vmem_bytes for call in self.calls), default=0)

    @property
    def steps(self) -> int:
        """Grid steps of all calls, each as often as it runs."""
        return self._sum("steps")

    def __str__(self) -> str:
        arguments = ", ".join(map(str, self.arguments))
        lines = [f"{self.name}({arguments}) on {self.chip}"]
        for call in self.calls:
            often = f" × {call.times}" if call.times != 1 else ""
            lines.append(f"  {call.name}{often}: grid {call.grid}, {call.steps:,} steps")
            for operand in call.operands:
                role = "in " if operand.is_input else "out"
                verb = "fetched" if operand.is_input else "written"
                lines.append(
                    f"    {role} {operand.name}: {operand.dtype}{list(operand.shape)} in blocks "
                    f"{list(operand.block_shape)}, {operand.memory_space}, {verb} "
                    f"{operand.move_count:,} times, {operand.moved_bytes:,} bytes"
                )
            lines.append(
                f"    {call.mxu_flops:,} matrix + {call.vpu_flops:,} vector FLOPs, "
                f"{call.vmem_bytes:,} bytes of VMEM"
            )
        lines.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(lines)
