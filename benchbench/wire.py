"""Messages between processes: JSON objects, one per line, of limited size, from processes that know a secret.

Parent and workers use this module, so it needs the standard library only. Both sides of a connection prove
that they know a secret without sending it. Later messages are neither encrypted nor signed: an attacker who
can change packets can change messages.
"""

from __future__ import annotations

import hmac
import json
import secrets
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from benchbench.reading import LARGEST

MAX_MESSAGE_BYTES = 8 * 2**20
MAX_DEPTH = 64  # levels of a message; a measurement has eight
MAX_INTRODUCTION_BYTES = 64 * 2**10  # of messages from a process that has not proved that it knows the secret
INTRODUCTION_TIMEOUT_S = 5.0  # for the other side to prove that it knows the secret and to introduce itself
MAX_CANDIDATES = 256  # connections without proof; beyond that, the oldest one is closed

MAX_NUMBER = {bool: 1, int: LARGEST, float: sys.float_info.max}
PAUSE_S = 0.05  # before the next attempt to accept a connection, if the system refused the last one

Message = dict[str, Any]  # a JSON object


class LineBuffer:
    """Splits a stream that arrives in pieces into lines, in time and memory linear in its length."""

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """`max_bytes`: length of a line."""
        self.max_bytes = max_bytes
        self.is_broken = False  # True after a line that is too long; nothing after it is read
        self._lines = deque[bytes]()
        self._unfinished = bytearray()

    def add(self, piece: bytes) -> None:
        """Add the next piece of the stream."""
        *ends, start = piece.split(b"\n")
        for end in ends:
            if self._extend(end):
                self._lines.append(bytes(self._unfinished))
                self._unfinished.clear()
        self._extend(start)

    def _extend(self, part: bytes) -> bool:
        self.is_broken |= len(self._unfinished) + len(part) > self.max_bytes
        if not self.is_broken:
            self._unfinished += part
        return not self.is_broken

    def pop(self) -> bytes | None:
        """The next line without its end, or None if it is incomplete. Raises ValueError if it is too long."""
        if self._lines:
            return self._lines.popleft()
        if self.is_broken:
            raise ValueError(f"more than {self.max_bytes} bytes")
        return None

    @property
    def count(self) -> int:
        """Number of complete lines."""
        return len(self._lines)

    @property
    def is_empty(self) -> bool:
        """True if there is neither a line nor the start of one."""
        return not self._lines and not self._unfinished

    def clear(self) -> None:
        """Discard everything that was not read."""
        self._lines.clear()
        self._unfinished.clear()


def next_line(connection: socket.socket, lines: LineBuffer, deadline: float) -> bytes | None:
    """The next line of a connection whose unread bytes are in `lines`; None if the other side has closed it.

    `deadline`: by `time.monotonic`, for the whole line. Raises TimeoutError, another OSError, or ValueError
    for a line that is too long.
    """
    is_late = False
    while (line := lines.pop()) is None:
        if is_late:
            raise TimeoutError
        remaining_s = deadline - time.monotonic()
        is_late = remaining_s <= 0  # available bytes are still read, once
        connection.settimeout(max(remaining_s, 0.001))
        piece = connection.recv(2**16)
        if not piece:
            return None
        lines.add(piece)
    return line


