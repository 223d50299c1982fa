"""The processes that compute a step together, as one of them sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Spread(StrEnum):
    """How a framework uses several devices: a process on each, or one process for all; or not at all."""

    NONE = "none"
    PROCESSES = "processes"
    DEVICES = "devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One process of `processes`. Where there is one, it drives all `devices`; else each has one of them.

    `gather(value)` is called by every process the same number of times: it returns the values of all, in
    the order of ranks, once all have called it. Values are what JSON has.
    """

    rank: int = 0
    local: int = 0  # among the ranks of its host
    devices: int = 1
    processes: int = 1
    oversubscribed: bool = False  # whether there are more devices than cores, so that they take turns
    hosts: int = 1
    names: tuple[str, ...] = ()  # of the devices, where they are not those that follow the first
    meeting: str = ""  # a URL, file:// or tcp://, at which a framework's processes find each other
    gather: Callable[[Any], list[Any]] = lambda value: [value]
    shared: memoryview[int] | None = None  # a number of each process that all see; None: a launcher's

    @property
    def is_launched(self) -> bool:
        """Whether a launcher started the processes, which then may be on several hosts."""
        return self.processes > 1 and self.shared is None

    def numbers(self, first: int) -> list[int]:
        """Which devices of their kind compute together: those named, else as many from `first` on."""
        if self.names:
            return [int(name.partition(":")[2]) for name in self.names]
        return list(range(first, first + self.devices))


ALONE = World()
