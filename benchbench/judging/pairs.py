"""Cases of two runs as pairs, and the reasons against comparing a pair. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import (
    CaseDigest,
    Digest,
    attribute_changes,
    case_mismatches,
    change_text,
    run_mismatches,
    value_changes,
    with_partner_ids,
    work_mismatches,
)
from benchbench.analyse.doubts import FairPairs, fair_pairs
from benchbench.analyse.metrics import Metric
from benchbench.format import ratio
from benchbench.model.case import Verdict
from benchbench.model.run import Policy
from benchbench.stats import Difference, mean, paired, welch

MIN_PROCESSES = 3
MAX_PART_DIFFERENCE = 0.02  # between parts of a resumed run, as a fraction; no interval includes this
NEGLIGIBLE_EXCESS = 0.005  # logarithm; smaller effects of other programs or warming up are ignored
LARGE_RATIO, LARGE_RATIO_P = 2.0, 0.001  # a ratio and a p that decide in spite of any doubt
NOT_IN_RUN = "not part of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One case in both runs; `verdict` is None if a test decides.

    `ref_logs`, `new_logs`: logarithm of the metric for each process that counts; of the same rounds if
    `interleaved`. `planned_logs`: those of each side that determine its spread. `unused`: number of
    processes of each side that are not compared, because only one side has these rounds.
    """

    case: str
    ref: CaseDigest
    new: CaseDigest
    ref_logs: list[float]
    new_logs: list[float]
    verdict: Verdict | None
    reason: str
    planned_logs: tuple[list[float], list[float]]
    interleaved: bool = False
    unused: tuple[int, int] = (0, 0)

    @property
    def is_comparable(self) -> bool:
        """True if both sides computed the same under the same conditions."""
        return self.verdict in (None, Verdict.INSUFFICIENT)

    @property
    def log_ratio(self) -> float | None:
        """log(new / ref) of the geometric means; None without values on both sides."""
        if not (self.is_comparable and self.ref_logs and self.new_logs):
            return None
        return mean(self.new_logs) - mean(self.ref_logs)

    @property
    def difference(self) -> Difference | None:
        """Difference of the logarithms with its error; None if a side has fewer than two values."""
        if not self.is_comparable or min(len(self.ref_logs), len(self.new_logs)) < 2:
            return None
        if self.interleaved:
            return paired(list(zip(self.ref_logs, self.new_logs, strict=True)))
        is_partial = self.planned_logs != (self.ref_logs, self.new_logs)
        return welch(self.ref_logs, self.new_logs, planned=self.planned_logs if is_partial else None)

    @property
    def groups(self) -> list[list[float]]:
        """Groups of values whose variance determines the error: each side, or the pairs' differences."""
        if not self.interleaved:
            return list(self.planned_logs)
        return [[new - ref for ref, new in zip(self.ref_logs, self.new_logs, strict=True)]]


def match_runs(ref: Digest, new: Digest, metric: Metric) -> list[Pair]:
    """Pairs of all cases that either run planned, by id: cases of `ref` first, each in plan order."""
    mismatches, policies = run_mismatches(ref, new), (ref.policy, new.policy)
    missing_case = CaseDigest(absent=NOT_IN_RUN)
    sides = {
        case: (ref.cases.get(case, missing_case), new.cases.get(case, missing_case))
        for case in ref.cases | new.cases
    }
    return [
        _pair(case, before, after, metric, mismatches, policies)
        for case, (before, after) in sides.items()
        if not (before.absent and after.absent)
    ]


def are_interleaved(ref: Digest, new: Digest) -> bool:
    """True if the two runs were measured round by round, interleaved with each other."""
    return ref.partner is not None and ref.partner.run == new.id


def match_partners(ref: Digest, new: Digest, metric: Metric) -> list[Pair]:
    """Pairs of all cases of two interleaved runs that either could run, in plan order.

    Changes of the plan on one side do not prevent a comparison.
    """
    ref_cases = with_partner_ids(ref, new).cases
    sides = [(ref_cases[case], new.cases[case]) for case in ref_cases]
    return [
        pair_interleaved(ref_case, new_case, metric)
        for ref_case, new_case in sides
        if not (ref_case.absent and new_case.absent)
        or ref_case.skipped_for_partner
        or new_case.skipped_for_partner
    ]


