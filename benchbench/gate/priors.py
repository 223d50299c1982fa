"""What the sessions of all cases of a check tell of how much those of one differ. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchbench.gate.spread import ENOUGH

OUTLYING_P = 0.02  # of a case that differs as all do: less likely ones differ by more
OWN_SHARE = 0.6  # of a case's own variance, at least: some may differ by more that cannot be told from chance


@dataclass(frozen=True, slots=True)
class CommonVariance:
    """Sessions differ by the same in every case: the variance of all, known with their degrees of freedom."""

    variance: float
    degrees: float

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """Of a case with variance `own`, known with `degrees`: what is taken for both.

        Its own where chance would seldom have it so large, else at least `OWN_SHARE` of that: a few cases
        that differ more would alarm.
        """
        from scipy.special import fdtrc

        outlying = fdtrc(degrees, self.degrees, own / self.variance) < OUTLYING_P
        return (own if outlying else max(self.variance, OWN_SHARE * own)), max(degrees, self.degrees)


@dataclass(frozen=True, slots=True)
class HeavyTails:
    """Some sessions are far from the rest, and a further one may be, in any case.

    So each has at least the variance of all, and t of `ENOUGH` − 1 degrees of freedom however many sessions
    there are: its tails are about as heavy as those of sessions with t₃.
    """

    variance: float

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """As of `CommonVariance`."""
        return max(own, self.variance), min(degrees, ENOUGH - 1)
