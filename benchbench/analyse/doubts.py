"""Doubts about a process: the possible effects of contention and of warming up on its time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap

from benchbench.machine.conditions import other_cores, step_s, stolen_cores, tolerated_cores
from benchbench.model.measurement import Measurement, calm_indices
from benchbench.stats import mean, median

MIN_ROUNDS = 2  # needed for a spread: with as many better rounds, the others are left out
UNBOUNDED = 100.0  # as a logarithm and as cores: more than any slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Doubt about a process. `cores`: CPU cores that other programs used meanwhile.

    `alone`, `settled`: possible decrease of the step's logarithm without other programs, and after warming
    up; 0 without a doubt, `UNBOUNDED` if there is no bound.
    """

    cores: float = 0.0
    alone: float = 0.0
    settled: float = 0.0

    @property
    def is_undisturbed(self) -> bool:
        """True if other programs used too little to matter."""
        return not self.alone


NO_DOUBT = Doubt()
Cycles = dict[int, tuple[float, bool]]  # cycle → logarithm of the median step, and True if it was disturbed


@dataclass(frozen=True, slots=True)
class TimedProcess:
    """One process of a case: the logarithm of its step in seconds, with the doubts about it.

    `cycles`: of a heat, the logarithm of the median step of each turn, and whether it was disturbed.
    `part`: of a resumed run, whose parts have separate heats.
    """

    log: float
    doubt: Doubt = NO_DOUBT
    cycles: Cycles = field(default_factory=dict, hash=False)
    part: int = 0


def timed_process(measurement: Measurement, part: int = 0) -> TimedProcess:
    """Step time of a process, with the doubts about it."""
    return TimedProcess(math.log(step_s(measurement)), doubt(measurement), cycle_logs(measurement), part)


def cycle_logs(measurement: Measurement) -> Cycles:
    """Cycle → logarithm of the median step of its turn, and whether other programs computed meanwhile."""
    steps = zip(measurement.turns, measurement.turn_steps_s, strict=True)
    return {
        turn.cycle: (math.log(step), not turn.is_calm)
        for turn, turn_steps in steps
        if (step := median(turn_steps)) > 0
    }


def calm_cycles(cycles: Cycles) -> list[int]:
    """Undisturbed cycles; none if these are too few to represent the heat."""
    numbers = list(cycles)
    return [numbers[place] for place in calm_indices([not disturbed for _, disturbed in cycles.values()])]


def doubt(measurement: Measurement) -> Doubt:
    """Doubt about a process, from its telemetry and its blocks."""
    cycles = cycle_logs(measurement)
    cores, tolerated = (0.0, 0.0) if cycles and calm_cycles(cycles) else _other_cores(measurement)
    return Doubt(
        cores=cores,
        alone=_max_slowdown(cores) if cores > tolerated else 0.0,
        settled=0.0 if measurement.steady else _remaining_decrease(measurement.steps_s),
    )


def _other_cores(measurement: Measurement) -> tuple[float, float]:
    """Cores that other programs used, and the number that is tolerated."""
    telemetry = measurement.telemetry
    if telemetry is None:
        return 0.0, 0.0
    tolerated = tolerated_cores(telemetry.cpus)
    if max(telemetry.gpu_processes, default=0) > 1:
        return UNBOUNDED, tolerated
    return (other_cores([measurement]) or 0.0) + (stolen_cores([measurement]) or 0.0), tolerated


def _max_slowdown(cores: float) -> float:
    """Largest slowdown of the median block by other programs that used so many cores, as a logarithm.

    Threads that share a step wait for the slowest, and other programs may use all of one thread's core. The
    median is disturbed only if half of the blocks are, and during these the programs used at most twice as
    much.
    """
    return UNBOUNDED if 2 * cores >= 1 else -math.log1p(-2 * cores)