def pair_interleaved(ref: CaseDigest, new: CaseDigest, metric: Metric) -> Pair:
    """Pair of one case of both sides, from the rounds that were fair to both."""
    fair = fair_pairs(ref.timed_processes(metric), new.timed_processes(metric), MIN_PROCESSES)
    has_doubts = bool(ref.doubts and new.doubts)
    may_be_explained = not has_doubts or max(fair.other_excess, fair.reference_excess) > NEGLIGIBLE_EXCESS
    may_be_explained = may_be_explained and not (has_doubts and is_beyond_doubt(fair))
    disagreement, unsteadiness, disturbance = _obstacles(ref, new, metric)
    verdict, reason = (
        incomparable([side.incomparable for side in (ref, new) if side.incomparable])
        or ((Verdict.NEW, ref.absent) if new.skipped_for_partner else None)
        or _absence(ref, new)
        or incomparable(work_mismatches(ref, new))
        or (not fair.took_turns and insufficient(disagreement))
        or _too_few_pairs(len(fair.changes), metric)
        or (may_be_explained and (insufficient(unsteadiness) or insufficient(disturbance)))
        or (None, "")
    )
    ref_logs_by_round = dict(ref.logs_by_round(metric))
    ref_logs = [ref_logs_by_round[number] for number in fair.rounds]
    new_logs = [log + change for log, change in zip(ref_logs, fair.changes, strict=True)]
    return Pair(
        case=_pair_id(ref, new),
        ref=ref,
        new=new,
        ref_logs=ref_logs,
        new_logs=new_logs,
        verdict=verdict,
        reason=reason,
        planned_logs=(ref_logs, new_logs),
        interleaved=True,
    )


def is_beyond_doubt(fair: FairPairs) -> bool:
    """True if one side is significantly slower by `LARGE_RATIO`, even beyond the effect of all doubts.

    Only these pairs are used, without the variance of other cases.
    """
    if len(fair.changes) < MIN_PROCESSES:
        return False
    difference = paired([(0.0, change) for change in fair.changes])
    bound = math.log(LARGE_RATIO) + max(fair.other_excess, fair.reference_excess)
    return min(difference.p_above(bound), difference.p_below(-bound)) < LARGE_RATIO_P


def _pair_id(ref: CaseDigest, new: CaseDigest) -> str:
    """Case id; of two different cases, their common work and the part before and after."""
    assert ref.case
    assert new.case
    if ref.case.id == new.case.id:
        return ref.case.id
    shared = f"{ref.case.work}/" if ref.case.work == new.case.work else ""
    return f"{ref.case.id} → {new.case.id.removeprefix(shared)}"


def _too_few_pairs(count: int, metric: Metric) -> tuple[Verdict, str] | None:
    if count >= MIN_PROCESSES:
        return None
    return Verdict.INSUFFICIENT, f"{count} pairs have {metric.name}, it needs {MIN_PROCESSES}"


def run_changes(ref: Digest, new: Digest) -> list[str]:
    """Differences between runs that do not prevent a comparison: their effect is what is measured."""
    return [
        *environment_changes(ref, new),
        *attribute_changes(ref.policy, new.policy, ("name", "rounds"), "policy "),
    ]


def environment_changes(ref: Digest, new: Digest) -> list[str]:
    """Differences in versions and environment variables."""
    return [
        *value_changes(ref.frameworks, new.frameworks),
        *attribute_changes(ref.machine, new.machine, ("os", "python")),
        *attribute_changes(ref, new, ("version",), "accelbench "),
        *_variable_changes(ref.variables, new.variables),
    ]


def _variable_changes(ref: Mapping[str, str] | None, new: Mapping[str, str] | None) -> list[str]:
    """Differences in environment variables; none if those of a run are unknown."""
    if ref is None or new is None:
        return []
    names = sorted(ref.keys() | new.keys())
    return value_changes(*({name: side.get(name) or "none" for name in names} for side in (ref, new)))


def version_suspect(ref: CaseDigest, new: CaseDigest) -> str:
    """Suspected cause of a change: `suspect: torch 2.12 → 2.13`, or empty if the version is the same."""
    same_backend = ref.case and new.case and ref.case.backend == new.case.backend
    if not same_backend or ref.version == new.version:
        return ""
    return f"suspect: {change_text(new.case.target if new.case else '', ref.version, new.version)}"


