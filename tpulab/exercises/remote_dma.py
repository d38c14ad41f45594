"""Lab 30: copies from one chip to another."""

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

_WRONG = "tpulab.exercises.known_wrong.remote_dma"
_SOLUTION = "30_remote_dma.py"

# a copy changes nothing: the result is what was sent, bit by bit
_EXACT = Tolerance(rounding=0.0, growth=0.0)


def _shards(devices: int, rows: int = 16, dtype: str = "float32") -> tuple[ArgumentSpec, ...]:
    return (ArgumentSpec((devices, rows, 128), dtype),)


def _wrong(function: str, step: str, mistake: str, *says: str) -> KnownWrong:
    return KnownWrong(f"{_WRONG}:{function}", step, mistake, says)


def _looks_like(compute: Callable[[np.ndarray], np.ndarray]):  # type: ignore[no-untyped-def]
    """A suspect's result, from the shards alone."""
    return lambda arguments, blocks: compute(arguments[0])


def _swapped_pairs(shards: np.ndarray) -> np.ndarray:
    return shards.reshape(-1, 2, *shards.shape[1:])[:, ::-1].reshape(shards.shape)


def _from_left(shards: np.ndarray) -> np.ndarray:
    return np.roll(shards, 1, axis=0)


def _from_right(shards: np.ndarray) -> np.ndarray:
    return np.roll(shards, -1, axis=0)


def _exercise(
    name: str,
    title: str,
    statement: str,
    docstring: str,
    *,
    oracle: Callable[[np.ndarray], np.ndarray],
    slots: int | None = None,
    rungs: tuple[Rung, ...],
    hints: tuple[str, ...],
    suspects: tuple[Suspect, ...],
    known_wrong: tuple[KnownWrong, ...],
) -> Exercise:
    """What the exercises of this lab share: shards in, shards out, on 2, 4 and 8 devices.

    Args:
        slots: how many shards a device ends with, None for one without a dimension of its own.
    """

    def result(specs: tuple[ArgumentSpec, ...]) -> ArgumentSpec:
        devices, *shard = specs[0].shape
        return ArgumentSpec((devices, *(() if slots is None else (slots,)), *shard), specs[0].dtype)

    def work(specs: tuple[ArgumentSpec, ...]) -> Work:
        devices = specs[0].shape[0]
        shard_bytes = specs[0].size_bytes // devices
        return Work(
            matmul_flops=0,
            vector_flops=0,
            # of one device: its shard is read, what it ends with is written
            bytes=shard_bytes * (1 + (slots or 1)),
            dtype=specs[0].dtype,
            collective="permute",
            link_bytes=shard_bytes,
        )

    return Exercise(
        name=f"remote_dma.{name}",
        title=title,
        statement=statement,
        signature=f'def {name}(shard: jax.Array) -> jax.Array:\n    """{docstring}"""\n',
        solution=f"{_SOLUTION}:{name}",
        oracle=oracle,
        magnitude=lambda shards: np.abs(oracle(shards)),
        depth=lambda specs: 1,
        result=result,
        work=work,
        cases=(
            Case("two devices", _shards(2), ("random", "ramp")),
            Case("four devices", _shards(4, rows=24), ("random",)),
            Case("eight devices", _shards(8, dtype="bfloat16"), ("random",)),
        ),
        faithful=_shards(4, rows=24),  # the four devices' case: it is not run twice
        speed=_shards(8, rows=8192),
        hints=hints,
        rungs=rungs,
        tolerance=_EXACT,
        suspects=suspects,
        known_wrong=known_wrong,
        deadline_seconds=20.0,
        mesh_axis="ring",
    )


SHIFT = _exercise(
    "shift",
    "Send a shard to the right",
    "Eight chips form a ring. Each holds a shard; each sends it to its right neighbour, device "
    "(i + 1) % devices, and ends with what its left neighbour held. You write what *one* device "
    'does: `jax.lax.axis_index("ring")` says which one it is, `jax.lax.axis_size("ring")` how many '
    "there are. It must be right on 2, 4 and 8.",
    "The left neighbour's shard: dtype[rows, 128] on each device of the ring -> dtype[rows, 128].",
    oracle=_from_left,
    rungs=(Rung("one transfer over each link", 0.9),),
    hints=(
        "A remote copy is started by the device that has the data: "
        "`pltpu.make_async_remote_copy(src_ref, dst_ref, send_sem, recv_sem, device_id=…)`. "
        "`dst_ref` is *your* name for the buffer; the copy lands in the other device's buffer of "
        "the same name.",
        "Both arrays stay in HBM (`pl.BlockSpec(memory_space=pl.ANY)`), and two semaphores are "
        "scratch: `pltpu.SemaphoreType.DMA`.",
        "`copy.start()`, then `copy.wait()`. It waits twice: for the send semaphore (your shard "
        "has left) and for the receive semaphore (your neighbour's has come).",
        'The neighbour is `device_id={"ring": (device + 1) % devices}`.',
    ),
    suspects=(
        Suspect(
            "each device has what its right neighbour held: the shards went to the left",
            "send to (device + 1) % devices",
            _looks_like(_from_right),
        ),
        Suspect(
            "the devices swap in pairs; that is a ring only when there are two",
            "the right neighbour is (device + 1) % devices, whatever the number of devices",
            _looks_like(_swapped_pairs),
        ),
        Suspect(
            "each device has its own shard: nothing crossed a link",
            "device_id names the device whose buffer is written",
            _looks_like(lambda shards: shards),
        ),
    ),
    known_wrong=(
        _wrong("shift_to_the_left", "correct", "wrong neighbour", "left", "right neighbour"),
        _wrong("shift_on_two_devices", "correct", "works only on two devices", "pairs"),
        _wrong("shift_past_the_end", "safe", "no wraparound", "device 4", "devices are"),
        _wrong(
            "shift_without_receive_wait",
            "safe",
            "missing wait for what comes",
            "never written",
            "semaphore",
        ),
        _wrong("shift_without_send_wait", "safe", "missing wait for what goes", "semaphore"),
        _wrong("shift_outside", "correct", "computed outside the kernel", "outside", "ppermute"),
        _wrong("shift_in_turn", "fast", "every piece waited for", "round", "latency", "hop"),
    ),
)

