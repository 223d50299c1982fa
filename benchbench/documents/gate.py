"""A check as text: for a terminal, for Markdown and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchbench import format as fmt
from benchbench.analyse.digest import SETTLED, Digest
from benchbench.analyse.metrics import METRICS
from benchbench.comparing.verdicts import ALPHA
from benchbench.documents.run import CaseVerdict
from benchbench.exporters.markdown import escaped
from benchbench.gate.baselines import hardware
from benchbench.gate.decide import Check, Ending, Finding, endings, exit_code
from benchbench.gate.significance import Look
from benchbench.gate.spread import ENOUGH
from benchbench.model.status import Verdict
from benchbench.stats import median

SCHEMA = 1  # of the JSON. 1: first

UNITS = {metric.name: metric.unit for metric in METRICS}
URGENT = (Verdict.SLOWER, Verdict.BROKEN, Verdict.INCOMPARABLE, Verdict.GONE, Verdict.INCONCLUSIVE)
UNSURE = (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT)
NOTHING = "NOT COMPARABLE: no case could be tested"
TITLES = {
    Ending.REGRESSED: "FAIL",
    Ending.FAILED: "BROKEN",
    Ending.NOT_COMPARABLE: "NOT COMPARABLE",
    Ending.INCONCLUSIVE: "INCONCLUSIVE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A check and what was asked of it; `name` is the baseline's."""

    name: str
    found: Check
    strict: bool = False
    exit_zero: bool = False
    note: str = ""  # why nothing was measured again, if so

    @property
    def exit_code(self) -> int:
        """Of the process."""
        return exit_code(self.found, strict=self.strict, exit_zero=self.exit_zero)


def terminal(gate: Gate) -> str:
    """Two to four lines a case: no column to cut off on a narrow terminal."""
    width = max(map(len, Verdict))
    lines = [*head(gate), ""]
    for each in ordered(gate.found.findings):
        lines.append(f"{each.verdict:{width}}  {fmt.visible(each.case)}{_metric(gate, each)}")
        lines += [f"{'':{width}}  {text}" for text in _sentences(each)]
    return "\n".join([*lines, *([""] if gate.found.findings else []), *foot(gate)]) + "\n"


def markdown(gate: Gate) -> str:
    """The conclusion first: a comment is read from its top."""
    names = ["case", "verdict", "ratio [95 %]", "limit", "p", "MDE", "measured again", "notes"]
    rows = [names, ["---"] * len(names)]
    for each in ordered(gate.found.findings):
        first, again = each.first, each.confirmation
        texts = (
            fmt.visible(each.case) + _metric(gate, each),
            str(each.verdict),
            _ratio(first) if first else "",
            fmt.share(each.threshold),
            fmt.probability(first.p_holm) if first else "",
            fmt.share(first.mde) if first else "",
            f"{_ratio(again)} p {fmt.probability(again.p_holm)}" if again else "",
            _notes(each),
        )
        rows.append([escaped(text) for text in texts])
    table = [f"| {' | '.join(row)} |" for row in rows] if gate.found.findings else []
    parts = [
        [f"- {escaped(line)}" for line in part] for part in (conclusions(gate), head(gate), summary(gate))
    ]
    return "\n\n".join("\n".join(part) for part in (parts[0], table, parts[1], parts[2]) if part) + "\n"


def json_object(gate: Gate) -> str:
    """Everything: the rule, both looks of every case, thresholds with their origin, the exit code."""
    found, rules = gate.found, gate.found.rules
    again = found.confirmation
    content = {
        "schema": SCHEMA,
        "exit_code": gate.exit_code,
        "endings": [each.name.lower() for each in endings(found, strict=gate.strict)],
        "conclusions": conclusions(gate),
        "baseline": {"name": gate.name or None, "sessions": [_head(each) for each in found.sessions]},
        "run": _head(found.new),
        "confirmation": again and {"run": _head(again.new), "ref": again.ref and _head(again.ref)},
        "note": gate.note,
        "alpha": ALPHA,
        "metrics": [{"name": each.name, "better": each.better, "unit": each.unit} for each in rules.metrics],
        "stages": 2 if rules.confirm else 1,
        "in_turn": {"first": found.in_turn, "confirmation": rules.in_turn},
        "assumed_spread": rules.assumed,
        "strict_env": rules.strict_env,
        "tested": found.tested,
        "changes": found.changes,
        "idle_thresholds": found.idle,
        "counts": _counts(found),
        "findings": [asdict(each) for each in ordered(found.findings)],
    }
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def judged(found: Check) -> list[CaseVerdict]:
    """For the exporters: `latency_s slower: 1.080× …; limit 5 % (default); again: …`."""
    return [
        CaseVerdict(
            case=each.case,
            verdict=each.verdict,
            ratio=_last(each).ratio if each.first else None,
            text=f"{each.metric} {each.verdict}: {'; '.join(_sentences(each))}",
        )
        for each in found.findings
    ]


def _last(each: Finding) -> Look:
    look = each.confirmation or each.first
    assert look
    return look


