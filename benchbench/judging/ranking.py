"""Who is fastest in each work of a run, by how much, and whether that can be told. Pure.

Cases are compared by the processes of the same round, which met the same minutes. docs/measuring.md has the
evidence for the rule, studies/ranking.py makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from benchbench.analyse.doubts import FairPairs, Timed, fair_pairs, timed
from benchbench.analyse.rows import by_case
from benchbench.format import count_of
from benchbench.judging.variance import in_modes, larger_variances
from benchbench.model.case import Case
from benchbench.model.measurement import Measurement
from benchbench.model.note import UNRANKED
from benchbench.model.placement import Strategy
from benchbench.model.record import Record
from benchbench.model.run import Policy
from benchbench.model.status import Status
from benchbench.stats import (
    Difference,
    calm_ones,
    calm_prior,
    discovery_level,
    mean,
    paired,
    t_quantile,
    tost,
)
from benchbench.timing.policy import look_share

ERROR = 0.05  # of the winners that are named, those that are wrong; of runs in which nothing differs, any
ALIKE = 0.05  # cases that differ by less are as fast as each other: code alignment alone makes 3 %
# Standard deviation of a logarithm of a ratio, between heats: processes that happen to agree in three do not
# tell how much they differ otherwise.
LEAST_SPREAD = 0.035
FIRST_LOOK = 0.75  # of the error, spent on the first heats of a budget
SHARED_SIDE = 0.25  # ρ² of the variances of two pairs that have the reference in common: of ρ = 1/2
MOST_ROUNDS = 200  # that would tell two cases apart: nobody waits for more
LARGEST = 700.0  # beyond it a logarithm has no float
THREADS = "threads"
KINDS = ("target", "mode", "device", THREADS)  # the first of which a run has several of is what it compares

Engines = frozenset[tuple[object, ...]]  # of a pair
Moderation = Callable[[float, float], tuple[float, float]]  # of a variance and its degrees of freedom


class Standing(StrEnum):
    """What can be said of a work."""

    WON = "won"  # one is fastest
    TIED = "tied"  # those in front are as fast as each other, within ALIKE
    OPEN = "open"  # another may be as fast
    ALONE = "alone"  # nothing is compared
    NONE = "none"  # nothing has a speed


@dataclass(frozen=True, slots=True)
class Contender:
    """A case with its processes, by round."""

    case: Case
    processes: Mapping[int, Timed] = field(hash=False)

    @property
    def log(self) -> float:
        """The mean logarithm of its steps, of rounds that others left alone if there are any."""
        alone = [each.log for each in self.processes.values() if each.doubt.undisturbed]
        return mean(alone or [each.log for each in self.processes.values()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A case beside the reference of its work: log(rival / reference) with its error, over `rounds` of both.

    `share`: of the error that may be spent after so many rounds. `difference` is None where fewer than two
    rounds count. `level`: below which a p decides, over all works.
    """

    contender: Contender
    pairs: FairPairs
    log_ratio: float
    rounds: int
    share: float
    difference: Difference | None
    level: float = ERROR

    @property
    def p(self) -> float:
        """That the rival is as fast, two-sided and whatever the doubts explain; 1 where that is not known."""
        return self._p_beyond(self.pairs.other_excess)

    def _p_beyond(self, excess: float) -> float:
        if self.difference is None:
            return 1.0
        return min(1.0, 2 * self.difference.p_above(excess) / self.share)

    @property
    def slower(self) -> bool:
        """Whether it is told apart from the reference."""
        return self.p <= self.level

    @property
    def faster(self) -> bool:
        """Whether it is told to be faster than a reference that is not the fastest."""
        excess = self.pairs.reference_excess
        if self.difference is None:
            return False
        return 2 * self.difference.p_below(-excess) / self.share <= self.level

    @property
    def is_doubted(self) -> bool:
        """Whether it would be told apart, or only seems slower, were it not for others or warming up."""
        explained = 0 < self.log_ratio <= self.pairs.other_excess
        return not self.slower and (explained or self._p_beyond(0.0) <= self.level)

    @property
    def alike(self) -> bool:
        """Whether the two are as fast as each other, within ALIKE and whatever the doubts explain (TOST)."""
        margin = math.log1p(ALIKE) - max(self.pairs.other_excess, self.pairs.reference_excess)
        if self.difference is None or margin <= 0:
            return False
        return tost(self.difference, margin) <= ERROR * self.share

    @property
    def ratio(self) -> float:
        """Its time over the reference's."""
        return _exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the ratio, at the level of the decision: 1 is outside where it is told apart."""
        if self.difference is None:
            return None
        half = self.difference.half_width(1 - self.level * self.share)
        low = self.difference.mid - half - self.pairs.other_excess
        return _exp(low), _exp(self.difference.mid + half + self.pairs.reference_excess)

    def rounds_to_tell(self, policy: Policy) -> int | None:
        """How many rounds in all would tell it apart, if it is as much slower as it seems; None: too many."""
        if self.difference is None or self.log_ratio <= self.pairs.other_excess:
            return None
        lead, spread = self.log_ratio - self.pairs.other_excess, math.sqrt(self.difference.variance)
        for rounds in range(self.rounds + 1, MOST_ROUNDS):
            level = self.level * share_of(policy, rounds)
            if lead * math.sqrt(rounds) >= spread * t_quantile(1 - level / 2, self.difference.degrees):
                return rounds
        return None


@dataclass(frozen=True, kw_only=True)
class WorkVerdict:
    """Who is fastest in a work. `rivals`: the other cases, nearest first; `kind`: what is compared."""

    fastest: Contender | None
    rivals: tuple[Rival, ...]
    kind: str

    @property
    def others(self) -> list[Rival]:
        """Rivals that differ from the fastest in what is compared."""
        if not self.kind or self.fastest is None:
            return []
        own = self.name(self.fastest)
        return [each for each in self.rivals if self.name(each.contender) != own]

    @cached_property
    def standing(self) -> Standing:
        """What can be said."""
        if self.fastest is None:
            return Standing.NONE
        if not self.others:
            return Standing.ALONE
        if all(each.slower for each in self.others):
            return Standing.WON
        return Standing.TIED if all(each.slower or each.alike for each in self.others) else Standing.OPEN

    @property
    def winner(self) -> str:
        """The name of the fastest; empty where nobody is told to be fastest."""
        won = self.standing is Standing.WON and self.fastest is not None
        return self.name(self.fastest) if won and self.fastest else ""

    @property
    def undecided(self) -> list[Rival]:
        """Those of `others` that may be as fast, nearest first."""
        return [each for each in self.others if not each.slower]

    @property
    def disturbed(self) -> bool:
        """Whether rounds decide in which others computed, too: the same on both sides."""
        return any(not each.pairs.undisturbed for each in self.others)

    @property
    def least_lead(self) -> float:
        """The lead over the nearest of `others`, at least: the least of the lower ends of their intervals."""
        return min((each.interval[0] for each in self.others if each.interval), default=1.0)

    @property
    def wants_rounds(self) -> bool:
        """Whether further rounds may tell a lead that matters: one that may exceed ALIKE."""
        return self.standing is Standing.OPEN and any(
            each.interval is None or each.interval[1] > 1 + ALIKE for each in self.undecided
        )

    def name(self, contender: Contender) -> str:
        """What is compared of a case, such as its target."""
        value: str | int = getattr(contender.case, self.kind)
        return count_of(value, "thread") if isinstance(value, int) else value


def share_of(policy: Policy, rounds: int) -> float:
    """Share of the error that a decision after so many heats may spend: all looks together keep the error.

    A budget has no last heat, so the shares of its looks are added up: (1 − FIRST_LOOK)/(k(k + 1)) sum to
    1 − FIRST_LOOK over all k ≥ 1.
    """
    if policy.budget_s is None:
        return look_share(policy, rounds)
    further = rounds - policy.rounds
    return FIRST_LOOK if further <= 0 else (1 - FIRST_LOOK) / (further * (further + 1))


def contender(case: Case, records: Iterable[Record]) -> Contender | None:
    """The case with what was measured of it; None where it failed, or its speed says nothing beside others'.

    A round that was cut short counts as missing.
    """
    processes: dict[int, Timed] = {}
    for record in records:
        outcome = record.outcome
        if isinstance(outcome, Measurement):
            if any(note.kind in UNRANKED for note in outcome.notes):
                return None
            if min(outcome.block_s, default=0.0) > 0:
                processes[record.round] = timed(outcome, record.part)
        elif outcome.status is not Status.INTERRUPTED:
            return None
    return Contender(case, processes) if processes else None


def work_key(case: Case, by: str = "") -> tuple[object, ...]:
    """What is computed, whoever computes it; `by`: an axis that tells no work from another."""
    own = {"dtype": case.dtype, "phase": case.phase, "cache": case.cache, **case.params}
    own.pop(by, None)
    world = case.placement.devices if case.placement.strategy is Strategy.COLLECTIVE else 1
    return case.suite, case.workload, world, *own.items()


def claim_p(ps: Iterable[float]) -> float | None:
    """That the best of a work is not the best, by how likely each other is as good, two-sided; None alone.

    Each of the others has to be told from it, so the largest p counts (intersection-union test, Berger 1982).
    Two-sided, since whoever happens to be ahead is tested: of two that are equal, either is claimed with half
    the level, and of more than two less often (compare Hsu 1984).
    """
    return max(ps, default=None)


def judge_works(works: Sequence[Sequence[Contender]], policy: Policy) -> list[WorkVerdict]:
    """A verdict for each work of a run, over all works together.

    Within a work the fastest is named only if each case that differs from it in what is compared is told
    from it, two-sided: of two that are equal, either is named in half of ERROR. Over works, of those that are
    named ERROR are wrong, and where nothing differs one is named with that probability (Benjamini & Hochberg
    1995).
    """
    kind = _compared_kind(works)
    led = [_led(work) for work in works if work]
    judged = iter(zip(led, rivals_of(led, policy), strict=True))
    found = []
    for work in works:
        (fastest, _), rivals = next(judged) if work else ((None, []), [])
        found.append(WorkVerdict(fastest=fastest, rivals=tuple(rivals), kind=kind))
    claims = [claim_p([each.p for each in one.others]) for one in found]
    level = discovery_level([p for p in claims if p is not None], ERROR)
    return [replace(one, rivals=tuple(replace(each, level=level) for each in one.rivals)) for one in found]


def judge_records(records: Iterable[Record], policy: Policy) -> dict[tuple[object, ...], WorkVerdict]:
    """A verdict for each work that was measured, by `work_key`."""
    works: dict[tuple[object, ...], list[Contender]] = {}
    for own in by_case(records).values():
        if made := contender(own[0].case, own):
            works.setdefault(work_key(made.case), []).append(made)
    return dict(zip(works, judge_works(list(works.values()), policy), strict=True))


def rivals_of(groups: Sequence[tuple[Contender, Sequence[Contender]]], policy: Policy) -> list[list[Rival]]:
    """The rivals of each group's reference, nearest first, with a variance that all groups tell."""
    made = [[_rival(reference, other, policy) for other in others] for reference, others in groups]
    engines = [
        frozenset((_engine(reference), _engine(other))) for reference, others in groups for other in others
    ]
    judged = iter(
        _shrunk([rival for rivals in made for rival in rivals], engines, [len(rivals) for rivals in made])
    )
    return [sorted((next(judged) for _ in rivals), key=lambda each: each.log_ratio) for rivals in made]


