"""Lab 31: collectives on a ring of chips."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tpulab.exercises.model import (
    ArgumentSpec,
    Case,
    Exercise,
    KnownWrong,
    Rung,
    Suspect,
    Tolerance,
    Work,
)

_WRONG = "tpulab.exercises.known_wrong.ring_collectives"
_SOLUTION = "31_ring_collectives.py"
_EXACT = Tolerance(rounding=0.0, growth=0.0)

Arguments = tuple[np.ndarray, ...]
Blocks = tuple[tuple[int, ...], ...]


def _array(*shape: int) -> tuple[ArgumentSpec, ...]:
    return (ArgumentSpec(shape, "float32"),)


def _wrong(function: str, step: str, mistake: str, *says: str) -> KnownWrong:
    return KnownWrong(f"{_WRONG}:{function}", step, mistake, says)


# all-gather --------------------------------------------------------------------------------------


def _gathered(shards: np.ndarray) -> np.ndarray:
    return np.broadcast_to(shards[None], (shards.shape[0], *shards.shape))


def _gather_result(specs: tuple[ArgumentSpec, ...]) -> ArgumentSpec:
    devices, *shard = specs[0].shape
    return ArgumentSpec((devices, devices, *shard), specs[0].dtype)


def _gather_work(specs: tuple[ArgumentSpec, ...]) -> Work:
    devices, total = specs[0].shape[0], specs[0].size_bytes
    return Work(
        matmul_flops=0,
        vector_flops=0,
        bytes=total // devices + total,
        dtype=specs[0].dtype,
        collective="all-gather",
        link_bytes=total,
    )


def _by_step(sign: int) -> Callable[[Arguments, Blocks], np.ndarray]:
    """Slots counted from the device itself, in the order in which shards come."""

    def compute(arguments: Arguments, blocks: Blocks) -> np.ndarray:
        (shards,) = arguments
        devices = shards.shape[0]
        place, step = np.ogrid[:devices, :devices]
        return np.asarray(shards[(place - sign * step) % devices])

    return compute


_BY_STEP = Suspect(
    "the shards are there, but in the order in which they came: slot 0 is each device's own",
    "slot i belongs to device i: step s to the right carries the slot (device - s) % devices",
    _by_step(1),
)


def _gather(
    name: str,
    title: str,
    statement: str,
    *,
    rungs: tuple[Rung, ...],
    hints: tuple[str, ...],
    known_wrong: tuple[KnownWrong, ...],
) -> Exercise:
    docstring = "All shards, by device: float32[rows, 128] -> float32[devices, rows, 128]."
    return Exercise(
        name=f"ring_collectives.{name}",
        title=title,
        statement=statement,
        signature=f'def {name}(shard: jax.Array) -> jax.Array:\n    """{docstring}"""\n',
        solution=f"{_SOLUTION}:{name}",
        oracle=_gathered,
        magnitude=lambda shards: np.abs(_gathered(shards)),
        depth=lambda specs: 1,
        result=_gather_result,
        work=_gather_work,
        cases=(
            Case("two devices", _array(2, 16, 128), ("random", "ramp")),
            Case("four devices", _array(4, 32, 128), ("random",)),
            Case("eight devices", _array(8, 16, 128), ("random",)),
        ),
        faithful=_array(4, 32, 128),  # the four devices' case: it is not run twice
        speed=_array(8, 4096, 128),
        hints=hints,
        rungs=rungs,
        tolerance=_EXACT,
        suspects=(_BY_STEP,),
        known_wrong=known_wrong,
        deadline_seconds=20.0,
        mesh_axis="ring",
    )


ALL_GATHER = _gather(
    "all_gather",
    "All-gather, one way round",
    "Each device holds a shard; at the end each holds all of them, device i's in slot i. In every "
    "step each device passes to the right what it received last: its own shard first, then what "
    "came from the left. After devices - 1 steps everything has been everywhere. Meet both "
    "neighbours first, and give every step a receive semaphore of its own: a fast neighbour may be "
    "one step ahead of you, and copies need not come in the order in which they were sent.",
    rungs=(Rung("one way round: every link busy in one direction", 0.42),),
    hints=(
        "In step s a device sends slot (device - s) % devices, into the *same* slot of its right "
        "neighbour. So no slot is written twice, and nothing can be overwritten.",
        '`jax.lax.axis_size("ring")` is a Python number: `for step in range(devices - 1)` works in '
        "the kernel.",
        "`recv_sems.at[step]` from `pltpu.SemaphoreType.DMA((devices - 1,))`; one send semaphore "
        "is enough, you wait for it in every step.",
        "Before step 0, start a local copy of your shard into slot `device`; send step 0 straight "
        "from the input, and wait for the local copy at the end.",
    ),
    known_wrong=(
        _wrong("all_gather_one_step_short", "correct", "one step too few", "never written"),
        _wrong("all_gather_sends_its_own", "safe", "wrong slot", "race", "never written"),
        _wrong(
            "all_gather_on_two_devices", "safe", "works only on two devices", "has not received"
        ),
        _wrong("all_gather_by_step", "correct", "slots by step, not by device", "order", "slot"),
        _wrong("all_gather_passes_on_too_early", "safe", "missing wait", "race", "never written"),
        _wrong("all_gather_without_barrier", "safe", "no entry barrier", "barrier", "entered"),
        _wrong("all_gather_outside", "correct", "computed outside the kernel", "outside"),
    ),
)

ALL_GATHER_BOTH_WAYS = _gather(
    "all_gather_both_ways",
    "All-gather, both ways round",
    "One way round uses half of the machine: a link carries data in both directions at once. Send "
    "half of the rows of every shard to the right and the other half to the left, in the same "
    "step: half of the bytes over each link, half of the time. rows is a multiple of 16.",
    rungs=(
        Rung("more than one way can do", 0.6),
        Rung("both ways", 0.85),
    ),
    hints=(
        "To the right, step s carries (device - s) % devices; to the left, (device + s) % devices.",
        "`out_ref.at[slot, pl.ds(0, rows // 2)]` is the upper half of a slot.",
        "Each direction has its own send semaphore and its own receive semaphores: "
        "`pltpu.SemaphoreType.DMA((2, devices - 1))`.",
        "In each step, start both copies before you wait for either.",
    ),
    known_wrong=(
        _wrong("all_gather_both_ways_one_way", "fast", "both halves one way", "link", "round"),
        _wrong("all_gather_both_ways_wrong_slot", "safe", "wrong slot", "race", "never written"),
        _wrong("all_gather_both_ways_waits_once", "safe", "missing wait", "never written", "race"),
        _wrong("all_gather_both_ways_own_too_late", "safe", "read before it is there", "race"),
    ),
)

# reduce-scatter ----------------------------------------------------------------------------------


def _scatter_result(specs: tuple[ArgumentSpec, ...]) -> ArgumentSpec:
    return ArgumentSpec(specs[0].shape[1:], specs[0].dtype)


def _scatter_work(specs: tuple[ArgumentSpec, ...]) -> Work:
    devices = specs[0].shape[0]
    total = specs[0].size_bytes // devices
    chunk_elements = int(np.prod(specs[0].shape[2:]))
    return Work(
        matmul_flops=0,
        vector_flops=(devices - 1) * chunk_elements,
        bytes=total + total // devices,
        dtype=specs[0].dtype,
        collective="reduce-scatter",
        link_bytes=total,
    )


def _rotated_sum(by: int) -> Callable[[Arguments, Blocks], np.ndarray]:
    return lambda arguments, blocks: np.roll(arguments[0].sum(axis=0), by, axis=0)


def _in_bfloat16(arguments: Arguments, blocks: Blocks) -> np.ndarray:
    """The running sum is kept and sent in bfloat16, starting with the device behind."""
    import ml_dtypes

    (partials,) = arguments
    devices = partials.shape[0]
    place = np.arange(devices)
    total = partials[(place + 1) % devices, place].astype(ml_dtypes.bfloat16)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(2, devices + 1):
            own = partials[(place + step) % devices, place].astype(ml_dtypes.bfloat16)
            total = (total.astype(np.float32) + own.astype(np.float32)).astype(ml_dtypes.bfloat16)
    return total.astype(np.float64)


def _only(distance: int) -> Callable[[Arguments, Blocks], np.ndarray]:
    """One device's contribution, unsummed."""

    def compute(arguments: Arguments, blocks: Blocks) -> np.ndarray:
        (partials,) = arguments
        place = np.arange(partials.shape[0])
        return np.asarray(partials[(place + distance) % partials.shape[0], place])

    return compute


