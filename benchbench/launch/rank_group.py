"""The processes that a launcher started, one of each rank, as the first of them knows and hears them."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec

from benchbench import __version__
from benchbench.launch.channel import Channel
from benchbench.launch.launched import Launched
from benchbench.launch.transport import Greeting, JobEnd, Message
from benchbench.meeting import LONGEST, cores_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """A process of the launcher, as it introduces itself."""

    rank: int
    host: str
    cores: tuple[int, ...]
    version: str
    gpus: str = ""  # those its launcher let it see, as CUDA_VISIBLE_DEVICES; empty: all


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnding:
    """How a rank's job ended, as the process says that had its worker."""

    end: JobEnd
    message: str
    log: str


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

    def hear(self, timeout_s: float, kind: type[T]) -> T:
        """Its next answer. Raises ConnectionError where it has ended, is late or says anything else.

        Then it is lost for good.
        """
        if self.lost:
            raise ConnectionError(self.lost)
        try:
            answer = self.channel.receive(timeout_s)
            if answer is not None:
                return msgspec.convert(answer, kind)
            self._lose("its process has ended")
        except TimeoutError:
            self._lose(f"its process said nothing for {timeout_s:.0f} s")
        except ValueError as error:
            self._lose(f"its process cannot be understood: {str(error)[:LONGEST]}")
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


def greeting_of(follower: Follower, timeout_s: float) -> Greeting:
    """The greeting of the worker that was asked for last; `broken` where its process is gone."""
    try:
        return follower.hear(timeout_s, Greeting)
    except ConnectionError as error:
        return Greeting(status="broken", reason=str(error))


def job_ending(follower: Follower, timeout_s: float) -> JobEnding:
    """How its worker's job ended; `crashed` where its process is gone."""
    try:
        return follower.hear(timeout_s, JobEnding)
    except ConnectionError as error:
        return JobEnding(end=JobEnd.CRASHED, message=str(error), log="")
