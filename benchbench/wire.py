"""Messages between processes: JSON objects, a line each, read within bounds from senders who know a secret.

Parent and workers use it, so it needs the standard library only. Both sides of a connection prove that they
know a secret, and neither sends it: whoever waits at the port of another, or connects to it, learns nothing.
After that, nothing is encrypted or signed: who can change packets on the way can change messages.
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

MOST_BYTES = 8 * 2**20  # of one message
DEEPEST = 64  # levels of a message; a measurement has eight
INTRODUCTION_BYTES = 64 * 2**10  # of what is said before the other side is known
INTRODUCTION_S = 5.0  # for the other side to prove that it knows the secret, and to say who it is
MOST_GUESTS = 256  # who have connected and proved nothing: beyond these the first is sent away

MOST = {bool: 1, int: LARGEST, float: sys.float_info.max}  # that a number may be, by its type
PAUSE_S = 0.05  # until a connection is tried again that the system did not take

Message = dict[str, Any]  # a JSON object


class LineBuffer:
    """The lines of a stream that comes in pieces. Takes time and memory linear in what comes."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """`most`: bytes of a line."""
        self.most = most
        self.is_broken = False  # by a line that is too long: nothing after it is read
        self._whole = deque[bytes]()
        self._begun = bytearray()

    def take(self, piece: bytes) -> None:
        """Take in the next piece."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            if self._extend(end):
                self._whole.append(bytes(self._begun))
                self._begun.clear()
        self._extend(rest)

    def _extend(self, part: bytes) -> bool:
        self.is_broken |= len(self._begun) + len(part) > self.most
        if not self.is_broken:
            self._begun += part
        return not self.is_broken

    def pop(self) -> bytes | None:
        """The next whole line without its end; None where there is none yet.

        Raises ValueError where it is too long.
        """
        if self._whole:
            return self._whole.popleft()
        if self.is_broken:
            raise ValueError(f"more than {self.most} bytes")
        return None

    @property
    def count(self) -> int:
        """How many whole lines can be read."""
        return len(self._whole)

    @property
    def is_empty(self) -> bool:
        """Whether everything that came was read, the beginning of a line included."""
        return not self._whole and not self._begun

    def clear(self) -> None:
        """Forget what came and was not read."""
        self._whole.clear()
        self._begun.clear()


def next_line(connection: socket.socket, lines: LineBuffer, deadline: float) -> bytes | None:
    """The next line of a connection, with what of it is in `lines`; None where the other side has closed it.

    `deadline`: on the monotonic clock, however steadily something comes. Raises OSError, TimeoutError among
    them, and ValueError.
    """
    is_late = False
    while (line := lines.pop()) is None:
        if is_late:
            raise TimeoutError
        left = deadline - time.monotonic()
        is_late = left <= 0  # then what is there already is still read, once
        connection.settimeout(max(left, 0.001))
        piece = connection.recv(2**16)
        if not piece:
            return None
        lines.take(piece)
    return line


