"""Objects in the result of a user's function: finds arrays, whose devices the timer waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MAX_PARTS = 10_000  # objects of one result


def parts_of(result: Any) -> Iterator[Any]:
    """Yield the result and the objects in its containers and attributes, each once."""
    waiting, visited_ids = [result], set[int]()
    while waiting and len(visited_ids) < MAX_PARTS:
        part = waiting.pop()
        if id(part) in visited_ids or isinstance(part, str | bytes | int | float | None):
            continue
        visited_ids.add(id(part))
        yield part
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, tuple | list | set | frozenset):
            waiting += part
        else:
            waiting += _attributes_of(part)


def _attributes_of(part: Any) -> Iterator[Any]:
    """Yield the attributes of an instance, from its dictionary and from slots of its classes."""
    yield from getattr(part, "__dict__", {}).values()
    for kind in type(part).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                yield getattr(part, name, None)
