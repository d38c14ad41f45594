"""The parts of a chip with their figures, and what a kernel asks of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tpulab.errors import UsageError
from tpulab.hardware import Chip, get_chip
from tpulab.kernel.model import Kernel, PallasCall
from tpulab.roofline import Work, bound
from tpulab.simulator.timeline import Timeline
from tpulab.units import bytes_text, count_text, rate_text, seconds_text


@dataclass(frozen=True)
class Part:
    """One part of a chip.

    Attributes:
        name: as the field calls it.
        holds: how many there are, or how much fits.
        rate: what it can do in a second, of one core for a part of the core.
        work: what the kernel asks of it, empty without a kernel.
        least_seconds: that work at that rate; None where there is no rate or no kernel.
        busy: share of the predicted run in which it is busy, None without a timeline.
    """

    name: str
    holds: str
    rate: str
    work: str = ""
    least_seconds: float | None = None
    busy: float | None = None


@dataclass(frozen=True)
class Tenant:
    """What takes a piece of VMEM: a block's buffers, a scratch array, or what the compiler adds."""

    name: str
    size_bytes: int
    detail: str


@dataclass(frozen=True)
class Machine:
    """A chip, and a kernel on it where one was given.

    Attributes:
        chip: the chip.
        parts: by key: ``hbm``, ``dma``, ``vmem``, ``load``, ``registers``, ``mxu``, ``vpu``,
            ``xlu``, ``eup``, ``scalar``, ``smem``, ``ici``.
        kernel: the kernel's name, empty without one.
        tenants: who takes VMEM.
        vmem_bytes: how much is taken, None without a kernel.
        vmem_limit_bytes: how much a kernel may take unless it asks for more.
        vmem_source: "estimated from blocks and scratch" or "reported by the compiler".
    """

    chip: Chip
    parts: dict[str, Part]
    kernel: str = ""
    tenants: tuple[Tenant, ...] = ()
    vmem_bytes: int | None = None
    vmem_limit_bytes: int = 0
    vmem_source: str = ""
    run_seconds: float | None = None

    @property
    def slowest(self) -> str | None:
        """Key of the part whose work takes longest at its full rate."""
        timed = {key: part.least_seconds for key, part in self.parts.items() if part.least_seconds}
        return max(timed, key=lambda key: timed[key] or 0.0) if timed else None


def machine(chip: str | Chip, kernel: Any = None, timeline: Any = None) -> Machine:
    """Collect the figures of a chip, and of a kernel on it.

    Args:
        chip: a chip or its name.
        kernel: a traced `Kernel`, one of its `PallasCall`, a compiled `Program` (VMEM as the
            compiler reports it), or the ladder of this chip, which holds both and a timeline.
        timeline: a `Timeline`, or a ladder of one chip that holds one.

    Raises:
        UnknownNameError: a chip that is not known.
        UsageError: something else was given as kernel or timeline, or a timeline of another chip.
    """
    known = chip if isinstance(chip, Chip) else get_chip(chip)
    found = Machine(known, _parts(known), vmem_limit_bytes=known.core.default_scoped_vmem_bytes)
    program = None
    # several chips' ladders hold one for each; a refused one may still know its kernel
    kernel, timeline = (_of_chip(source, known) for source in (kernel, timeline))
    if kernel is not None and not isinstance(kernel, (Kernel, PallasCall)):
        timeline = getattr(kernel, "timeline", None) if timeline is None else timeline
        if hasattr(kernel, "vmem") and hasattr(kernel, "pieces"):
            program, kernel = kernel, None
        elif hasattr(kernel, "rungs"):
            program, kernel = kernel.program, kernel.kernel
        else:
            raise UsageError(
                f"a chip map takes a traced kernel, a program or a ladder, "
                f"not {type(kernel).__name__}",
                hint="tpulab.trace(function, *arguments) makes a kernel of a function",
            )
    if kernel is not None:
        found = _with_kernel(found, kernel)
    if program is not None and program.vmem.reported:
        found = _with_program(found, program)
    if timeline is not None:
        found = _with_timeline(found, timeline)
    return found


