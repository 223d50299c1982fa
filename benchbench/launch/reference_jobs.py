"""The job that computes a float64 reference, and what its answer says."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchbench.errors import Unsupported
from benchbench.launch.transport import Answer, Message
from benchbench.model.case import Case
from benchbench.model.status import Status


def reference_message(case: Case, *, small: bool, replicas: int) -> Message:
    """What a worker without a framework is asked: what the case must give, in float64.

    `small`: of the workload's small size, with tolerances for float32. `replicas`: into how many parts a
    batch is divided that each have batch statistics of their own.
    """
    needed = {"workload": case.workload, "params": case.params}
    about = {**needed, "placement": dataclasses.asdict(case.placement), "replicas": replicas}
    return {"kind": "reference", "dtype": case.dtype, "about": about, "small": small}


def reference_in(answer: Answer) -> Message:
    """The fields of a `worker.verify.Reference`.

    Raises RuntimeError when it could not be computed, Unsupported when the workload says so.
    """
    if answer.reply is None or "reference" not in answer.reply:
        if _is_unsupported(answer):
            raise Unsupported(reason_in(answer))
        raise RuntimeError(f"its float64 reference cannot be computed: {reason_in(answer)}")
    reference: Message = answer.reply["reference"]
    return reference


def reason_in(answer: Answer) -> str:
    """Why there is no reply, or the failure that it reports; empty where it reports none."""
    outcome: Any = (answer.reply or {}).get("outcome")
    return answer.message or (str(outcome.get("message", "")) if isinstance(outcome, dict) else "")


def _is_unsupported(answer: Answer) -> bool:
    outcome: Any = (answer.reply or {}).get("outcome")
    return isinstance(outcome, dict) and outcome.get("status") == Status.UNSUPPORTED
