"""What a process that follows the first one does: it starts workers and runs jobs as it is asked."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from contextlib import closing, suppress

import msgspec

from benchbench.errors import UnreadableInput
from benchbench.launch.channel import Channel
from benchbench.launch.joining import JOIN_S, connect_to_first
from benchbench.launch.launched import Launched
from benchbench.launch.local import LocalTransport
from benchbench.launch.rank_group import JobEnding, this_member
from benchbench.launch.transport import Message, Worker
from benchbench.model.device import Target
from benchbench.model.run import Settings

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
        self._workers[message["worker"]] = self._transport.start(target, message["environment"])

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
