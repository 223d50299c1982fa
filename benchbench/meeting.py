"""Where the ranks of a case meet: each gets the values of all, and of several failures the cause is reported.

Parent and workers use it, so it needs the standard library only. Messages are read by `wire`. A rank that
sends anything but a value or a reply where it is due has failed, and nothing more is read of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from benchbench.model.measurement import Failure
from benchbench.model.status import Status
from benchbench.wire import LineBuffer, Message, encoded_line, message_of

MEET_S = 60.0  # for the ranks of a job to connect
GRACE_S = 2.0  # for what the other ranks say, once one has failed
LONGEST = 200  # characters of why a message cannot be read
MARGIN_S = 5.0  # before the job's time-out, so that the answer can name the rank
# What explains the others' failures comes first: a rank that dies breaks the collectives of the rest.
GRAVEST = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.WRONG_RESULT)


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
        self._lines.write(encoded_line(message))
        self._lines.flush()


@dataclass
class Rank:
    """A rank as the meeting sees it. `death()`: how it ended, where it gave no reply."""

    number: int
    channel: socket.socket
    death: Callable[[], str] = lambda: "its connection ended"
    lines: LineBuffer = field(default_factory=LineBuffer)  # what has come of it and was not read
    given: list[Any] = field(default_factory=list)  # the value of the gather that it waits in, else empty
    reply: Message | None = None
    ended: bool = False
    violation: str = ""  # what it sent that no rank may


def meet(ranks: Sequence[Rank], deadline: float) -> Message:
    """The replies of all ranks, `{"ranks": […]}`, or the failure that explains the others'.

    Lasts until every rank has ended, until `GRACE_S` after the first failure, or until the deadline on the
    monotonic clock.
    """
    with selectors.DefaultSelector() as waiting:
        for rank in ranks:
            waiting.register(rank.channel, selectors.EVENT_READ, rank)
            _heed_all(rank)  # what came with its introduction
        while True:
            if any(_failure(rank) for rank in ranks):
                deadline = min(deadline, time.monotonic() + GRACE_S)
            for key in [each for each in waiting.get_map().values() if each.data.ended]:
                waiting.unregister(key.fileobj)
            if all(rank.given for rank in ranks):
                _answer(ranks, deadline)
            if not waiting.get_map() or (left := deadline - time.monotonic()) <= 0:
                return _together(ranks)
            for key, _ in waiting.select(left):
                _receive(key.data)


def _receive(rank: Rank) -> None:
    """Take in what the rank has sent, or that it has ended."""
    with suppress(OSError):  # reset, or no route to its host any longer
        if data := rank.channel.recv(2**16):
            rank.lines.take(data)
            _heed_all(rank)
            return
    rank.ended = True


def _heed_all(rank: Rank) -> None:
    """Take each whole line for what it says; one that says nothing of ours is the rank's last."""
    try:
        while (line := rank.lines.pop()) is not None:
            _heed(rank, message_of(line))
    except ValueError as error:
        rank.violation, rank.ended = f"what it sent cannot be read: {str(error)[:LONGEST]}", True


def _heed(rank: Rank, message: Message) -> None:
    """Raises ValueError."""
    if rank.given or rank.reply is not None:
        raise ValueError("a message that is not its turn")
    if [*message] == ["value"]:
        rank.given = [message["value"]]
    elif [*message] == ["reply"]:
        _check_reply(message["reply"])
        rank.reply = message["reply"]
    else:
        raise ValueError("neither a value nor a reply")


def _check_reply(reply: object) -> None:
    """Check what combining ranks needs of a reply; the asker checks the rest. Raises ValueError."""
    if not isinstance(reply, dict) or "ranks" in reply:
        raise ValueError("no reply of a rank")
    if "verified" in reply and not _is_error(reply["verified"]):
        raise ValueError("verified: no relative error")
    outcome = reply.get("outcome", {"status": Status.OK})
    if not isinstance(outcome, dict):
        raise ValueError("an outcome that is no object")
    is_told = isinstance(outcome.get("message"), str) and _is_error(outcome.get("relative_error"))
    if Status(outcome.get("status", "")) is not Status.OK and not is_told:
        raise ValueError("a failure without its message")


def _is_error(value: object) -> bool:
    """Whether it is a relative error, or none."""
    return value is None or (type(value) in (int, float) and 0 <= value < math.inf)  # type: ignore[operator]


def _answer(ranks: Sequence[Rank], deadline: float) -> None:
    """Tell every rank the values of all; one that does not read them by the deadline has ended."""
    values = encoded_line([rank.given[0] for rank in ranks])
    for rank in ranks:
        rank.given = []
        try:
            rank.channel.settimeout(max(deadline - time.monotonic(), 0.001))
            rank.channel.sendall(values)
        except TimeoutError:
            rank.ended = True
        except OSError:  # it died: its end is read next
            pass


def _failure(rank: Rank) -> Failure | None:
    """How the rank failed, if it did."""
    if rank.violation:
        return Failure(status=Status.FAILED, message=rank.violation)
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
        rank, failure = min(failures, key=lambda each: (not each[0].violation, _gravity(each[1].status)))
        cause = failure.message if rank.violation or rank.reply is not None else rank.death()
        message = f"rank {rank.number} of {len(ranks)}: {cause}"
        return failure_reply(dataclasses.replace(failure, message=message))
    if behind := [rank for rank in ranks if rank.reply is None]:
        return failure_reply(Failure(status=Status.TIMEOUT, message=_late(behind, len(ranks))))
    replies = [rank.reply or {} for rank in ranks]
    for rank, reply in zip(ranks, replies, strict=True):
        if ("verified" in reply) != ("verified" in replies[0]):
            message = f"rank {rank.number} of {len(ranks)}: its reply is of another kind than rank 0's"
            return failure_reply(Failure(status=Status.FAILED, message=message))
    return {"ranks": replies}


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
    """Combine the replies of several ranks, except measurements and profiles, which the asker combines."""
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


def failure_reply(failure: Failure) -> Message:
    """The reply of a job that has no other."""
    return {"outcome": dataclasses.asdict(failure), "stages_s": {}}
