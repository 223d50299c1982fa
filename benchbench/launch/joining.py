"""How the processes that a launcher started find each other: the others connect to the first.

Messages are JSON objects, one per line, over TCP. Whoever reaches the first process's port can falsify its
measurements, and the others run whatever it asks: as with torch.distributed, use a network that you trust.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from benchbench.errors import UsageError
from benchbench.launch.channel import Channel
from benchbench.launch.launched import ADDRESS, Launched
from benchbench.launch.rank_group import Follower, Group, LaunchedProcess, this_member
from benchbench.launch.transport import Message

JOIN_S = 60.0  # for all processes to be there
INTRODUCTION_S = 5.0  # for a process that has connected to say which it is
PAUSE_S = 0.05  # between attempts to reach the first process


def gather_followers(where: Launched, limit_s: float = JOIN_S) -> Group:
    """As the first process, wait for the others.

    Raises UsageError where the port is taken, or a process does not come or has other versions.
    """
    host, port = where.address or ("127.0.0.1", 0)
    token = secrets.token_hex(16)
    with closing(_listening("" if where.address else host, port, where.size)) as listener:
        if where.address is not None:
            joined = _joined(where, listener, "", limit_s)
        else:
            with _announced(where.file, {"port": listener.getsockname()[1], "token": token}):
                joined = _joined(where, listener, token, limit_s)
    group = Group(host, this_member(where), joined)
    if odd := [each for each in group.members if each.version != group.own.version]:
        group.close()
        message = f"Rank {odd[0].rank} on {odd[0].host} has {odd[0].version}, this one {group.own.version}."
        raise UsageError(message, "Install the same in all places.")
    return group


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=backlog)
    except OSError as error:
        hint = f"Set {ADDRESS}=HOST:PORT to a free one, in every process."
        raise UsageError(f"Port {port} cannot be listened on: {error.strerror}.", hint) from error


@contextmanager
def _announced(file: Path, address: Message) -> Iterator[None]:
    """Where this process listens, in a file that its user alone can read, until the others have come."""
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        json.dump(address, opened)
    part.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _joined(where: Launched, listener: socket.socket, token: str, limit_s: float) -> list[Follower]:
    """The other processes, in the order of ranks. Raises UsageError for those that do not come in time."""
    deadline, joined = time.monotonic() + limit_s, dict[int, Follower]()
    while missing := sorted({*range(1, where.size)} - {*joined}):
        listener.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            for follower in joined.values():
                follower.channel.close()
            ranks = ", ".join(map(str, missing))
            message = f"Ranks that did not come within {limit_s:.0f} s: {ranks}."
            raise UsageError(message, "See what the launcher printed.") from None
        if introduced := _introduced(Channel(connection), where.size, token):
            joined[introduced.member.rank] = introduced
    return [joined[rank] for rank in sorted(joined)]


def _introduced(channel: Channel, size: int, token: str) -> Follower | None:
    """The process at the other end; None, and the connection closed, where it is none of the launcher's."""
    with suppress(ValueError, KeyError, TimeoutError):
        message = channel.receive(INTRODUCTION_S) or {}
        member = msgspec.convert(message["member"], LaunchedProcess)
        if message.get("token") == token and 0 < member.rank < size:
            return Follower(member, channel)
    channel.close()
    return None


def connect_to_first(where: Launched, limit_s: float) -> tuple[socket.socket, str]:
    """A connection to the first process, and the token it wants to see. Raises UsageError."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            address, token = _announcement(where)
            connection = socket.create_connection(address, timeout=limit_s)
            connection.settimeout(None)
            return connection, token
        except (OSError, ValueError, KeyError) as error:  # it is not there yet, or the file is an older run's
            if time.monotonic() > deadline:
                raise UsageError(
                    f"The first process cannot be reached: {error}.",
                    f"Set {ADDRESS}=HOST:PORT in every process.",
                ) from error
            time.sleep(PAUSE_S)


def _announcement(where: Launched) -> tuple[tuple[str, int], str]:
    """The first process's address and token. Raises OSError, ValueError, KeyError where it left none."""
    if where.address:
        return where.address, ""
    announced: Message = json.loads(where.file.read_bytes())
    return ("127.0.0.1", int(announced["port"])), str(announced["token"])
