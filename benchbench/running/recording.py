"""How every verb measures: rounds of every case in shuffled order, a process each; then the profiling pass.

Each record is stored before the next case starts, and told to an observer.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import count
from math import ceil
from pathlib import Path, PurePath
from random import Random
from time import monotonic, perf_counter

from benchbench import __version__
from benchbench.environments.targets import backend_class
from benchbench.errors import NothingToMeasure, UnreadableInput
from benchbench.judging.ranking import work_key
from benchbench.launch import catalogue
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer, Message
from benchbench.machine.environment import available_bytes, machine, machine_id, name_hashes
from benchbench.machine.variables import tuning_variables
from benchbench.model.case import Case
from benchbench.model.device import Probe
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.profile import Communication, Profile, Profiled, RankProfile
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.plan.cases import Plan, fitting, plan
from benchbench.plan.devices import check_devices, devices_asked
from benchbench.plan.revision import commit_tag
from benchbench.running.heat import LiveCase, run_heat
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.running.request import Request, Terms
from benchbench.running.schedule import due, in_blocks, soonest
from benchbench.running.verification import Announce, Precomputed, decoded
from benchbench.store import artifacts, disk, runs
from benchbench.store.artifacts import profile_outcome
from benchbench.store.codec import storable
from benchbench.store.naming import new_id
from benchbench.store.runs import RunWriter
from benchbench.timing.policy import of_rounds, profiled_steps

WAYS = "accelbench devices tells why."
MOST_USED = 0.8  # of the memory, by the processes of a heat


def record_runs(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    results: Path | None,
    observer: RunObserver,
    *,
    profile: bool = False,
) -> list[list[Record]]:
    """The records of one run, or of two interleaved ones, stored in `results` if that is not None.

    `profile`: then profile what was measured of the first. Raises NothingToMeasure, CannotWrite; what is
    finished when an exception ends it is stored.
    """
    if not infos[0].plan:
        observer.begin(infos)
    check_plans(infos)
    records: list[list[Record]] = [[] for _ in infos]
    with ExitStack() as stack:
        writers = [stack.enter_context(runs.create_run(results, info)) for info in infos if results]
        stack.enter_context(_observed(pools, infos, records, observer))
        _measure(pools, infos, writers, records, observer)
        if profile and writers:
            _profile(pools[0], records[0], writers[0].folder, observer)
    return records


def check_plans(infos: Sequence[RunInfo]) -> None:
    """Raise NothingToMeasure where the plan, or that of two sides, has no case."""
    if not infos[0].plan:
        one = "No case of the selection can run here."
        raise NothingToMeasure(one if len(infos) == 1 else "No case can run on both sides.", WAYS)


def record_rest(
    pool: WorkerPool, run: Run, writer: RunWriter, observer: RunObserver, *, profile: bool = False
) -> None:
    """What an interrupted run lacks, after the records it has. Raises CannotWrite."""
    records = [list(run.records)]
    with _observed([pool], [run.info], records, observer):
        observer.resume(run.records)
        _measure([pool], [run.info], [writer], records, observer)
        if profile:
            _profile(pool, records[0], writer.folder, observer)


def _measure(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    writers: Sequence[RunWriter],
    records: Sequence[list[Record]],
    observer: RunObserver,
) -> None:
    """Adds to `records`, which may hold those that an earlier part of the run made."""
    for side, record in measure_rounds(pools, infos, observer.stage, earlier=tuple(records[0])):
        stored = writers[side].append(record) if writers else record
        records[side].append(stored)
        observer.record(stored, side)


@contextmanager
def _observed(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    records: Sequence[Sequence[Record]],
    observer: RunObserver,
) -> Iterator[None]:
    begin = monotonic()
    observer.begin(infos)
    try:
        yield
    finally:
        wall_s = monotonic() - begin
        observer.end(
            [
                RunProgress(info=info, records=made, wall_s=wall_s, stages_s=pool.stages_s)
                for info, made, pool in zip(infos, records, pools, strict=True)
            ]
        )


def _profile(pool: WorkerPool, records: Sequence[Record], folder: Path, observer: RunObserver) -> None:
    for profile in keep_profiles(pool, records, folder, observer.stage):
        observer.profile(profile)


def plan_run(probes: Sequence[Probe], asked: Request) -> RunInfo:
    """The head of the run that is asked for. Raises UsageError for a device or mode that does not exist."""
    check_devices(devices_asked(asked.entries, asked.selection.devices), probes)
    chosen = plan(asked.entries, asked.selection, probes)
    return run_head(probes, fitting(chosen, machine().memory_bytes), asked)


def run_head(probes: Sequence[Probe], chosen: Plan, terms: Terms) -> RunInfo:
    """The head of a run that begins now; its commit is the one it is made at unless the tags name another."""
    now = time.time()
    return RunInfo(
        id=new_id(now),
        started=datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        command=terms.command,
        version=__version__,
        machine=machine(),
        settings=terms.settings,
        policy=terms.policy,
        seed=random.SystemRandom().randrange(2**32) if terms.seed is None else terms.seed,
        probes=tuple(_shareable(probe) for probe in probes),
        plan=chosen.cases,
        left_out=chosen.left_out,
        tags={**commit_tag(), **terms.tags},
        machine_id=machine_id(),
        models=catalogue.models_in(dict.fromkeys(case.workload for case in chosen.cases)),
        name_hashes=name_hashes(),
        variables=tuning_variables(os.environ),
    )


def _shareable(probe: Probe) -> Probe:
    """The probe without its interpreter's folder: results are shared, names of home folders should not be."""
    target = dataclasses.replace(probe.target, python=PurePath(probe.target.python).name)
    return dataclasses.replace(probe, target=target)


