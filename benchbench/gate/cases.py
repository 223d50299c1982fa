"""What a check tests: each case held against its baseline, its threshold, and the difference seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.comparing.match import ELSEWHERE
from benchbench.comparing.verdicts import ALPHA
from benchbench.gate.match import Held, hold, hold_in_turn, sides_of
from benchbench.gate.significance import Look, Seen, seen
from benchbench.gate.spread import ASSUMED_SHARED, Departure, departure
from benchbench.plan.thresholds import Rule, Threshold, threshold
from benchbench.stats import paired


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`confirm`: what stage 1 flags is slower only once a second look says so; else one stage decides.

    `in_turn`: the last look measures the baseline's code as well, in turn. `assumed`: how much sessions of
    the machine are taken to differ, as a fraction, where few are stored.
    """

    metrics: tuple[Metric, ...]
    thresholds: tuple[Rule, ...] = ()
    assumed: float = ASSUMED_SHARED
    strict_env: bool = False
    confirm: bool = True
    in_turn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A case held against its baseline; `seen` where it is tested."""

    held: Held
    limit: Threshold
    departure: Departure | None
    seen: Seen | None

    def flags(self, first: Look) -> bool:
        """Whether the first look is reason for a second."""
        return self.seen is not None and first.p < ALPHA and self.seen.beyond(self.limit.value)


def against_sessions(sessions: Sequence[Digest], new: Digest, rules: Rules) -> list[Trial]:
    """A trial per metric of every case that a session or the run could run."""
    sides, none = sides_of(sessions, new, strict=rules.strict_env), CaseDigest(absent=ELSEWHERE)
    return [
        _departing(hold(case, known, now, metric), rules)
        for case in dict.fromkeys([*sides, *new.cases])
        for known, now in [(sides.get(case, ()), new.cases.get(case, none))]
        if not (now.absent and all(each.side.absent for each in known))
        for metric in rules.metrics
    ]


def in_turn(ref: Digest, new: Digest, rules: Rules) -> list[Trial]:
    """The same against the baseline's code, `ref`, measured in turn and with the same ids."""
    return [
        _differing(hold_in_turn(case, ref.cases[case], now, metric), rules)
        for case, now in new.cases.items()
        if not (now.absent and ref.cases[case].absent)
        or now.skipped_for_partner
        or ref.cases[case].skipped_for_partner
        for metric in rules.metrics
    ]


def _departing(held: Held, rules: Rules) -> Trial:
    limit = threshold(held.suite, held.case, rules.thresholds)
    if held.verdict:
        return Trial(held=held, limit=limit, departure=None, seen=None)
    away = departure(held.sessions, held.logs, rules.assumed)
    if away.spread and 2 * away.spread > limit.value:
        limit = Threshold(2 * away.spread, f"{limit.source}, raised to twice the sessions' spread")
    return Trial(held=held, limit=limit, departure=away, seen=seen(held, away.difference))


def _differing(held: Held, rules: Rules) -> Trial:
    limit = threshold(held.suite, held.case, rules.thresholds)
    found = None if held.verdict else seen(held, paired(held.pairs))
    return Trial(held=held, limit=limit, departure=None, seen=found)
