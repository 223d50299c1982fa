"""Rows of a run for its documents, and scaling of a training step over several devices. Pure.

Strong scaling keeps the step, weak scaling the part of each device (Hager & Wellein 2010, "Introduction to
High Performance Computing for Scientists and Engineers", 5.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from benchbench.analyse.doubts import Drift, drift
from benchbench.analyse.metrics import LATENCY, Value
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import CaseKey, Row, case_key, records_by_case, rows
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.placement import ONE_DEVICE, Strategy
from benchbench.model.run import Record, Run
from benchbench.stats import paired


@dataclass(frozen=True)
class RunView:
    """A run with the values that documents use.

    `ceilings`: measured on its machine; `prices`: of its devices.
    """

    run: Run
    ceilings: Sequence[Ceiling] = ()
    prices: Prices | None = None

    @cached_property
    def records_by_case(self) -> Mapping[CaseKey, Sequence[Record]]:
        """Records of each case, by `case_key`."""
        return records_by_case(self.run.records)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A row per planned case, then one per case left out."""
        return tuple(rows(self.run, self.ceilings, self.prices, self.records_by_case))

    @cached_property
    def drift(self) -> Drift | None:
        """Common change of all cases during the run."""
        cases: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows:
            if row.ok and row.value(LATENCY.name) is not None:
                cases.setdefault(row.case.id, []).extend(
                    (record.round, math.log(step_s(record.outcome)))
                    for record in self.records_by_case[case_key(row.case)]
                    if isinstance(record.outcome, Measurement)
                )
        return drift(cases.values())

    @cached_property
    def steps(self) -> Mapping[CaseKey, tuple[tuple[float, ...], ...]]:
        """Seconds per step of each case by `case_key`: for each of its processes, a value per block."""
        return {
            key: tuple(
                record.outcome.steps_s for record in records if isinstance(record.outcome, Measurement)
            )
            for key, records in self.records_by_case.items()
        }

    def measured(self, case: Case) -> list[Measurement]:
        """Measurements of a case, in the order of its records."""
        outcomes = (record.outcome for record in self.records_by_case.get(case_key(case), ()))
        return [outcome for outcome in outcomes if isinstance(outcome, Measurement)]


BATCH = "batch"
SCHEDULE = "schedule"  # of a pipeline; one device has none
SHARED_CORES = "on a CPU, devices divide the cores that one has alone: there is nothing to gain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Scaling of `row`, of several devices, relative to `single`, of one.

    `is_weak`: the batch grew with the devices. `speedup`: ratio of the rates of items; `efficiency`:
    speedup per device. Both have a 95 % interval over the common rounds, or the reason for their absence.
    """

    row: Row
    single: Row
    is_weak: bool
    speedup: Value
    efficiency: Value


def scalings(view: RunView) -> list[Scaling]:
    """Scaling of each training step that was also measured on one device."""
    rows_by_case = {case_key(row.case): row for row in view.rows if row.ok}
    return [
        _scaling(view, row, single, is_weak=is_weak)
        for row in view.rows
        if row.ok and row.case.placement.devices > 1
        if row.case.placement.strategy is not Strategy.COLLECTIVE
        for is_weak, case in _single_device_cases(row.case)
        if (single := rows_by_case.get(case_key(case)))
    ]


def _single_device_cases(case: Case) -> Iterator[tuple[bool, Case]]:
    """Cases of one device with the same ideal time: the same step, or one device's part of the batch."""
    params = {name: value for name, value in case.params.items() if name != SCHEDULE}
    single = replace(case, params=params, placement=ONE_DEVICE)
    yield False, single
    batch, devices = params.get(BATCH), case.placement.devices
    if type(batch) is int and batch % devices == 0:
        yield True, replace(single, params={**params, BATCH: batch // devices})


def _scaling(view: RunView, row: Row, single: Row, *, is_weak: bool) -> Scaling:
    speedup = _speedup(_rates(view, single), _rates(view, row))
    if row.is_unranked:
        speedup = Value(None, reason="fewer cores than devices")
    if row.case.device.startswith("cpu"):
        efficiency = Value(None, reason=SHARED_CORES)
    else:
        efficiency = _divided(speedup, row.case.placement.devices)
    return Scaling(row=row, single=single, is_weak=is_weak, speedup=speedup, efficiency=efficiency)


def _rates(view: RunView, row: Row) -> dict[int, float]:
    """Items per second by round."""
    return {
        record.round: record.outcome.cost.items / step_s(record.outcome)
        for record in view.records_by_case.get(case_key(row.case), ())
        if isinstance(record.outcome, Measurement)
    }


def _speedup(single_rates: Mapping[int, float], rates: Mapping[int, float]) -> Value:
    """Geometric mean over the common rounds, in which the two took turns."""
    pairs = [
        (math.log(single_rates[number]), math.log(rates[number]))
        for number in sorted(single_rates.keys() & rates.keys())
    ]
    if not pairs:
        return Value(None, reason="no round has both")
    if len(pairs) == 1:
        return Value(math.exp(pairs[0][1] - pairs[0][0]))
    change = paired(pairs)
    half_width = change.half_width()
    return Value(math.exp(change.mid), math.exp(change.mid - half_width), math.exp(change.mid + half_width))


def _divided(value: Value, devices: int) -> Value:
    if value.value is None:
        return value
    low, high = (None if end is None else end / devices for end in (value.low, value.high))
    return Value(value.value / devices, low, high)