def measure_rounds(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    announce: Announce,
    clock: Callable[[], float] = time.perf_counter,
    earlier: Sequence[Record] = (),
) -> Iterator[tuple[int, Record]]:
    """(side, record) in the order measured: of one run, or of two sides that are interleaved.

    In each round works are shuffled, and within a work its cases (`in_blocks`). Of two sides each case is
    measured on one and then on the other, and in the next round the other way about. A case that fails is not
    measured again, on no side.
    `clock`: seconds, by which cases and the policy's budget are timed. `earlier`: the records that one run
    has already, none of which is made again.
    """
    began = clock() - sum(record.stages_s.get("wall", 0.0) for record in earlier)
    recorders = [
        Recorder(pool, info, announce, clock, order=len(earlier))
        for pool, info in zip(pools, infos, strict=True)
    ]
    yield from _Rounds(pools, infos, recorders, announce, lambda: clock() - began, earlier)


class _Rounds:
    """The rounds of one run, or of two that share their order and their rounds."""

    def __init__(
        self,
        pools: Sequence[WorkerPool],
        infos: Sequence[RunInfo],
        recorders: Sequence[Recorder],
        announce: Announce,
        spent_s: Callable[[], float],
        earlier: Sequence[Record] = (),
    ) -> None:
        self._pools = pools
        self._infos = infos
        self._recorders = recorders
        self._announce = announce
        self._spent_s = spent_s
        self._info = infos[0]
        # sides are compared pair by pair: further rounds of what is noisy on one of them are not foreseen
        self._policy = (
            infos[0].policy if len(infos) == 1 else of_rounds(infos[0].policy, infos[0].policy.rounds)
        )
        self._sides = {cases[0].id: cases for cases in zip(*(info.plan for info in infos), strict=True)}
        failed = {record.case.id for record in earlier if isinstance(record.outcome, Failure)}
        self._pending = [case for case in infos[0].plan if case.id not in failed]
        self._made = [list(earlier), *([] for _ in infos[1:])]  # the records of each side
        self._soon = soonest(in_blocks(self._info.plan, self._info.seed, 0))  # a resumed run's, too
        self._earlier = {(record.case.id, record.round) for record in earlier}

    def _works(self, order: Sequence[Case]) -> list[list[Case]]:
        """The cases of each work, in the order in which their works begin."""
        works: dict[tuple[object, ...], list[Case]] = {}
        for case in order:
            works.setdefault(work_key(case), []).append(case)
        return list(works.values())

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        importing_s, fresh = 0.0, True
        for number in count():
            left_s = (self._policy.budget_s or 0.0) - self._spent_s() - importing_s
            if not (cases := due(self._policy, number, self._pending, self._made[0], left_s)):
                return
            order = in_blocks(cases, self._info.seed, number)
            if number == 0:
                order.sort(key=lambda case: case not in self._soon)  # stable
            if not (order := [case for case in order if (case.id, number) not in self._earlier]):
                continue
            if fresh:
                soon = [case for case in order if number == 0 and case in self._soon]
                yield from self._begin(soon, number)
                order = order[len(soon) :]
            else:
                self._announce(f"round {number + 1}: importing frameworks")
                before = self._spent_s()
                for side, pool in enumerate(self._pools):
                    pool.start([self._sides[case.id][side] for case in order])
                importing_s = self._spent_s() - before
            fresh = False
            for work in self._works(order):
                yield from self._measure(work, number)

    def _begin(self, soon: Sequence[Case], number: int) -> Iterator[tuple[int, Record]]:
        """Measure the cases that are ready `soon`; then prepare all others and later rounds' workers."""
        if soon:
            self._prepare(soon)
        for work in self._works(soon):
            yield from self._measure(work, number)
        for pool, info in zip(self._pools, self._infos, strict=True):
            pool.start_ahead(info.plan, info.policy.rounds - 1 - number)
        self._prepare(self._info.plan)

    def _prepare(self, cases: Sequence[Case]) -> None:
        """Do what these cases need before they are timed, and wait for workers that import meanwhile."""
        own = [[self._sides[case.id][side] for case in cases] for side in range(len(self._pools))]
        for recorder, cases_of in zip(self._recorders, own, strict=True):
            recorder.prepare(cases_of)
        self._announce("importing frameworks")
        for pool, cases_of in zip(self._pools, own, strict=True):
            pool.await_ahead(cases_of)

    def _measure(self, work: Sequence[Case], number: int) -> Iterator[tuple[int, Record]]:
        """Measure the cases of a work in a heat; those that cannot alternate one after another."""
        sides = sorted(range(len(self._pools)), reverse=number % 2 == 1)
        competitors = [(side, self._sides[case.id][side], case) for case in work for side in sides]
        beside = [each for each in competitors if self._pools[each[0]].can_alternate(each[1])]
        live: list[tuple[LiveCase, int, Case]] = []
        for side, case, planned in competitors:
            if (side, case, planned) not in beside:
                self._announce(f"round {number + 1}: {case.id}")
                yield from self._stored(side, planned, self._recorders[side].record(case, number))
            elif isinstance(entrant := self._recorders[side].entrant(case), LiveCase):
                live.append((entrant, side, planned))
            else:
                yield from self._stored(side, planned, self._recorders[side].failed(case, number, entrant))
        if live:
            announce = lambda text: self._announce(f"heat {number + 1}: {text}")  # noqa: E731
            source = Random(f"{self._info.seed}/{number}/{work[0].id}")
            run_heat([entrant for entrant, *_ in live], self._info.policy, source, announce, has_room)
        for entrant, side, planned in live:
            case = self._sides[planned.id][side]
            yield from self._stored(side, planned, self._recorders[side].measured(case, number, entrant))

    def _stored(self, side: int, planned: Case, record: Record) -> Iterator[tuple[int, Record]]:
        self._made[side].append(record)
        if isinstance(record.outcome, Failure) and planned in self._pending:
            self._pending.remove(planned)
        yield side, record