def _of_chip(source: Any, chip: Chip) -> Any:
    chips = getattr(source, "chips", None)
    if not isinstance(chips, Mapping):
        return source
    if chip.name not in chips:
        raise UsageError(f"the ladder has no {chip.name}, only {', '.join(chips)}")
    return chips[chip.name]


def _parts(chip: Chip) -> dict[str, Part]:
    core, ici = chip.core, chip.ici
    registers = core.registers * core.register_bytes
    element = f"{core.sublanes}×{core.lanes}"
    loads = core.vmem.bandwidth_bytes_per_second or 0.0
    share = chip.hbm_bandwidth("core")
    cores = chip.cores_per_chip
    hbm_rate = rate_text(chip.hbm_bandwidth(), "B/s")
    if cores > 1:
        hbm_rate += f", {rate_text(share, 'B/s')} a core"
    return {
        "hbm": Part("HBM", bytes_text(chip.hbm.capacity_bytes), hbm_rate),
        "vmem": Part("VMEM", bytes_text(core.vmem.capacity_bytes), ""),
        "load": Part(
            "vector loads",
            f"{core.vector_load_slots} loads, {core.vector_store_slots} "
            f"store{'s' if core.vector_store_slots > 1 else ''} a cycle",
            rate_text(loads, "B/s"),
        ),
        "registers": Part(
            "vector registers", f"{core.registers} of {element}×32 bits", bytes_text(registers)
        ),
        "mxu": Part("MXU", f"{core.mxu_count} of {core.mxu_size}×{core.mxu_size}", _peak(chip)),
        "vpu": Part(
            "VPU",
            f"{core.vpu_alu_count} ALUs of {element}",
            rate_text(core.vpu_flops_per_second, "FLOP/s"),
        ),
        "xlu": Part("XLU", f"{core.xlu_count} of {element}", ""),
        "eup": Part(
            "EUP",
            f"{core.eup_count} of {element}",
            rate_text(core.transcendentals_per_second, "op/s"),
        ),
        "scalar": Part("scalar core", "runs the program", f"{core.clock_hertz / 1e9:.3g} GHz"),
        "smem": Part("SMEM", bytes_text(core.smem.capacity_bytes), ""),
        "ici": Part(
            "ICI",
            f"{ici.links_per_chip} links",
            f"{rate_text(ici.link_bandwidth_bytes_per_second, 'B/s')} each way, each link",
        ),
    }


def _peak(chip: Chip, dtype: str = "bfloat16") -> str:
    """The matrix peak of a core for a dtype, or for what the core would convert it to."""
    if dtype not in chip.core.peak_flops_per_second:
        dtype = "bfloat16"
    short = {"bfloat16": "bf16", "float32": "f32"}.get(dtype, dtype.split("_")[0])
    short = short.replace("float8", "fp8").replace("float4", "fp4")
    unit = "op/s" if dtype.startswith("int") else "FLOP/s"
    return f"{rate_text(chip.peak(dtype, per='core'), unit)} {short}"


