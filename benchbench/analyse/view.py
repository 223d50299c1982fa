"""A run and what its documents are made of, each computed once, when it is first asked for. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchbench.analyse.drift import Drift, drift
from benchbench.analyse.metrics import LATENCY
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import CaseKey, Row, by_case, case_key, rows
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Run


@dataclass(frozen=True)
class RunView:
    """A run as its documents see it. `ceilings`: measured on its machine; `prices`: of its devices."""

    run: Run
    ceilings: Sequence[Ceiling] = ()
    prices: Prices | None = None

    @cached_property
    def recorded(self) -> Mapping[CaseKey, Sequence[Record]]:
        """The records of each case, by `case_key`."""
        return by_case(self.run.records)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A row per planned case, then one per case left out."""
        return tuple(rows(self.run, self.ceilings, self.prices, self.recorded))

    @cached_property
    def drift(self) -> Drift | None:
        """What changed all cases together while the run went on."""
        cases: dict[str, list[tuple[int, float]]] = {}
        for row in self.rows:
            if row.ok and row.value(LATENCY.name) is not None:
                cases.setdefault(row.case.id, []).extend(
                    (record.round, math.log(step_s(record.outcome)))
                    for record in self.recorded[case_key(row.case)]
                    if isinstance(record.outcome, Measurement)
                )
        return drift(cases.values())

    @cached_property
    def steps(self) -> Mapping[CaseKey, tuple[tuple[float, ...], ...]]:
        """Seconds per step of each case by `case_key`: for every process of it, a value per block."""
        return {
            key: tuple(each.outcome.steps_s for each in own if isinstance(each.outcome, Measurement))
            for key, own in self.recorded.items()
        }

    def measured(self, case: Case) -> list[Measurement]:
        """What the processes of a case measured, in the order of its records."""
        outcomes = (record.outcome for record in self.recorded.get(case_key(case), ()))
        return [each for each in outcomes if isinstance(each, Measurement)]
