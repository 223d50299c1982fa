"""Fastest case of each work of a run, its lead, and whether the lead is significant. Pure.

Cases are compared by the processes of the same round, which ran within the same minutes. docs/measuring.md
has the evidence for the rule, which comes from studies/ranking.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from benchbench.analyse.doubts import FairPairs, TimedProcess, fair_pairs, timed_process
from benchbench.analyse.rows import records_by_case
from benchbench.format import count_of
from benchbench.judging.variance import are_clustered, larger_variances
from benchbench.model.case import Case, Status
from benchbench.model.measurement import Measurement
from benchbench.model.note import UNRANKED
from benchbench.model.placement import Strategy
from benchbench.model.run import Policy, Record
from benchbench.stats import (
    Difference,
    bounded_exp,
    discovery_level,
    mean,
    paired,
    robust_prior,
    t_quantile,
    tost,
    typical_indices,
)
from benchbench.timing.policy import look_share

ALPHA = 0.05  # false discovery rate of the named winners; if nothing differs, probability of naming any
EQUIVALENCE = 0.05  # cases that differ by less are equally fast: code alignment alone makes 3 %
# Of the logarithm of a ratio, between heats: three processes that happen to agree understate their spread.
MIN_DEVIATION = 0.035
FIRST_LOOK_SHARE = 0.75  # of the error, spent on the first heats of a run with a budget
SHARED_REFERENCE = 0.25  # ρ² between the variances of two pairs with the same reference: ρ = 1/2
MAX_ROUNDS = 200  # largest recommended number of rounds
THREADS = "threads"
COMPARED_AXES = (
    "target",
    "mode",
    "device",
    THREADS,
)  # a run is compared along the first axis on which its cases differ

Engines = frozenset[tuple[object, ...]]  # the two engines of a pair
Moderation = Callable[[float, float], tuple[float, float]]  # (variance, degrees of freedom) → moderated ones


class Standing(StrEnum):
    """State of the decision on a work."""

    WON = "won"  # one case is fastest
    TIED = "tied"  # the leading cases are equally fast, within EQUIVALENCE
    OPEN = "open"  # another case may be as fast
    ALONE = "alone"  # there is nothing to compare
    NONE = "none"  # no case has a speed


@dataclass(frozen=True, slots=True)
class Contender:
    """A case with its processes by round."""

    case: Case
    processes: Mapping[int, TimedProcess] = field(hash=False)

    @property
    def mean_log(self) -> float:
        """Mean logarithm of its steps, from undisturbed rounds if there are any."""
        undisturbed = [process.log for process in self.processes.values() if process.doubt.is_undisturbed]
        return mean(undisturbed or [process.log for process in self.processes.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A case compared with the reference of its work, over the `rounds` that both have.

    `log_ratio`: log(rival / reference). `error_share`: share of the error that may be spent after so many
    rounds. `difference`: None with fewer than two rounds. `level`: largest p that is significant, over all
    works.
    """

    contender: Contender
    pairs: FairPairs
    log_ratio: float
    rounds: int
    error_share: float
    difference: Difference | None
    level: float = ALPHA

    @property
    def p(self) -> float:
        """Two-sided p of the rival being as fast, even beyond the effect of the doubts; 1 if unknown."""
        return self._p_beyond(self.pairs.other_excess)

    def _p_beyond(self, excess: float) -> float:
        if self.difference is None:
            return 1.0
        return min(1.0, 2 * self.difference.p_above(excess) / self.error_share)

    @property
    def is_slower(self) -> bool:
        """True if the rival is significantly slower than the reference."""
        return self.p <= self.level

    @property
    def is_faster(self) -> bool:
        """True if the rival is significantly faster than a reference that is not the fastest case."""
        excess = self.pairs.reference_excess
        if self.difference is None:
            return False
        return 2 * self.difference.p_below(-excess) / self.error_share <= self.level

    @property
    def is_doubted(self) -> bool:
        """True if contention or warming up may explain that the rival seems, or is significantly, slower."""
        explained = 0 < self.log_ratio <= self.pairs.other_excess
        return not self.is_slower and (explained or self._p_beyond(0.0) <= self.level)

    @property
    def is_equivalent(self) -> bool:
        """True if both are equally fast, within EQUIVALENCE and whatever the doubts explain (TOST)."""
        margin = math.log1p(EQUIVALENCE) - max(self.pairs.other_excess, self.pairs.reference_excess)
        if self.difference is None or margin <= 0:
            return False
        return tost(self.difference, margin) <= ALPHA * self.error_share

    @property
    def ratio(self) -> float:
        """Time of the rival divided by that of the reference."""
        return bounded_exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the ratio at the level of the decision; it excludes 1 if the rival is slower."""
        if self.difference is None:
            return None
        half = self.difference.half_width(1 - self.level * self.error_share)
        low = self.difference.mid - half - self.pairs.other_excess
        return bounded_exp(low), bounded_exp(self.difference.mid + half + self.pairs.reference_excess)

    def rounds_to_decide(self, policy: Policy) -> int | None:
        """Total number of rounds that would make the observed lead significant; None above MAX_ROUNDS."""
        if self.difference is None or self.log_ratio <= self.pairs.other_excess:
            return None
        lead, spread = self.log_ratio - self.pairs.other_excess, math.sqrt(self.difference.variance)
        for rounds in range(self.rounds + 1, MAX_ROUNDS):
            level = self.level * share_of(policy, rounds)
            if lead * math.sqrt(rounds) >= spread * t_quantile(1 - level / 2, self.difference.degrees):
                return rounds
        return None


@dataclass(frozen=True, kw_only=True)
class WorkVerdict:
    """Verdict on a work. `rivals`: the other cases, nearest first; `axis`: what the run compares."""

    fastest: Contender | None
    rivals: tuple[Rival, ...]
    axis: str

    @property
    def compared_rivals(self) -> list[Rival]:
        """Rivals that differ from the fastest case along the compared axis."""
        if not self.axis or self.fastest is None:
            return []
        leader_name = self.name_of(self.fastest)
        return [rival for rival in self.rivals if self.name_of(rival.contender) != leader_name]

    @cached_property
    def standing(self) -> Standing:
        """State of the decision."""
        if self.fastest is None:
            return Standing.NONE
        if not self.compared_rivals:
            return Standing.ALONE
        if all(rival.is_slower for rival in self.compared_rivals):
            return Standing.WON
        return (
            Standing.TIED
            if all(rival.is_slower or rival.is_equivalent for rival in self.compared_rivals)
            else Standing.OPEN
        )

    @property
    def winner(self) -> str:
        """Name of the fastest case on the compared axis; empty if there is no winner."""
        won = self.standing is Standing.WON and self.fastest is not None
        return self.name_of(self.fastest) if won and self.fastest else ""

    @property
    def undecided(self) -> list[Rival]:
        """Compared rivals that may be as fast, nearest first."""
        return [rival for rival in self.compared_rivals if not rival.is_slower]

    @property
    def is_disturbed(self) -> bool:
        """True if the decision uses rounds in which other programs computed, equally for both sides."""
        return any(not rival.pairs.is_undisturbed for rival in self.compared_rivals)

    @property
    def min_lead(self) -> float:
        """Smallest possible lead over the compared rivals: the lowest end of their intervals."""
        return min((rival.interval[0] for rival in self.compared_rivals if rival.interval), default=1.0)

    @property
    def needs_rounds(self) -> bool:
        """True if more rounds may decide a lead that could exceed EQUIVALENCE."""
        return self.standing is Standing.OPEN and any(
            rival.interval is None or rival.interval[1] > 1 + EQUIVALENCE for rival in self.undecided
        )

    def name_of(self, contender: Contender) -> str:
        """Value of a case on the compared axis, such as its target."""
        value: str | int = getattr(contender.case, self.axis)
        return count_of(value, "thread") if isinstance(value, int) else value


def share_of(policy: Policy, rounds: int) -> float:
    """Share of the error that a decision after so many heats may spend, so that all looks keep the total.

    A run with a budget has no last heat, so its shares are an infinite series: (1 − FIRST_LOOK_SHARE)/(k(k
    + 1)) sum to 1 − FIRST_LOOK_SHARE over all k ≥ 1.
    """
    if policy.budget_s is None:
        return look_share(policy, rounds)
    extra_heats = rounds - policy.rounds
    return (
        FIRST_LOOK_SHARE if extra_heats <= 0 else (1 - FIRST_LOOK_SHARE) / (extra_heats * (extra_heats + 1))
    )


def contender(case: Case, records: Iterable[Record]) -> Contender | None:
    """The case with its measured processes; None if it failed, or its speed may not be ranked.

    An interrupted round counts as missing.
    """
    processes: dict[int, TimedProcess] = {}
    for record in records:
        outcome = record.outcome
        if isinstance(outcome, Measurement):
            if any(note.kind in UNRANKED for note in outcome.notes):
                return None
            if min(outcome.block_s, default=0.0) > 0:
                processes[record.round] = timed_process(outcome, record.part)
        elif outcome.status is not Status.INTERRUPTED:
            return None
    return Contender(case, processes) if processes else None


def work_key(case: Case, ignored: str = "") -> tuple[object, ...]:
    """Identity of a work. `ignored`: a parameter that may differ within a work."""
    fields = {"dtype": case.dtype, "phase": case.phase, "cache": case.cache, **case.params}
    fields.pop(ignored, None)
    world = case.placement.devices if case.placement.strategy is Strategy.COLLECTIVE else 1
    return case.suite, case.workload, world, *fields.items()


def claim_p(ps: Iterable[float]) -> float | None:
    """p of the claim that the best case of a work is the best; None without rivals.

    `ps`: two-sided p of each rival being as good. Every rival has to be significantly worse, so the largest p
    counts (intersection-union test, Berger 1982). It is two-sided because the leader is chosen from the data:
    of two equal cases, either is claimed with half the level, of more than two less often (compare Hsu 1984).
    """
    return max(ps, default=None)


def judge_works(works: Sequence[Sequence[Contender]], policy: Policy) -> list[WorkVerdict]:
    """Verdicts on the works of a run, in order, with a false discovery rate of ALPHA over all works.

    Within a work, the fastest case is named only if every compared rival is significantly slower,
    two-sided. Over works, ALPHA of the named winners are wrong, and if nothing differs, one is named with
    this probability (Benjamini & Hochberg 1995).
    """
    axis = _compared_axis(works)
    groups = [_split_leader(work) for work in works if work]
    rivals_by_group = iter(zip(groups, rivals_of(groups, policy), strict=True))
    verdicts = []
    for work in works:
        (fastest, _), rivals = next(rivals_by_group) if work else ((None, []), [])
        verdicts.append(WorkVerdict(fastest=fastest, rivals=tuple(rivals), axis=axis))
    claims = [claim_p([rival.p for rival in verdict.compared_rivals]) for verdict in verdicts]
    level = discovery_level([p for p in claims if p is not None], ALPHA)
    return [
        replace(verdict, rivals=tuple(replace(rival, level=level) for rival in verdict.rivals))
        for verdict in verdicts
    ]


def judge_records(records: Iterable[Record], policy: Policy) -> dict[tuple[object, ...], WorkVerdict]:
    """Verdict on each measured work, by `work_key`."""
    works: dict[tuple[object, ...], list[Contender]] = {}
    for case_records in records_by_case(records).values():
        if entry := contender(case_records[0].case, case_records):
            works.setdefault(work_key(entry.case), []).append(entry)
    return dict(zip(works, judge_works(list(works.values()), policy), strict=True))


def rivals_of(groups: Sequence[tuple[Contender, Sequence[Contender]]], policy: Policy) -> list[list[Rival]]:
    """Rivals of each group's reference, nearest first, with variances moderated over all groups."""
    rivals_by_group = [[_rival(reference, other, policy) for other in others] for reference, others in groups]
    engines = [
        frozenset((_engine_of(reference), _engine_of(other)))
        for reference, others in groups
        for other in others
    ]
    moderated = iter(
        _moderate_variances(
            [rival for rivals in rivals_by_group for rival in rivals],
            engines,
            [len(rivals) for rivals in rivals_by_group],
        )
    )
    return [
        sorted((next(moderated) for _ in rivals), key=lambda rival: rival.log_ratio)
        for rivals in rivals_by_group
    ]


