"""What all cases of a check say about how much the sessions of one case differ. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchbench.judging.sessions import ENOUGH

OUTLYING_P = 0.02  # of a case that differs as all do: less likely ones differ by more
OWN_SHARE = 0.6  # of a case's own variance, at least: some may differ by more that cannot be told from chance


@dataclass(frozen=True, slots=True)
class CommonVariance:
    """Sessions differ equally in every case: the variance over all cases, and its degrees of freedom."""

    variance: float
    degrees: float

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """The variance and degrees of freedom to assume for a case that has `own` and `degrees` by itself.

        The variance is the case's own where chance would seldom make it so large. Else it is that of all, and
        at least `OWN_SHARE` of its own, since the few cases that do differ by more would raise false alarms.
        """
        from scipy.special import fdtrc

        outlying = fdtrc(degrees, self.degrees, own / self.variance) < OUTLYING_P
        return (own if outlying else max(self.variance, OWN_SHARE * own)), max(degrees, self.degrees)


@dataclass(frozen=True, slots=True)
class HeavyTails:
    """Some sessions are far from the rest, so in any case a further session may be.

    Every case has at least the variance over all cases, and `ENOUGH` − 1 degrees of freedom however many
    sessions there are: the tails are about as heavy as those of sessions with t₃.
    """

    variance: float

    def posterior(self, own: float, degrees: float) -> tuple[float, float]:
        """As of `CommonVariance`."""
        return max(own, self.variance), min(degrees, ENOUGH - 1)
