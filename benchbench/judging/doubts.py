"""What speaks against a process: how much faster it could have been alone, and once it had settled. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchbench.analyse.metrics import steps_s
from benchbench.machine.conditions import other_cores, stolen_cores, tolerated_cores
from benchbench.model.measurement import Measurement
from benchbench.stats import mean, median

FEWEST = 2  # rounds that tell a spread: with so many better ones, the others are left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One process of a case. `log`: the logarithm of its step, in seconds.

    `cores`: what others used of its CPUs meanwhile; infinite where its GPU computed for others. `alone`,
    `settled`: how much smaller `log` could have been without them, and once warmed up; 0 without a doubt.
    """

    log: float
    cores: float = 0.0
    alone: float = 0.0
    settled: float = 0.0

    @property
    def undisturbed(self) -> bool:
        """Whether others took too little to show."""
        return not self.alone


def timed(measured: Measurement) -> Timed:
    """What a process measured, and what speaks against it."""
    steps = steps_s(measured)
    cores, tolerated = _others(measured)
    return Timed(
        log=math.log(median(steps)),
        cores=cores,
        alone=_slowed_by(cores) if cores > tolerated else 0.0,
        settled=0.0 if measured.steady else _still_falling(steps),
    )


def _others(measured: Measurement) -> tuple[float, float]:
    """Cores that others used, and how many of them would not show."""
    telemetry = measured.telemetry
    if telemetry is None:
        return 0.0, 0.0
    tolerated = tolerated_cores(telemetry.cpus)
    if max(telemetry.gpu_processes, default=0) > 1:
        return math.inf, tolerated
    return (other_cores([measured]) or 0.0) + (stolen_cores([measured]) or 0.0), tolerated


def _slowed_by(cores: float) -> float:
    """The most by which others that used so many cores slow the median block, as a logarithm.

    Threads that share a step wait for the slowest, and others may take all of one thread's core. The median
    is disturbed only where half of the blocks are, so in these they used at most twice as much.
    """
    return math.inf if 2 * cores >= 1 else -math.log1p(-2 * cores)


def _still_falling(steps: Sequence[float]) -> float:
    """How much smaller the steps of a process that had not settled could have become, as a logarithm.

    By what the last third is below the median, and by as much again as they fell from the first third to the
    last: what falls like e^(-t) falls less in all the time to come.
    """
    third = max(len(steps) // 3, 1)
    first, middle, last = (math.log(median(part)) for part in (steps[:third], steps, steps[-third:]))
    return max(middle - last, 0.0) + max(first - last, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairPairs:
    """Processes of two cases in the same rounds. `changes`: other − reference, of logarithms.

    `other_excess`, `reference_excess`: how much smaller the mean of either could have been, beyond what both
    could. `undisturbed`: others disturbed none of them. `left_out`: less fair rounds that do not count.
    """

    changes: tuple[float, ...]
    undisturbed: bool = True
    other_excess: float = 0.0
    reference_excess: float = 0.0
    left_out: int = 0


def fair_pairs(reference: Mapping[int, Timed], other: Mapping[int, Timed]) -> FairPairs:
    """The pairs of two cases, of the rounds that both have: the fairest of them that tell a spread.

    First those that nobody disturbed, then those whose two sides met the same neighbours, then those in which
    others can have made a bounded difference.
    """
    both = [(reference[number], other[number]) for number in sorted(reference.keys() & other.keys())]
    if not both:
        return FairPairs(changes=())
    used = next((pairs for pairs in _fairest(both) if len(pairs) >= FEWEST), both)
    excess = [_excess(one, two) for one, two in used]
    return FairPairs(
        changes=tuple(two.log - one.log for one, two in used),
        undisturbed=all(one.undisturbed and two.undisturbed for one, two in used),
        other_excess=mean([max(each, 0.0) for each in excess]),
        reference_excess=mean([max(-each, 0.0) for each in excess]),
        left_out=len(both) - len(used),
    )


def _fairest(pairs: Sequence[tuple[Timed, Timed]]) -> Iterator[list[tuple[Timed, Timed]]]:
    yield [(one, other) for one, other in pairs if one.undisturbed and other.undisturbed]
    yield [(one, other) for one, other in pairs if _met_the_same(one, other)]
    yield [(one, other) for one, other in pairs if math.isfinite(_excess(one, other))]


def _met_the_same(one: Timed, other: Timed) -> bool:
    """Whether what others used differs by no more than what is always tolerated."""
    return one.cores == other.cores or abs(one.cores - other.cores) <= tolerated_cores(1)


def _excess(reference: Timed, other: Timed) -> float:
    """How much more the other could have been faster than the reference could; infinite where unbounded."""
    unlike = not _met_the_same(reference, other) and other.alone != reference.alone
    alone = other.alone - reference.alone if unlike else 0.0
    return alone + other.settled - reference.settled
