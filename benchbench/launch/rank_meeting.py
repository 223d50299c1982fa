"""Where the ranks of one job meet when a launcher started their processes: a port of the first process."""

from __future__ import annotations

import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from benchbench.launch.rank_group import Group
from benchbench.launch.transport import Message
from benchbench.meeting import MEET_S, Rank, deadline_of, failure_reply, meet
from benchbench.model.measurement import Failure
from benchbench.model.status import Status
from benchbench.wire import Door, Entered

MOMENT_S = 1.0  # between looks at whether one of the processes has ended


class Meeting:
    """A port of this process, where the ranks of one job connect."""

    def __init__(self, group: Group, timeout_s: float) -> None:
        self._group = group
        self._deadline = deadline_of(timeout_s)
        self._secret = secrets.token_hex(16)
        host = group.host if group.hosts == 1 else ""
        self._door = Door(socket.create_server((host, 0), backlog=len(group.members)), self._secret)
        self._folder = tempfile.TemporaryDirectory(prefix="accelbench-meeting-")
        self._ranks: dict[int, Rank] = {}

    def invitation(self, rank: int) -> dict[str, Any]:
        """What a rank is told before it connects: which rank it is, on what it runs, and where to connect."""
        group = self._group
        return {
            "rank": rank,
            "local": group.device(rank),
            "size": len(group.members),
            "hosts": group.hosts,
            "host": group.host,
            "port": self._door.address[1],
            "secret": self._secret,
            "cores": group.cores[rank],
            "oversubscribed": group.oversubscribed,
            "meeting": self._url,
        }

    @cached_property
    def _url(self) -> str:
        """Where the framework's process group meets: a file on one host, else a port that is free now."""
        if self._group.hosts == 1:
            return f"file://{Path(self._folder.name) / 'meeting'}"
        with socket.create_server(("", 0)) as free:
            return f"tcp://{self._group.host}:{free.getsockname()[1]}"

    def hold(self, death: Callable[[int], str]) -> Message:
        """Let the ranks connect and meet: their replies, or the failure that explains the others.

        `death(rank)`: how a rank that gave no reply ended.
        """
        size, deadline = len(self._group.members), min(self._deadline, time.monotonic() + MEET_S)
        while len(self._ranks) < size:
            if entered := self._door.admit(min(max(deadline - time.monotonic(), 0.0), MOMENT_S)):
                self._admit(entered, death)
            elif time.monotonic() > deadline or any(each.ended for each in self._group.followers):
                missing = ", ".join(str(rank) for rank in range(size) if rank not in self._ranks)
                message = f"no process of rank {missing} of {size} came"
                return failure_reply(Failure(status=Status.CRASHED, message=message))
        return meet([self._ranks[rank] for rank in range(size)], self._deadline)

    def _admit(self, entered: Entered, death: Callable[[int], str]) -> None:
        """Take who was let in for the rank that it says it is, or close the connection."""
        number = entered.introduction.get("rank")
        if type(number) is int and 0 <= number < len(self._group.members) and number not in self._ranks:
            self._ranks[number] = Rank(number, entered.connection, partial(death, number), entered.lines)
        else:
            entered.connection.close()

    def close(self) -> None:
        """Stop listening, and close the connections of all ranks."""
        for rank in self._ranks.values():
            rank.channel.close()
        self._door.close()
        self._folder.cleanup()
