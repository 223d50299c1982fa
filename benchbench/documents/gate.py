"""Checks and baselines as documents: what was compared with what, the evidence, what it comes to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import METRICS, Metric
from benchbench.documents.comparison import (
    EVIDENCE_COLUMNS,
    evidence,
    imprecise,
    moved_alike,
    verdict_cell,
    verdict_counts,
)
from benchbench.documents.document import (
    Cell,
    Column,
    Content,
    Document,
    Layout,
    Number,
    Tone,
    cell,
    number,
    number_or_dash,
    paragraph,
    table,
)
from benchbench.documents.run import CaseVerdict
from benchbench.documents.short_names import case_cells
from benchbench.format import count_of, visible
from benchbench.gate.baselines import MAX_SESSIONS, Acceptance, SessionsByMachine, hardware_text
from benchbench.judging.check import CaseFinding, GateResult, UntestedMedians
from benchbench.judging.common_change import TOGETHER
from benchbench.judging.comparison import ALPHA
from benchbench.judging.gate_ending import (
    REPORT_ONLY,
    Cause,
    Ending,
    decided_count,
    endings,
    exit_code,
    fails_undecided,
)
from benchbench.judging.sessions import MIN_SESSIONS, days_of
from benchbench.judging.significance import TestResult
from benchbench.model.options import Inconclusive
from benchbench.model.status import Verdict
from benchbench.stats import deviation, mean, median
from benchbench.store import naming
from benchbench.store.naming import DIRTY

SCHEMA = 1  # of the JSON. 1: first

UNITS = {metric.name: metric.unit for metric in METRICS}
HEAVY_TAILS = "some sessions are far from the rest: they do not show where a further one may lie"
URGENT = (
    Verdict.SLOWER,
    Verdict.BROKEN,
    Verdict.INCOMPARABLE,
    Verdict.GONE,
    Verdict.PROVISIONAL,
    Verdict.INCONCLUSIVE,
)


COLUMNS = (
    Column("verdict"),
    Column("case"),
    Column("metric"),
    *EVIDENCE_COLUMNS,
    Column("processes", line=1),
    Column("limit", line=2, label="limit"),
    Column("spread", line=2, label="sessions differ by"),
    Column("size", line=2, label="likely"),
    Column("measured again", line=3, label="again:"),
    Column("notes", line=4),
)
TITLES = {
    Ending.NOTHING_TESTED: "NOT COMPARABLE",
    Ending.INCOMPLETE: "INCOMPLETE",
    Ending.REGRESSED: "FAIL",
    Ending.FAILED: "BROKEN",
    Ending.NOT_COMPARABLE: "NOT COMPARABLE",
    Ending.PROVISIONAL: "PROVISIONAL",
    Ending.INCONCLUSIVE: "INCONCLUSIVE",
}
LEAST_ROUNDS = 10  # advised where no case could be decided
COUNTED = REPORT_ONLY  # told as "2 of 30"


def check_document(gate: Gate) -> Document:
    """What was compared with what, a paragraph a case, and what it comes to, gravest first."""
    names = case_cells(each.case for each in (*gate.found.together, *gate.found.findings))
    findings = [*gate.found.together, *ordered(gate.found.findings)]
    rows = [_row(finding) | {"case": names[finding.case]} for finding in findings]
    several = len(gate.found.policy.metrics) > 1
    columns = [column for column in COLUMNS if several or column.name != "metric"]
    return Document(
        name="check",
        title=f"Check against {gate.name}" if gate.name else "Check against other code",
        answer=tuple(conclusions(gate)),
        facts=tuple(gate_facts(gate)),
        tables=(table(rows, columns, layout=Layout.PARAGRAPHS),) if rows else (),
        notes=tuple(gate_summary(gate)),
        data=_data(gate),
    )


def _row(each: CaseFinding) -> dict[str, Content]:
    identity: dict[str, Content] = {
        "verdict": verdict_cell(each.verdict),
        "case": each.case,
        "metric": each.metric,
        "notes": _notes(each),
    }
    first, again = each.first, each.confirmation
    if first is None:
        return identity | (_seen(each.seen, UNITS[each.metric]) if each.seen else {})
    limit = Number(each.threshold, "%", exact=True)
    return identity | {
        **_evidence(each, first),
        "limit": Cell((limit, f"({each.threshold_from})")),
        "spread": number(each.spread, "%"),
        "size": number(each.size, "×"),
        "measured again": _second(_evidence(each, again)) if again else None,
    }


def _seen(found: UntestedMedians, unit: str) -> dict[str, Content]:
    """What was measured of a case that cannot be tested: it decides nothing, and is shown all the same."""
    sides = f"{found.new_processes} v {found.ref_processes} processes"
    return {
        "ratio [95 %]": Cell(("about", Number(found.ratio, "×")), unsure=True),
        "ref → new": Cell((Number(found.ref, unit), "→", Number(found.new, unit))),
        "processes": sides,
    }


def _evidence(finding: CaseFinding, result: TestResult) -> dict[str, Content]:
    against = fmt.count_of(result.against, "pair")
    if finding.case == TOGETHER:
        against = against if result.in_turn else fmt.count_of(result.against, "session")
    elif not result.in_turn:
        against = f"{fmt.count_of(result.processes, 'process')} v {fmt.count_of(result.against, 'session')}"
    cells = evidence(result, UNITS[finding.metric], finding.verdict)
    return {**cells, "processes": against}


def _second(found: Mapping[str, Content]) -> Cell:
    """The evidence of the second measurement in one cell."""
    columns = [column for column in COLUMNS if column.line == 1]
    return Cell(tuple(paragraph(columns, [cell(found.get(column.name)) for column in columns])))


def _data(gate: Gate) -> dict[str, Any]:
    """Everything: the rule, both tests of every case, thresholds with their origin, the exit code."""
    found, policy = gate.found, gate.found.policy
    again = found.confirmation
    return {
        "schema": SCHEMA,
        "exit_code": gate.exit_code,
        "endings": [each.value for each in endings(found)],
        "conclusions": list(map(str, conclusions(gate))),
        "baseline": {"name": gate.name or None, "sessions": [_head(each) for each in found.sessions]},
        "run": _head(found.new),
        "confirmation": again and {"run": _head(again.new), "ref": again.ref and _head(again.ref)},
        "damaged": found.new.damaged,
        "note": gate.note,
        "alpha": ALPHA,
        "metrics": [{"name": each.name, "better": each.better, "unit": each.unit} for each in policy.metrics],
        "stages": 2 if policy.confirm else 1,
        "in_turn": {"first": found.interleaved, "confirmation": policy.interleaved},
        "assumed_spread": policy.assumed,
        "variance": policy.variance,
        "strict_env": policy.strict_env,
        "tested": found.tested,
        "common_factor": found.common and asdict(found.common),
        "changes": found.changes,
        "idle_thresholds": found.unused_thresholds,
        "missing": [asdict(each) for each in found.missing],
        "counts": verdict_counts(each.verdict for each in found.findings),
        "together": [asdict(each) for each in found.together],
        "findings": [asdict(each) for each in ordered(found.findings)],
    }


def case_verdicts(found: GateResult) -> list[CaseVerdict]:
    """Verdicts for what CI systems read: `latency_s slower: 1.080× …; limit 5% (default); again: …`."""
    return [
        CaseVerdict(
            case=each.case,
            verdict=each.verdict,
            ratio=each.size or (deciding(each).ratio if each.first else None),
            text=fmt.visible(f"{each.metric} {each.verdict}: {'; '.join(_sentences(each))}"),
        )
        for each in (*found.together, *found.findings)
    ]


def ordered(findings: Sequence[CaseFinding]) -> list[CaseFinding]:
    """The findings that need someone first, then as planned."""
    rank = {verdict: place for place, verdict in enumerate(URGENT)}
    return sorted(findings, key=lambda each: rank.get(each.verdict, len(rank)))


def gate_facts(gate: Gate) -> list[str]:
    """What is compared with what, and what is different."""
    found = gate.found
    sessions, again = found.sessions, found.confirmation
    newest = sessions[-1]
    days = len(set(days_of([each.started for each in sessions])))
    together = f" on {fmt.count_of(days, 'day')}" if days < len(sessions) else ""
    held = f"{fmt.count_of(len(sessions), 'session')}{together}"
    what = f"baseline {gate.name}: {held} of {hardware_text(newest.machine)}"
    if found.interleaved:
        what = f"{_label(found.new)}, interleaved with {_label(newest)}: one process of each per round"
    lines = [
        what,
        f"{'baseline' if found.interleaved else 'newest session'}: run {newest.id}, {newest.started}",
        f"checked: run {found.new.id}, {found.new.started}",
        *(f"{each.name}, {each.better} is better" for each in found.policy.metrics),
    ]
    if tested := [each.first.against for each in found.findings if each.provisional and each.first]:
        assumed = fmt.share(found.policy.assumed)
        lines.append(
            f"provisional: {min(tested)} of {MIN_SESSIONS} sessions; "
            f"the spread between sessions is assumed to be {assumed}"
        )
    if any(each.heavy_tails for each in found.findings):
        lines.append(HEAVY_TAILS)
    lines += [_relative_to(finding) for finding in found.together if finding.first]
    if again:
        turn = f" interleaved with the baseline's code, {again.ref.id}" if again.ref else ""
        lines.append(f"measured again: run {again.new.id}{turn}")
    lines += [gate.note] if gate.note else []
    lines += [f"changed: {', '.join(found.changes)}"] if found.changes else []
    lines += [f"damaged, not checked: {'; '.join(found.new.damaged)}"] if found.new.damaged else []
    lines += (
        [f"thresholds that name no case: {', '.join(found.unused_thresholds)}"]
        if found.unused_thresholds
        else []
    )
    return lines


def _relative_to(finding: CaseFinding) -> str:
    """`all cases together: 4 % slower (same); each case is judged relative to that`."""
    ratio = deciding(finding).ratio
    words = ("slower", "faster") if finding.metric == "latency_s" else ("higher", "lower")
    subject = "" if finding.metric == "latency_s" else f"{finding.metric} "
    change = f"{subject}{fmt.share(abs(ratio - 1))} {words[ratio < 1]}"
    return f"{finding.case}: {change} ({finding.verdict}); each case is judged relative to that"


def _label(found: Digest) -> str:
    return found.partner.label if found.partner else found.id


def gate_summary(gate: Gate) -> list[str]:
    """How many got which verdict, and what this check could have seen."""
    counted = verdict_counts(each.verdict for each in gate.found.findings)
    counts = ", ".join(f"{count} {name}" for name, count in counted.items()) or "no case"
    mdes = [each.first.mde for each in gate.found.findings if each.first]
    if not mdes:
        return [counts]
    sight = f"a change of {fmt.share(median(mdes))} in the median case, of {fmt.share(max(mdes))} in each"
    common = moved_alike(gate.found.common)
    return [counts, *common, f"could have detected, 4 times in 5: {sight}"]


def _sentences(each: CaseFinding) -> list[str]:
    """The paragraph of a case below its name."""
    columns = [column for column in COLUMNS if column.line]
    row = _row(each)
    return paragraph(columns, [cell(row.get(column.name)) for column in columns])


def _notes(each: CaseFinding) -> str:
    stopped = imprecise(each.stopped_by, each.metric) if each.first else ""
    return "; ".join(filter(None, (each.work, each.reason, stopped)))


def _head(found: Digest) -> dict[str, Any]:
    return {
        "id": found.id,
        "started": found.started,
        "version": found.version,
        "machine": asdict(found.machine),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A check and what was asked of it; `name` is the baseline's."""

    name: str
    found: GateResult
    inconclusive: Inconclusive | None = None
    exit_zero: bool = False
    where: str = ""  # ` --results FOLDER`, where a command to type needs it
    note: str = ""  # why nothing was measured again, if so

    @property
    def fails_undecided(self) -> bool:
        """Whether undecided cases fail the check."""
        return fails_undecided(self.found, self.inconclusive)

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return exit_code(self.found, inconclusive=self.inconclusive, exit_zero=self.exit_zero)


