"""The processes that a launcher started: the first has the others, its followers, start workers and run jobs.

Messages are JSON objects, one per line, over TCP. Whoever reaches the first process's port can falsify its
measurements, and the followers run whatever it asks: as with torch.distributed, use a network that you trust.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from benchbench import __version__
from benchbench.errors import UsageError
from benchbench.launch.channel import Channel
from benchbench.launch.launched import ADDRESS, Launched
from benchbench.launch.local import LocalTransport
from benchbench.launch.transport import Greeting, JobEnd, Message, Worker
from benchbench.meeting import cores_of
from benchbench.model.device import Target
from benchbench.model.run import Settings

JOIN_S = 60.0  # for all processes to be there
INTRODUCTION_S = 5.0  # for a process that has connected to say which it is
PAUSE_S = 0.05  # between attempts to reach the first process
NO_LIMIT_S = 10 * 86_400.0  # a follower waits for as long as the first process lives


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """A process of the launcher, as it introduces itself."""

    rank: int
    host: str
    cores: tuple[int, ...]
    version: str
    gpus: str = ""  # those its launcher let it see, as CUDA_VISIBLE_DEVICES; empty: all


@dataclass(slots=True)
class Follower:
    """Another process, as the first one reaches it."""

    member: LaunchedProcess
    channel: Channel
    lost: str = ""  # why nothing more is asked of it

    @property
    def name(self) -> str:
        """`rank 1 on node07`."""
        return f"rank {self.member.rank} on {self.member.host}"

    @property
    def ended(self) -> bool:
        """Whether its process has ended, as far as is known now."""
        return bool(self.lost) or self.channel.ended

    def tell(self, message: Message) -> None:
        """Send a message, and wait for no answer."""
        if not self.lost:
            self.channel.send(message)

    def hear(self, timeout_s: float) -> Message:
        """Its next answer. Raises ConnectionError where it has ended or is late: then it is lost for good."""
        if self.lost:
            raise ConnectionError(self.lost)
        try:
            answer = self.channel.receive(timeout_s)
        except TimeoutError:
            self._lose(f"its process said nothing for {timeout_s:.0f} s")
        except ValueError as error:
            self._lose(f"its process cannot be understood: {error}")
        else:
            if answer is not None:
                return answer
            self._lose("its process has ended")
        raise ConnectionError(self.lost)

    def _lose(self, reason: str) -> None:
        self.lost = reason  # and close: a late answer would be taken for the next one
        self.channel.close()


@dataclass(frozen=True)
class Group:
    """All processes of the launcher: this one, which is the first, and those that follow it."""

    host: str  # the name or address by which all reach this process
    own: LaunchedProcess
    followers: Sequence[Follower]

    @cached_property
    def members(self) -> list[LaunchedProcess]:
        """In the order of ranks."""
        return [self.own, *(follower.member for follower in self.followers)]

    @cached_property
    def ranks_by_host(self) -> dict[str, list[int]]:
        """Host → the ranks on it; the first rank's host comes first."""
        ranks: dict[str, list[int]] = {}
        for rank, member in enumerate(self.members):
            ranks.setdefault(member.host, []).append(rank)
        return ranks

    @property
    def hosts(self) -> int:
        """How many hosts the processes run on."""
        return len(self.ranks_by_host)

    @property
    def is_even(self) -> bool:
        """Whether every host runs equally many processes."""
        return len({len(ranks) for ranks in self.ranks_by_host.values()}) == 1

    def host_number(self, rank: int) -> int:
        """The host of a rank, counted from 0, the first rank's."""
        return list(self.ranks_by_host).index(self.members[rank].host)

    def device(self, rank: int) -> int:
        """The index of a rank's accelerator among those it sees: ranks that see the same ones divide them."""
        own = self.members[rank]
        same = [n for n in self.ranks_by_host[own.host] if self.members[n].gpus == own.gpus]
        return same.index(rank)

    @cached_property
    def cores(self) -> dict[int, list[int]]:
        """Rank → its cores: those its launcher bound it to, else an equal share of its host's."""
        return {
            rank: cores
            for ranks in self.ranks_by_host.values()
            for rank, cores in zip(ranks, _shared_cores([self.members[n] for n in ranks]), strict=True)
        }

    @cached_property
    def oversubscribed(self) -> bool:
        """Whether two ranks of a host share a core."""
        taken = [(self.members[rank].host, core) for rank, cores in self.cores.items() for core in cores]
        return len(set(taken)) < len(taken)

    def close(self) -> None:
        """End the followers: each ends when its connection does."""
        for follower in self.followers:
            follower.channel.close()


def _shared_cores(members: Sequence[LaunchedProcess]) -> list[list[int]]:
    """The cores of each process of one host."""
    if len({member.cores for member in members}) > 1:  # their launcher has divided them
        return [list(member.cores) for member in members]
    return [cores_of(place, len(members), member.cores) for place, member in enumerate(members)]


def this_member(where: Launched) -> LaunchedProcess:
    """This process."""
    return LaunchedProcess(
        rank=where.rank,
        host=socket.gethostname(),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        version=installed_version(),
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    )


def installed_version() -> str:
    """What must be the same in all processes."""
    return f"accelbench {__version__}, Python {platform.python_version()}"


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


def follow(where: Launched, limit_s: float = JOIN_S) -> None:
    """Do what the first process asks until it ends. Raises UsageError where it cannot be reached."""
    connection, token = _connected(where, limit_s)
    channel = Channel(connection)
    channel.send({"member": dataclasses.asdict(this_member(where)), "token": token})
    with closing(channel):
        _Workers(channel).serve()


def _connected(where: Launched, limit_s: float) -> tuple[socket.socket, str]:
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
        """Do what the first process asks, until it is gone."""
        try:
            while (message := self._channel.receive(NO_LIMIT_S)) is not None:
                answer = self._tasks[message["do"]](message)
                if answer is not None:
                    self._channel.send(answer)
        finally:
            if self._transport:
                self._transport.close()

    def _start(self, message: Message) -> None:
        if self._transport is None:
            self._transport = LocalTransport(msgspec.convert(message["settings"], Settings))
        target = msgspec.convert(message["target"], Target)
        if message["same_python"]:
            target = dataclasses.replace(target, python=sys.executable)
        self._workers[message["worker"]] = self._transport.start(target, message["environment"])

    def _ready(self, message: Message) -> Message:
        return dataclasses.asdict(self._workers[message["worker"]].ready(message["timeout_s"]))

    def _post(self, message: Message) -> None:
        self._workers[message["worker"]].post(message["job"], fork=message["fork"])

    def _collect(self, message: Message) -> Message:
        answer = self._workers[message["worker"]].collect(message["timeout_s"])
        return {"end": answer.end, "message": answer.message, "log": answer.log}

    def _close(self, message: Message) -> None:
        with suppress(KeyError):
            self._workers.pop(message["worker"]).close()


def greeting_of(follower: Follower, timeout_s: float) -> Greeting:
    """The greeting of the worker that was asked for last; `broken` where its process is gone."""
    try:
        return msgspec.convert(follower.hear(timeout_s), Greeting)
    except (ConnectionError, msgspec.ValidationError) as error:
        return Greeting(status="broken", reason=str(error))


def ended_job(follower: Follower, timeout_s: float) -> Message:
    """How its worker's job ended, as `end`, `message` and `log`; `crashed` where its process is gone."""
    try:
        return {"end": "", "message": "", "log": "", **follower.hear(timeout_s)}
    except ConnectionError as error:
        return {"end": JobEnd.CRASHED, "message": str(error), "log": ""}
