"""One line of records.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement

# Of run.json and records.jsonl. 3: turns of heats; 2: notes are kinds with data; 1: notes are sentences.
SCHEMA = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One self-contained line: a case, a round, and what came of it."""

    schema: int = SCHEMA
    case: Case
    round: int
    order: int  # position in the run
    started: float  # Unix time: a label, never used for a duration
    outcome: Measurement | Failure
    framework_version: str | None
    device_model: str
    isolation: str  # fork, spawn or shared: what was done, not what was asked for
    stages_s: dict[str, float] = field(default_factory=dict)  # where this case's wall time went
    part: int = 0  # of a run that was resumed: 0 before that, then 1, …
