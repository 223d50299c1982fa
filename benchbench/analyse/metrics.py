"""Records to rows: one per case, every statistic derived from the raw samples. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from benchbench.analyse import launch_bound, pricing, roofline
from benchbench.analyse.plausible import implausible
from benchbench.analyse.plausible import remarks as oddities
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.errors import UsageError, unknown
from benchbench.machine.conditions import energy_j, usual_mhz
from benchbench.machine.conditions import remarks as surroundings
from benchbench.model.case import Case, Scalar
from benchbench.model.measurement import Cost, Failure, Measurement, Memory
from benchbench.model.record import Record
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Status
from benchbench.stats import headline, median, quantile
from benchbench.timing.policy import rounds_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "case", "suite", "workload", "params", "dtype", "mode", "phase", "cache",
    "backend", "target", "framework_version", "device", "device_name",
    "status", "message", "rounds", "samples",
    "latency_s", "latency_low_s", "latency_high_s",
    "latency_min_s", "latency_p50_s", "latency_p90_s", "latency_p99_s", "cold_s",
    "items_per_s", "item", "flops", "bytes", "flops_per_s", "bytes_per_s", *roofline.FIELDS,
    "peak_device_bytes", "peak_host_bytes", "relative_error", "energy_j", "items_per_j",
    *pricing.FIELDS, "notes",
)  # fmt: skip

NUMBERS = (
    "rounds", "samples", "latency_s", "latency_low_s", "latency_high_s",
    "latency_min_s", "latency_p50_s", "latency_p90_s", "latency_p99_s", "cold_s",
    "items_per_s", "flops", "bytes", "flops_per_s", "bytes_per_s",
    "peak_device_bytes", "peak_host_bytes", "relative_error", "energy_j", "items_per_j",
    "price_per_hour", "items_per_cost",
    "flops_per_byte", "attainable_flops_per_s",
    "flops_of_ceiling", "flops_of_datasheet", "bytes_of_ceiling", "bytes_of_datasheet",
)  # fmt: skip

P99_SAMPLES = 662  # fewer say nothing about p99 at 99 % confidence (MLPerf loadgen, early_stopping.cc)
FOREIGN = "not known: the work is a function of the user's"
NO_SPEED = (Status.WRONG_RESULT, Status.IMPLAUSIBLE)  # shown before any other failure of the same case

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A column that can be compared, and which way is better."""

    name: str
    unit: str
    better: Literal["lower", "higher"]


METRICS = (
    Metric("latency_s", "s", "lower"),
    Metric("items_per_s", "item/s", "higher"),
    Metric("flops_per_s", "FLOP/s", "higher"),
    Metric("bytes_per_s", "B/s", "higher"),
    Metric("cold_s", "s", "lower"),
    Metric("peak_device_bytes", "B", "lower"),
    Metric("peak_host_bytes", "B", "lower"),
    Metric("energy_j", "J", "lower"),
    Metric("items_per_j", "item/J", "higher"),
)


def metric_named(name: str) -> Metric:
    """The metric of that name. Raises UsageError."""
    known = {metric.name: metric for metric in METRICS}
    if name not in known:
        raise UsageError(f"No metric named {name!r}.", unknown("metrics", name, list(known)))
    return known[name]


def rows(run: Run, ceilings: Sequence[Ceiling] = (), prices: Prices | None = None) -> pd.DataFrame:
    """One row per planned case in plan order, then one per case left out; columns are `COLUMNS`.

    `ceilings`: what was measured on the run's machine, to show how close its cases come; `prices`: of an
    hour of its devices.

    SI base units; an absent value is None, and `notes` (a tuple of str) says why: a note that explains
    an empty column begins with the column's name and a colon.
    """
    import pandas as pd

    recorded = by_case(run.records)
    context = _Context(run.info, usual_mhz(run.records), ceilings, prices)
    found = [_planned(context, case, recorded.get(case_key(case), [])) for case in run.info.plan]
    found += [
        _identity(run.info, out.case, []) | {"status": str(out.status), "message": out.reason}
        for out in run.info.left_out
    ]
    for row in found:
        if reason := run.unprofiled.get(row["case"]):
            row["notes"] = (*row["notes"], f"profile: {reason}")
    return pd.DataFrame(found, columns=list(COLUMNS), dtype=object)  # object: NaN would not be JSON


def case_key(case: Case) -> tuple[str, str]:
    """What tells the cases of a run apart: two suites may hold the same case."""
    return case.suite, case.id


