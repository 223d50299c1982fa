"""Two runs to pairs: the same case in both, and what keeps a pair from being compared. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import (
    SETTLED,
    CaseDigest,
    Digest,
    arrow,
    case_bars,
    differing,
    partnered,
    run_bars,
    unequal,
    work_bars,
)
from benchbench.analyse.doubts import FairPairs, fair_pairs
from benchbench.analyse.metrics import Metric
from benchbench.format import ratio
from benchbench.model.run import Policy
from benchbench.model.status import Verdict
from benchbench.stats import Difference, mean, paired, welch

LEAST_PROCESSES = 3
PARTS_APART = 0.02  # of a resumed run, as a fraction: the machine has changed, and no interval tells
NEGLIGIBLE = 0.005  # a logarithm: what others or warming up explain of a difference and is no objection
CERTAIN, CERTAIN_P = 2.0, 0.001  # a ratio beyond every threshold, and p: what decides whatever is doubted
ELSEWHERE = "not part of the run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One case in both runs; `verdict` is None where a test is to decide.

    `ref_logs` and `new_logs` have the metric's logarithm for each process that counts. If
    `interleaved`, they are of the same rounds. `planned`: those of either side that tell its spread.
    `unused`: how many processes of further rounds either side has that are not compared.
    """

    case: str
    ref: CaseDigest
    new: CaseDigest
    ref_logs: list[float]
    new_logs: list[float]
    verdict: Verdict | None
    reason: str
    planned: tuple[list[float], list[float]]
    interleaved: bool = False
    unused: tuple[int, int] = (0, 0)

    @property
    def alike(self) -> bool:
        """Whether the two sides did the same under the same conditions."""
        return self.verdict in (None, Verdict.INSUFFICIENT)

    @property
    def log_ratio(self) -> float | None:
        """log(new / ref), of geometric means."""
        if not (self.alike and self.ref_logs and self.new_logs):
            return None
        return mean(self.new_logs) - mean(self.ref_logs)

    @property
    def difference(self) -> Difference | None:
        """The same with its error, for which each side needs two values."""
        if not self.alike or min(len(self.ref_logs), len(self.new_logs)) < 2:
            return None
        if self.interleaved:
            return paired(list(zip(self.ref_logs, self.new_logs, strict=True)))
        chosen = self.planned != (self.ref_logs, self.new_logs)
        return welch(self.ref_logs, self.new_logs, planned=self.planned if chosen else None)

    @property
    def groups(self) -> list[list[float]]:
        """The values whose deviation from each other is the error: of either side, or of the pairs."""
        if not self.interleaved:
            return list(self.planned)
        return [[new - ref for ref, new in zip(self.ref_logs, self.new_logs, strict=True)]]


def match(ref: Digest, new: Digest, metric: Metric) -> list[Pair]:
    """A pair for every case that either run planned, by id: those of `ref` first, each in plan order."""
    bars, policies = run_bars(ref, new), (ref.policy, new.policy)
    none = CaseDigest(absent=ELSEWHERE)
    sides = {case: (ref.cases.get(case, none), new.cases.get(case, none)) for case in ref.cases | new.cases}
    return [
        _pair(case, a, b, metric, bars, policies)
        for case, (a, b) in sides.items()
        if not (a.absent and b.absent)
    ]


def are_interleaved(ref: Digest, new: Digest) -> bool:
    """Whether the two runs are partners, measured round by round, a process of each."""
    return ref.partner is not None and ref.partner.run == new.id


def match_partners(ref: Digest, new: Digest, metric: Metric) -> list[Pair]:
    """A pair for every case of partners that either could run, in plan order.

    What one side changed of the plan bars nothing.
    """
    before = partnered(ref, new).cases
    sides = [(before[case], new.cases[case]) for case in before]
    return [
        pair_interleaved(one, other, metric)
        for one, other in sides
        if not (one.absent and other.absent) or one.skipped_for_partner or other.skipped_for_partner
    ]


