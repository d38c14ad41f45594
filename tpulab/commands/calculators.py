"""``tpulab chips``, ``tpulab roofline`` and ``tpulab tiling``."""

from __future__ import annotations

import argparse
import json


def chips(options: argparse.Namespace) -> int:
    """Print the catalogue, or every figure of one chip with its source."""
    from tpulab import hardware

    if options.json:
        print(json.dumps(hardware.chips_as_json(options.name), indent=2))
    elif options.name:
        print(hardware.describe(options.name))
    else:
        print(hardware.summary())
    return 0
