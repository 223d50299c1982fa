"""Placement of a case on hosts and devices, and the suffix of its id.

    id     = base [ suffix ]
    base   = work [ "/" mode ] [ "/" cache ] "@" target ":" device        (Case.id)
    suffix = "[" item { "," item } "]"
    item   = "hosts=" n | "devices=" n | "on=" names | "strategy=" name | "threads=" n | "env:" NAME "=" value
    names  = name "+" name { "+" name }

Defaults are omitted, so a case on one device in the usual environment has no suffix. Values are
percent-encoded as in a URL. Items are in this order, variables sorted by name. `threads` is present if the
run compares numbers of threads.
Standard library only, since workers under foreign interpreters import this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import quote

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN = "/=:+"  # not encoded in a suffix, like letters, digits and "_.-~"
ENVIRONMENT = "env:"
LINK = re.compile(r"(\d+)\+(\d+)")  # two ranks, the smaller one first
NAME_SEPARATOR = "+"  # between names of devices


class Strategy(StrEnum):
    """Division of the work among devices."""

    SINGLE = "single"
    COLLECTIVE = "collective"  # each has an array; the work is their exchange
    DATA_PARALLEL = "data-parallel"  # each has all parameters and a part of the batch
    FULLY_SHARDED = "fully-sharded"  # each has a part of the parameters and a part of the batch
    TENSOR_PARALLEL = "tensor-parallel"  # each has a part of every layer
    PIPELINE = "pipeline"  # each has some of the layers

    @property
    def divides_batch(self) -> bool:
        """True if each device computes its own samples."""
        return self in (Strategy.DATA_PARALLEL, Strategy.FULLY_SHARDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One rank on each of `devices`, which are evenly spread over `hosts`. Default: one device.

    `names` are given if the devices do not follow the case's device consecutively.
    """

    hosts: int = 1
    devices: int = 1  # total of all hosts
    names: tuple[str, ...] = ()  # of devices that are not consecutive
    strategy: Strategy = Strategy.SINGLE

    def __post_init__(self) -> None:
        """Raise ValueError for an impossible combination."""
        if self.hosts < 1 or self.devices < self.hosts or self.devices % self.hosts:
            raise ValueError(f"{self.devices} devices cannot lie in equal numbers on {self.hosts} hosts")
        if (self.strategy is Strategy.SINGLE) != (self.devices == 1):
            raise ValueError(f"{self.devices} devices with the strategy {self.strategy}")
        if self.names and (self.hosts > 1 or len(self.names) != self.devices):
            raise ValueError(f"{len(self.names)} names of {self.devices} devices on {self.hosts} hosts")


ONE_DEVICE = Placement()


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise ValueError for an invalid environment variable."""
    for name, value in environment.items():
        if not VARIABLE.fullmatch(name) or "\0" in value:
            raise ValueError(f"{name!r} cannot be an environment variable of that value")


def suffix(placement: Placement, environment: Mapping[str, str], threads: int = 0) -> str:
    """Suffix of a case id; empty for defaults."""
    if placement == ONE_DEVICE and not environment and not threads:
        return ""
    items = {
        "hosts": str(placement.hosts) if placement.hosts > 1 else "",
        "devices": str(placement.devices) if placement.devices > 1 else "",
        "on": _quoted(NAME_SEPARATOR.join(placement.names)),
        "strategy": "" if placement.strategy is Strategy.SINGLE else placement.strategy.value,
        "threads": str(threads) if threads else "",
    }
    texts = [f"{name}={value}" for name, value in items.items() if value]
    texts += [f"{ENVIRONMENT}{name}={_quoted(environment[name])}" for name in sorted(environment)]
    return f"[{','.join(texts)}]" if texts else ""


def _quoted(value: str) -> str:
    return quote(value, safe=PLAIN, errors="surrogateescape")


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