def by_case(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """The records of each case, by `case_key`, in the order they were made."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault(case_key(record.case), []).append(record)
    return found


def steps_s(measurement: Measurement) -> list[float]:
    """Seconds per step: one value per block."""
    return [block / measurement.iterations for block in measurement.block_s]


def params_text(params: Mapping[str, Scalar]) -> str:
    """`m=64 n=64`: one word per parameter."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in params.items())


@dataclass(frozen=True, slots=True)
class _Context:
    """What the rows of a run share."""

    info: RunInfo
    usual_mhz: Mapping[str, float]
    ceilings: Sequence[Ceiling]
    prices: Prices | None


def _planned(context: _Context, case: Case, records: Sequence[Record]) -> Row:
    info = context.info
    ordered = sorted(records, key=lambda record: record.round)
    done = [record.outcome for record in ordered if record.outcome.status != Status.INTERRUPTED]
    measured = [outcome for outcome in done if isinstance(outcome, Measurement)]
    row = _identity(info, case, records) | _work(measured) | _outcome(records)
    row["relative_error"] = max(
        (o.relative_error for o in done if o.relative_error is not None), default=None
    )
    if row["status"] == Status.OK and (why := implausible(case, row["device_name"], measured)):
        row |= {"status": str(Status.IMPLAUSIBLE), "message": why}
    if row["status"] != Status.OK:
        return _finite(row, {}, ())
    row |= _speed(measured) | _resources(measured)
    place, unplaced = _position(context, case, row["device_name"], measured[0].cost, row["latency_s"])
    price, unpriced = _price(context, case, row)
    notes = [
        *_remarks(measured, rounds_of(info.policy, done)),
        *launch_bound.remarks(measured),
        *oddities(measured),
        *roofline.remarks(place),
        *surroundings(measured, context.usual_mhz.get(case.device)),
    ]
    return _finite(row | place | price, unplaced | _reasons(measured) | unpriced, notes)


def _identity(info: RunInfo, case: Case, records: Sequence[Record]) -> Row:
    """What is known without a measurement; every other column is None."""
    version, device_name = _probed(info, case)
    if records:
        version, device_name = records[0].framework_version, records[0].device_model
    return dict.fromkeys(COLUMNS) | {
        "case": case.id,
        "suite": case.suite,
        "workload": case.workload,
        "params": case.params,
        "dtype": case.dtype and str(case.dtype),
        "mode": case.mode or None,
        "phase": case.phase and str(case.phase),
        "cache": case.dtype and str(case.cache),
        "backend": case.backend,
        "target": case.target,
        "framework_version": version,
        "device": case.device,
        "device_name": device_name,
        "message": "",
        "rounds": 0,
        "samples": 0,
        "notes": (),
    }


def _probed(info: RunInfo, case: Case) -> tuple[str | None, str | None]:
    for probe in info.probes:
        if probe.target.name == case.target:
            models = [device.model for device in probe.devices if device.name == case.device]
            return probe.version, models[0] if models else None
    return None, None


def _outcome(records: Sequence[Record]) -> Row:
    """ok only if every finished round is; a round cut short counts as missing, not as failed."""
    finished = [r.outcome for r in records if r.outcome.status != Status.INTERRUPTED]
    failures = [outcome for outcome in finished if isinstance(outcome, Failure)]
    if failures:
        first = min(failures, key=lambda failure: failure.status not in NO_SPEED)
        share = f" ({len(failures)} of {len(finished)} rounds)" if len(failures) < len(finished) else ""
        return {"status": str(first.status), "message": first.message + share}
    if finished:
        return {"status": str(Status.OK)}
    cut = [r.outcome.message for r in records if isinstance(r.outcome, Failure)]
    return {"status": str(Status.INTERRUPTED), "message": cut[0] if cut else "the run ended before its turn"}


def _work(measured: Sequence[Measurement]) -> Row:
    counts: Row = {"rounds": len(measured), "samples": sum(len(m.block_s) for m in measured)}
    if measured:
        cost = measured[0].cost
        counts |= {"item": cost.item}
        counts |= {"flops": cost.flops, "bytes": cost.bytes} if cost.counted else {}
    return counts


def _speed(measured: Sequence[Measurement]) -> Row:
    """The headline over processes, quantiles over all blocks, and rates as work / headline.

    Never a mean of rates: it is larger than the rate anybody saw.
    """
    pooled = [step for m in measured for step in steps_s(m)]
    latency = headline([median(steps_s(m)) for m in measured])
    cost = measured[0].cost
    return {
        "latency_s": latency.mid,
        "latency_low_s": latency.low,
        "latency_high_s": latency.high,
        "latency_min_s": min(pooled),
        "latency_p50_s": median(pooled),
        "latency_p90_s": quantile(pooled, 0.9),
        "latency_p99_s": quantile(pooled, 0.99) if len(pooled) >= P99_SAMPLES else None,
        "items_per_s": cost.items / latency.mid,
        "flops_per_s": cost.flops / latency.mid if cost.flops else None,
        "bytes_per_s": cost.bytes / latency.mid if cost.bytes else None,
    }


def _resources(measured: Sequence[Measurement]) -> Row:
    cold = [m.cold_s for m in measured if m.compile_cache == "empty" and m.cold_s is not None]
    joules = [found for m in measured if not isinstance(found := energy_j(m), str)]
    energy = median(joules) if joules else None
    return {
        "cold_s": median(cold) if cold else None,
        "peak_device_bytes": _peak([m.peak_device for m in measured]),
        "peak_host_bytes": _peak([m.peak_host for m in measured]),
        "energy_j": energy,
        "items_per_j": measured[0].cost.items / energy if energy else None,
    }


def _position(
    context: _Context, case: Case, device_name: str | None, cost: Cost, step_s: float
) -> tuple[Row, dict[str, str]]:
    """The fields of the roofline, and why those that are None are."""
    if case.dtype is None:
        unknown = roofline.Roofs(None, None, FOREIGN, FOREIGN)
        roofs = (unknown, unknown)
    else:
        roofs = (
            roofline.measured_roofs(context.info, case, device_name, context.ceilings),
            roofline.datasheet_roofs(case.dtype, device_name),
        )
    return roofline.position(cost, step_s, *roofs), roofline.reasons(cost, *roofs)


def _price(context: _Context, case: Case, row: Row) -> tuple[Row, dict[str, str]]:
    device, _ = roofline.device_of(context.info, case.device, row["device_name"])
    return pricing.fields(row["items_per_s"], device, context.prices)


def _peak(peaks: Iterable[Memory]) -> int | None:
    return max((peak.bytes for peak in peaks if peak.bytes is not None), default=None)


def _reasons(measured: Sequence[Measurement]) -> dict[str, str]:
    """Column → why it is empty, if it is."""
    samples = sum(len(m.block_s) for m in measured)
    timed = any(m.cold_s is not None for m in measured)
    rate = "the work counts no {}" if measured[0].cost.counted else FOREIGN
    return dict.fromkeys(("dtype", "mode", "phase", "cache", "flops", "bytes"), FOREIGN) | {
        "latency_low_s": "one process gives no interval",
        "latency_high_s": "one process gives no interval",
        "latency_p99_s": f"{samples} samples, needs {P99_SAMPLES}",
        "cold_s": "no round began with an empty compile cache" if timed else "the first call was not timed",
        "flops_per_s": rate.format("FLOPs"),
        "bytes_per_s": rate.format("bytes"),
        "peak_device_bytes": measured[0].peak_device.reason or "not known",
        "peak_host_bytes": measured[0].peak_host.reason or "not known",
        "relative_error": "not verified",
        "energy_j": next((found for m in measured if isinstance(found := energy_j(m), str)), ""),
        "items_per_j": "energy_j is not known",
    }


def _remarks(measured: Sequence[Measurement], rounds: int) -> list[str]:
    """What a reader must know to trust the number."""
    count = len(measured)
    found = [f"{count} of {rounds} rounds"] if count < rounds else []
    unsteady = sum(not m.steady for m in measured)
    if unsteady:
        found.append(f"still warming up when measured, in {unsteady} of {count} rounds")
    stopped = sorted({m.stop_reason for m in measured} - {"precision"})
    if stopped:
        short = sum(m.stop_reason != "precision" for m in measured)
        found.append(
            f"less precise than asked in {short} of {count} rounds (stopped by {' and '.join(stopped)})"
        )
    return found + list(dict.fromkeys(note for m in measured for note in m.notes))


def _finite(row: Row, reasons: Mapping[str, str], remarks: Sequence[str]) -> Row:
    """`row` with NaN and infinity as None, and its notes."""
    wild = {name: str(v) for name, v in row.items() if isinstance(v, float) and not isfinite(v)}
    row = row | dict.fromkeys(wild)
    absent = [f"{name}: {why}" for name, why in (dict(reasons) | wild).items() if row[name] is None]
    return row | {"notes": (*remarks, *absent)}
