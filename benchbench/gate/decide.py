"""Has a run become slower than its baseline? Sessions, a run and, of what it flags, a second look. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from benchbench.analyse.digest import ONCE, SETTLED, CaseDigest, Digest, partnered
from benchbench.comparing.match import changes, suspect
from benchbench.comparing.verdicts import ALPHA, ON_THE_EDGE
from benchbench.gate.cases import Rules, Trial, against_sessions, in_turn
from benchbench.gate.confirm import Confirmation, Second, second_looks
from benchbench.gate.match import Held
from benchbench.gate.significance import Look, Seen, family_of, looks
from benchbench.model.status import Verdict
from benchbench.plan.thresholds import Rule
from benchbench.stats import tost

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
class Finding:
    """One case and metric; a look is None where nothing was tested.

    `spread` is that of the sessions, as a fraction; where `provisional`, one is assumed too. `lost`: the
    case was asked for and cannot run. `reason` says why there is no other verdict, or what is suspect.
    """

    case: str
    metric: str
    verdict: Verdict
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
    """`changes` since the newest session bar nothing; `idle`: thresholds that name no case.

    `in_turn`: the one session is the baseline's code, measured in turn with the run.
    """

    sessions: tuple[Digest, ...]
    new: Digest
    confirmation: Confirmation | None
    rules: Rules
    findings: tuple[Finding, ...]
    tested: int
    changes: tuple[str, ...]
    idle: tuple[str, ...]
    in_turn: bool = False

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
    return _decided(against_sessions(sessions, new, rules), sessions, new, rules, confirmation)


def check_in_turn(ref: Digest, new: Digest, rules: Rules, confirmation: Confirmation | None = None) -> Check:
    """`new` against the baseline's code, `ref`, each measured in turn with the other, as partners."""
    rules = replace(rules, in_turn=True)
    found = _decided(in_turn(partnered(ref, new), new, rules), [ref], new, rules, confirmation)
    return replace(found, in_turn=True)


def _decided(
    trials: Sequence[Trial],
    sessions: Sequence[Digest],
    new: Digest,
    rules: Rules,
    confirmation: Confirmation | None,
) -> Check:
    live = [trial for trial in trials if trial.seen]
    seen = [trial.seen for trial in live if trial.seen]
    stored = not any(each.in_turn for each in seen)
    family = family_of(len(live), stored=stored, twice=rules.confirm and rules.in_turn)
    first = {trial.held.key: look for trial, look in zip(live, looks(seen, family), strict=True)}
    flagged = [trial.held for trial in live if rules.confirm and trial.flags(first[trial.held.key])]
    pending = {held.key for held in flagged}
    second = second_looks(flagged, confirmation, family, rules.assumed) if confirmation else {}
    return Check(
        sessions=tuple(sessions),
        new=new,
        confirmation=confirmation,
        rules=rules,
        findings=tuple(
            _finding(trial, first.get(key), key in pending, second.get(key))
            for trial in trials
            for key in [trial.held.key]
        ),
        tested=len(live),
        changes=tuple(changes(sessions[-1], new)),
        idle=_idle(rules.thresholds, trials),
    )


def endings(found: Check, *, strict: bool = False) -> dict[Ending, list[Finding]]:
    """What the check comes to, gravest first, and the findings behind it; empty where it passed.

    A set-up that is broken or has nothing to compare with is never a regression, and never a pass.
    `strict`: neither is a case that cannot be told.
    """
    unsure = (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT) if strict else ()
    causes = {
        Ending.REGRESSED: [each for each in found.findings if each.verdict is Verdict.SLOWER],
        Ending.FAILED: [each for each in found.findings if each.verdict is Verdict.BROKEN],
        Ending.NOT_COMPARABLE: [
            each for each in found.findings if each.verdict is Verdict.INCOMPARABLE or each.lost
        ],
        Ending.INCONCLUSIVE: [each for each in found.findings if each.verdict in unsure],
    }
    nothing = {Ending.NOT_COMPARABLE} if not found.tested else set()
    return {each: behind for each, behind in causes.items() if behind or each in nothing}


def exit_code(found: Check, *, strict: bool = False, exit_zero: bool = False) -> int:
    """Of the process: the gravest ending. `exit_zero`: what was compared is told, and fails nothing."""
    harmless = (Ending.REGRESSED, Ending.INCONCLUSIVE) if exit_zero else ()
    return next((int(each) for each in endings(found, strict=strict) if each not in harmless), 0)


def _finding(trial: Trial, first: Look | None, flagged: bool, second: Second | None) -> Finding:
    verdict, reason = _verdict(trial, first, flagged, second)
    if verdict in (Verdict.SLOWER, Verdict.FASTER):
        reason = suspect(trial.held.newest, trial.held.new)
    sides = [trial.held.new, *([second.side] if second else [])]
    return Finding(
        case=trial.held.case,
        metric=trial.held.metric.name,
        verdict=verdict,
        flagged=flagged,
        threshold=trial.limit.value,
        threshold_from=trial.limit.source,
        spread=trial.departure.spread if trial.departure else None,
        provisional=bool(trial.departure and trial.departure.provisional),
        first=first,
        confirmation=second.look if second else None,
        steady=not any(side.unsteady for side in sides),
        stopped_by=tuple(sorted({reason for side in sides for reason in side.stopped_by})),
        lost=trial.held.lost,
        reason=reason,
    )


def _verdict(trial: Trial, first: Look | None, flagged: bool, second: Second | None) -> tuple[Verdict, str]:
    if trial.seen is None or first is None:
        assert trial.held.verdict
        return trial.held.verdict, trial.held.reason
    if not flagged:
        return _judged(trial, trial.seen, first, trial.held.new)
    if second is None:
        return Verdict.INCONCLUSIVE, UNCONFIRMED
    if second.seen is None or second.look is None:
        assert second.verdict
        return second.verdict, second.reason
    verdict, reason = _judged(trial, second.seen, second.look, second.side)
    return verdict, reason if verdict is Verdict.SLOWER else f"flagged, not confirmed; {reason}".rstrip("; ")


def _judged(trial: Trial, seen: Seen, look: Look, new: CaseDigest) -> tuple[Verdict, str]:
    """Slower and faster are alike in the logarithm; same needs the 90 % interval within the threshold."""
    limit = trial.limit.value
    margin = math.log1p(limit)
    if look.p_holm < ALPHA and abs(seen.worse.mid) >= margin:
        if seen.worse.mid < 0:
            return Verdict.FASTER, ""
        if not seen.in_turn and (others := _only_now(trial.held, new)):
            return Verdict.INSUFFICIENT, f"slower, but {others} meanwhile, and not in the sessions"
        return Verdict.SLOWER, ""
    if tost(seen.found, margin) < ALPHA:
        return Verdict.SAME, ""
    return Verdict.INCONCLUSIVE, TOO_NOISY if look.mde > limit else ON_THE_EDGE


def _only_now(held: Held, new: CaseDigest) -> str:
    """What others took of the machine, where they did not in the sessions and it matters to the metric."""
    before = any(each.side.contended for each in held.sides)
    return new.contended if held.metric.name in (*SETTLED, *ONCE) and not before else ""


def _idle(rules: Sequence[Rule], trials: Sequence[Trial]) -> tuple[str, ...]:
    cases = {(trial.held.suite, trial.held.case) for trial in trials}
    return tuple(rule.source for rule in rules if not any(rule.names(*case) for case in cases))
