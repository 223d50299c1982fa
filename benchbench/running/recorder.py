"""Makes the record of a case: reference, verification, and measurement in a process of its own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchbench.launch.pool import WorkerPool
from benchbench.model.case import Case, Phase
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.model.status import Status
from benchbench.plan.doubling import smallest
from benchbench.running.answers import decoded
from benchbench.running.verification import (
    Announce,
    check_name,
    computed,
    is_hidden,
    references,
    verified,
)


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
        """Compute references, and verify at the small size; references of the rest are computed meanwhile.

        `order`: how many records the run has already.
        """
        self._pool = pool
        self._announce = announce
        self._policy = info.policy
        self._smallest = smallest(info.plan)  # by which a whole sequence is verified at the small size
        self._versions = {probe.target.name: probe.version for probe in info.probes}
        self._models = {
            (p.target.name, device.name): device.model for p in info.probes for device in p.devices
        }
        self._verify(info.plan)
        self._clock = clock
        self._order = order
        self._part = len(info.resumed)
        self._compiled: set[str] = set()  # ids of cases whose programs this part of the run has compiled

    def record(self, case: Case, number: int, needless: str = "") -> Record:
        """Measure the case, unless it is known to fail; `needless`: why it is skipped, if it is."""
        started, begin = time.time(), self._clock()
        if needless:
            result, isolation, stages = _skipped(needless)
        else:
            result, isolation, stages = self._measured(case)
        stages["wall"] = self._clock() - begin
        self._order += 1
        return Record(
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

    def _verify(self, plan: Sequence[Case]) -> None:
        """Compute references, and verify what is verified before anything is timed."""
        firsts = [case for case in plan if self._smallest[case.id] is case]
        training = [case for case in firsts if case.phase is Phase.TRAIN]
        hidden = list({check_name(case): case for case in firsts if is_hidden(case)}.values())
        # Of a sequence, most members may be found needless: each has its reference made when it is due.
        others = [case for case in plan if case.phase is not Phase.TRAIN and not case.doubles]
        self._references = references(self._pool, training, self._announce)
        in_float32 = references(self._pool, hidden, self._announce, small=True)
        if training or hidden:
            self._announce("verifying networks at a small size")
        self._verified = verified(
            self._pool,
            training,
            hidden,
            (self._references, in_float32),
            lambda: self._references.update(references(self._pool, others, self._announce)),
        )

    def _measured(self, case: Case) -> tuple[Measurement | Failure, str, dict[str, float]]:
        first = self._smallest[case.id]
        expected = first if case.phase is Phase.TRAIN else case
        if computed(expected) not in self._references:
            self._references.update(references(self._pool, [expected], self._announce))
        reference = self._references.get(computed(expected))
        if isinstance(reference, Failure):
            return reference, "none", {}
        stages: dict[str, float] = {}
        job: dict[str, Any] = {"reference": reference}
        if isinstance(error := self._verified.get(check_name(first)), Failure):
            return error, "fork", {}
        job |= {"verified": error, "kind": "measure", "warm": case.id in self._compiled}
        self._compiled.add(case.id)
        job["policy"] = dataclasses.asdict(self._policy)
        with self._pool.watch(case) as observer:
            answer, isolation = self._pool.ask(case, job)
        return observer.seen_in(decoded(answer, stages)), isolation, stages


def _skipped(reason: str) -> tuple[Measurement | Failure, str, dict[str, float]]:
    return Failure(status=Status.SKIPPED, message=reason), "none", {}
