"""What several devices gain over one: of the same step, or of as many samples on each. Pure.

Strong scaling keeps the step, weak scaling what each device has of it; both as in Hager & Wellein 2010,
"Introduction to High Performance Computing for Scientists and Engineers", 5.3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from benchbench.analyse.metrics import Value
from benchbench.analyse.rows import Row, case_key
from benchbench.analyse.view import RunView
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.placement import ONE_DEVICE, Strategy
from benchbench.stats import paired

BATCH = "batch"
SCHEDULE = "schedule"  # of a pipeline, which one device has not
SHARED = "on a CPU, devices divide the cores that one has alone: there is nothing to gain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """`row`, of several devices, beside `alone`, of one. `weak`: the batch grew with the devices.

    `speedup`: rate of items over that of one device; `efficiency`: that over the devices. Both with a 95 %
    interval over the rounds that have both, or why they have no value.
    """

    row: Row
    alone: Row
    weak: bool
    speedup: Value
    efficiency: Value


def scalings(view: RunView) -> list[Scaling]:
    """The scaling of each training step of several devices beside which one of one device was measured."""
    known = {case_key(row.case): row for row in view.rows if row.ok}
    return [
        _scaling(view, row, alone, weak=weak)
        for row in view.rows
        if row.ok and row.case.placement.devices > 1
        if row.case.placement.strategy is not Strategy.COLLECTIVE
        for weak, case in _alone(row.case)
        if (alone := known.get(case_key(case)))
    ]


def _alone(case: Case) -> Iterator[tuple[bool, Case]]:
    """What one device does in the same time at best: the same, or its part of the batch."""
    params = {name: value for name, value in case.params.items() if name != SCHEDULE}
    one = replace(case, params=params, placement=ONE_DEVICE)
    yield False, one
    batch, devices = params.get(BATCH), case.placement.devices
    if type(batch) is int and batch % devices == 0:
        yield True, replace(one, params={**params, BATCH: batch // devices})


def _scaling(view: RunView, row: Row, alone: Row, *, weak: bool) -> Scaling:
    speedup = _speedup(_rates(view, alone), _rates(view, row))
    if row.unranked:
        speedup = Value(None, reason="fewer cores than devices")
    if row.case.device.startswith("cpu"):
        efficiency = Value(None, reason=SHARED)
    else:
        efficiency = _over(speedup, row.case.placement.devices)
    return Scaling(row=row, alone=alone, weak=weak, speedup=speedup, efficiency=efficiency)


def _rates(view: RunView, row: Row) -> dict[int, float]:
    """Items per second by round."""
    return {
        record.round: record.outcome.cost.items / step_s(record.outcome)
        for record in view.recorded.get(case_key(row.case), ())
        if isinstance(record.outcome, Measurement)
    }


def _speedup(alone: Mapping[int, float], together: Mapping[int, float]) -> Value:
    """Geometric mean over the rounds that have both, which were measured in turn."""
    pairs = [(math.log(alone[at]), math.log(together[at])) for at in sorted(alone.keys() & together.keys())]
    if not pairs:
        return Value(None, reason="no round has both")
    if len(pairs) == 1:
        return Value(math.exp(pairs[0][1] - pairs[0][0]))
    change = paired(pairs)
    width = change.half_width()
    return Value(math.exp(change.mid), math.exp(change.mid - width), math.exp(change.mid + width))


def _over(value: Value, devices: int) -> Value:
    if value.value is None:
        return value
    low, high = (None if end is None else end / devices for end in (value.low, value.high))
    return Value(value.value / devices, low, high)