def pair_interleaved(ref: CaseDigest, new: CaseDigest, metric: Metric) -> Pair:
    """Pair one case of both sides, by the rounds that were fair to both."""
    fair = fair_pairs(ref.timed(metric), new.timed(metric), LEAST_PROCESSES)
    known = bool(ref.doubts and new.doubts)
    explained = not known or max(fair.other_excess, fair.reference_excess) > NEGLIGIBLE
    explained = explained and not (known and beyond_doubt(fair))
    verdict, reason = (
        _bar([side.incomparable for side in (ref, new) if side.incomparable])
        or ((Verdict.NEW, ref.absent) if new.skipped_for_partner else None)
        or _presence(ref, new)
        or _bar(work_bars(ref, new))
        or (not fair.alternated and _disagreement(ref, new, metric))
        or _few_pairs(len(fair.changes), metric)
        or (explained and (_unsteadiness(ref, new, metric) or _disturbance(ref, new, metric)))
        or (None, "")
    )
    before = dict(ref.by_round(metric))
    return Pair(
        case=_both(ref, new),
        ref=ref,
        new=new,
        ref_logs=(ref_logs := [before[number] for number in fair.rounds]),
        new_logs=(
            new_logs := [before[at] + change for at, change in zip(fair.rounds, fair.changes, strict=True)]
        ),
        verdict=verdict,
        reason=reason,
        planned=(ref_logs, new_logs),
        interleaved=True,
    )


def beyond_doubt(fair: FairPairs) -> bool:
    """Whether either side is `CERTAIN` times slower beyond what others or warming up can explain.

    By these pairs alone, whose spread no other case tells.
    """
    if len(fair.changes) < LEAST_PROCESSES:
        return False
    seen = paired([(0.0, change) for change in fair.changes])
    bound = math.log(CERTAIN) + max(fair.other_excess, fair.reference_excess)
    return min(seen.p_above(bound), seen.p_below(-bound)) < CERTAIN_P


def _both(ref: CaseDigest, new: CaseDigest) -> str:
    """The case's id; of two the work they share, and what is before and after."""
    assert ref.case
    assert new.case
    if ref.case.id == new.case.id:
        return ref.case.id
    shared = f"{ref.case.work}/" if ref.case.work == new.case.work else ""
    return f"{ref.case.id} → {new.case.id.removeprefix(shared)}"


def _few_pairs(count: int, metric: Metric) -> tuple[Verdict, str] | None:
    if count >= LEAST_PROCESSES:
        return None
    return Verdict.INSUFFICIENT, f"{count} pairs have {metric.name}, it needs {LEAST_PROCESSES}"


def changes(ref: Digest, new: Digest) -> list[str]:
    """What differs between the runs and does not bar comparing them: finding what it costs is the point."""
    return [
        *environment_changes(ref, new),
        *differing(ref.policy, new.policy, ("name", "rounds"), "policy "),
    ]


def environment_changes(ref: Digest, new: Digest) -> list[str]:
    """The versions that differ, and the variables of the shell."""
    return [
        *unequal(ref.frameworks, new.frameworks),
        *differing(ref.machine, new.machine, ("os", "python")),
        *differing(ref, new, ("version",), "accelbench "),
        *_variables(ref.variables, new.variables),
    ]


def _variables(ref: Mapping[str, str] | None, new: Mapping[str, str] | None) -> list[str]:
    """Nothing where those of a run are not known."""
    if ref is None or new is None:
        return []
    names = sorted(ref.keys() | new.keys())
    return unequal(*({name: side.get(name) or "none" for name in names} for side in (ref, new)))


def suspect(ref: CaseDigest, new: CaseDigest) -> str:
    """The framework, where its version changed; else empty."""
    same = ref.case and new.case and ref.case.backend == new.case.backend
    if not same or ref.version == new.version:
        return ""
    return f"suspect: {arrow(new.case.target if new.case else '', ref.version, new.version)}"


