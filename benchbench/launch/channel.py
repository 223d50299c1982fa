"""The connections to a worker: a socket for messages, and a pipe for its printed output."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from select import select
from threading import Lock, Thread
from time import monotonic

from benchbench.launch.transport import Message
from benchbench.wire import MAX_MESSAGE_BYTES, LineBuffer, decode_line, next_line

SEND_TIMEOUT_S = 60.0
MAX_UNREAD_BYTES = 16 * MAX_MESSAGE_BYTES  # unread messages that `send` drops


class Channel:
    """This process's end of the socket to a worker: one JSON object a line, either way."""

    def __init__(self, end: socket.socket, lines: LineBuffer | None = None) -> None:
        """`lines`: buffer of the bytes already read from the socket."""
        self._socket = end
        self._lines = LineBuffer() if lines is None else lines

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message together with open file descriptors of this process.

        Unread messages are dropped, since they belong to an earlier request. A failure closes the channel, so
        the next `receive` returns None.
        """
        try:
            self._drain()
            self._socket.settimeout(SEND_TIMEOUT_S)
            line = json.dumps(message).encode() + b"\n"
            sent = socket.send_fds(self._socket, [line], descriptors) if descriptors else 0
            self._socket.sendall(line[sent:])
        except OSError:  # the process or host is gone, or does not read
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # a later message must not follow half a line

    def receive(self, timeout_s: float) -> Message | None:
        """Return the next message; None if the other end is closed. Raises TimeoutError, ValueError."""
        try:
            line = next_line(self._socket, self._lines, monotonic() + timeout_s)
        except TimeoutError:
            raise
        except OSError:  # connection reset, or no route to the host
            return None
        return None if line is None else decode_line(line)

    def has_messages(self, count: int) -> bool:
        """True if `count` messages can be received without waiting, or if the other end is closed."""
        self._socket.setblocking(False)
        try:
            while self._lines.count < count and not self._lines.is_broken:
                if not (piece := self._socket.recv(2**16)):
                    break
                self._lines.add(piece)
        except BlockingIOError:
            return False
        except OSError:  # connection reset: `receive` returns None
            return True
        return True

    @property
    def ended(self) -> bool:
        """True if the other end is closed and everything it sent was read."""
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self._socket.close()

    def _drain(self) -> None:
        """Drop unread bytes. Raises OSError for more than MAX_UNREAD_BYTES."""
        self._lines.clear()
        self._socket.setblocking(False)
        drained = 0
        with suppress(BlockingIOError):
            while piece := self._socket.recv(2**16):
                drained += len(piece)
                if drained > MAX_UNREAD_BYTES:
                    raise OSError("the other end sends without pause")


TAIL_BYTES = 4096
CHUNK, CHUNKS = 65_536, 16  # limits one read: a worker that prints without pause must release the lock


class LogTail:
    """The end of a worker's printed output. A thread empties the pipe; `writer` is its writing end."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._tail = b""
        self._lock = Lock()
        Thread(target=self._follow, daemon=True).start()

    def close_writer(self) -> None:
        """Close this process's copy of `writer`, so that the log ends with the worker's last process."""
        os.close(self.writer)

    def clear(self) -> None:
        """Discard the text so far: a new job begins."""
        self.text()
        self._tail = b""

    def text(self) -> str:
        """The end of the output, in whole lines: half a line might reveal a secret without its name."""
        with self._lock:
            self._read()
            lines = self._tail if len(self._tail) < TAIL_BYTES else self._tail.partition(b"\n")[2]
            return (lines or self._tail).decode(errors="replace")

    def _follow(self) -> None:
        ended = False
        while not ended:
            select([self._reader], [], [])
            with self._lock:
                ended = self._read()
                if ended:
                    os.close(self._reader)
                    self._reader = -1

    def _read(self) -> bool:
        """Read the available output; return whether the pipe is closed."""
        with suppress(BlockingIOError, OSError):
            for _ in range(CHUNKS):
                content = os.read(self._reader, CHUNK)
                if not content:
                    return True
                self._tail = (self._tail + content)[-TAIL_BYTES:]
        return False