REDUCE_SCATTER = Exercise(
    name="ring_collectives.reduce_scatter",
    title="Reduce-scatter, adding on the way",
    statement=(
        "Each device holds an array of `devices` chunks; device i must end with the sum of all "
        "devices' chunk i. A running sum travels round the ring, and every device adds its own "
        "chunk as it passes. Two slots of VMEM are enough: send from one, receive into the other, "
        "and swap. But a slot is used again and again, and a fast neighbour would write into it "
        "while you still send from it. So it must ask: each device signals its *left* neighbour "
        "when a slot is free, and waits for that signal from the right before it sends (that is "
        "back-pressure). Everything is `float32`, on the links as well."
    ),
    signature=(
        "def reduce_scatter(partials: jax.Array) -> jax.Array:\n"
        '    """Own chunk of the sum: float32[devices, rows, cols] -> float32[rows, cols]."""\n'
    ),
    solution=f"{_SOLUTION}:reduce_scatter",
    oracle=lambda partials: partials.sum(axis=0),
    magnitude=lambda partials: np.abs(partials).sum(axis=0),
    depth=lambda specs: specs[0].shape[0],
    result=_scatter_result,
    work=_scatter_work,
    cases=(
        Case("two devices", _array(2, 2, 16, 128), ("random", "extremes")),
        Case("four devices", _array(4, 4, 8, 128), ("random",)),
        Case("eight devices", _array(8, 8, 8, 128), ("random",)),
    ),
    faithful=_array(4, 4, 8, 128),
    speed=_array(8, 8, 512, 512),
    hints=(
        "Device i ends with chunk i, so the sum of chunk i starts one device further on: in step s "
        "device i sends the running sum of chunk (i - 1 - s) % devices to the right, and adds its "
        "own part of chunk (i - 2 - s) % devices to what comes.",
        "In step s, send from slot s % 2 into the right neighbour's slot (s + 1) % 2. A receive "
        "semaphore for each slot.",
        "`free_sem = pltpu.SemaphoreType.REGULAR`: after the wait of step s your slot s % 2 is "
        'empty: `pl.semaphore_signal(free_sem, device_id={"ring": left})`. Before the send of '
        "every step but the first: `pl.semaphore_wait(free_sem, 1)`.",
        "devices - 2 waits, so devices - 2 signals: nobody will send after the last step, so do "
        "not signal in it. Else the semaphore is left above zero.",
    ),
    rungs=(Rung("one way round: every link busy in one direction", 0.42),),
    suspects=(
        Suspect(
            "each device has its right neighbour's chunk of the sum",
            "start with the chunk (device - 1) % devices, so that you end with your own",
            _rotated_sum(-1),
        ),
        Suspect(
            "each device has its left neighbour's chunk of the sum",
            "start with the chunk (device - 1) % devices, so that you end with your own",
            _rotated_sum(1),
        ),
        Suspect(
            "the running sum is rounded to bfloat16 at every device",
            "keep it in float32, in the slots and on the links",
            _in_bfloat16,
            at="sum",
        ),
        Suspect(
            "nothing is added: each device has one other device's chunk",
            "add your own chunk to what came before you pass it on",
            _only(1),
            at="sum",
        ),
    ),
    known_wrong=(
        _wrong("reduce_scatter_overwrites", "safe", "overwritten by a fast neighbour", "race"),
        _wrong("reduce_scatter_leaves_a_signal", "safe", "semaphore left non-zero", "semaphore"),
        _wrong("reduce_scatter_one_slot", "safe", "wrong slot", "race", "never written"),
        _wrong("reduce_scatter_wrong_chunk", "correct", "wrong chunk", "neighbour", "chunk"),
        _wrong("reduce_scatter_in_bf16", "correct", "sum in bfloat16", "bfloat16"),
        _wrong("reduce_scatter_adds_nothing", "correct", "nothing added", "added"),
        _wrong("reduce_scatter_outside", "correct", "computed outside the kernel", "outside"),
    ),
    deadline_seconds=20.0,
    mesh_axis="ring",
)

