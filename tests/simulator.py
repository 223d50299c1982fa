"""Simulated sessions, their processes, and AR(1) blocks of each process."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchbench.analyse.digest import Digest
from benchbench.model.case import Case
from benchbench.model.run import Policy, Record, Run
from benchbench.running.schedule import cases_of_round
from tests.factories import a_case, a_digest, a_measurement, a_record, a_run, some_rounds

Array = NDArray[np.float64]


def noise(source: np.random.Generator, heavy: bool, *size: int) -> Array:
    """Noise of standard deviation 1: normal, or t with 3 degrees of freedom if `heavy`."""
    return source.standard_t(3, size) / math.sqrt(3) if heavy else source.standard_normal(size)


def blocks(
    source: np.random.Generator,
    shape: tuple[int, ...],
    between: float,
    *,
    within: float = 0.01,
    heavy: bool = False,
    phi: float = 0.5,
    count: int = 20,
) -> Array:
    """Seconds of `count` blocks of each process, shape (*shape, count).

    `between` and `within` processes are standard deviations of the logarithms.
    """
    steps = noise(source, heavy, *shape, count) * math.sqrt(1 - phi**2)
    steps[..., 0] /= math.sqrt(1 - phi**2)
    for index in range(1, count):
        steps[..., index] += phi * steps[..., index - 1]
    levels = between * noise(source, heavy, *shape)
    return np.asarray(1e-3 * np.exp(levels[..., None] + within * steps))


def process_medians(
    source: np.random.Generator, shape: tuple[int, ...], between: float, **over: Any
) -> Array:
    """Medians of processes in seconds; the last axis is the processes of a case."""
    return np.asarray(np.median(blocks(source, shape, between, **over), axis=-1))


def session_medians(
    source: np.random.Generator,
    shape: tuple[int, ...],
    spread: float,
    between: float,
    *,
    stormy: bool = False,
    **over: Any,
) -> Array:
    """Process medians whose sessions also vary, with a standard deviation of `spread` (logarithms).

    `stormy`: the sessions have heavy tails, too.
    """
    weather = np.exp(spread * noise(source, stormy, *shape[:-1], 1))
    return np.asarray(weather * process_medians(source, shape, between, **over))


def a_scheduled_run(policy: Policy, medians: Array) -> Run:
    """A run scheduled by `cases_of_round`, one second per process. Each row of `medians` is a case."""
    cases, records = some_cases(len(medians)), list[Record]()
    for number in range(medians.shape[1]):
        selected = cases_of_round(policy, number, cases, records, (policy.budget_s or 0.0) - len(records))
        if not selected:
            break
        for case in selected:
            step_s = float(medians[cases.index(case), number])
            outcome = a_measurement(block_s=(step_s,), iterations=1)
            records.append(a_record(outcome, case=case, round=number, stages_s={"wall": 1.0}))
    return a_run(records, policy=policy, plan=cases)


@cache
def some_cases(count: int) -> tuple[Case, ...]:
    return tuple(a_case(params={"m": m}) for m in range(count))


def a_suite(medians: Array) -> Run:
    """A run; each row of `medians` is a case."""
    rows = zip(some_cases(len(medians)), medians, strict=True)
    return a_run([r for case, row in rows for r in some_rounds(*row, case=case)])


def a_session(
    medians: Array, cases: Iterable[Case] | None = None, day: int = 0, hour: int = 0, **over: Any
) -> Digest:
    """A digest; each row of `medians` is a case."""
    rows = zip(some_cases(len(medians)) if cases is None else cases, medians, strict=True)
    started = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day, hours=hour)).isoformat()
    name = {"id": f"S{day}", "started": started}
    return a_digest([(case, row.tolist()) for case, row in rows], **(name | over))


def highest_rate(rate: float, count: int) -> float:
    """The rate plus two Monte Carlo standard errors of `count` trials."""
    return rate + 2 * math.sqrt(rate * (1 - rate) / count)
