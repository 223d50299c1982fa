"""Outcomes of cases, and verdicts on them."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Verdict on a case. For metrics other than times, slower means worse and faster better."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    PROVISIONAL = "provisional"  # slower, but the baseline has too few sessions to be sure
    INCONCLUSIVE = "inconclusive"  # too much noise for the threshold
    INSUFFICIENT = "insufficient"  # too few values, or not steady: not tested
    INCOMPARABLE = "incomparable"  # measured under other conditions
    NEW = "new"
    GONE = "gone"
    BROKEN = "broken"  # worked before, fails now


class Status(StrEnum):
    """Outcome of a case."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    WRONG_RESULT = "wrong_result"
    UNVERIFIED = "unverified"  # the result could not be verified; measured unless a later call failed
    IMPLAUSIBLE = "implausible"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"
    INCOMPARABLE = "incomparable"  # not measured, since the inputs or outputs of the two sides differ
    LOST = "lost"  # its machine or device was lost before its last round
