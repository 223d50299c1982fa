"""Connections between the processes that a launcher started: the followers connect to the first one.

Messages are JSON objects, one per line, over TCP. Followers run any job of the first process, so both sides
prove that they know a secret. On one host, the first process writes it with its port to a file that only this
user can read; on several hosts, it is in the launcher's environment. Later messages are not encrypted.
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
from benchbench.launch.launched import ADDRESS, SECRET, Launch
from benchbench.launch.local import LocalTransport
from benchbench.launch.rank_transport import Follower, Group, GroupMember, JobEnding, this_member
from benchbench.launch.transport import Channel, Message, Worker
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.wire import INTRODUCTION_TIMEOUT_S, Peer, SecretListener, authenticate, decode_line

JOIN_TIMEOUT_S = 60.0  # until all processes are connected
RETRY_PAUSE_S = 0.05  # between attempts to connect to the first process


def gather_followers(launch: Launch, timeout_s: float = JOIN_TIMEOUT_S) -> Group:
    """Wait until all other processes are connected; called by the first one.

    Raises UsageError if the port is taken, a process does not connect, or one has other versions.
    """
    host, port = launch.address or ("127.0.0.1", 0)
    secret = launch.secret or secrets.token_hex(16)
    server = _listening_socket("" if launch.address else host, port, launch.size)
    with closing(SecretListener(server, secret)) as listener:
        if launch.address is not None:
            followers = _accept_followers(launch, listener, timeout_s)
        else:
            with _address_file(launch, {"port": listener.address[1], "secret": secret}):
                followers = _accept_followers(launch, listener, timeout_s)
    group = Group(host, this_member(launch), followers)
    for member in group.members:
        if member.version != group.first.version:
            group.close()
            version = group.first.version
            message = f"Rank {member.rank} on {member.host} has {member.version}, this one {version}."
            raise UsageError(message, "Install the same versions for all processes.")
    return group


def _listening_socket(host: str, port: int, backlog: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=backlog)
    except OSError as error:
        hint = f"Set {ADDRESS}=HOST:PORT to a free one, in every process."
        raise UsageError(f"Port {port} cannot be listened on: {error.strerror}.", hint) from error


@contextmanager
def _address_file(launch: Launch, address: Message) -> Iterator[None]:
    """Write this process's port and the secret to the launch's file, which exists inside the context."""
    folder, name = launch.file.parent, launch.file.name
    try:
        launched.write(folder, name, json.dumps(address).encode())
    except OSError as error:
        raise UsageError(f"{folder} cannot be used: {error.strerror}.", launched.HINT) from error
    try:
        yield
    finally:
        with suppress(OSError):
            launched.remove(folder, name)


def _accept_followers(launch: Launch, listener: SecretListener, timeout_s: float) -> list[Follower]:
    """The other processes, in the order of ranks. Raises UsageError if some do not connect in time."""
    deadline, followers = time.monotonic() + timeout_s, dict[int, Follower]()
    while missing := sorted({*range(1, launch.size)} - {*followers}):
        if peer := listener.accept(max(deadline - time.monotonic(), 0.0)):
            if follower := _follower(peer, launch.size):
                followers[follower.member.rank] = follower
        elif time.monotonic() >= deadline:
            for follower in followers.values():
                follower.channel.close()
            ranks = ", ".join(map(str, missing))
            message = f"Ranks that did not connect within {timeout_s:.0f} s: {ranks}."
            raise UsageError(message, f"See the launcher's output. All need the same {SECRET}, if any.")
    return [followers[rank] for rank in sorted(followers)]


def _follower(peer: Peer, size: int) -> Follower | None:
    """The process that has connected; None if it introduces itself wrongly, and its connection is closed."""
    channel = Channel(peer.connection, peer.lines)
    with suppress(ValueError):
        member = msgspec.convert(peer.introduction.get("member"), GroupMember)
        if 0 < member.rank < size and member.cores:
            return Follower(member, channel)
    channel.close()
    return None


def connect_to_first(launch: Launch, introduction: Message, timeout_s: float) -> socket.socket:
    """Connect to the first process, which proves that it knows the secret. Raises UsageError."""
    deadline = time.monotonic() + timeout_s
    while True:
        remaining_s = max(deadline - time.monotonic(), RETRY_PAUSE_S)
        try:
            address, secret = _address_and_secret(launch)
            connection = socket.create_connection(address, timeout=remaining_s)
            try:
                authenticate(connection, secret, introduction, min(remaining_s, INTRODUCTION_TIMEOUT_S))
            except BaseException:
                connection.close()
                raise
            return connection
        except (OSError, ValueError) as error:  # it does not listen yet, or an older run has left the file
            if time.monotonic() > deadline:
                raise UsageError(
                    f"The first process cannot be reached: {error}.",
                    f"Set {ADDRESS}=HOST:PORT and {SECRET} in every process.",
                ) from error
            time.sleep(RETRY_PAUSE_S)


def _address_and_secret(launch: Launch) -> tuple[tuple[str, int], str]:
    """The first process's address and the secret. Raises OSError, ValueError, UsageError."""
    if launch.address:
        return launch.address, launch.secret
    message = decode_line(launched.read(launch.file.parent, launch.file.name))
    port, secret = message.get("port"), message.get("secret")
    if not (isinstance(port, int) and 0 < port < 2**16 and isinstance(secret, str)):
        raise ValueError(f"{launch.file} has no port and secret")
    return ("127.0.0.1", port), secret


