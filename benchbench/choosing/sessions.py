"""Measurements of hardware from stored runs, and their means over days and machines. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchbench.analyse.digest import CaseDigest
from benchbench.analyse.metrics import LATENCY, Metric
from benchbench.errors import UsageError, unknown
from benchbench.format import count_of
from benchbench.judging.pairs import MAX_PART_DIFFERENCE, MIN_PROCESSES
from benchbench.judging.series import matches_patterns
from benchbench.judging.sessions import (
    Days,
    day_means,
    days_of,
    pooled_variance,
    variance_between_days,
)
from benchbench.machine.peaks import several_devices
from benchbench.model.case import Cache, Case
from benchbench.model.placement import Strategy, suffix
from benchbench.model.run import Run
from benchbench.stats import MIN_DEVIATION, Difference, LogEstimate, deviation, mean, summed_error
from benchbench.store.disk import start_time
from benchbench.summaries import RunSummary, summaries

MACHINE_TAG = "machine"  # default tag with the name of a run's machine
ID_DIGITS = 8  # of a machine's id, enough to distinguish thousands
UNNAMED_MACHINE = "a machine without a name"


@dataclass(frozen=True, slots=True, order=True)
class Hardware:
    """Hardware to buy or rent: one or more devices of the same model; for a CPU, with the used threads."""

    device: str
    threads: int = 0  # 0 for an accelerator
    count: int = 1  # number of accelerators, or of hosts whose CPUs compute

    @property
    def name(self) -> str:
        """Device with its threads: `AMD EPYC 7B13, 8 threads`."""
        return f"{self.device}, {count_of(self.threads, 'thread')}" if self.threads else self.device

    @property
    def label(self) -> str:
        """All devices: `8 × NVIDIA H100`; for one device, its name."""
        return several_devices(self.count, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSession:
    """A case as measured by one run."""

    case: Case
    device: Hardware  # one of the case's devices
    cpu: str  # of the machine
    machine: str  # its name: the value of a tag, or its id
    run: str
    started: str
    digest: CaseDigest

    @property
    def hardware(self) -> Hardware:
        """Hardware of the case's devices."""
        return replace(self.device, count=self.case.hardware_count)

    @property
    def work(self) -> str:
        """Work of the case, independent of what computes it: `gemm(m=64,n=64,k=64)/float32/cold`.

        A collective on another number of devices is other work.
        """
        case = self.case
        passing = case.placement.strategy is Strategy.COLLECTIVE
        world = suffix(replace(case.placement, names=()), {}) if passing else ""
        return "/".join((case.work, *([case.cache] if case.cache is not Cache.HOT else []))) + world

    @property
    def configuration(self) -> str:
        """Target, mode and placement: `torch compile`, `torch eager [devices=2,strategy=data-parallel]`."""
        where = suffix(self.case.placement, self.case.environment, self.case.threads)
        return " ".join(filter(None, (self.case.target, self.case.mode, where)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measurements that count in a comparison of hardware.

    `runs`: ids of all runs. `left_out`: reason for leaving out others → number of cases, summed over runs.
    """

    runs: tuple[str, ...]
    sessions: tuple[CaseSession, ...]
    left_out: Mapping[str, int]


def read_evidence(
    runs: Iterable[Run | RunSummary], cases: Sequence[str] = (), by: str | None = None
) -> Evidence:
    """Measurements of each case on each hardware. Sides of `compare --ab` do not count.

    `cases`: parts of ids, or patterns of whole ids; none means all. `by`: the tag that names machines.

    For a case on one hardware, only the framework version of the newest run counts; for a work, only the
    workload version of the newest run. Raises UsageError if no run has the tag.
    """
    run_evidence: list[_RunEvidence] = []
    names: list[str] = []
    tags: set[str] = set()
    for run in summaries(runs):
        names.append(run.id)
        if not run.is_half:
            tags |= run.tags.keys()
            run_evidence.append(_run_evidence(run, by or MACHINE_TAG))
    if by and run_evidence and by not in tags:
        raise UsageError(f"No run has a tag {by!r}.", unknown("tags", by, sorted(tags)))
    run_evidence.sort(key=lambda evidence: (evidence.start_time, evidence.run_id))
    left_out, measured = Counter[str](), list[CaseSession]()
    for evidence in run_evidence:
        left_out.update(reason for case, reason in evidence.left_out if matches_patterns(case, cases))
        measured += [session for session in evidence.sessions if matches_patterns(session.case.id, cases)]
    newest = tuple(_newest_versions(measured, left_out))
    return Evidence(runs=tuple(names), sessions=newest, left_out=dict(left_out))


@dataclass(frozen=True, slots=True)
class _RunEvidence:
    """Measurements of a run that count, and the reasons against others: the part of a run kept in memory."""

    start_time: float  # Unix time
    run_id: str
    sessions: tuple[CaseSession, ...]
    left_out: tuple[tuple[str, str], ...]  # case id and reason


def logs_by_day(sessions: Sequence[CaseSession], metric: Metric) -> list[list[float]]:
    """Logarithms of the processes' values, day by day of each machine; the last run of a day counts."""
    machines: dict[str, list[CaseSession]] = {}
    for session in sessions:
        if session.digest.logs(metric):
            machines.setdefault(session.machine, []).append(session)
    logs: list[list[float]] = []
    for machine_sessions in machines.values():
        days = days_of([session.started for session in machine_sessions])
        last_sessions = dict(zip(days, machine_sessions, strict=True))
        logs += [session.digest.logs(metric) for session in last_sessions.values()]
    return logs


def _run_evidence(run: RunSummary, by: str) -> _RunEvidence:
    left_out: list[tuple[str, str]] = []
    machine = run.tags.get(by) or run.machine_id[:ID_DIGITS] or UNNAMED_MACHINE
    sessions = []
    for name, case in run.cases.items():
        hardware, digest = Hardware(case.facts.device, case.facts.threads), case.digest
        if reason := _exclusion(case.facts.unranked, digest):
            left_out.append((name, f"{reason}, on {hardware.label}"))
            continue
        assert digest.case
        sessions.append(
            CaseSession(
                case=digest.case,
                device=hardware,
                cpu=run.machine.cpu,
                machine=machine,
                run=run.id,
                started=run.started,
                digest=digest,
            )
        )
    return _RunEvidence(start_time(run), run.id, tuple(sessions), tuple(left_out))


def _exclusion(unranked: str, processes: CaseDigest) -> str:
    """Reason why a case does not count; empty if it does."""
    if unranked:
        return unranked
    count = len(processes.logs(LATENCY))
    reasons = {
        "contended": bool(processes.contended),
        "still warming up": processes.unsteady > 0,
        "processes disagree": bool(processes.disagreement(LATENCY)),
        "resumed, and its parts differ": processes.part_difference(LATENCY) > math.log1p(MAX_PART_DIFFERENCE),
        f"fewer than {MIN_PROCESSES} processes": count < MIN_PROCESSES,
    }
    return next((name for name, applies in reasons.items() if applies), "")


def _newest_versions(sessions: Sequence[CaseSession], left_out: Counter[str]) -> Iterator[CaseSession]:
    """Sessions of the newest versions; `sessions` are oldest first."""
    versions = {(session.hardware, session.case.id): session.digest.version for session in sessions}
    works = {session.work: _work_version(session) for session in sessions}
    for session in sessions:
        if _work_version(session) != works[session.work]:
            left_out[f"another version of the workload {session.case.workload}"] += 1
        elif session.digest.version != (newest := versions[session.hardware, session.case.id]):
            older = f"{session.case.target} {session.digest.version}, not {newest}"
            left_out[f"{older}, on {session.hardware.label}"] += 1
        else:
            yield session


def _work_version(session: CaseSession) -> tuple[object, ...]:
    """Version and counted cost of the work, which are equal in sessions that can be compared."""
    cost = session.digest.cost
    assert cost
    return session.digest.workload_version, cost.flops, cost.items, cost.item


def mean_log(days: Days, assumed: float) -> LogEstimate:
    """Mean over days, which may be of several machines of one type.

    Each day missing to `MIN_SESSIONS` counts as deviating by `assumed`, as in a check
    (judging/sessions.py). If the error that the processes alone explain is larger, it is used instead.
    Raises ValueError if there is no day.
    """
    if not days:
        raise ValueError("no day")
    count, day_values = len(days), day_means(days)
    day_variance = deviation(day_values) ** 2 if count > 1 else 0.0
    variance_between, degrees_between = variance_between_days(day_variance, count, assumed)
    process_variance, degrees = pooled_variance(days)
    process_square = process_variance * sum(1 / len(day) for day in days) / count**2
    square = max(variance_between / count, MIN_DEVIATION**2)
    if process_square > square:
        return LogEstimate(mean(day_values), math.sqrt(process_square), degrees)
    return LogEstimate(mean(day_values), math.sqrt(square), degrees_between)


def gap(best: LogEstimate, other: LogEstimate) -> Difference:
    """Difference other − best of hardware without common days (Welch 1947)."""
    error, degrees = summed_error([(side.error**2, side.degrees) for side in (best, other)])
    return Difference(other.mid - best.mid, error, degrees)
