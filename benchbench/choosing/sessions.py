"""Stored runs → what each measured of a case, on which hardware and machine; or why it does not count.

And what several days and machines come to: a mean, and an error that knows how far these differ. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from benchbench.analyse.digest import CaseDigest
from benchbench.analyse.metrics import LATENCY, Metric
from benchbench.errors import UsageError, unknown
from benchbench.format import count_of
from benchbench.judging.pairs import MAX_PART_DIFFERENCE, MIN_PROCESSES
from benchbench.judging.sessions import MIN_SESSIONS, LogsByHour, days_of, hours_of
from benchbench.machine.peaks import several_devices
from benchbench.model.case import Cache, Case, last_names, present_id
from benchbench.model.placement import Strategy, suffix
from benchbench.model.run import Run
from benchbench.stats import Difference, deviation, mean, t_quantile
from benchbench.store.naming import start_time
from benchbench.summaries.summary import RunSummary, summaries

TAG = "machine"  # names the machine of a run, where nothing else is asked for
DIGITS = 8  # of a machine's id, enough to tell thousands apart
UNNAMED = "a machine without a name"
LEAST = 1e-4  # a standard deviation: equal values must not make every difference significant


@dataclass(frozen=True, slots=True, order=True)
class Hardware:
    """What can be bought or rented: a device by its own name, or several of them; of a CPU, also the threads
    that were used.
    """

    device: str
    threads: int = 0  # 0 of an accelerator
    count: int = 1  # of accelerators, or of the hosts whose CPUs compute

    @property
    def name(self) -> str:
        """The device in words: `AMD EPYC 7B13, 8 threads`."""
        return f"{self.device}, {count_of(self.threads, 'thread')}" if self.threads else self.device

    @property
    def label(self) -> str:
        """All devices in words: `8 × NVIDIA H100`; of one, its name."""
        return several_devices(self.count, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSession:
    """A case as one run measured it; `processes`: its digest."""

    case: Case
    device: Hardware  # one of the case's devices
    cpu: str  # of the machine
    machine: str  # its name: a tag's value, else its id
    run: str
    started: str
    processes: CaseDigest

    @property
    def hardware(self) -> Hardware:
        """The hardware of the case's devices."""
        return replace(self.device, count=self.case.hardware_count)

    @property
    def work(self) -> str:
        """What is computed, whoever computes it: `gemm(m=64,n=64,k=64)/float32/cold`.

        What passes between devices is other work with other numbers of them.
        """
        case = self.case
        passing = case.placement.strategy is Strategy.COLLECTIVE
        world = suffix(replace(case.placement, names=()), {}) if passing else ""
        return "/".join((case.work, *([case.cache] if case.cache is not Cache.HOT else []))) + world

    @property
    def configuration(self) -> str:
        """What computes it: `torch compile`, `torch eager [devices=2,strategy=data-parallel]`."""
        where = suffix(self.case.placement, self.case.environment, self.case.threads)
        return " ".join(filter(None, (self.case.target, self.case.mode, where)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`sessions`: what counts. `left_out`: why the rest does not → how many cases of how many runs."""

    sessions: tuple[CaseSession, ...]
    left_out: Mapping[str, int]


def evidence_of(
    runs: Iterable[Run | RunSummary], cases: Sequence[str] = (), by: str | None = None
) -> Evidence:
    """What the runs measured of each case on each hardware; halves of `compare --ab` do not count.

    `cases`: parts of ids, or patterns of whole ones; none means all. `by`: the tag that names machines.

    Of a case on one hardware the framework's version of the newest run counts, and of a work the workload's
    version of the newest run. Raises UsageError where no run has the tag.
    """
    seen: list[_Measured] = []
    tags: set[str] = set()
    renamed: dict[str, str] = {}
    for run in summaries(runs):
        if not run.is_half:
            tags |= run.tags.keys()
            renamed.update(run.renamed)
            seen.append(_measured(run, by or TAG))
    if by and seen and by not in tags:
        raise UsageError(f"No run has a tag {by!r}.", unknown("tags", by, sorted(tags)))
    seen.sort(key=lambda each: (each.begun, each.run))
    names, left_out, measured = last_names(renamed), Counter[str](), list[CaseSession]()
    for each in seen:
        own = {former: name for former, name in names.items() if name not in each.workloads}
        left_out.update(why for case, why in each.left_out if _is_wanted(present_id(case, own), cases))
        present = (_under(session, own) for session in each.sessions)
        measured += [session for session in present if _is_wanted(session.case.id, cases)]
    return Evidence(sessions=tuple(_newest(measured, left_out)), left_out=dict(left_out))


@dataclass(frozen=True, slots=True)
class _Measured:
    """What a run measured that counts, and why the rest does not: the part of it that is kept in memory."""

    begun: float  # Unix time
    run: str
    workloads: frozenset[str]
    sessions: tuple[CaseSession, ...]
    left_out: tuple[tuple[str, str], ...]  # a case's id, and why


def _is_wanted(case: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(part in case or fnmatchcase(case, part) for part in patterns)


def _under(session: CaseSession, names: Mapping[str, str]) -> CaseSession:
    """The session with its workload's present name."""
    if (present := names.get(session.case.workload)) is None:
        return session
    return replace(session, case=replace(session.case, workload=present))


def nested_days(sessions: Sequence[CaseSession], metric: Metric) -> list[LogsByHour]:
    """The logarithms of the processes' values, day by day of each machine, and in it hour by hour."""
    machines: dict[str, list[CaseSession]] = {}
    for session in sessions:
        if session.processes.logs(metric):
            machines.setdefault(session.machine, []).append(session)
    return [day for own in machines.values() for day in _days(own, metric)]


def _days(sessions: Sequence[CaseSession], metric: Metric) -> Iterator[LogsByHour]:
    started = [session.started for session in sessions]
    days: dict[int, dict[int, list[float]]] = {}
    for session, day, hour in zip(sessions, days_of(started), hours_of(started), strict=True):
        days.setdefault(day, {}).setdefault(hour, []).extend(session.processes.logs(metric))
    return (list(hours.values()) for hours in days.values())


def _measured(run: RunSummary, by: str) -> _Measured:
    left_out: list[tuple[str, str]] = []
    machine = run.tags.get(by) or run.machine_id[:DIGITS] or UNNAMED
    sessions = []
    for name, case in run.cases.items():
        hardware, found = Hardware(case.facts.device, case.facts.threads), case.digest
        if fault := _fault(case.facts.unranked, found):
            left_out.append((name, f"{fault}, on {hardware.label}"))
            continue
        assert found.case
        sessions.append(
            CaseSession(
                case=found.case,
                device=hardware,
                cpu=run.machine.cpu,
                machine=machine,
                run=run.id,
                started=run.started,
                processes=found,
            )
        )
    workloads = frozenset(case.workload for case in run.planned)
    return _Measured(start_time(run), run.id, workloads, tuple(sessions), tuple(left_out))


def _fault(unranked: str, processes: CaseDigest) -> str:
    """Why a case does not count; empty where it does."""
    if unranked:
        return unranked
    count = len(processes.logs(LATENCY))
    faults = {
        "contended": bool(processes.contended),
        "still warming up": processes.unsteady > 0,
        "processes disagree": bool(processes.disagreement(LATENCY)),
        "resumed, and its parts differ": processes.parts_apart(LATENCY) > math.log1p(MAX_PART_DIFFERENCE),
        f"fewer than {MIN_PROCESSES} processes": count < MIN_PROCESSES,
    }
    return next((name for name, holds in faults.items() if holds), "")


def _newest(sessions: Sequence[CaseSession], left_out: Counter[str]) -> Iterator[CaseSession]:
    """The sessions of the newest versions; `sessions` are oldest first."""
    versions = {(each.hardware, each.case.id): each.processes.version for each in sessions}
    works = {each.work: _counted(each) for each in sessions}
    for each in sessions:
        if _counted(each) != works[each.work]:
            left_out[f"another version of the workload {each.case.workload}"] += 1
        elif each.processes.version != (newest := versions[each.hardware, each.case.id]):
            older = f"{each.case.target} {each.processes.version}, not {newest}"
            left_out[f"{older}, on {each.hardware.label}"] += 1
        else:
            yield each


def _counted(session: CaseSession) -> tuple[object, ...]:
    cost = session.processes.cost
    assert cost
    return session.processes.workload_version, cost.flops, cost.items, cost.item


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanLog:
    """The mean of a logarithm over days, its standard error, and the degrees of freedom of t."""

    mid: float
    error: float
    degrees: float

    def plus(self, log: float) -> MeanLog:
        """The mean multiplied by what is known exactly."""
        return MeanLog(mid=self.mid + log, error=self.error, degrees=self.degrees)

    def half_width(self, confidence: float = 0.95) -> float:
        """Half the width of its t interval."""
        return t_quantile((1 + confidence) / 2, self.degrees) * self.error


def mean_log(days: Sequence[LogsByHour], assumed: float) -> MeanLog:
    """The mean over days, each the mean of its hours; they may be of several machines of one type.

    With fewer than `MIN_SESSIONS` days each missing one counts as differing by `assumed`, as in the gate
    (judging/sessions.py). Where the processes alone explain more, their error counts. Raises ValueError for
    none.
    """
    if not days:
        raise ValueError("no day")
    places = [mean([mean(hour) for hour in day]) for day in days]
    between = filled_variance(deviation(places) ** 2 if len(places) > 1 else 0.0, len(places) - 1, assumed)
    within, degrees = _within([hour for day in days for hour in day])
    own = within * sum(1 / sum(map(len, day)) for day in days) / len(days) ** 2
    square = max(between / len(days), LEAST**2)
    if own > square:
        return MeanLog(mid=mean(places), error=math.sqrt(own), degrees=degrees)
    return MeanLog(mid=mean(places), error=math.sqrt(square), degrees=max(len(days), MIN_SESSIONS) - 1)


def filled_variance(variance: float, degrees: float, assumed: float) -> float:
    """A variance known with some degrees of freedom, those missing to `MIN_SESSIONS` − 1 taken as assumed."""
    missing = max(MIN_SESSIONS - 1 - degrees, 0.0)
    return (degrees * variance + missing * assumed**2) / (degrees + missing)


def gap(best: MeanLog, other: MeanLog) -> Difference:
    """The difference other − best, of hardware whose days have nothing in common (Welch 1947)."""
    square = best.error**2 + other.error**2
    shares = (best.error**2 / square) ** 2 / best.degrees + (other.error**2 / square) ** 2 / other.degrees
    return Difference(other.mid - best.mid, math.sqrt(square), 1 / shares)


def _within(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The variance of processes within an hour, and its degrees of freedom."""
    several = [group for group in groups if len(group) > 1]
    degrees = sum(len(group) - 1 for group in several)
    squares = math.fsum((len(group) - 1) * deviation(group) ** 2 for group in several)
    return (squares / degrees if degrees else 0.0), degrees
