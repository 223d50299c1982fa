"""Two runs compared: what changed in each case, beyond noise or not, and the operators behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from benchbench import format as fmt
from benchbench.analyse.digest import (
    DISTURBED,
    SETTLED,
    Digest,
    digest,
    run_bars,
    under_present_names,
    work_change,
)
from benchbench.analyse.drift import Drift
from benchbench.analyse.metrics import METRICS, Metric
from benchbench.errors import UsageError
from benchbench.judging.pairs import (
    Pair,
    are_interleaved,
    changes,
    match,
    match_partners,
    suspect,
)
from benchbench.judging.variance import (
    HOUR_S,
    allowing_for,
    at_least_the_mean,
    in_modes,
    of_two_sessions,
    shared_variance,
    visible_change,
)
from benchbench.model.options import Variance
from benchbench.model.profile import Profile
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Verdict
from benchbench.profiling.differences import difference
from benchbench.profiling.tables import OperatorTable, operator_table
from benchbench.reading import unix_time
from benchbench.stats import Difference, detectable, holm, mean, median, tost
from benchbench.store import artifacts

ALPHA = 0.05  # of all `slower` together and all `faster` together (Holm), and of each `same` (TOST)
THRESHOLD = 0.03  # smaller changes come from code alignment alone
LARGEST = 700.0  # beyond it a logarithm has no float
TOO_NOISY = "too noisy for this threshold: more rounds would tell"
HOURS_DIFFER = "sessions of this machine differ too much for this threshold: measure interleaved (--ab)"
ON_THE_EDGE = "the interval holds changes on both sides of the threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseComparison:
    """One case: `ref` and `new` are geometric means over processes, `ratio` is new / ref.

    `low` and `high` bound the ratio at 95 %, for this case alone. `p_holm` is that of a change in the
    direction seen, adjusted for all compared cases, and at least the case's own two-sided p. `mde`
    (0.02: 2 %) is the smallest change that such a pair calls slower or faster four times in five, all rules
    included.
    Absent values are None. `reason` says why there is no other verdict, or what is suspect.
    `stopped_by`: what ended the processes' sampling, `precision` if all went well. `operators`: those that a
    slower case owes it to, where profiles tell. `ref_unused`, `new_unused`: processes of further rounds that
    only one side got, which are not compared. `work`: how what is computed has changed.
    """

    case: str
    metric: str
    ref: float | None
    new: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p_holm: float | None
    verdict: Verdict
    mde: float | None
    ref_processes: int
    new_processes: int
    steady: bool
    stopped_by: tuple[str, ...]
    reason: str
    operators: tuple[str, ...] = ()
    ref_unused: int = 0
    new_unused: int = 0
    work: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`changes` between the runs do not bar comparing; `geomean` is of the ratios of `compared` cases.

    `common`: what nearly all of these have in common, which is the machine's rather than the code's.
    `drifts`: which side's steps changed while it ran, and how; the intervals allow for it.
    `modes`: the processes cluster, so no case is taken to vary less than all do in the mean.
    """

    ref: Run
    new: Run
    metric: Metric
    threshold: float
    changes: tuple[str, ...]
    verdicts: tuple[CaseComparison, ...]
    compared: int
    geomean: float | None
    common: CommonFactor | None = None
    interleaved: bool = False  # the runs are partners, and each round's processes a pair
    variance: Variance = Variance.SHARED
    modes: bool = False
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    apart: HoursApart | None = None


@dataclass(frozen=True, slots=True)
class BetweenSessions:
    """How much sessions of a machine differ in a case: the variance of one, as those of `days` tell it."""

    variance: float
    degrees: float
    days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursApart:
    """Two stored runs of different hours: what these differ by is in no process's spread.

    `spread`: the standard deviation between sessions of the machine, in the median of the `cases` whose
    intervals hold it, as sessions of `days` tell it, at least; None where no case has enough of them.
    """

    seconds: float
    spread: float | None = None
    cases: int = 0
    days: int = 0


def valid_threshold(value: float) -> float:
    """Raise UsageError for what is no fraction."""
    if not 0 < value < 1:
        raise UsageError(f"{value!r} is not between 0 and 1.", "Write three per cent, 3%, as 0.03.")
    return value