IDLE_TIMEOUT_S = 10 * 86_400.0  # a follower waits as long as the first process lives


def follow(launch: Launch, timeout_s: float = JOIN_TIMEOUT_S) -> None:
    """Run the requests of the first process until it ends.

    Raises UsageError if it cannot be reached, UnreadableInput for a malformed request.
    """
    introduction = {"member": dataclasses.asdict(this_member(launch))}
    with closing(Channel(connect_to_first(launch, introduction, timeout_s))) as channel:
        _FollowerWorkers(channel).serve()


class _FollowerWorkers:
    """The workers that a follower has started for the first process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._transport: LocalTransport | None = None
        self._workers: dict[int, Worker] = {}
        self._handlers: dict[str, Callable[[Message], Message | None]] = {
            "start": self._start,
            "ready": self._ready,
            "post": self._post,
            "collect": self._collect,
            "close": self._close,
        }

    def serve(self) -> None:
        """Handle requests until the connection ends. Raises UnreadableInput for a malformed request."""
        try:
            while (request := self._channel.receive(IDLE_TIMEOUT_S)) is not None:
                answer = self._handlers[request["do"]](request)
                if answer is not None:
                    self._channel.send(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableInput(f"A request of the first process cannot be read: {error}") from error
        finally:
            if self._transport:
                self._transport.close()

    def _start(self, request: Message) -> None:
        if self._transport is None:
            self._transport = LocalTransport(msgspec.convert(request["settings"], Settings))
        target = msgspec.convert(request["target"], Target)
        if request["same_python"]:
            target = dataclasses.replace(target, python=sys.executable)
        worker = self._transport.start(target, request["environment"], request["threads"])
        self._workers[request["worker"]] = worker

    def _ready(self, request: Message) -> Message:
        return dataclasses.asdict(self._workers[request["worker"]].ready(request["timeout_s"]))

    def _post(self, request: Message) -> None:
        self._workers[request["worker"]].post(request["job"], fork=request["fork"])

    def _collect(self, request: Message) -> Message:
        answer = self._workers[request["worker"]].collect(request["timeout_s"])
        return dataclasses.asdict(JobEnding(end=answer.end, message=answer.message, log=answer.log))

    def _close(self, request: Message) -> None:
        with suppress(KeyError):
            self._workers.pop(request["worker"]).close()
