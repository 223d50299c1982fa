"""What one comparison of a check showed, first look or second. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.comparing.verdicts import ALPHA, LARGEST
from benchbench.gate.match import Held
from benchbench.stats import Difference, detectable, holm, mean

POWER = 0.8
FEWEST = 5  # a family counts as: sessions are neither independent nor normal, so a test alone needs 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One comparison. `ref` and `new` are geometric means, `ratio` is new / ref with its own 95 % interval.

    `p` is one-sided, of becoming worse; `p_holm` of the direction seen, adjusted for a `family` of tests.
    `mde` (0.02: 2 %): the smallest change found four times in five, by both looks where both decide.
    `against` counts sessions or, where measured `in_turn`, pairs of processes.
    """

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
class Seen:
    """A tested case before its p is adjusted: logarithms, `worse` turned so that above 0 is worse."""

    ref: float
    new: float
    found: Difference
    worse: Difference
    processes: int
    against: int
    in_turn: bool

    def beyond(self, threshold: float) -> bool:
        """Whether the estimate is worse by as much; alike in both directions, as a ratio."""
        return self.worse.mid >= math.log1p(threshold)


def seen(held: Held, found: Difference) -> Seen:
    """A case held against its sessions, or against the one it was measured in turn with."""
    sign = 1 if held.metric.better == "lower" else -1
    return Seen(
        ref=mean([mean(each) for each in held.sessions]),
        new=mean(held.logs),
        found=found,
        worse=Difference(sign * found.mid, found.error, found.degrees),
        processes=len(held.logs),
        against=len(held.logs) if held.in_turn else len(held.sessions),
        in_turn=held.in_turn,
    )


@dataclass(frozen=True, slots=True)
class Family:
    """Tests adjusted together, as `fewest` at least; an `mde` is for a one-sided `level` and this power."""

    size: int
    fewest: int
    level: float
    power: float


def family_of(size: int, *, stored: bool, twice: bool) -> Family:
    """`stored`: against sessions. `twice`: a second look in turn, a new experiment, has to see it too."""
    if twice:
        return Family(size, FEWEST if stored else 1, ALPHA / 2, math.sqrt(POWER))
    fewest = FEWEST if stored else 2  # no p is below the test's own two-sided one
    return Family(size, fewest, ALPHA / max(size, fewest), POWER)


def looks(found: Sequence[Seen], family: Family) -> list[Look]:
    """Adjusted for a family of tests, of which those not in `found` showed nothing.

    No p is below the case's own two-sided one.
    """
    rest = [1.0] * (family.size - len(found))
    above = holm([each.worse.p_above() for each in found] + rest, family.fewest)
    below = holm([each.worse.p_below() for each in found] + rest, family.fewest)
    tails = zip(found, above, below, strict=False)
    return [_look(each, max(each.found.p_either(), min(two)), family) for each, *two in tails]


def _look(each: Seen, p_holm: float, family: Family) -> Look:
    half = each.found.half_width()
    return Look(
        ref=_exp(each.ref),
        new=_exp(each.new),
        ratio=_exp(each.found.mid),
        low=_exp(each.found.mid - half),
        high=_exp(each.found.mid + half),
        p=each.worse.p_above(),
        p_holm=p_holm,
        family=family.size,
        mde=math.expm1(min(detectable(each.found, family.level, family.power), LARGEST)),
        degrees=each.found.degrees,
        processes=each.processes,
        against=each.against,
        in_turn=each.in_turn,
    )


def _exp(log: float) -> float:
    return math.exp(max(-LARGEST, min(LARGEST, log)))
