"""Digest of a run: the values of its processes per case, small enough to commit. Pure.

It also finds mismatches, the differences that prevent a comparison of two runs or of a case in both:
hardware, settings, work, precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchbench.analyse.doubts import NO_DOUBT, Cycles, Doubt, Drift, TimedProcess, cycle_logs, doubt, drift
from benchbench.analyse.metrics import LATENCY, METRICS, Metric, Rate
from benchbench.analyse.roofline import implausible
from benchbench.analyse.rows import UNTRUSTED_STATUSES
from benchbench.format import count_of, share
from benchbench.machine.conditions import contended
from benchbench.machine.environment import same_hardware
from benchbench.model.case import Case, Scalar, Status
from benchbench.model.device import Machine
from benchbench.model.measurement import Cost, Failure, Measurement, ModelFacts
from benchbench.model.run import Partner, Policy, Record, Run, Settings
from benchbench.stats import mean

SCHEMA = 1  # version of a digest on disk; 1 is the first
STEADY_METRICS = tuple(
    metric.name for metric in METRICS if metric.source.needs_steady
)  # meaningless while a process warms up
CONTENDED_METRICS = tuple(metric.name for metric in METRICS if metric.unit != "B")  # change under contention
ONCE_PER_RUN = tuple(metric.name for metric in METRICS if metric.source.once_per_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDigest:
    """Digest of one case in one run. Without `rounds` the case failed or is absent, and the text says why.

    `values`: metric → a value for each of `rounds`, which are a process each; None if a process has none.
    """

    case: Case | None = None
    failure: str = ""  # status and message
    absent: str = ""  # reason why the case was not planned
    status: Status | None = None  # of a failed or absent case; None also in early baselines
    rounds: tuple[int, ...] = ()
    values: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    parts: tuple[int, ...] = ()  # of a resumed run: the part of each of `rounds`
    doubts: tuple[Doubt, ...] = ()  # for each of `rounds`, if the run is interleaved with another
    cycles: tuple[Cycles, ...] = ()  # likewise, for heats
    unsteady: int = 0  # number of processes that were still warming up when measured
    contended: str = ""  # use of its device by other programs
    stopped_by: tuple[str, ...] = ()
    cost: Cost | None = None
    workload_version: int | str = 1
    model: ModelFacts | None = None  # of a user's model
    timer: str = ""
    precision: dict[str, str] = field(default_factory=dict)
    version: str | None = None  # of the framework
    device_model: str = ""

    @property
    def incomparable(self) -> str:
        """Reason if the case was not measured because the arrays of the two sides differ; else empty."""
        return (
            self.absent.removeprefix(f"{Status.INCOMPARABLE}: ") if self.status is Status.INCOMPARABLE else ""
        )

    @property
    def skipped_for_partner(self) -> bool:
        """True if the case was skipped only because its counterpart could not be measured."""
        return self.status is Status.SKIPPED

    def logs(self, metric: Metric) -> list[float]:
        """Logarithm of each process's value."""
        return [log for _, log in self.logs_by_round(metric)]

    def planned_logs(self, metric: Metric, planned: int | None) -> list[float]:
        """Logarithms of the first `planned` rounds; of all rounds if these are fewer than two."""
        first = [log for number, log in self.logs_by_round(metric) if planned is None or number < planned]
        return first if len(first) > 1 else self.logs(metric)

    def logs_by_round(self, metric: Metric) -> list[tuple[int, float]]:
        """Round and logarithm of each process's value; empty if the processes disagree.

        Processes of heats are compared only within their heat, so they need not agree.
        """
        if self.disagreement(metric) and not any(self._cycles(metric)):
            return []
        values = zip(self.rounds, self.values_of(metric), strict=False)
        return [
            (number, math.log(value))
            for number, value in values
            if value is not None and 0 < value < math.inf
        ]

    def timed_processes(self, metric: Metric) -> dict[int, TimedProcess]:
        """Processes by round: the logarithm of the value, with the doubts that matter to this metric."""
        doubts = dict(zip(self.rounds, self.doubts, strict=False)) if metric.name in CONTENDED_METRICS else {}
        cycles = dict(zip(self.rounds, self._cycles(metric), strict=False))
        parts = dict(zip(self.rounds, self.parts, strict=False))
        return {
            number: TimedProcess(
                log, doubts.get(number, NO_DOUBT), cycles.get(number, {}), parts.get(number, 0)
            )
            for number, log in self.logs_by_round(metric)
        }

    def _cycles(self, metric: Metric) -> Iterable[Cycles]:
        """Cycles of each heat for the metric: the latency, or a rate that is divided by it."""
        if metric.name == LATENCY.name:
            return self.cycles
        if isinstance(metric.source, Rate) and metric.source.divisor.name == LATENCY.name:
            return [{at: (-log, disturbed) for at, (log, disturbed) in heat.items()} for heat in self.cycles]
        return ()

    def disagreement(self, metric: Metric) -> str:
        """Reason why the processes have no common value; empty if they agree or have no values."""
        if isinstance(metric.source, Rate):
            return self.disagreement(metric.source.divisor)
        values = [value for value in self.values_of(metric) if value is not None and 0 < value < math.inf]
        return metric.source.disagreement(values) if values else ""

    def disturbance(self, metric: Metric) -> str:
        """`contended: …`: use of the device by other programs, if it affects the metric."""
        return f"contended: {self.contended}" if self.contended and metric.name in CONTENDED_METRICS else ""

    def unsteadiness(self, metric: Metric) -> str:
        """Number of processes that were still warming up, if this affects the metric; else empty."""
        if not self.unsteady or metric.name not in STEADY_METRICS:
            return ""
        return f"still warming up when measured, in {count_of(self.unsteady, 'process')}"

    def part_difference(self, metric: Metric) -> float:
        """Largest difference between parts of a resumed run, as the logarithm of a ratio; 0 for one part."""
        values: dict[int, list[float]] = {}
        part_of = dict(zip(self.rounds, self.parts, strict=False))
        for number, log in self.logs_by_round(metric):
            values.setdefault(part_of.get(number, 0), []).append(log)
        means = [mean(logs) for logs in values.values()]
        return max(means) - min(means) if means else 0.0

    def values_of(self, metric: Metric) -> Sequence[float | None]:
        """Value of each process; empty if the case has none. Rates are derived."""
        if not isinstance(metric.source, Rate) or metric.name in self.values or self.cost is None:
            return self.values.get(metric.name, ())
        rate, cost = metric.source, self.cost
        return [rate.compute(cost, value) for value in self.values_of(rate.divisor)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Digest of a run. `frameworks`: target → version; `cases`: by id, in plan order, then those left out."""

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
    commit: str = ""  # of the run's checkout, from its tag
    variables: dict[str, str] | None = None  # environment variables for frameworks; None if unknown
    cases: dict[str, CaseDigest]

    @property
    def drift(self) -> Drift | None:
        """Drift of the latency over the rounds."""
        return drift(case.logs_by_round(LATENCY) for case in self.cases.values())


def with_partner_ids(ref: Digest, new: Digest) -> Digest:
    """The digest `ref`, interleaved with `new`, with its cases under their ids in `new`."""
    counterparts = new.partner.cases if new.partner else {}
    return replace(ref, cases={case: ref.cases[ref_case] for case, ref_case in counterparts.items()})


def digest(run: Run) -> Digest:
    """Digest of a run. A case in two of its suites has the processes of both."""
    info = run.info
    records: dict[str, list[Record]] = {case.id: [] for case in info.plan}
    cases = {case.id: case for case in info.plan}
    for record in run.records:
        name = record.case.id
        records.setdefault(name, []).append(record)
        cases.setdefault(name, record.case)
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
        commit=info.commit,
        variables=info.variables,
        cases={
            left_out.case.id: CaseDigest(
                case=left_out.case, absent=f"{left_out.status}: {left_out.reason}", status=left_out.status
            )
            for left_out in info.left_out
        }
        | {
            name: _case_digest(cases[name], case_records, doubted=info.partner is not None)
            for name, case_records in records.items()
        },
    )


def _case_digest(case: Case, records: Sequence[Record], *, doubted: bool) -> CaseDigest:
    """Digest of one case. An interrupted round counts as missing, and so do all rounds of a lost machine."""
    if any(record.outcome.status == Status.LOST for record in records):
        return CaseDigest(case=case)
    finished = [record for record in records if record.outcome.status != Status.INTERRUPTED]
    failures = [record.outcome for record in finished if isinstance(record.outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in UNTRUSTED_STATUSES)
        return CaseDigest(case=case, failure=f"{first.status}: {first.message}", status=first.status)
    measurements = [record.outcome for record in finished if isinstance(record.outcome, Measurement)]
    if not measurements:
        return CaseDigest(case=case)
    if reason := implausible(case, finished[0].device_model, measurements):
        failure = f"{Status.IMPLAUSIBLE}: {reason}"
        return CaseDigest(case=case, failure=failure, status=Status.IMPLAUSIBLE)
    return CaseDigest(
        case=case,
        rounds=tuple(record.round for record in finished),
        parts=tuple(record.part for record in finished) if any(record.part for record in finished) else (),
        values=_values(measurements),
        doubts=tuple(map(doubt, measurements)) if doubted else (),
        cycles=tuple(map(cycle_logs, measurements)) if doubted else (),
        unsteady=sum(not process.steady for process in measurements),
        contended="; ".join(note.clause for note in contended(measurements)),
        stopped_by=tuple(sorted({process.stop_reason for process in measurements})),
        cost=measurements[0].cost,
        workload_version=measurements[0].workload_version,
        model=measurements[0].model,
        timer=measurements[0].timer,
        precision=measurements[0].precision,
        version=finished[0].framework_version,
        device_model=finished[0].device_model,
    )


def work_digest(record: Record) -> CaseDigest:
    """Digest of the work of a measured record, without values."""
    measurements = record.outcome
    assert isinstance(measurements, Measurement)
    return CaseDigest(
        case=record.case,
        rounds=(record.round,),
        cost=measurements.cost,
        workload_version=measurements.workload_version,
        model=measurements.model,
    )


def _values(measurements: Sequence[Measurement]) -> dict[str, tuple[float | None, ...]]:
    """Values of each process, for metrics other than rates that at least one process has."""
    metrics = [metric for metric in METRICS if not isinstance(metric.source, Rate)]
    values = {
        metric.name: tuple(metric.source.process(process).value for process in measurements)
        for metric in metrics
    }
    return {
        name: processes for name, processes in values.items() if any(value is not None for value in processes)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Machine and settings of a run. Runs with equal ones share one object."""

    machine: Machine
    settings: Settings


def run_mismatches(ref: Digest | Setup, new: Digest | Setup) -> list[str]:
    """Differences in hardware and settings that prevent a comparison of two runs."""
    settings = attribute_changes(ref.settings, new.settings, ("threads", "allocator", "isolation"))
    if same_hardware(ref.machine, new.machine):
        return settings
    return (value_changes(_hardware(ref.machine), _hardware(new.machine)) or ["other hardware"]) + settings


def _hardware(machine: Machine) -> dict[str, object]:
    return {
        "CPU": machine.cpu,
        "cores": machine.cores,
        "usable threads": machine.threads,
        "GiB of memory": round(machine.memory_bytes / 2**30),
        "architecture": machine.architecture,
        "accelerators": machine.accelerators,
        "CPU quota": "none" if machine.cpu_quota is None else f"{machine.cpu_quota:g}",
    }


def case_mismatches(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """Differences that prevent a comparison of a case: device, work, clock, or measured precision."""
    if not (ref.rounds and new.rounds) or _conditions(ref) == _conditions(new):
        return []
    byte_counts = (
        [] if ref.model and new.model else attribute_changes(ref.cost, new.cost, ("bytes",), "counted ")
    )
    return [
        *attribute_changes(ref, new, ("device_model",)),
        *work_mismatches(ref, new),
        *byte_counts,
        *attribute_changes(ref, new, ("timer",)),
        *value_changes(ref.precision, new.precision),
    ]


def _conditions(side: CaseDigest) -> tuple[object, ...]:
    """Everything that `case_mismatches` compares: a fast check for the common case that nothing differs."""
    return side.device_model, side.workload_version, side.cost, side.model, side.timer, side.precision


def work_mismatches(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """Differences that prevent a comparison of two works, independent of what computes them.

    For a workload these are its version and counts; for a user's model only its inputs and outputs, since the
    comparison is to judge changes of its computation. FLOPs may differ if sizes do.
    """
    if not (ref.rounds and new.rounds):
        return []
    items = attribute_changes(ref.cost, new.cost, ("items", "item"), "counted ")
    if ref.model and new.model:
        return [*interface_mismatches(ref.model, new.model), *items]
    flops = (
        attribute_changes(ref.cost, new.cost, ("flops",), "counted ")
        if not changed_case_params(ref, new)
        else []
    )
    return [*attribute_changes(ref, new, ("workload_version",)), *flops, *items]


def interface_mismatches(ref: ModelFacts, new: ModelFacts) -> list[str]:
    """Differences between the inputs and outputs of two versions of a user's model, the first of each."""
    mismatches: list[str] = []
    for name in ("inputs", "outputs"):
        before, after = getattr(ref, name), getattr(new, name)
        if len(before) != len(after):
            mismatches.append(change_text(f"number of {name}", len(before), len(after)))
        elif changed := [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]:
            more_text = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            mismatches.append(change_text(name, *changed[0]) + more_text)
    return [*mismatches, *attribute_changes(ref, new, ("data",))]


def changed_case_params(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """Changed parameters of a case, such as defaults that a version changed."""
    return changed_params(ref.case.params, new.case.params) if ref.case and new.case else []


def changed_params(ref: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> list[str]:
    """Changed parameters, such as `depth 6 → 8`, `heads none → 4`."""
    names = dict.fromkeys([*ref, *new])
    return value_changes(*({name: side.get(name, "none") for name in names} for side in (ref, new)))


def work_change(ref: CaseDigest, new: CaseDigest) -> str:
    """Change of a case's work that does not prevent a comparison; empty without a change.

    `defaults differ: depth 6 → 8; the computation changed: FLOPs +33.3 %, parameters equal`.
    """
    if not (ref.rounds and new.rounds and ref.cost and new.cost):
        return ""
    sizes = changed_case_params(ref, new)
    parts = [f"defaults differ: {', '.join(sizes)}"] if sizes else []
    if ref.workload_version != new.workload_version or ref.cost.flops != new.cost.flops:
        counts = [relative_change("FLOPs", ref.cost.flops, new.cost.flops)]
        if ref.model and new.model:
            counts.append(relative_change("parameters", ref.model.parameters, new.model.parameters))
        parts.append(f"the computation changed: {', '.join(counts)}")
    return "; ".join(parts)


def relative_change(name: str, ref: int, new: int) -> str:
    """Relative change as text: `FLOPs +8.6 %`, `parameters equal`."""
    if ref == new:
        return f"{name} equal"
    return (
        f"{name} {'+' if new > ref else '−'}{share(abs(new - ref) / ref)}"
        if ref
        else change_text(name, ref, new)
    )


def change_text(name: str, ref: object, new: object) -> str:
    """Change as text: `torch 2.12.1 → 2.13.0`."""

    def text(value: object) -> str:
        return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)

    return f"{name} {text(ref)} → {text(new)}"


def attribute_changes(ref: object, new: object, names: Iterable[str], prefix: str = "") -> list[str]:
    """Changes of the attributes `names`, such as `threads 2 → 1`."""
    pairs = [(name, getattr(ref, name), getattr(new, name)) for name in names]
    return [change_text(prefix + name, a, b).replace("_", " ") for name, a, b in pairs if a != b]


def value_changes(ref: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Changes of the values of common keys; a newer version may report more keys."""
    return [change_text(name, ref[name], new[name]) for name in ref if name in new and ref[name] != new[name]]
