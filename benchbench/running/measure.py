"""A suite measured, or planned cases once more: one run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchbench.environments import targets as interpreters
from benchbench.errors import UsageError
from benchbench.format import count_of
from benchbench.launch import catalogue
from benchbench.launch.joining import gather_followers
from benchbench.launch.launched import Launched
from benchbench.launch.local import LocalTransport
from benchbench.launch.pool import WorkerPool
from benchbench.launch.project import UserCode, no_code
from benchbench.launch.rank_transport import RankTransport
from benchbench.launch.transport import Transport
from benchbench.machine.environment import limits
from benchbench.model.case import Case
from benchbench.model.device import Probe, Target
from benchbench.model.options import MeasureOptions
from benchbench.model.run import Run, RunInfo, Settings
from benchbench.plan.rerun import again
from benchbench.plan.selection import sizes_left_behind
from benchbench.running import request, rounds
from benchbench.running.observer import RunObserver
from benchbench.running.recording import record_runs
from benchbench.running.request import Request, Terms
from benchbench.running.start import ready
from benchbench.store import runs, selectors

LOOKING = "looking for backends and devices"


def measure_suite(
    options: MeasureOptions, results: Path, observer: RunObserver, *, profile: bool = False
) -> Run:
    """What is asked for, stored as a run in `results`. Raises UsageError, NothingToMeasure, CannotWrite."""
    selectors.follow_stored(results)
    asked, targets = request.request_on_targets(options)
    with (
        ready(targets, asked.wait_s, results, observer) as tell_disturbances,
        prepared(asked, targets, observer) as (pool, info),
    ):
        tell_disturbances()
        record_runs([pool], [info], results, observer, profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)


def measure_launched(
    where: Launched,
    options: MeasureOptions,
    results: Path,
    observer: RunObserver,
    *,
    profile: bool = False,
) -> Run:
    """The same under a launcher, as the first of its processes: steps are divided among the devices of all.

    Raises UsageError, NothingToMeasure, CannotWrite.
    """
    selectors.follow_stored(results)
    asked, targets = request.request_on_targets(request.on_ranks(options, where.size))
    with closing(gather_followers(where)) as group:
        if not group.is_even:
            hosts = f"{where.size} processes on {group.hosts} hosts"
            raise UsageError(f"{hosts} cannot be divided equally.", "Start as many on every host.")
        observer.note(f"{where.size} processes on {count_of(group.hosts, 'host')}")
        selection = replace(asked.selection, hosts=group.hosts, launched=True)
        spread, transport = replace(asked, selection=selection), partial(RankTransport, group)
        with (
            ready(targets, asked.wait_s, results, observer) as tell_disturbances,
            prepared(spread, targets, observer, transport) as (pool, info),
        ):
            tell_disturbances()
            record_runs([pool], [info], results, observer, profile=profile)
    return runs.read_run(results / runs.RUNS / info.id)


def plan_suite(options: MeasureOptions, observer: RunObserver) -> RunInfo:
    """The head of the run that these options would make; nothing is measured or stored."""
    with prepared(*request.request_on_targets(options), observer, measured=False) as (_, info):
        return info


@contextmanager
def prepared(
    asked: Request,
    targets: Sequence[Target],
    observer: RunObserver,
    transport: Callable[[Settings, UserCode | None], Transport] = LocalTransport,
    *,
    measured: bool = True,
) -> Iterator[tuple[WorkerPool, RunInfo]]:
    """The workers of the targets, and the head of the run that is asked for. Raises UsageError.

    `measured`: whether that run will be made.
    """
    with WorkerPool(targets, asked.settings, sys.executable, transport=transport) as pool:
        tell_system(observer, sys.platform)
        tell_mistakes(observer)
        observer.note(LOOKING)
        info = rounds.prepare(pool, asked, measured=measured)
        for line in sizes_left_behind(asked.suites, asked.selection, info.plan):
            observer.note(line)
        yield pool, info


def tell_system(observer: RunObserver, platform: str) -> None:
    """What is missing where this is not Linux."""
    if missing := limits(platform):
        observer.note(missing)


def tell_mistakes(observer: RunObserver) -> None:
    """What is wrong with the user's workload files, a line each: what is measured may not need them."""
    for line in catalogue.user_file_warnings():
        observer.note(line)


def measure_cases(
    cases: Sequence[Case], terms: Terms, pythons: Mapping[str, str], results: Path, observer: RunObserver
) -> Run:
    """The very same cases in fresh processes, stored as a run in `results`.

    `pythons`: target → its interpreter. Raises UsageError for a target without one, NothingToMeasure.
    """
    selectors.follow_stored(results)
    targets = targets_of(cases, pythons)
    with (
        ready(targets, terms.wait_s, results, observer) as tell_disturbances,
        WorkerPool(targets, terms.settings, sys.executable) as pool,
    ):
        probes = pool.probe()
        info = rounds.run_head(probes, again(cases, probes), terms)
        tell_disturbances()
        record_runs([pool], [info], results, observer)
    return runs.read_run(results / runs.RUNS / info.id)


def targets_of(cases: Sequence[Case], pythons: Mapping[str, str]) -> list[Target]:
    """What measured the cases, by name. Raises UsageError for one that there is no interpreter for."""
    names = list(dict.fromkeys(case.target for case in cases))
    return interpreters.targets(names, interpreters.given(pythons), sys.executable)


def probe_targets(options: MeasureOptions, observer: RunObserver) -> list[Probe]:
    """What every target chosen has; without a choice also every environment. Raises UsageError."""
    chosen = request.requested_targets(options, labelled=True)
    with WorkerPool(chosen, request.settings(options), sys.executable, no_code()) as pool:
        observer.note("importing every backend")
        return pool.probe()
