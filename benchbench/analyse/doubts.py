"""Doubts about measured times: contention, warming up, and drift of the machine during the run. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from statistics import NormalDist, variance

from benchbench.machine.conditions import other_cores, step_s, stolen_cores, tolerated_cores
from benchbench.model.measurement import Measurement, calm_indices
from benchbench.model.note import Note, NoteKind, note
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


MIN_DRIFT_ROUNDS = 3  # of a case that counts
MAX_ROUNDS = 200  # of a case whose pairs are used: a run may have 10,000
SIGNIFICANCE = 0.03  # two-sided level of a trend
UNEVEN_SIGNIFICANCE = 0.01  # level of differences between rounds
MIN_CHANGE = 0.01  # of a step, as a fraction: comparisons with a threshold of 3 % hardly depend on less

Process = tuple[int, float]  # round, and logarithm of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Common change of the speed of `cases`, as the median logarithm of a step.

    `change`: of a trend from the first round to the last; otherwise from the fastest round to the slowest.
    `variance`: of the run's level relative to another hour, with `degrees` of freedom.
    """

    change: float
    cases: int
    is_trend: bool
    variance: float
    degrees: float

    @property
    def note(self) -> Note:
        """`drifted: steps became 4.10 % slower …`, or `uneven: the slowest round took 4.10 % longer …`."""
        share = abs(math.expm1(self.change))
        if not self.is_trend:
            return note(NoteKind.UNEVEN_ROUNDS, share=share, cases=self.cases)
        return note(
            NoteKind.DRIFTED, share=share, what="slower" if self.change > 0 else "faster", cases=self.cases
        )


def drift(cases: Iterable[Sequence[Process]]) -> Drift | None:
    """Common change of all cases of a run; None if it is not significant or small.

    The tests use ranks within a case, so they do not depend on its level, its noise or outliers.
    """
    eligible = [values for case in cases if len(values := _mean_by_round(case)) >= MIN_DRIFT_ROUNDS]
    for test in (_test_trend, _test_unevenness):
        if eligible and (result := test(eligible)) and abs(result.change) >= MIN_CHANGE:
            return result
    return None


def _mean_by_round(case: Sequence[Process]) -> list[Process]:
    """Mean of each round, in order: a case in two suites has two processes per round."""
    logs_by_round: dict[int, list[float]] = {}
    for number, log in case:
        logs_by_round.setdefault(number, []).append(log)
    return [(number, mean(logs)) for number, logs in sorted(logs_by_round.items())]


def _test_trend(cases: Sequence[Sequence[Process]]) -> Drift | None:
    """Trend over the rounds, by the seasonal Kendall test (Hirsch, Slack & Smith 1982).

    Cases take the place of seasons. The size is the median over cases of Sen's slope, times the number of
    rounds from the first to the last. The run is modelled as a random walk: the mean of a walk that ends at
    distance D has the variance D²/3 relative to its start, since ∫W of a unit walk has the variance 1/3.
    """
    score = sum(_score(case) for case in cases)
    spread = sum(len(case) * (len(case) - 1) * (2 * len(case) + 5) / 18 for case in cases)
    if abs(score) - 1 < _LIMIT * math.sqrt(spread):
        return None
    change = median([_slope(case) * (case[-1][0] - case[0][0]) for case in cases])
    return Drift(change=change, cases=len(cases), is_trend=True, variance=change**2 / 3, degrees=1.0)


def _test_unevenness(cases: Sequence[Sequence[Process]]) -> Drift | None:
    """Differences between rounds in any order, by the test of Friedman (1937) with cases as blocks.

    Only rounds of all cases count. Another hour is taken to differ as much as these rounds, which are
    minutes apart.
    """
    shared = set.intersection(*({number for number, _ in case} for case in cases))
    if len(shared) < MIN_DRIFT_ROUNDS:
        return None
    rows = [[log for number, log in case if number in shared] for case in cases]
    if _friedman_p(rows) >= UNEVEN_SIGNIFICANCE:
        return None
    means = map(mean, rows)
    around_mean = [[log - middle for log in row] for row, middle in zip(rows, means, strict=True)]
    levels = [median(column) for column in zip(*around_mean, strict=True)]
    return Drift(
        change=max(levels) - min(levels),
        cases=len(rows),
        is_trend=False,
        variance=variance(levels),
        degrees=len(levels) - 1.0,
    )


def _friedman_p(rows: Sequence[Sequence[float]]) -> float:
    """p of the hypothesis that the columns are equal; 1 if all values of each row are equal."""
    from scipy.special import chdtrc

    ranks = [_doubled_ranks(row) for row in rows]
    middle = len(rows[0])
    total = sum((rank - middle) ** 2 for row in ranks for rank in row)
    columns = sum((sum(column) - len(rows) * middle) ** 2 for column in zip(*ranks, strict=True))
    return float(chdtrc(middle - 1, (middle - 1) * columns / total)) if total else 1.0


def _doubled_ranks(row: Sequence[float]) -> list[int]:
    """Twice the rank of each value, counted from 1/2. Equal values share their rank."""
    order = sorted(row)
    return [bisect_left(order, log) + bisect_right(order, log) for log in row]


_LIMIT = NormalDist().inv_cdf(1 - SIGNIFICANCE / 2)


def _score(case: Sequence[Process]) -> int:
    """Kendall's S: number of pairs of rounds that become slower, minus those that become faster."""
    score, earlier = 0, list[float]()
    for _, log in case:
        score += bisect_left(earlier, log) - (len(earlier) - bisect_right(earlier, log))
        insort(earlier, log)
    return score


def _slope(case: Sequence[Process]) -> float:
    """Sen's slope (1968): median change per round of all pairs of rounds.

    At most `MAX_ROUNDS` evenly spaced rounds are used.
    """
    import numpy as np

    rounds, logs = np.array(case[:: -(-len(case) // MAX_ROUNDS)], dtype=float).T
    first, second = np.triu_indices(len(rounds), 1)
    return float(np.median((logs[second] - logs[first]) / (rounds[second] - rounds[first])))
