"""Records to rows: one per case, every statistic derived from the raw samples. Pure: no file, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchbench.analyse.launch_bound import launch_notes
from benchbench.analyse.metrics import FOREIGN, LATENCY, METRICS, Rate, Value, finite, steps_s
from benchbench.analyse.plausible import implausible, interruption_notes
from benchbench.analyse.pricing import CasePrice, Prices, priced
from benchbench.analyse.roofline import (
    Ceiling,
    Position,
    Roofs,
    case_roofs,
    ceiling_notes,
    device_of,
    position,
)
from benchbench.analyse.side_by_side import SHARES, share_of, side_by_side_notes
from benchbench.machine.conditions import condition_notes, usual_mhz
from benchbench.model.case import Case, LeftOut
from benchbench.model.measurement import Cost, Failure, Measurement
from benchbench.model.note import CONTENTION, Note, NoteKind, note
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.stats import calm_prior, deviation, median, quantile, t_quantile
from benchbench.timing.policy import rounds_of

P99_SAMPLES = 662  # fewer say nothing about p99 at 99 % confidence (MLPerf loadgen, early_stopping.cc)
LEAST_SPREAD = 1e-4  # a standard deviation of logarithms: equal values must not make an interval certain
UNKNOWN = Value(None)
CaseKey = tuple[str, str]  # a suite and a case's id
NO_SPEED = (Status.WRONG_RESULT, Status.IMPLAUSIBLE)  # shown before any other failure of the same case


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Seconds of a step, over the blocks of all processes. `p99_s` needs `P99_SAMPLES`."""

    min_s: float
    p50_s: float
    p90_s: float
    p99_s: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case of a run: what it is, how it ended, and what its rounds come to.

    `metrics`: by name, of all in `METRICS`; without any, as `steps`, `position` and `price`, where the case
    is not ok. `cost`: of a step, None where no round was measured. `layout`: of images in memory.
    `relative_error`: the worst, of failed rounds too. `shares`: by name, of `SHARES`, where a step has parts.
    `communication`: of a profiled step, the share in which something passed between devices; `idle`: of a
    pipeline's, in which a stage computed nothing. `rounds`: those measured; `samples`: their blocks.
    """

    case: Case
    status: Status
    message: str = ""
    framework_version: str | None = None
    device_name: str | None = None
    rounds: int = 0
    samples: int = 0
    cost: Cost | None = None
    layout: str = ""
    metrics: Mapping[str, Value] = field(default_factory=dict)
    steps: Quantiles | None = None
    relative_error: Value = UNKNOWN
    position: Position = field(default_factory=Position)
    price: CasePrice = field(default_factory=CasePrice)
    shares: Mapping[str, Value] = field(default_factory=dict)
    communication: Value = UNKNOWN
    idle: Value = UNKNOWN
    notes: tuple[Note, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it was measured; it has a latency unless its processes disagree."""
        return self.status is Status.OK

    @property
    def contended(self) -> str:
        """What others took of its device meanwhile, where that shows; empty where nothing did."""
        return "; ".join(each.clause for each in self.notes if each.kind in CONTENTION)

    @property
    def warming_up(self) -> bool:
        """Whether every process of it was still warming up: no time of it is of a settled step."""
        kept = [each.data for each in self.notes if each.kind is NoteKind.STILL_WARMING_UP]
        return any(data["count"] == data["rounds"] for data in kept)

    @property
    def doubts(self) -> tuple[str, ...]:
        """`contended`, `warming up`, both or neither: with one, its time decides nothing beside others."""
        marks = {"contended": bool(self.contended), "warming up": self.warming_up}
        return tuple(mark for mark, holds in marks.items() if holds)

    @property
    def item(self) -> str | None:
        """What it makes or works on: `image`."""
        return self.cost.item if self.cost else None

    def metric(self, name: str) -> Value:
        """Without a value where the case has none."""
        return self.metrics.get(name, UNKNOWN)

    @property
    def unranked(self) -> bool:
        """Whether its speed says nothing beside others'; its notes say why."""
        return any(each.kind in (NoteKind.UNRANKED, NoteKind.OVERSUBSCRIBED) for each in self.notes)

    def value(self, name: str) -> float | None:
        """Of a metric, in its unit."""
        return self.metric(name).value


def rows(run: Run, ceilings: Sequence[Ceiling] = (), prices: Prices | None = None) -> list[Row]:
    """One row per planned case in plan order, then one per case left out.

    `ceilings`: what was measured on the run's machine, to show how close its cases come; `prices`: of an
    hour of its devices.
    """
    recorded = by_case(run.records)
    context = _Context(run.info, usual_mhz(run.records), ceilings, prices)
    made = [_planned(context, case, recorded.get(case_key(case), [])) for case in run.info.plan]
    made = _with_shared_intervals(made, recorded, run.info.policy.planned)
    made += [_left_out(run.info, case) for case in run.info.left_out]
    return [_with_profile(row, run) for row in made]


