"""Accelerators that are unusable because a stuck process still uses them."""

from __future__ import annotations

from benchbench.launch.transport import Answer, JobEnd
from benchbench.model.case import Case


class LostDevices:
    """The accelerators that a stuck process of an earlier job still uses.

    A hanging driver can block a process in a call that not even SIGKILL interrupts. Every further
    case on that device would hang too, until its time limit.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def record(self, case: Case, answer: Answer) -> Answer:
        """Return the answer unchanged. If the case's process is stuck, mark its device as lost."""
        if answer.end is JobEnd.STUCK and is_accelerator(case.device):
            self._reasons[case.device] = f"{case.device} was lost: {case.id}: {answer.message}"
        return answer

    def refusal(self, case: Case) -> Answer | None:
        """The answer to a case on a lost device; None if the device is usable."""
        reason = self._reasons.get(case.device)
        return Answer(None, JobEnd.NOT_ASKED, reason) if reason else None


def is_accelerator(device: str) -> bool:
    """Whether the device is not a CPU."""
    return not device.startswith("cpu")
