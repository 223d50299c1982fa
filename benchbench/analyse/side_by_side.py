"""How well two parts of a step go on side by side: each was also timed alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchbench.analyse.metrics import Value, steps_s
from benchbench.model.measurement import Measurement
from benchbench.model.note import Note, NoteKind, note
from benchbench.stats import median
from benchbench.workloads.base import CONSUMER, SOURCE

Share = Callable[[float, float, float], float]  # of the step, its source and its consumer: seconds


def hidden(step: float, source: float, consumer: float) -> float:
    """Of the shorter part, how much the longer one hides: 1 where a step takes as long as the longer."""
    return _within((source + consumer - step) / min(source, consumer))


def waiting(step: float, _source: float, consumer: float) -> float:
    """Of the step, how much its consumer is not at work."""
    return _within(1 - consumer / step)


def share_of(measured: Sequence[Measurement], share: Share) -> Value:
    """The median of the processes; without a value, and a reason, where a step has no such parts."""
    known = [
        share(median(steps_s(each)), median(each.parts_s[SOURCE]), median(each.parts_s[CONSUMER]))
        for each in measured
        if each.parts_s.get(SOURCE) and each.parts_s.get(CONSUMER)
    ]
    return Value(median(known)) if known else Value(None)


SHARES: dict[str, Share] = {"hidden_share": hidden, "waiting_share": waiting}


def side_by_side_notes(shares: dict[str, Value]) -> list[Note]:
    """What the shares are, where there are any."""
    found = {name: value.value for name, value in shares.items() if value.value is not None}
    if found.keys() != SHARES.keys():
        return []
    return [note(NoteKind.SIDE_BY_SIDE, hidden=found["hidden_share"], waiting=found["waiting_share"])]


def _within(share: float) -> float:
    """Beyond these ends it is noise."""
    return min(max(share, 0.0), 1.0)
