"""What speaks against a process: how much faster it could have been alone, and once it had settled. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

from benchbench.machine.conditions import other_cores, step_s, stolen_cores, tolerated_cores
from benchbench.model.measurement import Measurement, calm_places
from benchbench.stats import mean, median

FEWEST = 2  # rounds that tell a spread: with so many better ones, the others are left out
UNBOUNDED = 100.0  # a logarithm, and cores: more than anything is slowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What speaks against a process. `cores`: what others used of its CPUs meanwhile.

    `alone`, `settled`: how much smaller the logarithm of its step could have been without them, and once it
    had warmed up; 0 without a doubt, `UNBOUNDED` where nothing bounds it.
    """

    cores: float = 0.0
    alone: float = 0.0
    settled: float = 0.0

    @property
    def undisturbed(self) -> bool:
        """Whether others took too little to show."""
        return not self.alone


NONE = Doubt()
Cycles = dict[int, tuple[float, bool]]  # cycle → logarithm of the median step, whether others disturbed it


@dataclass(frozen=True, slots=True)
class Timed:
    """One process of a case: the logarithm of its step in seconds, and what speaks against it.

    `cycles`: of a heat, the logarithm of the median step of each turn by cycle, and if others disturbed that.
    `part`: of a resumed run, whose parts have heats of their own.
    """

    log: float
    doubt: Doubt = NONE
    cycles: Cycles = field(default_factory=dict, hash=False)
    part: int = 0


def timed(measured: Measurement, part: int = 0) -> Timed:
    """The step time of a process, and what speaks against it."""
    return Timed(math.log(step_s(measured)), doubt(measured), cycles_of(measured), part)


def cycles_of(measured: Measurement) -> Cycles:
    """Cycle → the logarithm of the median step of its turn, and whether others computed meanwhile."""
    steps = zip(measured.turns, measured.turn_steps_s, strict=True)
    return {
        turn.cycle: (math.log(step), not turn.is_calm) for turn, own in steps if (step := median(own)) > 0
    }


def calm_cycles(cycles: Cycles) -> list[int]:
    """The cycles that nobody disturbed; none if these are too few to stand for the heat."""
    numbers = list(cycles)
    return [numbers[place] for place in calm_places([not disturbed for _, disturbed in cycles.values()])]


def doubt(measured: Measurement) -> Doubt:
    """What speaks against a process, by its telemetry and its own blocks."""
    cycles = cycles_of(measured)
    cores, tolerated = (0.0, 0.0) if cycles and calm_cycles(cycles) else _others(measured)
    return Doubt(
        cores=cores,
        alone=_slowed_by(cores) if cores > tolerated else 0.0,
        settled=0.0 if measured.steady else _still_falling(measured.steps_s),
    )


def _others(measured: Measurement) -> tuple[float, float]:
    """Cores that others used, and how many of them would not show."""
    telemetry = measured.telemetry
    if telemetry is None:
        return 0.0, 0.0
    tolerated = tolerated_cores(telemetry.cpus)
    if max(telemetry.gpu_processes, default=0) > 1:
        return UNBOUNDED, tolerated
    return (other_cores([measured]) or 0.0) + (stolen_cores([measured]) or 0.0), tolerated


def _slowed_by(cores: float) -> float:
    """The most by which others that used so many cores slow the median block, as a logarithm.

    Threads that share a step wait for the slowest, and others may take all of one thread's core. The median
    is disturbed only where half of the blocks are, so in these they used at most twice as much.
    """
    return UNBOUNDED if 2 * cores >= 1 else -math.log1p(-2 * cores)


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
    """Processes of two cases in the same rounds. `changes`: other − reference, of logarithms, of `rounds`.

    `other_excess`, `reference_excess`: how much smaller the mean of either could have been, beyond what both
    could. `undisturbed`: others disturbed none of them. `left_out`: less fair rounds that do not count.
    `alternated`: whether the two took turns in each of them.
    """

    changes: tuple[float, ...]
    rounds: tuple[int, ...] = ()
    undisturbed: bool = True
    other_excess: float = 0.0
    reference_excess: float = 0.0
    left_out: int = 0
    alternated: bool = False


def fair_pairs(reference: Mapping[int, Timed], other: Mapping[int, Timed], fewest: int = FEWEST) -> FairPairs:
    """The pairs of two cases, of the rounds that both have: the fairest of them, at least `fewest`.

    First those that nobody disturbed, then those whose two sides met the same neighbours, then those in which
    others can have made a bounded difference.
    """
    both = {number: (reference[number], other[number]) for number in sorted(reference.keys() & other.keys())}
    if not both:
        return FairPairs(changes=())
    used = next((fair for fair in _fairest(both) if len(fair) >= fewest), both)
    excess = [_excess(one.doubt, two.doubt) for one, two in used.values()]
    return FairPairs(
        changes=tuple(starmap(log_ratio, used.values())),
        rounds=tuple(used),
        undisturbed=all(each.doubt.undisturbed for pair in used.values() for each in pair),
        other_excess=mean([max(each, 0.0) for each in excess]),
        reference_excess=mean([max(-each, 0.0) for each in excess]),
        left_out=len(both) - len(used),
        alternated=all(shared_cycles(*pair) for pair in used.values()),
    )


def log_ratio(one: Timed, other: Timed) -> float:
    """log(other / one): in a heat the median over the cycles that both had a turn in, calm ones if possible.

    Turns of a cycle follow upon each other, so what slows the machine for longer than that cancels out.
    """
    if not (shared := shared_cycles(one, other)):
        return other.log - one.log
    return median([shared[number][0] for number in calm_cycles(shared) or shared])


def shared_cycles(one: Timed, other: Timed) -> Cycles:
    """Cycle → log(other / one), of the cycles in which both had a turn, and whether others disturbed it."""
    if one.part != other.part:
        return {}
    return {
        number: (other.cycles[number][0] - log, is_disturbed)
        for number, (log, is_disturbed) in one.cycles.items()
        if number in other.cycles
    }


def _fairest(pairs: Mapping[int, tuple[Timed, Timed]]) -> Iterator[dict[int, tuple[Timed, Timed]]]:
    """Choices of rounds, fewer and fairer ones first."""
    for fair in (_undisturbed, _met_the_same, _bounded):
        yield {number: pair for number, pair in pairs.items() if fair(*(each.doubt for each in pair))}


def _undisturbed(one: Doubt, other: Doubt) -> bool:
    return one.undisturbed and other.undisturbed


def _met_the_same(one: Doubt, other: Doubt) -> bool:
    """Whether what others used differs by no more than what is always tolerated."""
    return abs(one.cores - other.cores) <= tolerated_cores(1)


def _bounded(one: Doubt, other: Doubt) -> bool:
    return max(one.alone, other.alone) < UNBOUNDED


def _excess(reference: Doubt, other: Doubt) -> float:
    """How much more the other could have been faster than the reference could."""
    alone = 0.0 if _met_the_same(reference, other) else other.alone - reference.alone
    return alone + other.settled - reference.settled
