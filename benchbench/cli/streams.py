"""Standard output and error, which may be lost: a reader ends, a terminal closes, a disk fills up."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from select import select
from typing import Any

from benchbench.errors import CannotWrite


class Stream(io.FileIO):
    """A standard stream as bytes. Once it is lost, what is written to it is dropped."""

    def __init__(self, descriptor: int, *, needed: bool) -> None:
        """`needed`: its loss is an error, unless its reader has ended and wants no more."""
        super().__init__(descriptor, "w", closefd=False)
        self._needed = needed
        self._lost = False

    def write(self, content: Any) -> int:
        """The number of bytes taken. Raises CannotWrite."""
        try:
            return len(content) if self._lost else self._written(content)
        except OSError as error:
            self._lost = True
            if self._needed and not isinstance(error, BrokenPipeError):
                hint = "Nothing that was stored is lost. Print it again, or to a file where there is room."
                raise CannotWrite(f"standard output: {error.strerror}", hint) from error
            return len(content)

    def _written(self, content: Any) -> int:
        while (count := super().write(content)) is None:  # a descriptor that does not block is full
            select([], [self], [])
        return count


def open_streams() -> None:
    """From here on, messages beside the answer are optional, but losing the answer is an error.

    A stream that was closed by who started this process leads nowhere. Its descriptor must not become that
    of a file: a library's message would be written into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest descriptor that is free: this one
    sys.stdout = text_stream(sys.stdout, 1, needed=True)
    sys.stderr = text_stream(sys.stderr, 2, needed=False)


def text_stream(before: Any, descriptor: int, *, needed: bool) -> io.TextIOWrapper:
    """The stream as Python opens it, except that a character its encoding lacks is replaced."""
    with suppress(OSError, ValueError, AttributeError):
        before.flush()
    stream = Stream(descriptor, needed=needed)
    encoding = getattr(before, "encoding", None) or "utf-8"
    buffering = not needed or stream.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(stream), encoding, errors="backslashreplace", line_buffering=buffering
    )
