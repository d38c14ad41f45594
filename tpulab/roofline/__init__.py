"""What is possible at best: bounds, tilings, collectives, transformer arithmetic.

Three calculators, each also a verb of the command line and a form of :mod:`tpulab.visual`:

* ``bound(Work.matmul(m, k, n), "v5e")``: the least time of some work, and what sets it.
* ``best_tilings(m, k, n, chip="v5e")`` and ``matmul_tilings(m, k, n, block_m, block_k, block_n)``:
  what a choice of blocks moves through HBM, needs of VMEM and takes at best.
* ``collective("all-gather", parse_bytes("32MiB"), Links.of("v5e", (4, 4)))``: the time of a
  collective on a slice, whether latency or bandwidth sets it, and over which links.

Nothing here runs or compiles anything, and nothing here is measured: figures of chips come with
their sources from :mod:`tpulab.hardware`. NumPy is loaded by the tiling calculator only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpulab.roofline.bounds import Bound as Bound
    from tpulab.roofline.bounds import Work as Work
    from tpulab.roofline.bounds import attention_flops as attention_flops
    from tpulab.roofline.bounds import bound as bound
    from tpulab.roofline.bounds import critical_batch as critical_batch
    from tpulab.roofline.bounds import critical_contraction as critical_contraction
    from tpulab.roofline.bounds import dot_product_intensity as dot_product_intensity
    from tpulab.roofline.bounds import matmul_bytes as matmul_bytes
    from tpulab.roofline.bounds import matmul_flops as matmul_flops
    from tpulab.roofline.bounds import render_bounds as render_bounds
    from tpulab.roofline.bounds import time_for as time_for
    from tpulab.roofline.bounds import utilisation as utilisation
    from tpulab.roofline.collectives import KINDS as KINDS
    from tpulab.roofline.collectives import CollectiveCost as CollectiveCost
    from tpulab.roofline.collectives import Links as Links
    from tpulab.roofline.collectives import all_gather as all_gather
    from tpulab.roofline.collectives import all_reduce as all_reduce
    from tpulab.roofline.collectives import all_to_all as all_to_all
    from tpulab.roofline.collectives import balanced_bytes as balanced_bytes
    from tpulab.roofline.collectives import collective as collective
    from tpulab.roofline.collectives import links_in_use as links_in_use
    from tpulab.roofline.collectives import permute as permute
    from tpulab.roofline.collectives import reduce_scatter as reduce_scatter
    from tpulab.roofline.collectives import render_collectives as render_collectives
    from tpulab.roofline.collectives import sharded_bytes as sharded_bytes
    from tpulab.roofline.collectives import transfer as transfer
    from tpulab.roofline.quantities import parse_bytes as parse_bytes
    from tpulab.roofline.quantities import parse_size as parse_size
    from tpulab.roofline.quantities import parse_slice as parse_slice
    from tpulab.roofline.tiling import Tilings as Tilings
    from tpulab.roofline.tiling import best_tilings as best_tilings
    from tpulab.roofline.tiling import candidate_sizes as candidate_sizes
    from tpulab.roofline.tiling import matmul_tilings as matmul_tilings
    from tpulab.roofline.transformer import DecodeStep as DecodeStep
    from tpulab.roofline.transformer import Transformer as Transformer
    from tpulab.roofline.transformer import decode_step as decode_step

_EXPORTS = {
    "Bound": "bounds",
    "CollectiveCost": "collectives",
    "DecodeStep": "transformer",
    "KINDS": "collectives",
    "Links": "collectives",
    "Tilings": "tiling",
    "Transformer": "transformer",
    "Work": "bounds",
    "all_gather": "collectives",
    "all_reduce": "collectives",
    "all_to_all": "collectives",
    "attention_flops": "bounds",
    "balanced_bytes": "collectives",
    "best_tilings": "tiling",
    "bound": "bounds",
    "candidate_sizes": "tiling",
    "collective": "collectives",
    "critical_batch": "bounds",
    "critical_contraction": "bounds",
    "decode_step": "transformer",
    "dot_product_intensity": "bounds",
    "links_in_use": "collectives",
    "matmul_bytes": "bounds",
    "matmul_flops": "bounds",
    "matmul_tilings": "tiling",
    "parse_bytes": "quantities",
    "parse_size": "quantities",
    "parse_slice": "quantities",
    "permute": "collectives",
    "reduce_scatter": "collectives",
    "render_bounds": "bounds",
    "render_collectives": "collectives",
    "sharded_bytes": "collectives",
    "time_for": "bounds",
    "transfer": "collectives",
    "utilisation": "bounds",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tpulab.roofline' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tpulab.roofline.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
