"""View of a run for documents, with rows and other derived values computed on first use. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchbench.analyse.doubts import Drift, drift
from benchbench.analyse.metrics import LATENCY
from benchbench.analyse.pricing import Prices
from benchbench.analyse.roofline import Ceiling
from benchbench.analyse.rows import CaseKey, Row, case_key, records_by_case, rows
from benchbench.machine.conditions import step_s
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import Run


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