def encoded_line(message: object) -> bytes:
    """The line of a message, with its end. Raises ValueError for NaN and infinity."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def message_of(line: bytes) -> Message:
    """The JSON object in a line. Raises ValueError for anything else."""
    try:
        message = json.loads(line.decode(), parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("not a JSON object")
    _check(message, DEEPEST)
    return message


def _check(value: object, levels: int) -> None:
    """Raises ValueError for what cannot be handled everywhere, such as half a character."""
    if isinstance(value, dict):
        _check(list(value), levels)
        value = list(value.values())
    if isinstance(value, list):
        if not levels:
            raise ValueError("nested too deeply")
        for each in value:
            _check(each, levels - 1)
    elif isinstance(value, str) and not value.isascii():
        value.encode()
    elif isinstance(value, int | float) and abs(value) > MOST[type(value)]:
        raise ValueError("a number that is too large")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


@dataclass(frozen=True, slots=True)
class Entered:
    """Somebody who knows the secret. `lines`: what has come after the introduction."""

    connection: socket.socket
    lines: LineBuffer
    introduction: Message


@dataclass(slots=True, eq=False)
class _Guest:
    """Somebody who has connected and is not known yet."""

    connection: socket.socket
    deadline: float
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    lines: LineBuffer = field(default_factory=lambda: LineBuffer(INTRODUCTION_BYTES))
    proved: bool = False


class Door:
    """Lets in whoever connects and knows the secret. Nobody waits for somebody else to say something."""

    def __init__(self, listener: socket.socket, secret: str) -> None:
        """`listener`: closed with this."""
        listener.setblocking(False)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listener = listener
        self._secret = secret
        self._guests = deque[_Guest]()
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def admit(self, limit_s: float) -> Entered | None:
        """The next who is let in; None where nobody is within `limit_s`."""
        deadline = time.monotonic() + limit_s
        while True:
            now = time.monotonic()
            while self._guests and self._guests[0].deadline <= now:
                self._dismiss(self._guests[0])
            until = min(deadline, self._guests[0].deadline if self._guests else deadline)
            for key, _ in self._selector.select(max(until - now, 0.0)):
                if key.data is None:
                    self._accept()
                elif key.data in self._guests and (entered := self._hear(key.data)):
                    return entered
            if time.monotonic() >= deadline:
                return None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again, or there are no more descriptors
            if self._guests:
                self._dismiss(self._guests[0])
            else:
                time.sleep(PAUSE_S)
            return
        if len(self._guests) == MOST_GUESTS:
            self._dismiss(self._guests[0])
        connection.setblocking(False)
        guest = _Guest(connection, time.monotonic() + INTRODUCTION_S)
        self._guests.append(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)
        self._say(guest, {"nonce": guest.nonce})

    def _hear(self, guest: _Guest) -> Entered | None:
        """Read what a guest says next; its introduction lets it in."""
        try:
            piece = guest.connection.recv(2**16)
            if not piece:
                raise ConnectionError
            guest.lines.take(piece)
            if not guest.proved and (line := guest.lines.pop()) is not None:
                self._check(guest, message_of(line))
            if guest.proved and (line := guest.lines.pop()) is not None:
                introduction = message_of(line)
                self._forget(guest)
                guest.connection.setblocking(True)
                guest.lines.most = MOST_BYTES
                return Entered(guest.connection, guest.lines, introduction)
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            self._dismiss(guest)
        return None

    def _check(self, guest: _Guest, message: Message) -> None:
        """Raises ValueError for who does not know the secret."""
        nonce = _text(message, "nonce")
        _require_proof(message, self._secret, "enters", guest.nonce, nonce)
        guest.proved = True
        self._say(guest, {"proof": _proof(self._secret, "admits", guest.nonce, nonce)})

    def _say(self, guest: _Guest, message: Message) -> None:
        with suppress(OSError):  # it has gone: its end is read next. So short a line always fits
            guest.connection.sendall(encoded_line(message))

    def _dismiss(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.connection.close()

    def _forget(self, guest: _Guest) -> None:
        self._guests.remove(guest)
        self._selector.unregister(guest.connection)

    def close(self) -> None:
        """Let nobody else in. Those who were stay."""
        for guest in list(self._guests):
            self._dismiss(guest)
        self._selector.close()
        self._listener.close()


def enter(connection: socket.socket, secret: str, introduction: Message, limit_s: float) -> None:
    """Prove to a `Door` that this side knows the secret, see that the door does, and introduce oneself.

    Raises OSError, ValueError where the other side does not know it, or does not answer in time.
    """
    answers = _answers(connection, time.monotonic() + limit_s)
    theirs, ours = _text(next(answers), "nonce"), secrets.token_hex(16)
    connection.sendall(encoded_line({"nonce": ours, "proof": _proof(secret, "enters", theirs, ours)}))
    _require_proof(next(answers), secret, "admits", theirs, ours)
    connection.settimeout(None)
    connection.sendall(encoded_line(introduction))


def _answers(connection: socket.socket, deadline: float) -> Iterator[Message]:
    """What a door says, one message at a time. Raises OSError, ValueError."""
    lines = LineBuffer(INTRODUCTION_BYTES)
    while (line := next_line(connection, lines, deadline)) is not None:
        if not lines.is_empty:
            raise ValueError("more was said there than was asked")
        yield message_of(line)
    raise ConnectionError("the connection was closed: another secret, perhaps")


def _proof(secret: str, role: str, door: str, guest: str) -> str:
    """What only those who know the secret can say to these two nonces in this role."""
    said = json.dumps([role, door, guest]).encode()
    return hmac.new(secret.encode(errors="surrogateescape"), said, "sha256").hexdigest()


def _require_proof(message: Message, secret: str, role: str, door: str, guest: str) -> None:
    """Raises ValueError for a message without that proof."""
    proof = _proof(secret, role, door, guest)
    if not hmac.compare_digest(_text(message, "proof").encode(), proof.encode()):
        raise ValueError("who is there does not know the secret")


def _text(message: Message, name: str) -> str:
    """Raises ValueError."""
    if not isinstance(text := message.get(name), str):
        raise ValueError(f"it says no {name}")
    return text
