"""TPU chips as data: every figure once, with its unit and its source."""

from __future__ import annotations

from tpulab.hardware.catalogue import chips, get_chip
from tpulab.hardware.chip import Chip, Disagreement, Interconnect, Memory, TensorCore
from tpulab.hardware.dtypes import bits, bytes_of, canonical_dtype, dtype_name, native_tile
from tpulab.hardware.table import chips_as_json, describe, summary
from tpulab.hardware.torus import Torus

__all__ = [
    "Chip",
    "Disagreement",
    "Interconnect",
    "Memory",
    "TensorCore",
    "Torus",
    "bits",
    "bytes_of",
    "canonical_dtype",
    "chips",
    "chips_as_json",
    "describe",
    "dtype_name",
    "get_chip",
    "native_tile",
    "summary",
]
