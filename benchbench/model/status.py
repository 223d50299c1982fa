"""How a case ended, and what can be said of it."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """What can be said of a case. Of a metric that is no time, slower means worse and faster better."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    PROVISIONAL = "provisional"  # slower, on too few sessions of a baseline to count as that
    INCONCLUSIVE = "inconclusive"  # too much noise for the threshold
    INSUFFICIENT = "insufficient"  # too few values, or not steady: not tested
    INCOMPARABLE = "incomparable"  # measured under other conditions
    NEW = "new"
    GONE = "gone"
    BROKEN = "broken"  # was ok and fails now


class Status(StrEnum):
    """How a case ended; every name a report can show."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    WRONG_RESULT = "wrong_result"
    UNVERIFIED = "unverified"  # measured, and nothing says whether the result is right
    IMPLAUSIBLE = "implausible"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"
    INCOMPARABLE = "incomparable"  # not measured: the two sides take or give other arrays
    LOST = "lost"  # its machine or its device was lost before the last of its rounds