def compare_runs(
    ref: Run,
    new: Run,
    metric: Metric = METRICS[0],
    threshold: float = THRESHOLD,
    variance: Variance = Variance.SHARED,
    between: Mapping[str, BetweenSessions] = MappingProxyType({}),
) -> Comparison:
    """Verdicts on the cases of both runs; a `threshold` of 0.03 is 3%.

    Each process is one value: the logarithm of its median step (Kalibera & Jones 2013). Slower and faster
    need significance in Welch's t after Holm's adjustment, and an estimate that reaches the threshold; same
    needs the 90 % interval within it. Interleaved runs are compared by the differences of each
    round's pair. How much processes vary is judged over all cases, unless `variance` says of each alone.
    `between`: by case, how much sessions of the machine differ, which the intervals of runs of different
    hours hold. The evidence for this rule is in docs/comparing.md.
    """
    before, after = digest(ref), digest(new)
    partners = are_interleaved(before, after)
    if not partners:
        before, after = under_present_names((before, after))
    pairs = (match_partners if partners else match)(before, after, metric)
    groups = [group for pair in pairs if pair.verdict is None for group in pair.groups]
    modes = variance is Variance.SHARED and in_modes(groups)
    drifts = _drifts(before, after, metric)
    tested = _tested(pairs, variance, list(drifts.values()), modes=modes)
    apart_s = seconds_apart(before, after, metric)
    known = {case: between[case] for case in tested if case in between} if apart_s else {}
    alone = dict(tested)
    for case, each in known.items():
        tested[case] = of_two_sessions(tested[case], each.variance, each.degrees)
    by_hours = {case for case in known if tested[case].error > alone[case].error}
    p_holm = dict(zip(tested, _adjusted(list(tested.values())), strict=True))
    rule = _Rule(metric, threshold, min(ALPHA / 2, ALPHA / max(len(tested), 1)))
    moved = [difference.mid for difference in tested.values()]
    return Comparison(
        ref=ref,
        new=new,
        metric=metric,
        threshold=threshold,
        changes=(*changes(before, after), *(run_bars(before, after) if partners else ())),
        verdicts=tuple(
            _verdict(
                pair,
                tested.get(pair.case, pair.difference),
                p_holm.get(pair.case),
                rule,
                noise=HOURS_DIFFER if pair.case in by_hours else TOO_NOISY,
            )
            for pair in pairs
        ),
        compared=len(tested),
        geomean=_exp(mean(moved) if moved else None),
        common=None if partners else common_factor(moved, threshold),
        interleaved=partners,
        variance=variance,
        modes=modes,
        drifts=drifts,
        apart=_hours_apart(apart_s, list(known.values())) if apart_s else None,
    )


def seconds_apart(ref: Digest | RunInfo, new: Digest | RunInfo, metric: Metric) -> float:
    """How far apart two runs began; 0 of the same hour, interleaved ones, or a metric like memory."""
    if metric.name not in DISTURBED or ref.partner or new.partner:
        return 0.0
    with suppress(ValueError):  # a run that does not say when it began
        seconds = abs(unix_time(new.started) - unix_time(ref.started))
        return seconds if seconds >= HOUR_S else 0.0
    return 0.0


def _hours_apart(seconds: float, known: Sequence[BetweenSessions]) -> HoursApart:
    if not known:
        return HoursApart(seconds=seconds)
    spread = median([math.sqrt(each.variance) for each in known])
    return HoursApart(seconds=seconds, spread=spread, cases=len(known), days=min(each.days for each in known))


def _drifts(ref: Digest, new: Digest, metric: Metric) -> dict[str, Drift]:
    """The drift of each side that drifted; none where they are interleaved, or the metric is no step time."""
    if metric.name not in SETTLED or are_interleaved(ref, new):
        return {}
    sides = {"ref": ref.drift, "new": new.drift}
    return {name: found for name, found in sides.items() if found}


def _tested(
    pairs: Sequence[Pair], variance: Variance, drifts: Sequence[Drift], *, modes: bool
) -> dict[str, Difference]:
    """The difference of each case that is tested."""
    own = {p.case: p.difference for p in pairs if p.verdict is None and p.difference is not None}
    judged = list(own.values())
    if variance is not Variance.OWN:
        judged = (at_least_the_mean if modes else shared_variance)(judged)
    return dict(zip(own, allowing_for(drifts, judged), strict=True))


def _adjusted(differences: Sequence[Difference]) -> list[float]:
    """Holm's p of each difference in its direction, and not below its two-sided p.

    So no interval of a slower or faster case holds 1, however few cases are compared.
    """
    above = holm([difference.p_above() for difference in differences])
    below = holm([difference.p_below() for difference in differences])
    return [max(one.p_either(), min(tails)) for one, *tails in zip(differences, above, below, strict=True)]


@dataclass(frozen=True, slots=True)
class _Rule:
    metric: Metric
    threshold: float
    level: float  # one-sided, that the most significant case has to reach

    @property
    def margin(self) -> float:
        """The threshold as a logarithm."""
        return math.log1p(self.threshold)

    def visible(self, difference: Difference) -> float:
        """The smallest change called slower four times in five, as a fraction."""
        log = visible_change(self.margin, difference.error, difference.degrees, (self.level,))
        return math.expm1(min(log, LARGEST))

    def blind(self, difference: Difference) -> bool:
        """Whether a change of the threshold's size would seldom be significant."""
        return detectable(difference, self.level) > self.margin

    def judge(self, difference: Difference, p_holm: float) -> Verdict:
        """Slower and faster are symmetric in the logarithm: swapping the runs swaps them."""
        if p_holm < ALPHA and abs(difference.mid) >= self.margin:
            worse = (difference.mid > 0) == (self.metric.better == "lower")
            return Verdict.SLOWER if worse else Verdict.FASTER
        return Verdict.SAME if tost(difference, self.margin) < ALPHA else Verdict.INCONCLUSIVE