def conclusions(gate: Gate) -> list[Cell]:
    """PASS, or a line per cause in the order told; cases that cannot be told share a line per reason."""
    behind = endings(gate.found)
    lines = [Cell((_passed(gate.found),), Tone.GOOD)] if _passes(gate) else []
    for each, causes in behind.items():
        tone = Tone.WARNING if each is Ending.INCONCLUSIVE and not gate.fails_undecided else Tone.BAD
        for count, text in _told(each, causes):
            share = f" {count} of {_total(gate.found, each)}" if each in COUNTED else ""
            lines.append(Cell((f"{TITLES[each]}{share}: {text}",), tone))
    advice = (*_after_upgrade(gate), *_decided_by_code(gate, behind), *_remedies(gate, behind))
    return [*lines, *(Cell((line,)) for line in advice)]


def _passes(gate: Gate) -> bool:
    """Whether some case was judged, none became worse, and what cannot be told fails nothing."""
    behind = set(endings(gate.found))
    harmless = behind <= {Ending.INCONCLUSIVE} and not (gate.fails_undecided and behind)
    return harmless and decided_count(gate.found.findings) > 0


def _passed(found: GateResult) -> str:
    count = decided_count(found.findings)
    return f"PASS: no regression in {count}{f' of {found.tested}' if count < found.tested else ''}"


