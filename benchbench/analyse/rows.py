"""Rows of a run: one per case, with every statistic derived from the raw samples. Pure.

The end of the file has rows as a flat table for programs: JSON, CSV and pandas. Its columns follow from the
table of metrics, in SI base units. An absent value is None, and `notes` has the reason: `COLUMN: REASON`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from benchbench.analyse import pricing, roofline
from benchbench.analyse.metrics import LATENCY, METRICS, USER_FUNCTION, Rate, Value, finite, metric_values
from benchbench.analyse.pricing import CasePrice, Prices, case_price
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
from benchbench.machine.conditions import condition_notes, mean_notes, median_clocks_mhz, step_s
from benchbench.model.case import Case, LeftOut, Scalar, Status
from benchbench.model.measurement import AS_PLANNED, CONSUMER, OVERHEAD, SOURCE, Cost, Failure, Measurement
from benchbench.model.note import CONTENTION, UNRANKED, Note, NoteKind, note
from benchbench.model.placement import ONE_DEVICE
from benchbench.model.run import Record, Run, RunInfo
from benchbench.model.user_model import kind_of_version
from benchbench.stats import MIN_DEVIATION, deviation, median, quantile, robust_prior, t_quantile

if TYPE_CHECKING:
    import pandas as pd

P99_SAMPLES = 662  # needed for p99 at 99 % confidence (MLPerf loadgen, early_stopping.cc)
UNKNOWN = Value(None)
NO_ROUNDING_ERROR = "what rounding explains was not kept"
CaseKey = tuple[str, str]  # a suite and a case's id
MEASURED_STATUSES = (Status.OK, Status.UNVERIFIED)
UNTRUSTED_STATUSES = (
    Status.WRONG_RESULT,
    Status.IMPLAUSIBLE,
)  # reported before any other failure of a case
Share = Callable[[float, float, float], float]  # of the seconds of a step, its source and its consumer
MIN_LAUNCH_LEAD = 0.2  # share of the device's time by which the host must finish launching earlier

# FLOPs per moved element below which memory limits a step on any device. The smallest ridge point in the
# table of datasheets is 37 (Williams et al. 2009, "Roofline").
FEW_FLOPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles of a step in seconds, over the blocks of all processes. `p99_s` needs `P99_SAMPLES`."""

    min_s: float
    p50_s: float
    p90_s: float
    p99_s: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case of a run: its identity, its status and the statistics of its rounds.

    `metrics`: by name, all of `METRICS`. They are absent if the case is not ok, and so are `steps`,
    `position` and `price`. `cost`: of a step; None if no round was measured. `layout`: of images in memory.
    `relative_error`: the largest one, including failed rounds; `error_of_allowed`: as a share of the error
    that rounding explains, if that was stored. `is_user_model`: a user's model, verified against itself;
    `model_kind`: its kind, and `code`: Python code that runs it so. `shares`: by name of `SHARES`, if a step
    has parts. `communication`: share of a profiled step with communication between devices; `idle`: share in
    which a stage of a pipeline was idle. `rounds`: number of measured rounds; `samples`: number of their
    blocks.
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
    is_user_model: bool = False
    model_kind: str = ""
    code: str = ""
    position: Position = field(default_factory=Position)
    price: CasePrice = field(default_factory=CasePrice)
    shares: Mapping[str, Value] = field(default_factory=dict)
    communication: Value = UNKNOWN
    idle: Value = UNKNOWN
    notes: tuple[Note, ...] = ()

    @property
    def ok(self) -> bool:
        """True if the case was measured; it has a latency unless its processes disagree."""
        return self.status in MEASURED_STATUSES and not self.message  # a message is the reason of a failure

    @property
    def contended(self) -> str:
        """Use of the case's device by other programs meanwhile; empty if there was none."""
        return "; ".join(note.clause for note in self.notes if note.kind in CONTENTION)

    @property
    def is_warming_up(self) -> bool:
        """True if every process was still warming up, so that no time is of a settled step."""
        counts = [note.data for note in self.notes if note.kind is NoteKind.STILL_WARMING_UP]
        return any(data["count"] == data["rounds"] for data in counts)

    @property
    def doubts(self) -> tuple[str, ...]:
        """`contended`, `warming up`, both or none. With a doubt, the case's time decides no comparison."""
        marks = {"contended": bool(self.contended), "warming up": self.is_warming_up}
        return tuple(mark for mark, applies in marks.items() if applies)

    @property
    def is_memory_bound_work(self) -> bool:
        """True if throughput is reported in bytes/s: the work has no FLOPs, or too few to occupy a device."""
        if self.cost is None or not self.cost.flops:
            return self.cost is not None
        size = self.case.dtype.storage.itemsize if self.case.dtype else 1
        return bool(self.cost.bytes) and self.cost.flops * size < FEW_FLOPS * self.cost.bytes

    @property
    def rate_metric(self) -> str:
        """Name of the metric of the rate: FLOP/s or bytes/s; of a link, for work between devices."""
        if not self.is_memory_bound_work:
            return "flops_per_s"
        return "bytes_per_s" if self.case.placement == ONE_DEVICE else "link_bytes_per_s"

    @property
    def item(self) -> str | None:
        """Unit of the case's result or input: `image`."""
        return self.cost.item if self.cost else None

    def metric(self, name: str) -> Value:
        """Value of a metric; an empty one if the case has none."""
        return self.metrics.get(name, UNKNOWN)

    def share(self, name: str) -> Value:
        """One of `SHARES`; an empty value if a step has no parts."""
        return self.shares.get(name, UNKNOWN)

    @property
    def is_unranked(self) -> bool:
        """True if the case's speed is not comparable with others; its notes have the reason."""
        return any(note.kind in UNRANKED for note in self.notes)

    @property
    def is_lossy(self) -> bool:
        """True if its engine loses more precision than rounding, as with int8."""
        return any(note.kind is NoteKind.LOSSY for note in self.notes)

    def value(self, name: str) -> float | None:
        """Value of a metric in its unit, or None."""
        return self.metric(name).value


