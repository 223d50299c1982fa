"""What a run is filed under: names and values, as typed, as stored and as shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from benchbench.errors import UsageError
from benchbench.store.ulid import ULID

COMMIT = "commit"  # filled in by itself where a run is made in a git checkout
DIRTY = "-dirty"  # after a commit: files of it were changed
FLEET, MACHINE, INSTEAD_OF = "fleet", "machine", "instead-of"  # of the runs of a fleet, filled in as well
BARE = "tag"  # the name of a value that was given none
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}")
HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,52}\b")  # SHA-1 or SHA-256
HINT = "Write --tag branch=main, or --tag VALUE."


def parse_tags(texts: Iterable[str]) -> dict[str, str]:
    """`["branch=main", "v2"]` → {"branch": "main", "tag": "v2"}. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        before, equals, after = text.partition("=")
        name, value = (before, after) if equals else (BARE, before)
        if name in found:
            raise UsageError(f"The tag {name!r} is given twice.", "A run has one value of each.")
        found[name] = value
    return check_tags(found)


def check_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """`tags`, if each has a name and a value. Raises UsageError."""
    for name, value in tags.items():
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise UsageError(f"{name!r} cannot name a tag.", HINT)
        if not (isinstance(value, str) and value.strip()):
            raise UsageError(f"The tag {name!r} has no value.", HINT)
    return dict(tags)


def fleet_of(tags: Mapping[str, str]) -> str:
    """The fleet that a run with these tags belongs to; empty for a run of its own."""
    return tags[FLEET] if MACHINE in tags and ULID.fullmatch(tags.get(FLEET, "")) else ""


def commit_name(name: str, *, dirty: bool) -> str:
    """A commit's hash as a tag has it, told apart where files of it were changed."""
    return name + DIRTY if dirty else name


def short(value: str) -> str:
    """With hashes cut to twelve digits."""
    return HASH.sub(r"\1", value)


def tags_text(tags: Mapping[str, str]) -> str:
    """`commit=1f0c2a9b7d3e, branch=main`."""
    return ", ".join(f"{name}={short(value)}" for name, value in tags.items())
