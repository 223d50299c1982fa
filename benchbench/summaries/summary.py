"""Summary of a run: the values that histories and comparisons of hardware use. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchbench.analyse.digest import CaseDigest, digest
from benchbench.analyse.metrics import METRICS, Metric, Rate
from benchbench.analyse.roofline import device_of
from benchbench.analyse.rows import case_key, probed_version_and_model, records_by_case, unranked_reason
from benchbench.model.case import Case, present_names
from benchbench.model.device import Machine
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo, Settings

SAMPLED = tuple(metric for metric in METRICS if not isinstance(metric.source, Rate))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a case besides its values. Runs with equal facts share one object."""

    digest: CaseDigest  # without values
    unranked: str  # why its speed is not ranked; empty if it is
    device: str
    threads: int  # 0 on an accelerator


@dataclass(frozen=True, slots=True)
class Values:
    """Metric of a case in one run: pooled unless the processes disagree, and of each process."""

    pooled: float | None
    processes: tuple[float | None, ...]

    @property
    def known(self) -> tuple[float, ...]:
        """Positive, finite process values, for a logarithmic scale."""
        return tuple(value for value in self.processes if value is not None and 0 < value < math.inf)


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """A case in one run, with values by metric. Rates are derived from them."""

    facts: Facts
    values: Mapping[str, Values]

    @property
    def digest(self) -> CaseDigest:
        """Digest of the case, with these values."""
        values = {name: values.processes for name, values in self.values.items()}
        return replace(self.facts.digest, values=values)

    def of(self, metric: Metric) -> Values | None:
        """Values of a metric, if the case has any."""
        source = metric.source
        if not isinstance(source, Rate):
            return self.values.get(metric.name)
        divisor, cost = self.of(source.divisor), self.facts.digest.cost
        if divisor is None or cost is None:
            return None
        return Values(
            source.compute(cost, divisor.pooled) or None,
            tuple(source.compute(cost, value) for value in divisor.processes),
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned case: the parts of its id that searches use."""

    id: str
    workload: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Machine and settings of a run. Runs with equal ones share one object."""

    machine: Machine
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Summary of a run. One side of an interleaved comparison (`is_half`) has no cases."""

    id: str
    started: str  # ISO 8601, UTC
    setup: Setup
    tags: Mapping[str, str] = field(default_factory=dict)
    machine_id: str = ""
    is_half: bool = False
    damaged: tuple[str, ...] = ()
    planned: tuple[Planned, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)  # former → present name of a workload
    cases: Mapping[str, CaseSummary]

    @property
    def machine(self) -> Machine:
        return self.setup.machine

    @property
    def settings(self) -> Settings:
        return self.setup.settings


def summarise(run: Run) -> RunSummary:
    """Summary of a run, with all its cases and metrics."""
    info = run.info
    is_half = info.partner is not None
    return RunSummary(
        id=info.id,
        started=info.started,
        setup=Setup(machine=info.machine, settings=info.settings),
        tags=info.tags,
        machine_id=info.machine_id,
        is_half=is_half,
        damaged=run.damaged,
        planned=tuple(Planned(case.id, case.workload, case.target) for case in info.plan),
        renamed=present_names(info.plan),
        cases={} if is_half else _cases(run),
    )


def summaries(runs: Iterable[Run | RunSummary]) -> Iterable[RunSummary]:
    """Summaries of the runs, computed one after the other."""
    return (run if isinstance(run, RunSummary) else summarise(run) for run in runs)


def _cases(run: Run) -> dict[str, CaseSummary]:
    recorded = records_by_case(run.records)
    planned = {case.id: case for case in run.info.plan}
    return {
        name: _case(run.info, planned[name], case_digest, recorded.get(case_key(planned[name]), ()))
        for name, case_digest in digest(run).cases.items()
        if name in planned and not case_digest.absent
    }


def _case(info: RunInfo, case: Case, case_digest: CaseDigest, records: Sequence[Record]) -> CaseSummary:
    model = records[0].device_model if records else probed_version_and_model(info, case)[1]
    device, threads = device_of(info, case, model)
    facts = Facts(
        digest=replace(case_digest, values={}, doubts=(), cycles=()),
        unranked=unranked_reason(case, model, records),
        device=device or case.device,
        threads=threads or 0,
    )
    values = {
        metric.name: _pooled(metric, case_digest.values[metric.name])
        for metric in SAMPLED
        if metric.name in case_digest.values
    }
    return CaseSummary(facts, values)


def _pooled(metric: Metric, processes: Sequence[float | None]) -> Values:
    """Values as floats, as the cache returns them: bytes are whole numbers."""
    values = Values(None, tuple([None if value is None else float(value) for value in processes]))
    pooled = metric.source.pool(values.known).value if values.known else None
    return replace(values, pooled=None if pooled is None else float(pooled))
