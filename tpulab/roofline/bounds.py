"""The least time a piece of work can take on a chip: peak arithmetic and bandwidths, nothing else.

A bound is a promise: no program that does this work on this chip is faster. So it counts only what
no compiler can avoid: the matrix products at the matrix unit's peak, arguments and results through
HBM once as far as they are used, and what is sent to other chips over all links at once. What the
vector units would need is stated beside it and is an estimate, because compilers fuse, fold and
pack elementwise work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpulab.errors import TpulabError
from tpulab.hardware import Chip, bytes_of, canonical_dtype, dtype_name, get_chip
from tpulab.hardware.chip import Per

# float32 products at a higher precision are sums of bfloat16 products:
# three for HIGH, six for HIGHEST (JAX: Precision, bf16_3x and bf16_6x)
_PASSES = {"HIGH": 3, "BF16_BF16_F32_X3": 3, "HIGHEST": 6, "BF16_BF16_F32_X6": 6}


@dataclass(frozen=True)
class Work:
    """What has to be done, independent of any chip.

    Attributes:
        matmul_flops: FLOP (integer operations) of matrix products by operand dtype; a product in
            several passes counts once a pass.
        hbm_bytes: bytes that must pass between HBM and the cores at least once.
        vmem_bytes: bytes that must pass between VMEM and the registers at least once, when known.
        ici_bytes: bytes that one device must send to other chips.
        vector_flops: elementwise operations, for the estimate beside the bound.
        transcendentals: elements through exp, log, tanh..., likewise.
    """

    matmul_flops: Mapping[str, float] = field(default_factory=dict)
    hbm_bytes: float = 0.0
    vector_flops: float = 0.0
    transcendentals: float = 0.0
    vmem_bytes: float = 0.0
    ici_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """All matmul FLOP."""
        return sum(self.matmul_flops.values())

    @property
    def intensity(self) -> float:
        """Matmul FLOP per HBM byte; infinite without traffic."""
        return self.flops / self.hbm_bytes if self.hbm_bytes else float("inf")

    @classmethod
    def of(cls, flops: float, hbm_bytes: float, dtype: Any = "bfloat16") -> Work:
        """Work given as two numbers."""
        return cls({canonical_dtype(dtype): float(flops)}, float(hbm_bytes))

    @classmethod
    def matmul(
        cls,
        m: int,
        k: int,
        n: int,
        dtype: Any = "bfloat16",
        *,
        rhs_dtype: Any = None,
        out_dtype: Any = None,
        batch: int = 1,
    ) -> Work:
        """`batch` products of [m, k] by [k, n], every array through HBM once.

        The right-hand side has `rhs_dtype` and the result `out_dtype`, both `dtype` when not given;
        the arithmetic runs at the rate of the wider operand.
        """
        lhs = dtype_name(dtype)
        rhs = dtype_name(rhs_dtype or dtype)
        out = dtype_name(out_dtype or dtype)
        wider = max((lhs, rhs), key=lambda name: bytes_of(8, name))
        traffic = bytes_of(m * k, lhs) + bytes_of(k * n, rhs) + bytes_of(m * n, out)
        return cls(
            {canonical_dtype(wider): matmul_flops(m, k, n, batch=batch)}, float(batch * traffic)
        )

    @classmethod
    def of_kernel(cls, kernel: Any) -> Work:
        """The work of a traced ``Kernel`` or of one of its ``PallasCall``."""
        calls = [(call, call.times) for call in getattr(kernel, "calls", (kernel,))]
        flops: dict[str, float] = {}
        for call, times in calls:
            for product in call.matmuls:
                passes = _PASSES.get(str(product.precision).rpartition(".")[2].upper(), 1)
                name = canonical_dtype(product.dtype)
                # a lower-precision algorithm than the operands' own needs no extra passes
                passes = passes if name == "float32" else 1
                flops[name] = flops.get(name, 0.0) + float(product.flops * passes * times)
        return cls(
            flops,
            float(_least_traffic(kernel, calls)),
            float(sum(call.vpu_flops * times for call, times in calls)),
            float(sum(call.transcendentals * times for call, times in calls)),
            ici_bytes=float(sum(call.remote_bytes * times for call, times in calls)),
        )


def _least_traffic(kernel: Any, calls: list[tuple[Any, int]]) -> int:
    """A kernel knows what may stay in VMEM between its calls; a single call counts for itself."""
    whole = getattr(kernel, "unique_bytes", None)
    if whole is not None and hasattr(kernel, "calls"):
        return int(whole)
    return sum(call.unique_bytes * times for call, times in calls)


@dataclass(frozen=True)
class Bound:
    """The least time of some work on (part of) a chip, and what sets it.

    Attributes:
        seconds: the largest of `compute_seconds`, `hbm_seconds`, `vmem_seconds`, `ici_seconds`.
        limiting: which of them: ``"compute"``, ``"HBM"``, ``"VMEM"`` or ``"ICI"``.
        vector_seconds: estimate of what the vector units need; not part of the bound.
        peak_flops_per_second: the rate over all dtypes of this work.
        assumptions: sentences on what was taken for granted.
    """

    chip: str
    per: str
    seconds: float
    compute_seconds: float
    hbm_seconds: float
    vector_seconds: float
    limiting: str
    flops: float
    hbm_bytes: float
    peak_flops_per_second: float
    hbm_bytes_per_second: float
    vmem_seconds: float = 0.0
    ici_seconds: float = 0.0
    assumptions: tuple[str, ...] = ()

    @property
    def intensity(self) -> float:
        """FLOP per HBM byte of the work."""
        return self.flops / self.hbm_bytes if self.hbm_bytes else float("inf")

    @property
    def ridge_point(self) -> float:
        """FLOP per HBM byte at which both limits are equal."""
        return self.peak_flops_per_second / self.hbm_bytes_per_second

    @property
    def flops_per_second(self) -> float:
        """What the work would run at, at best."""
        return self.flops / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """All figures as plain values (an infinite intensity as None)."""
        data = dataclasses.asdict(self)
        data["assumptions"] = list(self.assumptions)
        data["intensity"] = None if self.intensity == float("inf") else self.intensity
        data["ridge_point"] = self.ridge_point
        return data

    def __str__(self) -> str:
        return render_bounds([self])


def bound(
    work: Any,
    chip: str | Chip = "v5e",
    *,
    per: Per = "device",
    peak_flops_per_second: float | None = None,
    hbm_bytes_per_second: float | None = None,
) -> Bound:
    """The least time of `work` on one chip, core or JAX device.

    Args:
        work: a :class:`Work`, a traced ``Kernel`` or one of its ``PallasCall``.
        chip: a chip or its name.
        per: whose rates count; ``"device"`` is what one JAX device sees.
        peak_flops_per_second, hbm_bytes_per_second: rates to use instead of the catalogue's.
    """
    chip = get_chip(chip)
    if not isinstance(work, Work):
        if not hasattr(work, "calls") and not hasattr(work, "matmuls"):
            raise TpulabError(
                f"a bound needs a Work or a traced kernel, not {type(work).__name__}",
                hint="tpulab.trace(function, *arguments) makes a kernel of a function",
            )
        work = Work.of_kernel(work)
    assumptions: list[str] = []
    compute = 0.0
    for dtype, flops in work.matmul_flops.items():
        compute += flops / (peak_flops_per_second or _rate(chip, dtype, per, assumptions))
    bandwidth = hbm_bytes_per_second or chip.hbm_bandwidth(per)
    hbm = work.hbm_bytes / bandwidth
    cores = {"core": 1, "device": chip.cores_per_device, "chip": chip.cores_per_chip}[per]
    vector = max(
        work.vector_flops / chip.core.vpu_flops_per_second,
        work.transcendentals / chip.core.transcendentals_per_second,
    )
    default = peak_flops_per_second or chip.peak("bfloat16", per=per)
    assert chip.core.vmem.bandwidth_bytes_per_second is not None
    vmem = work.vmem_bytes / chip.core.vmem.bandwidth_bytes_per_second / cores
    # all links of the chip at once, of which a device has its share
    links = chip.ici.links_per_chip * chip.ici.link_bandwidth_bytes_per_second
    ici = work.ici_bytes / (links * cores / chip.cores_per_chip)
    limits = {"HBM": hbm, "compute": compute, "VMEM": vmem, "ICI": ici}
    limiting = max(limits, key=lambda name: limits[name])
    return Bound(
        chip=chip.name,
        per=per,
        seconds=limits[limiting],
        compute_seconds=compute,
        hbm_seconds=hbm,
        vector_seconds=vector / cores,
        limiting=limiting,
        flops=work.flops,
        hbm_bytes=work.hbm_bytes,
        peak_flops_per_second=work.flops / compute if compute else default,
        hbm_bytes_per_second=bandwidth,
        vmem_seconds=vmem,
        ici_seconds=ici,
        assumptions=tuple(assumptions),
    )


def _rate(chip: Chip, dtype: str, per: Per, assumptions: list[str]) -> float:
    """Peak for a dtype; one the matrix unit does not take counts as converted to bfloat16."""
    try:
        rate = chip.peak(dtype, per=per)
    except TpulabError:
        assumptions.append(f"{chip.name} has no {dtype} matrix rate; counted at the bfloat16 rate")
        return chip.peak("bfloat16", per=per)
    if dtype not in chip.core.native_matmul_dtypes:
        assumptions.append(f"{chip.name} converts {dtype} operands before the matrix unit")
    return rate


def matmul_flops(m: int, k: int, n: int, *, batch: int = 1) -> float:
    """Multiplies and adds of `batch` products of [m, k] by [k, n]: 2 batch m k n."""
    return 2.0 * batch * m * k * n


def matmul_bytes(
    m: int, k: int, n: int, dtype: Any = "bfloat16", *, rhs_dtype: Any = None, out_dtype: Any = None
) -> float:
    """Bytes of both operands and the result, once each."""
    return Work.matmul(m, k, n, dtype, rhs_dtype=rhs_dtype, out_dtype=out_dtype).hbm_bytes


def attention_flops(
    query_length: int, key_length: int, heads: int, head_dim: int, *, batch: int = 1
) -> float:
    """FLOP of scores and weighted sum without a mask: 4 batch heads query key head_dim."""
    return 4.0 * batch * heads * query_length * key_length * head_dim


def time_for(amount: float, per_second: float) -> float:
    """Seconds to do `amount` (FLOP or bytes) at a rate."""
    if per_second <= 0:
        raise TpulabError(f"a rate must be positive, not {per_second}")
    return amount / per_second


def utilisation(flops: float, seconds: float, peak_flops_per_second: float) -> float:
    """Fraction of peak that was reached, 0 to 1 when the peak is right."""
    return flops / seconds / peak_flops_per_second


def dot_product_intensity(length: int, dtype: Any = "bfloat16") -> float:
    """FLOP per byte of a dot product of two vectors: (2N-1) over 2N+1 elements."""
    return (2.0 * length - 1) / bytes_of(2 * length + 1, dtype)


def critical_batch(
    flops_per_second: float,
    bytes_per_second: float,
    *,
    weight_dtype: Any = "bfloat16",
    activation_dtype: Any = None,
    k: float = float("inf"),
    n: float = float("inf"),
) -> float:
    """Rows B from which [B, k] x [k, n] is bound by compute and not by memory.

    Solves 2 B k n / F = (w k n + a B (k + n)) / W for B, where w and a are bytes per element of
    weights and activations. With k and n large only the weights count: B = w F / (2 W).
    Infinite when the activations alone keep memory the slower side.
    """
    weight = bytes_of(8, weight_dtype) / 8
    activation = bytes_of(8, activation_dtype or weight_dtype) / 8
    ridge = flops_per_second / bytes_per_second
    # divide the equation by k n: the activation term is a (1/n + 1/k) per row
    denominator = 2.0 / ridge - activation * (1.0 / k + 1.0 / n)
    return weight / denominator if denominator > 0 else float("inf")


def critical_contraction(
    flops_per_second: float,
    link_bytes_per_second: float,
    *,
    chips: int = 2,
    partial_dtype: Any = "bfloat16",
) -> float:
    """Contracting size from which a matmul split along it over `chips` is bound by compute.

    Each chip does 2 B D F / chips FLOP and sends its [B, F] partial sums one way over one link:
    2 D / (chips F) = bytes / W.
    """
    element = bytes_of(8, partial_dtype) / 8
    return element * chips * flops_per_second / (2.0 * link_bytes_per_second)


def _time(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


def render_bounds(bounds: Iterable[Bound], title: str | None = None) -> str:
    """Bounds as a table, one a line, with the sentences that explain them below."""
    bounds = list(bounds)
    header = ["chip", "bound", "limited by", "compute", "HBM", "FLOP/B", "ridge", "best TFLOP/s"]
    rows = [header]
    for one in bounds:
        rows.append(
            [
                one.chip,
                _time(one.seconds),
                one.limiting,
                _time(one.compute_seconds),
                _time(one.hbm_seconds),
                f"{one.intensity:.4g}",
                f"{one.ridge_point:.4g}",
                f"{one.flops_per_second / 1e12:.4g}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [title] if title else []
    lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
    for one in bounds:
        for name, seconds in (("VMEM", one.vmem_seconds), ("ICI", one.ici_seconds)):
            if seconds:
                lines.append(f"{one.chip}: {name} takes at least {_time(seconds)}")
        if one.vector_seconds > one.seconds:
            lines.append(
                f"{one.chip}: the vector units need about {_time(one.vector_seconds)}, more than "
                "the bound (an estimate: one operation per element, 32 bits wide)"
            )
        lines += [f"{one.chip}: {sentence}" for sentence in one.assumptions]
    if bounds:
        lines.append(f"Rates are those of one {bounds[0].per}; a bound is a least time.")
    return "\n".join(lines)
