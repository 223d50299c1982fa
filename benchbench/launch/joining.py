"""How the processes that a launcher started find each other: the others connect to the first.

Messages are JSON objects, one per line, over TCP. The others run whatever the first asks, so both sides prove
that they know a secret: on one host the first leaves it, with its port, in a folder of its user's alone; over
several hosts it is in the launcher's environment. What follows is neither encrypted nor signed.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import msgspec

from benchbench.errors import UnreadableInput, UsageError
from benchbench.launch import launched
from benchbench.launch.channel import Channel
from benchbench.launch.launched import ADDRESS, SECRET, Launched
from benchbench.launch.local import LocalTransport
from benchbench.launch.rank_transport import Follower, Group, JobEnding, LaunchedProcess, this_member
from benchbench.launch.transport import Message, Worker
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.wire import INTRODUCTION_S, Door, Entered, enter, message_of

JOIN_S = 60.0  # for all processes to be there
PAUSE_S = 0.05  # between attempts to reach the first process


def gather_followers(where: Launched, limit_s: float = JOIN_S) -> Group:
    """Wait for the other processes; called by the first one.

    Raises UsageError where the port is taken, or a process does not come or has other versions.
    """
    host, port = where.address or ("127.0.0.1", 0)
    secret = where.secret or secrets.token_hex(16)
    with closing(Door(_listening("" if where.address else host, port, where.size), secret)) as door:
        if where.address is not None:
            joined = _joined(where, door, limit_s)
        else:
            with _announced(where, {"port": door.address[1], "secret": secret}):
                joined = _joined(where, door, limit_s)
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
def _announced(where: Launched, address: Message) -> Iterator[None]:
    """Where this process listens, in a file that its user alone can read, until the others have come."""
    folder, name = where.file.parent, where.file.name
    try:
        launched.write(folder, name, json.dumps(address).encode())
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}.", launched.HINT) from error
    try:
        yield
    finally:
        with suppress(OSError):
            launched.remove(folder, name)


def _joined(where: Launched, door: Door, limit_s: float) -> list[Follower]:
    """The other processes, in the order of ranks. Raises UsageError for those that do not come in time."""
    deadline, joined = time.monotonic() + limit_s, dict[int, Follower]()
    while missing := sorted({*range(1, where.size)} - {*joined}):
        if entered := door.admit(max(deadline - time.monotonic(), 0.0)):
            if introduced := _introduced(entered, where.size):
                joined[introduced.member.rank] = introduced
        elif time.monotonic() >= deadline:
            for follower in joined.values():
                follower.channel.close()
            ranks = ", ".join(map(str, missing))
            message = f"Ranks that did not come within {limit_s:.0f} s: {ranks}."
            raise UsageError(message, f"See what the launcher printed. All need the same {SECRET}, if any.")
    return [joined[rank] for rank in sorted(joined)]


def _introduced(entered: Entered, size: int) -> Follower | None:
    """The process that was let in; None, and the connection closed, where it is no other rank."""
    channel = Channel(entered.connection, entered.lines)
    with suppress(ValueError):
        member = msgspec.convert(entered.introduction.get("member"), LaunchedProcess)
        if 0 < member.rank < size and member.cores:
            return Follower(member, channel)
    channel.close()
    return None


def connect_to_first(where: Launched, introduction: Message, limit_s: float) -> socket.socket:
    """A connection to the first process, which has proved that it is. Raises UsageError."""
    deadline = time.monotonic() + limit_s
    while True:
        left = deadline - time.monotonic()
        try:
            address, secret = _announcement(where)
            connection = socket.create_connection(address, timeout=max(left, PAUSE_S))
            try:
                enter(connection, secret, introduction, min(max(left, PAUSE_S), INTRODUCTION_S))
            except BaseException:
                connection.close()
                raise
            return connection
        except (OSError, ValueError) as error:  # it is not there yet, or the file is an older run's
            if time.monotonic() > deadline:
                raise UsageError(
                    f"The first process cannot be reached: {error}.",
                    f"Set {ADDRESS}=HOST:PORT and {SECRET} in every process.",
                ) from error
            time.sleep(PAUSE_S)


def _announcement(where: Launched) -> tuple[tuple[str, int], str]:
    """The first process's address and secret. Raises OSError, ValueError where it left none; UsageError."""
    if where.address:
        return where.address, where.secret
    announced = message_of(launched.read(where.file.parent, where.file.name))
    port, secret = announced.get("port"), announced.get("secret")
    if not (isinstance(port, int) and 0 < port < 2**16 and isinstance(secret, str)):
        raise ValueError("what it left is no address")
    return ("127.0.0.1", port), secret


NO_LIMIT_S = 10 * 86_400.0  # a follower waits for as long as the first process lives


def follow(where: Launched, limit_s: float = JOIN_S) -> None:
    """Do what the first process asks until it ends.

    Raises UsageError where it cannot be reached, UnreadableInput where it cannot be understood.
    """
    introduction = {"member": dataclasses.asdict(this_member(where))}
    with closing(Channel(connect_to_first(where, introduction, limit_s))) as channel:
        _Workers(channel).serve()


class _Workers:
    """What a follower has started for the first process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._transport: LocalTransport | None = None
        self._workers: dict[int, Worker] = {}
        self._tasks: dict[str, Callable[[Message], Message | None]] = {
            "start": self._start,
            "ready": self._ready,
            "post": self._post,
            "collect": self._collect,
            "close": self._close,
        }

    def serve(self) -> None:
        """Do what the first process asks, until it is gone. Raises UnreadableInput."""
        try:
            while (message := self._channel.receive(NO_LIMIT_S)) is not None:
                answer = self._tasks[message["do"]](message)
                if answer is not None:
                    self._channel.send(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableInput(f"What the first process asks cannot be understood: {error}") from error
        finally:
            if self._transport:
                self._transport.close()

    def _start(self, message: Message) -> None:
        if self._transport is None:
            self._transport = LocalTransport(msgspec.convert(message["settings"], Settings))
        target = msgspec.convert(message["target"], Target)
        if message["same_python"]:
            target = dataclasses.replace(target, python=sys.executable)
        worker = self._transport.start(target, message["environment"], message["threads"])
        self._workers[message["worker"]] = worker

    def _ready(self, message: Message) -> Message:
        return dataclasses.asdict(self._workers[message["worker"]].ready(message["timeout_s"]))

    def _post(self, message: Message) -> None:
        self._workers[message["worker"]].post(message["job"], fork=message["fork"])

    def _collect(self, message: Message) -> Message:
        answer = self._workers[message["worker"]].collect(message["timeout_s"])
        return dataclasses.asdict(JobEnding(end=answer.end, message=answer.message, log=answer.log))

    def _close(self, message: Message) -> None:
        with suppress(KeyError):
            self._workers.pop(message["worker"]).close()
