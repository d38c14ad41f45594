"""Pictures that move by hand: the blocks of a call, the rounds of a ring, a run over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpulab.hardware import Chip
from tpulab.kernel import Kernel, PallasCall
from tpulab.visual.blocks import block_states, blocks_in_motion, scene
from tpulab.visual.journeys import Journeys, hanging, journeys
from tpulab.visual.player import Drawn, Frame, Player, within_budget
from tpulab.visual.ring import ring_in_motion, round_picture
from tpulab.visual.ring_words import round_sentence, timed
from tpulab.visual.scrolling import holds_timeline, scroll_through
from tpulab.visual.windows import OperandFrames, frames, one_call

#: Most steps of a grid that are sent to the browser; of longer ones, that many from the start.
MOST_STEPS = 256


def step_through(
    source: Any, devices: int | None = None, *, chip: str | Chip | None = None
) -> Drawn:
    """A picture to step through by hand, with the slider, the buttons or the keyboard.

    Args:
        source: one ``pallas_call`` of a traced kernel, ``tpulab.trace(...).calls[0]``, or the
            traced kernel if it has only one: which blocks a grid step works on, and which of them
            move. Or a `RunReport` (or its ``transfers``):
            what the devices send each other in a round. Or a `Timeline` (or the ladder of one
            chip): the run to scroll, zoom and read at a cursor.
        devices: how many devices a ring has, if more than the transfers name.
        chip: on whose links the rounds of a ring are timed; no times unless given.

    Raises:
        UsageError: there is nothing to step through, with the reason.
    """
    if isinstance(source, (PallasCall, Kernel)):
        return _through_blocks(one_call(source))
    if holds_timeline(source):
        return scroll_through(source)
    return _through_rounds(source, devices, chip)


def _through_blocks(call: PallasCall) -> Player:
    operands = frames(call)
    around, places = scene(call, operands)
    shown = within_budget(_block_frames(call, operands, places), len(around))
    note = ""
    if len(shown) < call.steps:
        note = f"The first {len(shown):,} of {call.steps:,} steps are here; the others are left out"
        note += " to keep the notebook small."
    return Player(blocks_in_motion(call), shown, unit="grid step", scene=around, note=note)


def _block_frames(
    call: PallasCall, operands: tuple[OperandFrames, ...], places: Any
) -> Iterator[Frame]:
    coordinates = call.step_coordinates()
    for step in range(min(call.steps, MOST_STEPS)):
        where = ", ".join(str(int(value)) for value in coordinates[step])
        at = f" at ({where})" if where else ""
        moving = ", ".join(f"{one.name} {one.movement(step)}" for one in operands)
        text = f"Step {step + 1} of {call.steps}{at}: {moving}."
        yield Frame(block_states(operands, places, step), text)


def _through_rounds(source: Any, devices: int | None, chip: str | Chip | None) -> Player:
    figure = ring_in_motion(source, devices, chip=chip)
    found = journeys(source, devices)
    if chip is not None:
        found = timed(found, chip)
    shown = within_budget(_round_frames(found))
    note = ""
    if len(shown) <= len(found.rounds):
        note = f"Rounds up to {len(shown) - 1} of {len(found.rounds)} are here; the others are left"
        note += " out to keep the notebook small."
    stuck = hanging(source)
    if stuck:
        note = f"{note} After the last round the kernel hangs: {stuck}".strip()
    return Player(figure, shown, unit="round", note=note)


def _round_frames(found: Journeys) -> Iterator[Frame]:
    for step in range(len(found.rounds) + 1):
        text = round_sentence(found, step)
        yield Frame(round_picture(found, step, tooltips=False).render(text), text)