def has_room() -> bool:
    """Whether memory holds one more process of a case."""
    return available_bytes() > (1 - MOST_USED) * machine().memory_bytes


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
        """`order`: how many records the run has already."""
        self._pool = pool
        self._policy = info.policy
        self._max_error = info.settings.max_error
        self._versions = {probe.target.name: probe.version for probe in info.probes}
        self._models = {
            (p.target.name, device.name): device.model for p in info.probes for device in p.devices
        }
        self._precomputed = Precomputed(pool, announce, info.seed)
        self._clock = clock
        self._order = order
        self._part = len(info.resumed)
        self._compiled: set[str] = set()  # ids of cases whose programs this part of the run has compiled

    def prepare(self, cases: Sequence[Case]) -> None:
        """Do what is done once a run before these cases are timed."""
        self._precomputed.prepare([case for case in cases if not case.is_call])

    def record(self, case: Case, number: int) -> Record:
        """Measure the case in one go, unless it is known to fail."""
        started, begin = time.time(), self._clock()
        stages: dict[str, float] = {}
        job = self._job(case)
        if isinstance(job, Failure):
            return self.failed(case, number, job)
        with self._pool.watch(case) as observer:
            answer, isolation = self._pool.ask(case, job)
        outcome = observer.seen_in(decoded(answer, stages))
        return self._made(case, number, outcome, isolation, stages, started, self._clock() - begin)

    def entrant(self, case: Case) -> LiveCase | Failure:
        """The case, to be measured in a heat; a failure if it is known to fail."""
        job = self._job(case)
        if isinstance(job, Failure):
            return job
        sampler, timeout_s = self._pool.turn_sampler(case), self._pool.timeout_s
        return LiveCase(case.id, partial(self._pool.begin, case, job), sampler, timeout_s, self._clock)

    def measured(self, case: Case, number: int, entrant: LiveCase) -> Record:
        """The record of a case that was in a heat."""
        stages: dict[str, float] = {}
        outcome = entrant.outcome(lambda answer: decoded(self._pool.ended(case, answer), stages))
        return self._made(case, number, outcome, "fork", stages, entrant.started, entrant.wall_s)

    def failed(self, case: Case, number: int, failure: Failure) -> Record:
        """The record of a case that is known to fail."""
        return self._made(case, number, failure, "none", {}, time.time(), 0.0)

    def _made(
        self,
        case: Case,
        number: int,
        outcome: Measurement | Failure,
        isolation: str,
        stages: dict[str, float],
        started: float,
        wall_s: float,
    ) -> Record:
        """A record. If it could not be read again, it is a failure already here: no round repeats it."""
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
        return storable(record)[0]

    def _job(self, case: Case) -> Message | Failure:
        """The job that measures the case; a failure if it is known to fail."""
        job: Message = {"policy": dataclasses.asdict(self._policy), "warm": case.id in self._compiled}
        if case.is_call:  # a function of the user's: nothing is known that it could be verified by
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
        allowed = self._precomputed.allowed(case)
        job |= {"reference": self._allowed(case, reference), "verified": error, "allowed": allowed}
        return {"kind": "measure", **job}

    def _allowed(self, case: Case, reference: Message | None) -> Message | None:
        """The reference, from which an engine that loses precision may be as far as was asked for."""
        allowed = self._max_error
        if reference is None or allowed is None or case.mode not in backend_class(case.backend).lossy_modes:
            return reference
        tolerance = {name: limit and max(limit, allowed) for name, limit in reference["tolerance"].items()}
        return {**reference, "tolerance": tolerance}


