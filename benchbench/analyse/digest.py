"""A run reduced to what comparing needs, small enough to commit: per case its processes' values. Pure.

And what keeps two such runs, or a case in both, from being compared: hardware, settings, work, precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from benchbench.analyse.doubts import NONE, Cycles, Doubt, Timed, cycles_of, doubt
from benchbench.analyse.drift import Drift, drift
from benchbench.analyse.metrics import METRICS, Metric, Rate
from benchbench.analyse.roofline import implausible
from benchbench.analyse.rows import NO_SPEED
from benchbench.format import share
from benchbench.machine.conditions import contended
from benchbench.machine.environment import same_hardware
from benchbench.model.case import Case, Scalar, present_id, present_names
from benchbench.model.device import Machine
from benchbench.model.measurement import Cost, Failure, Measurement, ModelFacts
from benchbench.model.record import Record
from benchbench.model.run import Partner, Policy, Run, Settings
from benchbench.model.status import Status
from benchbench.stats import mean

SCHEMA = 1  # of a digest on disk. 1: first
LATENCY = "latency_s"
SETTLED = tuple(metric.name for metric in METRICS if metric.source.settled)  # mean nothing while warming up
DISTURBED = tuple(metric.name for metric in METRICS if metric.unit != "B")  # by others on the device
ONCE = tuple(metric.name for metric in METRICS if metric.source.once)  # have one value a run


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseDigest:
    """One case in one run; without `rounds` where the case failed or is absent, and the text says how.

    `values`: metric → a value for each of `rounds`, a process each, None where a process has none.
    """

    case: Case | None = None
    failure: str = ""  # the status and the message
    absent: str = ""  # why it was not planned
    status: Status | None = (
        None  # of what failed or was left out; None too in baselines of before it was kept
    )
    rounds: tuple[int, ...] = ()
    values: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    parts: tuple[int, ...] = ()  # of a run that was resumed: the part that each of `rounds` is of
    doubts: tuple[Doubt, ...] = ()  # of `rounds`, of a run that is interleaved with another
    cycles: tuple[Cycles, ...] = ()  # likewise, of heats
    unsteady: int = 0  # processes still warming up when measured
    contended: str = ""  # what others took of its device meanwhile, where that shows
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
        """Why the case was not measured, if the two sides take or give other arrays; else empty."""
        return (
            self.absent.removeprefix(f"{Status.INCOMPARABLE}: ") if self.status is Status.INCOMPARABLE else ""
        )

    @property
    def skipped_for_partner(self) -> bool:
        """Whether the case could have been measured, had its counterpart."""
        return self.status is Status.SKIPPED

    def logs(self, metric: Metric) -> list[float]:
        """The logarithm of each process's value."""
        return [log for _, log in self.by_round(metric)]

    def planned_logs(self, metric: Metric, planned: int | None) -> list[float]:
        """The logarithms of the first `planned` rounds; of all where these are too few to tell a spread."""
        first = [log for number, log in self.by_round(metric) if planned is None or number < planned]
        return first if len(first) > 1 else self.logs(metric)

    def by_round(self, metric: Metric) -> list[tuple[int, float]]:
        """The round of each process that has a value, and its logarithm; none where they disagree.

        Processes of heats are compared with those beside them, so they need not agree.
        """
        if self.disagreement(metric) and not any(self._cycles(metric)):
            return []
        values = zip(self.rounds, self.of(metric), strict=False)
        return [
            (number, math.log(value))
            for number, value in values
            if value is not None and 0 < value < math.inf
        ]

    def timed(self, metric: Metric) -> dict[int, Timed]:
        """The logarithm of each process's value by its round, with what speaks against it for this metric."""
        doubts = dict(zip(self.rounds, self.doubts, strict=False)) if metric.name in DISTURBED else {}
        cycles = dict(zip(self.rounds, self._cycles(metric), strict=False))
        parts = dict(zip(self.rounds, self.parts, strict=False))
        return {
            number: Timed(log, doubts.get(number, NONE), cycles.get(number, {}), parts.get(number, 0))
            for number, log in self.by_round(metric)
        }

    def _cycles(self, metric: Metric) -> Iterable[Cycles]:
        """The cycles of each heat, of the metric: of the latency, or of a rate that it divides."""
        if metric.name == LATENCY:
            return self.cycles
        if isinstance(metric.source, Rate) and metric.source.divisor.name == LATENCY:
            return [{at: (-log, disturbed) for at, (log, disturbed) in heat.items()} for heat in self.cycles]
        return ()

    def disagreement(self, metric: Metric) -> str:
        """Why the processes have no value in common; empty where they have one, or none at all."""
        if isinstance(metric.source, Rate):
            return self.disagreement(metric.source.divisor)
        known = [value for value in self.of(metric) if value is not None and 0 < value < math.inf]
        return metric.source.disagreement(known) if known else ""

    def disturbance(self, metric: Metric) -> str:
        """`contended: …`: what others took of the device meanwhile, where it matters to the metric."""
        return f"contended: {self.contended}" if self.contended and metric.name in DISTURBED else ""

    def parts_apart(self, metric: Metric) -> float:
        """How far apart the parts of a resumed run are, as the logarithm of a ratio; 0 of one part."""
        values: dict[int, list[float]] = {}
        part_of = dict(zip(self.rounds, self.parts, strict=False))
        for number, log in self.by_round(metric):
            values.setdefault(part_of.get(number, 0), []).append(log)
        means = [mean(each) for each in values.values()]
        return max(means) - min(means) if means else 0.0

    def of(self, metric: Metric) -> Sequence[float | None]:
        """The value of each process; empty where the case has none. Rates follow from what is kept."""
        if not isinstance(metric.source, Rate) or metric.name in self.values or self.cost is None:
            return self.values.get(metric.name, ())
        rate, cost = metric.source, self.cost
        return [rate.of(cost, value) for value in self.of(rate.divisor)]


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
    commit: str = ""  # of the checkout it was made in, as its tag says
    variables: dict[str, str] | None = None  # of the shell, for frameworks; None: not known
    cases: dict[str, CaseDigest]

    @property
    def drift(self) -> Drift | None:
        """A trend of the latency over the rounds."""
        return drift(case.by_round(METRICS[0]) for case in self.cases.values())


