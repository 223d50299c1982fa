"""What a profiler recorded: the marks around it, and why a trace cannot be read here."""

from __future__ import annotations

from dataclasses import dataclass


class Unread(Exception):
    """A trace was recorded that nothing in this interpreter can read; `recording` tells what it is of."""

    def __init__(self, recording: Recording) -> None:
        super().__init__("the trace can be read by jax or tensorflow only")
        self.recording = recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a profiler was on for: `steps` steps, and the seconds per step of each block of them."""

    profiler: str
    steps: int
    step_s: tuple[float, ...]


BEGIN, END = "accelbench begin", "accelbench end"  # between these two marks is what a profile is of