def _engine_of(contender: Contender) -> tuple[object, ...]:
    """Engine of a case, independent of the work: target, mode, device and threads."""
    return tuple(getattr(contender.case, axis) for axis in COMPARED_AXES)


def _compared_axis(works: Iterable[Sequence[Contender]]) -> str:
    """First of COMPARED_AXES on which the cases of a work differ; empty if there is none."""
    values = [
        {axis: {getattr(contender.case, axis) for contender in work} for axis in COMPARED_AXES}
        for work in works
    ]
    return next(
        (axis for axis in COMPARED_AXES if any(len(axis_values[axis]) > 1 for axis_values in values)), ""
    )


def _split_leader(work: Sequence[Contender]) -> tuple[Contender, list[Contender]]:
    """Fastest case of a work, ahead of each other one by the pairs that count, and the other cases."""
    fastest = min(work, key=lambda other: (other.mean_log, other.case.id))
    for _ in work:
        ahead = min(work, key=lambda other: _log_ratio(fastest, other, _pairs(fastest, other)))
        if _log_ratio(fastest, ahead, _pairs(fastest, ahead)) >= 0:
            break
        fastest = ahead
    return fastest, [other for other in work if other is not fastest]


def _pairs(reference: Contender, other: Contender) -> FairPairs:
    return fair_pairs(reference.processes, other.processes)