def case_key(case: Case) -> CaseKey:
    """What tells the cases of a run apart: two suites may hold the same case."""
    return case.suite, case.id


def by_case(records: Iterable[Record]) -> dict[CaseKey, list[Record]]:
    """The records of each case, by `case_key`, in the order they were made."""
    recorded: dict[CaseKey, list[Record]] = {}
    for record in records:
        recorded.setdefault(case_key(record.case), []).append(record)
    return recorded


@dataclass(frozen=True, slots=True)
class _Context:
    """What a row needs of the run beside its records."""

    info: RunInfo
    usual_mhz: Mapping[str, float]
    ceilings: Sequence[Ceiling]
    prices: Prices | None


def _with_profile(row: Row, run: Run) -> Row:
    name, notes = row.case.id, list(row.notes)
    if (idle := run.idle.get(name)) is not None:
        notes.append(note(NoteKind.STAGES_IDLE, share=idle))
    if reason := run.unprofiled.get(name):
        notes.append(note(NoteKind.NOT_PROFILED, reason=reason))
    communication = run.communication.get(name)
    return replace(row, communication=Value(communication), idle=Value(idle), notes=tuple(notes))


def _left_out(info: RunInfo, left_out: LeftOut) -> Row:
    version, model = _probed(info, left_out.case)
    return Row(
        case=left_out.case,
        status=left_out.status,
        message=left_out.reason,
        framework_version=version,
        device_name=model,
    )


def _planned(context: _Context, case: Case, records: Sequence[Record]) -> Row:
    """Records in any order give the same row."""
    done = sorted(records, key=lambda record: record.round)
    measured = [record.outcome for record in done if isinstance(record.outcome, Measurement)]
    version, model = _probed(context.info, case)
    if done:
        version, model = done[0].framework_version, done[0].device_model
    status, message = _ending(done)
    if status is Status.OK and (why := implausible(case, model, measured)):
        status, message = Status.IMPLAUSIBLE, why
    row = Row(
        case=case,
        status=status,
        message=message,
        framework_version=version,
        device_name=model,
        rounds=len(measured),
        samples=sum(len(process.block_s) for process in measured),
        cost=measured[0].cost if measured else None,
        layout=measured[0].layout if measured else "",
        relative_error=_relative_error(done, "not verified" if status is Status.OK else ""),
    )
    if not row.ok:
        return row
    finished = [record.outcome for record in done if record.outcome.status != Status.INTERRUPTED]
    made = _measured(context, row, measured, rounds_of(context.info.policy, finished))
    return replace(made, notes=(*_part_notes(done), *made.notes))


def _probed(info: RunInfo, case: Case) -> tuple[str | None, str | None]:
    """The framework's version and the device's model."""
    for probe in info.probes:
        if probe.target.name == case.target:
            models = [device.model for device in probe.devices if device.name == case.device]
            return probe.version, models[0] if models else None
    return None, None