def _verdict(
    pair: Pair, difference: Difference | None, p_holm: float | None, rule: _Rule, *, noise: str
) -> CaseComparison:
    """`noise`: why the difference is not known well enough, if it is not."""
    middle = pair.log_ratio
    half = difference.half_width() if difference else None
    verdict, reason = pair.verdict, pair.reason
    if verdict is None:
        assert difference is not None
        assert p_holm is not None
        verdict = rule.judge(difference, p_holm)
        reason = _reason(verdict, pair, noise if rule.blind(difference) else ON_THE_EDGE)
    return CaseComparison(
        case=pair.case,
        metric=rule.metric.name,
        ref=_exp(mean(pair.ref_logs) if pair.ref_logs else None),
        new=_exp(mean(pair.new_logs) if pair.new_logs else None),
        ratio=_exp(middle),
        low=_exp(middle, None if half is None else -half),
        high=_exp(middle, half),
        p_holm=p_holm,
        verdict=verdict,
        mde=rule.visible(difference) if difference else None,
        ref_processes=len(pair.ref_logs),
        new_processes=len(pair.new_logs),
        steady=not pair.ref.unsteady + pair.new.unsteady,
        stopped_by=tuple(sorted({*pair.ref.stopped_by, *pair.new.stopped_by})),
        reason=reason,
        ref_unused=pair.unused[0],
        new_unused=pair.unused[1],
        work="" if verdict is Verdict.INCOMPARABLE else work_change(pair.ref, pair.new),
    )


def _reason(verdict: Verdict, pair: Pair, inconclusive: str) -> str:
    if verdict in (Verdict.SLOWER, Verdict.FASTER):
        return suspect(pair.ref, pair.new)
    return inconclusive if verdict is Verdict.INCONCLUSIVE else ""


def _exp(log: float | None, more: float | None = 0.0) -> float | None:
    """exp(log + more), None where either is."""
    if log is None or more is None:
        return None
    return math.exp(max(-LARGEST, min(LARGEST, log + more)))


MOST = 3  # operators named; `accelbench profile REF NEW` has all


def with_operators(comparison: Comparison, ref: Path, new: Path) -> Comparison:
    """`comparison`, whose slower cases name the operators that take longer now, the most seconds first.

    `ref`, `new`: the folders of the runs. Only what a step takes is made of operators: other metrics are
    left as they are.
    """
    slower = any(compared.verdict is Verdict.SLOWER for compared in comparison.verdicts)
    if comparison.metric.name not in SETTLED or not slower:
        return comparison
    before, after = _tables(ref), _tables(new)
    verdicts = tuple(
        replace(compared, operators=_longer(before[compared.case], after[compared.case]))
        if compared.verdict is Verdict.SLOWER and compared.case in before and compared.case in after
        else compared
        for compared in comparison.verdicts
    )
    return replace(comparison, verdicts=verdicts)


def _tables(run: Path) -> dict[str, OperatorTable]:
    profiles, _ = artifacts.read_profiles(run)
    made = (
        operator_table(profile, profile.outcome, None)
        for profile in profiles
        if isinstance(profile.outcome, Profile)
    )
    return {operators.case: operators for operators in made}


def _longer(ref: OperatorTable, new: OperatorTable) -> tuple[str, ...]:
    changes = [change for change in difference(ref, new).changes if change.change_s > 0]
    return tuple(f"{change.name} +{fmt.seconds(change.change_s)}" for change in changes[:MOST])


LEAST_CASES = 5  # fewer may well have the code in common that changed
SHARE = 0.8  # of the cases


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFactor:
    """`ratio`: the median of new / ref over `cases`; `moving`: those that moved that way by half of it."""

    ratio: float
    cases: int
    moving: int


def common_factor(log_ratios: Sequence[float], threshold: float) -> CommonFactor | None:
    """What nearly all cases have in common, if it is `threshold` (0.03: 3 %) or more; log(new / ref) of each.

    The median does not follow a few cases that changed by themselves.
    """
    if len(log_ratios) < LEAST_CASES:
        return None
    middle = median(log_ratios)
    moving = sum(each / middle >= 0.5 for each in log_ratios) if middle else 0
    if abs(middle) < math.log1p(threshold) or moving < SHARE * len(log_ratios):
        return None
    return CommonFactor(ratio=math.exp(middle), cases=len(log_ratios), moving=moving)
