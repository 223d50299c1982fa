"""JSON objects, a line each, over a socket. The reader blocks: it never spins."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from time import monotonic

import msgspec

from benchbench.launch.transport import Message
from benchbench.reading import has_huge_integer

MOST_BYTES = 8 * 2**20  # of one message


class Channel:
    """This process's end."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()

    def send(self, message: Message) -> None:
        """Send a message. What came before and was not read is dropped: it answers nothing asked now."""
        self._drain()
        with suppress(OSError):  # its process or its host is gone: `receive` will tell
            self._socket.settimeout(None)
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None when the other end is closed. Raises TimeoutError, ValueError."""
        deadline = monotonic() + timeout_s
        while b"\n" not in self._received:
            if self._is_too_long:
                raise ValueError(f"more than {MOST_BYTES} bytes")
            self._socket.settimeout(max(deadline - monotonic(), 0.001))
            if not self._read():
                return None
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        try:
            message = msgspec.json.decode(line, type=Message)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if has_huge_integer(message):
            raise ValueError("an integer has more than 30 digits")
        return message

    def has_come(self, count: int) -> bool:
        """Whether so many messages can be received at once, or none further: without waiting."""
        self._socket.setblocking(False)
        try:
            while self._received.count(b"\n") < count and not self._is_too_long:
                if not self._read():
                    break
        except BlockingIOError:
            return False
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

    def _read(self) -> bool:
        try:
            chunk = self._socket.recv(65536)
        except (TimeoutError, BlockingIOError):
            raise
        except OSError:  # reset, or no route to its host any longer
            return False
        self._received += chunk
        return bool(chunk)

    @property
    def _is_too_long(self) -> bool:
        return len(self._received) > MOST_BYTES

    def _drain(self) -> None:
        self._received.clear()
        self._socket.setblocking(False)
        with suppress(OSError):  # nothing there, or nobody
            while self._socket.recv(65536):
                pass
