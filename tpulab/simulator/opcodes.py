"""What each operation of a bundle does to the clock: its unit, its kind, its family of latencies.

The tables are by opcode stem, so that the same rules read the listings of all generations and both
compiler versions. Numbers (latencies, occupancies) are not here but in ``constants.toml``.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple


class Kind(Enum):
    """How the simulator treats an operation."""

    SCALAR = "scalar"  # writes a scalar or predicate register, executed exactly
    NOTHING = "nothing"  # a name only, or a fence with no cost beyond its bundle
    BRANCH = "branch"
    DMA = "dma"  # starts a transfer
    WAIT = "wait"  # stalls until a sync flag has a value
    SYNC = "sync"  # changes or reads a sync flag
    VECTOR = "vector"  # costs time only
    CHECK = "check"  # a bounds check that would halt the chip
    UNKNOWN = "unknown"


class OpClass(NamedTuple):
    """Kind, unit and family of an opcode.

    Attributes:
        kind: how it is treated.
        unit: the unit whose busy time it counts for: ``mxu``, ``vpu``, ``xlu``, ``eup``, ``load``,
            ``store``, ``scalar``, ``dma``.
        family: the key of its latency and occupancy in ``constants.toml``.
        resource: the instance that it occupies, as ``"mxu0"`` or ``"xlu1"``, or ``None``.
        fifo: the result queue that it pushes to or pops from, or ``None``.
        pops: whether it takes from that queue.
        known: whether the opcode is one that the tables name.
    """

    kind: Kind
    unit: str
    family: str
    resource: str | None = None
    fifo: str | None = None
    pops: bool = False
    known: bool = True


_UNIT = re.compile(r"\.(mxu|xlu)(\d)")

_NOTHING = {
    "sphi",
    "compiler-scheduling-barrier",
    "sfence",
    "vtrace",
    "vsettm",
    "strace",
    "vdelay",
    "inlined_call",
    "scheduling-barrier",
    "set.rngseed",
    "vnop",
    "snop",
    "sdelay",
    "vphi",
    "pphi",
    "vmphi",
    "llo.assume",
}

_SCALAR_STEMS = {
    "smov",
    "sadd",
    "ssub",
    "smul",
    "smulhi",
    "sand",
    "sor",
    "sxor",
    "snot",
    "sneg",
    "sshll",
    "sshllo",
    "sshra",
    "sshrl",
    "smin",
    "smax",
    "sabs",
    "sclz",
    "scmp",
    "sdiv",
    "srem",
    "sdivrem",
    "por",
    "pand",
    "pnand",
    "pnor",
    "pxor",
    "pneg",
    "pmov",
    "scalar_select",
    "scalar_lea",
    "scalar_parameter_address",
    "int_to_ptr",
    "ptr_to_int",
    "sld",
    "sst",
    "spop",
    "sc",
    "scvt",
    "sfloor",
    "sceil",
    "sround",
    "sweird",
    "reloc",
    "inlined_call_operand",
    "spopcnt",
    "sphi",
    "sbitcast",
    "ssel",
    "srsqrt",
    "srcp",
}
"""Stems of the operations that ``scalar.py`` may be asked to execute; it refuses what it can't."""

_EUP = {
    "vrcp",
    "vrsqrt",
    "vpow2",
    "vpow",
    "vlog2",
    "vlog",
    "vtanh",
    "vsinq",
    "vcosq",
    "vsin",
    "vcos",
    "verf",
    "vsigshft",
    "vsigmoid",
    "vsqrt",
    "vlogistic",
    "vexp",
    "vexp2",
    "vrecip",
}

_SINGLE = {"vsel", "vcmp", "vmand", "vmor", "vmxor", "vmneg", "vmmov", "vmnand", "vnez", "vstv"}
"""Operations whose result the next bundle can use (the compiler's critical path says 1 cycle)."""

_INTEGER = {"vand", "vor", "vxor", "vnot", "vshll", "vshrl", "vshra", "vmov", "vlaneseq", "vclz"}
"""Vector operations that work on bits whatever their suffix says."""

_VALU = {
    "vadd",
    "vsub",
    "vmul",
    "vmax",
    "vmin",
    "vand",
    "vor",
    "vxor",
    "vnot",
    "vshll",
    "vshrl",
    "vshra",
    "vmov",
    "vpack",
    "vunpack",
    "vcvt",
    "vclz",
    "vceil",
    "vfloor",
    "vround",
    "vtrunc",
    "vweird",
    "vc",
    "vlaneseq",
    "vabs",
    "vneg",
    "vcombine",
    "vclamps",
    "vrot",
    "vperm",
    "vrng",
    "vmulhi",
    "vpopcnt",
    "vpcnt",
    "vcreate_mask",
    "vsmask",
    "vlmask",
    "vcmask",
    "vsetiar",
    "vset",
    "vmadd",
    "vmsub",
    "vfma",
    "vnmsub",
    "vnmadd",
    "vmac",
    "vdiv",
    "vrelu",
    "vsubc",
    "vaddc",
    "vinterleave",
    "vcompress",
    "vexpand",
    "vsplat",
    "vbcast",
    "vselect",
    "vmask",
    "vstage",
    "vreplicate",
    "vlsb",
    "vmsb",
    "vsat",
    "vadd_high",
    "vadd_low",
    "vmul_high",
    "vmul_low",
    "vsub_low",
    "vsub_high",
    "vpackc",
    "vf32",
    "vmpackc",
    "vmunpackc",
    "vmpack",
}


