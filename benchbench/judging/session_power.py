"""The smallest change that a check against sessions would call slower four times in five. Pure."""

from __future__ import annotations

from benchbench.judging.comparison import ALPHA
from benchbench.stats import t_quantile


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