def partnered(ref: Digest, new: Digest) -> Digest:
    """The digest `ref`, interleaved with `new`, its cases by the ids they have there."""
    counterparts = new.partner.cases if new.partner else {}
    return replace(ref, cases={case: ref.cases[other] for case, other in counterparts.items()})


def digest(run: Run) -> Digest:
    """What comparing needs of `run`. A case that two suites of it share has the processes of both."""
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
            out.case.id: CaseDigest(case=out.case, absent=f"{out.status}: {out.reason}", status=out.status)
            for out in info.left_out
        }
        | {
            name: _of_case(cases[name], done, doubted=info.partner is not None)
            for name, done in records.items()
        },
    )


def _of_case(case: Case, records: Sequence[Record], *, doubted: bool) -> CaseDigest:
    """The digest of one case. A round cut short counts as missing, and so do all of a lost machine."""
    if any(record.outcome.status == Status.LOST for record in records):
        return CaseDigest(case=case)
    done = [record for record in records if record.outcome.status != Status.INTERRUPTED]
    failures = [record.outcome for record in done if isinstance(record.outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in NO_SPEED)
        return CaseDigest(case=case, failure=f"{first.status}: {first.message}", status=first.status)
    measured = [record.outcome for record in done if isinstance(record.outcome, Measurement)]
    if not measured:
        return CaseDigest(case=case)
    if why := implausible(case, done[0].device_model, measured):
        failure = f"{Status.IMPLAUSIBLE}: {why}"
        return CaseDigest(case=case, failure=failure, status=Status.IMPLAUSIBLE)
    return CaseDigest(
        case=case,
        rounds=tuple(record.round for record in done),
        parts=tuple(record.part for record in done) if any(record.part for record in done) else (),
        values=_values(measured),
        doubts=tuple(map(doubt, measured)) if doubted else (),
        cycles=tuple(map(cycles_of, measured)) if doubted else (),
        unsteady=sum(not process.steady for process in measured),
        contended="; ".join(note.clause for note in contended(measured)),
        stopped_by=tuple(sorted({process.stop_reason for process in measured})),
        cost=measured[0].cost,
        workload_version=measured[0].workload_version,
        model=measured[0].model,
        timer=measured[0].timer,
        precision=measured[0].precision,
        version=done[0].framework_version,
        device_model=done[0].device_model,
    )


def work_of(record: Record) -> CaseDigest:
    """The work of a measured record alone, without values."""
    measured = record.outcome
    assert isinstance(measured, Measurement)
    return CaseDigest(
        case=record.case,
        rounds=(record.round,),
        cost=measured.cost,
        workload_version=measured.workload_version,
        model=measured.model,
    )


def _values(measured: Sequence[Measurement]) -> dict[str, tuple[float | None, ...]]:
    """The values of each process: only of metrics that some process has a value of, and not of rates."""
    kept = [metric for metric in METRICS if not isinstance(metric.source, Rate)]
    values = {metric.name: tuple(metric.source.process(one).value for one in measured) for metric in kept}
    return {name: known for name, known in values.items() if any(value is not None for value in known)}


class Setup(Protocol):
    """What a run's head and its digest have in common."""

    @property
    def machine(self) -> Machine:
        """The machine that the run was measured on."""

    @property
    def settings(self) -> Settings:
        """How the run's workers were run."""


def run_mismatches(ref: Setup, new: Setup) -> list[str]:
    """What keeps two runs from being compared: their hardware and their settings."""
    settings = differing(ref.settings, new.settings, ("threads", "allocator", "isolation"))
    if same_hardware(ref.machine, new.machine):
        return settings
    return (unequal(_hardware(ref.machine), _hardware(new.machine)) or ["other hardware"]) + settings


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


def under_present_names(digests: Sequence[Digest]) -> list[Digest]:
    """The same runs; cases of a workload that any of them says was renamed have its present name.

    A run that has workloads of both names keeps them.
    """
    names = present_names(case.case for digest in digests for case in digest.cases.values())
    return [_renamed(digest, names) for digest in digests] if names else list(digests)


def _renamed(digest: Digest, names: Mapping[str, str]) -> Digest:
    own = {case.case.workload for case in digest.cases.values() if case.case}
    names = {former: present for former, present in names.items() if former in own and present not in own}
    cases = {}
    for name, found in digest.cases.items():
        case = found.case
        if case and case.workload in names:
            case = replace(case, workload=names[case.workload])
        cases[present_id(name, names)] = replace(found, case=case)
    return replace(digest, cases=cases)


def case_mismatches(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """What keeps a case from being compared: device, work, clock, or the precision that was read back."""
    if not (ref.rounds and new.rounds) or _conditions(ref) == _conditions(new):
        return []
    counted = [] if ref.model and new.model else differing(ref.cost, new.cost, ("bytes",), "counted ")
    return [
        *differing(ref, new, ("device_model",)),
        *work_mismatches(ref, new),
        *counted,
        *differing(ref, new, ("timer",)),
        *unequal(ref.precision, new.precision),
    ]


def _conditions(side: CaseDigest) -> tuple[object, ...]:
    """What keeps nothing from being compared where it is equal: the usual case, and quick to tell."""
    return side.device_model, side.workload_version, side.cost, side.model, side.timer, side.precision


def work_mismatches(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """What keeps two works from being compared, whatever computes them.

    Of a workload its definition and counts; of a user's model only its inputs and outputs, since a change of
    what it computes is what a comparison is to judge. FLOPs may differ where sizes do.
    """
    if not (ref.rounds and new.rounds):
        return []
    items = differing(ref.cost, new.cost, ("items", "item"), "counted ")
    if ref.model and new.model:
        return [*interface_mismatches(ref.model, new.model), *items]
    flops = differing(ref.cost, new.cost, ("flops",), "counted ") if not changed_sizes(ref, new) else []
    return [*differing(ref, new, ("workload_version",)), *flops, *items]


def interface_mismatches(ref: ModelFacts, new: ModelFacts) -> list[str]:
    """The inputs and outputs in which two versions of a user's model differ, of each the first."""
    bars: list[str] = []
    for name in ("inputs", "outputs"):
        before, after = getattr(ref, name), getattr(new, name)
        if len(before) != len(after):
            bars.append(arrow(f"number of {name}", len(before), len(after)))
        elif changed := [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]:
            more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
            bars.append(arrow(name, *changed[0]) + more)
    return [*bars, *differing(ref, new, ("data",))]


def changed_sizes(ref: CaseDigest, new: CaseDigest) -> list[str]:
    """The parameters whose values differ: those of defaults that a version has changed."""
    return changed_params(ref.case.params, new.case.params) if ref.case and new.case else []


def changed_params(ref: Mapping[str, Scalar], new: Mapping[str, Scalar]) -> list[str]:
    """The parameters whose values differ, as `depth 6 → 8`, `heads none → 4`."""
    names = dict.fromkeys([*ref, *new])
    return unequal(*({name: side.get(name, "none") for name in names} for side in (ref, new)))


def work_change(ref: CaseDigest, new: CaseDigest) -> str:
    """How the work of a case changed, where that bars no comparison; empty where it did not change.

    `defaults differ: depth 6 → 8; the computation changed: FLOPs +33.3 %, parameters equal`.
    """
    if not (ref.rounds and new.rounds and ref.cost and new.cost):
        return ""
    sizes = changed_sizes(ref, new)
    parts = [f"defaults differ: {', '.join(sizes)}"] if sizes else []
    if ref.workload_version != new.workload_version or ref.cost.flops != new.cost.flops:
        counts = [relative_change("FLOPs", ref.cost.flops, new.cost.flops)]
        if ref.model and new.model:
            counts.append(relative_change("parameters", ref.model.parameters, new.model.parameters))
        parts.append(f"the computation changed: {', '.join(counts)}")
    return "; ".join(parts)


def relative_change(name: str, ref: int, new: int) -> str:
    """`FLOPs +8.6 %`, `parameters equal`."""
    if ref == new:
        return f"{name} equal"
    return (
        f"{name} {'+' if new > ref else '−'}{share(abs(new - ref) / ref)}" if ref else arrow(name, ref, new)
    )


def arrow(name: str, ref: object, new: object) -> str:
    """A change as text: `torch 2.12.1 → 2.13.0`."""

    def text(value: object) -> str:
        return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)

    return f"{name} {text(ref)} → {text(new)}"


def differing(ref: object, new: object, names: Iterable[str], prefix: str = "") -> list[str]:
    """The attributes of `names` that differ, as `threads 2 → 1`."""
    pairs = [(name, getattr(ref, name), getattr(new, name)) for name in names]
    return [arrow(prefix + name, a, b).replace("_", " ") for name, a, b in pairs if a != b]


def unequal(ref: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """The values that differ, of keys in both: a newer version may report more."""
    return [arrow(name, ref[name], new[name]) for name in ref if name in new and ref[name] != new[name]]
