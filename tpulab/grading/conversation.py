"""Requests to one process and its answers, each with a deadline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpulab.grading import host, problems
from tpulab.grading.problems import EndedError, Problem
from tpulab.grading.sandbox import Limits


class Conversation:
    """Requests by label to a process, answered in turn."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._job = host.start_job(limits.output_bytes)
        self._number = 0
        self._requests: dict[str, tuple[int, float]] = {}
        self._early: dict[int, tuple[dict[str, Any], list[bytes]]] = {}

    @property
    def folder(self) -> str:
        """The process's own folder."""
        return str(self._job.folder.name)

    @property
    def output(self) -> str:
        """What the process printed."""
        return self._job.output

    def close(self) -> None:
        """End the process."""
        self._job.close()

    def send(
        self,
        label: str,
        what: str,
        seconds: float,
        header: Mapping[str, Any],
        blobs: Sequence[bytes] = (),
    ) -> None:
        """Queue a request.

        Args:
            label: name to ask for the answer by.
            what: the method of the other side's session.
            seconds: how long it may take.
            header, blobs: what it needs.
        """
        self._number += 1
        self._requests[label] = (self._number, seconds)
        message = {"do": what, "id": self._number, "seconds": seconds, **header}
        self._job.send(message, blobs)

    def receive(
        self, label: str, doing: str, at_most: float | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """The answer to a request.

        Args:
            label: of the request.
            doing: what the learner's code does meanwhile, for the sentence when it does not end.
            at_most: seconds, when it is known that there is no need to wait longer.

        Raises:
            EndedError: there will be none.
        """
        number, seconds = self._requests[label]
        # the first answer also waits for the warm process to come up
        patience = seconds + (60.0 if number == 1 else 0.0)
        if at_most is not None:
            patience = seconds = min(seconds, at_most)
        while number not in self._early:
            header, blobs = self._next(label, doing, patience, seconds)
            found = header.get("id")
            if not isinstance(found, int) or found not in range(1, self._number + 1):
                self._job.kill()
                raise EndedError(
                    Problem(
                        "the process that runs your code answers out of turn",
                        hint="do not write to open file descriptors",
                    )
                )
            self._early[found] = header, blobs
        return self._early.pop(number)

    def answer(
        self, label: str, doing: str, at_most: float | None = None
    ) -> tuple[dict[str, Any], list[bytes]]:
        """As :meth:`receive`; an exception in the other process is the end as well."""
        header, blobs = self.receive(label, doing, at_most)
        if "error" in header:
            raise EndedError(problems.from_error(header["error"], doing, self.limits))
        return header, blobs

    def _next(
        self, label: str, doing: str, patience: float, seconds: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        job = self._job
        try:
            message = job.receive(patience)
        except TimeoutError:
            job.kill()
            job.ended.wait(1.0)
            if label == "faithful":
                raise EndedError(problems.deadlock(seconds, job.output)) from None
            raise EndedError(problems.too_slow(seconds, doing, job.output)) from None
        if message is None:
            # the warm process may be busy for a moment before it reports the end
            job.ended.wait(10.0)
            raise EndedError(
                problems.from_exit(
                    job.exit_code,
                    doing,
                    job.output,
                    self.limits,
                    flooded=job.flooded,
                    malformed=job.malformed,
                )
            )
        return message