def _total(found: GateResult, ending: Ending) -> int:
    return len(found.findings) if ending is Ending.INCONCLUSIVE else found.tested


def _told(ending: Ending, causes: Sequence[Cause]) -> list[tuple[int, str]]:
    """How many cases, and what is said of them: all that became worse, else those of each reason."""
    if ending is Ending.NOTHING_TESTED:
        return [(0, "no case could be tested")]
    if ending in (Ending.REGRESSED, Ending.PROVISIONAL):
        return [(len(causes), _complaint(each)) for each in causes if isinstance(each, CaseFinding)]
    reasons: dict[str, list[str]] = {}
    for each in causes:
        reasons.setdefault(each.reason, []).append(each.case)
    told = []
    for reason, cases in reasons.items():
        several = "" if ending in COUNTED else f"{len(cases)} cases: "
        told.append((len(cases), (f"{cases[0]}: " if len(cases) == 1 else several) + reason))
    return told


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
    """Workloads whose version is another than in the newest session: `conv2d 1 → 2`."""
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


def _remedies(gate: Gate, behind: Mapping[Ending, object]) -> list[str]:
    """The ways to decide a check that compared cases and decided none."""
    if Ending.INCONCLUSIVE not in behind or decided_count(gate.found.findings):
        return []
    rounds = max(LEAST_ROUNDS, 2 * gate.found.new.policy.rounds)
    longer = f"more time (--rounds {rounds}), or a quieter machine (--wait-for-idle 10m)"
    code = "" if gate.found.interleaved else ", or both sides in the same minutes (--ab rev:COMMIT)"
    return [f"no case could be decided; what helps: {longer}{code}"]


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