def rows(
    run: Run,
    ceilings: Sequence[Ceiling] = (),
    prices: Prices | None = None,
    recorded: Mapping[CaseKey, Sequence[Record]] | None = None,
) -> list[Row]:
    """Rows of a run: one per planned case in plan order, then one per case left out.

    `ceilings`: measured on the run's machine, for comparison; `prices`: per hour of its devices;
    `recorded`: the run's records by case, if they are already known.
    """
    if recorded is None:
        recorded = records_by_case(run.records)
    context = _Context(run.info, median_clocks_mhz(run.records), ceilings, prices)
    case_rows = [_planned_row(context, case, recorded.get(case_key(case), [])) for case in run.info.plan]
    case_rows = _moderate_intervals(case_rows, recorded, run.info.policy.planned)
    case_rows += [_left_out_row(run.info, case) for case in run.info.left_out]
    return [_with_profile(row, run) for row in case_rows]


def case_key(case: Case) -> CaseKey:
    """Key of a case within a run: two suites may contain the same case."""
    return case.suite, case.id


def records_by_case(records: Iterable[Record]) -> dict[CaseKey, list[Record]]:
    """Records of each case, by `case_key`, in order."""
    recorded: dict[CaseKey, list[Record]] = {}
    for record in records:
        recorded.setdefault(case_key(record.case), []).append(record)
    return recorded


@dataclass(frozen=True, slots=True)
class _Context:
    """Information on the run that all rows need."""

    info: RunInfo
    median_clocks_mhz: Mapping[str, float]
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


def _left_out_row(info: RunInfo, left_out: LeftOut) -> Row:
    version, model = probed_version_and_model(info, left_out.case)
    return Row(
        case=left_out.case,
        status=left_out.status,
        message=left_out.reason,
        framework_version=version,
        device_name=model,
    )


def _planned_row(context: _Context, case: Case, records: Sequence[Record]) -> Row:
    """Row of a planned case, independent of the order of its records."""
    finished = sorted(records, key=lambda record: record.round)
    measurements = [record.outcome for record in finished if isinstance(record.outcome, Measurement)]
    version, model = probed_version_and_model(context.info, case)
    if finished:
        version, model = finished[0].framework_version, finished[0].device_model
    status, message = _status(finished)
    is_measured = status in MEASURED_STATUSES and not message
    if is_measured and (reason := implausible(case, model, measurements)):
        status, message = Status.IMPLAUSIBLE, reason
    versions = [process.workload_version for process in measurements]
    row = Row(
        case=case,
        status=status,
        message=message,
        framework_version=version,
        device_name=model,
        rounds=len(measurements),
        samples=sum(len(process.block_s) for process in measurements),
        cost=measurements[0].cost if measurements else None,
        layout=measurements[0].layout if measurements else "",
        relative_error=_relative_error(finished, "not verified" if status in MEASURED_STATUSES else ""),
        error_of_allowed=_error_of_allowed(finished),
        is_user_model=any(isinstance(version, str) for version in versions),
        model_kind=next((kind_of_version(version) for version in versions if isinstance(version, str)), ""),
        code=next((process.model.code for process in measurements if process.model), ""),
    )
    if not row.ok:
        return row
    measured_row = _measured_row(context, row, measurements)
    return replace(measured_row, notes=(*_part_notes(finished), *measured_row.notes))


