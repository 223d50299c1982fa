"""The ranks of a case on one machine: a process each, forked from the one that has the job.

That process is where they meet: it answers each `World.gather` once all ranks have called it, tells which
rank died, failed or hangs, and ends the others.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from benchbench.model.measurement import Failure
from benchbench.model.status import Status
from benchbench.model.world import World
from benchbench.worker.children import die_with_parent
from benchbench.worker.program import Message

GRACE_S = 2.0  # for what the other ranks say, once one has failed
MARGIN_S = 5.0  # before the parent's time-out, so that the answer can name the rank
# What explains the others' failures comes first: a rank that dies breaks the collectives of the rest.
GRAVEST = (Status.CRASHED, Status.OUT_OF_MEMORY, Status.WRONG_RESULT)

RunRank = Callable[[Message, World], Message]


@dataclass
class Rank:
    """One of the processes, as seen from where they meet."""

    number: int
    pid: int
    channel: socket.socket
    received: bytes = b""
    given: list[Any] = field(default_factory=list)  # the value it waits with; empty: it does not wait
    reply: Message | None = None
    ended: bool = False


def run_ranks(job: Message, run: RunRank) -> Message:
    """The replies of all ranks, `{"ranks": […]}`, or the failure of the one that explains the rest."""
    size = job["case"]["placement"]["devices"]
    ranks = [_forked(number, size, job, run) for number in range(size)]
    try:
        deadline = time.monotonic() + max(job["timeout_s"] - MARGIN_S, job["timeout_s"] / 2)
        _meet(ranks, deadline)
        return _told(ranks)
    finally:
        for rank in ranks:
            _end(rank)


def cores_of(number: int, size: int, allowed: Sequence[int]) -> list[int]:
    """The cores of a rank: no other's, unless there are fewer cores than ranks."""
    share = len(allowed) // size
    if not share:
        return [allowed[number % len(allowed)]]
    return list(allowed[number * share : (number + 1) * share])


def on_cpu(job: Message) -> bool:
    """Whether the case's devices are the host's cores."""
    return str(job["case"]["device"]).startswith("cpu")


def _forked(number: int, size: int, job: Message, run: RunRank) -> Rank:
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _rank(number, size, parent, theirs, job, run)
    theirs.close()
    return Rank(number, pid, ours)


def _rank(
    number: int, size: int, parent: int, channel: socket.socket, job: Message, run: RunRank
) -> NoReturn:
    """The forked process."""
    code = 1
    try:
        die_with_parent(parent)
        allowed = sorted(os.sched_getaffinity(0))
        cores = cores_of(number, size, allowed)
        os.sched_setaffinity(0, cores)
        lines = channel.makefile("rwb")
        world = World(
            rank=number,
            devices=size,
            processes=size,
            oversubscribed=on_cpu(job) and size > len(allowed),
            meeting=f"{job['folder']}/meeting",
            gather=lambda value: _gathered(lines, value),
        )
        own = {**job, "threads": max(1, min(job["threads"], len(cores)))}
        _send(lines, {"reply": run(own, world)})
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, this process must not go on as its parent
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _gathered(lines: Any, value: Any) -> list[Any]:
    _send(lines, {"value": value})
    answer = lines.readline()
    if not answer:
        raise ConnectionError("the other ranks have ended")
    values: list[Any] = json.loads(answer)
    return values


def _send(lines: Any, message: Message) -> None:
    lines.write(json.dumps(message, allow_nan=False).encode() + b"\n")
    lines.flush()


def _meet(ranks: Sequence[Rank], deadline: float) -> None:
    """Until every rank has ended, or `GRACE_S` after the first failed, or the deadline."""
    with selectors.DefaultSelector() as waiting:
        for rank in ranks:
            waiting.register(rank.channel, selectors.EVENT_READ, rank)
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                rank = key.data
                _receive(rank)
                if rank.ended:
                    waiting.unregister(rank.channel)
                if failure_of(rank):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            if all(rank.given for rank in ranks):
                _answer(ranks)


def _receive(rank: Rank) -> None:
    """One message, or the end."""
    with suppress(ConnectionError):
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
        with suppress(ConnectionError):  # it died: its end is read next
            rank.channel.sendall(values)


def failure_of(rank: Rank) -> Failure | None:
    """What ended it, if not its answer."""
    if rank.reply is None:
        return Failure(status=Status.CRASHED, message="it died") if rank.ended else None
    outcome = rank.reply.get("outcome", {})
    if outcome.get("status", Status.OK) == Status.OK:
        return None
    return Failure(
        status=Status(outcome["status"]),
        message=outcome["message"],
        relative_error=outcome.get("relative_error"),
    )


def _told(ranks: Sequence[Rank]) -> Message:
    failures = [(rank, failure) for rank in ranks if (failure := failure_of(rank))]
    if failures:
        rank, failure = min(failures, key=lambda each: _place(each[1].status))
        told = _death(rank) if rank.reply is None else failure.message
        name = f"rank {rank.number} of {len(ranks)}"
        return _failed(failure.status, f"{name}: {told}", failure.relative_error)
    if behind := [rank for rank in ranks if rank.reply is None]:
        late = [rank for rank in behind if not rank.given] or behind
        names = " and ".join(str(rank.number) for rank in late)
        who = f"rank{'s' if len(late) > 1 else ''} {names} of {len(ranks)}"
        waited = "; the others waited" if len(late) < len(ranks) else ""
        return _failed(Status.TIMEOUT, f"{who} did not come back{waited}", None)
    return {"ranks": [rank.reply for rank in ranks]}


def _place(status: Status) -> int:
    return GRAVEST.index(status) if status in GRAVEST else len(GRAVEST)


def _death(rank: Rank) -> str:
    code = os.waitstatus_to_exitcode(os.waitpid(rank.pid, 0)[1])
    rank.pid = 0
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end(rank: Rank) -> None:
    rank.channel.close()
    if rank.pid:
        with suppress(ProcessLookupError):
            os.kill(rank.pid, signal.SIGKILL)
        os.waitpid(rank.pid, 0)


def _failed(status: Status, message: str, relative_error: float | None) -> Message:
    import dataclasses

    failure = Failure(status=status, message=message, relative_error=relative_error)
    return {"outcome": dataclasses.asdict(failure), "stages_s": {}}
