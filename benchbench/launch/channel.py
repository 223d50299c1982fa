"""Messages over a socket, as `wire` reads them. The reader blocks: it never spins."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from time import monotonic

from benchbench.launch.transport import Message
from benchbench.wire import MOST_BYTES, LineBuffer, message_of, next_line

SEND_S = 60.0  # for the other end to take a message
MOST_UNREAD = 16 * MOST_BYTES  # what came and was not read may be that much


class Channel:
    """This process's end."""

    def __init__(self, end: socket.socket, lines: LineBuffer | None = None) -> None:
        """`lines`: what was read of it before."""
        self._socket = end
        self._lines = LineBuffer() if lines is None else lines

    def send(self, message: Message) -> None:
        """Send a message. What came before and was not read is dropped: it answers nothing asked now."""
        try:
            self._drain()
            self._socket.settimeout(SEND_S)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
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
