"""Likely size of a significant change, and the effort that would decide an undecided case. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left

from benchbench.format import count_of
from benchbench.judging.sessions import MIN_SESSIONS, SessionDeviation
from benchbench.judging.significance import Estimate, Family
from benchbench.stats import Difference, t_quantile, t_tail

HALVINGS = 40
MAX_ERRORS = 30.0  # standard errors; beyond, the tails underflow


def likely_size(difference: Difference, margin: float, level: float) -> float:
    """Likely size of a significant change, as a logarithm, corrected for selection.

    Only changes beyond a limit are called: the `margin` of the threshold and significance at the one-sided
    `level`. The result is the size for which half of the called estimates would be larger than this one,
    a median-unbiased estimate given the selection (Fithian, Sun & Taylor 2014, "Optimal inference after model
    selection"). It is at least `margin`.
    """
    observed, error, degrees = abs(difference.mid), difference.error, difference.degrees
    limit = min(observed, max(margin, t_quantile(1 - level, degrees) * error))

    def beyond(size: float) -> float:
        """Share of called estimates that are larger than this one."""
        return t_tail((size - observed) / error, degrees) / t_tail((size - limit) / error, degrees)

    low, high = max(margin, observed - MAX_ERRORS * error), observed
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) < 1 / 2 else (low, middle)
    return low


MAX_SESSIONS = 10  # of a machine in a baseline: older ones show other weather
MAX_ROUNDS = 100
SPREAD_TOO_LARGE = "sessions differ too much for this threshold: interleave with the baseline's code (--ab)"
TOO_CLOSE = f"too close to the threshold to be decided in {MAX_ROUNDS} rounds"


def advice(estimate: Estimate, deviation: SessionDeviation | None, family: Family) -> str:
    """Number of additional sessions or rounds that would decide the case if estimate and noise stay the same.

    `deviation`: from the sessions; None if both sides were interleaved.
    """
    if deviation is None or estimate.interleaved:
        return _rounds_of_pairs(estimate, family)
    if deviation.is_provisional:
        missing_days = MIN_SESSIONS - deviation.days
        sessions = count_of(missing_days, "more session")
        return f"{sessions} on other days would show how they differ"
    return _more_sessions(estimate, deviation, family) or _more_rounds(estimate, deviation, family)


def _rounds_of_pairs(estimate: Estimate, family: Family) -> str:
    count, error = estimate.against, estimate.difference.error
    for rounds in range(count + 1, MAX_ROUNDS + 1):
        degrees = max(rounds - 1, estimate.difference.degrees)
        if _is_decided(estimate, error * math.sqrt(count / rounds), degrees, family):
            return f"about {rounds} rounds would decide"
    return TOO_CLOSE


def _more_sessions(estimate: Estimate, deviation: SessionDeviation, family: Family) -> str:
    """Advice if the variance between sessions is the larger part of the error; else an empty string."""
    for days in range(deviation.days + 1, MAX_SESSIONS + 1):
        error = deviation.predicted_deviation * math.sqrt(1 + 1 / days)
        is_session_error = error >= _processes_error(deviation, estimate.processes)
        degrees = max(days - 1, estimate.difference.degrees)  # more where other cases tell as well
        if is_session_error and _is_decided(estimate, error, degrees, family):
            return f"about {count_of(days - deviation.days, 'more session')} on other days would decide"
    return ""


def _more_rounds(estimate: Estimate, deviation: SessionDeviation, family: Family) -> str:
    """Advice if the variance between processes is the larger part of the error."""
    floor = deviation.predicted_deviation * math.sqrt(1 + 1 / deviation.days)

    def is_decided(rounds: int) -> bool:
        error = max(floor, _processes_error(deviation, rounds))
        return _is_decided(estimate, error, estimate.difference.degrees, family)

    counts = range(estimate.processes + 1, MAX_ROUNDS + 1)
    first = bisect_left(counts, True, key=is_decided)  # the error only falls with their number
    return f"about {counts[first]} rounds would decide" if first < len(counts) else SPREAD_TOO_LARGE


def _processes_error(deviation: SessionDeviation, rounds: int) -> float:
    """Standard error from the processes, with `rounds` of them in the run."""
    return math.sqrt(deviation.process_variance / rounds + deviation.stored_variance)


def _is_decided(estimate: Estimate, error: float, degrees: float, family: Family) -> bool:
    """True if the same estimate would be within the threshold, or significant beyond it."""
    size = abs(estimate.difference.mid)
    if size < estimate.margin:
        return size + t_quantile(0.95, degrees) * error < estimate.margin
    return size >= t_quantile(1 - family.level, degrees) * error
