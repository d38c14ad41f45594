"""The ladder of a kernel on several devices: its copies between them on a model of the links.

The simulator runs one device. What such a kernel sends is known exactly from a run of it on host
devices, and :mod:`tpulab.roofline.links` says how long the links take for it. Memory, copies on a
device, arithmetic and the time in which they overlap are not in the figure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tpulab.errors import TpulabError
from tpulab.hardware import Chip
from tpulab.ladder_causes import bytes_text, time_text
from tpulab.ladder_model import REASON_LIMIT, ChipLadder, Refusal, Rung

NOT_COUNTED = (
    "judged by the link model: bytes on each link, round by round, and hops; memory, copies on a "
    "device and arithmetic are not counted, since the simulator runs one device"
)


def talks_to_devices(kernel: Any) -> bool:
    """Whether a traced function runs on several devices and its kernels copy or signal between."""
    from tpulab.kernel import jax_internals

    if kernel is None or kernel.jaxpr is None:
        return False
    axes = jax_internals.mesh_axes(kernel.jaxpr)
    return math.prod(size for _, size in axes) > 1 and bool(
        jax_internals.leaves_device(kernel.jaxpr)
    )


def link_ladder(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    kernel: Any,
    program: Any,
    chip: Chip,
    compiler_version: str | None,
    name: str,
) -> ChipLadder:
    """The ladder by the link model, or a refusal that says what is missing.

    Args:
        function, arguments: as given to the ladder; shapes stand for zeros.
        kernel: its trace, for which :func:`talks_to_devices` holds.
        program: what the compiler made of it; the figures of VMEM and spills come from there.
    """
    from tpulab.kernel import jax_internals
    from tpulab.kernel.running import transfers_between
    from tpulab.roofline.links import link_time

    axes = [(axis, size) for axis, size in jax_internals.mesh_axes(kernel.jaxpr) if size > 1]
    if len(axes) > 1:
        described = " × ".join(f"{axis}: {size}" for axis, size in axes)
        return _refused(
            Refusal(
                "simulate",
                f"the devices stand on {len(axes)} mesh axes ({described}), and the link model "
                "knows a row or ring of chips only; put them on one axis for a ladder",
            ),
            kernel,
            program,
            chip,
            compiler_version,
            name,
        )
    devices = axes[0][1]
    try:
        transfers = transfers_between(function, *_values(arguments), chip=chip.name)
        found = link_time(transfers, chip, devices)
    except TpulabError as error:
        refusal = Refusal("simulate", str(error)[:REASON_LIMIT])
        return _refused(refusal, kernel, program, chip, compiler_version, name)
    light, cause = _light(transfers, found, kernel, chip)
    seconds = max(found.seconds, light)
    rounds = len(found.rounds)
    busiest = max(found.bytes_per_link.values(), default=0.0)
    hops = sum(one.hops for one in found.rounds)
    text = (
        f"{rounds} round{'s' if rounds != 1 else ''} one after the other: "
        f"{time_text(found.bandwidth_seconds)} for the bytes of each round's busiest link and "
        f"{time_text(found.latency_seconds)} for {hops} hop{'s' if hops != 1 else ''}"
    )
    if found.unused_links:
        ways = 2 * devices if found.ring else 2 * (devices - 1)
        text += f"; {len(found.unused_links)} of {ways} ways of the links carry nothing"
    return ChipLadder(
        function=name,
        chip=chip.name,
        compiler_version=compiler_version,
        rungs=(
            Rung("speed of light", light, cause),
            Rung("links", seconds, text, _advice(found, busiest, light)),
        ),
        known_rungs=(
            Rung("speed of light", light, cause),
            Rung("links", seconds, text, _advice(found, busiest, light)),
        ),
        bound_seconds=light,
        predicted_seconds=seconds,
        vmem_bytes=int(program.vmem.used_bytes) if program is not None else None,
        spills=int(program.spills) if program is not None else None,
        limiting_unit=f"links, by {found.limiting}",
        warnings=(NOT_COUNTED, *_two_to_a_chip(chip), *_notes(kernel)),
        prediction_error="a model; no measured collective stands beside it",
        kernel=kernel,
        program=program,
    )


def _values(arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with zeros for those of which only the shape is known."""
    import jax
    import numpy as np

    return list(
        jax.tree_util.tree_map(
            lambda leaf: (
                np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
            ),
            list(arguments),
            is_leaf=lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct),
        )
    )


def _light(transfers: Sequence[Any], found: Any, kernel: Any, chip: Chip) -> tuple[float, str]:
    """(seconds, sentence) of what no schedule of these bytes can beat."""
    rate = chip.ici.link_bandwidth_bytes_per_second
    sent: Counter[int] = Counter()
    came: Counter[int] = Counter()
    for one in transfers:
        sent[one.source] += one.size_bytes
        came[one.target] += one.size_bytes

    def ways(device: int) -> int:
        if found.ring:
            return 2
        return 2 if 0 < device < found.devices - 1 else 1

    link = max(
        (size / (ways(device) * rate) for each in (sent, came) for device, size in each.items()),
        default=0.0,
    )
    most = max([*sent.values(), *came.values()], default=0)
    shape = "ring" if found.ring else "row"
    text = (
        f"{bytes_text(most)} into or out of one device over the links of a {shape} of "
        f"{found.devices} chips, both ways at once"
    )
    # a kernel's arrays are those of one device; the function's are those of all
    of_hbm = sum(call.unique_bytes * call.times for call in kernel.calls)
    memory = of_hbm / chip.hbm_bandwidth(per="device")
    if memory > link:
        return memory, f"{bytes_text(of_hbm)} of HBM on each device; the links: {text}"
    return link, text


def _advice(found: Any, busiest: float, light: float) -> str:
    if not found.rounds or found.seconds <= 1.01 * light:
        return ""
    if found.latency_seconds > 0.5 * found.seconds:
        return "fewer rounds of larger chunks: most of the time goes to hops"
    if found.unused_links:
        return "send half of the data each way round, at the same time"
    total = sum(found.bytes_per_link.values()) / max(1, len(found.bytes_per_link))
    if busiest > 1.05 * total or found.bandwidth_seconds > 1.05 * light:
        return "let every link carry the same number of bytes in every round"
    return "fewer rounds of larger chunks, so that less time goes to hops"


def _two_to_a_chip(chip: Chip) -> tuple[str, ...]:
    """What the link model takes for granted and is not so where a chip is several devices."""
    if chip.devices_per_chip == 1:
        return ()
    return (
        f"every device counts as a chip with links of its own; a {chip.name} chip is "
        f"{chip.devices_per_chip} devices, which share its links",
    )


def _notes(kernel: Any) -> tuple[str, ...]:
    return tuple(str(note) for note in getattr(kernel, "notes", ()))


def _refused(
    refusal: Refusal, kernel: Any, program: Any, chip: Chip, version: str | None, name: str
) -> ChipLadder:
    return ChipLadder(
        function=name,
        chip=chip.name,
        compiler_version=version,
        vmem_bytes=int(program.vmem.used_bytes) if program is not None else None,
        spills=int(program.spills) if program is not None else None,
        warnings=_notes(kernel),
        refusal=refusal,
        kernel=kernel,
        program=program,
    )
