"""Workers in all processes of a launcher, used as one worker. A job on all devices runs one rank in each."""

from __future__ import annotations

import dataclasses
import os
import platform
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchbench import __version__
from benchbench.backends.base import backend_class
from benchbench.launch.launched import Launch
from benchbench.launch.local import LocalTransport
from benchbench.launch.project import UserCode
from benchbench.launch.transport import (
    IMPORT_TIMEOUT_S,
    Answer,
    Channel,
    Files,
    Greeting,
    JobEnd,
    Message,
    Worker,
)
from benchbench.machine.kernel import allowed_cpus
from benchbench.machine.sampler import Sampler, TurnSampler
from benchbench.meeting import (
    CONNECT_TIMEOUT_S,
    MAX_REASON_LENGTH,
    Rank,
    combine_replies,
    device_count,
    failure_reply,
    rank_cores,
    reply_deadline,
    serve_ranks,
)
from benchbench.model.case import Case, Status
from benchbench.model.device import Target
from benchbench.model.measurement import Failure
from benchbench.model.placement import Spread
from benchbench.model.run import Settings
from benchbench.wire import Peer, SecretListener

FAILURE_TIMEOUT_S = 1.0  # for a worker to report how its job ended, after a rank has failed
SUCCESS_TIMEOUT_S = 5.0  # the same after all ranks have replied: output files such as traces are read
FOLLOWER_TIMEOUT_S = 8.0  # for another process to report how its job ended


class RankTransport:
    """Starts workers here and, for frameworks with a process per device, in the other processes."""

    can_alternate = False

    def __init__(self, group: Group, settings: Settings, code: UserCode | None = None) -> None:
        self._group = group
        self._settings = settings
        self._local = LocalTransport(settings, code)
        self._numbers = count()

    def start(self, target: Target, environment: Mapping[str, str], threads: int = 0) -> Worker:
        """Start a worker in every process; only here if the framework uses all devices from one process."""
        worker = self._local.start(target, environment, threads)
        backend = backend_class(target.backend)
        if backend.spread is not Spread.PROCESSES:
            return worker
        number = next(self._numbers)
        for follower in self._group.followers:
            follower.send(
                {
                    "do": "start",
                    "worker": number,
                    "target": dataclasses.asdict(target),
                    "environment": dict(environment),
                    "threads": threads,
                    "settings": dataclasses.asdict(self._settings),
                    "same_python": target.python == sys.executable,
                }
            )
        return RankedWorker(worker, self._group, number)

    def spare_workers(self) -> int:
        """0, since the free memory of other hosts is not known."""
        return 0

    def watch(self, case: Case) -> Sampler:
        """Sample this machine. Other hosts are not sampled."""
        return self._local.watch(case)

    def turn_sampler(self, case: Case) -> TurnSampler:
        return self._local.turn_sampler(case)

    def close(self) -> None:
        """End this process's workers. The others end with their connection."""
        self._local.close()


class RankedWorker(Worker):
    """A worker in every process, each of which runs one rank of a job on all devices."""

    def __init__(self, first: Worker, group: Group, number: int) -> None:
        """`first`: the worker in this process. `number`: identifies the followers' workers in requests."""
        self._first = first
        self._group = group
        self._number = number
        self._meeting: Meeting | None = None
        self._failure = ""  # why the posted job cannot run

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """Return the first worker's greeting, or `broken` if another is not ready or has another version."""
        self._send({"do": "ready", "timeout_s": timeout_s})
        greeting = self._first.ready(timeout_s)
        for follower in self._group.followers:
            other = follower.receive_greeting(timeout_s + FOLLOWER_TIMEOUT_S)
            if greeting.status != "ready":
                continue
            if other.status != "ready":
                greeting = Greeting(status="broken", reason=f"{follower.name}: {other.reason}")
            elif other.version != greeting.version:
                reason = f"{follower.name} has version {other.version}, this one {greeting.version}"
                greeting = Greeting(status="broken", reason=reason)
        return greeting

    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """Start a job on all devices in every worker, and any other job in the first worker."""
        self._failure = ""
        if device_count(job) != len(self._group.members):
            self._first.post(job, files, fork=fork)
        elif failed := [follower for follower in self._group.followers if follower.failure]:
            self._failure = f"{failed[0].name}: {failed[0].failure}"
        else:
            self._meeting = Meeting(self._group, float(job["timeout_s"]))
            for follower in self._group.followers:
                rank_job = {**job, "launched": self._meeting.invitation(follower.member.rank)}
                follower.send({"do": "post", "worker": self._number, "job": rank_job, "fork": fork})
            self._first.post({**job, "launched": self._meeting.invitation(0)}, files, fork=fork)

    def collect(self, timeout_s: float) -> Answer:
        """Wait for all ranks; return their replies as one answer."""
        if self._failure:
            return Answer(None, JobEnd.CRASHED, self._failure)
        if self._meeting is None:
            return self._first.collect(timeout_s)
        endings = _JobEndings(self._first, self._group.followers, self._number, self._meeting)
        reply = self._meeting.replies(endings.describe)
        endings.timeout_s = FAILURE_TIMEOUT_S if "outcome" in reply else SUCCESS_TIMEOUT_S
        log = endings.log
        self._meeting = None
        if "outcome" in reply:
            return Answer(reply, log=log)
        ranks = [
            {**rank_reply, "host": self._group.host_number(rank)}
            for rank, rank_reply in enumerate(reply["ranks"])
        ]
        reply = combine_replies({"ranks": ranks})
        return dataclasses.replace(endings.first, reply=reply, end=JobEnd.ANSWERED, message="")

    def has_ended(self) -> bool:
        """Whether `collect` would return at once; True for a job on all devices, where that is unknown."""
        return bool(self._failure) or self._meeting is not None or self._first.has_ended()

    @property
    def alive(self) -> bool:
        """Whether the first worker can run another job."""
        return self._first.alive

    def close(self) -> None:
        self._first.close()
        self._send({"do": "close"})

    def _send(self, request: Message) -> None:
        for follower in self._group.followers:
            follower.send({**request, "worker": self._number})


