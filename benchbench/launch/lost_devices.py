"""The accelerators that a stuck process holds."""

from __future__ import annotations

from benchbench.launch.transport import Answer, JobEnd
from benchbench.model.case import Case


class LostDevices:
    """The accelerators that a process of an earlier job still holds, since no signal ends it.

    A driver that hangs may hold a process in a call that nothing interrupts, not even SIGKILL. Every further
    case on that device would hang as well, each until its time-out.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def recorded(self, case: Case, answer: Answer) -> Answer:
        """The answer. Where it says that the case's process is stuck, the device is lost from now on."""
        if answer.end is JobEnd.STUCK and is_accelerator(case.device):
            self._reasons[case.device] = f"{case.device} was lost: {case.id}: {answer.message}"
        return answer

    def refusal(self, case: Case) -> Answer | None:
        """The answer to a case whose device is lost; None where it is not."""
        reason = self._reasons.get(case.device)
        return Answer(None, JobEnd.NOT_ASKED, reason) if reason else None


def is_accelerator(device: str) -> bool:
    """Whether the device of that name is not a CPU."""
    return not device.startswith("cpu")
