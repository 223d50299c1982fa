"""Records, the lines of records.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchbench.model.case import Case
from benchbench.model.measurement import Failure, Measurement

# Of run.json and records.jsonl. 3: turns of heats; 2: notes are kinds with data; 1: notes are sentences.
SCHEMA = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One self-contained line: a case, a round and the outcome."""

    schema: int = SCHEMA
    case: Case
    round: int
    order: int  # position in the run
    started: float  # Unix time; a label, not used for durations
    outcome: Measurement | Failure
    framework_version: str | None
    device_model: str
    isolation: str  # fork, spawn or shared, as actually used
    stages_s: dict[str, float] = field(default_factory=dict)  # wall time of the case by stage
    part: int = 0  # part of a resumed run: 0 before the first interruption, then 1, …
