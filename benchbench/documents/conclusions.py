"""What a check comes to, as lines: PASS, or what caused each ending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchbench import format as fmt
from benchbench.analyse.digest import CaseDigest
from benchbench.documents.document import Cell, Tone
from benchbench.judging.check import (
    TOLD_ONLY,
    CaseFinding,
    Cause,
    Ending,
    GateResult,
    endings,
    exit_code,
    judged,
)
from benchbench.judging.significance import TestResult
from benchbench.model.status import Verdict
from benchbench.store.naming import DIRTY

TITLES = {
    Ending.NOTHING_TESTED: "NOT COMPARABLE",
    Ending.INCOMPLETE: "INCOMPLETE",
    Ending.REGRESSED: "FAIL",
    Ending.FAILED: "BROKEN",
    Ending.NOT_COMPARABLE: "NOT COMPARABLE",
    Ending.PROVISIONAL: "PROVISIONAL",
    Ending.INCONCLUSIVE: "INCONCLUSIVE",
}
COUNTED = TOLD_ONLY  # told as "2 of 30"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A check and what was asked of it; `name` is the baseline's."""

    name: str
    found: GateResult
    strict: bool = False
    exit_zero: bool = False
    where: str = ""  # ` --results FOLDER`, where a command to type needs it
    note: str = ""  # why nothing was measured again, if so

    @property
    def exit_code(self) -> int:
        """Of the process."""
        return exit_code(self.found, strict=self.strict, exit_zero=self.exit_zero)


def conclusions(gate: Gate) -> list[Cell]:
    """PASS, or a line per cause in the order told; cases that cannot be told share a line per reason."""
    behind = endings(gate.found)
    lines = [Cell((_passed(gate.found),), Tone.GOOD)] if _passes(gate) else []
    for each, causes in behind.items():
        total = len(gate.found.findings) if each is Ending.INCONCLUSIVE else gate.found.tested
        share = f" {len(causes)} of {total}" if each in COUNTED else ""
        tone = Tone.WARNING if each is Ending.INCONCLUSIVE and not gate.strict else Tone.BAD
        lines += [Cell((f"{TITLES[each]}{share}: {text}",), tone) for text in _told(each, causes)]
    return [*lines, *(Cell((line,)) for line in _next_step(gate, behind))]


def _passes(gate: Gate) -> bool:
    """Whether some case was judged, none became worse, and what cannot be told fails nothing."""
    behind = set(endings(gate.found))
    harmless = behind <= {Ending.INCONCLUSIVE} and not (gate.strict and behind)
    return harmless and judged(gate.found.findings) > 0


def _passed(found: GateResult) -> str:
    count = judged(found.findings)
    return f"PASS: no regression in {count}{f' of {found.tested}' if count < found.tested else ''}"


def _told(ending: Ending, causes: Sequence[Cause]) -> list[str]:
    if ending is Ending.NOTHING_TESTED:
        return ["no case could be tested"]
    if ending in (Ending.REGRESSED, Ending.PROVISIONAL):
        return [_complaint(each) for each in causes if isinstance(each, CaseFinding)]
    reasons: dict[str, list[str]] = {}
    for each in causes:
        reasons.setdefault(each.reason, []).append(each.case)
    return [
        reason if ending in COUNTED and len(cases) == len(causes) > 1 else f"{_named(cases)}: {reason}"
        for reason, cases in reasons.items()
    ]


def _named(cases: Sequence[str]) -> str:
    return cases[0] if len(cases) == 1 else f"{len(cases)} cases"


def _next_step(gate: Gate, behind: Mapping[Ending, object]) -> list[str]:
    """The lines to type where the baseline has other work, and where only its own code can decide."""
    return [*_after_upgrade(gate), *_decided_by_code(gate, behind)]


def _after_upgrade(gate: Gate) -> list[str]:
    """What measures otherwise than when the baseline was made, and how its new times are accepted."""
    upgrades = _upgrades(gate.found)
    if not upgrades or not gate.name:
        return []
    return [
        f"measured differently now, so earlier times do not count: {', '.join(upgrades)}",
        f"to accept the new times: accelbench baseline set {gate.name} {gate.found.new.id}{gate.where}",
    ]


def _upgrades(found: GateResult) -> list[str]:
    """`conv2d 1 → 2`, of each workload whose version is another than in the newest session."""
    barred = [each.case for each in found.findings if each.verdict is Verdict.INCOMPARABLE]
    told: dict[str, None] = {}
    for case in barred:
        then, now = (side.cases.get(case, CaseDigest()) for side in (found.sessions[-1], found.new))
        if now.case and then.workload_version != now.workload_version:
            told[f"{now.case.workload} {then.workload_version} → {now.workload_version}"] = None
    return list(told)


def _decided_by_code(gate: Gate, behind: Mapping[Ending, object]) -> list[str]:
    if Ending.PROVISIONAL not in behind:
        return []
    commits = [each.commit for each in gate.found.sessions if each.commit and DIRTY not in each.commit]
    commit = commits[-1][:12] if commits else "COMMIT"
    return [f"to decide it now: accelbench check --baseline {gate.name} --ab rev:{commit}{gate.where}"]


def _complaint(each: CaseFinding) -> str:
    ratio = each.size or deciding(each).ratio
    size = fmt.share(abs(ratio - 1))
    what = "slower" if each.metric == "latency_s" else ("higher" if ratio > 1 else "lower")
    subject = "" if each.metric == "latency_s" else f"{each.metric} "
    return f"{each.case}: {subject}{size} {what} (limit {fmt.limit(each.threshold)})"


def deciding(each: CaseFinding) -> TestResult:
    """The test that the verdict stands on: the last."""
    result = each.confirmation or each.first
    assert result
    return result
