"""Round values for an axis, and their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchbench import format as fmt

COARSE = ((1.0,), (1.0, 2.0, 5.0))  # ticks in a decade
EVEN = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps of even ticks
FEWEST_TICKS, MOST_TICKS = 3, 6
MOST_LOG_TICKS = 7
NARROW = 4  # ratio of an axis's ends below which a logarithmic axis has even ticks
NEARLY = 1 + 1e-9  # round values are equal within this factor
ROUNDING = 1e-9  # the same, as a number of steps
FEW_DECADES = 1000  # ratio of an axis's ends from which it ends at powers of ten


def log_ticks(low: float, high: float) -> list[float]:
    """Round values for a logarithmic axis: by decades if it spans enough of them, else evenly spaced.

    Ends of the axis that are round have a tick.
    """
    choices = [_log_candidates(low, high, steps) for steps in COARSE]
    enough = [ticks for ticks in choices if len(ticks) >= FEWEST_TICKS]
    for ticks in enough if high > NARROW * low else []:
        if ticks[0] <= low * NEARLY and ticks[-1] * NEARLY >= high:
            return _thinned(ticks)
    evenly = even_ticks(low, high)
    covered = evenly[0] <= low * NEARLY and evenly[-1] * NEARLY >= high
    return evenly if covered or high <= NARROW * low or not enough else _thinned(enough[0])


def _log_candidates(low: float, high: float, steps: Sequence[float]) -> list[float]:
    """Round values between `low` and `high`, which may themselves be such values."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    candidates = [round(step * 10.0**power, 12 - power) for power in decades for step in steps]
    return [value for value in candidates if low <= value * NEARLY and value <= high * NEARLY]


def _thinned(ticks: list[float]) -> list[float]:
    """At most `MOST_LOG_TICKS` ticks, always with the first and the last."""
    stride = -(-(len(ticks) - 1) // (MOST_LOG_TICKS - 1)) or 1
    thinned = ticks[::stride]
    if thinned[-1] != ticks[-1]:
        thinned = [*thinned[: -1 if stride > 2 else None], ticks[-1]]
    return thinned


def enclosing(low: float, high: float, *, logarithmic: bool) -> tuple[float, float]:
    """Ends of an axis that are ticks: the nearest round values outside `low` to `high`."""
    if logarithmic and high > NARROW * low:
        steps = COARSE[0] if high > FEW_DECADES * low else COARSE[1]
        values = _log_candidates(low / 10, high * 10, steps)
        bottom = max(value for value in values if value <= low * NEARLY)
        top = min(value for value in values if value * NEARLY >= high)
        if len(_log_candidates(bottom, top, COARSE[1])) >= FEWEST_TICKS:
            return bottom, top
    step = _even_step(low, high)
    bottom, top = math.floor(low / step + ROUNDING) * step, math.ceil(high / step - ROUNDING) * step
    return (bottom, top) if bottom > 0 or not logarithmic else (low, top)


def even_ticks(low: float, high: float) -> list[float]:
    """Evenly spaced round values."""
    step = _even_step(low, high)
    first, last = math.ceil(low / step - ROUNDING), math.floor(high / step + ROUNDING)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _even_step(low: float, high: float) -> float:
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in EVEN if factor * power >= rough * 0.999)


def tick_text(value: float, unit: str) -> str:
    """Label of a tick: `20 ms`, `1.5×`, `5 GB/s`, `2k images/s`."""
    if unit in ("×", ""):
        return f"{value:g}{unit}"
    if unit == "B":
        return fmt.size(value)
    power = fmt.axis_power(value, unit)
    number = f"{value / 10.0**power:.4g}"
    if unit == "s" or unit in fmt.PREFIXED:
        return f"{number} {fmt.unit_text(unit, power)}"
    return f"{number}{fmt.PREFIXES[power]} {fmt.unit_text(unit, 0)}"


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
