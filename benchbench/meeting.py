"""Exchange of values between the ranks of a case, and the failure that explains the others' failures.

Parent and workers use this module, so it needs the standard library only. A rank that sends an unexpected
message has failed, and nothing more is read from it.
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

from benchbench.model.case import Status
from benchbench.model.measurement import Failure
from benchbench.wire import LineBuffer, Message, decode_line, encode_line

CONNECT_TIMEOUT_S = 60.0  # for the ranks of a job to connect
GRACE_S = 2.0  # for the replies of the other ranks after one has failed
MAX_REASON_LENGTH = 200  # characters of the reason why a message cannot be read
MARGIN_S = 5.0  # before the job's time-out, so that the answer can name the rank
# Statuses that explain failures of other ranks come first: a dead rank breaks the collectives of the rest.
CAUSES = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.WRONG_RESULT)


def reply_deadline(timeout_s: float) -> float:
    """The time, by `time.monotonic`, at which ranks without a reply count as late."""
    return time.monotonic() + max(timeout_s - MARGIN_S, timeout_s / 2)


class RankConnection:
    """A rank's end of its connection to `serve_ranks`."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("rwb")

    def gather(self, value: Any) -> list[Any]:
        """Send this rank's value; return the values of all ranks. Raises ConnectionError if they ended."""
        self.send({"value": value})
        answer = self._lines.readline()
        if not answer:
            raise ConnectionError("the other ranks have ended")
        values: list[Any] = json.loads(answer)
        return values

    def send(self, message: Message) -> None:
        """Send a message; a `reply` is the rank's last."""
        self._lines.write(encode_line(message))
        self._lines.flush()


@dataclass
class Rank:
    """A rank as seen by `serve_ranks`. `describe_ending()`: how it ended, if it gave no reply."""

    number: int
    connection: socket.socket
    describe_ending: Callable[[], str] = lambda: "its connection ended"
    lines: LineBuffer = field(default_factory=LineBuffer)  # unread bytes
    gathering: list[Any] = field(
        default_factory=list
    )  # the value that it sent to `gather` and awaits, if any
    reply: Message | None = None
    ended: bool = False
    violation: str = ""  # why its message was refused


def serve_ranks(ranks: Sequence[Rank], deadline: float) -> Message:
    """Send each rank the values of all when it gathers; return all replies, `{"ranks": […]}`, or a failure.

    Of several failures, the one that explains the others is returned. Lasts until every rank has ended, until
    `GRACE_S` after the first failure, or until `deadline`, by `time.monotonic`.
    """
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.connection, selectors.EVENT_READ, rank)
            _handle_lines(rank)  # messages that came with its introduction
        while True:
            if any(_failure(rank) for rank in ranks):
                deadline = min(deadline, time.monotonic() + GRACE_S)
            for key in [key for key in selector.get_map().values() if key.data.ended]:
                selector.unregister(key.fileobj)
            if all(rank.gathering for rank in ranks):
                _send_values(ranks, deadline)
            if not selector.get_map() or (remaining_s := deadline - time.monotonic()) <= 0:
                return _result(ranks)
            for key, _ in selector.select(remaining_s):
                _receive(key.data)


def _receive(rank: Rank) -> None:
    """Read the rank's next bytes, or note that it has ended."""
    with suppress(OSError):  # connection reset, or no route to its host
        if data := rank.connection.recv(2**16):
            rank.lines.add(data)
            _handle_lines(rank)
            return
    rank.ended = True


def _handle_lines(rank: Rank) -> None:
    """Handle each complete line. An unexpected message ends the rank."""
    try:
        while (line := rank.lines.pop()) is not None:
            _handle(rank, decode_line(line))
    except ValueError as error:
        reason = str(error)[:MAX_REASON_LENGTH]
        rank.violation, rank.ended = f"what it sent cannot be read: {reason}", True


def _handle(rank: Rank, message: Message) -> None:
    """Raises ValueError for an unexpected message."""
    if rank.gathering or rank.reply is not None:
        raise ValueError("a message that is not its turn")
    if [*message] == ["value"]:
        rank.gathering = [message["value"]]
    elif [*message] == ["reply"]:
        _check_reply(message["reply"])
        rank.reply = message["reply"]
    else:
        raise ValueError("neither a value nor a reply")


