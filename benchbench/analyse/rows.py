"""Records to rows: one per case, every statistic derived from the raw samples. Pure: no file, no clock.

The end of the file has rows as a flat table for programs: JSON, CSV and pandas. Its columns follow from the
table of metrics, in SI base units. An absent value is None, and `notes` has why: `COLUMN: REASON`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from benchbench.analyse import pricing, roofline
from benchbench.analyse.metrics import FOREIGN, LATENCY, METRICS, Rate, Value, finite, values_of
from benchbench.analyse.pricing import CasePrice, Prices, priced
from benchbench.analyse.roofline import (
    Ceiling,
    Position,
    Roofs,
    case_roofs,
    ceiling_notes,
    device_of,
    implausible,
    interruption_notes,
    position,
)
from benchbench.machine.conditions import condition_notes, mean_notes, step_s, usual_mhz
from benchbench.model.case import Case, LeftOut, Scalar
from benchbench.model.measurement import AS_PLANNED, CONSUMER, OVERHEAD, SOURCE, Cost, Failure, Measurement
from benchbench.model.note import CONTENTION, UNRANKED, Note, NoteKind, note
from benchbench.model.own import kind_of_version
from benchbench.model.placement import ONE_DEVICE
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.stats import calm_prior, deviation, median, quantile, t_quantile

if TYPE_CHECKING:
    import pandas as pd

P99_SAMPLES = 662  # fewer say nothing about p99 at 99 % confidence (MLPerf loadgen, early_stopping.cc)
LEAST_SPREAD = 1e-4  # a standard deviation of logarithms: equal values must not make an interval certain
UNKNOWN = Value(None)
NOT_KEPT = "what rounding explains was not kept"
CaseKey = tuple[str, str]  # a suite and a case's id
MEASURED = (Status.OK, Status.UNVERIFIED)
NO_SPEED = (Status.WRONG_RESULT, Status.IMPLAUSIBLE)  # shown before any other failure of the same case
Share = Callable[[float, float, float], float]  # of the step, its source and its consumer: seconds
DISAGREEMENT = 0.2  # of the device's time, by which the host must be done launching before it

# FLOPs for each element that moves, below which memory limits a step wherever it runs: no device of the table
# of datasheets does fewer than 37 in the time of one (its ridge point: Williams et al. 2009, "Roofline").
FEW_FLOPS = 16


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
    `relative_error`: the worst, of failed rounds too; `error_of_allowed`: as a share of what rounding
    explains, where that was kept. `is_own`: it is a model of the user's, verified by itself;
    `own_kind`: of which kind. `shares`: by name, of `SHARES`, where a step has parts.
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
    error_of_allowed: Value = UNKNOWN
    is_own: bool = False
    own_kind: str = ""
    position: Position = field(default_factory=Position)
    price: CasePrice = field(default_factory=CasePrice)
    shares: Mapping[str, Value] = field(default_factory=dict)
    communication: Value = UNKNOWN
    idle: Value = UNKNOWN
    notes: tuple[Note, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the case was measured; it has a latency unless its processes disagree."""
        return self.status in MEASURED

    @property
    def contended(self) -> str:
        """What others took of the case's device meanwhile, where that shows; empty where nothing did."""
        return "; ".join(each.clause for each in self.notes if each.kind in CONTENTION)

    @property
    def warming_up(self) -> bool:
        """Whether every process was still warming up: no time of the case is of a settled step."""
        kept = [each.data for each in self.notes if each.kind is NoteKind.STILL_WARMING_UP]
        return any(data["count"] == data["rounds"] for data in kept)

    @property
    def doubts(self) -> tuple[str, ...]:
        """`contended`, `warming up`, both or neither: with one, its time decides nothing beside others."""
        marks = {"contended": bool(self.contended), "warming up": self.warming_up}
        return tuple(mark for mark, holds in marks.items() if holds)

    @property
    def moves_data(self) -> bool:
        """Whether its work is told in bytes: it counts no FLOPs, or too few for any device to be busy."""
        if self.cost is None or not self.cost.flops:
            return self.cost is not None
        size = self.case.dtype.storage.itemsize if self.case.dtype else 1
        return bool(self.cost.bytes) and self.cost.flops * size < FEW_FLOPS * self.cost.bytes

    @property
    def rate_metric(self) -> str:
        """The metric of its rate: bytes/s where it moves data, of a link where that is between devices."""
        if not self.moves_data:
            return "flops_per_s"
        return "bytes_per_s" if self.case.placement == ONE_DEVICE else "link_bytes_per_s"

    @property
    def item(self) -> str | None:
        """What the case makes or works on: `image`."""
        return self.cost.item if self.cost else None

    def metric(self, name: str) -> Value:
        """The value of a metric; it has none where the case has none."""
        return self.metrics.get(name, UNKNOWN)

    @property
    def unranked(self) -> bool:
        """Whether the case's speed says nothing beside others'; its notes say why."""
        return any(each.kind in UNRANKED for each in self.notes)

    @property
    def is_lossy(self) -> bool:
        """Whether its engine loses more precision than rounding does, as by int8."""
        return any(each.kind is NoteKind.LOSSY for each in self.notes)

    def value(self, name: str) -> float | None:
        """The value of a metric, in its unit."""
        return self.metric(name).value