@lru_cache(maxsize=4096)
def classify(opcode: str) -> OpClass:
    """The class of an opcode. An opcode that no table names gets ``known=False``.

    An unknown opcode that begins with ``v`` is taken for a vector operation that costs time only;
    any other is ``Kind.UNKNOWN`` and the simulator refuses it.
    """
    stem, _, rest = opcode.partition(".")
    if stem.startswith("v"):
        stem = stem.partition("-")[0]
    instance = _UNIT.search(opcode)
    resource = instance.group(1) + instance.group(2) if instance else None

    if opcode in _NOTHING or stem in ("sphi", "vtrace", "set"):
        return OpClass(Kind.NOTHING, "scalar", "scalar")
    if opcode == "sbr.rel" or stem == "sbr":
        return OpClass(Kind.BRANCH, "scalar", "scalar")
    if stem == "shalt":
        return OpClass(Kind.CHECK, "scalar", "scalar")
    if stem == "dma":
        kind = Kind.WAIT if rest.startswith("done") else Kind.DMA
        return OpClass(kind, "dma", "dma_wait" if kind is Kind.WAIT else "dma_issue")
    if stem in ("vwait", "swait"):
        return OpClass(Kind.WAIT, "dma", "dma_wait")
    if opcode.startswith("vsyncmov"):
        return OpClass(Kind.SYNC, "scalar", "sync_read")
    if stem.startswith(("vsync", "ssync")):
        return OpClass(Kind.SYNC, "scalar", "sync")
    if opcode == "vpop.sfrf":
        return OpClass(Kind.SCALAR, "scalar", "scalar_pop")
    if opcode in ("vpush.ccrf", "vpop.ccrf"):
        return OpClass(Kind.VECTOR, "scalar", "core_register")
    if stem in _SCALAR_STEMS:
        return OpClass(Kind.SCALAR, "scalar", _scalar_family(opcode, stem))

    if stem == "vmatmul":
        return OpClass(Kind.VECTOR, "mxu", "matmul", resource, _fifo(opcode, resource))
    if stem.startswith("vmatpush"):
        family = "matpush_transposed" if ".xpose" in opcode else "matpush"
        return OpClass(Kind.VECTOR, "mxu_push", family, resource)
    if stem == "vmatprep":
        return OpClass(Kind.VECTOR, "mxu_push", "matprep", resource)
    if stem in ("vdwg", "vllmr") or stem.startswith("vmat"):
        return OpClass(Kind.VECTOR, "mxu_push", "matprep", resource)
    if stem == "vpop":
        if "mrf" in opcode or "mrb" in opcode:
            return OpClass(
                Kind.VECTOR, "mxu_pop", "matpop", resource, _fifo(opcode, resource), True
            )
        if "trf" in opcode:
            port = f"{resource}.pop" if resource else None
            return OpClass(Kind.VECTOR, "xlu_pop", "transpose_pop", port)
        unit = "eup" if "eup" in opcode else "xlu"
        return OpClass(Kind.VECTOR, unit + "_pop", "pop")
    if stem in ("vld", "vlds", "cld"):
        return OpClass(Kind.VECTOR, "load", "load")
    if stem in ("vst", "vsts", "vstx", "cst"):
        return OpClass(Kind.VECTOR, "store", "store")
    if stem in ("vpush", "vtos"):
        return OpClass(Kind.VECTOR, "vpu", "vector_to_scalar")
    if stem in _EUP:
        return OpClass(Kind.VECTOR, "eup", "eup", "eup")
    if "xlane" in opcode:
        return OpClass(Kind.VECTOR, "xlu", "cross_lane", resource)
    if stem.startswith("vxpose"):
        family = "transpose"
        if ".end" in opcode:
            family = "transpose_single" if ".start" in opcode else "transpose_end"
        return OpClass(Kind.VECTOR, "xlu", family, resource)
    if opcode.startswith("vrot.slane"):
        return OpClass(Kind.VECTOR, "vpu", "valu")
    if opcode.startswith("vperm.slane"):
        return OpClass(Kind.VECTOR, "vpu", "valu")
    if resource and resource.startswith("xlu"):
        family = "permute" if stem in ("vperm", "vbcast") else "rotate"
        return OpClass(Kind.VECTOR, "xlu", family, resource)
    if stem in _SINGLE:
        return OpClass(Kind.VECTOR, "vpu", "single")
    if stem in _VALU:
        integer = stem in _INTEGER or any(part in opcode for part in (".s32", ".u32", ".b32"))
        family = "valu_integer" if integer and ".f32" not in opcode else "valu"
        return OpClass(Kind.VECTOR, "vpu", family)
    if stem.startswith("v"):
        return OpClass(Kind.VECTOR, "vpu", "valu", known=False)
    return OpClass(Kind.UNKNOWN, "scalar", "scalar", known=False)


def _fifo(opcode: str, resource: str | None) -> str | None:
    return ("mrf." + resource) if resource else None


def _scalar_family(opcode: str, stem: str) -> str:
    if stem == "sld":
        return "scalar_load"
    if stem == "sst":
        return "scalar_store"
    if stem in (
        "scmp",
        "scalar_select",
        "smul",
        "smulhi",
        "sc",
        "por",
        "pand",
        "pnand",
        "pneg",
        "pxor",
    ):
        return "scalar_slow"
    if stem in ("srem", "sdiv", "sdivrem"):
        return "scalar_divide"
    if stem == "spop":
        return "scalar"
    return "scalar"
