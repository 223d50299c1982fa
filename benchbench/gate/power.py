"""The smallest change that a check would call slower four times in five, all its rules included. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from benchbench.comparing.verdicts import ALPHA
from benchbench.stats import t_quantile

POWER = 0.8
POINTS = 48  # of the quadrature over a variance: its error in the power is below 0.01


def visible_to_sessions(margin: float, error: float, degrees: float, level: float, power: float) -> float:
    """As a logarithm, for a test against stored sessions.

    Given the sessions, a run is called slower beyond c = max(margin, t(1 − level) · error), and a further run
    deviates from them by t · error: c + t(power) · error is exceeded with that power.
    """
    needed = max(margin, t_quantile(1 - level, degrees) * error)
    return needed + t_quantile(power, degrees) * error


def visible_to_pairs(margin: float, error: float, degrees: float, levels: tuple[float, ...]) -> float:
    """As a logarithm, for paired tests at `levels`, each of new pairs, all of which have to call it slower.

    Each test has an error of its own, as uncertain as the one that is known, so the power is integrated over
    σ² = error² ν/χ²(ν) and over the errors of the tests to come.
    """
    relative = float(f"{margin / error:.3g}")  # as many digits as anybody sees, to compute it once
    return _relative(relative, degrees, levels) * error


@cache
def _relative(margin: float, degrees: float, levels: tuple[float, ...]) -> float:
    """`visible_to_pairs` in units of the error."""
    import numpy as np
    from scipy.special import gammaincinv, ndtr

    shares = (np.arange(POINTS) + 0.5) / POINTS
    roots = np.sqrt(gammaincinv(degrees / 2, shares) * 2 / degrees)
    known, to_come = roots[:, None], roots[None, :]

    def power(change: float) -> float:
        called = 1.0
        for level in levels:
            needed = np.maximum(margin * known, t_quantile(1 - level, degrees) * to_come)
            called = called * ndtr(change * known - needed).mean(axis=1)
        return float(np.mean(called))

    return _reached(power, POWER)


def _reached(power: Callable[[float], float], wanted: float) -> float:
    """The change with this power, which grows with it."""
    low, high = 0.0, 1.0
    while power(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= wanted else (middle, high)
    return high


def levels_of_pairs(size: int, *, twice: bool) -> tuple[float, ...]:
    """One-sided: Holm's for a test that decides alone; for two 5 %, then half of it, for 5 % two-sided."""
    return (ALPHA, ALPHA / 2) if twice else (ALPHA / max(size, 2),)
