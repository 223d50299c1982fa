"""The round values of an axis, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchbench import format as fmt

COARSE = ((1.0,), (1.0, 2.0, 5.0))  # ticks of a decade
EVEN = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps of even ticks
FEWEST_TICKS, MOST_TICKS = 3, 6


def log_ticks(low: float, high: float) -> list[float]:
    """A few round values of a logarithmic axis: by decades where it spans enough of them, else even steps."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in COARSE:
        made = [round(step * 10.0**power, 12 - power) for power in decades for step in steps]
        found = [value for value in made if low <= value <= high]
        if len(found) >= FEWEST_TICKS:
            return found[:: -(-len(found) // MOST_TICKS)]
    return even_ticks(low, high)


def even_ticks(low: float, high: float) -> list[float]:
    """A few round values, as far apart as each other."""
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in EVEN if each * power >= rough * 0.999)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def tick_text(value: float, unit: str) -> str:
    """`20 ms`, `1.5×`, `5 GB/s`: a tick is a round number."""
    if unit in ("×", ""):
        return f"{value:g}{unit}"
    if unit == "B":
        return fmt.size(value)
    power = fmt.second_power(value) if unit == "s" else fmt.si_power(value)
    return f"{value / 10.0**power:.4g} {fmt.unit_text(unit, power)}"


def apart(names: Sequence[tuple[float, str]], letter: float) -> list[tuple[float, str]]:
    """Of names centred at places on an axis, those that do not lie on the one before; `letter`: its width."""
    shown: list[tuple[float, str]] = []
    for place, name in names:
        if not shown or place - shown[-1][0] > letter * ((len(name) + len(shown[-1][1])) / 2 + 1):
            shown.append((place, name))
    return shown