def baselines_document(baselines: Mapping[str, SessionsByMachine]) -> Document:
    """A row per baseline and machine; for programs, with the runs."""
    fields: list[dict[str, Any]] = [
        {
            "baseline": name,
            "machine": machine,
            "hardware": hardware_text(sessions[-1].machine),
            "sessions": len(sessions),
            "cases": len(_sides_by_case(sessions)),
            "newest": sessions[-1].started,
            "runs": [each.id for each in sessions],
        }
        for name, sessions_by_machine in baselines.items()
        for machine, sessions in sessions_by_machine.items()
    ]
    rows = [{name: value for name, value in row.items() if name != "runs"} for row in fields]
    return Document(name="baselines", title="Baselines", tables=(table(rows),), data=fields)


def baseline_document(name: str, sessions_by_machine: SessionsByMachine, metric: Metric) -> Document:
    """A table per machine: of each case the geometric mean of its sessions, and how much they differ."""
    fields = [
        {"machine": machine, "case": case, **_sessions_summary(sides, metric)}
        for machine, sessions in sessions_by_machine.items()
        for case, sides in _sides_by_case(sessions).items()
    ]
    names = case_cells(each["case"] for each in fields)
    tables = (
        table(
            (_baseline_row(each, names, metric) for each in fields if each["machine"] == machine),
            title=f"{hardware_text(sessions[-1].machine)}, {machine}: {count_of(len(sessions), 'session')}",
        )
        for machine, sessions in sessions_by_machine.items()
    )
    return Document(
        name="baseline",
        title=f"Baseline {name}",
        tables=tuple(tables),
        data=fields,
    )


def accepted_lines(name: str, done: Acceptance) -> list[str]:
    """What was accepted, and what the baseline's machine has now."""
    session, count = done.session, len(done.session.cases)
    failed = sum(bool(side.failure) for side in session.cases.values())
    commit = f", commit {naming.short(session.commit)}" if session.commit else ""
    lines = [f"accepted run {session.id}{commit}, {count_of(count, 'case')}"]
    if failed:
        lines.append(f"{failed} of them failed: a check cannot use them")
    lines.append(f"{name}: {done.runs} of {MAX_SESSIONS} sessions of {hardware_text(session.machine)}")
    if done.days < done.runs:
        lines.append(f"runs of one day count as one session: {done.days} of {done.runs} count")
    if done.days < MIN_SESSIONS:
        lines.append(f"provisional: {done.days} of {MIN_SESSIONS} sessions; record the others on other days")
    return [visible(line) for line in lines]


def _baseline_row(fields: Mapping[str, Any], names: Mapping[str, Cell], metric: Metric) -> dict[str, Content]:
    return {
        "case": names[fields["case"]],
        metric.name: number_or_dash(fields["value"], metric.unit),
        "spread": number_or_dash(fields["spread"], "%"),
        "sessions": fields["sessions"],
        "processes": fields["processes"],
        "note": fields["note"],
    }


def _sides_by_case(sessions: Sequence[Digest]) -> dict[str, list[CaseDigest]]:
    cases: dict[str, list[CaseDigest]] = {}
    for session in sessions:
        for case, side in session.cases.items():
            cases.setdefault(case, []).append(side)
    return cases


def _sessions_summary(sides: Sequence[CaseDigest], metric: Metric) -> dict[str, Any]:
    """The sessions that have the metric, in numbers; why the newest has not, if so."""
    logs = [each for side in sides if (each := side.logs(metric))]
    places = [mean(each) for each in logs]
    newest = sides[-1]
    return {
        "value": math.exp(mean(places)) if places else None,
        "spread": deviation(places) if len(places) > 1 else None,
        "sessions": len(places),
        "processes": sum(map(len, logs)),
        "note": newest.failure or newest.absent,
    }
