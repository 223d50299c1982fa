"""The turns in which a case is timed while the processes of other cases are stopped.

The parent stops this process between two turns. This module uses the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchbench.machine.kernel import cpu_seconds

Message = dict[str, Any]


class ParentTurns:
    """Turns requested by the parent, one message each. Implements `timing.sampling.Turns`."""

    def __init__(self, send: Callable[[Message], None], receive: Callable[[], Message]) -> None:
        self._send = send
        self._receive = receive

    def take(self, block_s: float) -> Iterator[float]:
        """Report that the case is warm, then yield the seconds of each turn until the parent sends 0.

        After each turn, send the CPU seconds that the turn used. `block_s`: seconds of one timed block.
        """
        self._send({"warm": block_s})
        while seconds := float(self._receive()["turn"]):
            used_s = cpu_seconds()
            yield seconds
            self._send({"cpu_s": cpu_seconds() - used_s})
