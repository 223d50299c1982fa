"""A checksum at the end of a JSON object, over the bytes before it: a bit that flips on a disk is not read.

The object stays JSON: `{"a": 1}` becomes `{"a": 1,"crc32":"f0a1b2c3"}`. CRC-32 finds every change of up to 32
bits in a row (Koopman & Chakravarty 2004, "Cyclic redundancy code polynomial selection for embedded
networks"); against a change on purpose it is no protection.
"""

from __future__ import annotations

import re
from zlib import crc32

from benchbench.errors import UnreadableInput

SEAL = re.compile(rb',"crc32":"([0-9a-f]{8})"}(\n?)$')


def sealed(text: bytes) -> bytes:
    """`text`, a JSON object that is not empty, with its checksum; a newline at the end stays there."""
    body, newline = text.rstrip(b"\n"), b"\n" if text.endswith(b"\n") else b""
    return body[:-1].rstrip() + b',"crc32":"%08x"}' % _checksum(body) + newline


def unsealed(text: bytes, *, required: bool) -> bytes:
    """`text`, its checksum compared. Raises UnreadableInput where it differs, or is required and absent."""
    seal = SEAL.search(text)
    if seal is None:
        if required:
            raise UnreadableInput("it has no checksum: it was changed or cut off")
        return text
    if int(seal[1], 16) != _checksum(text[: seal.start()] + b"}"):
        raise UnreadableInput("it does not match its checksum: it was changed after it was written")
    return text


def _checksum(body: bytes) -> int:
    """Blanks before the last brace do not count: they are not kept."""
    return crc32(body[:-1].rstrip())
