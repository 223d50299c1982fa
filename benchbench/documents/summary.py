"""What a run comes to, in a line: how its cases ended, and where its time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from benchbench.analyse.plausible import implausible
from benchbench.analyse.rows import by_case
from benchbench.model.measurement import Measurement
from benchbench.model.record import Record
from benchbench.model.run import RunInfo
from benchbench.model.status import Status
from benchbench.running.observer import duration

HARMLESS = (Status.OK, Status.UNSUPPORTED)
LEAST_TOLD_S = 0.05  # of the time split: less would read as 0.0 s
ENDS = (*HARMLESS, Status.OUT_OF_MEMORY, Status.SKIPPED)


def run_summary(records: Sequence[Record], info: RunInfo, wall_s: float) -> str:
    """How many cases ended how."""
    counts = Counter(_endings(records))
    parts = [f"{count} {status}" for status, count in counts.items()] or ["nothing measured"]
    if info.left_out:
        parts.append(f"{len(info.left_out)} left out")
    return f"{', '.join(parts)} in {duration(wall_s)}   run {info.id}\n"


def time_split(records: Sequence[Record], shared_s: Mapping[str, float]) -> str:
    """Where the wall time of a run went, largest part first; `shared_s` is what no single case caused."""
    spent = Counter(shared_s)
    for record in records:
        stages = {name: each for name, each in record.stages_s.items() if name != "wall"}
        if isinstance(record.outcome, Measurement):
            stages["warm-up"] = sum(record.outcome.warmup_block_s)
            stages["timed"] = sum(record.outcome.block_s)
            stages["timing overhead"] = max(stages.pop("timing") - stages["warm-up"] - stages["timed"], 0.0)
        stages["fork and wait"] = max(record.stages_s.get("wall", 0.0) - sum(stages.values()), 0.0)
        spent.update(stages)
    whole = sum(spent.values()) or 1.0
    told = [(name.replace("_", " "), each) for name, each in spent.most_common() if each >= LEAST_TOLD_S]
    return (
        ", ".join(f"{name} {each:.1f} s ({each / whole:.0%})" for name, each in told) or "too short to tell"
    )


def failing(records: Sequence[Record]) -> bool:
    """Whether any case failed, or has a time that cannot be true; one that cannot run here has not.

    Nor has the end of a sequence that is doubled until memory is full.
    """
    found = by_case(records).values()
    return any(_ending(own) not in (ENDS if own[0].case.doubles else HARMLESS) for own in found)


def _endings(records: Sequence[Record]) -> list[str]:
    """How each case ended; nothing is measured again after a failure."""
    return [_ending(found) for found in by_case(records).values()]


def _ending(records: Sequence[Record]) -> str:
    last = records[-1]
    measured = [record.outcome for record in records if isinstance(record.outcome, Measurement)]
    if isinstance(last.outcome, Measurement) and implausible(last.case, last.device_model, measured):
        return Status.IMPLAUSIBLE
    return str(last.outcome.status)