class _JobEndings:
    """How the ranks' jobs ended. The first use closes the meeting and ends the jobs after `timeout_s`."""

    def __init__(self, first: Worker, followers: Sequence[Follower], number: int, meeting: Meeting) -> None:
        self._first = first
        self._followers = followers
        self._number = number
        self._meeting = meeting
        self.timeout_s = FAILURE_TIMEOUT_S

    def describe(self, rank: int) -> str:
        """Why a rank gave no reply."""
        message = self._others[rank - 1].message if rank else self.first.message
        return message or "its connection ended"

    @cached_property
    def first(self) -> Answer:
        """The first rank's answer."""
        self._meeting.close()
        for follower in self._followers:
            follower.send({"do": "collect", "worker": self._number, "timeout_s": self.timeout_s})
        return self._first.collect(self.timeout_s)

    @cached_property
    def _others(self) -> list[JobEnding]:
        _ = self.first  # sends the requests to the followers
        return [follower.receive_ending(FOLLOWER_TIMEOUT_S) for follower in self._followers]

    @property
    def log(self) -> str:
        """The end of the output of all workers."""
        return "\n".join(filter(None, [self.first.log, *(ending.log for ending in self._others)]))


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A process of a group, as it introduces itself when it connects."""

    rank: int
    host: str
    cores: tuple[int, ...]
    version: str
    gpus: str = ""  # CUDA_VISIBLE_DEVICES as set by the launcher; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding:
    """How a rank's job ended, as reported by the process of its worker."""

    end: JobEnd
    message: str
    log: str


@dataclass(slots=True)
class Follower:
    """The first process's connection to another one."""

    member: GroupMember
    channel: Channel
    failure: str = ""  # why the process is no longer used; empty while it is

    @property
    def name(self) -> str:
        """`rank 1 on node07`."""
        return f"rank {self.member.rank} on {self.member.host}"

    @property
    def ended(self) -> bool:
        """Whether the process is known to have ended."""
        return bool(self.failure) or self.channel.ended

    def send(self, request: Message) -> None:
        """Send a request without waiting for an answer."""
        if not self.failure:
            self.channel.send(request)

    def receive(self, timeout_s: float, answer_type: type[T]) -> T:
        """The next answer. Raises ConnectionError if the process ended, is late or sent anything else.

        After that, the process is no longer used.
        """
        if self.failure:
            raise ConnectionError(self.failure)
        try:
            answer = self.channel.receive(timeout_s)
            if answer is not None:
                return msgspec.convert(answer, answer_type)
            self.failure = "its process has ended"
        except TimeoutError:
            self.failure = f"its process sent nothing for {timeout_s:.0f} s"
        except ValueError as error:
            self.failure = f"its process sent an unreadable answer: {str(error)[:MAX_REASON_LENGTH]}"
        self.channel.close()  # a late answer would be mistaken for the next one
        raise ConnectionError(self.failure)

    def receive_greeting(self, timeout_s: float) -> Greeting:
        """The greeting of the latest worker; `broken` if the process is no longer used."""
        try:
            return self.receive(timeout_s, Greeting)
        except ConnectionError as error:
            return Greeting(status="broken", reason=str(error))

    def receive_ending(self, timeout_s: float) -> JobEnding:
        """How the job ended; `crashed` if the process is no longer used."""
        try:
            return self.receive(timeout_s, JobEnding)
        except ConnectionError as error:
            return JobEnding(end=JobEnd.CRASHED, message=str(error), log="")


