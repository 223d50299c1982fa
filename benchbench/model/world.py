"""The processes that compute a step together, from the view of one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Spread(StrEnum):
    """Use of several devices by a framework: a process for each, one process for all, or none."""

    NONE = "none"
    PROCESSES = "processes"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One of several processes, each with one device, or a single process that drives all `devices`.

    `gather(value)` returns the values of all processes in order of rank. Every process must call it the same
    number of times; it blocks until all have called it. Values must be JSON.
    """

    rank: int = 0
    local: int = 0  # rank within its host
    devices: int = 1
    processes: int = 1
    oversubscribed: bool = False  # more devices than cores, so that they take turns
    hosts: int = 1
    names: tuple[str, ...] = ()  # of devices that are not consecutive
    meeting: str = ""  # URL, file:// or tcp://, at which a framework's processes meet
    gather: Callable[[Any], list[Any]] = lambda value: [value]
    shared: memoryview[int] | None = None  # a shared number for each process; None under a launcher

    @property
    def is_launched(self) -> bool:
        """True if a launcher started the processes, which may then be on several hosts."""
        return self.processes > 1 and self.shared is None

    def numbers(self, first: int) -> list[int]:
        """Device numbers of all processes: those of `names`, or consecutive ones from `first`."""
        if self.names:
            return [int(name.partition(":")[2]) for name in self.names]
        return list(range(first, first + self.devices))


ALONE = World()