def _log_ratio(reference: Contender, other: Contender, pairs: FairPairs) -> float:
    return mean(pairs.changes) if pairs.changes else other.mean_log - reference.mean_log


def _rival(reference: Contender, other: Contender, policy: Policy) -> Rival:
    pairs = _pairs(reference, other)
    rounds = len(reference.processes.keys() & other.processes.keys())
    several = len(pairs.changes) > 1
    return Rival(
        contender=other,
        pairs=pairs,
        log_ratio=_log_ratio(reference, other, pairs),
        rounds=rounds,
        error_share=share_of(policy, rounds),
        difference=paired([(0.0, change) for change in pairs.changes]) if several else None,
    )


def _moderate_variances(
    rivals: Sequence[Rival], engines: Sequence[Engines], sizes: Sequence[int]
) -> list[Rival]:
    """Rivals with variances moderated over all pairs of the run, and over those of the same two engines.

    `engines`: the two engines of each rival's pairs. `sizes`: numbers of rivals that share a reference.
    Disturbed pairs do not contribute to the typical variance; their own may be larger.
    """
    measured = [index for index, rival in enumerate(rivals) if rival.difference]
    undisturbed = [index for index in measured if rivals[index].pairs.is_undisturbed]
    typical = undisturbed if len(undisturbed) > 1 else measured
    differences = [difference for index in typical if (difference := rivals[index].difference)]
    if len(differences) < 2:
        return [_with_variance(rival, lambda *unchanged: unchanged, None) for rival in rivals]
    variances = [difference.variance for difference in differences]
    degrees = [difference.degrees for difference in differences]
    shared_pairs = sum(size * (size - 1) for size in sizes)
    correlation = SHARED_REFERENCE * shared_pairs / (len(differences) * (len(differences) - 1))
    prior = robust_prior(variances, degrees, min(correlation, 1.0))
    typical_engines = [engines[index] for index in typical]
    engine_variances = larger_variances(zip(typical_engines, differences, strict=True), prior.variance)
    moderated: Moderation = prior.moderate
    if are_clustered([rivals[index].pairs.changes for index in typical]):
        moderated = _at_least(mean([variances[index] for index in typical_indices(variances, degrees)]))
    return [
        _with_variance(rival, moderated, engine_variances.get(pair_engines))
        for rival, pair_engines in zip(rivals, engines, strict=True)
    ]


def _at_least(minimum: float) -> Moderation:
    return lambda variance, degrees: (max(variance, minimum), degrees)


def _with_variance(rival: Rival, moderate: Moderation, engine_variance: tuple[float, float] | None) -> Rival:
    """The rival with its moderated variance or, if larger, that of its two engines."""
    if rival.difference is None:
        return rival
    variance, degrees = moderate(rival.difference.variance, rival.difference.degrees)
    variance, degrees = max((variance, degrees), engine_variance or (variance, degrees))
    difference = rival.difference.with_variance(variance, degrees)
    if rival.pairs.took_turns:  # MIN_DEVIATION is known exactly: infinite degrees of freedom
        minimum = rival.difference.with_variance(MIN_DEVIATION**2, math.inf)
        confidence = 1 - ALPHA * rival.error_share
        difference = max(difference, minimum, key=lambda candidate: candidate.half_width(confidence))
    return replace(rival, difference=difference)
