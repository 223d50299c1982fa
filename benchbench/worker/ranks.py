"""The ranks of a case: processes that compute a step together, one on each device.

On one machine they are forked from the process that has the job, and meet there. Where a launcher started
them, on one machine or several, each worker has one rank, which connects to the launcher's first process.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import NoReturn

from benchbench.meeting import MEET_S, Member, Rank, cores_of, deadline_of, meet, names_of
from benchbench.model.world import World
from benchbench.wire import enter
from benchbench.worker.children import die_with_parent
from benchbench.worker.program import Message

DEATH_S = 2.0  # for a process to end after its connection
NUMBER_BYTES = 8  # of a rank, in memory that all of them see
RunRank = Callable[[Message, World], Message]


@dataclass
class ForkedRank:
    """A rank's process, as the one that forked it sees it."""

    number: int
    pid: int
    channel: socket.socket

    def death(self) -> str:
        """How it ended; its end is waited for, since its connection ends before."""
        deadline = time.monotonic() + DEATH_S
        while (found := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                return "its connection ended, and its process did not"
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(found[1])
        self.pid = 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """End the process, however far it is."""
        self.channel.close()
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def run_ranks(job: Message, run: RunRank) -> Message:
    """Fork a rank for each device: their replies, `{"ranks": […]}`, or the failure that explains the rest."""
    size = job["case"]["placement"]["devices"]
    shared = memoryview(mmap.mmap(-1, size * NUMBER_BYTES)).cast("q")
    forked = [_fork(number, size, job, run, shared) for number in range(size)]
    try:
        ranks = [Rank(each.number, each.channel, each.death) for each in forked]
        return meet(ranks, deadline_of(job["timeout_s"]))
    finally:
        for each in forked:
            each.end()


def run_launched(job: Message, run: RunRank) -> Message:
    """Run this worker's rank of those that a launcher started: its reply, which the meeting gets, too."""
    invitation = job["launched"]
    with closing(socket.create_connection((invitation["host"], invitation["port"]))) as channel:
        enter(channel, invitation["secret"], {"rank": invitation["rank"]}, MEET_S)
        member = Member(channel)
        os.sched_setaffinity(0, invitation["cores"])
        world = World(
            rank=invitation["rank"],
            devices=invitation["size"],
            processes=invitation["size"],
            local=invitation["local"],
            hosts=invitation["hosts"],
            oversubscribed=on_cpu(job) and invitation["oversubscribed"],
            meeting=invitation["meeting"],
            gather=member.gather,
        )
        reply = run(_on_cores(job, invitation["cores"]), world)
        member.send({"reply": reply})
    return reply


def on_cpu(job: Message) -> bool:
    """Whether the case's devices are the host's cores."""
    return str(job["case"]["device"]).startswith("cpu")


def _fork(number: int, size: int, job: Message, run: RunRank, shared: memoryview[int]) -> ForkedRank:
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _be_rank(number, size, parent, theirs, job, run, shared)
    theirs.close()
    return ForkedRank(number, pid, ours)


def _be_rank(
    number: int,
    size: int,
    parent: int,
    channel: socket.socket,
    job: Message,
    run: RunRank,
    shared: memoryview[int],
) -> NoReturn:
    """The forked process."""
    code = 1
    try:
        die_with_parent(parent)
        allowed = sorted(os.sched_getaffinity(0))
        cores = cores_of(number, size, allowed)
        os.sched_setaffinity(0, cores)
        member = Member(channel)
        world = World(
            rank=number,
            local=number,
            devices=size,
            processes=size,
            names=names_of(job),
            oversubscribed=on_cpu(job) and size > len(allowed),
            meeting=f"file://{job['folder']}/meeting",
            gather=member.gather,
            shared=shared,
        )
        member.send({"reply": run(_on_cores(job, cores), world)})
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, this process must not go on as its parent
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _on_cores(job: Message, cores: Sequence[int]) -> Message:
    return {**job, "threads": max(1, min(job["threads"], len(cores)))}
