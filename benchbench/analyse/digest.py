"""A run reduced to what comparing needs, small enough to commit: per case its processes' values. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchbench.analyse.metrics import NO_SPEED, Metric, steps_s
from benchbench.analyse.plausible import implausible
from benchbench.machine.conditions import contended, energy_j
from benchbench.model.case import Case, LeftOut
from benchbench.model.device import Machine
from benchbench.model.measurement import Cost, Failure, Measurement
from benchbench.model.record import Record
from benchbench.model.run import Partner, Policy, Run, Settings
from benchbench.model.status import Status
from benchbench.stats import median

SCHEMA = 1  # of a digest on disk. 1: first
KEPT = (
    "latency_s",
    "cold_s",
    "peak_device_bytes",
    "peak_host_bytes",
    "energy_j",
)  # rates follow from latency
SETTLED = ("latency_s", "items_per_s", "flops_per_s", "bytes_per_s")  # mean nothing while warming up
ONCE = ("cold_s",)  # has one value a run, whatever the number of processes


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDigest:
    """One case in one run; without `rounds` where the case failed or is absent, and the text says how.

    `values`: metric → a value for each of `rounds`, a process each, None where a process has none.
    """

    case: Case | None = None
    failure: str = ""
    absent: str = ""
    rounds: tuple[int, ...] = ()
    values: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    unsteady: int = 0  # processes still warming up when measured
    contended: str = ""  # what others took of its device meanwhile, where that shows
    stopped_by: tuple[str, ...] = ()
    cost: Cost | None = None
    workload_version: int = 1
    timer: str = ""
    precision: dict[str, str] = field(default_factory=dict)
    version: str | None = None  # of the framework
    device_model: str = ""

    @property
    def skipped_for_partner(self) -> bool:
        """Whether it could have been measured, had its counterpart."""
        return self.absent.startswith(f"{Status.SKIPPED}: ")

    def logs(self, metric: Metric) -> list[float]:
        """The logarithm of each process's value."""
        return [log for _, log in self.by_round(metric)]

    def by_round(self, metric: Metric) -> list[tuple[int, float]]:
        """The round of each process that has a value, and its logarithm."""
        found = zip(self.rounds, self.of(metric.name), strict=False)
        return [
            (each, math.log(value)) for each, value in found if value is not None and 0 < value < math.inf
        ]

    def of(self, metric: str) -> Sequence[float | None]:
        """The value of each process; empty where the case has none."""
        if metric in self.values or self.cost is None:
            return self.values.get(metric, ())
        work, divisor = _rates(self.cost).get(metric, (0, ""))
        return [work / each if each else None for each in self.values.get(divisor, ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """`frameworks`: target → version; `cases`: by id, in plan order, then those left out."""

    schema: int = SCHEMA
    id: str
    started: str  # ISO 8601, UTC
    version: str
    machine: Machine
    settings: Settings
    policy: Policy
    frameworks: dict[str, str | None]
    damaged: tuple[str, ...] = ()
    partner: Partner | None = None
    cases: dict[str, CaseDigest]


def partnered(ref: Digest, new: Digest) -> Digest:
    """`ref`, measured in turn with `new`, its cases by the ids they have there."""
    counterparts = new.partner.cases if new.partner else {}
    return replace(ref, cases={case: ref.cases[other] for case, other in counterparts.items()})


def digest(run: Run) -> Digest:
    """What comparing needs of `run`. A case that two suites of it share has the processes of both."""
    info = run.info
    records: dict[str, list[Record]] = {case.id: [] for case in info.plan}
    cases = {case.id: case for case in info.plan}
    for record in run.records:
        records.setdefault(record.case.id, []).append(record)
        cases.setdefault(record.case.id, record.case)
    return Digest(
        id=info.id,
        started=info.started,
        version=info.version,
        machine=info.machine,
        settings=info.settings,
        policy=info.policy,
        frameworks={probe.target.name: probe.version for probe in info.probes},
        damaged=run.damaged,
        partner=info.partner,
        cases=_left_out(info.left_out) | {name: _side(cases[name], found) for name, found in records.items()},
    )


def _left_out(cases: Iterable[LeftOut]) -> dict[str, CaseDigest]:
    return {
        each.case.id: CaseDigest(case=each.case, absent=f"{each.status}: {each.reason}") for each in cases
    }


def _side(case: Case, records: Sequence[Record]) -> CaseDigest:
    """A round cut short counts as missing, not as failed."""
    done = [record for record in records if record.outcome.status != Status.INTERRUPTED]
    failures = [record.outcome for record in done if isinstance(record.outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in NO_SPEED)
        return CaseDigest(case=case, failure=f"{first.status}: {first.message}")
    measured = [record.outcome for record in done if isinstance(record.outcome, Measurement)]
    if not measured:
        return CaseDigest(case=case)
    if why := implausible(case, done[0].device_model, measured):
        return CaseDigest(case=case, failure=f"{Status.IMPLAUSIBLE}: {why}")
    return CaseDigest(
        case=case,
        rounds=tuple(record.round for record in done),
        values=_values(measured),
        unsteady=sum(not each.steady for each in measured),
        contended="; ".join(note.removeprefix("contended: ") for note in contended(measured)),
        stopped_by=tuple(sorted({each.stop_reason for each in measured})),
        cost=measured[0].cost,
        workload_version=measured[0].workload_version,
        timer=measured[0].timer,
        precision=measured[0].precision,
        version=done[0].framework_version,
        device_model=done[0].device_model,
    )


def _rates(cost: Cost) -> dict[str, tuple[int, str]]:
    """Metric → the work and what of it is divided by."""
    return {
        "items_per_s": (cost.items, "latency_s"),
        "flops_per_s": (cost.flops, "latency_s"),
        "bytes_per_s": (cost.bytes, "latency_s"),
        "items_per_j": (cost.items, "energy_j"),
    }


def _values(measured: Sequence[Measurement]) -> dict[str, tuple[float | None, ...]]:
    """Only metrics that some process has a value of."""
    processes = [_process(each) for each in measured]
    found = {name: tuple(values[name] for values in processes) for name in KEPT}
    return {name: values for name, values in found.items() if any(value is not None for value in values)}


def _process(measured: Measurement) -> dict[str, float | None]:
    """Of all of `KEPT`."""
    joules = energy_j(measured)
    return {
        "latency_s": median(steps_s(measured)),
        "energy_j": None if isinstance(joules, str) else joules,
        "cold_s": measured.cold_s if measured.compile_cache == "empty" else None,
        "peak_device_bytes": measured.peak_device.bytes,
        "peak_host_bytes": measured.peak_host.bytes,
    }
