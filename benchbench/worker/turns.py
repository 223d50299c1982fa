"""The turns in which a case is timed while the processes of other cases live beside it.

Between two turns the parent stops this process, so that others can be timed. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchbench.machine.kernel import cpu_seconds

Message = dict[str, Any]


class ParentTurns:
    """Turns that the parent gives, a message each; a `timing.sampling.Turns`."""

    def __init__(self, send: Callable[[Message], None], receive: Callable[[], Message]) -> None:
        self._send = send
        self._receive = receive

    def take(self, block_s: float) -> Iterator[float]:
        """Report that the case is warm, then yield turns until the parent ends them with one of 0 seconds.

        After each turn the parent gets the CPU seconds that it took.
        """
        self._send({"warm": block_s})
        while seconds := float(self._receive()["turn"]):
            used_s = cpu_seconds()
            yield seconds
            self._send({"cpu_s": cpu_seconds() - used_s})
