"""A record of each case: its reference, its verification, and its measurement in a process of its own."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchbench.backends.base import Backend
from benchbench.errors import UnreadableInput
from benchbench.launch import catalogue
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer
from benchbench.model.case import Case, Phase
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.placement import suffix
from benchbench.model.ranks import combined
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.model.status import Status
from benchbench.plan.doubling import smallest
from benchbench.registry import load_class
from benchbench.store.codec import outcome_of

Announce = Callable[[str], None]
References = dict[str, list[float] | str]  # what is computed → its float64 reference, or why there is none


def references(pool: WorkerPool, cases: Sequence[Case], announce: Announce) -> References:
    """`computed` → its float64 reference, or why there is none; made once for all backends."""
    found: References = {}
    for case in cases:
        name = computed(case)
        if name in found or not _computes(case):
            continue
        announce(f"float64 reference of {name}")
        try:
            found[name] = pool.reference(case)
        except RuntimeError as error:
            found[name] = str(error)
    return found


def computed(case: Case) -> str:
    """What is, whoever computes it: how it is divided among devices may change what is right."""
    return case.work + suffix(case.placement, {})


def _computes(case: Case) -> bool:
    """Whether its backend computes the workload, so that there is something to verify."""
    return _backend(case).computes(catalogue.workload_named(case.workload).frameworks())


def _backend(case: Case) -> type[Backend]:
    return load_class("benchbench.backends", case.backend, Backend)  # type: ignore[type-abstract]


def verified(
    pool: WorkerPool, training: Sequence[Case], found: References, meanwhile: Callable[[], None]
) -> dict[str, float | Failure | None]:
    """Training case id → relative error at the small size; a Failure where it is wrong or has no answer."""
    jobs = [
        (case, {"kind": "verify", "reference": found.get(computed(case))})
        for case in training
        if not isinstance(found.get(computed(case)), str)
    ]
    return {name: _error_in(answer) for name, answer in pool.ask_together(jobs, meanwhile).items()}


def _error_in(answer: Answer) -> float | Failure | None:
    if answer.reply is not None and "verified" in answer.reply:
        error: float | None = answer.reply["verified"]
        return error
    failure = decoded(answer, {})
    assert isinstance(failure, Failure)
    return failure


class Recorder:
    """What the records of one run share."""

    def __init__(
        self,
        pool: WorkerPool,
        info: RunInfo,
        announce: Announce,
        clock: Callable[[], float] = time.perf_counter,
        order: int = 0,
    ) -> None:
        """Computes the references and verifies training: its references first, the others meanwhile.

        `order`: how many records the run has already.
        """
        self._pool = pool
        self._announce = announce
        self._policy = info.policy
        self._smallest = smallest(info.plan)  # by which the training of a whole sequence is verified
        training = [case for case in info.plan if case.phase is Phase.TRAIN and self._verifies(case)]
        # Of a sequence, most members may be found needless: each has its reference made when it is due.
        others = [case for case in info.plan if case.phase is not Phase.TRAIN and not case.doubles]
        self._references = references(pool, training, announce)
        self._versions = {probe.target.name: probe.version for probe in info.probes}
        self._models = {
            (p.target.name, device.name): device.model for p in info.probes for device in p.devices
        }
        if training:
            announce("verifying training at a small size")
        self._verified = verified(
            pool,
            training,
            self._references,
            lambda: self._references.update(references(pool, others, announce)),
        )
        self._clock = clock
        self._order = order
        self._part = len(info.resumed)
        self._compiled: set[str] = set()  # ids of cases whose programs this part of the run has compiled

    def record(self, case: Case, number: int, needless: str = "") -> Record:
        """Measure, unless the case is known to fail, or is `needless` for that reason."""
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

    def _verifies(self, case: Case) -> bool:
        return self._smallest[case.id] is case

    def _measured(self, case: Case) -> tuple[Measurement | Failure, str, dict[str, float]]:
        verified = self._smallest[case.id] if case.phase is Phase.TRAIN else case
        if computed(verified) not in self._references:
            self._references.update(references(self._pool, [verified], self._announce))
        reference = self._references.get(computed(verified))
        if isinstance(reference, str):
            return Failure(status=Status.FAILED, message=reference), "none", {}
        stages: dict[str, float] = {}
        job: dict[str, Any] = {"reference": reference}
        if isinstance(error := self._verified.get(verified.id), Failure):
            return error, "fork", {}
        job |= {"verified": error, "kind": "measure", "warm": case.id in self._compiled}
        self._compiled.add(case.id)
        job["policy"] = dataclasses.asdict(self._policy)
        with self._pool.watch(case) as observer:
            answer, isolation = self._pool.ask(case, job)
        return observer.seen_in(decoded(answer, stages)), isolation, stages


def _skipped(reason: str) -> tuple[Measurement | Failure, str, dict[str, float]]:
    return Failure(status=Status.SKIPPED, message=reason), "none", {}


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
    """One measurement of all; a stage lasts as long as in the slowest rank."""
    ranks = []
    for reply in replies:
        outcome = outcome_of(reply["outcome"])
        if not isinstance(outcome, Measurement):
            raise ValueError("a rank failed, and the others did not")
        ranks.append((0, str(reply["device"]), outcome))
        for name, seconds in _seconds(reply["stages_s"]).items():
            stages[name] = max(seconds, stages.get(name, 0.0))
    return combined(ranks[0][2].cost, ranks)


def _seconds(stages: object) -> dict[str, float]:
    """Stage → seconds. Raises ValueError for anything else."""
    import msgspec

    found = msgspec.convert(stages, dict[str, float])
    if not all(0 <= seconds < math.inf for seconds in found.values()):  # NaN fails this too
        raise ValueError("a stage's time is negative or not finite")
    return found
