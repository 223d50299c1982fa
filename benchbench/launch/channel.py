"""This process's ends of a worker: the socket that messages pass through, and the pipe of what it prints."""

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
from benchbench.wire import MOST_BYTES, LineBuffer, message_of, next_line

SEND_S = 60.0  # for the other end to take a message
MOST_UNREAD = 16 * MOST_BYTES  # what came and was not read may be that much


class Channel:
    """This process's end of the socket to a worker: one JSON object a line, either way."""

    def __init__(self, end: socket.socket, lines: LineBuffer | None = None) -> None:
        """`lines`: what was read of it before."""
        self._socket = end
        self._lines = LineBuffer() if lines is None else lines

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message, with open files of this process.

        Messages that arrived before and were not read are dropped: they answer nothing asked now.
        """
        try:
            self._drain()
            self._socket.settimeout(SEND_S)
            line = json.dumps(message).encode() + b"\n"
            sent = socket.send_fds(self._socket, [line], descriptors) if descriptors else 0
            self._socket.sendall(line[sent:])
        except OSError:  # its process or its host is gone, or it takes nothing: `receive` will tell
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # else the rest of a line might come later

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None when the other end is closed. Raises TimeoutError, ValueError."""
        try:
            line = next_line(self._socket, self._lines, monotonic() + timeout_s)
        except TimeoutError:
            raise
        except OSError:  # reset, or no route to its host any longer
            return None
        return None if line is None else message_of(line)

    def has_come(self, count: int) -> bool:
        """Whether so many messages can be received at once, or none further: without waiting."""
        self._socket.setblocking(False)
        try:
            while self._lines.count < count and not self._lines.is_broken:
                if not (piece := self._socket.recv(2**16)):
                    break
                self._lines.take(piece)
        except BlockingIOError:
            return False
        except OSError:  # as above
            return True
        return True

    @property
    def ended(self) -> bool:
        """Whether the other end is closed, and all that it sent was read."""
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """The other end sees that it is closed."""
        self._socket.close()

    def _drain(self) -> None:
        """Raises OSError for one who sends without end."""
        self._lines.clear()
        self._socket.setblocking(False)
        drained = 0
        with suppress(BlockingIOError):
            while piece := self._socket.recv(2**16):
                drained += len(piece)
                if drained > MOST_UNREAD:
                    raise OSError("it sends without end")


KEPT_BYTES = 4096  # that are kept
CHUNK, CHUNKS = 65_536, 16  # read at once: a worker that floods must not keep others from the lock


class LogTail:
    """A pipe, and the thread that empties it. `writer`: for the worker's standard output and error."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._tail = b""
        self._lock = Lock()
        Thread(target=self._follow, daemon=True).start()

    def give_away(self) -> None:
        """The worker has the writing end now: with its last process the log ends."""
        os.close(self.writer)

    def clear(self) -> None:
        """What comes from here on is another job's."""
        self.text()
        self._tail = b""

    def text(self) -> str:
        """The last of what was printed, in whole lines: of half a line, a secret's name might be cut off."""
        with self._lock:
            self._read()
            whole = self._tail if len(self._tail) < KEPT_BYTES else self._tail.partition(b"\n")[2]
            return (whole or self._tail).decode(errors="replace")

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
        """What there is; whether nothing more can come."""
        with suppress(BlockingIOError, OSError):
            for _ in range(CHUNKS):
                content = os.read(self._reader, CHUNK)
                if not content:
                    return True
                self._tail = (self._tail + content)[-KEPT_BYTES:]
        return False
