"""Accelerators that a process of an earlier job still has, since no signal ends it.

A driver that hangs may hold a process in a call that nothing interrupts, SIGKILL included. Whatever is asked
of the same device would hang as well, each case for as long as its time-out.
"""

from __future__ import annotations

from benchbench.launch.transport import Answer, JobEnd
from benchbench.model.case import Case


class LostDevices:
    """Of one run."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def heed(self, case: Case, answer: Answer) -> Answer:
        """The answer, from which it is seen whether the case's device is lost."""
        if answer.end is JobEnd.STUCK and is_accelerator(case.device):
            self._reasons[case.device] = f"{case.device} was lost: {case.id}: {answer.message}"
        return answer

    def answer(self, case: Case) -> Answer | None:
        """Of a case whose device is lost; None where it is not."""
        reason = self._reasons.get(case.device)
        return Answer(None, JobEnd.NOT_ASKED, reason) if reason else None


def is_accelerator(device: str) -> bool:
    """Whether a device of that name is no CPU."""
    return not device.startswith("cpu")
