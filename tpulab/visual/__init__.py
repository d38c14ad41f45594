"""Pictures of kernels and machines: one drawing function for each idea.

Every function takes what another room computed (a traced call, a timeline, a ladder) and returns a
`Figure`: an SVG that looks the same wherever it is drawn, a sentence for those who do not see it,
and a table with its numbers. Nothing here invents data.
"""

from __future__ import annotations

from typing import Any

_EXPORTS = {
    "Figure": "tpulab.visual.figure",
    "chip_map": "tpulab.visual.chip",
    "blocks_in_motion": "tpulab.visual.blocks",
    "choose_chip": "tpulab.visual.choosing",
    "choose_roofline": "tpulab.visual.choosing",
    "step_through": "tpulab.visual.stepping",
    "pipeline_timeline": "tpulab.visual.timeline",
    "roofline": "tpulab.visual.roof",
    "roofline_calculator": "tpulab.visual.calculators",
    "tiling_calculator": "tpulab.visual.calculators",
    "collectives_calculator": "tpulab.visual.calculators",
    "matmul_roofline": "tpulab.visual.calculator_figures",
    "tiling_roofline": "tpulab.visual.calculator_figures",
    "collective_times": "tpulab.visual.calculator_figures",
    "ring_in_motion": "tpulab.visual.ring",
    "ladder_waterfall": "tpulab.visual.waterfall",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use.

    It is kept in the module, so that a submodule of the same name does not hide the function.
    """
    import importlib

    if name in _EXPORTS:
        value = getattr(importlib.import_module(_EXPORTS[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tpulab.visual' has no attribute {name!r}")
