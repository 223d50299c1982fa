"""Has a run become slower than its baseline? Sessions, a run and, of what it flags, a second look. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from benchbench.compare import ALPHA, ON_THE_EDGE
from benchbench.confirm import Confirmation, Second, second_looks
from benchbench.digest import Digest, Side
from benchbench.holding import Held, hold, sides_of
from benchbench.looks import Look, Seen, level_of, looks, seen
from benchbench.matching import ELSEWHERE, Judgement, changes, suspect
from benchbench.metrics import Metric
from benchbench.sessions import ASSUMED_SHARED, Departure, departure
from benchbench.stats import tost
from benchbench.thresholds import Rule, Threshold, threshold

UNCONFIRMED = "flagged, and not measured again"
TOO_NOISY = "too noisy for this threshold: more sessions would tell"


class Ending(IntEnum):
    """Exit codes of a check (docs/cli.md)."""

    PASSED = 0
    FAILED = 4
    REGRESSED = 10
    NOT_COMPARABLE = 11
    INCONCLUSIVE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`confirm`: what stage 1 flags is slower only once a second look says so; else one stage decides.

    `in_turn`: that look measures the baseline's code as well, in turn. `assumed`: how much sessions of
    the machine are taken to differ, as a fraction, where few are stored.
    """

    metrics: tuple[Metric, ...]
    thresholds: tuple[Rule, ...] = ()
    assumed: float = ASSUMED_SHARED
    strict_env: bool = False
    confirm: bool = True
    in_turn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One case and metric; a look is None where nothing was tested.

    `spread` is that of the sessions, as a fraction; where `provisional`, one is assumed too. `lost`: the
    case was asked for and cannot run. `reason` says why there is no other verdict, or what is suspect.
    """

    case: str
    metric: str
    verdict: Judgement
    flagged: bool
    threshold: float
    threshold_from: str
    spread: float | None
    provisional: bool
    first: Look | None
    confirmation: Look | None
    steady: bool
    stopped_by: tuple[str, ...]
    lost: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`changes` since the newest session bar nothing; `idle`: thresholds that name no case."""

    sessions: tuple[Digest, ...]
    new: Digest
    confirmation: Confirmation | None
    rules: Rules
    findings: tuple[Finding, ...]
    tested: int
    changes: tuple[str, ...]
    idle: tuple[str, ...]

    @property
    def flagged(self) -> list[str]:
        """The cases a second look is due for."""
        return list(dict.fromkeys(each.case for each in self.findings if each.flagged))


def check(
    sessions: Sequence[Digest], new: Digest, rules: Rules, confirmation: Confirmation | None = None
) -> Check:
    """`new` against sessions of its machine, oldest first.

    Stage 1 flags a case at p < 0.05, one-sided, and an estimate worse by its threshold. Stage 2 decides
    on the processes of the `confirmation` alone. Measured in turn with the baseline's code they are a new
    experiment, and Holm's family is the flagged. Against stored sessions both stages share the hour and
    the sessions, so there the family is every test of the check (docs/checking.md). Without a
    confirmation what is flagged is inconclusive, unless `rules` say that one stage decides.
    """
    tests = _tests(sessions, new, rules)
    live = [test for test in tests if test.seen]
    level = level_of(len(live), in_turn=rules.in_turn)
    first = looks([test.seen for test in live if test.seen], len(live), level)
    at_first = {test.held.key: each for test, each in zip(live, first, strict=True)}
    flagged = [test.held for test in live if rules.confirm and test.flags(at_first[test.held.key])]
    second = second_looks(flagged, confirmation, len(live), level, rules.assumed) if confirmation else {}
    pending = {held.key for held in flagged}
    return Check(
        sessions=tuple(sessions),
        new=new,
        confirmation=confirmation,
        rules=rules,
        findings=tuple(
            _finding(test, at_first.get(test.held.key), test.held.key in pending, second.get(test.held.key))
            for test in tests
        ),
        tested=len(live),
        changes=tuple(changes(sessions[-1], new)),
        idle=_idle(rules.thresholds, tests),
    )


def endings(found: Check, *, strict: bool = False) -> dict[Ending, list[Finding]]:
    """What the check comes to, gravest first, and the findings behind it; empty where it passed.

    A set-up that is broken or has nothing to compare with is never a regression, and never a pass.
    `strict`: neither is a case that cannot be told.
    """
    unsure = (Judgement.INCONCLUSIVE, Judgement.INSUFFICIENT) if strict else ()
    causes = {
        Ending.REGRESSED: [each for each in found.findings if each.verdict is Judgement.SLOWER],
        Ending.FAILED: [each for each in found.findings if each.verdict is Judgement.BROKEN],
        Ending.NOT_COMPARABLE: [
            each for each in found.findings if each.verdict is Judgement.INCOMPARABLE or each.lost
        ],
        Ending.INCONCLUSIVE: [each for each in found.findings if each.verdict in unsure],
    }
    nothing = {Ending.NOT_COMPARABLE} if not found.tested else set()
    return {each: behind for each, behind in causes.items() if behind or each in nothing}


