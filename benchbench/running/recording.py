"""Measurement of runs: rounds of heats in shuffled order, then profiles.

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
from benchbench.machine.environment import install_line, machine, machine_id, name_hashes
from benchbench.machine.variables import tuning_variables
from benchbench.model.case import Case, Status
from benchbench.model.device import Probe
from benchbench.model.measurement import Failure, Measurement
from benchbench.model.profile import Communication, Profile, Profiled, RankProfile
from benchbench.model.run import Record, Run, RunInfo
from benchbench.plan.cases import Plan, check_devices, plan, requested_devices, without_too_large
from benchbench.plan.revision import commit_tag
from benchbench.plan.suite import implied_sizes
from benchbench.running.heat import Recorder, measure_heat
from benchbench.running.observer import RunObserver, RunProgress
from benchbench.running.request import Request, Terms
from benchbench.running.schedule import cases_of_round, first_work, shuffled_by_work
from benchbench.store import artifacts, disk, runs
from benchbench.store.artifacts import profile_outcome
from benchbench.store.disk import new_id
from benchbench.store.runs import RunWriter
from benchbench.timing.policy import profiled_steps, with_rounds

DEVICES_HINT = "Run `accelbench devices` to see why."


def record_runs(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    results: Path | None,
    observer: RunObserver,
    *,
    profile: bool = False,
) -> list[list[Record]]:
    """Measure one run or two interleaved ones; return the records of each.

    `results`: folder to store the runs in, or None. `profile`: profile the first run's cases afterwards.
    Finished records stay stored if an exception occurs. Raises NothingToMeasure, CannotWrite.
    """
    if not infos[0].plan and not _missing_frameworks(infos[0]):
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
    """Raise NothingToMeasure if the plan is empty."""
    if not infos[0].plan:
        if missing := _missing_frameworks(infos[0]):
            hint = f"The smallest start: {install_line('torch')}. `accelbench devices` shows the others."
            raise NothingToMeasure(f"No framework is installed: {', '.join(missing)} are missing.", hint)
        one = "None of the selected cases can run on this machine."
        raise NothingToMeasure(one if len(infos) == 1 else "No case can run on both sides.", DEVICES_HINT)


def _missing_frameworks(info: RunInfo) -> list[str]:
    """Names of the backends if all of several are not installed; empty if one is, or is broken."""
    names = [probe.target.name for probe in info.probes]
    is_bare = len(names) > 1 and all(probe.status == "unavailable" for probe in info.probes)
    return names if is_bare else []


def record_missing(
    pool: WorkerPool, run: Run, writer: RunWriter, observer: RunObserver, *, profile: bool = False
) -> None:
    """Record the missing cases of an interrupted run. Raises CannotWrite."""
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
    """Measure all rounds and append to `records`, which contain those of earlier parts of the run."""
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
                RunProgress(info=info, records=side_records, wall_s=wall_s, stages_s=pool.stages_s)
                for info, side_records, pool in zip(infos, records, pools, strict=True)
            ]
        )


def _profile(pool: WorkerPool, records: Sequence[Record], folder: Path, observer: RunObserver) -> None:
    for profile in store_profiles(pool, records, folder, observer.stage):
        observer.profile(profile)


def plan_run(probes: Sequence[Probe], request: Request) -> RunInfo:
    """The head of the requested run. Raises UsageError for a device or mode that does not exist."""
    check_devices(requested_devices(request.entries, request.selection.devices), probes)
    run_plan = plan(request.entries, request.selection, probes)
    info = run_head(probes, without_too_large(run_plan, machine().memory_bytes), request)
    return dataclasses.replace(info, implied_sizes=tuple(implied_sizes(info)))


def run_head(probes: Sequence[Probe], run_plan: Plan, terms: Terms) -> RunInfo:
    """The head of a run that begins now. Its commit is the current one, unless the tags name another."""
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
        plan=run_plan.cases,
        left_out=run_plan.left_out,
        tags={**commit_tag(), **terms.tags},
        machine_id=machine_id(),
        models=catalogue.models_in(dict.fromkeys(case.workload for case in run_plan.cases)),
        name_hashes=name_hashes(),
        variables=tuning_variables(os.environ),
    )


def _shareable(probe: Probe) -> Probe:
    """The probe without its interpreter's folder, which may contain a user's name."""
    target = dataclasses.replace(probe.target, python=PurePath(probe.target.python).name)
    return dataclasses.replace(probe, target=target)


def measure_rounds(
    pools: Sequence[WorkerPool],
    infos: Sequence[RunInfo],
    observer: RunObserver,
    clock: Callable[[], float] = time.perf_counter,
    earlier: Sequence[Record] = (),
) -> Iterator[tuple[int, Record]]:
    """Measure one run or two interleaved sides. Yields (side, record) in the order measured.

    Each round has its own order (`shuffled_by_work`). The order of the two sides alternates from round to
    round. A case that fails is not measured again, on either side.
    `clock`: seconds, used to time cases and the budget. `earlier`: the records of a resumed run, which are
    not repeated.
    """
    began = clock() - sum(record.stages_s.get("wall", 0.0) for record in earlier)
    recorders = [
        Recorder(pool, info, observer.stage, clock, order=len(earlier))
        for pool, info in zip(pools, infos, strict=True)
    ]
    yield from _Rounds(pools, infos, recorders, observer, lambda: clock() - began, earlier)


class _Rounds:
    """The rounds of one run, or of two interleaved runs with the same order."""

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
        # Two sides get no further rounds: their cases are compared in pairs, so both need the same rounds.
        self._policy = (
            infos[0].policy if len(infos) == 1 else with_rounds(infos[0].policy, infos[0].policy.rounds)
        )
        self._sides = {cases[0].id: cases for cases in zip(*(info.plan for info in infos), strict=True)}
        failed = {record.case.id for record in earlier if isinstance(record.outcome, Failure)}
        self._pending = [case for case in infos[0].plan if case.id not in failed]
        self._records = [list(earlier), *([] for _ in infos[1:])]  # of each side
        self._first_work = first_work(shuffled_by_work(self._info.plan, self._info.seed, 0))
        self._earlier = {(record.case.id, record.round) for record in earlier}

    def _works(self, order: Sequence[Case]) -> list[list[Case]]:
        """Group cases by work, in the order of each work's first case."""
        works: dict[tuple[object, ...], list[Case]] = {}
        for case in order:
            works.setdefault(work_key(case), []).append(case)
        return list(works.values())

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        importing_s, is_first = 0.0, True
        for number in count():
            left_s = (self._policy.budget_s or 0.0) - self._spent_s() - importing_s
            if not (cases := cases_of_round(self._policy, number, self._pending, self._records[0], left_s)):
                return
            order = shuffled_by_work(cases, self._info.seed, number)
            if number == 0:
                order.sort(key=lambda case: case not in self._first_work)  # stable
            if not (order := [case for case in order if (case.id, number) not in self._earlier]):
                continue
            if is_first:
                first_work = [case for case in order if number == 0 and case in self._first_work]
                yield from self._begin(first_work, number)
                order = order[len(first_work) :]
            elif self._policy.reimports:
                self._observer.stage(f"round {number + 1}: importing frameworks")
                before = self._spent_s()
                for side, pool in enumerate(self._pools):
                    pool.start([self._sides[case.id][side] for case in order])
                importing_s = self._spent_s() - before
            is_first = False
            for work in self._works(order):
                yield from self._measure(work, number)

    def _begin(self, first_work: Sequence[Case], number: int) -> Iterator[tuple[int, Record]]:
        """Measure the first work; then prepare all other cases and later rounds' workers."""
        if first_work:
            self._prepare(first_work)
        for work in self._works(first_work):
            yield from self._measure(work, number)
        for pool, info in zip(self._pools, self._infos, strict=True):
            pool.prefetch_workers(info.plan, info.policy.rounds - 1 - number if info.policy.reimports else 0)
        self._prepare(self._info.plan)

    def _prepare(self, cases: Sequence[Case]) -> None:
        """Compute references and verifications of the cases, and wait until their workers have imported."""
        cases_by_side = [[self._sides[case.id][side] for case in cases] for side in range(len(self._pools))]
        for recorder, side_cases in zip(self._recorders, cases_by_side, strict=True):
            recorder.prepare(side_cases)
        self._observer.stage("importing frameworks")
        for pool, side_cases in zip(self._pools, cases_by_side, strict=True):
            pool.wait_for_workers(side_cases)

    def _measure(self, work: Sequence[Case], number: int) -> Iterator[tuple[int, Record]]:
        """Measure one heat of a work, on all sides."""
        sides = sorted(range(len(self._pools)), reverse=number % 2 == 1)
        planned = [(side, case) for case in work for side in sides]
        competitors = [(self._recorders[side], self._sides[case.id][side]) for side, case in planned]
        self._observer.heat([(side, self._sides[case.id][side]) for side, case in planned], number)
        for place, record in measure_heat(competitors, number, self._info.seed, self._observer.progress):
            side, case = planned[place]
            self._records[side].append(record)
            if isinstance(record.outcome, Failure) and case in self._pending:
                self._pending.remove(case)
            yield side, record