@dataclass(frozen=True)
class Group:
    """All processes of the launcher: this one, which is the first, and its followers."""

    host: str  # the name or address by which all reach this process
    first: GroupMember
    followers: Sequence[Follower]

    @cached_property
    def members(self) -> list[GroupMember]:
        """All processes, in the order of ranks."""
        return [self.first, *(follower.member for follower in self.followers)]

    @cached_property
    def ranks_by_host(self) -> dict[str, list[int]]:
        """Host → its ranks; the first rank's host comes first."""
        ranks: dict[str, list[int]] = {}
        for rank, member in enumerate(self.members):
            ranks.setdefault(member.host, []).append(rank)
        return ranks

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.ranks_by_host)

    @property
    def is_even(self) -> bool:
        """Whether every host runs equally many processes."""
        return len({len(ranks) for ranks in self.ranks_by_host.values()}) == 1

    def host_number(self, rank: int) -> int:
        """Number of a rank's host; the first rank's host is 0."""
        return list(self.ranks_by_host).index(self.members[rank].host)

    def device(self, rank: int) -> int:
        """Index of a rank's accelerator among the visible ones, which ranks with the same `gpus` divide."""
        member = self.members[rank]
        ranks = self.ranks_by_host[member.host]
        return [other for other in ranks if self.members[other].gpus == member.gpus].index(rank)

    @cached_property
    def cores(self) -> dict[int, list[int]]:
        """CPU cores of each rank: the launcher's binding, or an equal share of the host."""
        return {
            rank: cores
            for ranks in self.ranks_by_host.values()
            for rank, cores in zip(ranks, _shared_cores([self.members[rank] for rank in ranks]), strict=True)
        }

    @cached_property
    def oversubscribed(self) -> bool:
        """Whether two ranks of a host share a core."""
        pairs = [(self.members[rank].host, core) for rank, cores in self.cores.items() for core in cores]
        return len(set(pairs)) < len(pairs)

    def close(self) -> None:
        """Close the connections to the followers, which ends them."""
        for follower in self.followers:
            follower.channel.close()


def _shared_cores(members: Sequence[GroupMember]) -> list[list[int]]:
    """The cores of each process on one host."""
    if len({member.cores for member in members}) > 1:  # bound by the launcher
        return [list(member.cores) for member in members]
    return [rank_cores(place, len(members), member.cores) for place, member in enumerate(members)]


def this_member(launch: Launch) -> GroupMember:
    """This process as a member of its group."""
    return GroupMember(
        rank=launch.rank,
        host=socket.gethostname(),
        cores=allowed_cpus(),
        version=f"accelbench {__version__}, Python {platform.python_version()}",
        gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    )


POLL_S = 1.0  # between checks whether a process has ended


class Meeting:
    """A port of this process, where the ranks of one job connect."""

    def __init__(self, group: Group, timeout_s: float) -> None:
        self._group = group
        self._deadline = reply_deadline(timeout_s)
        self._secret = secrets.token_hex(16)
        host = group.host if group.hosts == 1 else ""
        self._listener = SecretListener(
            socket.create_server((host, 0), backlog=len(group.members)), self._secret
        )
        self._folder = tempfile.TemporaryDirectory(prefix="accelbench-meeting-")
        self._ranks: dict[int, Rank] = {}

    def invitation(self, rank: int) -> dict[str, Any]:
        """The request to a rank: its number, device and cores, and the address to connect to."""
        group = self._group
        return {
            "rank": rank,
            "local": group.device(rank),
            "size": len(group.members),
            "hosts": group.hosts,
            "host": group.host,
            "port": self._listener.address[1],
            "secret": self._secret,
            "cores": group.cores[rank],
            "oversubscribed": group.oversubscribed,
            "meeting": self._url,
        }

    @cached_property
    def _url(self) -> str:
        """The rendezvous URL of the framework's process group: a file on one host, otherwise a free port."""
        if self._group.hosts == 1:
            return f"file://{Path(self._folder.name) / 'meeting'}"
        with socket.create_server(("", 0)) as server:
            return f"tcp://{self._group.host}:{server.getsockname()[1]}"

    def replies(self, describe_ending: Callable[[int], str]) -> Message:
        """Wait for the ranks to connect and run; return their replies, or the failure that caused the others.

        `describe_ending(rank)`: why a rank gave no reply.
        """
        size, deadline = len(self._group.members), min(self._deadline, time.monotonic() + CONNECT_TIMEOUT_S)
        while len(self._ranks) < size:
            if peer := self._listener.accept(min(max(deadline - time.monotonic(), 0.0), POLL_S)):
                self._add_rank(peer, describe_ending)
            elif time.monotonic() > deadline or any(follower.ended for follower in self._group.followers):
                missing = ", ".join(str(rank) for rank in range(size) if rank not in self._ranks)
                message = f"no process of rank {missing} of {size} connected"
                return failure_reply(Failure(status=Status.CRASHED, message=message))
        return serve_ranks([self._ranks[rank] for rank in range(size)], self._deadline)

    def _add_rank(self, peer: Peer, describe_ending: Callable[[int], str]) -> None:
        """Accept a connection as the rank in its introduction, or close it."""
        number = peer.introduction.get("rank")
        if type(number) is int and 0 <= number < len(self._group.members) and number not in self._ranks:
            self._ranks[number] = Rank(number, peer.connection, partial(describe_ending, number), peer.lines)
        else:
            peer.connection.close()

    def close(self) -> None:
        """Stop listening, and close the connections of all ranks."""
        for rank in self._ranks.values():
            rank.connection.close()
        self._listener.close()
        self._folder.cleanup()
