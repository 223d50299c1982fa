"""Readers of files from outside: regular files of limited size, JSON and TOML that mean one thing only.

Whoever wrote it, reading ends in bounded time and memory, with a value that our arithmetic can hold or with
an error that names the place.
"""

from __future__ import annotations

import gzip
import json
import os
import tomllib
import zlib
from datetime import UTC, datetime
from io import BufferedIOBase, BytesIO
from pathlib import Path
from stat import S_ISREG
from typing import Any

from benchbench.errors import UnreadableInput

LARGEST = 10**30  # of bytes, FLOPs, seconds, iterations: products of nine such numbers are still floats
LARGEST_IN_TOML = 2**63 - 1  # TOML 1.0: integers have 64 bits
MOST_TOML = 2**20  # bytes
DEEPEST_IN_TOML = 100  # tables and lists in each other: what reads them calls itself
PIECE = 2**20  # bytes that are asked for at once: a buffer of as many is taken, however few there are
DIGITS = bytes.maketrans(b"123456789", b"000000000")
GZIP = b"\x1f\x8b"  # begins what it packed (RFC 1952)
LONG = b"0" * 31  # no number without such a row of digits is beyond LARGEST


def read_file(path: Path, most: int, hint: str = "") -> bytes:
    """A regular file of at most that many bytes. Raises UnreadableInput.

    What is none is not read: a pipe would be waited for, a device might have no end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a pipe is waited for already here
        with os.fdopen(descriptor, "rb") as file:
            regular = S_ISREG(os.fstat(descriptor).st_mode)
            content = read_at_most(file, most + 1) if regular else b""
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}", hint) from error
    if not regular or len(content) > most:
        what = f"larger than {most} bytes" if regular else "not a regular file"
        raise UnreadableInput(f"{path}: {what}", hint)
    return content


def read_at_most(file: BufferedIOBase, most: int) -> bytes:
    """What is left of a stream, but no more than `most` bytes; no memory is taken for what is not there."""
    pieces: list[bytes] = []
    while most and (piece := file.read(min(most, PIECE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def unpacked(content: bytes, most: int) -> bytes:
    """What gzip packed into `content`, of at most that many bytes; else `content` as it is.

    Raises UnreadableInput.
    """
    if not content.startswith(GZIP):
        return content
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            found = read_at_most(file, most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableInput(f"it cannot be unpacked: {error}") from error
    if len(found) > most:
        raise UnreadableInput(f"unpacked it is larger than {most} bytes")
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """Raises UnreadableInput; ValueError, with the place, for what is no TOML."""
    return parse_toml(read_file(path, MOST_TOML))


def parse_toml(text: bytes) -> dict[str, Any]:
    """Raises ValueError, with the place, for what is no TOML."""
    try:
        fields = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # of Python, which converts no more digits
        raise ValueError("an integer of thousands of digits") from None
    for name, value in fields.items():
        _check(value, name)
    return fields


def _check(value: Any, where: str, depth: int = 1) -> None:
    """Raises ValueError."""
    if depth > DEEPEST_IN_TOML:
        raise ValueError(f"{where[:50]}…: nested too deeply")
    if isinstance(value, dict):
        for name, each in value.items():
            _check(each, f"{where}.{name}", depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value, start=1):
            _check(each, f"{where}[{number}]", depth + 1)
    elif isinstance(value, str) and "\0" in value:  # it may name a file or a folder
        raise ValueError(f"{where}: a NUL character")
    elif isinstance(value, int) and abs(value) > LARGEST_IN_TOML:
        raise ValueError(f"{where}: an integer beyond {LARGEST_IN_TOML}")


def unix_time(text: str) -> float:
    """Seconds since 1970 of a date or time in ISO 8601; without a zone it is in UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_json(text: bytes, *, unique: bool = True) -> Any:
    """Raises UnreadableInput: no JSON, NaN, nested too deeply, an integer too large, or a key twice.

    `unique`: compare keys, which takes longer than to read; what has a checksum was written by us.
    """
    import msgspec

    try:
        raw = msgspec.json.decode(text)
        if LONG in text.translate(DIGITS) and has_huge_integer(raw):
            raise ValueError("an integer has more than 30 digits")
        if unique:
            json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"not valid JSON: {str(error)[:200]}") from error
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:50]!r} appears twice")
    return found


def has_huge_integer(value: Any) -> bool:
    """Whether JSON values hold an integer beyond LARGEST: files may say any number of digits."""
    if isinstance(value, dict):
        return any(map(has_huge_integer, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_huge_integer, value))
    return isinstance(value, int) and abs(value) > LARGEST
