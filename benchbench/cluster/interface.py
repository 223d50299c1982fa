"""What a fleet asks of a cluster: its machines, to run a job on one of them, and the jobs' output.

A fleet does not know whose cluster it is, nor the cluster what a job is about: bytes travel both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster. `name` is its own there; `kind`: its accelerator type, where labelled."""

    id: str
    name: str
    kind: str = ""
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """The next bytes of a job; no bytes are a sign of life of its machine."""

    task: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is over. `lost`: why, where it did not end by itself."""

    task: int
    lost: str = ""


Event = Arrived | Ended


class Cluster(Protocol):
    """Machines that take a job each at a time, and have no other meanwhile."""

    def nodes(self) -> list[Node]:
        """The machines that are there now and can be given work."""

    def start(self, node: Node, job: bytes) -> int:
        """Begin a job on a machine once all of it is free; its task."""

    def poll(self, timeout_s: float) -> Sequence[Event]:
        """What has come from the jobs since, waiting so long at most. Nothing follows a job's `Ended`."""

    def stop(self, task: int) -> None:
        """End a job if its machine can still be reached; nothing more comes of it."""
