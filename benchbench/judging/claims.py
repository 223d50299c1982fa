"""A time that somebody claims of a function, beside what was measured, and what explains the factor. Pure.

Whoever times a function by hand mostly makes one of few mistakes, and each leaves a time of its own: that
until the call returned, of the first call, of the fastest block, of one before it was warm. A claim that is
close to such a time, and not to the measured one, is likely to be it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchbench.analyse.metrics import Value, metric_named
from benchbench.errors import UsageError
from benchbench.model.measurement import Measurement
from benchbench.stats import median

AGREES = 0.03  # beyond the interval: as small a change as a comparison calls one
CLOSE = math.log(1.25)  # of a claim to what explains it: times taken by hand differ by as much
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What was claimed, and what was measured with its 95 % interval; seconds a call.

    `explanation`: why they differ, empty where they agree or no check tells. `checks`: what else was measured
    of it, by name.
    """

    claimed_s: float
    measured_s: float
    low_s: float
    high_s: float
    agrees: bool
    explanation: str
    checks: dict[str, float]

    @property
    def factor(self) -> float:
        """The measured time over the claimed one."""
        return self.measured_s / self.claimed_s


def claimed_seconds(given: str | float) -> float:
    """`1.2ms`, `3 µs`, `0.5`, or seconds → seconds. Raises UsageError."""
    text = str(given)
    found = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?(?:e-?[0-9]+)?) ?(ns|us|µs|ms|s|)", text.strip(), re.ASCII)
    found = found or re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) ?(µs|μs)", text.strip())
    seconds = float(found[1]) * UNITS.get(found[2], 1e-6) if found else 0.0
    if not 0 < seconds < math.inf:
        raise UsageError(f"{text!r} is not a time of a call.", "Write it as 1.2ms, 350us or 80ns.")
    return seconds


def judge_claim(
    claimed_s: float, measured: Sequence[Measurement], planned: int | None, returned_s: float | None
) -> Claim | None:
    """The claim beside what the processes measured; None where they have no headline.

    `returned_s`: until a call returned, whatever it left to be waited for.
    """
    found = metric_named("latency_s").of(measured, planned) if measured else Value(None)
    if found.value is None:
        return None
    low, high = found.low or found.value, found.high or found.value
    times = {name: seconds for name, _, seconds in _checks(measured, returned_s)}
    agrees = low * (1 - AGREES) <= claimed_s <= high * (1 + AGREES)
    explanation = "" if agrees else _explanation(claimed_s, found.value, measured, returned_s)
    return Claim(
        claimed_s=claimed_s,
        measured_s=found.value,
        low_s=low,
        high_s=high,
        agrees=agrees,
        explanation=explanation,
        checks=times,
    )


def _explanation(
    claimed_s: float, measured_s: float, measured: Sequence[Measurement], returned_s: float | None
) -> str:
    """The check whose time is closest to the claim, if it is close and explains most of the factor."""
    apart = {text: abs(math.log(seconds / claimed_s)) for _, text, seconds in _checks(measured, returned_s)}
    text = min(apart, key=lambda each: apart[each], default="")
    most = min(CLOSE, abs(math.log(measured_s / claimed_s)) / 2)
    return text if text and apart[text] <= most else ""


def _checks(measured: Sequence[Measurement], returned_s: float | None) -> Iterator[tuple[str, str, float]]:
    """Name, explanation and seconds of what a time taken by hand may be instead."""
    steps = [step for each in measured for step in each.steps_s]
    first = [each.cold_s for each in measured if each.cold_s]
    warm = [each.warmup_block_s[0] / each.iterations for each in measured if each.warmup_block_s]
    if returned_s:
        yield (
            "returned_s",
            "the claim is the time until the call returned, whose work was not waited for",
            returned_s,
        )
    if first:
        yield (
            "first_call_s",
            "the claim is the time of the first call, which compiles and allocates",
            median(first),
        )
    if warm:
        yield "before_warm_s", "the claim is a time before the function was warm", median(warm)
    yield (
        "fastest_s",
        f"the claim is the fastest of {len(steps)} blocks, which most calls are not",
        min(steps),
    )
