"""A Ray cluster. The only file that knows Ray: docs.ray.io.

Bytes go both ways, and the function that a machine runs is named by its module, not sent. Whoever can reach
a Ray cluster can run anything on it: it belongs on a network that is trusted.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from benchbench import paths
from benchbench.cluster.entry import run_on_node
from benchbench.cluster.messages import Arrived, Ended, Event, Node
from benchbench.errors import NothingToMeasure, UsageError
from benchbench.machine.environment import install_line

NAME_LABEL = "machine"  # `ray start --labels machine=rack3-1` names one; else its host's name does
KIND_LABEL, ID_LABEL = "ray.io/accelerator-type", "ray.io/node-id"
ANSWER_S = 10.0  # in which the cluster has to take a connection
LONGEST = 200  # characters of why a job ended


class RayCluster:
    """The cluster at an address, else that which runs on this machine.

    Raises UsageError for an address that is none, NothingToMeasure where it cannot be used.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            message = f"A fleet needs Ray, which cannot be imported: {error}"
            raise NothingToMeasure(message, install_line("fleet")) from error
        self._ray = ray
        self._own = not self._ray.is_initialized()
        if self._own:
            self._connect(address or os.environ.get("RAY_ADDRESS") or "auto")
        self._streams: dict[int, Any] = {}
        self._count = 0

    def _connect(self, address: str) -> None:
        where = "on this machine" if address == "auto" else f"at {address}"
        try:
            _check_answers(address)
            self._ray.init(address=address, log_to_driver=False, configure_logging=False)
        except (OSError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            message = f"No Ray cluster {where} can be used: {_line(error)}"
            hint = "ray start --head begins one; run this on a machine of the cluster."
            raise NothingToMeasure(message, hint) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect, unless the connection was there before."""
        for task in list(self._streams):
            self.stop(task)
        if self._own:
            self._ray.shutdown()

    def nodes(self) -> list[Node]:
        """Machines that are alive and offer CPUs, by name."""
        alive = [each for each in self._ray.nodes() if each["Alive"] and each["Resources"].get("CPU")]
        return sorted(_named(alive), key=lambda node: node.name)

    def start(self, node: Node, job: bytes) -> int:
        """Begin a job that claims all CPUs and GPUs of the machine, so that nobody else runs there."""
        remote = self._ray.remote(run_on_node).options(
            num_cpus=node.cpus,
            num_gpus=node.gpus,
            label_selector={ID_LABEL: node.id},
            max_retries=0,  # a retry is data, and ours
            num_returns="streaming",
            name="accelbench",
        )
        self._count += 1
        self._streams[self._count] = remote.remote(job, paths.working_folder())
        return self._count

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """What has come from the jobs since: at most one event of each."""
        tasks = {stream: task for task, stream in self._streams.items()}
        if not tasks:
            return []
        streams = list(tasks)
        if not self._ray.wait(streams, timeout=timeout_s, fetch_local=False)[0]:
            return []
        ready = self._ray.wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)[0]
        return [self._next(tasks[stream]) for stream in ready]

    def _next(self, task: int) -> Event:
        try:
            return Arrived(task, self._ray.get(next(self._streams[task])))
        except StopIteration:
            reason = ""
        except self._ray.exceptions.RayError as error:
            reason = _line(error)
        del self._streams[task]
        return Ended(task, reason)

    def stop(self, task: int) -> None:
        """Kills the engine's process there; the one that measures sees that, and ends."""
        if stream := self._streams.pop(task, None):
            self._ray.cancel(stream, force=True)


def _check_answers(address: str) -> None:
    """Raise OSError if nothing answers at the address, where Ray would wait for minutes; or UsageError."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise UsageError(f"{address!r} is no address of a Ray cluster.", "Write it as HOST:PORT.")
    socket.create_connection((host, int(port)), timeout=ANSWER_S).close()


def _named(alive: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The nodes, named by label or host; where names repeat, a number is added from the second on."""
    found, seen = [], Counter[str]()
    for each in sorted(alive, key=lambda node: str(node["NodeID"])):
        labels = each.get("Labels", {})
        name = labels.get(NAME_LABEL) or each["NodeManagerHostname"]
        seen[name] += 1
        found.append(
            Node(
                id=each["NodeID"],
                name=name if seen[name] == 1 else f"{name}-{seen[name]}",
                kind=labels.get(KIND_LABEL, ""),
                cpus=each["Resources"]["CPU"],
                gpus=each["Resources"].get("GPU", 0.0),
            )
        )
    return found


def _line(error: Exception) -> str:
    """What happened, without the engine's tracebacks."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"[:LONGEST]
