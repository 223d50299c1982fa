"""Where the ranks of a case meet: each gets the values of all, and of several failures the cause is reported.

Parent and workers use it, so it needs the standard library only. Messages are JSON objects, one per line.
"""

from __future__ import annotations

import dataclasses
import json
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchbench.model.measurement import Failure
from benchbench.model.status import Status

LONGEST = 1024  # bytes of an introduction
GRACE_S = 2.0  # for what the other ranks say, once one has failed
MARGIN_S = 5.0  # before the job's time-out, so that the answer can name the rank
# What explains the others' failures comes first: a rank that dies breaks the collectives of the rest.
GRAVEST = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.WRONG_RESULT)

Message = dict[str, Any]


def deadline_of(timeout_s: float) -> float:
    """When ranks that have not come back count as late, on the monotonic clock."""
    return time.monotonic() + max(timeout_s - MARGIN_S, timeout_s / 2)


class Member:
    """A rank's end of the connection."""

    def __init__(self, channel: socket.socket) -> None:
        self._lines = channel.makefile("rwb")

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order, once all have given one.

        Raises ConnectionError where the others have ended.
        """
        self.send({"value": value})
        answer = self._lines.readline()
        if not answer:
            raise ConnectionError("the other ranks have ended")
        values: list[Any] = json.loads(answer)
        return values

    def send(self, message: Message) -> None:
        """Send a message; a `reply` is the rank's last."""
        self._lines.write(json.dumps(message, allow_nan=False).encode() + b"\n")
        self._lines.flush()


@dataclass
class Rank:
    """A rank as the meeting sees it. `death()`: how it ended, where it gave no reply."""

    number: int
    channel: socket.socket
    death: Callable[[], str] = lambda: "its connection ended"
    received: bytes = b""
    given: list[Any] = field(default_factory=list)  # the value of the gather that it waits in, else empty
    reply: Message | None = None
    ended: bool = False


def meet(ranks: Sequence[Rank], deadline: float) -> Message:
    """The replies of all ranks, `{"ranks": […]}`, or the failure that explains the others'.

    Lasts until every rank has ended, until `GRACE_S` after the first failure, or until the deadline on the
    monotonic clock.
    """
    with selectors.DefaultSelector() as waiting:
        for rank in ranks:
            waiting.register(rank.channel, selectors.EVENT_READ, rank)
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                rank = key.data
                _receive(rank)
                if rank.ended:
                    waiting.unregister(rank.channel)
                if _failure(rank):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            if all(rank.given for rank in ranks):
                _answer(ranks)
    return _together(ranks)


def _receive(rank: Rank) -> None:
    """Take in what the rank has sent, or that it has ended."""
    with suppress(OSError):  # reset, or no route to its host any longer
        if data := rank.channel.recv(2**16):
            *lines, rank.received = (rank.received + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                if "value" in message:
                    rank.given = [message["value"]]
                else:
                    rank.reply = message["reply"]
            return
    rank.ended = True


def _answer(ranks: Sequence[Rank]) -> None:
    values = json.dumps([rank.given[0] for rank in ranks]).encode() + b"\n"
    for rank in ranks:
        rank.given = []
        with suppress(OSError):  # it died: its end is read next
            rank.channel.sendall(values)


def _failure(rank: Rank) -> Failure | None:
    """How the rank failed, if it did."""
    if rank.reply is None:
        return Failure(status=Status.CRASHED, message="") if rank.ended else None
    outcome = rank.reply.get("outcome", {})
    if outcome.get("status", Status.OK) == Status.OK:
        return None
    error = outcome.get("relative_error")
    return Failure(status=Status(outcome["status"]), message=outcome["message"], relative_error=error)


def _together(ranks: Sequence[Rank]) -> Message:
    failures = [(rank, failure) for rank in ranks if (failure := _failure(rank))]
    if failures:
        rank, failure = min(failures, key=lambda each: _gravity(each[1].status))
        cause = failure.message if rank.reply is not None else rank.death()
        message = f"rank {rank.number} of {len(ranks)}: {cause}"
        return failure_reply(dataclasses.replace(failure, message=message))
    if behind := [rank for rank in ranks if rank.reply is None]:
        return failure_reply(Failure(status=Status.TIMEOUT, message=_late(behind, len(ranks))))
    return {"ranks": [rank.reply for rank in ranks]}


def _late(behind: Sequence[Rank], count: int) -> str:
    late = [rank for rank in behind if not rank.given] or behind
    names = " and ".join(str(rank.number) for rank in late)
    waited = "; the others waited" if len(late) < count else ""
    return f"rank{'s' if len(late) > 1 else ''} {names} of {count} did not come back{waited}"


def _gravity(status: Status) -> int:
    return GRAVEST.index(status) if status in GRAVEST else len(GRAVEST)


def devices_of(job: Message) -> int:
    """How many devices the job's case has; 1 where it is about no case."""
    return int(job["case"]["placement"]["devices"]) if "case" in job else 1


def names_of(job: Message) -> tuple[str, ...]:
    """The names of the case's devices, where one does not follow the other; else empty."""
    return tuple(job["case"]["placement"].get("names", ()))


def of_all(reply: Message) -> Message:
    """One reply of several ranks. Measurements and profiles stay apart: whoever asked combines them."""
    if "ranks" not in reply or {"outcome", "profile"} & (first := reply["ranks"][0]).keys():
        return reply
    if "verified" not in first:
        return first  # type: ignore[no-any-return]
    errors = [rank["verified"] for rank in reply["ranks"]]
    return {"verified": None if None in errors else max(errors)}


def cores_of(number: int, size: int, allowed: Sequence[int]) -> list[int]:
    """The cores of rank `number` of `size`: no other rank's, unless there are fewer cores than ranks."""
    share = len(allowed) // size
    if not share:
        return [allowed[number % len(allowed)]]
    return list(allowed[number * share : (number + 1) * share])


def first_message(channel: socket.socket, limit_s: float = 5.0) -> Message:
    """How whoever connected introduces itself; empty where it does not within `limit_s`.

    Nothing beyond the first line is read.
    """
    deadline, line = time.monotonic() + limit_s, b""
    try:
        while not line.endswith(b"\n") and len(line) < LONGEST:
            channel.settimeout(max(deadline - time.monotonic(), 0.001))
            byte = channel.recv(1)
            if not byte:
                return {}
            line += byte
        message = json.loads(line)
    except (OSError, ValueError, RecursionError):
        return {}
    channel.settimeout(None)
    return message if isinstance(message, dict) else {}


def failure_reply(failure: Failure) -> Message:
    """The reply of a job that has no other."""
    return {"outcome": dataclasses.asdict(failure), "stages_s": {}}
