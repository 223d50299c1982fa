"""Which inputs each step is given: with rotating caches, the next of several copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import Any

from benchbench.backends.base import CLEARING, Session
from benchbench.errors import Unsupported
from benchbench.model.case import Cache
from benchbench.model.note import Note, NoteKind, note

MOST_SETS = 2**14  # of inputs: more would mostly be the framework's own objects

Inputs = tuple[Any, ...]


def turns(
    cache: Cache, session: Session, inputs: Inputs, again: Callable[[], Inputs]
) -> tuple[Iterator[Inputs], Note | None]:
    """The inputs of one step after the other, without end, and a note on the copies, if there are any.

    `again()` makes another copy. Rotating copies together exceed twice the last-level cache, so that none is
    still in it when its turn comes again. Raises Unsupported where nothing can rotate.
    """
    if cache is not Cache.ROTATE:
        return repeat(inputs), None
    held, wanted = sum(map(session.nbytes, inputs)), CLEARING * session.cache_bytes()
    if held == 0:
        raise Unsupported("it has no inputs to rotate")
    count = wanted // held + 1
    if count > MOST_SETS:
        raise Unsupported(f"{count} copies of its inputs would be needed: take cold caches instead")
    if count == 1:
        return repeat(inputs), note(NoteKind.INPUTS_EXCEED_CACHE, bytes=held)
    sets = [inputs, *(again() for _ in range(count - 1))]
    return cycle(sets), note(NoteKind.COPIES_IN_PEAKS, copies=count, bytes=count * held)
