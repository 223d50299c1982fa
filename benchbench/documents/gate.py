"""A check as a document: what was held against what, the evidence of each case, what it comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.digest import Digest
from benchbench.analyse.metrics import METRICS
from benchbench.documents import evidence
from benchbench.documents.conclusions import Gate, conclusions, deciding
from benchbench.documents.document import (
    Cell,
    Column,
    Content,
    Document,
    Layout,
    Number,
    cell,
    number,
    paragraph,
    table,
)
from benchbench.documents.evidence import verdict_cell
from benchbench.documents.run import CaseVerdict
from benchbench.documents.short_names import case_cells
from benchbench.gate.baselines import hardware
from benchbench.judging.check import CaseFinding, GateResult, endings
from benchbench.judging.comparison import ALPHA
from benchbench.judging.sessions import ENOUGH, days_of
from benchbench.judging.significance import TestResult
from benchbench.model.status import Verdict
from benchbench.stats import median

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
    *evidence.COLUMNS,
    Column("processes", line=1),
    Column("limit", line=2, label="limit"),
    Column("spread", line=2, label="sessions differ by"),
    Column("size", line=2, label="likely"),
    Column("measured again", line=3, label="again:"),
    Column("notes", line=4),
)


def check_document(gate: Gate) -> Document:
    """What was held against what, a paragraph a case, and what it comes to, gravest first."""
    names = case_cells(each.case for each in gate.found.findings)
    rows = [_row(each) | {"case": names[each.case]} for each in ordered(gate.found.findings)]
    several = len(gate.found.policy.metrics) > 1
    columns = [column for column in COLUMNS if several or column.name != "metric"]
    return Document(
        name="check",
        title=f"Check against {gate.name}" if gate.name else "Check against other code",
        facts=tuple(gate_facts(gate)),
        tables=(table(rows, columns, layout=Layout.PARAGRAPHS),) if rows else (),
        notes=tuple(gate_summary(gate)),
        conclusions=tuple(conclusions(gate)),
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
        return identity
    limit = Number(each.threshold, "%", exact=True)
    return identity | {
        **_evidence(each, first),
        "limit": Cell((limit, f"({each.threshold_from})")),
        "spread": number(each.spread, "%"),
        "size": number(each.size, "×"),
        "measured again": _second(_evidence(each, again)) if again else None,
    }


def _evidence(finding: CaseFinding, result: TestResult) -> dict[str, Content]:
    against = fmt.count_of(result.against, "pair")
    if not result.in_turn:
        against = f"{fmt.count_of(result.processes, 'process')} v {fmt.count_of(result.against, 'session')}"
    cells = evidence.evidence(result, UNITS[finding.metric], finding.verdict)
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
        "idle_thresholds": found.idle,
        "missing": [asdict(each) for each in found.missing],
        "counts": _counts(found),
        "findings": [asdict(each) for each in ordered(found.findings)],
    }


def case_verdicts(found: GateResult) -> list[CaseVerdict]:
    """For what CI systems read: `latency_s slower: 1.080× …; limit 5% (default); again: …`."""
    return [
        CaseVerdict(
            case=each.case,
            verdict=each.verdict,
            ratio=each.size or (deciding(each).ratio if each.first else None),
            text=fmt.visible(f"{each.metric} {each.verdict}: {'; '.join(_sentences(each))}"),
        )
        for each in found.findings
    ]


def ordered(findings: Sequence[CaseFinding]) -> list[CaseFinding]:
    """What needs someone first, then as planned."""
    rank = {verdict: place for place, verdict in enumerate(URGENT)}
    return sorted(findings, key=lambda each: rank.get(each.verdict, len(rank)))


def gate_facts(gate: Gate) -> list[str]:
    """What is held against what, and what is different."""
    found = gate.found
    sessions, again = found.sessions, found.confirmation
    newest = sessions[-1]
    days = len(set(days_of([each.started for each in sessions])))
    together = f" on {fmt.count_of(days, 'day')}" if days < len(sessions) else ""
    held = f"{fmt.count_of(len(sessions), 'session')}{together}"
    what = f"baseline {gate.name}: {held} of {hardware(newest.machine)}"
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
            f"provisional: {min(tested)} of {ENOUGH} sessions; "
            f"the spread between sessions is assumed to be {assumed}"
        )
    if any(each.heavy_tails for each in found.findings):
        lines.append(HEAVY_TAILS)
    if again:
        turn = f" interleaved with the baseline's code, {again.ref.id}" if again.ref else ""
        lines.append(f"measured again: run {again.new.id}{turn}")
    lines += [gate.note] if gate.note else []
    lines += [f"changed: {', '.join(found.changes)}"] if found.changes else []
    lines += [f"damaged, not checked: {'; '.join(found.new.damaged)}"] if found.new.damaged else []
    lines += [f"thresholds that name no case: {', '.join(found.idle)}"] if found.idle else []
    return lines


def _label(found: Digest) -> str:
    return found.partner.label if found.partner else found.id


def gate_summary(gate: Gate) -> list[str]:
    """How many got which verdict, and what this check could have seen."""
    counts = ", ".join(f"{count} {name}" for name, count in _counts(gate.found).items()) or "no case"
    mdes = [each.first.mde for each in gate.found.findings if each.first]
    if not mdes:
        return [counts]
    sight = f"a change of {fmt.share(median(mdes))} in the median case, of {fmt.share(max(mdes))} in each"
    common = evidence.moved_alike(gate.found.common)
    return [counts, *common, f"could have detected, 4 times in 5: {sight}"]


def _sentences(each: CaseFinding) -> list[str]:
    """The paragraph of a case below its name."""
    columns = [column for column in COLUMNS if column.line]
    row = _row(each)
    return paragraph(columns, [cell(row.get(column.name)) for column in columns])


def _notes(each: CaseFinding) -> str:
    stopped = evidence.imprecise(each.stopped_by, each.metric) if each.first else ""
    return "; ".join(filter(None, (each.reason, stopped)))


def _counts(found: GateResult) -> dict[str, int]:
    counts = Counter(each.verdict for each in found.findings)
    return {str(name): counts[name] for name in Verdict if counts[name]}


def _head(found: Digest) -> dict[str, Any]:
    return {
        "id": found.id,
        "started": found.started,
        "version": found.version,
        "machine": asdict(found.machine),
    }
