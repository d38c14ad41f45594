"""The simulator's constants of a chip: facts from ``hardware/`` joined with ``constants.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from tpulab.errors import TpulabError


@dataclass(frozen=True)
class Constants:
    """Everything that the simulator knows about one core of a chip.

    Attributes:
        chip: the chip's name.
        clock_hertz: the core's clock.
        cores: cores that one JAX device has (a kernel must ask for its core to use more than one).
        mxu_count: matrix units in a core.
        xlu_count: cross-lane units in a core.
        mxu_size: rows and columns of one matrix unit.
        peak_flops_per_second: dense peak per core, by dtype.
        hbm_bytes_per_second: datasheet HBM bandwidth that one core can have.
        granule_bytes: the unit in which transfers count their size.
        hbm_efficiency: the part of that bandwidth that streams reach.
        dma_latency_cycles: from the last byte served to the change of the sync flag.
        lone_core_fraction: the part of the device's HBM bandwidth that one core draws while its
            other cores have nothing to do.
        single_stream_fraction: the part of the bandwidth that one transfer alone can reach.
        local_latency_cycles: from the end of a move that does not touch the HBM to the change of
            its sync flag.
        local_bytes_per_cycle: bandwidth of moves that do not touch the HBM.
        branch_delay_slots: bundles that still issue after a branch.
        empty_fills_slots: whether an empty bundle can stand for all slots left after a branch.
        run_overhead_bytes: what each run of contiguous bytes costs besides its bytes.
        latency_cycles: by family of operation (see ``opcodes.py``).
        occupancy_cycles: by family of operation.
        sources: for each constant from ``constants.toml``, how it was got.
    """

    chip: str
    clock_hertz: float
    cores: int
    mxu_count: int
    mxu_size: int
    peak_flops_per_second: Mapping[str, float]
    hbm_bytes_per_second: float
    granule_bytes: int
    hbm_efficiency: float
    dma_latency_cycles: float
    single_stream_fraction: float
    local_bytes_per_cycle: float
    run_overhead_bytes: float
    branch_delay_slots: int
    latency_cycles: Mapping[str, int]
    occupancy_cycles: Mapping[str, int]
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)
    lone_core_fraction: float = 1.0
    xlu_count: int = 2
    empty_fills_slots: bool = False
    local_latency_cycles: float = 0.0

    @property
    def hbm_bytes_per_cycle(self) -> float:
        """What all HBM transfers of the core together move in a cycle."""
        return self.hbm_bytes_per_second * self.hbm_efficiency / self.clock_hertz

    def with_values(self, **changes: Any) -> Constants:
        """The same constants with some changed, for experiments and tests."""
        return replace(self, **changes)

    def matmul_rows(self, opcode: str) -> int:
        """Rows of the left operand that one ``vmatmul`` streams: a register holds 8 x 32 bits."""
        return 8 * 32 // _operand_bits(opcode)

    def matmul_occupancy(self, opcode: str) -> int:
        """Cycles for which one ``vmatmul`` keeps its matrix unit busy, at the published peak.

        A 256-wide unit takes its left operand in two halves (``vmatprep.mubr`` brings the first).
        """
        dtype = _peak_dtype(opcode)
        peak = self.peak_flops_per_second.get(dtype) or self.peak_flops_per_second["bfloat16"]
        flops = 2 * self.matmul_rows(opcode) * self.mxu_size * self.mxu_size
        cycles = flops * self.mxu_count * self.clock_hertz / peak
        return max(1, round(cycles))

    def matmul_results(self, opcode: str) -> int:
        """Result registers (8 x 128 x 32 bits) that one ``vmatmul`` gives."""
        return max(1, self.matmul_rows(opcode) // 8 * (self.mxu_size // 128))


def _operand_bits(opcode: str) -> int:
    if ".f32." in opcode and ".bf16" not in opcode:
        return 32
    if any(part in opcode for part in (".s8", ".u8", ".f8")):
        return 8
    if any(part in opcode for part in (".s4", ".u4", ".f4")):
        return 4
    return 16 if ".bf16" in opcode else 32


def _peak_dtype(opcode: str) -> str:
    bits = _operand_bits(opcode)
    if bits == 8:
        return "int8" if ".s8" in opcode or ".u8" in opcode else "float8_e4m3fn"
    if bits == 4:
        return "int4"
    # An f32 operand goes through the array at the pace of the bf16 passes that it is split into.
    return "bfloat16"


def _table() -> dict[str, Any]:
    text = files("tpulab.simulator").joinpath("constants.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@lru_cache(maxsize=32)
def constants_for(chip: str) -> Constants:
    """The constants of a chip, by any name that ``hardware.get_chip`` knows.

    Raises:
        UnknownNameError: there is no such chip.
        TpulabError: ``hardware/`` has no clock or no HBM bandwidth for it.
    """
    from tpulab.hardware import get_chip

    facts = get_chip(chip)
    table = _table()
    how = table["how"]
    merged: dict[str, dict[str, Any]] = {}
    for part in ("latency_cycles", "occupancy_cycles", "dma", "flow"):
        merged[part] = {**table["default"].get(part, {}), **table.get(facts.name, {}).get(part, {})}
    sources = {
        f"{part}.{name}": f"{entry['value']} {entry.get('unit', 'cycles')}: {how[entry['how']]}"
        for part, entries in merged.items()
        for name, entry in entries.items()
    }
    dma = {name: float(entry["value"]) for name, entry in merged["dma"].items()}
    core = facts.core
    bandwidth = facts.hbm.bandwidth_bytes_per_second
    if not bandwidth or not core.clock_hertz:
        raise TpulabError(
            f"the simulator can't run for {facts.name}",
            why="no source gives its clock or its HBM bandwidth",
        )
    return Constants(
        chip=facts.name,
        clock_hertz=core.clock_hertz,
        cores=facts.cores_per_device,
        mxu_count=core.mxu_count,
        mxu_size=core.mxu_size,
        peak_flops_per_second=dict(core.peak_flops_per_second),
        hbm_bytes_per_second=bandwidth / facts.cores_per_chip,
        granule_bytes=facts.dma_granule_bytes,
        hbm_efficiency=dma["hbm_efficiency"],
        dma_latency_cycles=dma["latency_nanoseconds"] * 1e-9 * core.clock_hertz,
        single_stream_fraction=dma["single_stream_fraction"],
        local_bytes_per_cycle=dma["local_bytes_per_cycle"],
        run_overhead_bytes=dma["run_overhead_bytes"],
        branch_delay_slots=int(merged["flow"]["branch_delay_slots"]["value"]),
        latency_cycles={k: int(v["value"]) for k, v in merged["latency_cycles"].items()},
        occupancy_cycles={k: int(v["value"]) for k, v in merged["occupancy_cycles"].items()},
        sources=sources,
        lone_core_fraction=dma["lone_core_fraction"],
        xlu_count=core.xlu_count,
        empty_fills_slots=bool(merged["flow"]["empty_fills_slots"]["value"]),
        local_latency_cycles=dma["local_latency_nanoseconds"] * 1e-9 * core.clock_hertz,
    )
