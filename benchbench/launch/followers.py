"""The processes of a launcher work together: the first has the others start workers and give them jobs.

A message is a JSON object, a line each, over TCP. Who reaches the first one's port can have it measure
nonsense, and the others run what it asks: use it in networks that you trust, as torch.distributed.
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
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

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
PAUSE_S = 0.05
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
        """Whether its process has, as far as is known now."""
        return bool(self.lost) or self.channel.ended

    def tell(self, message: Message) -> None:
        """Without an answer."""
        if not self.lost:
            self.channel.send(message)

    def hear(self, timeout_s: float) -> Message:
        """Its answer. Raises ConnectionError where it is gone or says nothing in time: then it is lost."""
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
        """A late answer would be taken for the next one."""
        self.lost = reason
        self.channel.close()


@dataclass(frozen=True, slots=True)
class Group:
    """All processes, in the order of ranks: this one, the first, and those that follow."""

    host: str  # by which all reach this one
    own: LaunchedProcess
    followers: Sequence[Follower]

    @property
    def members(self) -> list[LaunchedProcess]:
        """In the order of ranks."""
        return [self.own, *(follower.member for follower in self.followers)]

    @property
    def hosts(self) -> int:
        """Different ones."""
        return len({member.host for member in self.members})

    def local(self, rank: int) -> tuple[int, int]:
        """Which of the processes of its host a rank is, and how many there are."""
        here = [n for n, each in enumerate(self.members) if each.host == self.members[rank].host]
        return here.index(rank), len(here)

    def device(self, rank: int) -> int:
        """Which of the accelerators that it sees is a rank's: those that see the same divide them."""
        own = self.members[rank]
        same = [n for n, each in enumerate(self.members) if (each.host, each.gpus) == (own.host, own.gpus)]
        return same.index(rank)

    def cores(self, rank: int) -> list[int]:
        """Of a rank: those its launcher bound it to, else its share of those that all on its host have."""
        own = self.members[rank]
        here = [each for each in self.members if each.host == own.host]
        if len({each.cores for each in here}) > 1:
            return list(own.cores)
        return cores_of(*self.local(rank), own.cores)

    def oversubscribed(self, rank: int) -> bool:
        """Whether others on its host have its cores, too."""
        own = set(self.cores(rank))
        others = [
            n for n, each in enumerate(self.members) if n != rank and each.host == self.members[rank].host
        ]
        return any(own & set(self.cores(other)) for other in others)

    def close(self) -> None:
        """The others end."""
        for follower in self.followers:
            follower.channel.close()


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
    """What must be alike in all of them."""
    return f"accelbench {__version__}, Python {platform.python_version()}"


def gather_followers(where: Launched, limit_s: float = JOIN_S) -> Group:
    """Wait for the others, as the first. Raises UsageError: a port is taken, one is missing or differs."""
    host, port = where.address or ("127.0.0.1", 0)
    token = secrets.token_hex(16)
    with closing(_listening("" if where.address else host, port, where.size)) as listener:
        if where.address is None:
            _leave(where, {"port": listener.getsockname()[1], "token": token})
        joined = _joined(where, listener, "" if where.address else token, limit_s)
    group = Group(host, this_member(where), joined)
    if odd := [each for each in group.members if each.version != group.own.version]:
        group.close()
        told = f"Rank {odd[0].rank} on {odd[0].host} has {odd[0].version}, this one {group.own.version}."
        raise UsageError(told, "Install the same in all places.")
    return group


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=backlog)
    except OSError as error:
        hint = f"Set {ADDRESS}=HOST:PORT to a free one, in every process."
        raise UsageError(f"Port {port} cannot be listened on: {error.strerror}.", hint) from error


def _leave(where: Launched, told: Message) -> None:
    """Where the others look for it; nobody else may read it."""
    part = where.file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(told, file)
    part.replace(where.file)


def _joined(where: Launched, listener: socket.socket, token: str, limit_s: float) -> list[Follower]:
    deadline, found = time.monotonic() + limit_s, dict[int, Follower]()
    while len(found) < where.size - 1:
        listener.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            for follower in found.values():
                follower.channel.close()
            missing = sorted({*range(1, where.size)} - {*found})
            names = ", ".join(map(str, missing))
            raise UsageError(
                f"Ranks that did not come within {limit_s:.0f} s: {names}.", "See what the launcher printed."
            ) from None
        channel = Channel(connection)
        try:
            told = channel.receive(PAUSE_S + 5.0)
            member = msgspec.convert((told or {})["member"], LaunchedProcess)
            if (told or {}).get("token") != token or not 0 < member.rank < where.size:
                raise ValueError("a stranger")
        except (ValueError, KeyError, TimeoutError):
            channel.close()
            continue
        found[member.rank] = Follower(member, channel)
    return [found[rank] for rank in sorted(found)]


def follow(where: Launched, limit_s: float = JOIN_S) -> None:
    """Do what the first process asks until it ends. Raises UsageError where it cannot be reached."""
    connection, token = _connected(where, limit_s)
    channel = Channel(connection)
    channel.send({"member": dataclasses.asdict(this_member(where)), "token": token})
    with closing(channel):
        _Workers(channel).serve()


def _connected(where: Launched, limit_s: float) -> tuple[socket.socket, str]:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            told: Message = {"port": 0, "token": ""} if where.address else json.loads(where.file.read_bytes())
            place = where.address or ("127.0.0.1", int(told["port"]))
            connection = socket.create_connection(place, timeout=limit_s)
            connection.settimeout(None)
            return connection, str(told["token"])
        except (OSError, ValueError, KeyError) as error:  # it is not there yet, or an older one's file is
            if time.monotonic() > deadline:
                raise UsageError(
                    f"The first process cannot be reached: {error}.",
                    f"Set {ADDRESS}=HOST:PORT in every process.",
                ) from error
            time.sleep(PAUSE_S)


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
        """Until the first process is gone."""
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
    """Of the worker that was asked for last. A process that is gone has a broken one."""
    try:
        return msgspec.convert(follower.hear(timeout_s), Greeting)
    except (ConnectionError, msgspec.ValidationError) as error:
        return Greeting(status="broken", reason=str(error))


def ended_job(follower: Follower, timeout_s: float) -> Message:
    """How the job of its worker ended, `end`, `message` and `log`, or why that is not known."""
    try:
        return {"end": "", "message": "", "log": "", **follower.hear(timeout_s)}
    except ConnectionError as error:
        return {"end": JobEnd.CRASHED, "message": str(error), "log": ""}