def keep_profiles(
    pool: WorkerPool, records: Sequence[Record], folder: Path, announce: Callable[[str], None]
) -> Iterator[Profiled]:
    """Record the profiles that the run's `folder` lacks; yields each once stored. Raises CannotWrite."""
    there = {found.case.id for found in artifacts.read_profiles(folder)[0]}
    missing = [record for record in records if record.case.id not in there]
    for found, traces in profile_cases(pool, missing, announce):
        stored, files = artifacts.profile_files(found, traces)
        for name, content in files.items():
            disk.save_below(folder, folder / artifacts.ARTIFACTS / name, content)
        yield stored


def profile_cases(
    pool: WorkerPool, records: Sequence[Record], announce: Callable[[str], None]
) -> Iterator[tuple[Profiled, dict[str, bytes]]]:
    """Profile each case that was measured; yields its profile, or why there is none, and its traces."""
    last = {record.case.id: record for record in records}
    for record in last.values():
        if not isinstance(record.outcome, Measurement):
            continue
        begin = perf_counter()
        announce(f"profiling {record.case.id}")
        found, traces = _profiled(pool, record.case, record.outcome)
        pool.stages_s["profile"] = pool.stages_s.get("profile", 0.0) + perf_counter() - begin
        yield (
            Profiled(case=record.case, framework_version=record.framework_version, outcome=found),
            traces,
        )


