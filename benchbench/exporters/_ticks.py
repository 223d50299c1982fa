"""Round values for an axis, and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchbench import format as fmt

COARSE = ((1.0,), (1.0, 2.0, 5.0))  # ticks in a decade
EVEN = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps of even ticks
FEWEST_TICKS, MOST_TICKS = 3, 6


def log_ticks(low: float, high: float) -> list[float]:
    """Round values for a logarithmic axis: by decades if it spans enough of them, else evenly spaced."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in COARSE:
        candidates = [round(step * 10.0**power, 12 - power) for power in decades for step in steps]
        ticks = [value for value in candidates if low <= value <= high]
        if len(ticks) >= FEWEST_TICKS:
            return ticks[:: -(-len(ticks) // MOST_TICKS)]
    return even_ticks(low, high)


def even_ticks(low: float, high: float) -> list[float]:
    """Evenly spaced round values."""
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in EVEN if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_text(value: float, unit: str) -> str:
    """Label of a tick: `20 ms`, `1.5×`, `5 GB/s`."""
    if unit in ("×", ""):
        return f"{value:g}{unit}"
    if unit == "B":
        return fmt.size(value)
    power = fmt.second_power(value) if unit == "s" else fmt.si_power(value)
    return f"{value / 10.0**power:.4g} {fmt.unit_text(unit, power)}"


def date_names(started: Sequence[str]) -> list[str]:
    """Labels of runs by their start (ISO 8601): dates, with the time if several runs share a day.

    The year is omitted if it is the same and there is a time: `11-26 14:05`.
    """
    dates = [text[: len("2026-01-01")] for text in started]
    if len(set(dates)) == len(dates):
        return dates
    skipped = len("2026-") if len({text[:4] for text in started}) == 1 else 0
    return [text[skipped : len("2026-01-01T00:00")].replace("T", " ") for text in started]


def without_overlap(names: Sequence[tuple[float, str]], letter: float) -> list[tuple[float, str]]:
    """Drop labels that overlap the previous one on an axis; `letter`: width of a letter."""
    labels: list[tuple[float, str]] = []
    for position, name in names:
        if not labels or position - labels[-1][0] > letter * ((len(name) + len(labels[-1][1])) / 2 + 1):
            labels.append((position, name))
    return labels
