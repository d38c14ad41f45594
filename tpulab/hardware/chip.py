"""What a TPU chip is: frozen figures, per TensorCore and per chip, units in the names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tpulab.errors import TpulabError
from tpulab.hardware.dtypes import canonical_dtype

Per = Literal["chip", "core", "device"]


@dataclass(frozen=True)
class Memory:
    """One level of memory.

    ``bandwidth_bytes_per_second`` is None when no source gives one.
    """

    name: str
    capacity_bytes: int
    bandwidth_bytes_per_second: float | None = None


@dataclass(frozen=True)
class Interconnect:
    """Inter-chip links (ICI) of one chip, and its ways out of the slice.

    ``link_bandwidth_bytes_per_second`` is one way over one link as collectives achieve it;
    ``nominal_link_bandwidth_bytes_per_second`` is the data sheet's. ``wraparound`` says when an
    axis of a slice closes to a ring: ``"full axis"`` (as long as the pod's) or ``"multiple of 4"``.
    """

    mesh_rank: int
    links_per_chip: int
    link_bandwidth_bytes_per_second: float
    nominal_link_bandwidth_bytes_per_second: float
    hop_latency_seconds: float
    pod_shape: tuple[int, ...]
    host_shape: tuple[int, ...]
    wraparound: str
    pcie_bandwidth_bytes_per_second: float | None = None
    dcn_bandwidth_bytes_per_second: float | None = None

    @property
    def axis_bandwidth_bytes_per_second(self) -> float:
        """Both directions of one axis with wraparound: what a chip can send into a ring."""
        return 2 * self.link_bandwidth_bytes_per_second

    @property
    def pod_chips(self) -> int:
        """Chips in a full pod."""
        count = 1
        for size in self.pod_shape:
            count *= size
        return count

    @property
    def chips_per_host(self) -> int:
        """Chips that share one host."""
        count = 1
        for size in self.host_shape:
            count *= size
        return count

    def wraps(self, axis_size: int, axis: int = 0) -> bool:
        """Whether a slice axis of this many chips is a ring (wraparound link present)."""
        if axis_size < 2:
            return False
        if self.wraparound == "multiple of 4":
            return axis_size % 4 == 0
        return axis_size == self.pod_shape[axis]


@dataclass(frozen=True)
class TensorCore:
    """One TensorCore. Peaks are FLOP/s (or integer op/s) of this core by operand dtype."""

    clock_hertz: float
    mxu_count: int
    mxu_size: int
    mxu_macs_per_cycle: int
    vpu_alu_count: int
    xlu_count: int
    eup_count: int
    vector_load_slots: int
    vector_store_slots: int
    registers: int
    vmem: Memory
    smem: Memory
    default_scoped_vmem_bytes: int
    peak_flops_per_second: Mapping[str, float]
    native_matmul_dtypes: frozenset[str]
    lanes: int = 128
    sublanes: int = 8

    @property
    def register_bytes(self) -> int:
        """Bytes in one vector register: sublanes x lanes x 32 bits."""
        return self.sublanes * self.lanes * 4

    @property
    def vpu_flops_per_second(self) -> float:
        """Elementwise 32-bit operations per second when every vector ALU issues every cycle."""
        return self.vpu_alu_count * self.sublanes * self.lanes * self.clock_hertz

    @property
    def transcendentals_per_second(self) -> float:
        """exp, log, tanh… per second: one register per EUP and cycle."""
        return self.eup_count * self.sublanes * self.lanes * self.clock_hertz


@dataclass(frozen=True)
class Disagreement:
    """A figure on which sources differ: all values, the chosen one, and why."""

    field: str
    chosen: Any
    source: str
    others: Mapping[str, Any]
    why: str


@dataclass(frozen=True)
class Chip:
    """One TPU generation. ``hbm`` is per chip; ``core`` is one TensorCore.

    ``devices_per_chip`` is how many JAX devices an ahead-of-time topology lists for a chip;
    ``sources`` maps a field's dotted name to the source of its figure, in words;
    ``source_keys`` maps it to the source's short name.
    """

    name: str
    aliases: tuple[str, ...]
    device_kind: str
    topology: str
    generation: int
    mesh_rank: int
    cores_per_chip: int
    devices_per_chip: int
    sparse_cores_per_chip: int
    core: TensorCore
    hbm: Memory
    ici: Interconnect
    dma_granule_bytes: int
    sources: Mapping[str, str] = field(repr=False)
    source_keys: Mapping[str, str] = field(repr=False)
    disagreements: tuple[Disagreement, ...] = field(repr=False)
    notes: tuple[str, ...] = field(repr=False)

    @property
    def cores_per_device(self) -> int:
        """TensorCores behind one JAX device (2 on v5p, where a device is a megacore)."""
        return self.cores_per_chip // self.devices_per_chip

    def _share(self, per: Per) -> float:
        """Fraction of the chip that `per` names."""
        if per == "chip":
            return 1.0
        if per == "core":
            return 1.0 / self.cores_per_chip
        if per == "device":
            return 1.0 / self.devices_per_chip
        raise TpulabError(f"per must be 'chip', 'core' or 'device', not {per!r}")

    def peak(self, dtype: Any = "bfloat16", per: Per = "chip") -> float:
        """Peak matmul FLOP/s (integer op/s for integer dtypes) for operands of `dtype`.

        A dtype the MXU takes only after conversion has the rate of what it is converted to.

        Raises:
            TpulabError: the chip's MXU takes no operands of this dtype in any way.
        """
        name = canonical_dtype(dtype)
        try:
            return self.core.peak_flops_per_second[name] * self.cores_per_chip * self._share(per)
        except KeyError:
            known = ", ".join(self.core.peak_flops_per_second)
            raise TpulabError(
                f"the matrix unit of {self.name} takes no {name} operands",
                why=f"it takes {known}",
                hint="convert the operands inside the kernel before the matmul",
            ) from None

    def hbm_bandwidth(self, per: Per = "chip") -> float:
        """HBM bytes per second; cores of a chip share it equally."""
        assert self.hbm.bandwidth_bytes_per_second is not None
        return self.hbm.bandwidth_bytes_per_second * self._share(per)

    def ridge_point(self, dtype: Any = "bfloat16") -> float:
        """FLOP per HBM byte above which a kernel is bound by compute: peak / HBM bandwidth."""
        return self.peak(dtype) / self.hbm_bandwidth()