def store_profiles(
    pool: WorkerPool, records: Sequence[Record], folder: Path, announce: Callable[[str], None]
) -> Iterator[Profiled]:
    """Profile the measured cases without a stored profile. Yields each profile once stored.

    Raises CannotWrite.
    """
    stored_ids = {profile.case.id for profile in artifacts.read_profiles(folder)[0]}
    missing = [record for record in records if record.case.id not in stored_ids]
    for profile, traces in profile_cases(pool, missing, announce):
        stored, files = artifacts.profile_files(profile, traces)
        for name, content in files.items():
            disk.save_below(folder, folder / artifacts.ARTIFACTS / name, content)
        yield stored


def profile_cases(
    pool: WorkerPool, records: Sequence[Record], announce: Callable[[str], None]
) -> Iterator[tuple[Profiled, dict[str, bytes]]]:
    """Profile each measured case. Yields its profile, or why there is none, and its trace files."""
    last = {record.case.id: record for record in records}
    for record in last.values():
        if not isinstance(record.outcome, Measurement):
            continue
        begin = perf_counter()
        announce(f"profiling {record.case.id}")
        outcome, traces = _profile_case(pool, record.case, record.outcome)
        pool.stages_s["profile"] = pool.stages_s.get("profile", 0.0) + perf_counter() - begin
        yield (
            Profiled(case=record.case, framework_version=record.framework_version, outcome=outcome),
            traces,
        )


