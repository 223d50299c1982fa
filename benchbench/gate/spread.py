"""The stored sessions of a baseline: which count as one, and how far a run departs from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from benchbench.stats import Difference, deviation, mean

SITTING_S = 3600.0  # sessions begun closer together share the machine's weather, and count as one
ENOUGH = 5  # fewer sessions say too little of how sessions differ: then a spread is assumed as well
ASSUMED_SHARED, ASSUMED_DEDICATED = 0.02, 0.005  # relative, between sessions of a machine
ASSUMED_DEGREES = 9  # an assumed spread counts as much as one seen in ten sessions


@dataclass(frozen=True, slots=True)
class Departure:
    """`spread`: standard deviation of the sessions' logarithms, None for one session.

    `provisional`: the error stands on an assumed spread, not only on what was seen.
    """

    difference: Difference
    spread: float | None
    provisional: bool


def departure(
    sessions: Sequence[Sequence[float]], new: Sequence[float], assumed: float, least: float = 1e-4
) -> Departure:
    """`new` against `sessions`, each the logarithms of its processes, as one further session.

    A new session differs from the mean of K by s √(1 + 1/K), with t of K − 1 degrees of freedom; s, the
    spread of the sessions' means, holds the noise of their processes. Where the processes alone explain
    more, their error counts. Below `ENOUGH` sessions s is at least `assumed`. Raises ValueError for no
    session, or one without a value.
    """
    if not (new and sessions and all(sessions)):
        raise ValueError("a session without a value")
    count, places = len(sessions), [mean(values) for values in sessions]
    spread = deviation(places) if count > 1 else None
    provisional = count < ENOUGH
    floor = assumed if provisional else least
    between = max(spread or 0.0, floor, least) ** 2 * (1 + 1 / count)
    variance, degrees = _pooled([*sessions, new])
    shares = 1 / len(new) + sum(1 / len(values) for values in sessions) / count**2
    within = max(variance, least**2) * shares if degrees else 0.0
    if not provisional or (between >= within and spread is not None and spread > floor):
        degrees = count - 1
    elif between >= within:
        degrees = ASSUMED_DEGREES
    error = math.sqrt(max(between, within))
    return Departure(Difference(mean(new) - mean(places), error, degrees), spread, provisional)


def sittings(started: Sequence[str]) -> list[int]:
    """The sitting of each session, from 0: one begins an hour after the session before began, or later."""
    found, sitting, before = dict[int, int](), -1, -math.inf
    for index in sorted(range(len(started)), key=lambda each: started[each]):
        now = _moment(started[index])
        sitting += not now - before < SITTING_S  # also where no date is known
        found[index], before = sitting, now
    return [found[index] for index in range(len(started))]


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return math.nan


def _pooled(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """The variance within groups, and its degrees of freedom."""
    several = [values for values in groups if len(values) > 1]
    degrees = sum(len(values) - 1 for values in several)
    squares = math.fsum((len(values) - 1) * deviation(values) ** 2 for values in several)
    return (squares / degrees if degrees else 0.0), degrees
