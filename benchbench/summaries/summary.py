"""A run reduced to what a history and a comparison of hardware need of it: thousands fit in memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchbench.analyse.digest import CaseDigest, digest
from benchbench.analyse.metrics import METRICS, Metric, Rate
from benchbench.analyse.roofline import device_of
from benchbench.analyse.rows import by_case, case_key, probed, why_unranked
from benchbench.model.case import Case, present_names
from benchbench.model.device import Machine
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo, Settings

Wanted = Callable[[str], bool]  # of a case's id
SAMPLED = tuple(metric for metric in METRICS if not isinstance(metric.source, Rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a case beside its values: equal in many runs, which then share it.

    `digest`: without values. `unranked`: why its speed says nothing beside that of others; empty where it
    does. `device`, `threads`: the hardware, 0 threads of an accelerator.
    """

    digest: CaseDigest
    unranked: str
    device: str
    threads: int


@dataclass(frozen=True, slots=True)
class Values:
    """A metric of a case in one run: of each process, and of all; None where they have none in common."""

    pooled: float | None
    processes: tuple[float | None, ...]

    @property
    def known(self) -> tuple[float, ...]:
        """Those of the processes that can stand on a logarithmic scale."""
        return tuple(value for value in self.processes if value is not None and 0 < value < math.inf)


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """A case in one run. `values`: by metric, of those that were asked for; rates follow from them."""

    facts: Facts
    values: Mapping[str, Values]

    @property
    def digest(self) -> CaseDigest:
        """The case as comparing knows it, of the values that are here."""
        return replace(self.facts.digest, values={name: each.processes for name, each in self.values.items()})

    def of(self, metric: Metric) -> Values | None:
        """The values of a metric; None where the case has none."""
        source = metric.source
        if not isinstance(source, Rate):
            return self.values.get(metric.name)
        divisor, cost = self.of(source.divisor), self.facts.digest.cost
        if divisor is None or cost is None:
            return None
        return Values(
            source.of(cost, divisor.pooled) or None,
            tuple(source.of(cost, value) for value in divisor.processes),
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """A case that was to be measured, by its id and what people look for it by."""

    id: str
    workload: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What holds for all cases of a run, and for many runs."""

    machine: Machine
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run. `is_half`: it is one side of an interleaved comparison, and has no cases here."""

    id: str
    started: str  # ISO 8601, UTC
    setup: Setup
    tags: Mapping[str, str] = field(default_factory=dict)
    machine_id: str = ""
    is_half: bool = False
    damaged: tuple[str, ...] = ()
    planned: tuple[Planned, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)  # a workload's former name → the one it has
    cases: Mapping[str, CaseSummary]

    @property
    def machine(self) -> Machine:
        """The machine that the run was measured on."""
        return self.setup.machine

    @property
    def settings(self) -> Settings:
        """How the run's workers were run."""
        return self.setup.settings


def summarise(run: Run) -> RunSummary:
    """The summary of a run, of all its cases and metrics."""
    info = run.info
    half = info.partner is not None
    return RunSummary(
        id=info.id,
        started=info.started,
        setup=Setup(machine=info.machine, settings=info.settings),
        tags=info.tags,
        machine_id=info.machine_id,
        is_half=half,
        damaged=run.damaged,
        planned=tuple(Planned(case.id, case.workload, case.target) for case in info.plan),
        renamed=present_names(info.plan),
        cases={} if half else _cases(run),
    )


def summaries(runs: Iterable[Run | RunSummary]) -> Iterable[RunSummary]:
    """The summary of each, one after the other."""
    return (each if isinstance(each, RunSummary) else summarise(each) for each in runs)


def needed(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """The metrics that values are kept of, which these follow from."""
    sources = (each.source.divisor if isinstance(each.source, Rate) else each for each in metrics)
    return tuple(dict.fromkeys(sources))


def _cases(run: Run) -> dict[str, CaseSummary]:
    recorded = by_case(run.records)
    planned = {case.id: case for case in run.info.plan}
    return {
        name: _case(run.info, planned[name], found, recorded.get(case_key(planned[name]), ()))
        for name, found in digest(run).cases.items()
        if name in planned and not found.absent
    }


def _case(info: RunInfo, case: Case, found: CaseDigest, records: Sequence[Record]) -> CaseSummary:
    model = records[0].device_model if records else probed(info, case)[1]
    device, threads = device_of(info, case, model)
    facts = Facts(
        digest=replace(found, values={}, doubts=()),
        unranked=why_unranked(case, model, records),
        device=device or case.device,
        threads=threads or 0,
    )
    kept = (metric for metric in SAMPLED if metric.name in found.values)
    return CaseSummary(facts, {metric.name: _pooled(metric, found.values[metric.name]) for metric in kept})


def _pooled(metric: Metric, processes: Sequence[float | None]) -> Values:
    """Also of whole numbers, such as bytes, as floats: the cache has no others."""
    values = Values(None, tuple([None if value is None else float(value) for value in processes]))
    pooled = metric.source.pool(values.known).value if values.known else None
    return replace(values, pooled=None if pooled is None else float(pooled))