def _engine(contender: Contender) -> tuple[object, ...]:
    """Identity of the engine in any work: the target with its mode, device and threads."""
    return tuple(getattr(contender.case, kind) for kind in KINDS)


def _compared_kind(works: Iterable[Sequence[Contender]]) -> str:
    """The first of KINDS that cases of one work differ in; empty where none does."""
    values = [{kind: {getattr(each.case, kind) for each in work} for kind in KINDS} for work in works]
    return next((kind for kind in KINDS if any(len(own[kind]) > 1 for own in values)), "")


def _led(work: Sequence[Contender]) -> tuple[Contender, list[Contender]]:
    """The fastest of a work and the others: it is ahead of each by the pairs that count."""
    fastest = min(work, key=lambda each: (each.log, each.case.id))
    for _ in work:
        ahead = min(work, key=lambda each: _log_ratio(fastest, each, _pairs(fastest, each)))
        if _log_ratio(fastest, ahead, _pairs(fastest, ahead)) >= 0:
            break
        fastest = ahead
    return fastest, [each for each in work if each is not fastest]


def _pairs(reference: Contender, other: Contender) -> FairPairs:
    return fair_pairs(reference.processes, other.processes)


def _log_ratio(reference: Contender, other: Contender, pairs: FairPairs) -> float:
    return mean(pairs.changes) if pairs.changes else other.log - reference.log


