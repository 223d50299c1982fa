"""Steps timed by something besides their work: by the host that launches them, or by the timer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchbench.model.measurement import Measurement
from benchbench.model.note import Note, NoteKind, note
from benchbench.stats import median
from benchbench.timing.sampling import OVERHEAD

DISAGREEMENT = 0.2  # of the device's time, by which the host must be done launching before it


def launch_notes(measured: Sequence[Measurement]) -> list[Note]:
    """Where one of them set the time."""
    return [*_launch_bound(measured), *_timer(measured)]


def launching(measured: Measurement) -> float | None:
    """The time the host took to launch a block, as a share of the time from then to the device's end of it.

    The median of the first blocks of its batches: they find the device idle and its queue empty. None where
    the host's own clock timed the blocks.
    """
    shares = [batch.enqueue_s / batch.device_s for batch in measured.batches if batch.device_s > 0]
    return median(shares) if shares else None


def _launch_bound(measured: Sequence[Measurement]) -> list[Note]:
    """A device that is not at least a fifth of a block behind the host keeps waiting for it."""
    shares = [share for process in measured if (share := launching(process)) is not None]
    bound = [share for share in shares if share > 1 - DISAGREEMENT]
    if not bound:
        return []
    return [note(NoteKind.LAUNCH_BOUND, share=median(bound), count=len(bound), rounds=len(measured))]


def _timer(measured: Sequence[Measurement]) -> list[Note]:
    """Blocks that may not be longer than a step may be too short for their timer."""
    shares = [process.timer_cost_s / median(process.block_s) for process in measured if process.timer_cost_s]
    if not shares or median(shares) <= 1 / OVERHEAD:
        return []
    return [note(NoteKind.TIMER_COST, share=median(shares), limit=1 / OVERHEAD)]
