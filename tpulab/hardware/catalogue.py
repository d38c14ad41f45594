"""The catalogue of chips, read once from ``catalogue.toml``."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any

from tpulab.errors import UnknownNameError
from tpulab.hardware.chip import Chip, Disagreement, Interconnect, Memory, TensorCore


class _Figures:
    """Reads figures of one chip and remembers where each came from."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.texts = sources
        self.sources: dict[str, str] = {}
        self.keys: dict[str, str] = {}
        self.disagreements: list[Disagreement] = []

    def take(self, table: Mapping[str, Any], key: str, field: str) -> Any:
        """Value of `table[key]`, recorded under the dotted name `field`; None when absent."""
        entry = table.get(key)
        if entry is None:
            return None
        why = entry.get("why", "")
        text = self.texts[entry["source"]]
        self.sources[field] = f"{text}: {why}" if why else text
        self.keys[field] = entry["source"]
        if "others" in entry:
            self.disagreements.append(
                Disagreement(field, entry["value"], entry["source"], entry["others"], why)
            )
        value = entry["value"]
        return tuple(value) if isinstance(value, list) else value


def _build(name: str, table: Mapping[str, Any], data: Mapping[str, Any]) -> Chip:
    figures = _Figures(data["sources"])
    core_table = table["core"]

    def chip_figure(key: str, field: str | None = None) -> Any:
        return figures.take(table, key, field or key)

    def core_figure(key: str, field: str | None = None) -> Any:
        return figures.take(core_table, key, f"core.{field or key}")

    cores_per_chip = chip_figure("cores_per_chip")
    peaks = {
        dtype: figures.take(table["peak_per_chip"], dtype, f"core.peak_flops_per_second.{dtype}")
        / cores_per_chip
        for dtype in table["peak_per_chip"]
    }
    native = frozenset(
        dtype for dtype, entry in table["peak_per_chip"].items() if not entry.get("widened")
    )
    clock = core_figure("clock_hertz")
    load_slots = core_figure("vector_load_slots")
    # every load slot reads one 8x128 register of 32-bit words per cycle
    vmem_bandwidth = load_slots * 8 * 128 * 4 * clock
    figures.sources["core.vmem.bandwidth_bytes_per_second"] = data["notes"]["vmem"]
    figures.keys["core.vmem.bandwidth_bytes_per_second"] = "derived"
    core = TensorCore(
        clock_hertz=clock,
        mxu_count=core_figure("mxu_count"),
        mxu_size=core_figure("mxu_size"),
        mxu_macs_per_cycle=core_figure("mxu_macs_per_cycle"),
        vpu_alu_count=core_figure("vpu_alu_count"),
        xlu_count=core_figure("xlu_count"),
        eup_count=core_figure("eup_count"),
        vector_load_slots=load_slots,
        vector_store_slots=core_figure("vector_store_slots"),
        registers=core_figure("registers"),
        vmem=Memory(
            "VMEM", core_figure("vmem_capacity_bytes", "vmem.capacity_bytes"), vmem_bandwidth
        ),
        smem=Memory("SMEM", core_figure("smem_capacity_bytes", "smem.capacity_bytes")),
        default_scoped_vmem_bytes=core_figure("default_scoped_vmem_bytes"),
        peak_flops_per_second=MappingProxyType(peaks),
        native_matmul_dtypes=native,
    )
    ici = Interconnect(
        mesh_rank=table["mesh_rank"],
        links_per_chip=chip_figure("ici_links_per_chip", "ici.links_per_chip"),
        link_bandwidth_bytes_per_second=chip_figure(
            "ici_link_bandwidth_bytes_per_second", "ici.link_bandwidth_bytes_per_second"
        ),
        nominal_link_bandwidth_bytes_per_second=chip_figure(
            "ici_nominal_link_bandwidth_bytes_per_second",
            "ici.nominal_link_bandwidth_bytes_per_second",
        ),
        hop_latency_seconds=chip_figure("ici_hop_latency_seconds", "ici.hop_latency_seconds"),
        pod_shape=chip_figure("pod_shape", "ici.pod_shape"),
        host_shape=chip_figure("host_shape", "ici.host_shape"),
        wraparound=chip_figure("wraparound", "ici.wraparound"),
        pcie_bandwidth_bytes_per_second=chip_figure(
            "pcie_bandwidth_bytes_per_second", "ici.pcie_bandwidth_bytes_per_second"
        ),
        dcn_bandwidth_bytes_per_second=chip_figure(
            "dcn_bandwidth_bytes_per_second", "ici.dcn_bandwidth_bytes_per_second"
        ),
    )
    return Chip(
        name=name,
        aliases=tuple(table["aliases"]),
        device_kind=table["device_kind"],
        topology=table["topology"],
        generation=table["generation"],
        mesh_rank=table["mesh_rank"],
        cores_per_chip=cores_per_chip,
        devices_per_chip=chip_figure("devices_per_chip"),
        sparse_cores_per_chip=chip_figure("sparse_cores_per_chip"),
        core=core,
        hbm=Memory(
            "HBM",
            chip_figure("hbm_capacity_bytes", "hbm.capacity_bytes"),
            chip_figure("hbm_bandwidth_bytes_per_second", "hbm.bandwidth_bytes_per_second"),
        ),
        ici=ici,
        dma_granule_bytes=chip_figure("dma_granule_bytes"),
        sources=MappingProxyType(figures.sources),
        source_keys=MappingProxyType(figures.keys),
        disagreements=tuple(figures.disagreements),
        notes=tuple(data["notes"].values()),
    )


@functools.cache
def _data() -> dict[str, Any]:
    text = resources.files("tpulab.hardware").joinpath("catalogue.toml").read_text("utf-8")
    return tomllib.loads(text)


def source_texts() -> Mapping[str, str]:
    """Short name of every source -> what it is."""
    texts: Mapping[str, str] = MappingProxyType(_data()["sources"])
    return texts


@functools.cache
def chips() -> tuple[Chip, ...]:
    """All chips of the catalogue, oldest first."""
    data = _data()
    return tuple(_build(name, table, data) for name, table in data["chips"].items())


@functools.cache
def _by_name() -> dict[str, Chip]:
    names: dict[str, Chip] = {}
    for chip in chips():
        for name in (chip.name, chip.device_kind, chip.topology, *chip.aliases):
            names[name.lower()] = chip
    return names


def get_chip(name: str | Chip) -> Chip:
    """The chip of that name, alias or JAX device kind, in any case ("v5e", "TPU v5 lite").

    A chip is returned as it is, so that a function can take either.

    Raises:
        UnknownNameError: no such chip; says which exist.
    """
    if isinstance(name, Chip):
        return name
    key = " ".join(str(name).lower().replace("_", " ").split())
    found = _by_name().get(key)
    if found is None:
        # a topology of another size, for example v5e:4x4
        found = _by_name().get(key.split(":")[0])
    if found is None:
        raise UnknownNameError("chip", str(name), [chip.name for chip in chips()])
    return found
