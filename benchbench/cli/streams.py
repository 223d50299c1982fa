"""Standard output and error that survive closed pipes, closed terminals and full disks."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from select import select
from typing import Any

from benchbench.errors import CannotWrite


class Stream(io.FileIO):
    """A standard stream of bytes. After an error, further output is dropped."""

    def __init__(self, descriptor: int, *, is_required: bool) -> None:
        """`is_required`: an error raises CannotWrite, except that the reader closed the pipe."""
        super().__init__(descriptor, "w", closefd=False)
        self._needed = is_required
        self._lost = False

    def write(self, content: Any) -> int:
        """Write and return the number of bytes. Raises CannotWrite."""
        try:
            return len(content) if self._lost else self._write_all(content)
        except OSError as error:
            self._lost = True
            if self._needed and not isinstance(error, BrokenPipeError):
                hint = "Nothing that was stored is lost. Print it again, or to a file where there is room."
                raise CannotWrite(f"standard output: {error.strerror}", hint) from error
            return len(content)

    def _write_all(self, content: Any) -> int:
        while (count := super().write(content)) is None:  # a non-blocking descriptor is full
            select([], [self], [])
        return count


def open_streams() -> None:
    """Replace the standard streams: losing standard output is an error, losing standard error is not.

    Descriptors that are closed are opened to the null device. Otherwise a file could get their number, and
    messages of libraries would be written into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # uses the lowest free descriptor, which is this one
    sys.stdout = text_stream(sys.stdout, 1, is_required=True)
    sys.stderr = text_stream(sys.stderr, 2, is_required=False)


def text_stream(original: Any, descriptor: int, *, is_required: bool) -> io.TextIOWrapper:
    """Text stream with Python's settings, except that unencodable characters are escaped."""
    with suppress(OSError, ValueError, AttributeError):
        original.flush()
    stream = Stream(descriptor, is_required=is_required)
    encoding = getattr(original, "encoding", None) or "utf-8"
    buffering = not is_required or stream.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(stream), encoding, errors="backslashreplace", line_buffering=buffering
    )
