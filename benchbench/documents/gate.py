"""Checks and baselines as documents: what was compared, the evidence for each case, and the conclusions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.digest import CaseDigest, Digest
from benchbench.analyse.metrics import Metric
from benchbench.analyse.rows import UNITS
from benchbench.documents.comparison import (
    EVIDENCE_COLUMNS,
    evidence,
    precision_note,
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
from benchbench.gate.baselines import Acceptance, SessionsByMachine, hardware_text
from benchbench.judging.case_tests import TOGETHER
from benchbench.judging.check import (
    MAX_SESSIONS,
    REPORT_ONLY,
    CaseFinding,
    Cause,
    Ending,
    GateResult,
    UntestedMedians,
    decided_count,
    endings,
    exit_code,
    fails_undecided,
)
from benchbench.judging.comparison import ALPHA
from benchbench.judging.sessions import MIN_SESSIONS, days_of
from benchbench.judging.significance import TestResult
from benchbench.model.case import Verdict
from benchbench.model.options import Inconclusive
from benchbench.stats import deviation, mean, median
from benchbench.store import disk
from benchbench.store.disk import DIRTY

SCHEMA = 1  # of the JSON. 1: first

HEAVY_TAILS = "some sessions are far from the rest, so they do not predict a further one"
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
MIN_ADVISED_ROUNDS = 10  # if no case could be decided


def check_document(gate: Gate) -> Document:
    """Document with the facts, a paragraph per case, and the conclusions, most serious first."""
    names = case_cells(finding.case for finding in (*gate.result.together, *gate.result.findings))
    findings = [*gate.result.together, *ordered(gate.result.findings)]
    rows = [_finding_row(finding) | {"case": names[finding.case]} for finding in findings]
    several = len(gate.result.policy.metrics) > 1
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


def _finding_row(finding: CaseFinding) -> dict[str, Content]:
    identity: dict[str, Content] = {
        "verdict": verdict_cell(finding.verdict),
        "case": finding.case,
        "metric": finding.metric,
        "notes": _notes_text(finding),
    }
    first, again = finding.first, finding.confirmation
    if first is None:
        return identity | (_seen_cells(finding.seen, UNITS[finding.metric]) if finding.seen else {})
    limit = Number(finding.threshold, "%", exact=True)
    return identity | {
        **_evidence_cells(finding, first),
        "limit": Cell((limit, f"({finding.threshold_from})")),
        "spread": number(finding.spread, "%"),
        "measured again": _combined_cell(_evidence_cells(finding, again)) if again else None,
    }


def _seen_cells(seen: UntestedMedians, unit: str) -> dict[str, Content]:
    """Cells of a case that could not be tested: its measurements, which decide nothing."""
    sides = f"{seen.new_processes} v {seen.ref_processes} processes"
    return {
        "ratio [95 %]": Cell(("about", Number(seen.ratio, "×")), unsure=True),
        "ref → new": Cell((Number(seen.ref, unit), "→", Number(seen.new, unit))),
        "processes": sides,
    }


def _evidence_cells(finding: CaseFinding, result: TestResult) -> dict[str, Content]:
    against = fmt.count_of(result.against, "pair")
    if finding.case == TOGETHER:
        against = against if result.in_turn else fmt.count_of(result.against, "session")
    elif not result.in_turn:
        against = f"{fmt.count_of(result.processes, 'process')} v {fmt.count_of(result.against, 'session')}"
    cells = evidence(result, UNITS[finding.metric], finding.verdict)
    return {**cells, "processes": against}


def _combined_cell(cells: Mapping[str, Content]) -> Cell:
    """All evidence of a second measurement in one cell."""
    columns = [column for column in COLUMNS if column.line == 1]
    return Cell(tuple(paragraph(columns, [cell(cells.get(column.name)) for column in columns])))


def _data(gate: Gate) -> dict[str, Any]:
    """JSON form: the rule, both tests of every case, thresholds with their source, and the exit code."""
    result, policy = gate.result, gate.result.policy
    again = result.confirmation
    return {
        "schema": SCHEMA,
        "exit_code": gate.exit_code,
        "endings": [ending.value for ending in endings(result)],
        "conclusions": list(map(str, conclusions(gate))),
        "baseline": {
            "name": gate.name or None,
            "sessions": [_digest_fields(session) for session in result.sessions],
        },
        "run": _digest_fields(result.new),
        "confirmation": again
        and {"run": _digest_fields(again.new), "ref": again.ref and _digest_fields(again.ref)},
        "damaged": result.new.damaged,
        "note": gate.note,
        "alpha": ALPHA,
        "metrics": [
            {"name": metric.name, "better": metric.better, "unit": metric.unit} for metric in policy.metrics
        ],
        "stages": 2 if policy.confirm else 1,
        "in_turn": {"first": result.interleaved, "confirmation": policy.interleaved},
        "assumed_spread": policy.assumed,
        "strict_env": policy.strict_env,
        "tested": result.tested,
        "changes": result.changes,
        "idle_thresholds": result.unused_thresholds,
        "missing": [asdict(case) for case in result.missing],
        "counts": verdict_counts(finding.verdict for finding in result.findings),
        "together": [asdict(finding) for finding in result.together],
        "findings": [asdict(finding) for finding in ordered(result.findings)],
    }


def case_verdicts(result: GateResult) -> list[CaseVerdict]:
    """Verdicts for CI systems, with texts such as `latency_s slower: 1.080× …; limit 5% (default)`."""
    return [
        CaseVerdict(
            case=finding.case,
            verdict=finding.verdict,
            ratio=deciding(finding).ratio if finding.first else None,
            text=fmt.visible(f"{finding.metric} {finding.verdict}: {'; '.join(_finding_lines(finding))}"),
        )
        for finding in (*result.together, *result.findings)
    ]


def ordered(findings: Sequence[CaseFinding]) -> list[CaseFinding]:
    """Sort findings by urgency, then in plan order."""
    rank = {verdict: place for place, verdict in enumerate(URGENT)}
    return sorted(findings, key=lambda finding: rank.get(finding.verdict, len(rank)))


def gate_facts(gate: Gate) -> list[str]:
    """Lines on what was compared, and what differs."""
    result = gate.result
    sessions, again = result.sessions, result.confirmation
    newest = sessions[-1]
    days = len(set(days_of([session.started for session in sessions])))
    on_days = f" on {fmt.count_of(days, 'day')}" if days < len(sessions) else ""
    sessions_text = f"{fmt.count_of(len(sessions), 'session')}{on_days}"
    subject = f"baseline {gate.name}: {sessions_text} of {hardware_text(newest.machine)}"
    if result.interleaved:
        labels = f"{_digest_label(result.new)}, interleaved with {_digest_label(newest)}"
        subject = f"{labels}: one process of each per round"
    lines = [
        subject,
        f"{'baseline' if result.interleaved else 'newest session'}: run {newest.id}, {newest.started}",
        f"checked: run {result.new.id}, {result.new.started}",
        *(f"{metric.name}, {metric.better} is better" for metric in result.policy.metrics),
    ]
    if counts := [
        finding.first.against for finding in result.findings if finding.provisional and finding.first
    ]:
        assumed = fmt.share(result.policy.assumed)
        lines.append(
            f"provisional: {min(counts)} of {MIN_SESSIONS} sessions; "
            f"the spread between sessions is assumed to be {assumed}"
        )
    if any(finding.heavy_tails for finding in result.findings):
        lines.append(HEAVY_TAILS)
    lines += [_common_change_text(finding) for finding in result.together if finding.first]
    if again:
        turn = f" interleaved with the baseline's code, {again.ref.id}" if again.ref else ""
        lines.append(f"measured again: run {again.new.id}{turn}")
    lines += [gate.note] if gate.note else []
    lines += [f"changed: {', '.join(result.changes)}"] if result.changes else []
    lines += [f"damaged, not checked: {'; '.join(result.new.damaged)}"] if result.new.damaged else []
    lines += (
        [f"thresholds that name no case: {', '.join(result.unused_thresholds)}"]
        if result.unused_thresholds
        else []
    )
    return lines


def _common_change_text(finding: CaseFinding) -> str:
    """`all cases together: 4 % slower (same); each case is judged relative to that`."""
    ratio = deciding(finding).ratio
    words = ("slower", "faster") if finding.metric == "latency_s" else ("higher", "lower")
    subject = "" if finding.metric == "latency_s" else f"{finding.metric} "
    change = f"{subject}{fmt.share(abs(ratio - 1))} {words[ratio < 1]}"
    return f"{finding.case}: {change} ({finding.verdict}); each case is judged relative to that"


def _digest_label(digest: Digest) -> str:
    return digest.partner.label if digest.partner else digest.id


def gate_summary(gate: Gate) -> list[str]:
    """Counts of the verdicts, and the change that the check could have detected."""
    by_verdict = verdict_counts(finding.verdict for finding in gate.result.findings)
    counts = ", ".join(f"{count} {name}" for name, count in by_verdict.items()) or "no case"
    mdes = [finding.first.mde for finding in gate.result.findings if finding.first]
    if not mdes:
        return [counts]
    sight = f"a change of {fmt.share(median(mdes))} in the median case, of {fmt.share(max(mdes))} in each"
    return [counts, f"could have detected, 4 times in 5: {sight}"]


def _finding_lines(finding: CaseFinding) -> list[str]:
    """Lines of a finding's paragraph, without its name."""
    columns = [column for column in COLUMNS if column.line]
    row = _finding_row(finding)
    return paragraph(columns, [cell(row.get(column.name)) for column in columns])