def _pair(
    case: str,
    ref: CaseDigest,
    new: CaseDigest,
    metric: Metric,
    mismatches: Sequence[str],
    policies: tuple[Policy, Policy],
) -> Pair:
    all_logs = ref.logs(metric), new.logs(metric)
    ref_logs, new_logs = _first_rounds(*all_logs, policies)
    planned_rounds = (policies[0].planned, policies[1].planned)
    mismatches = [*mismatches, *case_mismatches(ref, new)]
    disagreement, unsteadiness, disturbance = _obstacles(ref, new, metric)
    verdict, reason = (
        _absence(ref, new)
        or incomparable(mismatches)
        or insufficient(disagreement)
        or _too_few_processes(len(ref_logs), len(new_logs), metric)
        or insufficient(unsteadiness)
        or insufficient(disturbance)
        or part_difference((ref, new), metric)
        or (None, "")
    )
    return Pair(
        case=case,
        ref=ref,
        new=new,
        ref_logs=ref_logs,
        new_logs=new_logs,
        verdict=verdict,
        reason=reason,
        planned_logs=(
            ref.planned_logs(metric, planned_rounds[0]),
            new.planned_logs(metric, planned_rounds[1]),
        ),
        unused=(len(all_logs[0]) - len(ref_logs), len(all_logs[1]) - len(new_logs)),
    )


def _first_rounds(
    ref: list[float], new: list[float], policies: tuple[Policy, Policy]
) -> tuple[list[float], list[float]]:
    """The same number of rounds of both sides, but at least all planned ones.

    If a side's first rounds decided how many followed, cases with similar first rounds got fewer. With
    skewed times these are the fast ones, so the side with more rounds would look slower
    (studies/adaptive_rounds.py). Runs with a budget are used whole: truncation would lose a tenth of the
    detected changes, without need.
    """
    if any(policy.budget_s is not None for policy in policies):
        return ref, new
    fewest = min(len(ref), len(new))
    first, second = (
        len(logs) if policy.planned is None else max(policy.planned, fewest)
        for logs, policy in zip((ref, new), policies, strict=True)
    )
    return ref[:first], new[:second]


def incomparable(mismatches: Sequence[str]) -> tuple[Verdict, str] | None:
    """Verdict from differences that prevent a comparison; None without any."""
    return (Verdict.INCOMPARABLE, "; ".join(mismatches)) if mismatches else None


def _absence(ref: CaseDigest, new: CaseDigest) -> tuple[Verdict, str] | None:
    if new.absent:
        return Verdict.GONE, new.absent
    if ref.absent:
        return Verdict.NEW, new.failure or ref.absent
    if ref.failure and new.failure:
        return Verdict.INSUFFICIENT, f"fails in both runs: {new.failure}"
    if new.failure:
        return Verdict.BROKEN, new.failure
    return (Verdict.NEW, f"failed before: {ref.failure}") if ref.failure else None


def _too_few_processes(ref: int, new: int, metric: Metric) -> tuple[Verdict, str] | None:
    if min(ref, new) >= MIN_PROCESSES:
        return None
    counts = f"{ref} v {new} processes have {metric.name}"
    return Verdict.INSUFFICIENT, f"{counts}, each side needs {MIN_PROCESSES}"


def insufficient(reason: str) -> tuple[Verdict, str] | None:
    """Verdict from the reason why processes cannot be used; None without a reason."""
    return (Verdict.INSUFFICIENT, reason) if reason else None


def _obstacles(ref: CaseDigest, new: CaseDigest, metric: Metric) -> tuple[str, str, str]:
    """Disagreement, unsteadiness and disturbance of either side."""
    return (
        _of_sides(ref.disagreement(metric), new.disagreement(metric)),
        _of_sides(ref.unsteadiness(metric), new.unsteadiness(metric)),
        _of_sides(ref.disturbance(metric), new.disturbance(metric)),
    )


def _of_sides(ref: str, new: str) -> str:
    """Reasons against either side, naming the side."""
    if ref and ref == new:
        return f"both: {ref}"
    return "; ".join(f"{name}: {text}" for name, text in (("ref", ref), ("new", new)) if text)


def part_difference(sides: Iterable[CaseDigest], metric: Metric) -> tuple[Verdict, str] | None:
    """Verdict if the parts of a resumed run differ too much to be pooled."""
    log_difference = max(side.part_difference(metric) for side in sides)
    if log_difference <= math.log1p(MAX_PART_DIFFERENCE):
        return None
    return (
        Verdict.INSUFFICIENT,
        f"the run was resumed, and its parts are {ratio(math.exp(log_difference))} apart",
    )
