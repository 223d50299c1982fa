"""A worker in every process that a launcher started, used as one: a job on all devices is a rank in each."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count

from benchbench.backends.base import Backend
from benchbench.launch.local import LocalTransport
from benchbench.launch.project import UserCode
from benchbench.launch.rank_group import Follower, Group, JobEnding, greeting_of, job_ending
from benchbench.launch.rank_meeting import Meeting
from benchbench.launch.transport import IMPORT_TIMEOUT_S, Answer, Files, Greeting, JobEnd, Message, Worker
from benchbench.machine.sampler import Sampler
from benchbench.meeting import devices_of, of_all
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.run import Settings
from benchbench.model.world import Spread
from benchbench.registry import load_class

ENDING_S = 1.0  # for a worker to say how its job ended, once a rank has failed
LEAVING_S = 5.0  # likewise once all ranks have replied: files that the job left, as traces, are read
LATE_S = 8.0  # for another process to say so


class RankTransport:
    """This process's workers and, of frameworks with a process per device, those of the other processes."""

    def __init__(self, group: Group, settings: Settings, code: UserCode | None = None) -> None:
        self._group = group
        self._settings = settings
        self._local = LocalTransport(settings, code)
        self._numbers = count()

    def start(self, target: Target, environment: Mapping[str, str]) -> Worker:
        """A worker in every process, or where the framework drives all devices from one, here alone."""
        own = self._local.start(target, environment)
        backend = load_class("benchbench.backends", target.backend, Backend)  # type: ignore[type-abstract]
        if backend.spread is not Spread.PROCESSES:
            return own
        number = next(self._numbers)
        for follower in self._group.followers:
            follower.tell(
                {
                    "do": "start",
                    "worker": number,
                    "target": dataclasses.asdict(target),
                    "environment": dict(environment),
                    "settings": dataclasses.asdict(self._settings),
                    "same_python": target.python == sys.executable,
                }
            )
        return RankedWorker(own, self._group, number)

    def spare_workers(self) -> int:
        """0: how much memory the other hosts have left is not known."""
        return 0

    def watch(self, case: Case) -> Sampler:
        """Samples of this machine: other hosts are not watched."""
        return self._local.watch(case)

    def close(self) -> None:
        """End this process's workers; the others' end when the connection does."""
        self._local.close()


class RankedWorker(Worker):
    """A worker in every process, each of which runs one rank of a job on all devices."""

    def __init__(self, own: Worker, group: Group, number: int) -> None:
        self._own = own
        self._group = group
        self._number = number
        self._meeting: Meeting | None = None
        self._lost = ""

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """The first worker's greeting, or `broken` where another is not ready or has another version."""
        self._tell({"do": "ready", "timeout_s": timeout_s})
        greeting = self._own.ready(timeout_s)
        for follower in self._group.followers:
            other = greeting_of(follower, timeout_s + LATE_S)
            if greeting.status != "ready":
                continue
            if other.status != "ready":
                greeting = Greeting(status="broken", reason=f"{follower.name}: {other.reason}")
            elif other.version != greeting.version:
                differs = f"{follower.name} has version {other.version}, this one {greeting.version}"
                greeting = Greeting(status="broken", reason=differs)
        return greeting

    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """Give a job on all devices to every worker, and a job on one device to the first."""
        self._lost = ""
        if devices_of(job) != len(self._group.members):
            self._own.post(job, files, fork=fork)
        elif lost := [follower for follower in self._group.followers if follower.lost]:
            self._lost = f"{lost[0].name}: {lost[0].lost}"
        else:
            self._meeting = Meeting(self._group, float(job["timeout_s"]))
            for follower in self._group.followers:
                own = {**job, "launched": self._meeting.invitation(follower.member.rank)}
                follower.tell({"do": "post", "worker": self._number, "job": own, "fork": fork})
            self._own.post({**job, "launched": self._meeting.invitation(0)}, files, fork=fork)

    def collect(self, timeout_s: float) -> Answer:
        """One answer for all ranks."""
        if self._lost:
            return Answer(None, JobEnd.CRASHED, self._lost)
        if self._meeting is None:
            return self._own.collect(timeout_s)
        endings = _Endings(self._own, self._group.followers, self._number, self._meeting)
        reply = self._meeting.hold(endings.of)
        endings.limit_s = ENDING_S if "outcome" in reply else LEAVING_S
        log = endings.log
        self._meeting = None
        if "outcome" in reply:
            return Answer(reply, log=log)
        ranks = [{**own, "host": self._group.host_number(rank)} for rank, own in enumerate(reply["ranks"])]
        reply = of_all({"ranks": ranks})
        return dataclasses.replace(endings.own, reply=reply, end=JobEnd.ANSWERED, message="")

    def has_ended(self) -> bool:
        """Whether it has ended; of a job on all devices only the meeting can tell, which `collect` holds."""
        return bool(self._lost) or self._meeting is not None or self._own.has_ended()

    @property
    def alive(self) -> bool:
        """Whether the first worker can take another job."""
        return self._own.alive

    def close(self) -> None:
        """End all of them."""
        self._own.close()
        self._tell({"do": "close"})

    def _tell(self, message: Message) -> None:
        for follower in self._group.followers:
            follower.tell({**message, "worker": self._number})


class _Endings:
    """How the ranks' jobs ended: each worker is asked once, after the meeting, and ends what goes on."""

    def __init__(self, own: Worker, followers: Sequence[Follower], number: int, meeting: Meeting) -> None:
        self._worker = own
        self._followers = followers
        self._number = number
        self._meeting = meeting
        self.limit_s = ENDING_S

    def of(self, rank: int) -> str:
        """Why a rank gave no reply."""
        message = self._others[rank - 1].message if rank else self.own.message
        return message or "its connection ended"

    @cached_property
    def own(self) -> Answer:
        """The first rank's answer."""
        self._meeting.close()
        for follower in self._followers:
            follower.tell({"do": "collect", "worker": self._number, "timeout_s": self.limit_s})
        return self._worker.collect(self.limit_s)

    @cached_property
    def _others(self) -> list[JobEnding]:
        _ = self.own  # asks the others, too
        return [job_ending(follower, LATE_S) for follower in self._followers]

    @property
    def log(self) -> str:
        """What the workers printed last."""
        return "\n".join(filter(None, [self.own.log, *(each.log for each in self._others)]))