def probed_version_and_model(info: RunInfo, case: Case) -> tuple[str | None, str | None]:
    """Framework version and device model, as found before the measurement."""
    for probe in info.probes:
        if probe.target.name == case.target:
            models = [device.model for device in probe.devices if device.name == case.device]
            return probe.version, models[0] if models else None
    return None, None


def unranked_reason(case: Case, model: str | None, records: Sequence[Record]) -> str:
    """Reason why the speed of a planned case is not comparable with others; empty if it is.

    `model`: of its device. `records`: of the case. The row has the same reason, but takes ten times as long.
    """
    status, _ = _status(sorted(records, key=lambda record: record.round))
    measurements = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    if status not in MEASURED_STATUSES:
        return str(status)
    if implausible(case, model, measurements):
        return str(Status.IMPLAUSIBLE)
    kinds = {note.kind for process in measurements for note in process.notes}
    if kinds.intersection(UNRANKED):
        return "not ranked"
    verified = _relative_error(records, "").value is not None or NoteKind.SIMULATED in kinds
    return "" if verified else "not verified"


def _status(records: Sequence[Record]) -> tuple[Status, str]:
    """Status and message of a case: ok if every finished round is. An interrupted round counts as missing."""
    finished = [record.outcome for record in records if record.outcome.status != Status.INTERRUPTED]
    failures = [outcome for outcome in finished if isinstance(outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in UNTRUSTED_STATUSES)
        share = f" ({len(failures)} of {len(finished)} rounds)" if len(failures) < len(finished) else ""
        return first.status, first.message + share
    if finished:
        endings = [outcome.ending for outcome in finished if isinstance(outcome, Measurement)]
        return (Status.UNVERIFIED if Status.UNVERIFIED in endings else Status.OK), ""
    messages = [record.outcome.message for record in records if isinstance(record.outcome, Failure)]
    return Status.INTERRUPTED, messages[0] if messages else "the run ended before its turn"


def _relative_error(records: Sequence[Record], unverified: str) -> Value:
    all_errors = [record.outcome.relative_error for record in records]
    errors = [error for error in all_errors if error is not None]
    return finite(max(errors)) if errors else Value(None, reason=unverified)


def _error_of_allowed(records: Sequence[Record]) -> Value:
    """Largest error as a share of what rounding explains, over the rounds that have both."""
    measurements = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    shares = [
        process.relative_error / process.allowed_error
        for process in measurements
        if process.relative_error is not None and process.allowed_error
    ]
    return finite(max(shares)) if shares else Value(None, reason=NO_ROUNDING_ERROR if measurements else "")


def _measured_row(context: _Context, row: Row, measurements: Sequence[Measurement]) -> Row:
    """Row of a case that is ok, with its speed."""
    metrics = metric_values(measurements, context.info.policy.planned)
    latency_s = metrics["latency_s"].value
    case_position = _position(context, row, measurements[0].cost, latency_s)
    device, _ = device_of(context.info, row.case, row.device_name)
    shares = {name: median_share(measurements, share) for name, share in SHARES.items()}
    return replace(
        row,
        metrics=metrics,
        steps=None if latency_s is None else _quantiles(measurements),
        position=case_position,
        price=case_price(metrics["items_per_s"].value, device, context.prices, row.case.hardware_count),
        shares=shares,
        notes=(
            *_quality_notes(measurements, context.info.policy.rounds),
            *side_by_side_notes(shares),
            *launch_notes(measurements),
            *interruption_notes(measurements),
            *mean_notes(measurements),
            *ceiling_notes(case_position),
            *condition_notes(measurements, context.median_clocks_mhz.get(row.case.device)),
        ),
    )


def _moderate_intervals(
    case_rows: Sequence[Row], recorded: Mapping[CaseKey, Sequence[Record]], planned: int | None
) -> list[Row]:
    """Rows whose intervals of latency, and of rates derived from it, use variances moderated over all cases.

    Three processes say little about their variance, but thirty cases with three each say much about a
    typical variance, so each is moderated (Smyth 2004). `planned`: number of first processes that determine
    the spread.
    """
    logs = {
        case_key(row.case): _logs(recorded[case_key(row.case)])
        for row in case_rows
        if row.ok and row.metric(LATENCY.name).low is not None
    }
    planned_logs = {
        key: case_logs[:planned] for key, case_logs in logs.items() if len(case_logs[:planned]) > 1
    }
    if len(planned_logs) < 2:
        return list(case_rows)
    variances = {
        key: max(deviation(case_logs), MIN_DEVIATION) ** 2 for key, case_logs in planned_logs.items()
    }
    prior = robust_prior(
        list(variances.values()), [len(case_logs) - 1.0 for case_logs in planned_logs.values()]
    )
    half_widths = {}
    for key, case_logs in planned_logs.items():
        variance, degrees = prior.moderate(variances[key], len(case_logs) - 1.0)
        half_widths[key] = t_quantile(0.975, degrees) * math.sqrt(variance / len(logs[key]))
    return [_with_half_width(row, half_widths.get(case_key(row.case))) for row in case_rows]


def _logs(records: Sequence[Record]) -> list[float]:
    outcomes = [record.outcome for record in sorted(records, key=lambda record: record.round)]
    return [math.log(step_s(outcome)) for outcome in outcomes if isinstance(outcome, Measurement)]


def _with_half_width(row: Row, half_width: float | None) -> Row:
    """The row with new intervals; `half_width`: of the interval of the latency's logarithm."""
    if half_width is None:
        return row
    moderated = {
        metric.name: Value(
            value.value, value.value * math.exp(-half_width), value.value * math.exp(half_width)
        )
        for metric in METRICS
        if metric is LATENCY or (isinstance(metric.source, Rate) and metric.source.divisor is LATENCY)
        if (value := row.metric(metric.name)).value is not None
    }
    return replace(row, metrics={**row.metrics, **moderated})


def _quantiles(measurements: Sequence[Measurement]) -> Quantiles:
    steps = sorted(chain.from_iterable(process.steps_s for process in measurements))
    reason = f"{len(steps)} samples, needs {P99_SAMPLES}"
    return Quantiles(
        min_s=steps[0],
        p50_s=median(steps),
        p90_s=quantile(steps, 0.9),
        p99_s=Value(quantile(steps, 0.99)) if len(steps) >= P99_SAMPLES else Value(None, reason=reason),
    )


def _position(context: _Context, row: Row, cost: Cost, step_s: float | None) -> Position:
    if row.case.dtype is None:
        unknown_roofs = Roofs(None, None, USER_FUNCTION, USER_FUNCTION)
        return position(cost, step_s, unknown_roofs, unknown_roofs)
    return position(cost, step_s, *case_roofs(context.info, row.case, row.device_name, context.ceilings))


def _part_notes(records: Sequence[Record]) -> list[Note]:
    """Note on the ratio between the parts of a resumed run: the machine may have changed in between."""
    parts: dict[int, list[float]] = {}
    for record in records:
        if isinstance(record.outcome, Measurement):
            parts.setdefault(record.part, []).append(step_s(record.outcome))
    if len(parts) < 2:
        return []
    medians = [median(values) for values in parts.values()]
    return [note(NoteKind.RESUMED, parts=len(parts), times=max(medians) / min(medians))]


def _quality_notes(measurements: Sequence[Measurement], rounds: int) -> list[Note]:
    """Notes on missing rounds, warming up and imprecision, followed by the processes' own notes."""
    count = len(measurements)
    notes = [note(NoteKind.MISSING_ROUNDS, count=count, rounds=rounds)] if count < rounds else []
    unsteady = sum(not process.steady for process in measurements)
    if unsteady:
        notes.append(note(NoteKind.STILL_WARMING_UP, count=unsteady, rounds=count))
    stops = [process.stop_reason for process in measurements if process.stop_reason not in AS_PLANNED]
    if stops:
        stopped_by = " and ".join(sorted(set(stops)))
        notes.append(note(NoteKind.IMPRECISE, count=len(stops), rounds=count, stopped_by=stopped_by))
    return notes + list(
        dict.fromkeys(process_note for process in measurements for process_note in process.notes)
    )


def hidden_share(step: float, source: float, consumer: float) -> float:
    """Share of the shorter part that the longer part hides: 1 if a step takes as long as the longer part."""
    return _clamp_share((source + consumer - step) / min(source, consumer))


def waiting_share(step: float, _source: float, consumer: float) -> float:
    """Share of the step during which its consumer does not work."""
    return _clamp_share(1 - consumer / step)


def median_share(measurements: Sequence[Measurement], share: Share) -> Value:
    """Median share over the processes; without a value if a step has no such parts."""
    shares = [
        share(step_s(process), median(process.parts_s[SOURCE]), median(process.parts_s[CONSUMER]))
        for process in measurements
        if process.parts_s.get(SOURCE) and process.parts_s.get(CONSUMER)
    ]
    return Value(median(shares)) if shares else Value(None)


SHARES: dict[str, Share] = {"hidden_share": hidden_share, "waiting_share": waiting_share}


def side_by_side_notes(shares: dict[str, Value]) -> list[Note]:
    """Note with the shares, if there are any."""
    known_shares = {name: value.value for name, value in shares.items() if value.value is not None}
    if known_shares.keys() != SHARES.keys():
        return []
    return [
        note(
            NoteKind.SIDE_BY_SIDE, hidden=known_shares["hidden_share"], waiting=known_shares["waiting_share"]
        )
    ]


def _clamp_share(share: float) -> float:
    """The share limited to 0 … 1; values outside are noise."""
    return min(max(share, 0.0), 1.0)


def launch_notes(measurements: Sequence[Measurement]) -> list[Note]:
    """Notes if the host or the timer determines the time."""
    return [*_launch_bound_notes(measurements), *_timer_notes(measurements)]


def launch_share(measurement: Measurement) -> float | None:
    """Time for launching a block as a share of the time from the launch to its end on the device.

    The median of the first blocks of the batches, which find the device idle and its queue empty. None if the
    host's own clock timed the blocks.
    """
    shares = [batch.enqueue_s / batch.device_s for batch in measurement.batches if batch.device_s > 0]
    return median(shares) if shares else None


def _launch_bound_notes(measurements: Sequence[Measurement]) -> list[Note]:
    """Note if the device waits for the host, which leads by less than `MIN_LAUNCH_LEAD`.

    Processes whose steps wait for the device do not count: faster launching would not shorten them.
    """
    has_waits = [
        any(process_note.kind is NoteKind.HOST_WAITS for process_note in process.notes)
        for process in measurements
    ]
    queued = (process for process, waits in zip(measurements, has_waits, strict=True) if not waits)
    shares = [share for process in queued if (share := launch_share(process)) is not None]
    bound = [share for share in shares if share > 1 - MIN_LAUNCH_LEAD]
    if not bound:
        return []
    return [note(NoteKind.LAUNCH_BOUND, share=median(bound), count=len(bound), rounds=len(measurements))]


def _timer_notes(measurements: Sequence[Measurement]) -> list[Note]:
    """Note if blocks, which may not be longer than a step, are too short for their timer."""
    shares = [
        process.timer_cost_s / (process.iterations * process.median_step_s)
        for process in measurements
        if process.timer_cost_s
    ]
    if not shares or median(shares) <= 1 / OVERHEAD:
        return []
    return [note(NoteKind.TIMER_COST, share=median(shares), limit=1 / OVERHEAD)]


_Column = Callable[[Row], Any]  # a plain value, or a `Value` with the reason if it is absent


def params_text(params: Mapping[str, Scalar]) -> str:
    """Parameters as text, one word each: `m=64 n=64`."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in params.items())


def flatten(row: Row) -> dict[str, Any]:
    """`COLUMNS` of a row. `notes`: the row's notes, then the reasons for empty columns."""
    cells = {name: column(row) for name, column in _COLUMNS.items()}
    values = {name: cell.value if isinstance(cell, Value) else cell for name, cell in cells.items()}
    reasons = {name: cell.reason for name, cell in cells.items() if isinstance(cell, Value)}
    absent = [f"{name}: {reason}" for name, reason in reasons.items() if values[name] is None and reason]
    return values | {"notes": (*(note.text for note in row.notes), *absent)}


def number_of(row: Row, name: str) -> Value:
    """One of `NUMBERS`, in the unit of `unit_of`."""
    cell = _COLUMNS[name](row)
    return Value(cell.value, reason=cell.reason) if isinstance(cell, Value) else Value(cell)


def unit_of(row: Row, name: str) -> str:
    """Unit of a number: `image/s` for `items_per_s`."""
    unit = UNITS.get(name, "").replace("item", row.item or "item")
    return unit.replace("currency", row.price.currency or "currency")


def data_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows with their `COLUMNS`, as objects: None stays None."""
    import pandas as pd

    return pd.DataFrame([flatten(row) for row in rows], columns=list(COLUMNS), dtype=object)


def _unknown(row: Row) -> Value:
    """The reason why a fact about the work is absent: it is a user's function."""
    return Value(None, reason=USER_FUNCTION if row.ok else "")


def _count(name: str, row: Row) -> int | Value:
    """Counted work of a step."""
    counts: int = getattr(row.cost, name, 0)
    return counts if row.cost and row.cost.counted else _unknown(row)


def _latency_end(end: str, row: Row) -> Value:
    latency = row.metric("latency_s")
    return Value(getattr(latency, end), reason=latency.reason)


def _quantile(name: str, row: Row) -> float | Value | None:
    quantile_s: float | Value | None = getattr(row.steps, name, None)
    return quantile_s


def _position_cell(name: str, row: Row) -> Value:
    return Value(getattr(row.position, name), reason=row.position.reasons.get(name, ""))


def _price(name: str, row: Row) -> Value:
    return Value(getattr(row.price, name), reason=row.price.reason)


_IDENTITY: Mapping[str, _Column] = {
    "case": lambda row: row.case.id,
    "suite": lambda row: row.case.suite,
    "workload": lambda row: row.case.workload,
    "params": lambda row: row.case.params,
    "dtype": lambda row: str(row.case.dtype) if row.case.dtype else _unknown(row),
    "mode": lambda row: row.case.mode or _unknown(row),
    "phase": lambda row: str(row.case.phase) if row.case.phase else _unknown(row),
    "cache": lambda row: str(row.case.cache) if row.case.dtype else _unknown(row),
    "backend": lambda row: row.case.backend,
    "target": lambda row: row.case.target,
    "framework_version": lambda row: row.framework_version,
    "device": lambda row: row.case.device,
    "device_name": lambda row: row.device_name,
    "status": lambda row: str(row.status),
    "message": lambda row: row.message,
    "rounds": lambda row: row.rounds,
    "samples": lambda row: row.samples,
    "contended": lambda row: row.contended,
    "layout": lambda row: row.layout,
}
# Columns that are not metrics, each after the metric that it belongs to.
_EXTRA_COLUMNS: Mapping[str, Mapping[str, _Column]] = {
    "latency_s": {
        "latency_low_s": partial(_latency_end, "low"),
        "latency_high_s": partial(_latency_end, "high"),
        **{f"latency_{name}": partial(_quantile, name) for name in ("min_s", "p50_s", "p90_s", "p99_s")},
    },
    "items_per_s": {
        "item": lambda row: row.item,
        "flops": partial(_count, "flops"),
        "bytes": partial(_count, "bytes"),
    },
    "bytes_per_s": {name: partial(_position_cell, name) for name in roofline.FIELDS},
    "entry_skew_s": {
        "communication_share": lambda row: row.communication,
        "idle_share": lambda row: row.idle,
    },
    "items_per_j": {name: partial(Row.share, name=name) for name in SHARES},
    "peak_host_bytes": {
        "relative_error": lambda row: row.relative_error,
        "error_of_allowed": lambda row: row.error_of_allowed,
    },
}


def _columns() -> dict[str, _Column]:
    columns = dict(_IDENTITY)
    for metric in METRICS:
        columns |= {metric.name: partial(Row.metric, name=metric.name)} | dict(
            _EXTRA_COLUMNS.get(metric.name, {})
        )
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
}  # of numbers; `item` and `currency` are replaced by those of the row
COLUMNS = (*_COLUMNS, "notes")
_TEXTS = _IDENTITY.keys() - {"rounds", "samples"} | {"item", "bound", "roof", "currency", "notes"}
NUMBERS = tuple(name for name in COLUMNS if name not in _TEXTS)
