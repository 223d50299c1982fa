"""The objects that a user's function returned: searched for arrays, whose devices have to be waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST_PARTS = 10_000  # objects of one result


def parts_of(result: Any) -> Iterator[Any]:
    """The result itself and what its containers and attributes hold, each object once."""
    waiting, seen = [result], set[int]()
    while waiting and len(seen) < MOST_PARTS:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, str | bytes | int | float | None):
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, Mapping):
            waiting += part.values()
        elif isinstance(part, tuple | list | set | frozenset):
            waiting += part
        else:
            waiting += _attributes_of(part)


def _attributes_of(part: Any) -> Iterator[Any]:
    """The attributes of an instance, whether they are in its dictionary or in slots of its classes."""
    yield from getattr(part, "__dict__", {}).values()
    for kind in type(part).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                yield getattr(part, name, None)