def _check_reply(reply: object) -> None:
    """Check the fields by which ranks are combined; the receiver checks the others. Raises ValueError."""
    if not isinstance(reply, dict) or "ranks" in reply:
        raise ValueError("no reply of a rank")
    if "verified" in reply and not _is_error(reply["verified"]):
        raise ValueError("verified: no relative error")
    outcome = reply.get("outcome", {"status": Status.OK})
    if not isinstance(outcome, dict):
        raise ValueError("an outcome that is no object")
    is_complete = isinstance(outcome.get("message"), str) and _is_error(outcome.get("relative_error"))
    if Status(outcome.get("status", "")) is not Status.OK and not is_complete:
        raise ValueError("a failure without its message")


def _is_error(value: object) -> bool:
    """True for a relative error or None."""
    return value is None or (type(value) in (int, float) and 0 <= value < math.inf)  # type: ignore[operator]


def _send_values(ranks: Sequence[Rank], deadline: float) -> None:
    """Send the values of all to every rank. A rank that does not read them before `deadline` has ended."""
    values = encode_line([rank.gathering[0] for rank in ranks])
    for rank in ranks:
        rank.gathering = []
        try:
            rank.connection.settimeout(max(deadline - time.monotonic(), 0.001))
            rank.connection.sendall(values)
        except TimeoutError:
            rank.ended = True
        except OSError:  # it died: the next `recv` shows it
            pass


def _failure(rank: Rank) -> Failure | None:
    """The rank's failure, or None."""
    if rank.violation:
        return Failure(status=Status.FAILED, message=rank.violation)
    if rank.reply is None:
        return Failure(status=Status.CRASHED, message="") if rank.ended else None
    outcome = rank.reply.get("outcome", {})
    if outcome.get("status", Status.OK) == Status.OK:
        return None
    error = outcome.get("relative_error")
    return Failure(status=Status(outcome["status"]), message=outcome["message"], relative_error=error)


def _result(ranks: Sequence[Rank]) -> Message:
    """The replies of all ranks, or the failure that explains the others."""
    failures = [(rank, failure) for rank in ranks if (failure := _failure(rank))]
    if failures:
        rank, failure = min(failures, key=lambda pair: (not pair[0].violation, _cause_order(pair[1].status)))
        cause = failure.message if rank.violation or rank.reply is not None else rank.describe_ending()
        message = f"rank {rank.number} of {len(ranks)}: {cause}"
        return failure_reply(dataclasses.replace(failure, message=message))
    if unfinished := [rank for rank in ranks if rank.reply is None]:
        return failure_reply(Failure(status=Status.TIMEOUT, message=_late_message(unfinished, len(ranks))))
    replies = [rank.reply or {} for rank in ranks]
    for rank, reply in zip(ranks, replies, strict=True):
        if ("verified" in reply) != ("verified" in replies[0]):
            message = f"rank {rank.number} of {len(ranks)}: its reply is of another kind than rank 0's"
            return failure_reply(Failure(status=Status.FAILED, message=message))
    return {"ranks": replies}


def _late_message(unfinished: Sequence[Rank], count: int) -> str:
    late = [rank for rank in unfinished if not rank.gathering] or unfinished
    names = " and ".join(str(rank.number) for rank in late)
    suffix = "; the others waited" if len(late) < count else ""
    return f"rank{'s' if len(late) > 1 else ''} {names} of {count} did not come back{suffix}"


def _cause_order(status: Status) -> int:
    return CAUSES.index(status) if status in CAUSES else len(CAUSES)


def device_count(job: Message) -> int:
    """Number of devices of the job's case; 1 for a job without a case."""
    return int(job["case"]["placement"]["devices"]) if "case" in job else 1


def device_names(job: Message) -> tuple[str, ...]:
    """Names of the case's devices if they are not consecutive, else ()."""
    return tuple(job["case"]["placement"].get("names", ()))


def combine_replies(reply: Message) -> Message:
    """Combine the replies of several ranks, except measurements and profiles, which the parent combines."""
    if "ranks" not in reply or {"outcome", "profile"} & (first := reply["ranks"][0]).keys():
        return reply
    if "verified" not in first:
        return first  # type: ignore[no-any-return]
    errors = [rank["verified"] for rank in reply["ranks"]]
    return {"verified": None if None in errors else max(errors)}


def rank_cores(number: int, size: int, cores: Sequence[int]) -> list[int]:
    """The share of `cores` for rank `number` of `size`. Ranks share cores only if there are too few."""
    share = len(cores) // size
    if not share:
        return [cores[number % len(cores)]]
    return list(cores[number * share : (number + 1) * share])


def failure_reply(failure: Failure) -> Message:
    """The reply of a job that failed."""
    return {"outcome": dataclasses.asdict(failure), "stages_s": {}}
