"""What a run goes by: its id, which sorts by the time it began, and its tags, as stored and shown."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from benchbench.reading import unix_time

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
ULID = re.compile(f"[0-7][{CROCKFORD}]{{25}}")
COMMIT = "commit"  # filled in by itself where a run is made in a git checkout
DIRTY = "-dirty"  # after a commit: files of it were changed
FLEET, MACHINE, INSTEAD_OF = "fleet", "machine", "instead-of"  # of the runs of a fleet, filled in as well
BISECT, VERSION = "bisect", "version"  # of the runs of a bisection, likewise
HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b")  # SHA-1 or SHA-256


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


class Dated(Protocol):
    """What tells when a run began, and what it is filed under."""

    @property
    def id(self) -> str:
        """The run's id, a ULID unless it was renamed."""

    @property
    def started(self) -> str:
        """The time in ISO 8601, UTC."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Name → value."""


def begun(info: Dated) -> float:
    """When a run began, for its place among others: Unix seconds, by its id if that tells; 0: unknown."""
    if ULID.fullmatch(info.id):
        return (_number(info.id) >> 80) / 1000
    with suppress(ValueError):
        return unix_time(info.started)
    return 0.0


def _number(ulid: str) -> int:
    return sum(CROCKFORD.index(letter) << 5 * place for place, letter in enumerate(reversed(ulid)))


def fleet_of(tags: Mapping[str, str]) -> str:
    """The fleet that a run with these tags belongs to; empty for a run of its own."""
    return tags[FLEET] if MACHINE in tags and ULID.fullmatch(tags.get(FLEET, "")) else ""


def bisect_of(tags: Mapping[str, str]) -> str:
    """The bisection that a run with these tags belongs to; empty for a run of its own."""
    return tags[BISECT] if VERSION in tags and ULID.fullmatch(tags.get(BISECT, "")) else ""


def commit_name(name: str, *, dirty: bool) -> str:
    """A commit's hash as a tag has it, told apart where files of it were changed."""
    return name + DIRTY if dirty else name


def short(value: str) -> str:
    """`value`, its hashes cut to twelve digits."""
    return HASH.sub(r"\1", value)


def tags_text(tags: Mapping[str, str]) -> str:
    """`commit=1f0c2a9b7d3e, branch=main`."""
    return ", ".join(f"{name}={short(value)}" for name, value in tags.items())
