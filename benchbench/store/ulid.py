"""Ids of runs: they sort by the time a run began, whatever the clock does."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress

from benchbench.model.run import RunInfo
from benchbench.reading import unix_time

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ULID = re.compile(f"[0-7][{CROCKFORD}]{{25}}")


class IdSource:
    """Makes ids that sort by time; each is greater than the one before, whatever the clock does."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, now: float | None = None, randomness: Callable[[int], bytes] = os.urandom) -> str:
        """A ULID: 48 bits of Unix milliseconds and 80 random bits in base 32 (github.com/ulid/spec)."""
        milliseconds = int((time.time() if now is None else now) * 1000)
        fresh = milliseconds << 80 | int.from_bytes(randomness(10))
        if fresh <= self._last:  # a random step, not 1: processes forked just now share `_last`
            fresh = self._last + 1 + int.from_bytes(randomness(8))
        self._last = fresh
        return "".join(CROCKFORD[fresh >> shift & 31] for shift in range(125, -1, -5))

    def follow(self, name: str) -> None:
        """Ids to come are greater than `name`, a ULID."""
        self._last = max(self._last, _number(name))


new_id = IdSource()


def _number(ulid: str) -> int:
    return sum(CROCKFORD.index(letter) << 5 * place for place, letter in enumerate(reversed(ulid)))


def begun(info: RunInfo) -> float:
    """When a run began, for its place among others: Unix seconds, by its id if that tells; 0: unknown."""
    if ULID.fullmatch(info.id):
        return (_number(info.id) >> 80) / 1000
    with suppress(ValueError):
        return unix_time(info.started)
    return 0.0