def profiled_blocks(measured: Measurement) -> tuple[int, int]:
    """(steps in a block, blocks) to profile: blocks like those timed, as many as `profiled_steps` take."""
    steps = profiled_steps(measured.median_step_s)
    iterations = min(measured.iterations, steps)
    return iterations, ceil(steps / iterations)


def _profiled(
    pool: WorkerPool, case: Case, measured: Measurement
) -> tuple[Profile | Failure, dict[str, bytes]]:
    """The profile, or why there is none, and the traces that it names."""
    iterations, count = profiled_blocks(measured)
    answer, _ = pool.ask(case, {"kind": "profile", "iterations": iterations, "count": count})
    plain = answer.reply and answer.reply.get("plain_step_s")
    if answer.reply and "recording" in answer.reply:
        answer = pool.read({"kind": "read", "recording": answer.reply["recording"]}, answer.files)
        if answer.reply is None:
            return _unavailable(f"reading its trace takes jax or tensorflow: {answer.message}"), {}
    found = profile_in(answer, plain or ())
    if isinstance(found, Failure):
        return found, {}
    if not found.operators:
        return _unavailable(f"{found.profiler} saw no operator"), {}
    if lost := [name for name in found.traces if name not in answer.files]:
        return _unavailable(f"{found.profiler} left no {', '.join(lost)}"), {}
    return found, {name: answer.files[name] for name in found.traces}


def _unavailable(reason: str) -> Failure:
    return Failure(status=Status.UNAVAILABLE, message=reason)


def profile_in(answer: Answer, plain: Sequence[float]) -> Profile | Failure:
    """The profile in an answer, or why there is none. `plain`: seconds of each step without the profiler."""
    if answer.reply is None:
        return Failure(status=answer.status, message=answer.message, log=answer.log)
    try:
        if ranks := answer.reply.get("ranks"):
            return _of_ranks(ranks)
        if profile := answer.reply.get("profile"):
            return profile_outcome({**profile, "plain_step_s": plain})
        return profile_outcome(answer.reply["outcome"])
    except (KeyError, TypeError, ValueError, UnreadableInput) as error:
        return Failure(status=Status.FAILED, message=f"the worker's answer cannot be read: {error}")


def _of_ranks(replies: Sequence[Message]) -> Profile | Failure:
    """The first rank's profile, with what each of them says of communication and the traces of all."""
    found = [
        profile_outcome({**reply["profile"], "plain_step_s": reply["plain_step_s"]}) for reply in replies
    ]
    profiles = [each for each in found if isinstance(each, Profile)]
    if len(profiles) < len(found):
        return _unavailable("a rank has no profile, and the others have")
    return replace(
        profiles[0],
        traces=tuple(name for each in profiles for name in each.traces),
        ranks=tuple(
            RankProfile(
                device=str(reply["device"]),
                wall_s=each.wall_s,
                busy_s=each.busy_s,
                communication=each.communication or Communication(total_s=0.0, exposed_s=0.0),
            )
            for reply, each in zip(replies, profiles, strict=True)
        ),
    )
