"""How workers are run, as the command line offers it: apart from the nouns, which `--help` need not build."""

from enum import StrEnum


class Isolation(StrEnum):
    """How a case gets its process: forked from a template, started anew, or shared with other cases."""

    FORK = "fork"
    SPAWN = "spawn"
    SHARED = "shared"


class Allocator(StrEnum):
    """What the C library does with freed memory: keep it, as in a long-running process, or as it likes."""

    STEADY = "steady"
    SYSTEM = "system"