def _rival(reference: Contender, other: Contender, policy: Policy) -> Rival:
    pairs = _pairs(reference, other)
    rounds = len(reference.processes.keys() & other.processes.keys())
    several = len(pairs.changes) > 1
    return Rival(
        contender=other,
        pairs=pairs,
        log_ratio=_log_ratio(reference, other, pairs),
        rounds=rounds,
        share=share_of(policy, rounds),
        difference=paired([(0.0, change) for change in pairs.changes]) if several else None,
    )


def _shrunk(rivals: Sequence[Rival], engines: Sequence[Engines], sizes: Sequence[int]) -> list[Rival]:
    """Rivals with the variance that all pairs of the run, and all pairs of the same two engines, tell.

    `engines`: the two engines of each rival's pairs. `sizes`: numbers of rivals that share a reference. Pairs
    that others disturbed tell nothing of the rest; theirs may be larger.
    """
    measured = [index for index, rival in enumerate(rivals) if rival.difference]
    undisturbed = [index for index in measured if rivals[index].pairs.undisturbed]
    telling = undisturbed if len(undisturbed) > 1 else measured
    known = [difference for index in telling if (difference := rivals[index].difference)]
    if len(known) < 2:
        return [_with_variance(rival, lambda *own: own, None) for rival in rivals]
    variances, degrees = [each.variance for each in known], [each.degrees for each in known]
    alike = SHARED_SIDE * sum(size * (size - 1) for size in sizes) / (len(known) * (len(known) - 1))
    prior = calm_prior(variances, degrees, min(alike, 1.0))
    pairs = [engines[index] for index in telling]
    least = larger_variances(zip(pairs, known, strict=True), prior.variance)
    moderated: Moderation = prior.shrunk
    if in_modes([rivals[index].pairs.changes for index in telling]):
        moderated = _at_least(mean([variances[each] for each in calm_ones(variances, degrees)]))
    return [
        _with_variance(rival, moderated, least.get(own)) for rival, own in zip(rivals, engines, strict=True)
    ]


def _at_least(typical: float) -> Moderation:
    return lambda variance, degrees: (max(variance, typical), degrees)


def _with_variance(rival: Rival, moderated: Moderation, least: tuple[float, float] | None) -> Rival:
    """The rival with its moderated variance or, if larger, that of its two engines."""
    if rival.difference is None:
        return rival
    variance, degrees = moderated(rival.difference.variance, rival.difference.degrees)
    variance, degrees = max((variance, degrees), least or (variance, degrees))
    difference = rival.difference.with_variance(variance, degrees)
    if rival.pairs.alternated:  # the least spread is known, so it has no degrees of freedom to lack
        known = rival.difference.with_variance(LEAST_SPREAD**2, math.inf)
        confidence = 1 - ERROR * rival.share
        difference = max(difference, known, key=lambda either: either.half_width(confidence))
    return replace(rival, difference=difference)


def _exp(log: float) -> float:
    return math.exp(max(-LARGEST, min(LARGEST, log)))