def _ending(records: Sequence[Record]) -> tuple[Status, str]:
    """ok only if every finished round is; a round cut short counts as missing, not as failed."""
    finished = [record.outcome for record in records if record.outcome.status != Status.INTERRUPTED]
    failures = [outcome for outcome in finished if isinstance(outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in NO_SPEED)
        share = f" ({len(failures)} of {len(finished)} rounds)" if len(failures) < len(finished) else ""
        return first.status, first.message + share
    if finished:
        return Status.OK, ""
    cut = [record.outcome.message for record in records if isinstance(record.outcome, Failure)]
    return Status.INTERRUPTED, cut[0] if cut else "the run ended before its turn"


def _relative_error(records: Sequence[Record], unverified: str) -> Value:
    errors = [record.outcome.relative_error for record in records]
    known = [error for error in errors if error is not None]
    return finite(max(known)) if known else Value(None, reason=unverified)


def _measured(context: _Context, row: Row, measured: Sequence[Measurement], rounds: int) -> Row:
    """`row` of a case that is ok, with its speed."""
    metrics = {metric.name: metric.of(measured, context.info.policy.planned) for metric in METRICS}
    latency_s = metrics["latency_s"].value
    where = _position(context, row, measured[0].cost, latency_s)
    device, _ = device_of(context.info, row.case.device, row.device_name)
    shares = {name: share_of(measured, share) for name, share in SHARES.items()}
    return replace(
        row,
        metrics=metrics,
        steps=None if latency_s is None else _quantiles(measured),
        position=where,
        price=priced(metrics["items_per_s"].value, device, context.prices, row.case.hardware_count),
        shares=shares,
        notes=(
            *_quality_notes(measured, rounds),
            *side_by_side_notes(shares),
            *launch_notes(measured),
            *interruption_notes(measured),
            *ceiling_notes(where),
            *condition_notes(measured, context.usual_mhz.get(row.case.device)),
        ),
    )


def _with_shared_intervals(
    made: Sequence[Row], recorded: Mapping[CaseKey, Sequence[Record]], planned: int | None
) -> list[Row]:
    """Rows whose latency, and the rates that follow from it, have intervals that all cases of the run tell.

    Three processes say little of their own variance, and thirty cases of three a lot of what is usual: each
    variance is shrunk to the others' (Smyth 2004). `planned`: how many processes tell it.
    """
    logs = {case_key(row.case): _logs(recorded[case_key(row.case)]) for row in made if _has_interval(row)}
    first = {key: own[:planned] for key, own in logs.items() if len(own[:planned]) > 1}
    if len(first) < 2:
        return list(made)
    spreads = {key: max(deviation(own), LEAST_SPREAD) ** 2 for key, own in first.items()}
    prior = calm_prior(list(spreads.values()), [len(own) - 1.0 for own in first.values()])
    halves = {}
    for key, own in first.items():
        variance, degrees = prior.shrunk(spreads[key], len(own) - 1.0)
        halves[key] = t_quantile(0.975, degrees) * math.sqrt(variance / len(logs[key]))
    return [_with_half_width(row, halves.get(case_key(row.case))) for row in made]


def _has_interval(row: Row) -> bool:
    return row.ok and row.metric(LATENCY.name).low is not None


def _logs(records: Sequence[Record]) -> list[float]:
    outcomes = [record.outcome for record in sorted(records, key=lambda record: record.round)]
    return [math.log(median(steps_s(each))) for each in outcomes if isinstance(each, Measurement)]


def _with_half_width(row: Row, half: float | None) -> Row:
    """`half`: of the interval of the latency's logarithm."""
    if half is None:
        return row
    changed = {
        metric.name: Value(found.value, found.value * math.exp(-half), found.value * math.exp(half))
        for metric in METRICS
        if metric is LATENCY or (isinstance(metric.source, Rate) and metric.source.divisor is LATENCY)
        if (found := row.metric(metric.name)).value is not None
    }
    return replace(row, metrics={**row.metrics, **changed})


def _quantiles(measured: Sequence[Measurement]) -> Quantiles:
    steps = [step for process in measured for step in steps_s(process)]
    few = f"{len(steps)} samples, needs {P99_SAMPLES}"
    return Quantiles(
        min_s=min(steps),
        p50_s=median(steps),
        p90_s=quantile(steps, 0.9),
        p99_s=Value(quantile(steps, 0.99)) if len(steps) >= P99_SAMPLES else Value(None, reason=few),
    )


def _position(context: _Context, row: Row, cost: Cost, step_s: float | None) -> Position:
    if row.case.dtype is None:
        unknown = Roofs(None, None, FOREIGN, FOREIGN)
        return position(cost, step_s, unknown, unknown)
    return position(cost, step_s, *case_roofs(context.info, row.case, row.device_name, context.ceilings))


def _part_notes(records: Sequence[Record]) -> list[Note]:
    """How far apart the parts of a run that was resumed are: the machine may have changed in between."""
    parts: dict[int, list[float]] = {}
    for record in records:
        if isinstance(record.outcome, Measurement):
            parts.setdefault(record.part, []).append(median(steps_s(record.outcome)))
    if len(parts) < 2:
        return []
    medians = [median(values) for values in parts.values()]
    return [note(NoteKind.RESUMED, parts=len(parts), times=max(medians) / min(medians))]


def _quality_notes(measured: Sequence[Measurement], rounds: int) -> list[Note]:
    """What a reader must know to trust the number."""
    count = len(measured)
    notes = [note(NoteKind.MISSING_ROUNDS, count=count, rounds=rounds)] if count < rounds else []
    unsteady = sum(not process.steady for process in measured)
    if unsteady:
        notes.append(note(NoteKind.STILL_WARMING_UP, count=unsteady, rounds=count))
    stops = [process.stop_reason for process in measured if process.stop_reason != "precision"]
    if stops:
        stopped_by = " and ".join(sorted(set(stops)))
        notes.append(note(NoteKind.IMPRECISE, count=len(stops), rounds=count, stopped_by=stopped_by))
    return notes + list(dict.fromkeys(each for process in measured for each in process.notes))