def _notes_text(finding: CaseFinding) -> str:
    precision = precision_note(finding.stopped_by, finding.metric) if finding.first else ""
    return "; ".join(filter(None, (finding.work, finding.reason, precision)))


def _digest_fields(digest: Digest) -> dict[str, Any]:
    return {
        "id": digest.id,
        "started": digest.started,
        "version": digest.version,
        "machine": asdict(digest.machine),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A check with its options. `name` is the baseline, empty if two code versions were compared."""

    name: str
    result: GateResult
    inconclusive: Inconclusive | None = None
    exit_zero: bool = False
    results_option: str = ""  # ` --results FOLDER` for suggested commands, or empty
    note: str = ""  # reason why no case was measured again

    @property
    def fails_undecided(self) -> bool:
        """True if undecided cases fail the check."""
        return fails_undecided(self.result, self.inconclusive)

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return exit_code(self.result, inconclusive=self.inconclusive, exit_zero=self.exit_zero)


def conclusions(gate: Gate) -> list[Cell]:
    """PASS, or a line for each cause; undecided cases share a line per reason. Advice comes last."""
    causes_by_ending = endings(gate.result)
    lines = [Cell((_pass_line(gate.result),), Tone.GOOD)] if _passes(gate) else []
    for ending, causes in causes_by_ending.items():
        tone = Tone.WARNING if ending is Ending.INCONCLUSIVE and not gate.fails_undecided else Tone.BAD
        for count, text in _ending_lines(ending, causes):
            share = f" {count} of {_case_total(gate.result, ending)}" if ending in REPORT_ONLY else ""
            lines.append(Cell((f"{TITLES[ending]}{share}: {text}",), tone))
    advice = (
        *_upgrade_advice(gate),
        *_ab_advice(gate, causes_by_ending),
        *_remedy_advice(gate, causes_by_ending),
    )
    return [*lines, *(Cell((line,)) for line in advice)]


def _passes(gate: Gate) -> bool:
    """True if a case was judged, none became worse, and undecided cases do not fail the check."""
    seen_endings = set(endings(gate.result))
    harmless = seen_endings <= {Ending.INCONCLUSIVE} and not (gate.fails_undecided and seen_endings)
    return harmless and decided_count(gate.result.findings) > 0


def _pass_line(result: GateResult) -> str:
    """`PASS: no regression in 28 of 30`: the cases that could be judged, and all tested ones if more."""
    count = decided_count(result.findings)
    return f"PASS: no regression in {count}{f' of {result.tested}' if count < result.tested else ''}"


def _case_total(result: GateResult, ending: Ending) -> int:
    """Number of cases that the count of an ending refers to."""
    return len(result.findings) if ending is Ending.INCONCLUSIVE else result.tested


def _ending_lines(ending: Ending, causes: Sequence[Cause]) -> list[tuple[int, str]]:
    """Number of cases and text of each line: one line per regression, otherwise one per reason."""
    if ending is Ending.NOTHING_TESTED:
        return [(0, "no case could be tested")]
    if ending in (Ending.REGRESSED, Ending.PROVISIONAL):
        return [(len(causes), _regression_text(cause)) for cause in causes if isinstance(cause, CaseFinding)]
    cases_by_reason: dict[str, list[str]] = {}
    for cause in causes:
        cases_by_reason.setdefault(cause.reason, []).append(cause.case)
    lines = []
    for reason, cases in cases_by_reason.items():
        several = "" if ending in REPORT_ONLY else f"{len(cases)} cases: "
        lines.append((len(cases), (f"{cases[0]}: " if len(cases) == 1 else several) + reason))
    return lines


def _upgrade_advice(gate: Gate) -> list[str]:
    """Workloads that are measured differently now, and the command that accepts the new times."""
    upgrades = _upgrades(gate.result)
    if not upgrades or not gate.name:
        return []
    command = f"accelbench baseline set {gate.name} {gate.result.new.id}{gate.results_option}"
    return [
        f"measured differently now, so earlier times do not count: {', '.join(upgrades)}",
        f"to accept the new times: {command}",
    ]


def _upgrades(result: GateResult) -> list[str]:
    """Workloads whose version differs from the newest session: `conv2d 1 → 2`."""
    incomparable = [finding.case for finding in result.findings if finding.verdict is Verdict.INCOMPARABLE]
    upgrades: dict[str, None] = {}
    for case in incomparable:
        before, now = (side.cases.get(case, CaseDigest()) for side in (result.sessions[-1], result.new))
        if now.case and before.workload_version != now.workload_version:
            upgrades[f"{now.case.workload} {before.workload_version} → {now.workload_version}"] = None
    return list(upgrades)


def _ab_advice(gate: Gate, causes_by_ending: Mapping[Ending, object]) -> list[str]:
    if Ending.PROVISIONAL not in causes_by_ending:
        return []
    commits = [
        session.commit for session in gate.result.sessions if session.commit and DIRTY not in session.commit
    ]
    commit = commits[-1][:12] if commits else "COMMIT"
    return [
        f"to decide it now: accelbench check --baseline {gate.name} --ab rev:{commit}{gate.results_option}"
    ]


def _remedy_advice(gate: Gate, causes_by_ending: Mapping[Ending, object]) -> list[str]:
    """Advice for a check in which no case could be decided."""
    if Ending.INCONCLUSIVE not in causes_by_ending or decided_count(gate.result.findings):
        return []
    rounds = max(MIN_ADVISED_ROUNDS, 2 * gate.result.new.policy.rounds)
    longer = f"more time (--rounds {rounds}), or a quieter machine (--wait-for-idle 10m)"
    code = "" if gate.result.interleaved else ", or both sides in the same minutes (--ab rev:COMMIT)"
    return [f"no case could be decided; what helps: {longer}{code}"]


def _regression_text(finding: CaseFinding) -> str:
    """`gemm(…)/float32/eager@torch:cpu: 12 % slower (limit 5%)`."""
    ratio = deciding(finding).ratio
    size = fmt.share(abs(ratio - 1))
    direction = "slower" if finding.metric == "latency_s" else ("higher" if ratio > 1 else "lower")
    subject = "" if finding.metric == "latency_s" else f"{finding.metric} "
    return f"{finding.case}: {subject}{size} {direction} (limit {fmt.limit(finding.threshold)})"


def deciding(finding: CaseFinding) -> TestResult:
    """The decisive test: the confirmation if there is one, otherwise the first measurement."""
    result = finding.confirmation or finding.first
    assert result
    return result


def baselines_document(baselines: Mapping[str, SessionsByMachine]) -> Document:
    """Document with a row per baseline and machine; the JSON form includes the runs."""
    fields: list[dict[str, Any]] = [
        {
            "baseline": name,
            "machine": machine,
            "hardware": hardware_text(sessions[-1].machine),
            "sessions": len(sessions),
            "cases": len(_digests_by_case(sessions)),
            "newest": sessions[-1].started,
            "runs": [session.id for session in sessions],
        }
        for name, sessions_by_machine in baselines.items()
        for machine, sessions in sessions_by_machine.items()
    ]
    rows = [{name: value for name, value in row.items() if name != "runs"} for row in fields]
    return Document(name="baselines", title="Baselines", tables=(table(rows),), data=fields)


def baseline_document(name: str, sessions_by_machine: SessionsByMachine, metric: Metric) -> Document:
    """Document with a table per machine: mean of each case over the sessions, and their spread."""
    fields = [
        {"machine": machine, "case": case, **_sessions_summary(sides, metric)}
        for machine, sessions in sessions_by_machine.items()
        for case, sides in _digests_by_case(sessions).items()
    ]
    names = case_cells(row["case"] for row in fields)
    tables = (
        table(
            (_baseline_row(row, names, metric) for row in fields if row["machine"] == machine),
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


def accepted_lines(name: str, acceptance: Acceptance) -> list[str]:
    """The accepted run and the state of the baseline."""
    session, count = acceptance.session, len(acceptance.session.cases)
    failed = sum(bool(side.failure) for side in session.cases.values())
    commit = f", commit {disk.short(session.commit)}" if session.commit else ""
    lines = [f"accepted run {session.id}{commit}, {count_of(count, 'case')}"]
    if failed:
        lines.append(f"{failed} of them failed: a check cannot use them")
    lines.append(f"{name}: {acceptance.runs} of {MAX_SESSIONS} sessions of {hardware_text(session.machine)}")
    if acceptance.days < acceptance.runs:
        lines.append(f"runs of one day count as one session: {acceptance.days} of {acceptance.runs} count")
    if acceptance.days < MIN_SESSIONS:
        lines.append(
            f"provisional: {acceptance.days} of {MIN_SESSIONS} sessions; record the others on other days"
        )
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


def _digests_by_case(sessions: Sequence[Digest]) -> dict[str, list[CaseDigest]]:
    cases: dict[str, list[CaseDigest]] = {}
    for session in sessions:
        for case, side in session.cases.items():
            cases.setdefault(case, []).append(side)
    return cases


def _sessions_summary(sides: Sequence[CaseDigest], metric: Metric) -> dict[str, Any]:
    """Numbers of the sessions that have the metric, and the reason if the newest has none."""
    logs = [values for side in sides if (values := side.logs(metric))]
    means = [mean(values) for values in logs]
    newest = sides[-1]
    return {
        "value": math.exp(mean(means)) if means else None,
        "spread": deviation(means) if len(means) > 1 else None,
        "sessions": len(means),
        "processes": sum(map(len, logs)),
        "note": newest.failure or newest.absent,
    }
