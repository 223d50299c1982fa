"""Comparison of two runs: the verdict on each case, the operators that explain slower ones, and claims."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from benchbench import format as fmt
from benchbench.analyse.digest import (
    CONTENDED_METRICS,
    STEADY_METRICS,
    Digest,
    digest,
    run_mismatches,
    work_change,
)
from benchbench.analyse.doubts import Drift
from benchbench.analyse.metrics import LATENCY, Metric
from benchbench.errors import UsageError
from benchbench.judging.pairs import (
    Pair,
    are_interleaved,
    match_partners,
    match_runs,
    run_changes,
    version_suspect,
)
from benchbench.judging.variance import (
    HOUR_S,
    add_drifts,
    add_session_variance,
    are_clustered,
    at_least_the_mean,
    detectable_change,
    shared_variance,
)
from benchbench.model.case import Verdict
from benchbench.model.function import Agreement
from benchbench.model.profile import Profile
from benchbench.model.run import Run, RunInfo
from benchbench.profiling import OperatorTable, difference, operator_table
from benchbench.reading import unix_time
from benchbench.stats import MAX_LOG, Difference, bounded_exp, detectable, holm, mean, median, tost
from benchbench.store import artifacts

ALPHA = 0.05  # error of all `slower` together and all `faster` together (Holm), and of each `same` (TOST)
THRESHOLD = 0.03  # smaller changes come from code alignment alone
TOO_NOISY = "too noisy for this threshold: more rounds would decide"
NOISY_SESSIONS = "sessions of this machine differ too much for this threshold: measure interleaved (--ab)"
ON_THE_EDGE = "the interval holds changes on both sides of the threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseComparison:
    """Comparison of one case. `ref`, `new`: geometric means over processes; `ratio`: new / ref.

    `low` and `high` bound the ratio at 95 %, for this case alone. `p_holm`: p of a change in the observed
    direction, adjusted for all compared cases, and at least the case's own two-sided p. `mde` (0.02: 2 %):
    the smallest change that such a pair calls slower or faster four times in five, with all rules applied.
    Absent values are None. `reason`: explanation of an undecided verdict, or the suspected cause of a change.
    `stopped_by`: why the sampling of processes ended, `precision` in the normal case. `operators`: operators
    that explain a slower case, if there are profiles. `ref_unused`, `new_unused`: number of processes that
    are not compared, because only one side has these rounds. `work`: how the computation has changed.
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
    """Comparison of two runs. `geomean`: geometric mean of the ratios of the `compared` cases.

    `changes`: differences between the runs that do not prevent a comparison. `common`: change of nearly all
    cases, which is the machine's rather than the code's. `drifts`: drift of each side that drifted; the
    intervals include it. `modes`: the processes are clustered, so every case has at least the mean
    variance. `apart`: time between runs of different hours. `interleaved`: the processes of each round are
    a pair.
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
    modes: bool = False
    drifts: Mapping[str, Drift] = field(default_factory=dict)
    apart: SessionGap | None = None


@dataclass(frozen=True, slots=True)
class SessionSpread:
    """Variance between sessions of a machine in one case, estimated from sessions of `days` days."""

    variance: float
    degrees: float
    days: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionGap:
    """Time between two stored runs of different hours, a source of variance that processes do not show.

    `spread`: standard deviation between sessions of the machine, as the median of the `cases` whose intervals
    include it; None if no case has enough sessions. `days`: the smallest number of days with sessions.
    """

    seconds: float
    spread: float | None = None
    cases: int = 0
    days: int = 0


def valid_threshold(value: float) -> float:
    """The value, if it is a fraction between 0 and 1. Raises UsageError otherwise."""
    if not 0 < value < 1:
        raise UsageError(f"{value!r} is not between 0 and 1.", "Write three per cent, 3%, as 0.03.")
    return value


def compare_runs(
    ref: Run,
    new: Run,
    metric: Metric = LATENCY,
    threshold: float = THRESHOLD,
    between: Mapping[str, SessionSpread] = MappingProxyType({}),
) -> Comparison:
    """Compare the cases of two runs; a `threshold` of 0.03 is 3 %.

    Each process is one value: the logarithm of its median step (Kalibera & Jones 2013). Slower and faster
    need a significant Welch's t after Holm's adjustment, and an estimate that reaches the threshold; same
    needs the 90 % interval within it. Interleaved runs are compared by the differences of each round's pair.
    `between`: variance between sessions by case, which the intervals of runs of different hours include.
    docs/comparing.md has the evidence for this rule.
    """
    before, after = digest(ref), digest(new)
    partners = are_interleaved(before, after)
    pairs = (match_partners if partners else match_runs)(before, after, metric)
    modes = are_clustered(group for pair in pairs if pair.verdict is None for group in pair.groups)
    drifts = _drifts(before, after, metric)
    tested = _tested_differences(pairs, list(drifts.values()), modes=modes)
    gap_s = seconds_apart(before, after, metric)
    spreads = {case: between[case] for case in tested if case in between} if gap_s else {}
    process_differences = dict(tested)
    for case, spread in spreads.items():
        tested[case] = add_session_variance(tested[case], spread.variance, spread.degrees)
    session_limited = {case for case in spreads if tested[case].error > process_differences[case].error}
    p_holm = dict(zip(tested, adjusted_p(list(tested.values())), strict=True))
    rule = _Rule(metric, threshold, min(ALPHA / 2, ALPHA / max(len(tested), 1)))
    log_changes = [difference.mid for difference in tested.values()]
    return Comparison(
        ref=ref,
        new=new,
        metric=metric,
        threshold=threshold,
        changes=(*run_changes(before, after), *(run_mismatches(before, after) if partners else ())),
        verdicts=tuple(
            _case_comparison(
                pair,
                tested.get(pair.case, pair.difference),
                p_holm.get(pair.case),
                rule,
                noise=NOISY_SESSIONS if pair.case in session_limited else TOO_NOISY,
            )
            for pair in pairs
        ),
        compared=len(tested),
        geomean=_exp(mean(log_changes) if log_changes else None),
        common=None if partners else common_factor(log_changes, threshold),
        interleaved=partners,
        modes=modes,
        drifts=drifts,
        apart=_session_gap(gap_s, list(spreads.values())) if gap_s else None,
    )


def seconds_apart(ref: Digest | RunInfo, new: Digest | RunInfo, metric: Metric) -> float:
    """Time between the starts of two runs in seconds; 0 if the hour cannot matter.

    That is the case within an hour, for interleaved runs, and for metrics like memory.
    """
    if metric.name not in CONTENDED_METRICS or ref.partner or new.partner:
        return 0.0
    with suppress(ValueError):  # a run that does not say when it began
        seconds = abs(unix_time(new.started) - unix_time(ref.started))
        return seconds if seconds >= HOUR_S else 0.0
    return 0.0


def _session_gap(seconds: float, spreads: Sequence[SessionSpread]) -> SessionGap:
    if not spreads:
        return SessionGap(seconds=seconds)
    spread = median([math.sqrt(spread.variance) for spread in spreads])
    return SessionGap(
        seconds=seconds, spread=spread, cases=len(spreads), days=min(spread.days for spread in spreads)
    )


def _drifts(ref: Digest, new: Digest, metric: Metric) -> dict[str, Drift]:
    """Drift of each side that drifted; empty for interleaved runs, and for metrics other than step times."""
    if metric.name not in STEADY_METRICS or are_interleaved(ref, new):
        return {}
    sides = {"ref": ref.drift, "new": new.drift}
    return {name: side_drift for name, side_drift in sides.items() if side_drift}


def _tested_differences(
    pairs: Sequence[Pair], drifts: Sequence[Drift], *, modes: bool
) -> dict[str, Difference]:
    """Difference of each case that is tested."""
    differences = {p.case: p.difference for p in pairs if p.verdict is None and p.difference is not None}
    moderated = (at_least_the_mean if modes else shared_variance)(list(differences.values()))
    return dict(zip(differences, add_drifts(drifts, moderated), strict=True))


def adjusted_p(differences: Sequence[Difference], min_family: int = 1, untested: int = 0) -> list[float]:
    """Holm's p of each difference in its direction, at least its two-sided p.

    So the interval of a slower or faster case never contains 1, even if few cases are compared. `untested`:
    number of further tests of the family, which count as p = 1. `min_family`: as for `stats.holm`.
    """
    further = [1.0] * untested
    above = holm([difference.p_above() for difference in differences] + further, min_family)
    below = holm([difference.p_below() for difference in differences] + further, min_family)
    return [
        max(difference.p_either(), min(tails))
        for difference, *tails in zip(differences, above, below, strict=False)
    ]


@dataclass(frozen=True, slots=True)
class _Rule:
    metric: Metric
    threshold: float
    level: float  # one-sided, that the most significant case has to reach

    @property
    def margin(self) -> float:
        """Threshold as a logarithm."""
        return math.log1p(self.threshold)

    def detectable(self, difference: Difference) -> float:
        """Smallest change that is called slower four times in five, as a fraction."""
        log = detectable_change(self.margin, difference.error, difference.degrees, (self.level,))
        return math.expm1(min(log, MAX_LOG))


def judge(difference: Difference, p_holm: float, margin: float, better: str) -> Verdict:
    """Verdict of a test. It is symmetric in the logarithm: swapping the runs swaps slower and faster.

    `margin`: the threshold as a logarithm. `better`: `lower` or `higher`.
    """
    if p_holm < ALPHA and abs(difference.mid) >= margin:
        return Verdict.SLOWER if (difference.mid > 0) == (better == "lower") else Verdict.FASTER
    return Verdict.SAME if tost(difference, margin) < ALPHA else Verdict.INCONCLUSIVE


def undecided_reason(difference: Difference, margin: float, level: float, noise: str) -> str:
    """Reason of an inconclusive verdict: `noise` if a change of the margin would seldom be significant."""
    return noise if detectable(difference, level) > margin else ON_THE_EDGE


def _case_comparison(
    pair: Pair, difference: Difference | None, p_holm: float | None, rule: _Rule, *, noise: str
) -> CaseComparison:
    """Comparison of one case. `noise`: the reason to give if the error is too large for a verdict."""
    log_ratio = pair.log_ratio
    half_width = difference.half_width() if difference else None
    verdict, reason = pair.verdict, pair.reason
    if verdict is None:
        assert difference is not None
        assert p_holm is not None
        verdict = judge(difference, p_holm, rule.margin, rule.metric.better)
        reason = _reason(verdict, pair, undecided_reason(difference, rule.margin, rule.level, noise))
    return CaseComparison(
        case=pair.case,
        metric=rule.metric.name,
        ref=_exp(mean(pair.ref_logs) if pair.ref_logs else None),
        new=_exp(mean(pair.new_logs) if pair.new_logs else None),
        ratio=_exp(log_ratio),
        low=_exp(log_ratio, None if half_width is None else -half_width),
        high=_exp(log_ratio, half_width),
        p_holm=p_holm,
        verdict=verdict,
        mde=rule.detectable(difference) if difference else None,
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
        return version_suspect(pair.ref, pair.new)
    return inconclusive if verdict is Verdict.INCONCLUSIVE else ""


def _exp(log: float | None, offset: float | None = 0.0) -> float | None:
    """exp(log + offset), or None if either is None."""
    if log is None or offset is None:
        return None
    return bounded_exp(log + offset)


MAX_OPERATORS = 3  # operators named; `accelbench profile REF NEW` lists all


def with_operators(comparison: Comparison, ref: Path, new: Path) -> Comparison:
    """The comparison with the operators that explain its slower cases, largest increase first.

    `ref`, `new`: folders of the runs. Only the step time consists of operators; comparisons of other metrics
    are returned unchanged.
    """
    slower = any(compared.verdict is Verdict.SLOWER for compared in comparison.verdicts)
    if comparison.metric.name not in STEADY_METRICS or not slower:
        return comparison
    before, after = _tables(ref), _tables(new)
    verdicts = tuple(
        replace(compared, operators=_slower_operators(before[compared.case], after[compared.case]))
        if compared.verdict is Verdict.SLOWER and compared.case in before and compared.case in after
        else compared
        for compared in comparison.verdicts
    )
    return replace(comparison, verdicts=verdicts)


def _tables(run: Path) -> dict[str, OperatorTable]:
    profiles, _ = artifacts.read_profiles(run)
    tables = (
        operator_table(profile, profile.outcome, None)
        for profile in profiles
        if isinstance(profile.outcome, Profile)
    )
    return {table.case: table for table in tables}


def _slower_operators(ref: OperatorTable, new: OperatorTable) -> tuple[str, ...]:
    changes = [change for change in difference(ref, new).changes if change.change_s > 0]
    return tuple(f"{change.name} +{fmt.seconds(change.change_s)}" for change in changes[:MAX_OPERATORS])


MIN_CASES = 5  # fewer cases may well share the code that changed
MIN_SHARE = 0.8  # of the cases


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFactor:
    """Change that cases have in common.

    `ratio`: median of new / ref over `cases`. `moving`: number of cases that changed in this direction by at
    least half of it.
    """

    ratio: float
    cases: int
    moving: int


def common_factor(log_ratios: Sequence[float], threshold: float) -> CommonFactor | None:
    """Change that nearly all cases have in common; None if it is below `threshold` (0.03: 3 %).

    `log_ratios`: log(new / ref) of each case. The median does not follow a few cases that changed by
    themselves.
    """
    if len(log_ratios) < MIN_CASES:
        return None
    common = median(log_ratios)
    moving = sum(log_ratio / common >= 0.5 for log_ratio in log_ratios) if common else 0
    if abs(common) < math.log1p(threshold) or moving < MIN_SHARE * len(log_ratios):
        return None
    return CommonFactor(ratio=math.exp(common), cases=len(log_ratios), moving=moving)


MARGIN = 0.05  # a speed-up that misses the claim by less is confirmed: code alignment alone makes 3 %


class ClaimVerdict(StrEnum):
    """Verdict on a claimed speed-up."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that `new` of the comparison is `speedup` times as fast as `ref`, and the evidence."""

    speedup: float
    agreement: Agreement
    comparison: Comparison

    @property
    def measured(self) -> CaseComparison:
        """Comparison of the two functions."""
        (case,) = self.comparison.verdicts
        return case

    @property
    def interval(self) -> tuple[float, float, float] | None:
        """(speed-up, low, high) with its 95 % interval; None without two processes of each function."""
        ratio, low, high = self.measured.ratio, self.measured.low, self.measured.high
        return (1 / ratio, 1 / high, 1 / low) if ratio and low and high else None

    @property
    def verdict(self) -> ClaimVerdict:
        """The verdict: a claim needs equal results and a speed-up that is at least the claimed one."""
        if self.agreement.equal is False:
            return ClaimVerdict.REFUTED
        if self.interval is None:
            return ClaimVerdict.UNDECIDED
        _, low, high = self.interval
        if low * (1 + MARGIN) >= self.speedup:
            return ClaimVerdict.CONFIRMED if self.agreement.equal else ClaimVerdict.UNDECIDED
        return ClaimVerdict.REFUTED if high < self.speedup else ClaimVerdict.UNDECIDED


def claimed_speedup(text: float | str) -> float:
    """The number of a claim: `2`, `2x`, `1.5×`. Raises UsageError."""
    if isinstance(text, str):
        match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?) *[x×]?", text.strip(), re.ASCII)
        text = float(match[1]) if match else math.nan
    if not 0 < text < math.inf:
        raise UsageError("The claim is not a speed-up.", "Write --claim 2x for twice as fast.")
    return float(text)