FORMATS: Mapping[str, Callable[[Gate], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "json": json_object,
}


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """What needs someone first, then as planned."""
    rank = {verdict: place for place, verdict in enumerate(URGENT)}
    return sorted(findings, key=lambda each: rank.get(each.verdict, len(rank)))


def head(gate: Gate) -> list[str]:
    """What is held against what, and what is different."""
    found = gate.found
    sessions, again = found.sessions, found.confirmation
    newest = sessions[-1]
    what = f"baseline {gate.name}: {_count(len(sessions), 'session')} of {hardware(newest.machine)}"
    if found.in_turn:
        what = f"{_label(found.new)}, in turn with {_label(newest)}: a process of either a round"
    lines = [
        what,
        f"{'baseline' if found.in_turn else 'newest session'}: run {newest.id}, {newest.started}",
        f"held against it: run {found.new.id}, {found.new.started}",
        *(f"{each.name}, {each.better} is better" for each in found.rules.metrics),
    ]
    if any(each.provisional for each in found.findings):
        assumed = fmt.share(found.rules.assumed)
        lines.append(
            f"provisional: fewer than {ENOUGH} sessions an hour apart, taken to differ by {assumed} at least"
        )
    if again:
        turn = f" in turn with the baseline's code, {again.ref.id}" if again.ref else ""
        lines.append(f"measured again: run {again.new.id}{turn}")
    lines += [gate.note] if gate.note else []
    lines += [f"changed: {', '.join(found.changes)}"] if found.changes else []
    lines += [f"damaged, not held: {'; '.join(found.new.damaged)}"] if found.new.damaged else []
    lines += [f"thresholds that name no case: {', '.join(found.idle)}"] if found.idle else []
    return [fmt.visible(line) for line in lines]


def _label(found: Digest) -> str:
    return found.partner.label if found.partner else found.id


def foot(gate: Gate) -> list[str]:
    """The summary, then what follows from it."""
    return [*summary(gate), *conclusions(gate)]


def summary(gate: Gate) -> list[str]:
    """How many got which verdict, and what this check could have seen."""
    counts = ", ".join(f"{count} {name}" for name, count in _counts(gate.found).items()) or "no case"
    mdes = [each.first.mde for each in gate.found.findings if each.first]
    if not mdes:
        return [counts]
    sight = f"a change of {fmt.share(median(mdes))} in the median case, of {fmt.share(max(mdes))} in each"
    return [counts, f"could have seen, 4 times in 5: {sight}"]


def conclusions(gate: Gate) -> list[str]:
    """A line per case that decided, gravest first."""
    found = gate.found
    behind = endings(found, strict=gate.strict)
    if not behind:
        unsure = sum(each.verdict in UNSURE for each in found.findings)
        warning = f"; {unsure} could not be told" if unsure else ""
        return [f"PASS: no regression in {found.tested}{warning}"]
    lines = []
    for each, causes in behind.items():
        share = f" {len(causes)} of {found.tested}" if each is Ending.REGRESSED else ""
        tell = _complaint if each is Ending.REGRESSED else _cause
        lines += [f"{TITLES[each]}{share}: {text}" for text in map(tell, causes)] or [NOTHING]
    return lines


def _cause(each: Finding) -> str:
    return fmt.visible(f"{each.case}: {each.reason}")


def _complaint(each: Finding) -> str:
    look = _last(each)
    size = fmt.share(abs(look.ratio - 1))
    what = "slower" if each.metric == "latency_s" else ("higher" if look.ratio > 1 else "lower")
    subject = "" if each.metric == "latency_s" else f"{each.metric} "
    return fmt.visible(f"{each.case}: {subject}{size} {what} (limit {fmt.share(each.threshold)})")


def _sentences(each: Finding) -> list[str]:
    found = []
    limit = f"limit {fmt.share(each.threshold)} ({fmt.visible(each.threshold_from)})"
    if each.first:
        found.append(_sentence(each.first, UNITS[each.metric]))
        spread = "" if each.spread is None else f", sessions differ by {fmt.share(each.spread)}"
        found.append(f"{limit}{spread}")
    if each.confirmation:
        found.append(f"again: {_sentence(each.confirmation, UNITS[each.metric])}")
    return [*found, *filter(None, [_notes(each)])]


def _sentence(look: Look, unit: str) -> str:
    against = _count(look.against, "pair")
    if not look.in_turn:
        against = f"{_count(look.processes, 'process')} v {_count(look.against, 'session')}"
    return "  ".join(
        (
            _ratio(look),
            f"{fmt.quantity(look.ref, unit)} → {fmt.quantity(look.new, unit)}",
            f"p {fmt.probability(look.p_holm)}",
            f"MDE {fmt.share(look.mde)}",
            against,
        )
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def _ratio(look: Look) -> str:
    low, high = fmt.significant(look.low), fmt.significant(look.high)
    return f"{fmt.significant(look.ratio)}× [{low}, {high}]"


def _notes(each: Finding) -> str:
    stops = [stop for stop in each.stopped_by if stop != "precision"]
    matters = stops and each.first and each.metric in SETTLED
    stopped = f"less precise than asked (stopped by {' and '.join(stops)})" if matters else ""
    return fmt.visible("; ".join(filter(None, (each.reason, stopped))))


def _metric(gate: Gate, each: Finding) -> str:
    """Its name, where a check has several."""
    return f"  {each.metric}" if len(gate.found.rules.metrics) > 1 else ""


def _counts(found: Check) -> dict[str, int]:
    counts = Counter(each.verdict for each in found.findings)
    return {str(name): counts[name] for name in Verdict if counts[name]}


def _head(found: Digest) -> dict[str, Any]:
    return {
        "id": found.id,
        "started": found.started,
        "version": found.version,
        "machine": asdict(found.machine),
    }