def exit_code(found: Check, *, strict: bool = False, exit_zero: bool = False) -> int:
    """Of the process: the gravest ending. `exit_zero`: what was compared is told, and fails nothing."""
    harmless = (Ending.REGRESSED, Ending.INCONCLUSIVE) if exit_zero else ()
    return next((int(each) for each in endings(found, strict=strict) if each not in harmless), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A case held against its sessions; `seen` where it is tested."""

    held: Held
    limit: Threshold
    departure: Departure | None
    seen: Seen | None

    def flags(self, first: Look) -> bool:
        return self.seen is not None and first.p < ALPHA and self.seen.beyond(self.limit.value)


def _tests(sessions: Sequence[Digest], new: Digest, rules: Rules) -> list[_Test]:
    sides, none = sides_of(sessions, new, strict=rules.strict_env), Side(absent=ELSEWHERE)
    return [
        _test(hold(case, known, now, metric), rules)
        for case in dict.fromkeys([*sides, *new.cases])
        for known, now in [(sides.get(case, ()), new.cases.get(case, none))]
        if not (now.absent and all(side.absent for side, _ in known))
        for metric in rules.metrics
    ]


def _test(held: Held, rules: Rules) -> _Test:
    limit = threshold(held.suite, held.case, rules.thresholds)
    if held.judgement:
        return _Test(held=held, limit=limit, departure=None, seen=None)
    away = departure(held.sessions, held.logs, rules.assumed)
    if away.spread and 2 * away.spread > limit.value:
        limit = Threshold(2 * away.spread, f"{limit.source}, raised to twice the sessions' spread")
    return _Test(held=held, limit=limit, departure=away, seen=seen(held, away.difference))


def _finding(test: _Test, first: Look | None, flagged: bool, second: Second | None) -> Finding:
    verdict, reason = _verdict(test, first, flagged, second)
    if verdict in (Judgement.SLOWER, Judgement.FASTER):
        reason = suspect(test.held.newest, test.held.new)
    sides = [test.held.new, *([second.side] if second else [])]
    return Finding(
        case=test.held.case,
        metric=test.held.metric.name,
        verdict=verdict,
        flagged=flagged,
        threshold=test.limit.value,
        threshold_from=test.limit.source,
        spread=test.departure.spread if test.departure else None,
        provisional=bool(test.departure and test.departure.provisional),
        first=first,
        confirmation=second.look if second else None,
        steady=not any(side.unsteady for side in sides),
        stopped_by=tuple(sorted({reason for side in sides for reason in side.stopped_by})),
        lost=test.held.lost,
        reason=reason,
    )


def _verdict(test: _Test, first: Look | None, flagged: bool, second: Second | None) -> tuple[Judgement, str]:
    if test.seen is None or first is None:
        assert test.held.judgement
        return test.held.judgement, test.held.reason
    if not flagged:
        return _judged(test.seen, first, test.limit.value)
    if second is None:
        return Judgement.INCONCLUSIVE, UNCONFIRMED
    if second.seen is None or second.look is None:
        assert second.judgement
        return second.judgement, second.reason
    verdict, reason = _judged(second.seen, second.look, test.limit.value)
    return verdict, reason if verdict is Judgement.SLOWER else f"flagged, not confirmed; {reason}".rstrip(
        "; "
    )


def _judged(seen: Seen, look: Look, limit: float) -> tuple[Judgement, str]:
    """Slower and faster are alike in the logarithm; same needs the 90 % interval within the threshold."""
    margin = math.log1p(limit)
    if look.p_holm < ALPHA and abs(seen.worse.mid) >= margin:
        return (Judgement.SLOWER if seen.worse.mid > 0 else Judgement.FASTER), ""
    if tost(seen.found, margin) < ALPHA:
        return Judgement.SAME, ""
    return Judgement.INCONCLUSIVE, TOO_NOISY if look.mde > limit else ON_THE_EDGE


def _idle(rules: Sequence[Rule], tests: Sequence[_Test]) -> tuple[str, ...]:
    cases = {(test.held.suite, test.held.case) for test in tests}
    return tuple(rule.source for rule in rules if not any(rule.names(*case) for case in cases))
