"""Measurement of several ranks: a step ends when the slowest rank is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchbench.model.measurement import Cost, Measurement, Memory, RankSamples, Window

Rank = tuple[int, str, Measurement]  # host, device, measurement of its process


def combined(cost: Cost, ranks: Sequence[Rank]) -> Measurement:
    """Combine the measurements of at least two ranks. `cost` is that of a step of all ranks together.

    Raises ValueError if the blocks of the ranks do not correspond.
    """
    measurements = [measurement for _, _, measurement in ranks]
    samples = tuple(_samples(host, device, measurement) for host, device, measurement in ranks)
    if len({measurement.iterations for measurement in measurements}) > 1:
        raise ValueError("ranks whose blocks have different numbers of steps")
    return replace(
        measurements[0],
        **slowest(samples),
        ranks=samples,
        cost=cost,
        steady=all(measurement.steady for measurement in measurements),
        relative_error=_maximum([measurement.relative_error for measurement in measurements]),
        notes=tuple(dict.fromkeys(note for measurement in measurements for note in measurement.notes)),
        window=_joint([measurement.window for measurement in measurements])
        if len({host for host, _, _ in ranks}) == 1
        else None,
        telemetry=None,
        batches=(),
        entry_s=(),
    )


def slowest(ranks: Sequence[RankSamples]) -> dict[str, Any]:
    """Fields of a measurement that are derived from its ranks.

    Raises ValueError for fewer than two ranks, or different numbers of blocks.
    """
    if len(ranks) < 2:
        raise ValueError("fewer than two ranks")
    return {
        "block_s": _longest([rank.block_s for rank in ranks]),
        "warmup_block_s": _longest([rank.warmup_block_s for rank in ranks]),
        "cold_s": _maximum([rank.cold_s for rank in ranks]),
        "peak_device": _largest([rank.peak_device for rank in ranks]),
        "peak_host": _largest([rank.peak_host for rank in ranks]),
    }


def _samples(host: int, device: str, measurement: Measurement) -> RankSamples:
    return RankSamples(
        host=host,
        device=device,
        warmup_block_s=measurement.warmup_block_s,
        block_s=measurement.block_s,
        cold_s=measurement.cold_s,
        peak_device=measurement.peak_device,
        peak_host=measurement.peak_host,
        window=measurement.window,
        telemetry=measurement.telemetry,
        batches=measurement.batches,
        entry_s=measurement.entry_s,
    )


def _joint(windows: Sequence[Window | None]) -> Window | None:
    """Window from the start of the first rank to the end of the last; None if one is unknown."""
    known_windows = [window for window in windows if window]
    if len(known_windows) < len(windows):
        return None
    return Window(
        began_s=min(window.began_s for window in known_windows),
        ended_s=max(window.ended_s for window in known_windows),
        cpu_s=sum(window.cpu_s for window in known_windows),
    )


def _longest(times: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Longest time of each block. Raises ValueError if the numbers of blocks differ."""
    if len({len(rank_times) for rank_times in times}) > 1:
        raise ValueError("ranks with different numbers of blocks")
    return tuple(max(block) for block in zip(*times, strict=True))


def _maximum(values: Sequence[float | None]) -> float | None:
    """Maximum, or None if a value is unknown."""
    known_values = [value for value in values if value is not None]
    return max(known_values) if len(known_values) == len(values) else None


def _largest(peaks: Sequence[Memory]) -> Memory:
    """Largest peak, or an unknown one if there is one."""
    unknown = [peak for peak in peaks if peak.bytes is None]
    return unknown[0] if unknown else max(peaks, key=lambda peak: peak.bytes or 0)
