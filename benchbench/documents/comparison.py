"""A comparison as text: for a terminal, for Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Literal

from benchbench import format as fmt
from benchbench.comparing.verdicts import ALPHA, CaseComparison, Comparison
from benchbench.documents import verdict_text
from benchbench.exporters.csv import cell
from benchbench.exporters.markdown import escaped
from benchbench.model.run import RunInfo
from benchbench.model.status import Verdict

SCHEMA = 1  # of the JSON. 1: first

Order = Literal["ratio", "case"]


def chosen(found: Comparison, only: Collection[Verdict], order: Order) -> list[CaseComparison]:
    """The verdicts in `only`, all if it is empty; `ratio`: broken, then worst first, then without a ratio."""
    sign = -1 if found.metric.better == "lower" else 1

    def badness(verdict: CaseComparison) -> tuple[bool, bool, float]:
        known = verdict.ratio is not None
        return verdict.verdict is not Verdict.BROKEN, not known, sign * (verdict.ratio or 0.0)

    shown = [verdict for verdict in found.verdicts if not only or verdict.verdict in only]
    return sorted(shown, key=badness if order == "ratio" else lambda verdict: verdict.case)


def terminal(found: Comparison, shown: Sequence[CaseComparison]) -> str:
    """Two lines a case, three where there is a reason: no column to cut off on a narrow terminal."""
    width = max(map(len, Verdict))
    lines = [*head(found), ""]
    for verdict in shown:
        lines.append(f"{verdict.verdict:{width}}  {fmt.visible(verdict.case)}")
        lines += [
            f"{'':{width}}  {text}"
            for text in (verdict_text.sentence(verdict), verdict_text.notes(verdict))
            if text
        ]
    return "\n".join([*lines, *([""] if shown else []), *foot(found)]) + "\n"


def markdown(found: Comparison, shown: Sequence[CaseComparison]) -> str:
    """Facts, one table, the summary."""
    names = ["case", "verdict", "ratio [95 %]", "ref → new", "p", "MDE", "processes", "notes"]
    rows = [names, ["---"] * len(names)]
    for verdict in shown:
        texts = (
            fmt.visible(verdict.case),
            str(verdict.verdict),
            *verdict_text.facts(verdict),
            verdict_text.notes(verdict),
        )
        rows.append([escaped(text) for text in texts])
    table = [f"| {' | '.join(row)} |" for row in rows] if shown else []
    bullets = [[f"- {escaped(line)}" for line in part] for part in (head(found), foot(found))]
    return "\n\n".join("\n".join(part) for part in (bullets[0], table, bullets[1]) if part) + "\n"


def csv_table(_found: Comparison, shown: Sequence[CaseComparison]) -> str:
    """One line per verdict; the columns are the fields of a verdict."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in fields(CaseComparison)])
    writer.writerows([cell(value) for value in asdict(verdict).values()] for verdict in shown)
    return out.getvalue()


def json_object(found: Comparison, shown: Sequence[CaseComparison]) -> str:
    """An object with the runs, the rule, and `verdicts`; absent values are null."""
    content = {
        "schema": SCHEMA,
        "ref": _run(found.ref.info),
        "new": _run(found.new.info),
        "metric": found.metric.name,
        "better": found.metric.better,
        "threshold": found.threshold,
        "alpha": ALPHA,
        "compared": found.compared,
        "geomean": found.geomean,
        "in_turn": found.in_turn,
        "changes": found.changes,
        "counts": _counts(found),
        "verdicts": [asdict(verdict) for verdict in shown],
    }
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Comparison, Sequence[CaseComparison]], str]] = {
    "terminal": terminal,
    "markdown": markdown,
    "csv": csv_table,
    "json": json_object,
}


def head(found: Comparison) -> list[str]:
    """Which runs, what differs between them, and the rule."""
    metric, damaged = found.metric, [*found.ref.damaged, *found.new.damaged]
    worse = "; slower means worse, faster better" if metric.unit in ("B", "J") else ""
    lines = [
        f"ref: {_label(found.ref.info)}run {found.ref.info.id}, {found.ref.info.started}",
        f"new: {_label(found.new.info)}run {found.new.info.id}, {found.new.info.started}",
        f"{metric.name}, {metric.better} is better{worse}; threshold {fmt.share(found.threshold)}",
    ]
    lines += ["measured in turn: each round has a process of either side"] if found.in_turn else []
    lines += [f"changed: {', '.join(found.changes)}"] if found.changes else []
    lines += [f"damaged, not compared: {'; '.join(damaged)}"] if damaged else []
    return [fmt.visible(line) for line in lines]


def foot(found: Comparison) -> list[str]:
    """The geometric mean of what was compared, how many cases got which verdict, and what p and MDE are."""
    counts = ", ".join(f"{count} {name}" for name, count in _counts(found).items()) or "no case in either run"
    if found.geomean is None:
        return [counts]
    return [
        f"geomean of {found.compared} compared cases: {fmt.significant(found.geomean)}×",
        counts,
        f"p (Holm) and MDE hold for {found.compared} cases together; MDE: the change found 4 times in 5",
    ]


def _counts(found: Comparison) -> dict[str, int]:
    counts = Counter(verdict.verdict for verdict in found.verdicts)
    return {str(name): counts[name] for name in Verdict if counts[name]}


def _run(info: RunInfo) -> dict[str, str | None]:
    label = info.partner.label if info.partner else None
    return {"id": info.id, "started": info.started, "version": info.version, "label": label}


def _label(info: RunInfo) -> str:
    return f"{info.partner.label}, " if info.partner else ""