def encode_line(message: object) -> bytes:
    """A message as a line. Raises ValueError for NaN and infinity."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def decode_line(line: bytes) -> Message:
    """The JSON object in a line. Raises ValueError for anything else."""
    try:
        message = json.loads(line.decode(), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    _check(message, MAX_DEPTH)
    return message


def _check(value: object, levels: int) -> None:
    """Raise ValueError for a value that other code cannot handle, such as half a surrogate pair."""
    if isinstance(value, dict):
        _check(list(value), levels)
        value = list(value.values())
    if isinstance(value, list):
        if not levels:
            raise ValueError("nested too deeply")
        for item in value:
            _check(item, levels - 1)
    elif isinstance(value, str) and not value.isascii():
        value.encode()
    elif isinstance(value, int | float) and abs(value) > MAX_NUMBER[type(value)]:
        raise ValueError("a number that is too large")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


@dataclass(frozen=True, slots=True)
class Peer:
    """A connected process that knows the secret. `lines`: bytes that it sent after its introduction."""

    connection: socket.socket
    lines: LineBuffer
    introduction: Message


@dataclass(slots=True, eq=False)
class _Candidate:
    """A connected process that has not yet proved that it knows the secret, or not introduced itself."""

    connection: socket.socket
    deadline: float
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    lines: LineBuffer = field(default_factory=lambda: LineBuffer(MAX_INTRODUCTION_BYTES))
    has_proved: bool = False


class SecretListener:
    """Accepts connections of processes that know a secret. A slow process does not delay the others."""

    def __init__(self, listener: socket.socket, secret: str) -> None:
        """`listener`: a listening socket, which `close` closes."""
        listener.setblocking(False)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listener = listener
        self._secret = secret
        self._candidates = deque[_Candidate]()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def accept(self, timeout_s: float) -> Peer | None:
        """The next process that knows the secret; None if there is none within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            while self._candidates and self._candidates[0].deadline <= now:
                self._dismiss(self._candidates[0])
            until = min(deadline, self._candidates[0].deadline if self._candidates else deadline)
            for key, _ in self._selector.select(max(until - now, 0.0)):
                if key.data is None:
                    self._connect()
                elif key.data in self._candidates and (peer := self._receive(key.data)):
                    return peer
            if time.monotonic() >= deadline:
                return None

    def _connect(self) -> None:
        """Accept a connection and send it a nonce."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the other side is gone, or there are no more descriptors
            if self._candidates:
                self._dismiss(self._candidates[0])
            else:
                time.sleep(PAUSE_S)
            return
        if len(self._candidates) == MAX_CANDIDATES:
            self._dismiss(self._candidates[0])
        connection.setblocking(False)
        candidate = _Candidate(connection, time.monotonic() + INTRODUCTION_TIMEOUT_S)
        self._candidates.append(candidate)
        self._selector.register(connection, selectors.EVENT_READ, candidate)
        self._send(candidate, {"nonce": candidate.nonce})

    def _receive(self, candidate: _Candidate) -> Peer | None:
        """Read the candidate's next bytes. After its proof and its introduction, it is a peer."""
        try:
            piece = candidate.connection.recv(2**16)
            if not piece:
                raise ConnectionError
            candidate.lines.add(piece)
            if not candidate.has_proved and (line := candidate.lines.pop()) is not None:
                self._check_proof(candidate, decode_line(line))
            if candidate.has_proved and (line := candidate.lines.pop()) is not None:
                introduction = decode_line(line)
                self._remove(candidate)
                candidate.connection.setblocking(True)
                candidate.lines.max_bytes = MAX_MESSAGE_BYTES
                return Peer(candidate.connection, candidate.lines, introduction)
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            self._dismiss(candidate)
        return None

    def _check_proof(self, candidate: _Candidate, message: Message) -> None:
        """Check the candidate's proof and send one back. Raises ValueError for a wrong proof."""
        nonce = _text(message, "nonce")
        _require_proof(message, self._secret, "enters", candidate.nonce, nonce)
        candidate.has_proved = True
        self._send(candidate, {"proof": _proof(self._secret, "admits", candidate.nonce, nonce)})

    def _send(self, candidate: _Candidate, message: Message) -> None:
        with suppress(OSError):  # if it is gone, the next `recv` shows it. Such a short line always fits
            candidate.connection.sendall(encode_line(message))

    def _dismiss(self, candidate: _Candidate) -> None:
        self._remove(candidate)
        candidate.connection.close()

    def _remove(self, candidate: _Candidate) -> None:
        self._candidates.remove(candidate)
        self._selector.unregister(candidate.connection)

    def close(self) -> None:
        """Stop listening. The connections of accepted peers stay open."""
        for candidate in list(self._candidates):
            self._dismiss(candidate)
        self._selector.close()
        self._listener.close()


def authenticate(connection: socket.socket, secret: str, introduction: Message, timeout_s: float) -> None:
    """Prove to a `SecretListener` that this side knows the secret, check its proof, and send `introduction`.

    Raises OSError or ValueError if the other side does not know the secret or does not answer in time.
    """
    answers = _answers(connection, time.monotonic() + timeout_s)
    listener_nonce, nonce = _text(next(answers), "nonce"), secrets.token_hex(16)
    proof = _proof(secret, "enters", listener_nonce, nonce)
    connection.sendall(encode_line({"nonce": nonce, "proof": proof}))
    _require_proof(next(answers), secret, "admits", listener_nonce, nonce)
    connection.settimeout(None)
    connection.sendall(encode_line(introduction))


def _answers(connection: socket.socket, deadline: float) -> Iterator[Message]:
    """The listener's messages. Raises OSError; ValueError for bytes after an expected message."""
    lines = LineBuffer(MAX_INTRODUCTION_BYTES)
    while (line := next_line(connection, lines, deadline)) is not None:
        if not lines.is_empty:
            raise ValueError("the other side sent more than its answer")
        yield decode_line(line)
    raise ConnectionError("the connection was closed: another secret, perhaps")


def _proof(secret: str, role: str, listener_nonce: str, nonce: str) -> str:
    """HMAC-SHA256 of both nonces and the role (`enters` or `admits`), with the secret as its key."""
    text = json.dumps([role, listener_nonce, nonce]).encode()
    return hmac.new(secret.encode(errors="surrogateescape"), text, "sha256").hexdigest()


def _require_proof(message: Message, secret: str, role: str, listener_nonce: str, nonce: str) -> None:
    """Raise ValueError if the message lacks that proof."""
    proof = _proof(secret, role, listener_nonce, nonce)
    if not hmac.compare_digest(_text(message, "proof").encode(), proof.encode()):
        raise ValueError("the other side does not know the secret")


def _text(message: Message, name: str) -> str:
    """Raises ValueError."""
    if not isinstance(text := message.get(name), str):
        raise ValueError(f"its message has no {name}")
    return text
