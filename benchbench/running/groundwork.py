"""What is done before anything is timed, side by side: references, verification of networks, exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from benchbench.backends.base import Backend
from benchbench.launch.pool import Job, WorkerPool
from benchbench.launch.transport import Answer, Message
from benchbench.model.case import Case, Phase
from benchbench.model.measurement import Failure
from benchbench.registry import load_class
from benchbench.running.answers import decoded
from benchbench.running.verification import (
    References,
    Verified,
    check_name,
    computed,
    is_hidden,
    reference_jobs,
    verify_job,
)

Announce = Callable[[str], None]


class Groundwork:
    """What the processes of a run start from."""

    def __init__(self, pool: WorkerPool, announce: Announce, plan: Sequence[Case], smallest: Sequence[Case]):
        """Do all of it that the plan needs. `smallest`: the first case of each sequence, and all others."""
        self._pool = pool
        self._announce = announce
        self._references: References = {}
        self._verified: Verified = {}
        self._exported: dict[str, Failure | None] = {}  # id of a case → why its model could not be exported
        training = [case for case in smallest if case.phase is Phase.TRAIN]
        hidden = list({check_name(case): case for case in smallest if is_hidden(case)}.values())
        # Of a sequence, most members may be found needless: what they need is made when they are due.
        others = [case for case in plan if not case.doubles]
        inference = [case for case in others if case.phase is not Phase.TRAIN]
        jobs = [
            *reference_jobs(training, self._references, self._verify_training),
            *reference_jobs(hidden, {}, self._verify_in_float32, small=True),
            *reference_jobs(inference, self._references),
            *self._export_jobs(others),
        ]
        pool.ask_together(jobs, announce)

    def reference(self, case: Case) -> Message | Failure | None:
        """The float64 reference of what the case computes, or why there is none; None: nothing is."""
        name = computed(case)
        if name not in self._references:
            self._pool.ask_together(list(reference_jobs([case], self._references)), self._announce)
        return self._references.get(name)

    def verified(self, case: Case) -> float | Failure | None:
        """The relative error of the case's verification before, or what is wrong; None: there was none."""
        return self._verified.get(check_name(case))

    def export_failure(self, case: Case) -> Failure | None:
        """Why the case's model could not be exported, which is done now if it was not; mostly None."""
        if case.id not in self._exported:
            self._pool.ask_together(list(self._export_jobs([case])), self._announce)
        return self._exported.get(case.id)

    def _verify_training(self, case: Case, reference: Message) -> Iterable[Job]:
        return [verify_job(case, reference, self._verified)]

    def _verify_in_float32(self, case: Case, reference: Message) -> Iterable[Job]:
        return [verify_job(case, reference, self._verified, in_float32=True)]

    def _export_jobs(self, cases: Iterable[Case]) -> Iterator[Job]:
        for case in cases:
            if not load_class("benchbench.backends", case.backend, Backend).exports:  # type: ignore[type-abstract]
                continue

            def answered(answer: Answer, case: Case = case) -> Iterable[Job]:
                failed = answer.reply is None or "outcome" in answer.reply
                result = decoded(answer, {}) if failed else None
                self._exported[case.id] = result if isinstance(result, Failure) else None
                return ()

            label = f"exporting {case.work}"
            yield Job(message={"kind": "export"}, done=answered, case=case, label=label)
