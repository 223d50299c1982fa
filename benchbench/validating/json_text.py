"""Strict JSON, and the checksum at the end of an object, as docs/formats.md defines it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any
from zlib import crc32

MARK = b',"crc32":"'
DIGITS, END = 8, b'"}'
MOST_VALUES = 2**22  # in one object, as docs/formats.md says


def parsed(text: bytes) -> dict[str, Any]:
    """A JSON object: each key once, every number finite. Raises ValueError for anything else."""
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:  # those in texts count too
        raise ValueError(f"more than {MOST_VALUES} values")
    try:
        found = json.loads(
            text.decode(),
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_constant=_refused,
        )
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeError:
        raise ValueError("not UTF-8, or half of a character") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:100]!r} appears twice")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is beyond what a number can be")
    return value


def _refused(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def checksum_fault(text: bytes, *, required: bool) -> str:
    """What is wrong with the checksum of a JSON object, if anything."""
    body = text.rstrip(b"\n")
    place = len(body) - len(MARK) - DIGITS - len(END)
    if place < 0 or body[place : place + len(MARK)] != MARK or not body.endswith(END):
        return "it has no checksum" if required else ""
    told = body[place + len(MARK) : -len(END)].decode(errors="replace")
    computed = f"{crc32(body[:place].rstrip()):08x}"
    return "" if told == computed else f"its checksum is {told}, and {computed} was computed"
