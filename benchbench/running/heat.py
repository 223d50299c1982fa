"""A heat: the processes of all cases of one work, each timed in short turns while the others are stopped.

A machine's speed drifts within seconds. The drift affects alternating cases equally, so their ratio is
several times more precise than that of processes measured one after another (docs/measuring.md).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from benchbench.backends.base import backend_class
from benchbench.environments.interpreters import is_virtual
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer, JobEnd, Message, RunningJob
from benchbench.machine.environment import available_bytes, machine, quota_period_s
from benchbench.machine.sampler import CycleWatch, TurnSampler
from benchbench.model.case import Case, Status
from benchbench.model.measurement import Failure, Measurement, are_enough, is_calm
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.run import Policy, Record, RunInfo
from benchbench.running.verification import Announce, Precomputed, decode_outcome
from benchbench.store.codec import storable_record


class LiveCase:
    """The process of a case in a heat. It is stopped except in its turns."""

    def __init__(
        self,
        name: str,
        begin: Callable[[], RunningJob | Answer],
        sampler: TurnSampler,
        timeout_s: float,
        clock: Callable[[], float] = time.perf_counter,
        on_end: Callable[[Answer], Answer] = lambda answer: answer,
        refusal: Callable[[], Answer | None] = lambda: None,
    ) -> None:
        """`timeout_s`: time limit of `enter`, of each turn and of `finish`.

        `on_end`: called with the answer once the process has ended; returns the answer to use. `refusal`:
        returns an answer if the case's device was lost meanwhile, so that the process would hang.
        """
        self.name = name
        self.answer: Answer | None = None  # once the process has ended
        self.wall_s = 0.0  # without the times in which it was stopped
        self.started = 0.0  # seconds since the epoch
        self._begin = begin
        self._sampler = sampler
        self._timeout_s = timeout_s
        self._clock = clock
        self._on_end = on_end
        self._refusal = refusal
        self._job: RunningJob | None = None
        self._cycles: list[tuple[int, float | None]] = []  # per turn: cycle, cores used by other programs

    def enter(self) -> bool:
        """Start the process, which builds, verifies and warms up. Returns whether it is ready for turns."""
        self.answer, self._cycles = None, []
        self._sampler.clear()
        self.started = self.started or time.time()
        with self._timed():
            job = self._begin()
            if isinstance(job, Answer):
                self.answer = job
                return False
            self._job = job
            return self._number("warm") is not None

    def turn(self, seconds: float) -> float | None:
        """Time blocks for `seconds`. Returns the CPU seconds used; None if the process has ended."""
        with self._timed(), self._sampler.turn():
            return self._number("cpu_s") if self._begin_turn(seconds) else None

    def count(self, cycle: int, other_cores: float | None) -> None:
        """Store the cycle of the last turn, and the cores that other programs used in it."""
        self._cycles.append((cycle, other_cores))

    def finish(self) -> None:
        """End the turns and set `answer`: the process verifies its outputs and sends the measurement."""
        assert self._job is not None
        with self._timed():
            if self._begin_turn(0):
                self.answer = self._on_end(self._job.result(self._timeout_s))

    @property
    def has_hung(self) -> bool:
        """Whether the process hung before its first turn without computing, as after a deadlock in a fork."""
        return self.answer is not None and self.answer.end is JobEnd.HUNG and not self._cycles

    @property
    def lacked_memory(self) -> bool:
        """Whether the case ran out of memory, perhaps since other processes of the heat used it."""
        assert self.answer is not None
        status: object = self.answer.outcome.get("status", self.answer.status)
        return status == Status.OUT_OF_MEMORY

    def outcome(self, decode: Callable[[Answer], Measurement | Failure]) -> Measurement | Failure:
        """The decoded outcome, with the cycles of its turns and the machine's counters."""
        assert self.answer is not None
        outcome = decode(self.answer)
        if isinstance(outcome, Failure):
            return outcome
        turns = tuple(
            replace(turn, cycle=cycle, other_cores=other_cores)
            for turn, (cycle, other_cores) in zip(outcome.turns, self._cycles, strict=False)
        )
        return self._sampler.with_telemetry(replace(outcome, turns=turns))

    def _begin_turn(self, seconds: float) -> bool:
        """Continue the process for a turn and return True; end it if its device is lost."""
        assert self._job is not None
        if refusal := self._refusal():
            self._job.result(0.0)
            self.answer = refusal
            return False
        self._job.resume()
        self._job.send({"turn": seconds})
        return True

    def _number(self, name: str) -> float | None:
        """Receive a message, stop the process and return the number in it; None if it has ended."""
        assert self._job is not None
        try:
            if (message := self._job.receive(self._timeout_s)) is not None:
                number = float(message[name])
                self._job.stop()
                return number
            answer = self._job.result(self._timeout_s)
        except TimeoutError:
            answer = self._job.result(0.0)
        except (KeyError, TypeError, ValueError) as error:
            self._job.result(0.0)
            answer = Answer(None, JobEnd.UNREADABLE, f"the worker's answer cannot be read: {error}")
        self.answer = self._on_end(answer)
        return None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = self._clock()
        try:
            yield
        finally:
            self.wall_s += self._clock() - begin


