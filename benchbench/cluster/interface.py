"""What a fleet asks of a cluster: its machines, a job on one of them, and what the jobs say.

Nothing here knows whose cluster it is, and nothing there knows what a job is about: both ways travel bytes.
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
    """The next bytes of a job; none of them only say that its machine is alive."""

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
        """What the jobs said since, waited for this long at most. Nothing follows a job's `Ended`."""

    def stop(self, task: int) -> None:
        """End a job if its machine can still be reached; nothing more comes of it."""
