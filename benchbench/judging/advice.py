"""The likely size of a change that was called, and the effort that would decide one that was not. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left

from benchbench.judging.sessions import ENOUGH, SessionDeviation
from benchbench.judging.significance import Estimate, Family
from benchbench.stats import Difference, t_quantile, t_tail

HALVINGS = 40
FARTHEST = 30.0  # in errors: beyond it the tails have no float


def likely_size(difference: Difference, margin: float, level: float) -> float:
    """The size of a change as a logarithm, allowing for that it is told only where it looks large.

    What is called lies beyond a bar: the `margin` of the threshold, and significance at `level`, one-sided.
    Of the estimates there that a change of the likely size gives, half are above the one seen:
    median-unbiased given the selection (Fithian, Sun & Taylor 2014, "Optimal inference after model
    selection"). At least `margin`, which the change is said to have reached.
    """
    seen, error, degrees = abs(difference.mid), difference.error, difference.degrees
    bar = min(seen, max(margin, t_quantile(1 - level, degrees) * error))

    def beyond(size: float) -> float:
        """The share of called estimates above the one seen."""
        return t_tail((size - seen) / error, degrees) / t_tail((size - bar) / error, degrees)

    low, high = max(margin, seen - FARTHEST * error), seen
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) < 1 / 2 else (low, middle)
    return low


MOST_SESSIONS = 10  # of a machine that a baseline keeps
MOST_ROUNDS = 100
SPREAD_TOO_LARGE = "sessions differ too much for this threshold: interleave with the baseline's code (--ab)"
TOO_CLOSE = f"too close to the threshold to be told in {MOST_ROUNDS} rounds"


def advice(estimate: Estimate, deviation: SessionDeviation | None, family: Family) -> str:
    """How many more sessions or rounds would settle the case, if estimate and noise stay as they are.

    `deviation`: from the sessions; None where the two sides were interleaved.
    """
    if deviation is None or estimate.interleaved:
        return _pairs(estimate, family)
    if deviation.provisional:
        missing = ENOUGH - deviation.days
        return f"{missing} more session{'s' if missing > 1 else ''} on other days would tell how they differ"
    return _sessions(estimate, deviation, family) or _rounds(estimate, deviation, family)


def _pairs(estimate: Estimate, family: Family) -> str:
    count, error = estimate.against, estimate.difference.error
    for rounds in range(count + 1, MOST_ROUNDS + 1):
        known = max(rounds - 1, estimate.difference.degrees)
        if _tells(estimate, error * math.sqrt(count / rounds), known, family):
            return f"about {rounds} rounds would tell"
    return TOO_CLOSE


def _sessions(estimate: Estimate, deviation: SessionDeviation, family: Family) -> str:
    """Where the sessions explain the error, and more of them would make it small enough."""
    for days in range(deviation.days + 1, MOST_SESSIONS + 1):
        error = deviation.further * math.sqrt(1 + 1 / days)
        small = error >= _processes_error(deviation, estimate.processes)
        known = max(days - 1, estimate.difference.degrees)  # more where other cases tell as well
        if small and _tells(estimate, error, known, family):
            more = days - deviation.days
            return f"about {more} more session{'s' if more > 1 else ''} on other days would tell"
    return ""


def _rounds(estimate: Estimate, deviation: SessionDeviation, family: Family) -> str:
    """Where the processes explain the error, and more of them would make it small enough."""
    floor = deviation.further * math.sqrt(1 + 1 / deviation.days)

    def tells(rounds: int) -> bool:
        error = max(floor, _processes_error(deviation, rounds))
        return _tells(estimate, error, estimate.difference.degrees, family)

    counts = range(estimate.processes + 1, MOST_ROUNDS + 1)
    first = bisect_left(counts, True, key=tells)  # the error only falls with their number
    return f"about {counts[first]} rounds would tell" if first < len(counts) else SPREAD_TOO_LARGE


def _processes_error(deviation: SessionDeviation, rounds: int) -> float:
    """With as many processes in the run; those of the sessions stay as they are."""
    return math.sqrt(deviation.process_variance / rounds + deviation.stored_variance)


def _tells(estimate: Estimate, error: float, degrees: float, family: Family) -> bool:
    """Whether the same estimate would be within the threshold, or significant beyond it."""
    size = abs(estimate.difference.mid)
    if size < estimate.margin:
        return size + t_quantile(0.95, degrees) * error < estimate.margin
    return size >= t_quantile(1 - family.level, degrees) * error