def _with_kernel(found: Machine, kernel: Kernel | PallasCall) -> Machine:
    chip = found.chip
    calls = kernel.calls if isinstance(kernel, Kernel) else (kernel,)
    if not calls:
        raise UsageError(
            f"{kernel.name} has no Pallas kernel in it", hint="a chip map shows what a kernel does"
        )
    cores = chip.cores_per_device
    least = bound(kernel, chip)
    largest = max(calls, key=lambda call: call.vmem_bytes)
    smem = max(call.smem_bytes for call in calls)
    remote = sum(call.remote_bytes * call.times for call in calls)
    times = 1 if isinstance(kernel, Kernel) else kernel.times
    transcendentals = kernel.transcendentals * times
    vpu, flops = kernel.vpu_flops * times, kernel.mxu_flops * times
    read, written = kernel.hbm_read_bytes * times, kernel.hbm_written_bytes * times
    work: dict[str, tuple[str, float | None]] = {
        "hbm": (
            f"reads {bytes_text(read)}, writes {bytes_text(written)}",
            (read + written) / chip.hbm_bandwidth("device"),
        ),
        "vmem": (f"uses {bytes_text(largest.vmem_bytes)}", None),
        "mxu": (f"{count_text(flops)} FLOP", least.compute_seconds),
        "vpu": (f"{count_text(vpu)} op", vpu / chip.core.vpu_flops_per_second / cores),
        "eup": (
            f"{count_text(transcendentals)} op",
            transcendentals / chip.core.transcendentals_per_second / cores,
        ),
        "smem": (f"uses {bytes_text(smem)}" if smem else "not used", None),
        "ici": (f"sends {bytes_text(remote)}" if remote else "sends nothing", least.ici_seconds),
    }
    parts = dict(found.parts)
    products = Work.of_kernel(kernel).matmul_flops
    if products:
        most = max(products, key=lambda dtype: products[dtype])
        parts["mxu"] = replace(parts["mxu"], rate=_peak(chip, most))
    for key, (what, seconds) in work.items():
        parts[key] = replace(parts[key], work=what, least_seconds=seconds)
    return replace(
        found,
        parts=parts,
        kernel=kernel.name,
        tenants=_tenants(largest),
        vmem_bytes=largest.vmem_bytes,
        vmem_limit_bytes=largest.vmem_limit_bytes or found.vmem_limit_bytes,
        vmem_source="estimated from blocks and scratch",
    )


def _tenants(call: PallasCall) -> tuple[Tenant, ...]:
    tenants = []
    for operand in call.operands:
        if operand.memory_space == "vmem":
            count = operand.buffer_count
            each = f"{count} × " if count > 1 else ""
            tenants.append(
                Tenant(
                    operand.name,
                    operand.block_bytes_padded * count,
                    f"{each}{bytes_text(operand.block_bytes_padded)}",
                )
            )
    for scratch in call.scratch:
        if scratch.memory_space == "vmem":
            tenants.append(Tenant(scratch.name, scratch.bytes_padded, "scratch"))
    return tuple(tenants)


def _with_program(found: Machine, program: Any) -> Machine:
    """VMEM as the compiler reports it: the blocks known from the trace, and the rest."""
    report = program.vmem
    known = sum(tenant.size_bytes for tenant in found.tenants)
    tenants = list(found.tenants)
    rest = report.used_bytes - known
    if rest < 0:
        # the compiler packs tighter than the estimate: shares of what it took
        tenants = []
        rest = report.used_bytes
    if rest:
        name = "compiler's own" if tenants else "all of it"
        spilled = f", {bytes_text(report.spill_bytes)} spilled" if report.spill_bytes else ""
        tenants.append(Tenant(name, rest, f"temporaries{spilled}" if tenants else "as reported"))
    parts = dict(found.parts)
    parts["vmem"] = replace(parts["vmem"], work=f"uses {bytes_text(report.used_bytes)}")
    return replace(
        found,
        parts=parts,
        kernel=found.kernel or program.name,
        tenants=tuple(tenants),
        vmem_bytes=report.used_bytes,
        vmem_limit_bytes=report.limit_bytes,
        vmem_source="reported by the compiler",
    )


def _with_timeline(found: Machine, source: Any) -> Machine:
    timeline = source if isinstance(source, Timeline) else getattr(source, "timeline", None)
    if not isinstance(timeline, Timeline):
        raise UsageError(
            "there is no timeline for the chip map",
            why=str(getattr(source, "refusal", None) or f"{type(source).__name__} holds none"),
        )
    if timeline.chip != found.chip.name:
        raise UsageError(f"the timeline is of {timeline.chip}, the chip map of {found.chip.name}")
    busy = {unit: cycles / timeline.cycles for unit, cycles in timeline.busy_cycles.items()}
    shares = {key: busy.get(key) for key in ("mxu", "vpu", "xlu", "eup", "scalar", "load")}
    shares["hbm"] = busy.get("dma_in", 0.0) + busy.get("dma_out", 0.0)
    parts = {key: replace(part, busy=shares.get(key)) for key, part in found.parts.items()}
    return replace(found, parts=parts, run_seconds=timeline.seconds)


def least_text(part: Part) -> str:
    """The least time of a part's work, in words; empty when there is none."""
    return f"at least {seconds_text(part.least_seconds)}" if part.least_seconds else ""
