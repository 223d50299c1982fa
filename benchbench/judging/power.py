"""The smallest change that is called slower four times in five, all rules included. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from benchbench.stats import t_quantile

POWER = 0.8
POINTS = 32  # of the quadrature over a variance: its error in the power is below 0.01
PRECISION = 1e-3  # of the change, relative


def visible_change(margin: float, error: float, degrees: float, levels: tuple[float, ...]) -> float:
    """As a logarithm, for tests of new processes at `levels`, one-sided, all of which have to call it slower.

    A test calls what is significant and at least `margin`. Each has an error of its own, as uncertain as the
    one that is known, so the power is integrated over σ² = error² ν/χ²(ν) and over the errors of the tests to
    come.
    """
    return _relative(_rounded(margin / error), _rounded(degrees), levels) * error


def _rounded(value: float) -> float:
    """As many digits as anybody sees, to compute each once."""
    return float(f"{value:.3g}")


@cache
def _relative(margin: float, degrees: float, levels: tuple[float, ...]) -> float:
    """`visible_change` in units of the error."""
    import numpy as np
    from scipy.special import gammaincinv, ndtr

    shares = (np.arange(POINTS) + 0.5) / POINTS
    roots = np.sqrt(gammaincinv(degrees / 2, shares) * 2 / degrees)
    known, to_come = roots[:, None], roots[None, :]
    needed = [np.maximum(margin * known, t_quantile(1 - level, degrees) * to_come) for level in levels]

    def power(change: float) -> float:
        called = 1.0
        for bar in needed:
            called = called * ndtr(change * known - bar).mean(axis=1)
        return float(np.mean(called))

    return _reached(power, POWER)


def _reached(power: Callable[[float], float], wanted: float) -> float:
    """The change with this power, which grows with it."""
    low, high = 0.0, 1.0
    while power(high) < wanted:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= wanted else (middle, high)
    return high
