"""Sentences on why devices may use what is not there, or what is still in use.

They explain a race, or memory that nothing wrote, and are no finding by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: What to try where a device writes a slot of another that may still be in use.
BACK_PRESSURE = (
    "a neighbour may write the slot that you still send from or read: when you are done with it, "
    "signal the device that writes it, and let that device wait for the signal before its next "
    "copy (back-pressure); or give each step a slot of its own"
)


@dataclass(frozen=True)
class Fault:
    """Why devices may use what is not there; it explains a race or memory that nothing wrote.

    Attributes:
        what, hint: a sentence each. where: file:line of the copy, "" when it is not known.
    """

    what: str
    hint: str
    where: str

    def __str__(self) -> str:
        return self.what


def shared_semaphore(device: int, where: str) -> Fault:
    """Two copies to one device raise one semaphore, and it goes on when either has come."""
    return Fault(
        f"two copies to device {device} are under way on one semaphore: which of them has "
        "come when it goes on?",
        "one receive semaphore for each step, recv_sems.at[step]; or signal the sender when the "
        "first has come, and let it wait for that before it sends the next",
        where,
    )


def copied_again(device: int, sender: int, into: str, where: str) -> Fault:
    """A slot is written a second time, and nothing says that it is free."""
    return Fault(
        f"device {sender} copies into {into} of device {device} once more, and "
        f"cannot know that device {device} is done with what came there before",
        BACK_PRESSURE,
        where,
    )


def not_received(
    at: int, pair: tuple[int, int], source: str, came: Sequence[str], where: str
) -> Fault:
    """A device sends on what has not come.

    Args:
        at: the round. pair: who sends to whom. source: what is sent.
        came: what the sender has received and waited for. where: file:line of the copy.
    """
    has = f"what it has received is {', '.join(came)}" if came else ""
    return Fault(
        f"in round {at} device {pair[0]} sends {source} to device {pair[1]}, and has not received "
        f"it: {has or 'it has waited for no copy to it'}",
        "wait for what comes, and for your own copy into a slot, before you send it on; let slot "
        "and neighbour go the same way round: what you send to one side is what came last from "
        "the other",
        where,
    )