def rows(
    run: Run,
    ceilings: Sequence[Ceiling] = (),
    prices: Prices | None = None,
    recorded: Mapping[CaseKey, Sequence[Record]] | None = None,
) -> list[Row]:
    """One row per planned case in plan order, then one per case left out.

    `ceilings`: what was measured on the run's machine, to show how close its cases come; `prices`: of an
    hour of its devices; `recorded`: the run's records by case, where somebody has them.
    """
    if recorded is None:
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
    if idle is None and not reason and communication is None:
        return row
    return replace(row, communication=Value(communication), idle=Value(idle), notes=tuple(notes))


def _left_out(info: RunInfo, left_out: LeftOut) -> Row:
    version, model = probed(info, left_out.case)
    return Row(
        case=left_out.case,
        status=left_out.status,
        message=left_out.reason,
        framework_version=version,
        device_name=model,
    )


def _planned(context: _Context, case: Case, records: Sequence[Record]) -> Row:
    """The row of a planned case; records in any order give the same row."""
    done = sorted(records, key=lambda record: record.round)
    measured = [record.outcome for record in done if isinstance(record.outcome, Measurement)]
    version, model = probed(context.info, case)
    if done:
        version, model = done[0].framework_version, done[0].device_model
    status, message = _ending(done)
    if status in MEASURED and (why := implausible(case, model, measured)):
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
        relative_error=_relative_error(done, "not verified" if status in MEASURED else ""),
        error_of_allowed=_error_of_allowed(done),
        is_own=any(isinstance(each.workload_version, str) for each in measured),
        own_kind=next(
            (kind_of_version(v) for v in (m.workload_version for m in measured) if isinstance(v, str)), ""
        ),
    )
    if not row.ok:
        return row
    made = _measured(context, row, measured, context.info.policy.rounds)
    return replace(made, notes=(*_part_notes(done), *made.notes))


def probed(info: RunInfo, case: Case) -> tuple[str | None, str | None]:
    """The framework's version and the device's model, as they were found before anything was measured."""
    for probe in info.probes:
        if probe.target.name == case.target:
            models = [device.model for device in probe.devices if device.name == case.device]
            return probe.version, models[0] if models else None
    return None, None


def why_unranked(case: Case, model: str | None, records: Sequence[Record]) -> str:
    """Why the speed of a planned case says nothing beside that of others; empty where it does.

    `model`: of its device. `records`: of the case. As its row says, and in a tenth of the time.
    """
    status, _ = _ending(sorted(records, key=lambda record: record.round))
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    if status not in MEASURED:
        return str(status)
    if implausible(case, model, measured):
        return str(Status.IMPLAUSIBLE)
    kinds = {each.kind for process in measured for each in process.notes}
    if kinds.intersection(UNRANKED):
        return "not ranked"
    verified = _relative_error(records, "").value is not None or NoteKind.SIMULATED in kinds
    return "" if verified else "not verified"


