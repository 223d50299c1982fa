"""The ranks of a case: processes that compute a step together, one per device.

On one machine they are forked from the process of the job, and meet there. Under a launcher, on one or more
machines, each worker is one rank and connects to the launcher's first process.
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

from benchbench.machine.kernel import allowed_cpus, use_cpus
from benchbench.meeting import (
    CONNECT_TIMEOUT_S,
    Rank,
    RankConnection,
    device_names,
    rank_cores,
    reply_deadline,
    serve_ranks,
)
from benchbench.model.placement import World
from benchbench.wire import authenticate
from benchbench.worker.children import die_with_parent
from benchbench.worker.program import Message

EXIT_TIMEOUT_S = 2.0  # from the end of a rank's connection to the end of its process
NUMBER_BYTES = 8  # per rank, in shared memory
RunRank = Callable[[Message, World], Message]


@dataclass
class ForkedRank:
    """A forked rank's process, seen from its parent."""

    number: int
    pid: int
    channel: socket.socket

    def describe_ending(self) -> str:
        """Wait for the process to end and describe how it ended. Its connection ends first."""
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while (result := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                return "its connection ended, but its process did not"
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(result[1])
        self.pid = 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def end(self) -> None:
        """Kill the process if it is still running."""
        self.channel.close()
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def run_ranks(job: Message, run: RunRank) -> Message:
    """Fork a rank for each device. Return their replies, `{"ranks": […]}`, or the first failure."""
    size = job["case"]["placement"]["devices"]
    shared = memoryview(mmap.mmap(-1, size * NUMBER_BYTES)).cast("q")
    forked = [_fork(number, size, job, run, shared) for number in range(size)]
    try:
        ranks = [Rank(rank.number, rank.channel, rank.describe_ending) for rank in forked]
        return serve_ranks(ranks, reply_deadline(job["timeout_s"]))
    finally:
        for rank in forked:
            rank.end()


def run_launched(job: Message, run: RunRank) -> Message:
    """Run this worker's rank under a launcher. Send its reply to the meeting and return it."""
    invitation = job["launched"]
    with closing(socket.create_connection((invitation["host"], invitation["port"]))) as channel:
        authenticate(channel, invitation["secret"], {"rank": invitation["rank"]}, CONNECT_TIMEOUT_S)
        connection = RankConnection(channel)
        use_cpus(invitation["cores"])
        world = World(
            rank=invitation["rank"],
            devices=invitation["size"],
            processes=invitation["size"],
            local=invitation["local"],
            hosts=invitation["hosts"],
            oversubscribed=on_cpu(job) and invitation["oversubscribed"],
            meeting=invitation["meeting"],
            gather=connection.gather,
        )
        reply = run(_on_cores(job, invitation["cores"]), world)
        connection.send({"reply": reply})
    return reply


def on_cpu(job: Message) -> bool:
    """True if the case's devices are CPU cores."""
    return str(job["case"]["device"]).startswith("cpu")


def _fork(number: int, size: int, job: Message, run: RunRank, shared: memoryview[int]) -> ForkedRank:
    parent_end, child_end = socket.socketpair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        parent_end.close()
        _run_forked_rank(number, size, parent, child_end, job, run, shared)
    child_end.close()
    return ForkedRank(number, pid, parent_end)


def _run_forked_rank(
    number: int,
    size: int,
    parent: int,
    channel: socket.socket,
    job: Message,
    run: RunRank,
    shared: memoryview[int],
) -> NoReturn:
    """Run the rank in the forked process, and exit."""
    code = 1
    try:
        die_with_parent(parent)
        available_cores = allowed_cpus()
        cores = rank_cores(number, size, available_cores)
        use_cpus(cores)
        connection = RankConnection(channel)
        world = World(
            rank=number,
            local=number,
            devices=size,
            processes=size,
            names=device_names(job),
            oversubscribed=on_cpu(job) and size > len(available_cores),
            meeting=f"file://{job['folder']}/meeting",
            gather=connection.gather,
            shared=shared,
        )
        connection.send({"reply": run(_on_cores(job, cores), world)})
        sys.stdout.flush()
        sys.stderr.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - this process must never return to its parent's code
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _on_cores(job: Message, cores: Sequence[int]) -> Message:
    return {**job, "threads": max(1, min(job["threads"], len(cores)))}
