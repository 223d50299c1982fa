"""Ids of runs, which sort by start time, and their tags."""

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
COMMIT = "commit"  # set automatically in a git checkout
DIRTY = "-dirty"  # suffix of a commit whose files were changed
FLEET, MACHINE, INSTEAD_OF = "fleet", "machine", "instead-of"  # set for the runs of a fleet
BISECT, VERSION = "bisect", "version"  # set for the runs of a bisection
HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b")  # SHA-1 or SHA-256


class IdSource:
    """Create ids that sort by time. Each is greater than the last, even if the clock goes back."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, now: float | None = None, randomness: Callable[[int], bytes] = os.urandom) -> str:
        """Create a ULID: 48 bits of Unix milliseconds, 80 random bits, in base 32 (github.com/ulid/spec)."""
        milliseconds = int((time.time() if now is None else now) * 1000)
        fresh = milliseconds << 80 | int.from_bytes(randomness(10))
        if fresh <= self._last:  # a random step, since forked processes share `_last`
            fresh = self._last + 1 + int.from_bytes(randomness(8))
        self._last = fresh
        return "".join(CROCKFORD[fresh >> shift & 31] for shift in range(125, -1, -5))

    def follow(self, name: str) -> None:
        """Make all later ids greater than `name`, a ULID."""
        self._last = max(self._last, _number(name))


new_id = IdSource()


class Dated(Protocol):
    """A run's id, start time and tags."""

    @property
    def id(self) -> str:
        """A ULID, unless the run was renamed."""

    @property
    def started(self) -> str:
        """Start time in ISO 8601, UTC."""

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags as name → value."""


def start_time(info: Dated) -> float:
    """Start time of a run in Unix seconds, from its id if that is a ULID; 0 if unknown."""
    if ULID.fullmatch(info.id):
        return (_number(info.id) >> 80) / 1000
    with suppress(ValueError):
        return unix_time(info.started)
    return 0.0


def _number(ulid: str) -> int:
    return sum(CROCKFORD.index(letter) << 5 * place for place, letter in enumerate(reversed(ulid)))


def fleet_of(tags: Mapping[str, str]) -> str:
    """Id of the fleet that a run with these tags belongs to, or an empty text."""
    return tags[FLEET] if MACHINE in tags and ULID.fullmatch(tags.get(FLEET, "")) else ""


def bisect_of(tags: Mapping[str, str]) -> str:
    """Id of the bisection that a run with these tags belongs to, or an empty text."""
    return tags[BISECT] if VERSION in tags and ULID.fullmatch(tags.get(BISECT, "")) else ""


def commit_name(name: str, *, dirty: bool) -> str:
    """Value of the commit tag: the hash, with a suffix if files were changed."""
    return name + DIRTY if dirty else name


def short(value: str) -> str:
    """Shorten the hashes in a text to twelve digits."""
    return HASH.sub(r"\1", value)


def tags_text(tags: Mapping[str, str]) -> str:
    """Format tags as `commit=1f0c2a9b7d3e, branch=main`."""
    return ", ".join(f"{name}={short(value)}" for name, value in tags.items())