def _remaining_decrease(steps: Sequence[float]) -> float:
    """Possible further decrease of the steps of a process that had not settled, as a logarithm.

    This is the difference of the last third from the median, plus the decrease from the first third to the
    last: the remaining decrease of e^(-t) is smaller than that.
    """
    third = max(len(steps) // 3, 1)
    first, middle, last = (math.log(median(part)) for part in (steps[:third], steps, steps[-third:]))
    return max(middle - last, 0.0) + max(first - last, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FairPairs:
    """Processes of two cases in the same rounds. `changes`: other − reference, of logarithms, by `rounds`.

    `other_excess`, `reference_excess`: possible decrease of either mean that the other side does not share.
    `is_undisturbed`: no process was contended. `left_out`: number of less fair rounds that do not count.
    `took_turns`: the two cases took turns in each round.
    """

    changes: tuple[float, ...]
    rounds: tuple[int, ...] = ()
    is_undisturbed: bool = True
    other_excess: float = 0.0
    reference_excess: float = 0.0
    left_out: int = 0
    took_turns: bool = False


def fair_pairs(
    reference: Mapping[int, TimedProcess], other: Mapping[int, TimedProcess], min_rounds: int = MIN_ROUNDS
) -> FairPairs:
    """Pairs of two cases from their common rounds: the fairest rounds, at least `min_rounds` of them.

    Undisturbed rounds are preferred, then rounds with equal contention on both sides, then rounds with
    bounded doubts.
    """
    pairs = {number: (reference[number], other[number]) for number in sorted(reference.keys() & other.keys())}
    if not pairs:
        return FairPairs(changes=())
    selected = next((fair for fair in _selections(pairs) if len(fair) >= min_rounds), pairs)
    excess = [_excess(first.doubt, second.doubt) for first, second in selected.values()]
    return FairPairs(
        changes=tuple(starmap(log_ratio, selected.values())),
        rounds=tuple(selected),
        is_undisturbed=all(process.doubt.is_undisturbed for pair in selected.values() for process in pair),
        other_excess=mean([max(process, 0.0) for process in excess]),
        reference_excess=mean([max(-process, 0.0) for process in excess]),
        left_out=len(pairs) - len(selected),
        took_turns=all(shared_cycles(*pair) for pair in selected.values()),
    )


def log_ratio(reference: TimedProcess, other: TimedProcess) -> float:
    """log(other / reference): in a heat, the median over the common cycles, calm ones if possible.

    Turns of a cycle follow one another, so slower disturbances of the machine cancel out.
    """
    if not (shared := shared_cycles(reference, other)):
        return other.log - reference.log
    return median([shared[number][0] for number in calm_cycles(shared) or shared])


def shared_cycles(reference: TimedProcess, other: TimedProcess) -> Cycles:
    """Cycle → log(other / reference) for the common cycles, and whether it was disturbed."""
    if reference.part != other.part:
        return {}
    return {
        number: (other.cycles[number][0] - log, is_disturbed)
        for number, (log, is_disturbed) in reference.cycles.items()
        if number in other.cycles
    }


def _selections(
    pairs: Mapping[int, tuple[TimedProcess, TimedProcess]],
) -> Iterator[dict[int, tuple[TimedProcess, TimedProcess]]]:
    """Selections of rounds, the strictest first."""
    for is_fair in (_are_undisturbed, _are_equally_contended, _are_bounded):
        yield {
            number: pair for number, pair in pairs.items() if is_fair(*(process.doubt for process in pair))
        }


def _are_undisturbed(reference: Doubt, other: Doubt) -> bool:
    return reference.is_undisturbed and other.is_undisturbed


def _are_equally_contended(reference: Doubt, other: Doubt) -> bool:
    """True if the cores that other programs used differ by no more than is always tolerated."""
    return abs(reference.cores - other.cores) <= tolerated_cores(1)


def _are_bounded(reference: Doubt, other: Doubt) -> bool:
    return max(reference.alone, other.alone) < UNBOUNDED


def _excess(reference: Doubt, other: Doubt) -> float:
    """Possible decrease of the other process beyond that of the reference."""
    alone = 0.0 if _are_equally_contended(reference, other) else other.alone - reference.alone
    return alone + other.settled - reference.settled