def _ending(records: Sequence[Record]) -> tuple[Status, str]:
    """How a case ended: ok if every finished round is; a round cut short counts as missing, not as failed."""
    finished = [record.outcome for record in records if record.outcome.status != Status.INTERRUPTED]
    failures = [outcome for outcome in finished if isinstance(outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in NO_SPEED)
        share = f" ({len(failures)} of {len(finished)} rounds)" if len(failures) < len(finished) else ""
        return first.status, first.message + share
    if finished:
        endings = [each.ending for each in finished if isinstance(each, Measurement)]
        return (Status.UNVERIFIED if Status.UNVERIFIED in endings else Status.OK), ""
    cut = [record.outcome.message for record in records if isinstance(record.outcome, Failure)]
    return Status.INTERRUPTED, cut[0] if cut else "the run ended before its turn"


def _relative_error(records: Sequence[Record], unverified: str) -> Value:
    errors = [record.outcome.relative_error for record in records]
    known = [error for error in errors if error is not None]
    return finite(max(known)) if known else Value(None, reason=unverified)


def _error_of_allowed(records: Sequence[Record]) -> Value:
    """The largest error as a share of what rounding explains, over the rounds that have both."""
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    shares = [
        each.relative_error / each.allowed_error
        for each in measured
        if each.relative_error is not None and each.allowed_error
    ]
    return finite(max(shares)) if shares else Value(None, reason=NOT_KEPT if measured else "")


def _measured(context: _Context, row: Row, measured: Sequence[Measurement], rounds: int) -> Row:
    """The row of a case that is ok, with its speed."""
    metrics = values_of(measured, context.info.policy.planned)
    latency_s = metrics["latency_s"].value
    where = _position(context, row, measured[0].cost, latency_s)
    device, _ = device_of(context.info, row.case, row.device_name)
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
            *mean_notes(measured),
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
    logs = {
        case_key(row.case): _logs(recorded[case_key(row.case)])
        for row in made
        if row.ok and row.metric(LATENCY.name).low is not None
    }
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


def _logs(records: Sequence[Record]) -> list[float]:
    outcomes = [record.outcome for record in sorted(records, key=lambda record: record.round)]
    return [math.log(step_s(each)) for each in outcomes if isinstance(each, Measurement)]


def _with_half_width(row: Row, half: float | None) -> Row:
    """The row with other intervals; `half`: of the interval of the latency's logarithm."""
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
    steps = sorted(chain.from_iterable(process.steps_s for process in measured))
    few = f"{len(steps)} samples, needs {P99_SAMPLES}"
    return Quantiles(
        min_s=steps[0],
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
            parts.setdefault(record.part, []).append(step_s(record.outcome))
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
    stops = [process.stop_reason for process in measured if process.stop_reason not in AS_PLANNED]
    if stops:
        stopped_by = " and ".join(sorted(set(stops)))
        notes.append(note(NoteKind.IMPRECISE, count=len(stops), rounds=count, stopped_by=stopped_by))
    return notes + list(dict.fromkeys(each for process in measured for each in process.notes))


def hidden(step: float, source: float, consumer: float) -> float:
    """How much of the shorter part the longer one hides: 1 where a step takes as long as the longer."""
    return _within((source + consumer - step) / min(source, consumer))


def waiting(step: float, _source: float, consumer: float) -> float:
    """How much of the step its consumer is not at work."""
    return _within(1 - consumer / step)


def share_of(measured: Sequence[Measurement], share: Share) -> Value:
    """The median of the processes; without a value, and a reason, where a step has no such parts."""
    known = [
        share(step_s(each), median(each.parts_s[SOURCE]), median(each.parts_s[CONSUMER]))
        for each in measured
        if each.parts_s.get(SOURCE) and each.parts_s.get(CONSUMER)
    ]
    return Value(median(known)) if known else Value(None)


SHARES: dict[str, Share] = {"hidden_share": hidden, "waiting_share": waiting}


def side_by_side_notes(shares: dict[str, Value]) -> list[Note]:
    """A note with the shares, where there are any."""
    found = {name: value.value for name, value in shares.items() if value.value is not None}
    if found.keys() != SHARES.keys():
        return []
    return [note(NoteKind.SIDE_BY_SIDE, hidden=found["hidden_share"], waiting=found["waiting_share"])]


def _within(share: float) -> float:
    """The share within its ends: beyond them it is noise."""
    return min(max(share, 0.0), 1.0)


def launch_notes(measured: Sequence[Measurement]) -> list[Note]:
    """Notes where the host or the timer set the time."""
    return [*_launch_bound(measured), *_timer(measured)]


def launching(measured: Measurement) -> float | None:
    """The time the host took to launch a block, as a share of the time from then to the device's end of it.

    The median of the first blocks of its batches: they find the device idle and its queue empty. None where
    the host's own clock timed the blocks.
    """
    shares = [batch.enqueue_s / batch.device_s for batch in measured.batches if batch.device_s > 0]
    return median(shares) if shares else None


def _launch_bound(measured: Sequence[Measurement]) -> list[Note]:
    """A note where the device waits for the host: it is not at least a fifth of a block behind it.

    Not of a process whose steps wait for the device: launching them sooner would not shorten them.
    """
    waiting = [any(each.kind is NoteKind.HOST_WAITS for each in process.notes) for process in measured]
    queued = (process for process, waits in zip(measured, waiting, strict=True) if not waits)
    shares = [share for process in queued if (share := launching(process)) is not None]
    bound = [share for share in shares if share > 1 - DISAGREEMENT]
    if not bound:
        return []
    return [note(NoteKind.LAUNCH_BOUND, share=median(bound), count=len(bound), rounds=len(measured))]


def _timer(measured: Sequence[Measurement]) -> list[Note]:
    """A note where blocks, which may not be longer than a step, are too short for their timer."""
    shares = [
        process.timer_cost_s / (process.iterations * process.median_step_s)
        for process in measured
        if process.timer_cost_s
    ]
    if not shares or median(shares) <= 1 / OVERHEAD:
        return []
    return [note(NoteKind.TIMER_COST, share=median(shares), limit=1 / OVERHEAD)]


_Cell = tuple[Any, str]  # a value, and why there is none where it is None
_Column = Callable[[Row], _Cell]


def params_text(params: Mapping[str, Scalar]) -> str:
    """Parameters as text, one word each: `m=64 n=64`."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in params.items())


def flatten(row: Row) -> dict[str, Any]:
    """The `COLUMNS` of a row. `notes`: what its reader must know, then why a column of it is empty."""
    cells = {name: column(row) for name, column in _COLUMNS.items()}
    absent = [f"{name}: {reason}" for name, (value, reason) in cells.items() if value is None and reason]
    notes = (*(note.text for note in row.notes), *absent)
    return {name: value for name, (value, _) in cells.items()} | {"notes": notes}


def number_of(row: Row, name: str) -> Value:
    """One of `NUMBERS`, in the unit that `unit_of` gives."""
    value, reason = _COLUMNS[name](row)
    return Value(value, reason=reason)


def unit_of(row: Row, name: str) -> str:
    """The unit of a number: `image/s` of `items_per_s`."""
    unit = UNITS.get(name, "").replace("item", row.item or "item")
    return unit.replace("currency", row.price.currency or "currency")


def data_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows with their `COLUMNS`, of objects: None stays None."""
    import pandas as pd

    return pd.DataFrame([flatten(row) for row in rows], columns=list(COLUMNS), dtype=object)


def _fact(of: Callable[[Row], Any]) -> _Column:
    """A column that is empty without a reason."""
    return lambda row: (of(row), "")


def _case_fact(of: Callable[[Row], Any]) -> _Column:
    """A column that nobody knows of a user's function."""
    return lambda row: (of(row) or None, FOREIGN if row.ok else "")


def _count(of: Callable[[Row], int]) -> _Column:
    """A column of what the work of a step counts."""

    def column(row: Row) -> _Cell:
        counted = row.cost and row.cost.counted
        return (of(row) if counted else None), FOREIGN if row.ok else ""

    return column


def _metric(name: str, row: Row) -> _Cell:
    value = row.metric(name)
    return value.value, value.reason


def _latency_end(end: str, row: Row) -> _Cell:
    value = row.metric("latency_s")
    return getattr(value, end), value.reason


def _quantile(name: str, row: Row) -> _Cell:
    return (getattr(row.steps, name) if row.steps else None), ""


def _p99(row: Row) -> _Cell:
    return (row.steps.p99_s.value, row.steps.p99_s.reason) if row.steps else (None, "")


def _position_cell(name: str, row: Row) -> _Cell:
    return getattr(row.position, name), row.position.reasons.get(name, "")


def _share(name: str, row: Row) -> _Cell:
    found = row.shares.get(name, UNKNOWN)
    return found.value, found.reason


def _price(name: str, row: Row) -> _Cell:
    return getattr(row.price, name), row.price.reason


_IDENTITY: Mapping[str, _Column] = {
    "case": _fact(lambda row: row.case.id),
    "suite": _fact(lambda row: row.case.suite),
    "workload": _fact(lambda row: row.case.workload),
    "params": _fact(lambda row: row.case.params),
    "dtype": _case_fact(lambda row: row.case.dtype and str(row.case.dtype)),
    "mode": _case_fact(lambda row: row.case.mode),
    "phase": _case_fact(lambda row: row.case.phase and str(row.case.phase)),
    "cache": _case_fact(lambda row: row.case.dtype and str(row.case.cache)),
    "backend": _fact(lambda row: row.case.backend),
    "target": _fact(lambda row: row.case.target),
    "framework_version": _fact(lambda row: row.framework_version),
    "device": _fact(lambda row: row.case.device),
    "device_name": _fact(lambda row: row.device_name),
    "status": _fact(lambda row: str(row.status)),
    "message": _fact(lambda row: row.message),
    "rounds": _fact(lambda row: row.rounds),
    "samples": _fact(lambda row: row.samples),
    "contended": _fact(lambda row: row.contended),
    "layout": _fact(lambda row: row.layout),
}
# Columns that are no metrics stand behind the one they belong to.
_BEHIND: Mapping[str, Mapping[str, _Column]] = {
    "latency_s": {
        "latency_low_s": partial(_latency_end, "low"),
        "latency_high_s": partial(_latency_end, "high"),
        "latency_min_s": partial(_quantile, "min_s"),
        "latency_p50_s": partial(_quantile, "p50_s"),
        "latency_p90_s": partial(_quantile, "p90_s"),
        "latency_p99_s": _p99,
    },
    "items_per_s": {
        "item": _fact(lambda row: row.item),
        "flops": _count(lambda row: row.cost.flops if row.cost else 0),
        "bytes": _count(lambda row: row.cost.bytes if row.cost else 0),
    },
    "bytes_per_s": {name: partial(_position_cell, name) for name in roofline.FIELDS},
    "entry_skew_s": {
        "communication_share": _fact(lambda row: row.communication.value),
        "idle_share": _fact(lambda row: row.idle.value),
    },
    "items_per_j": {name: partial(_share, name) for name in SHARES},
    "peak_host_bytes": {
        "relative_error": lambda row: (row.relative_error.value, row.relative_error.reason),
        "error_of_allowed": lambda row: (row.error_of_allowed.value, row.error_of_allowed.reason),
    },
}


def _columns() -> dict[str, _Column]:
    columns = dict(_IDENTITY)
    for metric in METRICS:
        columns |= {metric.name: partial(_metric, metric.name)} | dict(_BEHIND.get(metric.name, {}))
    return columns | {name: partial(_price, name) for name in pricing.FIELDS}


_COLUMNS = _columns()
UNITS: Mapping[str, str] = {
    **{metric.name: metric.unit for metric in METRICS},
    **dict.fromkeys(("latency_low_s", "latency_high_s", "latency_min_s"), "s"),
    **dict.fromkeys(("latency_p50_s", "latency_p90_s", "latency_p99_s"), "s"),
    "flops": "FLOP",
    "bytes": "B",
    "flops_per_byte": "FLOP/B",
    "attainable_flops_per_s": "FLOP/s",
    **dict.fromkeys(("flops_of_ceiling", "flops_of_datasheet"), "%"),
    **dict.fromkeys(("bytes_of_ceiling", "bytes_of_datasheet"), "%"),
    **dict.fromkeys((*SHARES, "communication_share", "idle_share"), "%"),
    "price_per_hour": "currency/h",
    "items_per_cost": "item/currency",
}  # of numbers; `item` and `currency` stand for the row's
COLUMNS = (*_COLUMNS, "notes")
_TEXTS = _IDENTITY.keys() - {"rounds", "samples"} | {"item", "bound", "roof", "currency", "notes"}
NUMBERS = tuple(name for name in COLUMNS if name not in _TEXTS)
