"""Times that cannot be true, told on reading: faster than the device can be, or with their work hidden in
a few blocks.

Only datasheet peaks are limits here; what was measured on a machine is not one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from benchbench.backends.base import LARGEST_CACHE
from benchbench.errors import UsageError
from benchbench.format import rate, ratio
from benchbench.launch import catalogue
from benchbench.machine.peaks import Peaks, peaks
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.note import Note, NoteKind, note
from benchbench.model.placement import Strategy
from benchbench.stats import mean, median, quantile

HIDING_BLOCKS = 100  # fewer have no 99th percentile to speak of
ROUNDED = 1 + 1e-9  # a mean of equal blocks may exceed each of them
HIDING = 10.0  # times the median that the mean of all blocks is: a busy neighbour alone reaches 2 or 3
SPEED_UP = 1.1  # times the count: caches that add up give a little more than the count


def implausible(case: Case, device_name: str | None, measured: Sequence[Measurement]) -> str:
    """Why the case's speed cannot be believed, empty where nothing speaks against it.

    Each process is judged by itself: one that did not wait for its work spoils the case.
    """
    known = peaks(device_name or "")
    if known and (count := devices_limited(case)) > 1:
        known = known.of_devices(count)
    faults = [fault for process in measured if (fault := _fault(case, known, process))]
    share = f" ({len(faults)} of {len(measured)} rounds)" if len(faults) < len(measured) else ""
    return faults[0] + share if faults else ""


def devices_limited(case: Case) -> int:
    """How many devices do what the case's cost counts: of a collective, that is what each moves."""
    return 1 if case.placement.strategy is Strategy.COLLECTIVE else case.hardware_count


def _fault(case: Case, known: Peaks | None, measured: Measurement) -> str:
    step = median(measured.block_s) / measured.iterations
    if not (0 < step < inf and 0 < measured.cost.items / step < inf):
        return f"a step of {step:g} s gives no finite rate"
    fault = "" if case.dtype is None else _hidden(measured.block_s)  # a user's function may well stall
    if known and not fault:
        fault = _beyond_flops(case, known, measured.cost.flops / step)
        caches = devices_limited(case) * LARGEST_CACHE
        return fault or _beyond_memory(known, measured.cost.bytes, caches, step)
    return fault


def _hidden(blocks: Sequence[float]) -> str:
    """Work that most blocks only queued, and a few had to wait for: those hold the time."""
    if not strays(blocks) or mean(blocks) <= HIDING * median(blocks):
        return ""
    times = ratio(mean(blocks) / median(blocks))
    why = "the others did not wait for their work, or the machine stood still"
    return f"a few blocks hold most of the time, the mean is {times} the median: {why}"


def strays(blocks: Sequence[float]) -> bool:
    """Whether the mean exceeds the 99th percentile: one block in a hundred outweighs the others' spread.

    Where blocks hardly vary a single interruption does that, so alone it is worth a note and no more.
    """
    return len(blocks) >= HIDING_BLOCKS and mean(blocks) > (1 + 1e-9) * quantile(
        blocks, 0.99
    )  # not by rounding


def _beyond_flops(case: Case, known: Peaks, speed: float) -> str:
    peak = None if case.dtype is None else known.flops_limit(case.dtype)
    if case.dtype is None or not peak or speed <= known.clock_margin * peak:
        return ""  # nobody need be asked, and no file of the user's be imported
    saved = _multiplications_saved(case)
    if not saved or speed <= saved * known.clock_margin * peak:
        return ""
    split = "" if peak == known.flops_peak(case.dtype) else " (of three TF32 products each)"
    limit = f"the datasheet's {rate(peak, 'FLOP/s')} of {case.dtype.compute}{split} on {known.device}"
    times = "" if saved == 1 else f"{saved:.3g} times "
    why = "" if saved == 1 else ", more than any fast convolution saves"
    return f"{rate(speed, 'FLOP/s')} exceed {times}{limit}{why}"


def _multiplications_saved(case: Case) -> float | None:
    """As the workload says; None, and so not judged by FLOPs, where it is not known here at these sizes."""
    try:
        return catalogue.workload_at(case.workload, case.params).multiplications_saved
    except (UsageError, TypeError):  # TypeError: of parameters that it has no longer
        return None


def _beyond_memory(known: Peaks, moved: int, caches: int, step: float) -> str:
    """Of what a step moves, as much as the `caches` hold can have stayed there since the step before."""
    speed = (moved - caches) / step
    if known.bytes_per_s is None or speed <= known.clock_margin * known.bytes_per_s:
        return ""
    return (
        f"{rate(moved / step, 'B/s')} exceed the datasheet's {rate(known.bytes_per_s, 'B/s')} of "
        f"{known.device}'s memory, and no cache holds as much"
    )


def too_parallel(alone_s: float, together_s: float, count: int) -> str:
    """Why `count` devices or processes cannot have done in `together_s` the work of `alone_s`, or empty."""
    speed_up = alone_s / together_s if together_s > 0 else inf
    if speed_up <= SPEED_UP * count:
        return ""
    return f"a speed-up of {speed_up:.3g} on {count} is more than {SPEED_UP:g} times their number"


def interruption_notes(measured: Sequence[Measurement]) -> list[Note]:
    """What makes a reader look twice."""
    count = sum(strays(process.block_s) for process in measured)
    return [note(NoteKind.INTERRUPTED_BLOCKS, count=count, rounds=len(measured))] if count else []
