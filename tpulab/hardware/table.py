"""The catalogue as text and JSON, for ``tpulab chips``."""

from __future__ import annotations

import dataclasses
from typing import Any

from tpulab.hardware.catalogue import chips, get_chip, source_texts
from tpulab.hardware.chip import Chip

_TERA = 1e12
_GIBI = 2**30
_MEBI = 2**20


def _row(chip: Chip) -> list[str]:
    int8 = chip.core.peak_flops_per_second.get("int8")
    return [
        chip.name,
        f"{chip.cores_per_chip}",
        f"{chip.core.clock_hertz / 1e9:.2f}",
        f"{chip.core.mxu_count} x {chip.core.mxu_size}",
        f"{chip.peak() / _TERA:.0f}",
        "-" if int8 is None else f"{chip.peak('int8') / _TERA:.0f}",
        f"{chip.hbm.capacity_bytes / _GIBI:.0f}",
        f"{chip.hbm_bandwidth() / 1e9:.0f}",
        f"{chip.core.vmem.capacity_bytes / _MEBI:.0f}",
        f"{chip.ridge_point():.0f}",
        "x".join(str(size) for size in chip.ici.pod_shape),
    ]


def summary() -> str:
    """A table of all chips, one a line, with units in the heading."""
    header = [
        "chip",
        "cores",
        "GHz",
        "MXU/core",
        "bf16 TFLOP/s",
        "int8 TOP/s",
        "HBM GiB",
        "HBM GB/s",
        "VMEM MiB/core",
        "ridge FLOP/B",
        "pod",
    ]
    rows = [header, *(_row(chip) for chip in chips())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _human(field: str, value: Any) -> str:
    if value is None:
        return "not published"
    if isinstance(value, str):
        return value
    if isinstance(value, (tuple, list)):
        return " x ".join(str(part) for part in value)
    if field.endswith("flops_per_second") or "peak_flops" in field:
        return f"{value / _TERA:.5g} T/s"
    if field.endswith("bytes_per_second"):
        return f"{value / 1e9:.5g} GB/s"
    if field.endswith("_hertz"):
        return f"{value / 1e9:.4g} GHz"
    if field.endswith("_seconds"):
        return f"{value * 1e6:.3g} us"
    if field.endswith("_bytes"):
        if value >= _GIBI:
            return f"{value / _GIBI:.4g} GiB"
        if value >= _MEBI:
            return f"{value / _MEBI:.4g} MiB"
        if value >= 1024:
            return f"{value / 1024:.4g} KiB"
        return f"{value} B"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def value_of(chip: Chip, field: str) -> Any:
    """The figure under a dotted field name, such as ``"core.vmem.capacity_bytes"``."""
    value: Any = chip
    for part in field.split("."):
        value = value[part] if not hasattr(value, part) else getattr(value, part)
    return value


def describe(chip: str | Chip) -> str:
    """All figures of one chip with their sources, then where sources disagree, then notes."""
    chip = get_chip(chip)
    lines = [
        f"{chip.name}  ({chip.device_kind}; also {', '.join(chip.aliases)})",
        f"  compiled ahead of time as {chip.topology}, {chip.cores_per_device} core(s) a device",
        "",
    ]
    fields = sorted(chip.sources, key=lambda field: (field.count("."), field.split(".")[0]))
    width = max(len(field) for field in fields)
    values = {field: _human(field, value_of(chip, field)) for field in fields}
    value_width = max(len(text) for text in values.values())
    for field in fields:
        key = chip.source_keys[field]
        why = chip.sources[field].removeprefix(source_texts()[key]).removeprefix(": ")
        if key == "derived" and "vmem.bandwidth" in field:
            why = "vector load slots x 4096 bytes x clock"
        remark = f"{key}: {why}" if key == "derived" and why else key
        lines.append(f"  {field.ljust(width)}  {values[field].rjust(value_width)}  {remark}")
    derived = {
        "bf16 peak per chip": f"{chip.peak() / _TERA:.5g} TFLOP/s",
        "ridge point bf16": f"{chip.ridge_point():.1f} FLOP/B",
        "elementwise peak per core": f"{chip.core.vpu_flops_per_second / _TERA:.3g} TFLOP/s",
    }
    lines.append("")
    lines += [f"  {key}: {value}" for key, value in derived.items()]
    if chip.disagreements:
        lines += ["", "  Where sources disagree:"]
        for entry in chip.disagreements:
            # peaks are catalogued per chip, the attribute is per core
            others = ", ".join(
                f"{source} {_human(entry.field, value)}" for source, value in entry.others.items()
            )
            per = " per chip" if "peak_flops" in entry.field else ""
            lines.append(
                f"  {entry.field}{per}: {_human(entry.field, entry.chosen)} ({entry.source}); "
                f"{others}. {entry.why}"
            )
    used = set(chip.source_keys.values())
    used |= {other for entry in chip.disagreements for other in entry.others}
    lines += ["", "  Sources:"]
    lines += [f"  {key}: {text}" for key, text in source_texts().items() if key in used]
    lines += ["", "  Notes:"]
    lines += [f"  {note}" for note in chip.notes]
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)
        }
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if hasattr(value, "items"):
        return {key: _plain(part) for key, part in value.items()}
    return value


def chips_as_json(name: str | Chip | None = None) -> dict[str, Any]:
    """One chip, or all under ``"chips"``, as plain values that ``json.dumps`` takes.

    Peaks are per core (``core.peak_flops_per_second``) and per chip (``peak_per_chip``).
    """

    def one(chip: Chip) -> dict[str, Any]:
        plain: dict[str, Any] = _plain(chip)
        plain["cores_per_device"] = chip.cores_per_device
        plain["peak_per_chip"] = {
            dtype: chip.peak(dtype) for dtype in chip.core.peak_flops_per_second
        }
        plain["ridge_point_flops_per_byte"] = {
            dtype: chip.ridge_point(dtype) for dtype in chip.core.peak_flops_per_second
        }
        return plain

    if name is not None:
        return one(get_chip(name))
    return {"chips": {chip.name: one(chip) for chip in chips()}}
