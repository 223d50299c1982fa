"""Several ranks as one measurement: a step is over when the slowest rank is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchbench.model.measurement import Cost, Measurement, Memory, RankSamples, Window

Rank = tuple[int, str, Measurement]  # host, device, and what its process measured


def combined(cost: Cost, ranks: Sequence[Rank]) -> Measurement:
    """One measurement of two ranks or more. `cost`: of a step of all ranks together.

    Raises ValueError for ranks whose blocks do not correspond.
    """
    measured = [each for _, _, each in ranks]
    samples = tuple(_samples(host, device, each) for host, device, each in ranks)
    if len({each.iterations for each in measured}) > 1:
        raise ValueError("ranks whose blocks have different numbers of steps")
    return replace(
        measured[0],
        **slowest(samples),
        ranks=samples,
        cost=cost,
        steady=all(each.steady for each in measured),
        relative_error=_maximum([each.relative_error for each in measured]),
        notes=tuple(dict.fromkeys(note for each in measured for note in each.notes)),
        window=_joint([each.window for each in measured])
        if len({host for host, _, _ in ranks}) == 1
        else None,
        telemetry=None,
        batches=(),
        entry_s=(),
    )


def slowest(ranks: Sequence[RankSamples]) -> dict[str, Any]:
    """The fields of a measurement that follow from its ranks.

    Raises ValueError for fewer than two ranks, or for different numbers of blocks.
    """
    if len(ranks) < 2:
        raise ValueError("fewer than two ranks")
    return {
        "block_s": _longest([each.block_s for each in ranks]),
        "warmup_block_s": _longest([each.warmup_block_s for each in ranks]),
        "cold_s": _maximum([each.cold_s for each in ranks]),
        "peak_device": _largest([each.peak_device for each in ranks]),
        "peak_host": _largest([each.peak_host for each in ranks]),
    }


def _samples(host: int, device: str, measured: Measurement) -> RankSamples:
    return RankSamples(
        host=host,
        device=device,
        warmup_block_s=measured.warmup_block_s,
        block_s=measured.block_s,
        cold_s=measured.cold_s,
        peak_device=measured.peak_device,
        peak_host=measured.peak_host,
        window=measured.window,
        telemetry=measured.telemetry,
        batches=measured.batches,
        entry_s=measured.entry_s,
    )


def _joint(windows: Sequence[Window | None]) -> Window | None:
    """The window from the first rank's beginning to the last one's end; None if a rank's is unknown."""
    known = [window for window in windows if window]
    if len(known) < len(windows):
        return None
    return Window(
        began_s=min(window.began_s for window in known),
        ended_s=max(window.ended_s for window in known),
        cpu_s=sum(window.cpu_s for window in known),
    )


def _longest(times: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """The longest time of each block."""
    if len({len(each) for each in times}) > 1:
        raise ValueError("ranks with different numbers of blocks")
    return tuple(max(block) for block in zip(*times, strict=True))


def _maximum(values: Sequence[float | None]) -> float | None:
    """None where one is not known."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _largest(peaks: Sequence[Memory]) -> Memory:
    """The largest peak; unknown where one is."""
    unknown = [peak for peak in peaks if peak.bytes is None]
    return unknown[0] if unknown else max(peaks, key=lambda peak: peak.bytes or 0)
