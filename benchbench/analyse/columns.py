"""Rows as a flat table for programs: JSON, CSV and pandas. Columns follow from the table of metrics. Pure.

SI base units. An absent value is None, and `notes` has why: `COLUMN: REASON`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from benchbench.analyse import pricing, roofline
from benchbench.analyse.metrics import FOREIGN, METRICS, Value
from benchbench.analyse.rows import UNKNOWN, Row
from benchbench.analyse.side_by_side import SHARES
from benchbench.model.case import Scalar

if TYPE_CHECKING:
    import pandas as pd

_Cell = tuple[Any, str]  # a value, and why there is none where it is None
_Column = Callable[[Row], _Cell]


def params_text(params: Mapping[str, Scalar]) -> str:
    """`m=64 n=64`: one word per parameter."""
    return " ".join(f"{name}={str(value).lower()}" for name, value in params.items())


def flatten(row: Row) -> dict[str, Any]:
    """`COLUMNS` of a row. `notes`: what its reader must know, then why a column of it is empty."""
    cells = {name: column(row) for name, column in _COLUMNS.items()}
    absent = [f"{name}: {reason}" for name, (value, reason) in cells.items() if value is None and reason]
    notes = (*(note.text for note in row.notes), *absent)
    return {name: value for name, (value, _) in cells.items()} | {"notes": notes}


def number_of(row: Row, name: str) -> Value:
    """One of `NUMBERS`, in the unit that `unit_of` gives."""
    value, reason = _COLUMNS[name](row)
    return Value(value, reason=reason)


def unit_of(row: Row, name: str) -> str:
    """`image/s` of `items_per_s`."""
    unit = UNITS.get(name, "").replace("item", row.item or "item")
    return unit.replace("currency", row.price.currency or "currency")


def data_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Rows with their `COLUMNS`, of objects: None stays None."""
    import pandas as pd

    return pd.DataFrame([flatten(row) for row in rows], columns=list(COLUMNS), dtype=object)


def _fact(of: Callable[[Row], Any]) -> _Column:
    """Empty without a reason."""
    return lambda row: (of(row), "")


def _case_fact(of: Callable[[Row], Any]) -> _Column:
    """Nobody knows it of a user's function."""
    return lambda row: (of(row) or None, FOREIGN if row.ok else "")


def _count(of: Callable[[Row], int]) -> _Column:
    """Of the work of a step."""

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


def _position(name: str, row: Row) -> _Cell:
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
    "bytes_per_s": {name: partial(_position, name) for name in roofline.FIELDS},
    "entry_skew_s": {
        "communication_share": _fact(lambda row: row.communication.value),
        "idle_share": _fact(lambda row: row.idle.value),
    },
    "items_per_j": {name: partial(_share, name) for name in SHARES},
    "peak_host_bytes": {"relative_error": lambda row: (row.relative_error.value, row.relative_error.reason)},
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
