"""Rules of what a kernel's body does, and of the memory that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpulab.kernel.model import PallasCall
from tpulab.kernel.rule import Illegality, size_text

if TYPE_CHECKING:
    from tpulab.hardware import Chip


def hbm_access(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 7: loads and stores reach VMEM and SMEM only."""
    for name, where in call.facts.any_accesses:
        yield Illegality(
            "hbm-access",
            f"{name} stays in HBM and is loaded or stored directly",
            "the core reaches VMEM and SMEM; HBM only through copies",
            "copy it with pltpu.sync_copy or make_async_copy into a VMEM scratch, or give it a "
            "BlockSpec in VMEM",
            where or call.where,
        )


def smem_vector_load(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 9: SMEM is read a word at a time."""
    for name, where in call.facts.smem_vector_loads:
        yield Illegality(
            "smem-vector",
            f"{name} is in SMEM and is loaded as a vector",
            "SMEM feeds the scalar unit one 32-bit word at a time",
            "load single elements, or keep it in VMEM",
            where or call.where,
        )


def vmem_scalar_store(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 8: VMEM is written by vector stores."""
    for name, where in call.facts.vmem_scalar_stores:
        yield Illegality(
            "vmem-scalar-store",
            f"a scalar is stored to {name}, which is in VMEM",
            "the scalar unit writes SMEM; VMEM is written by vector stores",
            "store a value with dimensions (1, ...), or put the buffer in SMEM",
            where or call.where,
        )


def wide_types(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfalls 37 and 85: no 64-bit values."""
    for dtype, where in call.facts.wide_types[:1]:
        yield _wide(dtype, "a value in the kernel", where or call.where)
    for operand in call.operands:
        if operand.dtype in ("float64", "int64", "uint64"):
            yield _wide(operand.dtype, operand.name, operand.where or call.where)
    for scratch in call.scratch:
        if scratch.dtype in ("float64", "int64", "uint64"):
            yield _wide(scratch.dtype, scratch.name, call.where)


def _wide(dtype: str, what: str, where: str | None) -> Illegality:
    return Illegality(
        "64-bit",
        f"{what} is {dtype}",
        "a TPU core is a 32-bit machine; the compiler aborts the whole process on some of these",
        "use 32-bit types, and trace kernels with jax.enable_x64(False)",
        where,
    )


def untouched_output(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """An output that no step writes."""
    for name in call.facts.untouched_outputs:
        operand = call.operand(name)
        if operand.aliased_with is not None:
            continue
        yield Illegality(
            "output-never-written",
            f"the kernel never stores to {name}",
            "the block that goes back to HBM is then whatever VMEM held",
            f"write {name}[...] in the kernel",
            call.where,
        )


def vmem_budget(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 24: blocks and scratch fit the VMEM that the compiler grants a kernel."""
    limit = call.vmem_limit_bytes or chip.core.default_scoped_vmem_bytes
    if call.vmem_bytes > limit:
        largest = max(
            (o for o in call.operands if o.memory_space == "vmem"),
            key=lambda o: o.block_bytes_padded * o.buffer_count,
            default=None,
        )
        most = (
            f"; the most by {largest.name}, {largest.buffer_count} × "
            f"{size_text(largest.block_bytes_padded)}"
            if largest
            else ""
        )
        physical = chip.core.vmem.capacity_bytes
        fits = call.vmem_bytes < physical * 0.9 and call.vmem_limit_bytes is None
        yield Illegality(
            "vmem-budget",
            f"blocks and scratch take {size_text(call.vmem_bytes)} of VMEM, the limit on "
            f"{chip.name} is {size_text(limit)}{most}",
            "every moving block is held twice, so that one can be copied while the other is used",
            "use smaller blocks"
            + (
                f", or raise vmem_limit_bytes (the core has {size_text(physical)})"
                if fits
                else " or a grid"
            ),
            call.where,
            "warning",
        )
    elif call.vmem_limit_bytes and call.vmem_limit_bytes > chip.core.vmem.capacity_bytes:
        yield Illegality(
            "vmem-limit",
            f"vmem_limit_bytes is {size_text(call.vmem_limit_bytes)}, and a core of {chip.name} "
            f"has {size_text(chip.core.vmem.capacity_bytes)}",
            "the compiler does not check the figure itself",
            "ask for less than the core has",
            call.where,
            "warning",
        )


def smem_budget(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Page tables and other prefetched scalars fit SMEM."""
    if call.smem_bytes > chip.core.smem.capacity_bytes:
        yield Illegality(
            "smem-budget",
            f"scalars take {call.smem_bytes:,} bytes of SMEM, {chip.name} has "
            f"{chip.core.smem.capacity_bytes:,}",
            "scalar-prefetch operands live in SMEM as a whole",
            "prefetch less at a time, or keep the table in HBM and copy the rows you need",
            call.where,
            "warning",
        )


def barrier_and_id(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfall 65's relatives: a kernel has a barrier semaphore and a collective_id, or neither."""
    if call.barrier_where is not None and call.collective_id is None:
        yield Illegality(
            "barrier-without-id",
            f"{call.name} takes the barrier semaphore and has no collective_id",
            "kernels with the same collective_id share one barrier semaphore, and the compiler "
            "wants to know which",
            "pass compiler_params=pltpu.CompilerParams(collective_id=0) to pallas_call",
            call.barrier_where or call.where,
        )
    elif call.barrier_where is None and call.collective_id is not None:
        yield Illegality(
            "id-without-barrier",
            f"{call.name} has collective_id={call.collective_id} and never takes the barrier "
            "semaphore",
            "with an id the kernel meets its neighbours itself; without one XLA puts a barrier "
            "before it",
            "signal and wait on pltpu.get_barrier_semaphore() at the kernel's start, or leave "
            "collective_id out",
            call.where,
        )


def copies_waited_for(call: PallasCall, chip: Chip) -> Iterator[Illegality]:
    """Pitfalls 52 and 55: every started copy is waited for."""
    started, waited = call.dma_count, call.dma_wait_count
    if call.dma_started_bytes == call.dma_waited_bytes or call.remote_bytes:
        return
    if not call.dma_counts_exact:
        return
    less = call.dma_waited_bytes < call.dma_started_bytes
    yield Illegality(
        "copy-not-waited" if less else "wait-without-copy",
        f"{started:,} copies of {call.dma_started_bytes:,} bytes are started and {waited:,} waits "
        f"for {call.dma_waited_bytes:,} bytes made",
        "without a wait the data may not be there, and the semaphore keeps its count for the next "
        "kernel"
        if less
        else "a wait for a copy that was never started does not return",
        "give every start() exactly one wait()",
        call.where,
        "warning",
    )
