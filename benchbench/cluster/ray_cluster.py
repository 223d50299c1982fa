"""Access to a Ray cluster (docs.ray.io). No other file uses Ray.

Only bytes are exchanged, and a machine runs a function of its own installation, found by its module. Anyone
who can reach a Ray cluster can run any code on it, so it belongs on a trusted network.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from benchbench import paths
from benchbench.cluster.entry import run_on_node
from benchbench.cluster.messages import Arrived, Ended, Event, Node
from benchbench.errors import NothingToMeasure, UsageError
from benchbench.machine.environment import install_line

NAME_LABEL = "machine"  # `ray start --labels machine=rack3-1` names a machine; the default is its host name
KIND_LABEL, ID_LABEL = "ray.io/accelerator-type", "ray.io/node-id"
ANSWER_S = 10.0  # time-out for a connection to the cluster
MAX_REASON = 200  # characters


class RayCluster:
    """The cluster at an address, by default the one on this machine.

    Raises UsageError for an invalid address, NothingToMeasure if the cluster cannot be used.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            message = f"A fleet needs Ray, which cannot be imported: {error}"
            raise NothingToMeasure(message, install_line("fleet")) from error
        self._ray = ray
        self._is_connection_owner = not self._ray.is_initialized()
        if self._is_connection_owner:
            self._connect(address or os.environ.get("RAY_ADDRESS") or "auto")
        self._streams: dict[int, Any] = {}
        self._count = 0

    def _connect(self, address: str) -> None:
        place = "on this machine" if address == "auto" else f"at {address}"
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _check_answers(address)
            self._ray.init(address=address, log_to_driver=False, configure_logging=False)
            # Ray replaces the handler of SIGTERM by one that prints a stack dump and exits with 1.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
        except (OSError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            message = f"No Ray cluster {place} can be used: {_line(error)}"
            hint = "ray start --head starts one; run this on a machine of the cluster."
            raise NothingToMeasure(message, hint) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all jobs, and disconnect unless Ray was connected before."""
        for task in list(self._streams):
            self.stop(task)
        if self._is_connection_owner:
            self._ray.shutdown()

    def nodes(self) -> list[Node]:
        """Machines that are alive and have CPUs, by name."""
        alive = [
            node_info
            for node_info in self._ray.nodes()
            if node_info["Alive"] and node_info["Resources"].get("CPU")
        ]
        return sorted(_named_nodes(alive), key=lambda node: node.name)

    def start(self, node: Node, job: bytes) -> int:
        """Start a job that reserves all CPUs and GPUs of the machine, so that nothing else runs there."""
        remote = self._ray.remote(run_on_node).options(
            num_cpus=node.cpus,
            num_gpus=node.gpus,
            label_selector={ID_LABEL: node.id},
            max_retries=0,  # the fleet retries by itself
            num_returns="streaming",
            name="accelbench",
        )
        self._count += 1
        self._streams[self._count] = remote.remote(job, paths.working_folder())
        return self._count

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """Return new events, at most one per job."""
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
        """Kill Ray's process on the machine; the measuring process notices that and ends."""
        if stream := self._streams.pop(task, None):
            self._ray.cancel(stream, force=True)


def _check_answers(address: str) -> None:
    """Raise OSError if nothing answers at the address (Ray would wait for minutes), UsageError if it is
    invalid.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise UsageError(f"{address!r} is no address of a Ray cluster.", "Write it as HOST:PORT.")
    socket.create_connection((host, int(port)), timeout=ANSWER_S).close()


def _named_nodes(alive: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Name the nodes by label or host; repeated names get a number, from the second on."""
    nodes, uses = [], Counter[str]()
    for node_info in sorted(alive, key=lambda node: str(node["NodeID"])):
        labels = node_info.get("Labels", {})
        name = labels.get(NAME_LABEL) or node_info["NodeManagerHostname"]
        uses[name] += 1
        nodes.append(
            Node(
                id=node_info["NodeID"],
                name=name if uses[name] == 1 else f"{name}-{uses[name]}",
                kind=labels.get(KIND_LABEL, ""),
                cpus=node_info["Resources"]["CPU"],
                gpus=node_info["Resources"].get("GPU", 0.0),
            )
        )
    return nodes


def _line(error: Exception) -> str:
    """First line of an error's message, without Ray's tracebacks."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[0] if lines else ''}"[:MAX_REASON]
