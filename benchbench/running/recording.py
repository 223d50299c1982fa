"""The one way to measure: rounds of heats of every work in shuffled order; then the profiling pass.

The records of a heat are stored before the next heat starts, and reported to an observer.
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
from itertools import count
from math import ceil
from pathlib import Path, PurePath
from time import monotonic, perf_counter

from benchbench import __version__
from benchbench.errors import NothingToMeasure, UnreadableInput
from benchbench.judging.ranking import work_key
from benchbench.launch import catalogue
from benchbench.launch.pool import WorkerPool
from benchbench.launch.transport import Answer, Message
from benchbench.machine.environment import machine, machine_id, name_hashes
from benchbench.machine.variables import tuning_variables
from benchbench.model.case import Case
from benchbench.model.device import Probe
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.profile import Communication, Profile, Profiled, RankProfile
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.plan.cases import Plan, plan, without_too_large
from benchbench.plan.devices import check_devices, requested_devices
from benchbench.plan.revision import commit_tag
from benchbench.plan.suite import implied_sizes
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.running.recorder import Recorder, measure_together
from benchbench.running.request import Request, Terms
from benchbench.running.schedule import due, in_blocks, soonest
from benchbench.store import artifacts, disk, runs
from benchbench.store.artifacts import profile_outcome
from benchbench.store.naming import new_id
from benchbench.store.runs import RunWriter
from benchbench.timing.policy import profiled_steps, with_rounds

WAYS = "accelbench devices tells why."


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
    for side, record in measure_rounds(pools, infos, observer, earlier=tuple(records[0])):
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
    check_devices(requested_devices(asked.entries, asked.selection.devices), probes)
    chosen = plan(asked.entries, asked.selection, probes)
    info = run_head(probes, without_too_large(chosen, machine().memory_bytes), asked)
    return dataclasses.replace(info, implied_sizes=tuple(implied_sizes(info)))


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
    observer: RunObserver,
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
        Recorder(pool, info, observer.stage, clock, order=len(earlier))
        for pool, info in zip(pools, infos, strict=True)
    ]
    yield from _Rounds(pools, infos, recorders, observer, lambda: clock() - began, earlier)


class _Rounds:
    """The rounds of one run, or of two that share their order and their rounds."""

    def __init__(
        self,
        pools: Sequence[WorkerPool],
        infos: Sequence[RunInfo],
        recorders: Sequence[Recorder],
        observer: RunObserver,
        spent_s: Callable[[], float],
        earlier: Sequence[Record] = (),
    ) -> None:
        self._pools = pools
        self._infos = infos
        self._recorders = recorders
        self._observer = observer
        self._spent_s = spent_s
        self._info = infos[0]
        # sides are compared pair by pair: further rounds of what is noisy on one of them are not foreseen
        self._policy = (
            infos[0].policy if len(infos) == 1 else with_rounds(infos[0].policy, infos[0].policy.rounds)
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
            elif self._policy.reimports:
                self._observer.stage(f"round {number + 1}: importing frameworks")
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
            pool.prefetch_workers(info.plan, info.policy.rounds - 1 - number if info.policy.reimports else 0)
        self._prepare(self._info.plan)

    def _prepare(self, cases: Sequence[Case]) -> None:
        """Do what these cases need before they are timed, and wait for workers that import meanwhile."""
        own = [[self._sides[case.id][side] for case in cases] for side in range(len(self._pools))]
        for recorder, cases_of in zip(self._recorders, own, strict=True):
            recorder.prepare(cases_of)
        self._observer.stage("importing frameworks")
        for pool, cases_of in zip(self._pools, own, strict=True):
            pool.wait_for_workers(cases_of)

    def _measure(self, work: Sequence[Case], number: int) -> Iterator[tuple[int, Record]]:
        """Measure the cases of a work, on all sides."""
        sides = sorted(range(len(self._pools)), reverse=number % 2 == 1)
        planned = [(side, case) for case in work for side in sides]
        competitors = [(self._recorders[side], self._sides[case.id][side]) for side, case in planned]
        self._observer.heat([(side, self._sides[case.id][side]) for side, case in planned], number)
        for place, record in measure_together(competitors, number, self._info.seed, self._observer.progress):
            yield from self._stored(*planned[place], record)

    def _stored(self, side: int, planned: Case, record: Record) -> Iterator[tuple[int, Record]]:
        self._made[side].append(record)
        if isinstance(record.outcome, Failure) and planned in self._pending:
            self._pending.remove(planned)
        yield side, record


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
        answer = pool.read_traces({"kind": "read", "recording": answer.reply["recording"]}, answer.files)
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