def run_heat(
    cases: Sequence[LiveCase],
    policy: Policy,
    random: Random,
    report: Callable[[LiveCase, str], None],
    has_room: Callable[[], bool] = lambda: True,
    watch: Callable[[], CycleWatch] = CycleWatch,
) -> int:
    """Measure all cases, so that each has an answer. Returns the number of parts of the heat.

    `report`: called with a case and its state: preparing, timing or checking. `has_room`: whether memory is
    left for one more process. `watch`: creates the counter of other programs' CPU use.
    """
    parts, cycle, count = _Parts(cases, random, report), 0, 0
    while parts.remain:
        living = parts.enter(has_room)
        together = [*living]
        for case in living:
            report(case, "timing")
        cycle = take_cycles(living, policy, random, cycle, watch())
        parts.finish(living, together)
        count += bool(together)
    return count


class _Parts:
    """The parts of a heat: one, or several if the processes of all cases do not fit into memory.

    The first case is in every part, so that all others are compared with it. A case that ran out of memory is
    repeated in a later part, then alone.
    """

    def __init__(
        self, cases: Sequence[LiveCase], random: Random, report: Callable[[LiveCase, str], None]
    ) -> None:
        self._report = report
        self._first, *others = cases
        self._waiting = [self._first, *random.sample(others, len(others))]
        self._alone: list[LiveCase] = []  # to be measured alone, after all others
        self._retried: set[LiveCase] = set()
        self._staying: list[LiveCase] = []  # the first case if it is alive, between two parts

    @property
    def remain(self) -> bool:
        """Whether cases are left to measure."""
        return bool(self._waiting or self._alone)

    def enter(self, has_room: Callable[[], bool]) -> list[LiveCase]:
        """Start as many waiting cases as fit into memory; return the live cases of the next part."""
        living = self._staying
        if not self._waiting:
            return [case for case in [self._alone.pop()] if self._is_ready(case)]
        while self._waiting and (len(living) < 2 or has_room()):
            case = self._waiting.pop(0)
            if self._is_ready(case):
                living.append(case)
            elif self._retry(case, beside=len(living)) and len(living) > 1:
                break
        return living

    def finish(self, living: Sequence[LiveCase], together: Sequence[LiveCase]) -> None:
        """Finish a part. The first case stays alive if other cases are waiting.

        `together`: all cases of the part. `living`: those alive at its end; the kernel may have killed others
        when memory was full.
        """
        for case in living:
            if case is not self._first:
                self._check(case)
        for case in together:
            if case.answer is not None:
                self._retry(case, beside=len(together) - 1)
        self._staying = [case for case in living if case is self._first]
        if self._staying and not self._waiting:
            self._check(self._staying.pop())

    def _is_ready(self, case: LiveCase) -> bool:
        self._report(case, "preparing")
        return case.enter()

    def _check(self, case: LiveCase) -> None:
        self._report(case, "checking")
        case.finish()

    def _retry(self, case: LiveCase, beside: int) -> bool:
        """Queue a case again if it ran out of memory beside `beside` live cases; return whether it did."""
        if not beside or not case.lacked_memory:
            return False
        (self._alone if beside == 1 or case in self._retried else self._waiting).append(case)
        self._retried.add(case)
        return True


def take_cycles(living: list[LiveCase], policy: Policy, random: Random, first: int, watch: CycleWatch) -> int:
    """Run cycles, numbered from `first`, with one turn of each case. Returns the number of the next cycle.

    Cases that end are removed from `living`. If too many cycles are not calm, up to as many again follow.
    """
    planned, calm, timed_s, cycle = policy.cycles, 0, 0.0, first
    while living and cycle - first < 2 * planned:
        wall_s = {case: case.wall_s for case in living}
        used_s = {case: case.turn(policy.turn_s) for case in random.sample(living, len(living))}
        living[:] = [case for case in living if used_s[case] is not None]
        timed_s += sum(case.wall_s - wall_s[case] for case in living)
        other_cores = watch.other_cores(sum(cpu_s or 0.0 for cpu_s in used_s.values()))
        for case in living:
            case.count(cycle, other_cores)
        calm += is_calm(other_cores)
        cycle += 1
        done = cycle - first
        if done >= policy.min_cycles and timed_s >= policy.max_s * len(living):
            planned = min(planned, done)
        if done >= planned and are_enough(calm, planned):
            break
    return cycle


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
        relaxed: Message = {
            name: {output: limit and max(limit, max_error) for output, limit in reference[name].items()}
            for name in ("tolerance", "other_tolerance")
            if name in reference
        }
        return {**reference, **relaxed}


def _with_notes(outcome: Measurement | Failure, notes: Sequence[Note]) -> Measurement | Failure:
    """Add notes to a measurement; return a failure unchanged."""
    return replace(outcome, notes=(*outcome.notes, *notes)) if isinstance(outcome, Measurement) else outcome
