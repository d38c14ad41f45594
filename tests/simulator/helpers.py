"""Small programs in the syntax of the listings, written by hand, and a core with round numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpulab.compiler.listing import Listing, parse_listing
from tpulab.simulator import Constants

LATENCY = {
    "scalar": 1,
    "scalar_slow": 2,
    "scalar_load": 6,
    "dma_issue": 1,
    "valu": 2,
    "single": 1,
    "load": 1,
    "store": 1,
    "eup": 7,
    "pop": 1,
    "cross_lane": 100,
    "matmul": 100,
    "matpush": 3,
    "matpop": 1,
}


def core(**changes: object) -> Constants:
    """One core at 1 GHz: 4 matrix units of 128, 64 bytes a cycle from HBM, 100 cycles' latency."""
    values: dict[str, object] = {
        "chip": "test",
        "clock_hertz": 1e9,
        "cores": 1,
        "mxu_count": 4,
        "mxu_size": 128,
        # 4 x 128 x 128 multiply-adds a cycle: a vmatmul of 16 rows takes 16 cycles.
        "peak_flops_per_second": {"bfloat16": 2 * 4 * 128 * 128 * 1e9},
        "hbm_bytes_per_second": 64e9,
        "granule_bytes": 32,
        "hbm_efficiency": 1.0,
        "dma_latency_cycles": 100.0,
        "single_stream_fraction": 1.0,
        "local_bytes_per_cycle": 512.0,
        "xlu_count": 2,
        "run_overhead_bytes": 0.0,
        "branch_delay_slots": 4,
        "latency_cycles": LATENCY,
        "occupancy_cycles": {"cross_lane": 8, "matpush": 4, "matpush_transposed": 8},
    }
    return Constants(**{**values, **changes})  # type: ignore[arg-type]


def program(bundles: Sequence[str], name: str = "program") -> Listing:
    """A listing from bundles like ``"s1 = smov 0 ;; … /* Start region 3 */"``.

    A comment that begins with ``Start`` or ``End`` stands behind the closing brace.
    """
    lines = []
    for address, text in enumerate(bundles):
        body, comment, rest = re.match(r"(.*?)(?:(/\* )((?:Start|End).*))?$", text).groups("")
        where = f"{address:#6x}" if address else "     0"
        lines.append(
            f"{where}   :  {{ {body.strip()} }}" + (f" {comment}{rest}" if comment else "")
        )
    return parse_listing("\n".join(lines) + "\n", name)


def load(flag: str = "[#allocation4]", granules: int = 64, slot: int = 0) -> str:
    """A transfer of some granules from HBM to VMEM."""
    return (
        f"%{500 + slot} = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s1_s1, /*size_in_granules=*/"
        f"{granules}, /*vmem=*/%s2_s2, /*dst_syncflagno=*/{flag}"
    )


def store(flag: str = "[#allocation5]", granules: int = 64) -> str:
    """A transfer of some granules from VMEM to HBM."""
    return (
        f"%600 = dma.vmem_to_hbm [thread:$0]  /*vmem=*/%s2_s2, /*size_in_granules=*/{granules}, "
        f"/*hbm=*/%s1_s1, /*dst_syncflagno=*/{flag}"
    )


def wait(flag: str = "[#allocation4]", granules: int = 64) -> str:
    """A wait for them."""
    return f"%700 = dma.done.wait {flag}, {granules}"


def take(flag: str = "[#allocation4]", granules: int = 64) -> str:
    """What a program does to the flag after a wait."""
    return f"%701 = vsyncadd {flag}, {2**32 - granules}"