# all-reduce --------------------------------------------------------------------------------------


def _total(partials: np.ndarray) -> np.ndarray:
    return np.broadcast_to(partials.sum(axis=0), partials.shape)


def _reduce_work(specs: tuple[ArgumentSpec, ...]) -> Work:
    devices = specs[0].shape[0]
    total = specs[0].size_bytes // devices
    elements = int(np.prod(specs[0].shape[1:]))
    return Work(
        matmul_flops=0,
        vector_flops=(devices - 1) * elements // devices,
        bytes=2 * total,
        dtype=specs[0].dtype,
        collective="all-reduce",
        link_bytes=total,
    )


def _own_chunk_only(arguments: Arguments, blocks: Blocks) -> np.ndarray | None:
    """The sum in each device's own chunk, its own values elsewhere."""
    (partials,) = arguments
    devices, rows = partials.shape[:2]
    if rows % devices:
        return None
    chunk = rows // devices
    out, total = partials.copy(), partials.sum(axis=0)
    for device in range(devices):
        place = slice(device * chunk, (device + 1) * chunk)
        out[device, place] = total[place]
    return out


ALL_REDUCE = Exercise(
    name="ring_collectives.all_reduce",
    title="All-reduce",
    statement=(
        "Every device ends with the whole sum. Sending whole arrays round the ring would work, "
        "and on eight devices take eight times as long as it must. Reduce-scatter first, then "
        "all-gather the chunks, in one kernel. Then the same both ways round: half of each chunk "
        "to the right, half to the left. rows is a multiple of 16 × devices."
    ),
    signature=(
        "def all_reduce(partial: jax.Array) -> jax.Array:\n"
        '    """The sum over all devices: float32[rows, columns] -> float32[rows, columns]."""\n'
    ),
    solution=f"{_SOLUTION}:all_reduce",
    oracle=_total,
    magnitude=lambda partials: _total(np.abs(partials)),
    depth=lambda specs: specs[0].shape[0],
    result=lambda specs: specs[0],
    work=_reduce_work,
    cases=(
        Case("two devices", _array(2, 64, 128), ("random", "extremes")),
        Case("four devices", _array(4, 64, 128), ("random",)),
        Case("eight devices", _array(8, 128, 128), ("random",)),
    ),
    faithful=_array(4, 64, 128),
    speed=_array(8, 4096, 512),
    hints=(
        "A chunk is rows / devices rows: `pl.ds(pl.multiple_of(chunk * size, size), size)` with a "
        "size that is a multiple of 8.",
        "After the reduce-scatter device i owns chunk i of the sum; all_gather then passes chunk "
        "(device - s) % devices to the right in step s, in `out_ref` itself.",
        "Write the steps as a function of the direction: sign +1 and neighbour right, sign -1 and "
        "neighbour left. Start both, then wait for both.",
        "Each direction has its slots, its semaphores and its `free` signal: nothing is shared but "
        "the input and the output.",
    ),
    rungs=(
        Rung("chunks, one way", 0.42),
        Rung("chunks, both ways", 0.85),
    ),
    suspects=(
        Suspect(
            "each device has its own chunk of the sum, and the others have not come",
            "gather the chunks after the reduce-scatter",
            _own_chunk_only,
        ),
    ),
    known_wrong=(
        _wrong("all_reduce_whole_arrays", "fast", "whole arrays round the ring", "bytes", "round"),
        _wrong("all_reduce_scatters_only", "correct", "chunks not gathered", "gather", "chunk"),
        _wrong("all_reduce_in_bf16", "correct", "sum in bfloat16", "bfloat16", "bf16", "tolerance"),
        _wrong("all_reduce_outside", "correct", "computed outside the kernel", "outside"),
    ),
    deadline_seconds=20.0,
    mesh_axis="ring",
)

EXERCISES: tuple[Exercise, ...] = (ALL_GATHER, ALL_GATHER_BOTH_WAYS, REDUCE_SCATTER, ALL_REDUCE)