def _pair(
    case: str,
    ref: CaseDigest,
    new: CaseDigest,
    metric: Metric,
    bars: Sequence[str],
    policies: tuple[Policy, Policy],
) -> Pair:
    all_logs = ref.logs(metric), new.logs(metric)
    ref_logs, new_logs = _first_rounds(*all_logs, policies)
    planned = (policies[0].planned, policies[1].planned)
    bars = [*bars, *case_bars(ref, new)]
    verdict, reason = (
        _presence(ref, new)
        or _bar(bars)
        or _disagreement(ref, new, metric)
        or _shortage(len(ref_logs), len(new_logs), metric)
        or _unsteadiness(ref, new, metric)
        or _disturbance(ref, new, metric)
        or parts_apart((ref, new), metric)
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
        planned=(ref.planned_logs(metric, planned[0]), new.planned_logs(metric, planned[1])),
        unused=(len(all_logs[0]) - len(ref_logs), len(all_logs[1]) - len(new_logs)),
    )


def _first_rounds(
    ref: list[float], new: list[float], policies: tuple[Policy, Policy]
) -> tuple[list[float], list[float]]:
    """As many rounds of both as the side with fewer has, but all that were planned.

    Where a side's first rounds decided how many followed, those that agreed got fewer. Of skewed processes
    they are the fast ones, and the side with more rounds looks slower (studies/adaptive_rounds.py). A budget
    has rounds of too many different numbers: there it would cost a tenth of what is found, and is not needed.
    """
    if any(policy.budget_s is not None for policy in policies):
        return ref, new
    fewest = min(len(ref), len(new))
    first, second = (
        len(own) if policy.planned is None else max(policy.planned, fewest)
        for own, policy in zip((ref, new), policies, strict=True)
    )
    return ref[:first], new[:second]


def _bar(bars: Sequence[str]) -> tuple[Verdict, str] | None:
    return (Verdict.INCOMPARABLE, "; ".join(bars)) if bars else None


def _presence(ref: CaseDigest, new: CaseDigest) -> tuple[Verdict, str] | None:
    if new.absent:
        return Verdict.GONE, new.absent
    if ref.absent:
        return Verdict.NEW, new.failure or ref.absent
    if ref.failure and new.failure:
        return Verdict.INSUFFICIENT, f"fails in both runs: {new.failure}"
    if new.failure:
        return Verdict.BROKEN, new.failure
    return (Verdict.NEW, f"failed before: {ref.failure}") if ref.failure else None


def _shortage(ref: int, new: int, metric: Metric) -> tuple[Verdict, str] | None:
    if min(ref, new) >= LEAST_PROCESSES:
        return None
    counts = f"{ref} v {new} processes have {metric.name}"
    return Verdict.INSUFFICIENT, f"{counts}, each side needs {LEAST_PROCESSES}"


def _disagreement(ref: CaseDigest, new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    return _insufficient(ref.disagreement(metric), new.disagreement(metric))


def _disturbance(ref: CaseDigest, new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    """What others took of the device while either side was measured: the difference may be theirs."""
    return _insufficient(ref.disturbance(metric), new.disturbance(metric))


def _insufficient(ref: str, new: str) -> tuple[Verdict, str] | None:
    """Where something speaks against a side: what, and which."""
    if ref and ref == new:
        return Verdict.INSUFFICIENT, f"both: {ref}"
    sides = [f"{name}: {text}" for name, text in (("ref", ref), ("new", new)) if text]
    return (Verdict.INSUFFICIENT, "; ".join(sides)) if sides else None


def parts_apart(sides: Iterable[CaseDigest], metric: Metric) -> tuple[Verdict, str] | None:
    """Why processes of before and after a resumption cannot stand for one another, if so."""
    apart = max(side.parts_apart(metric) for side in sides)
    if apart <= math.log1p(PARTS_APART):
        return None
    return Verdict.INSUFFICIENT, f"the run was resumed, and its parts are {ratio(math.exp(apart))} apart"


def _unsteadiness(ref: CaseDigest, new: CaseDigest, metric: Metric) -> tuple[Verdict, str] | None:
    if metric.name not in SETTLED or not ref.unsteady + new.unsteady:
        return None
    counts = f"{ref.unsteady} v {new.unsteady} processes"
    return Verdict.INSUFFICIENT, f"still warming up when measured, in {counts}"
