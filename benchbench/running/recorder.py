"""Measurement of one work's cases in a heat, and the records of a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from benchbench.backends.base import backend_class
from benchbench.environments.targets import is_virtual
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Message
from benchbench.machine.environment import available_bytes, machine, quota_period_s
from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.record import Record
from benchbench.model.run import Policy, RunInfo
from benchbench.running.heat import LiveCase, run_heat
from benchbench.running.verification import Announce, Precomputed, decode_outcome
from benchbench.store.codec import storable_record

MAX_MEMORY_SHARE = 0.8  # of the machine's memory, for the processes of a heat
QUOTA_PERIODS = 5  # shortest turn, in periods of a CPU quota


def measure_heat(
    competitors: Sequence[tuple[Recorder, Case]],
    number: int,
    seed: int,
    report: Callable[[int, str], None],
) -> Iterator[tuple[int, Record]]:
    """Measure heat `number` of one work. Yields (index in `competitors`, record).

    Cases that cannot take turns, such as ranks and virtual time, are measured first, one after another. Then
    all others take turns. Cases whose fork hung are measured last, in new processes. `report`: called with
    a case's index and its state.
    """

    def measured_alone(place: int, *, after_hang: bool = False) -> tuple[int, Record]:
        recorder, case = competitors[place]
        report(place, "measuring alone")
        has_company = len(competitors) > 1 and not is_virtual(case.backend)
        notes = [note(NoteKind.MEASURED_ALONE)] if has_company else []
        return place, recorder.record(case, number, notes, after_hang=after_hang)

    live: dict[LiveCase, int] = {}
    for place, (recorder, case) in enumerate(competitors):
        if not recorder.can_alternate(case):
            yield measured_alone(place)
        elif isinstance(live_case := recorder.live_case(case), LiveCase):
            live[live_case] = place
        else:
            yield place, recorder.failed(case, number, live_case)
    if not live:
        return
    recorder, case = competitors[next(iter(live.values()))]
    parts = run_heat(
        [*live],
        replace(recorder.policy, turn_s=turn_seconds(recorder.policy)),
        Random(f"{seed}/{number}/{case.id}"),
        lambda live_case, state: report(live[live_case], state),
        has_room,
    )
    notes = [note(NoteKind.HEAT_IN_PARTS, parts=parts)] if parts > 1 else []
    for live_case, place in live.items():
        if not live_case.has_hung:
            recorder, case = competitors[place]
            yield place, recorder.measured(case, number, live_case, notes)
    for live_case, place in live.items():
        if live_case.has_hung:
            yield measured_alone(place, after_hang=True)


def turn_seconds(policy: Policy, root: Path = Path("/")) -> float:
    """Seconds of a turn. Under a CPU quota a turn has several periods: the previous case may have used up the
    quota of the first one.
    """
    return max(policy.turn_s, QUOTA_PERIODS * quota_period_s(root))


def has_room() -> bool:
    """True if memory is left for one more process of a case."""
    return available_bytes() > (1 - MAX_MEMORY_SHARE) * machine().memory_bytes


class Recorder:
    """Creates the records of one run, and caches its references and verifications."""

    def __init__(
        self,
        pool: WorkerPool,
        info: RunInfo,
        announce: Announce,
        clock: Callable[[], float] = time.perf_counter,
        order: int = 0,
    ) -> None:
        """`order`: number of records that the run already has."""
        self._pool = pool
        self.policy = info.policy
        self._max_error = info.settings.max_error
        self._versions = {probe.target.name: probe.version for probe in info.probes}
        self._models = {
            (p.target.name, device.name): device.model for p in info.probes for device in p.devices
        }
        self._precomputed = Precomputed(pool, announce, info.seed)
        self._clock = clock
        self._order = order
        self._part = len(info.resumed)
        self._compiled: set[str] = set()  # ids of the cases compiled in this part of the run

    def prepare(self, cases: Sequence[Case]) -> None:
        """Compute the cases' references, verifications and exports, once per run."""
        self._precomputed.prepare([case for case in cases if not case.is_call])

    def can_alternate(self, case: Case) -> bool:
        """Whether the case can take turns; see `WorkerPool.can_alternate`."""
        return self._pool.can_alternate(case)

    def record(
        self, case: Case, number: int, notes: Sequence[Note] = (), *, after_hang: bool = False
    ) -> Record:
        """Measure the case without turns, unless it is known to fail. `after_hang`: its fork has hung."""
        started, begin = time.time(), self._clock()
        stages: dict[str, float] = {}
        job = self._job(case)
        if isinstance(job, Failure):
            return self.failed(case, number, job)
        with self._pool.watch(case) as observer:
            answer, isolation = self._pool.run_case(case, job, after_hang=after_hang)
        outcome = _with_notes(observer.with_telemetry(decode_outcome(answer, stages)), notes)
        return self._record(case, number, outcome, isolation, stages, started, self._clock() - begin)

    def live_case(self, case: Case) -> LiveCase | Failure:
        """The process of a case for a heat; a failure if the case is known to fail."""
        job = self._job(case)
        if isinstance(job, Failure):
            return job
        sampler, timeout_s = self._pool.turn_sampler(case), self._pool.timeout_s
        return LiveCase(
            case.id,
            partial(self._pool.begin, case, job),
            sampler,
            timeout_s,
            self._clock,
            partial(self._pool.record_end, case),
            partial(self._pool.refusal, case),
        )

    def measured(self, case: Case, number: int, live_case: LiveCase, notes: Sequence[Note] = ()) -> Record:
        """The record of a case measured in a heat."""
        stages: dict[str, float] = {}
        outcome = _with_notes(live_case.outcome(lambda answer: decode_outcome(answer, stages)), notes)
        if "timing" in stages:  # without the turns of other cases
            others_s = sum(seconds for name, seconds in stages.items() if name != "timing")
            stages["timing"] = max(live_case.wall_s - others_s, 0.0)
        return self._record(case, number, outcome, "fork", stages, live_case.started, live_case.wall_s)

    def failed(self, case: Case, number: int, failure: Failure) -> Record:
        """The record of a case that is known to fail."""
        return self._record(case, number, failure, "none", {}, time.time(), 0.0)

    def _record(
        self,
        case: Case,
        number: int,
        outcome: Measurement | Failure,
        isolation: str,
        stages: dict[str, float],
        started: float,
        wall_s: float,
    ) -> Record:
        """A storable record. An outcome that is too large becomes a failure, so the case is not repeated."""
        self._order += 1
        record = Record(
            case=case,
            round=number,
            order=self._order - 1,
            started=started,
            outcome=outcome,
            framework_version=self._versions[case.target],
            device_model=self._models.get((case.target, case.device), ""),
            isolation=isolation,
            stages_s={**stages, "wall": wall_s},
            part=self._part,
        )
        return storable_record(record)[0]

    def _job(self, case: Case) -> Message | Failure:
        """The job that measures the case; a failure if it is known to fail."""
        job: Message = {"policy": dataclasses.asdict(self.policy), "warm": case.id in self._compiled}
        if case.is_call:  # a user's function has no reference
            self._compiled.add(case.id)
            return {"kind": "call", **job}
        reference = self._precomputed.reference(case)
        if isinstance(reference, Failure):
            return reference
        error = self._precomputed.verified(case)
        for failure in (error, self._precomputed.export_failure(case)):
            if isinstance(failure, Failure):
                return failure
        self._compiled.add(case.id)
        tolerance = self._precomputed.tolerance(case)
        job |= {"reference": self._relaxed(case, reference), "verified": error, "allowed": tolerance}
        return {"kind": "measure", **job}

    def _relaxed(self, case: Case, reference: Message | None) -> Message | None:
        """The reference; for a lossy mode with tolerances of at least the run's `max_error`."""
        max_error = self._max_error
        if reference is None or max_error is None or case.mode not in backend_class(case.backend).lossy_modes:
            return reference
        tolerance = {name: limit and max(limit, max_error) for name, limit in reference["tolerance"].items()}
        return {**reference, "tolerance": tolerance}


def _with_notes(outcome: Measurement | Failure, notes: Sequence[Note]) -> Measurement | Failure:
    """Add notes to a measurement; return a failure unchanged."""
    return replace(outcome, notes=(*outcome.notes, *notes)) if isinstance(outcome, Measurement) else outcome
