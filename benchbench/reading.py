"""Readers for files that anybody may have written: regular files of limited size, strict JSON and TOML.

Reading ends in bounded time and memory, with values that fit into floats or with an error that names the
place.
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

LARGEST = 10**30  # of bytes, FLOPs, seconds, iterations: the product of nine such numbers is a finite float
LARGEST_IN_TOML = 2**63 - 1  # TOML 1.0: integers have 64 bits
MAX_TOML_BYTES = 2**20
MAX_TOML_DEPTH = 100  # nested tables and lists, which are read recursively
PIECE_BYTES = 2**20  # per read, since a buffer of this size is allocated, however little there is
DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952
LONG_NUMBER = b"0" * 31  # every number beyond LARGEST has so many digits in a row


def read_file(path: Path, max_bytes: int, hint: str = "") -> bytes:
    """Content of a regular file. Raises UnreadableInput, also for a larger file.

    Other files are refused, since reading a pipe may block and a device may have no end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise opening a pipe may block
        with os.fdopen(descriptor, "rb") as file:
            is_regular = S_ISREG(os.fstat(descriptor).st_mode)
            content = read_at_most(file, max_bytes + 1) if is_regular else b""
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror or error}", hint) from error
    if not is_regular or len(content) > max_bytes:
        reason = f"larger than {max_bytes} bytes" if is_regular else "not a regular file"
        raise UnreadableInput(f"{path}: {reason}", hint)
    return content


def read_at_most(file: BufferedIOBase, max_bytes: int) -> bytes:
    """Read up to `max_bytes` from a stream, in pieces, so that only existing bytes take memory."""
    pieces: list[bytes] = []
    while max_bytes and (piece := file.read(min(max_bytes, PIECE_BYTES))):
        pieces.append(piece)
        max_bytes -= len(piece)
    return b"".join(pieces)


def decompress(content: bytes, max_bytes: int) -> bytes:
    """Decompress gzip; return other content unchanged. Raises UnreadableInput, also for a larger result."""
    if not content.startswith(GZIP_MAGIC):
        return content
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            decompressed = read_at_most(file, max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableInput(f"it cannot be unpacked: {error}") from error
    if len(decompressed) > max_bytes:
        raise UnreadableInput(f"unpacked it is larger than {max_bytes} bytes")
    return decompressed


def read_toml(path: Path) -> dict[str, Any]:
    """Raises UnreadableInput, or ValueError with the place of a mistake."""
    return parse_toml(read_file(path, MAX_TOML_BYTES))


def parse_toml(text: bytes) -> dict[str, Any]:
    """Raises ValueError with the place of a mistake."""
    try:
        fields = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # Python refuses to convert so many digits
        raise ValueError("an integer of thousands of digits") from None
    for name, value in fields.items():
        _check(value, name)
    return fields


def _check(value: Any, place: str, depth: int = 1) -> None:
    """Raises ValueError."""
    if depth > MAX_TOML_DEPTH:
        raise ValueError(f"{place[:50]}…: nested too deeply")
    if isinstance(value, dict):
        for name, item in value.items():
            _check(item, f"{place}.{name}", depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value, start=1):
            _check(item, f"{place}[{number}]", depth + 1)
    elif isinstance(value, str) and "\0" in value:  # it may name a file or a folder
        raise ValueError(f"{place}: a NUL character")
    elif isinstance(value, int) and abs(value) > LARGEST_IN_TOML:
        raise ValueError(f"{place}: an integer beyond {LARGEST_IN_TOML}")


def unix_time(text: str) -> float:
    """Seconds since 1970 for an ISO 8601 date or time, in UTC unless it has a zone. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_json(text: bytes, *, unique: bool = True) -> Any:
    """Raises UnreadableInput for invalid JSON, NaN, deep nesting, a huge integer or a duplicate key.

    `unique`: look for duplicate keys, which takes longer than parsing. It is unnecessary for text with a
    valid checksum, since accelbench wrote it.
    """
    import msgspec

    try:
        raw = msgspec.json.decode(text)
        if LONG_NUMBER in text.translate(DIGITS_TO_ZERO) and has_huge_integer(raw):
            raise ValueError("an integer has more than 30 digits")
        if unique:
            json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"not valid JSON: {str(error)[:200]}") from error
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {duplicate[:50]!r} appears twice")
    return fields


def has_huge_integer(value: Any) -> bool:
    """True if JSON values contain an integer beyond LARGEST, since files may contain any number of digits."""
    if isinstance(value, dict):
        return any(map(has_huge_integer, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_huge_integer, value))
    return isinstance(value, int) and abs(value) > LARGEST