def profiled_blocks(measured: Measurement) -> tuple[int, int]:
    """(steps per block, blocks) to profile: blocks as in the measurement, with `profiled_steps` in total."""
    steps = profiled_steps(measured.median_step_s)
    iterations = min(measured.iterations, steps)
    return iterations, ceil(steps / iterations)


def _profile_case(
    pool: WorkerPool, case: Case, measured: Measurement
) -> tuple[Profile | Failure, dict[str, bytes]]:
    """The profile, or why there is none, and its trace files."""
    iterations, count = profiled_blocks(measured)
    answer, _ = pool.run_case(case, {"kind": "profile", "iterations": iterations, "count": count})
    plain = answer.reply and answer.reply.get("plain_step_s")
    if answer.reply and "recording" in answer.reply:
        answer = pool.read_traces({"kind": "read", "recording": answer.reply["recording"]}, answer.files)
        if answer.reply is None:
            return _unavailable(f"reading its trace takes jax or tensorflow: {answer.message}"), {}
    profile = decode_profile(answer, plain or ())
    if isinstance(profile, Failure):
        return profile, {}
    if not profile.operators:
        return _unavailable(f"{profile.profiler} saw no operator"), {}
    if missing := [name for name in profile.traces if name not in answer.files]:
        return _unavailable(f"{profile.profiler} left no {', '.join(missing)}"), {}
    return profile, {name: answer.files[name] for name in profile.traces}


def _unavailable(reason: str) -> Failure:
    return Failure(status=Status.UNAVAILABLE, message=reason)


def decode_profile(answer: Answer, plain: Sequence[float]) -> Profile | Failure:
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
    """The first rank's profile, with the communication times and traces of all ranks."""
    outcomes = [
        profile_outcome({**reply["profile"], "plain_step_s": reply["plain_step_s"]}) for reply in replies
    ]
    profiles = [outcome for outcome in outcomes if isinstance(outcome, Profile)]
    if len(profiles) < len(outcomes):
        return _unavailable("some ranks have no profile")
    return replace(
        profiles[0],
        traces=tuple(name for profile in profiles for name in profile.traces),
        ranks=tuple(
            RankProfile(
                device=str(reply["device"]),
                wall_s=profile.wall_s,
                busy_s=profile.busy_s,
                communication=profile.communication or Communication(total_s=0.0, exposed_s=0.0),
            )
            for reply, profile in zip(replies, profiles, strict=True)
        ),
    )
