"""Results of the tests of a check, whose p values are adjusted for all tests of the check. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.judging.case_tests import CaseTest
from benchbench.judging.comparison import ALPHA, adjusted_p
from benchbench.judging.sessions import day_means
from benchbench.judging.variance import detectable_change
from benchbench.stats import MAX_LOG, POWER, bounded_exp, mean, t_quantile

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


def _detectable_change(test: CaseTest, family: Family) -> float:
    """Smallest change (a logarithm) that is called slower with `POWER`.

    Two tests against sessions share the sessions and differ in the run's own processes. If the processes
    explain all of the error, each test needs the square root of the power; if none of it, the power.
    """
    error, degrees = test.worsening.error, test.worsening.degrees
    if test.match.interleaved:  # two tests of pairs have the level, and half of it; a single one has Holm's
        levels = (ALPHA, ALPHA / 2) if family.confirmed else (ALPHA / max(family.size, 2),)
        return detectable_change(test.margin, error, degrees, levels)
    if family.interleaved:  # the first test flags by the difference alone
        return detectable_against_sessions(test.margin, error, degrees, 1 / 2, POWER ** (1 / 2))
    own_variance = test.deviation.own_variance if test.deviation else 0.0
    share = min(own_variance / error**2, 1.0)
    power = POWER ** (1 / (1 + share)) if family.confirmed else POWER
    return detectable_against_sessions(test.margin, error, degrees, family.level, power)


def family_size(tests: Sequence[CaseTest]) -> int:
    """Number of distinct tests: a latency and the rates derived from it are one test."""
    return len({test.quantity for test in tests if test.difference})


def adjusted_results(tests: Sequence[CaseTest], family: Family) -> dict[tuple[str, str], TestResult]:
    """Results of the cases that could be tested, by case and metric, with p adjusted for a family.

    Tests of the family that are not in `tests` count as p = 1.
    """
    tested = [test for test in tests if test.difference]
    worsenings = {test.quantity: test.worsening for test in tested}
    ps = adjusted_p(list(worsenings.values()), family.min_size, untested=family.size - len(worsenings))
    p_of_quantity = dict(zip(worsenings, ps, strict=True))
    return {test.match.key: _result(test, p_of_quantity[test.quantity], family) for test in tested}


def _result(test: CaseTest, p_holm: float, family: Family) -> TestResult:
    match, difference = test.match, test.difference
    assert difference
    half = difference.half_width()
    return TestResult(
        ref=bounded_exp(mean(day_means(match.days))),
        new=bounded_exp(mean(match.new_logs)),
        ratio=bounded_exp(difference.mid),
        low=bounded_exp(difference.mid - half),
        high=bounded_exp(difference.mid + half),
        p=test.worsening.p_above(),
        p_holm=p_holm,
        family=family.size,
        mde=math.expm1(min(_detectable_change(test, family), MAX_LOG)),
        degrees=difference.degrees,
        processes=len(match.new_logs),
        against=len(match.new_logs) if match.interleaved else len(match.days),
        in_turn=match.interleaved,
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
