"""Estimates of a check's cases, and their p values adjusted for all tests of the check. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.judging.comparison import ALPHA, adjusted_p
from benchbench.judging.variance import POWER, detectable_change
from benchbench.stats import MAX_LOG, Difference, bounded_exp, t_quantile

MIN_FAMILY = 5  # sessions are neither independent nor normal, so a single test needs p < 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """Result of one test. `ref`, `new`: geometric means; `ratio`: new / ref, with its own 95 % interval.

    `p`: one-sided, of the hypothesis that the case did not become worse. `p_holm`: adjusted for a `family` of
    tests, in the direction of the change. `mde` (0.02: 2 %): the smallest change that the check calls slower
    four times in five. `against`: number of sessions or, if `in_turn`, of interleaved pairs of processes.
    """

    __test__ = False  # not a class of tests for pytest

    ref: float
    new: float
    ratio: float
    low: float
    high: float
    p: float
    p_holm: float
    family: int
    mde: float
    degrees: float
    processes: int
    against: int
    in_turn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Estimated change of a case before its p is adjusted, in logarithms.

    `quantity`: the case and the measured metric, which for a rate is the latency or energy. `worsening`: the
    difference with the sign that makes positive values worse. `margin`: log(1 + threshold). `own_variance`:
    contribution of the run's own processes to the squared error. `against`: as in `TestResult`.
    """

    quantity: tuple[str, str]
    ref: float
    new: float
    difference: Difference
    worsening: Difference
    margin: float
    own_variance: float
    processes: int
    against: int
    interleaved: bool

    @property
    def exceeds_margin(self) -> bool:
        """True if the case is worse by at least the threshold; the margin is the same in both directions."""
        return self.worsening.mid >= self.margin


@dataclass(frozen=True, slots=True)
class Family:
    """Tests that are adjusted together, counted as at least `min_size`.

    `level`: one-sided level for the most significant test. `confirmed`: a second test decides as well.
    `interleaved`: that test uses new pairs with the baseline's code.
    """

    size: int
    min_size: int
    level: float
    confirmed: bool
    interleaved: bool


def family_of(size: int, *, stored: bool, confirmed: bool, interleaved: bool) -> Family:
    """Family of `size` tests. `stored`: against sessions; otherwise the first test is of pairs too."""
    fewest = MIN_FAMILY if stored else 1 if confirmed else 2  # 2: no p is below its own two-sided p
    level = ALPHA if confirmed and interleaved else ALPHA / max(size, fewest)
    return Family(size, fewest, level, confirmed, interleaved)


def _detectable_change(estimate: Estimate, family: Family) -> float:
    """Smallest change (a logarithm) that is called slower with `POWER`.

    Two tests against sessions share the sessions and differ in the run's own processes. If the processes
    explain all of the error, each test needs the square root of the power; if none of it, the power.
    """
    error, degrees = estimate.difference.error, estimate.difference.degrees
    if estimate.interleaved:
        levels = interleaved_levels(family.size, twice=family.confirmed)
        return detectable_change(estimate.margin, error, degrees, levels)
    if family.interleaved:  # the first test flags by the estimate alone
        return detectable_against_sessions(estimate.margin, error, degrees, 1 / 2, POWER ** (1 / 2))
    own = min(estimate.own_variance / error**2, 1.0)
    power = POWER ** (1 / (1 + own)) if family.confirmed else POWER
    return detectable_against_sessions(estimate.margin, error, degrees, family.level, power)


def family_size(estimates: Sequence[Estimate]) -> int:
    """Number of distinct tests: a latency and the rates derived from it are one test."""
    return len({estimate.quantity for estimate in estimates})


def adjusted_results(estimates: Sequence[Estimate], family: Family) -> list[TestResult]:
    """Results with p values adjusted for a family of tests; tests not in `estimates` count as p = 1."""
    tests = {estimate.quantity: estimate.worsening for estimate in estimates}
    ps = adjusted_p(list(tests.values()), family.min_size, untested=family.size - len(tests))
    p_of_quantity = dict(zip(tests, ps, strict=True))
    return [_result(estimate, p_of_quantity[estimate.quantity], family) for estimate in estimates]


def _result(estimate: Estimate, p_holm: float, family: Family) -> TestResult:
    half = estimate.difference.half_width()
    return TestResult(
        ref=bounded_exp(estimate.ref),
        new=bounded_exp(estimate.new),
        ratio=bounded_exp(estimate.difference.mid),
        low=bounded_exp(estimate.difference.mid - half),
        high=bounded_exp(estimate.difference.mid + half),
        p=estimate.worsening.p_above(),
        p_holm=p_holm,
        family=family.size,
        mde=math.expm1(min(_detectable_change(estimate, family), MAX_LOG)),
        degrees=estimate.difference.degrees,
        processes=estimate.processes,
        against=estimate.against,
        in_turn=estimate.interleaved,
    )


def detectable_against_sessions(
    margin: float, error: float, degrees: float, level: float, power: float
) -> float:
    """Smallest change (a logarithm) that a test against stored sessions detects with `power`.

    Given the sessions, a run is called slower beyond c = max(margin, t(1 − level) · error). A further run
    deviates from the sessions by t · error, so a change of c + t(power) · error exceeds c with that power.
    """
    limit = max(margin, t_quantile(1 - level, degrees) * error)
    return limit + t_quantile(power, degrees) * error


def interleaved_levels(size: int, *, twice: bool) -> tuple[float, ...]:
    """One-sided levels of tests of pairs: Holm's for one test; for two tests 5 %, then half of it."""
    return (ALPHA, ALPHA / 2) if twice else (ALPHA / max(size, 2),)
