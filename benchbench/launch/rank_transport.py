"""Workers of every process that a launcher started, as one: a job of several devices is a rank's in each."""

from __future__ import annotations

import dataclasses
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

from benchbench.backends.base import Backend
from benchbench.launch.followers import Group, greeting_of
from benchbench.launch.local import LocalTransport
from benchbench.launch.project import UserCode
from benchbench.launch.transport import IMPORT_TIMEOUT_S, Answer, Files, Greeting, JobEnd, Message, Worker
from benchbench.machine.sampler import Sampler
from benchbench.meeting import Rank, deadline_of, devices_of, failure_reply, first_message, meet, of_all
from benchbench.model.case import Case
from benchbench.model.device import Target
from benchbench.model.measurement import Failure
from benchbench.model.run import Settings
from benchbench.model.status import Status
from benchbench.model.world import Spread
from benchbench.registry import load_class

MEET_S = 60.0  # for the ranks of a job to connect
ENDING_S = 1.0  # for a worker to say how its job ended, after its rank has replied
LATE_S = 15.0  # and for another process to say so


class RankTransport:
    """This machine's workers, and of frameworks with a process for each device those of the others."""

    def __init__(self, group: Group, settings: Settings, code: UserCode | None = None) -> None:
        self._group = group
        self._settings = settings
        self._local = LocalTransport(settings, code)
        self._numbers = count()

    def start(self, target: Target, environment: Mapping[str, str]) -> Worker:
        """One worker on every rank; of other frameworks here alone."""
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

    def watch(self, case: Case) -> Sampler:
        """Samples of this machine; the others' are not watched."""
        return self._local.watch(case)

    def close(self) -> None:
        """End the workers here; the others' end with the connection."""
        self._local.close()


class RankedWorker(Worker):
    """One worker on every rank."""

    def __init__(self, own: Worker, group: Group, number: int) -> None:
        self._own = own
        self._group = group
        self._number = number
        self._meeting: Meeting | None = None

    def ready(self, timeout_s: float = IMPORT_TIMEOUT_S) -> Greeting:
        """Of all: the first's, unless another is not ready or differs."""
        self._tell({"do": "ready", "timeout_s": timeout_s})
        greeting = self._own.ready(timeout_s)
        for follower in self._group.followers:
            other = greeting_of(follower, timeout_s + LATE_S)
            name = f"rank {follower.member.rank} on {follower.member.host}"
            if greeting.status != "ready":
                continue
            if other.status != "ready":
                greeting = Greeting(status="broken", reason=f"{name}: {other.reason}")
            elif other.version != greeting.version:
                greeting = Greeting(
                    status="broken", reason=f"{name} has version {other.version}, this one {greeting.version}"
                )
        return greeting

    def post(self, job: Message, files: Files | None = None, *, fork: bool) -> None:
        """To every rank what is about all devices, and to the first what is about one."""
        if devices_of(job) != len(self._group.members):
            self._own.post(job, files, fork=fork)
            return
        self._meeting = Meeting(self._group, float(job["timeout_s"]))
        for follower in self._group.followers:
            own = {**job, "launched": self._meeting.told(follower.member.rank)}
            follower.tell({"do": "post", "worker": self._number, "job": own, "fork": fork})
        self._own.post({**job, "launched": self._meeting.told(0)}, files, fork=fork)

    def collect(self, timeout_s: float) -> Answer:
        """What all ranks say together."""
        if self._meeting is None:
            return self._own.collect(timeout_s)
        with closing(self._meeting) as meeting:
            reply = meeting.held()
        self._meeting = None
        own = self._own.collect(ENDING_S)
        logs = [own.log, *self._ended()]
        if "outcome" in reply:
            return Answer(reply, log="\n".join(filter(None, logs)))
        return dataclasses.replace(own, reply=of_all(reply), end=JobEnd.ANSWERED, message="")

    def _ended(self) -> list[str]:
        """What the others' workers printed last."""
        self._tell({"do": "collect", "timeout_s": ENDING_S})
        logs = []
        for follower in self._group.followers:
            with suppress(ConnectionError):
                logs.append(str(follower.hear(LATE_S).get("log", "")))
        return logs

    @property
    def alive(self) -> bool:
        """Whether the first can take another job."""
        return self._own.alive

    def close(self) -> None:
        """End all."""
        self._own.close()
        self._tell({"do": "close"})

    def _tell(self, message: Message) -> None:
        for follower in self._group.followers:
            follower.tell({**message, "worker": self._number})


class Meeting:
    """Where the ranks of one job meet: a port of this process."""

    def __init__(self, group: Group, timeout_s: float) -> None:
        self._group = group
        self._deadline = deadline_of(timeout_s)
        self._token = secrets.token_hex(16)
        self._listener = socket.create_server((group.host if group.hosts == 1 else "", 0))
        self._folder = tempfile.TemporaryDirectory(prefix="accelbench-meeting-")
        self._ranks: dict[int, Rank] = {}

    def told(self, rank: int) -> dict[str, Any]:
        """What a rank needs to come."""
        group = self._group
        return {
            "rank": rank,
            "local": group.local(rank)[0],
            "size": len(group.members),
            "hosts": group.hosts,
            "host": group.host,
            "port": self._listener.getsockname()[1],
            "token": self._token,
            "cores": group.cores(rank),
            "oversubscribed": any(group.oversubscribed(each) for each in range(len(group.members))),
            "meeting": self._url,
        }

    @cached_property
    def _url(self) -> str:
        """Where the framework's own processes meet: a file on one host, else a port that is free now."""
        if self._group.hosts == 1:
            return f"file://{Path(self._folder.name) / 'meeting'}"
        with socket.create_server(("", 0)) as free:
            return f"tcp://{self._group.host}:{free.getsockname()[1]}"

    def held(self) -> Message:
        """What the ranks say together, or who did not come."""
        size, deadline = len(self._group.members), min(self._deadline, time.monotonic() + MEET_S)
        while len(self._ranks) < size:
            self._listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(size) if rank not in self._ranks)
                message = f"no process of rank {missing} of {size} came"
                return failure_reply(Failure(status=Status.CRASHED, message=message))
            told = first_message(connection)
            if told.get("token") == self._token and told.get("rank") in range(size):
                self._ranks[told["rank"]] = Rank(told["rank"], connection)
            else:
                connection.close()
        return meet([self._ranks[rank] for rank in range(size)], self._deadline)

    def close(self) -> None:
        """Nobody waits here any more."""
        for rank in self._ranks.values():
            rank.channel.close()
        self._listener.close()
        self._folder.cleanup()
