"""What one comparison of a check showed: its estimate, and p adjusted for all tests of the check. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.judging.comparison import ALPHA, LARGEST
from benchbench.judging.variance import POWER, visible_change
from benchbench.stats import Difference, holm, t_quantile

FEWEST = 5  # a family counts as: sessions are neither independent nor normal, so a test alone needs 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """One comparison. `ref` and `new` are geometric means, `ratio` is new / ref with its own 95 % interval.

    `p` is one-sided, of becoming worse; `p_holm` of the direction of the change, adjusted for a `family` of
    tests. `mde` (0.02: 2 %): the smallest change called slower four times in five, by all that decides.
    `against` counts sessions or, where measured `in_turn`, pairs of processes.
    """

    __test__ = False  # for pytest: no class of tests

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
    """A tested case before its p is adjusted: logarithms, `worse` turned so that above 0 is worse.

    `quantity`: the case and the metric that was measured, latency for a rate. `margin`: log(1 + threshold).
    `own_variance`: what the processes of the run itself add to the square of the error.
    """

    quantity: tuple[str, str]
    ref: float
    new: float
    difference: Difference
    worse: Difference
    margin: float
    own_variance: float
    processes: int
    against: int
    interleaved: bool

    @property
    def beyond(self) -> bool:
        """Whether it is worse by the threshold; alike in both directions, as a ratio."""
        return self.worse.mid >= self.margin


@dataclass(frozen=True, slots=True)
class Family:
    """Tests adjusted together, as `fewest` at least; `level`: one-sided, of the most significant.

    `confirmed`: a second test decides as well. `interleaved`: in new pairs with the baseline's code.
    """

    size: int
    fewest: int
    level: float
    confirmed: bool
    interleaved: bool


def family_of(size: int, *, stored: bool, confirmed: bool, interleaved: bool) -> Family:
    """`stored`: against sessions; else the first test is of pairs as well."""
    fewest = FEWEST if stored else 1 if confirmed else 2  # no p is below the test's own two-sided one
    level = ALPHA if confirmed and interleaved else ALPHA / max(size, fewest)
    return Family(size, fewest, level, confirmed, interleaved)


def _visible(each: Estimate, family: Family) -> float:
    """The smallest change called slower four times in five, as a logarithm.

    Both tests against sessions share these, and differ in the run's own processes: where the processes
    explain all of the error, each test needs the root of the power, where they explain none, the power.
    """
    error, degrees = each.difference.error, each.difference.degrees
    if each.interleaved:
        levels = levels_of_pairs(family.size, twice=family.confirmed)
        return visible_change(each.margin, error, degrees, levels)
    if family.interleaved:  # the estimate alone flags, and pairs decide
        return visible_to_sessions(each.margin, error, degrees, 1 / 2, POWER ** (1 / 2))
    own = min(each.own_variance / error**2, 1.0)
    power = POWER ** (1 / (1 + own)) if family.confirmed else POWER
    return visible_to_sessions(each.margin, error, degrees, family.level, power)


def family_size(estimates: Sequence[Estimate]) -> int:
    """How many tests these are: a latency and its rates are one number, and one test."""
    return len({each.quantity for each in estimates})


def adjusted_results(estimates: Sequence[Estimate], family: Family) -> list[TestResult]:
    """Adjusted for a family of tests, of which those not in `estimates` showed nothing.

    No p is below the case's own two-sided one.
    """
    tests = {each.quantity: each for each in estimates}
    rest = [1.0] * (family.size - len(tests))
    above = holm([each.worse.p_above() for each in tests.values()] + rest, family.fewest)
    below = holm([each.worse.p_below() for each in tests.values()] + rest, family.fewest)
    adjusted = {name: min(tails) for name, *tails in zip(tests, above, below, strict=False)}
    return [
        _result(each, max(each.difference.p_either(), adjusted[each.quantity]), family) for each in estimates
    ]


def _result(each: Estimate, p_holm: float, family: Family) -> TestResult:
    half = each.difference.half_width()
    return TestResult(
        ref=_exp(each.ref),
        new=_exp(each.new),
        ratio=_exp(each.difference.mid),
        low=_exp(each.difference.mid - half),
        high=_exp(each.difference.mid + half),
        p=each.worse.p_above(),
        p_holm=p_holm,
        family=family.size,
        mde=math.expm1(min(_visible(each, family), LARGEST)),
        degrees=each.difference.degrees,
        processes=each.processes,
        against=each.against,
        in_turn=each.interleaved,
    )


def _exp(log: float) -> float:
    return math.exp(max(-LARGEST, min(LARGEST, log)))


def visible_to_sessions(margin: float, error: float, degrees: float, level: float, power: float) -> float:
    """As a logarithm, for a test against stored sessions.

    Given the sessions, a run is called slower beyond c = max(margin, t(1 − level) · error), and a further run
    deviates from them by t · error: c + t(power) · error is exceeded with that power.
    """
    needed = max(margin, t_quantile(1 - level, degrees) * error)
    return needed + t_quantile(power, degrees) * error


def levels_of_pairs(size: int, *, twice: bool) -> tuple[float, ...]:
    """One-sided: Holm's for a test that decides alone; for two 5 %, then half of it, for 5 % two-sided."""
    return (ALPHA, ALPHA / 2) if twice else (ALPHA / max(size, 2),)
