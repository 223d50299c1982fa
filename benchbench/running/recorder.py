"""Makes the record of a case: reference, verification, and measurement in a process of its own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from benchbench.launch.pool import WorkerPool
from benchbench.model.case import Case, Phase
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.model.status import Status
from benchbench.plan.doubling import smallest
from benchbench.running.answers import decoded
from benchbench.running.groundwork import Announce, Groundwork
from benchbench.store.codec import storable


class Recorder:
    """Makes the records of one run, and keeps what they share."""

    def __init__(
        self,
        pool: WorkerPool,
        info: RunInfo,
        announce: Announce,
        clock: Callable[[], float] = time.perf_counter,
        order: int = 0,
    ) -> None:
        """Do what is done before anything is timed.

        `order`: how many records the run has already.
        """
        self._pool = pool
        self._policy = info.policy
        self._smallest = smallest(info.plan)  # by which a whole sequence is verified at the small size
        self._versions = {probe.target.name: probe.version for probe in info.probes}
        self._models = {
            (p.target.name, device.name): device.model for p in info.probes for device in p.devices
        }
        firsts = [case for case in info.plan if self._smallest[case.id] is case]
        self._groundwork = Groundwork(pool, announce, info.plan, firsts)
        self._clock = clock
        self._order = order
        self._part = len(info.resumed)
        self._compiled: set[str] = set()  # ids of cases whose programs this part of the run has compiled

    def record(self, case: Case, number: int, needless: str = "") -> Record:
        """Measure the case, unless it is known to fail; `needless`: why it is skipped, if it is.

        What could not be read again is a failure already here, so that no other round repeats it.
        """
        started, begin = time.time(), self._clock()
        if needless:
            result, isolation, stages = _skipped(needless)
        else:
            result, isolation, stages = self._measured(case)
        stages["wall"] = self._clock() - begin
        self._order += 1
        made = Record(
            case=case,
            round=number,
            order=self._order - 1,
            started=started,
            outcome=result,
            framework_version=self._versions[case.target],
            device_model=self._models.get((case.target, case.device), ""),
            isolation=isolation,
            stages_s=stages,
            part=self._part,
        )
        return storable(made)[0]

    def _measured(self, case: Case) -> tuple[Measurement | Failure, str, dict[str, float]]:
        first = self._smallest[case.id]
        reference = self._groundwork.reference(first if case.phase is Phase.TRAIN else case)
        if isinstance(reference, Failure):
            return reference, "none", {}
        error = self._groundwork.verified(first)
        for failure in (error, self._groundwork.export_failure(case)):
            if isinstance(failure, Failure):
                return failure, "fork", {}
        stages: dict[str, float] = {}
        job: dict[str, Any] = {"kind": "measure", "reference": reference, "verified": error}
        job |= {"warm": case.id in self._compiled, "policy": dataclasses.asdict(self._policy)}
        self._compiled.add(case.id)
        with self._pool.watch(case) as observer:
            answer, isolation = self._pool.ask(case, job)
        return observer.seen_in(decoded(answer, stages)), isolation, stages


def _skipped(reason: str) -> tuple[Measurement | Failure, str, dict[str, float]]:
    return Failure(status=Status.SKIPPED, message=reason), "none", {}
