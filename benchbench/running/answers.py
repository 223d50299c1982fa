"""What a worker answered to a job: a measurement, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchbench.errors import UnreadableInput
from benchbench.launch.transport import Answer
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.ranks import combined
from benchbench.model.status import Status
from benchbench.store.codec import outcome_of


def decoded(answer: Answer, stages: dict[str, float]) -> Measurement | Failure:
    """The outcome in an answer; its stage times are added to `stages`."""
    if answer.reply is None:
        return Failure(status=answer.status, message=answer.message, log=answer.log)
    try:
        if "ranks" in answer.reply:
            return _of_ranks(answer.reply["ranks"], stages)
        stages.update(_seconds(answer.reply["stages_s"]))
        return outcome_of(answer.reply["outcome"])
    except (KeyError, TypeError, ValueError, UnreadableInput) as error:
        return Failure(status=Status.FAILED, message=f"the worker's answer cannot be read: {error}")


def _of_ranks(replies: Sequence[Any], stages: dict[str, float]) -> Measurement:
    """One measurement of all ranks; a stage lasts as long as in the slowest one.

    `host`, in a reply: the number of the rank's host, where a launcher started it.
    """
    ranks = []
    for reply in replies:
        outcome = outcome_of(reply["outcome"])
        if not isinstance(outcome, Measurement):
            raise ValueError("a rank failed, and the others did not")
        ranks.append((int(reply.get("host", 0)), str(reply["device"]), outcome))
        for name, seconds in _seconds(reply["stages_s"]).items():
            stages[name] = max(seconds, stages.get(name, 0.0))
    if not ranks:
        raise ValueError("no ranks")
    return combined(ranks[0][2].cost, ranks)


def _seconds(stages: object) -> dict[str, float]:
    """Stage → seconds. Raises ValueError for anything else."""
    import msgspec

    found = msgspec.convert(stages, dict[str, float])
    if not all(0 <= seconds < math.inf for seconds in found.values()):  # NaN fails this too
        raise ValueError("a stage's time is negative or not finite")
    return found