EXCHANGE = _exercise(
    "exchange",
    "Meet before you copy",
    "Devices 0 and 1, 2 and 3, … swap their shards. A copy writes into the partner's buffer, and "
    "nobody has said that the partner is already in this kernel: until it is, that memory belongs "
    "to something else. So meet first. Signal the partner's *barrier semaphore* "
    "(`pltpu.get_barrier_semaphore()`, which the whole program shares under the kernel's "
    "`collective_id`), wait until it has signalled yours, and only then start the copy. The number "
    "of devices is even.",
    "The partner's shard: dtype[rows, 128] on each device of the ring -> dtype[rows, 128].",
    oracle=_swapped_pairs,
    rungs=(Rung("one transfer over each link", 0.9),),
    hints=(
        "0 ↔ 1, 2 ↔ 3: the partner of an even device is the next one, of an odd device the one "
        "before. `device ^ 1` says both.",
        '`pl.semaphore_signal(barrier, device_id={"ring": partner})` adds one to the *partner\'s* '
        "semaphore; `pl.semaphore_wait(barrier, 1)` waits for one on yours and takes it off again.",
        "A kernel that asks for the barrier semaphore needs "
        "`compiler_params=pltpu.CompilerParams(collective_id=0)`. Kernels that may run at the same "
        "time need different numbers.",
        "Signal, wait, start, wait: as many signals must be waited for as arrive, or the semaphore "
        "is not at zero for the next kernel.",
    ),
    suspects=(
        Suspect(
            "each device has what its left neighbour held: the shards went round the ring",
            "partners swap: 0 ↔ 1, 2 ↔ 3",
            _looks_like(_from_left),
        ),
        Suspect(
            "each device has what its right neighbour held: the shards went round the ring",
            "partners swap: 0 ↔ 1, 2 ↔ 3",
            _looks_like(_from_right),
        ),
        Suspect(
            "each device has its own shard: nothing crossed a link",
            "device_id names the device whose buffer is written",
            _looks_like(lambda shards: shards),
        ),
    ),
    known_wrong=(
        _wrong("exchange_meets_itself", "safe", "no entry barrier", "barrier", "entered"),
        _wrong(
            "exchange_barrier_after_the_copy",
            "safe",
            "entry barrier too late",
            "barrier",
            "entered",
        ),
        _wrong("exchange_without_collective_id", "legal", "collective_id missing", "collective_id"),
        _wrong("exchange_waits_for_two", "safe", "unbalanced barrier hangs", "wait", "semaphore"),
        _wrong("exchange_waits_before_it_signals", "safe", "all wait for all", "wait", "semaphore"),
        _wrong("exchange_leaves_a_signal", "safe", "semaphore left non-zero", "semaphore"),
        _wrong("exchange_with_the_next", "correct", "wrong partner", "partner", "left neighbour"),
    ),
)

BOTH_NEIGHBOURS = _exercise(
    "both_neighbours",
    "Both directions at once",
    "A link carries data both ways at the same time. Each device sends its shard to *both* "
    "neighbours and ends with three: the left neighbour's in slot 0, its own in slot 1, the right "
    "neighbour's in slot 2 (what a convolution or a stencil needs). Two copies are under way at "
    "once, so neither may be waited for before the other has started. Two neighbours write into "
    "your memory: meet both.",
    "Shards of left neighbour, own, right neighbour: dtype[rows, 128] -> dtype[3, rows, 128].",
    oracle=lambda shards: np.stack([_from_left(shards), shards, _from_right(shards)], axis=1),
    slots=3,
    rungs=(Rung("both directions of every link at once", 0.8),),
    hints=(
        "What you send to the right is what your right neighbour has on its *left*: it belongs "
        "into slot 0 over there.",
        "`out_ref.at[0]` is a slot without reading it. Give each copy semaphores of its own: "
        "`pltpu.SemaphoreType.DMA((2,))` makes two, `send_sems.at[0]` is the first.",
        "Your own shard is a local copy: `pltpu.make_async_copy(shard_ref, out_ref.at[1], sem)`.",
        "Signal left and right, wait for 2. Start all three copies, then wait for all three.",
    ),
    suspects=(
        Suspect(
            "left and right are swapped: what comes from the left lies in slot 2",
            "you are your right neighbour's left neighbour: what goes right belongs into slot 0",
            _looks_like(
                lambda shards: np.stack([_from_right(shards), shards, _from_left(shards)], axis=1)
            ),
        ),
    ),
    known_wrong=(
        _wrong("both_neighbours_swapped", "correct", "wrong slot", "swapped", "slot"),
        _wrong("both_neighbours_one_slot", "safe", "both write one slot", "race", "never written"),
        _wrong("both_neighbours_meets_one", "safe", "semaphore left non-zero", "semaphore"),
        _wrong(
            "both_neighbours_meets_the_left_twice",
            "safe",
            "one-sided barrier",
            "barrier",
            "entered",
        ),
        _wrong("both_neighbours_on_a_line", "correct", "the ends do not meet", "never written"),
        _wrong("both_neighbours_in_turn", "fast", "one direction at a time", "round"),
    ),
)

EXERCISES: tuple[Exercise, ...] = (SHIFT, EXCHANGE, BOTH_NEIGHBOURS)
