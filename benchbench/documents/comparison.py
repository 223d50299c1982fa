"""A comparison of two runs as a document: what differs, the evidence of each case, and the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Literal

from benchbench import format as fmt
from benchbench.analyse.digest import STEADY_METRICS
from benchbench.analyse.metrics import METRICS
from benchbench.documents.document import (
    Cell,
    Column,
    Content,
    Document,
    Layout,
    Number,
    Part,
    Records,
    Tone,
    cell,
    number,
    paragraph,
    table,
)
from benchbench.documents.run import CaseVerdict
from benchbench.documents.short_names import case_cells
from benchbench.judging.comparison import ALPHA, CaseComparison, CommonFactor, Comparison
from benchbench.judging.significance import TestResult
from benchbench.machine.environment import same_hardware
from benchbench.model.case import Case, present_id, present_names
from benchbench.model.measurement import AS_PLANNED
from benchbench.model.run import Run, RunInfo
from benchbench.model.status import Verdict
from benchbench.plan.commands import interleaved_command

SCHEMA = 1  # of the JSON. 1: first

Order = Literal["ratio", "case"]
FIELDS = tuple(field.name for field in fields(CaseComparison))
MODES = (
    "processes cluster, as if cases had two speeds: three or four processes say little then, five would tell"
)
UNUSED = (
    "n of m processes: the first rounds, as many as the other run has, since further ones would bias the "
    "comparison; report shows all rounds, so its values differ"
)
MDE = "MDE: the change called slower 4 times in 5"
UNTOLD = "no code or version is known to differ; compare --ab measures two sides in the same minutes"
UNITS = {metric.name: metric.unit for metric in METRICS}
EVIDENCE_COLUMNS = (
    Column("ratio [95 %]", line=1),
    Column("ref → new", line=1),
    Column("p", line=1, label="p"),
    Column("MDE", line=1, label="MDE"),
)
COLUMNS = (
    Column("verdict"),
    Column("case"),
    *EVIDENCE_COLUMNS,
    Column("processes", line=1),
    Column("notes", line=2),
)
TONES = {
    Verdict.SLOWER: Tone.BAD,
    Verdict.BROKEN: Tone.BAD,
    Verdict.FASTER: Tone.GOOD,
    Verdict.INCONCLUSIVE: Tone.WARNING,
    Verdict.INSUFFICIENT: Tone.WARNING,
    Verdict.INCOMPARABLE: Tone.WARNING,
    Verdict.GONE: Tone.WARNING,
}  # every other: plain


UNCOMPARED = {Verdict.NEW, Verdict.GONE}
UNDECIDED = (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT, Verdict.INCOMPARABLE)


def select_verdicts(found: Comparison, only: Collection[Verdict], order: Order) -> list[CaseComparison]:
    """The cases of the verdicts in `only`, all if it is empty.

    `ratio`: broken first, then worst first, then without a ratio.
    """
    sign = -1 if found.metric.better == "lower" else 1

    def badness(verdict: CaseComparison) -> tuple[bool, bool, float]:
        known = verdict.ratio is not None
        return verdict.verdict is not Verdict.BROKEN, not known, sign * (verdict.ratio or 0.0)

    shown = [verdict for verdict in found.verdicts if not only or verdict.verdict in only]
    return sorted(shown, key=badness if order == "ratio" else lambda verdict: verdict.case)


def comparison_document(found: Comparison, shown: Sequence[CaseComparison]) -> Document:
    """A paragraph for each case of `shown`; the summary counts all."""
    names = case_cells(verdict.case for verdict in shown)
    rows = [_row(verdict) | {"case": names[verdict.case]} for verdict in shown]
    damaged = {"ref": found.ref.damaged, "new": found.new.damaged}
    told = {"damaged": [f"{side}: {text}" for side, texts in damaged.items() for text in texts]}
    return Document(
        name="compare",
        title=f"Comparison of {found.new.info.id} with {found.ref.info.id}",
        answer=(Cell((headline(found),)),),
        facts=tuple(_facts(found)),
        tables=(table(rows, COLUMNS, layout=Layout.PARAGRAPHS),) if rows else (),
        notes=tuple(_summary(found)),
        data=_data(found, shown) | {"damaged": damaged},
        records=Records((*FIELDS, "damaged"), tuple(asdict(verdict) | told for verdict in shown)),
    )


def headline(found: Comparison) -> str:
    """`2 of 14 cases slower, 1 faster; 3 cannot be told`."""
    counts = Counter(verdict.verdict for verdict in found.verdicts)
    if not found.verdicts:
        return "nothing could be compared"
    if set(counts) <= UNCOMPARED:
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        return f"nothing is compared: {told}"
    slower = f"{counts[Verdict.SLOWER] or 'none'} of {fmt.count_of(len(found.verdicts), 'case')} slower"
    parts = [slower, f"{counts[Verdict.FASTER] or 'none'} faster"]
    parts += [f"{counts[Verdict.BROKEN]} broken"] if counts[Verdict.BROKEN] else []
    undecided = sum(counts[each] for each in UNDECIDED)
    return ", ".join(parts) + (f"; {undecided} cannot be told" if undecided else "")


def case_verdict(verdict: CaseComparison) -> CaseVerdict:
    """A verdict for what CI systems read: `latency_s slower: 1.080× …; why`."""
    text = f"{verdict.metric} {verdict.verdict}: {'; '.join(sentences(verdict))}"
    return CaseVerdict(
        case=verdict.case, verdict=verdict.verdict, ratio=verdict.ratio, text=fmt.visible(text)
    )


def sentences(verdict: CaseComparison) -> list[str]:
    """`1.080× [1.068, 1.093]  1.00 ms → 1.08 ms  p <0.001  MDE 1.76 %  5 v 5 processes`; then why."""
    columns = [column for column in COLUMNS if column.line]
    row = _row(verdict)
    return paragraph(columns, [cell(row.get(column.name)) for column in columns])


def _row(verdict: CaseComparison) -> dict[str, Content]:
    known = verdict.ref is not None or verdict.new is not None
    sides = (
        _count(verdict.ref_processes, verdict.ref_unused),
        _count(verdict.new_processes, verdict.new_unused),
    )
    counts = Cell((f"{' v '.join(sides)} processes",))
    return {
        "verdict": verdict_cell(verdict.verdict),
        "case": verdict.case,
        **evidence(verdict, UNITS[verdict.metric], verdict.verdict),
        "processes": counts if known else None,
        "notes": _notes(verdict),
    }


def _count(compared: int, unused: int) -> str:
    return f"{compared} of {compared + unused}" if unused else str(compared)


def _notes(verdict: CaseComparison) -> str:
    """What changed in the work, why there is no other verdict, what is suspect, and slower operators."""
    stopped = imprecise(verdict.stopped_by, verdict.metric) if verdict.ratio is not None else ""
    longer = f"operators: {', '.join(verdict.operators)}" if verdict.operators else ""
    return "; ".join(filter(None, (verdict.work, verdict.reason, stopped, longer)))


def _data(found: Comparison, shown: Sequence[CaseComparison]) -> dict[str, Any]:
    """An object with the runs, the rule, and `verdicts`; absent values are None."""
    return {
        "schema": SCHEMA,
        "ref": _run(found.ref.info),
        "new": _run(found.new.info),
        "metric": found.metric.name,
        "better": found.metric.better,
        "threshold": found.threshold,
        "alpha": ALPHA,
        "compared": found.compared,
        "geomean": found.geomean,
        "common_factor": found.common and asdict(found.common),
        "in_turn": found.interleaved,
        "variance": found.variance,
        "modes": found.modes,
        "changes": found.changes,
        "apart": found.apart and asdict(found.apart),
        "interleaved_command": _interleaved(found),
        "drifts": {side: each.note.clause for side, each in found.drifts.items()},
        "counts": verdict_counts(verdict.verdict for verdict in found.verdicts),
        "verdicts": [asdict(verdict) for verdict in shown],
    }


def _facts(found: Comparison) -> list[str]:
    """Which runs, what differs between them, and the rule."""
    metric, damaged = found.metric, [*found.ref.damaged, *found.new.damaged]
    worse = "; slower means worse, faster better" if metric.unit in ("B", "J") else ""
    lines = [
        f"ref: {_label(found.ref.info)}run {found.ref.info.id}, {found.ref.info.started}",
        f"new: {_label(found.new.info)}run {found.new.info.id}, {found.new.info.started}",
        f"{metric.name}, {metric.better} is better{worse}; threshold {fmt.limit(found.threshold)}",
    ]
    names = present_names((*_asked(found.ref), *_asked(found.new)))
    ref, new = ({present_id(case.id, names) for case in _asked(run)} for run in (found.ref, found.new))
    if found.verdicts and not found.interleaved and ref.isdisjoint(new):
        alike = same_hardware(found.ref.info.machine, found.new.info.machine)
        elsewhere = "" if alike else ", and were made on different hardware"
        lines.insert(0, f"The runs have no case in common{elsewhere}: nothing is compared.")
    lines += ["ref and new are one run"] if found.ref.info.id == found.new.info.id else []
    lines += ["interleaved: each round has a process of each side"] if found.interleaved else []
    lines += [f"renamed: {former} → {name}" for former, name in names.items()]
    lines += [f"changed: {', '.join(found.changes)}"] if found.changes else []
    lines += [f"{side} {each.note.text}; intervals allow for it" for side, each in found.drifts.items()]
    begun = [side for side, run in (("ref", found.ref), ("new", found.new)) if not run.ended]
    lines += [f"interrupted, or still being measured: {' and '.join(begun)}"] if begun else []
    lines += _apart(found)
    lines += [f"damaged, not compared: {'; '.join(damaged)}"] if damaged else []
    return lines


def _asked(run: Run) -> tuple[Case, ...]:
    """The cases that were asked for."""
    return (*run.info.plan, *(out.case for out in run.info.left_out))


def _apart(found: Comparison) -> list[str]:
    """That the runs are of different hours, whether intervals hold that, and what would tell without them."""
    if found.apart is None or not found.compared:
        return []
    hours = found.apart.seconds / 3600
    began = f"began {hours / 24:.3g} days apart" if hours >= 48 else f"began {hours:.3g} hours apart"
    if found.apart.spread is None:
        lines = [f"{began}: what hours differ by is not in the intervals"]
    else:
        known = fmt.count_of(found.apart.cases, "case")
        of = "" if found.apart.cases == found.compared else f" of {known}"
        told = f"sessions of this machine differ by {fmt.share(found.apart.spread)} in the median case"
        lines = [f"{began}: {told}, and the intervals{of} hold that"]
    command = _interleaved(found)
    return [*lines, f"to measure both in the same minutes: {command}" if command else UNTOLD]


def _interleaved(found: Comparison) -> str:
    return interleaved_command(found.ref.info, found.new.info) if found.apart else ""


def _summary(found: Comparison) -> list[str]:
    """The geometric mean of what was compared, how many cases got which verdict, and what p and MDE are."""
    counted = verdict_counts(verdict.verdict for verdict in found.verdicts)
    counts = ", ".join(f"{count} {name}" for name, count in counted.items()) or "no case in either run"
    if found.geomean is None:
        return [counts, *_unused(found.verdicts)]
    return [
        f"geomean of {fmt.count_of(found.compared, 'compared case')}: {fmt.significant(found.geomean)}×",
        *moved_alike(found.common),
        counts,
        f"p (Holm) and MDE hold for {fmt.count_of(found.compared, 'case')} together; {MDE}",
        *([MODES] if found.modes else []),
        *_unused(found.verdicts),
    ]


def _unused(verdicts: Sequence[CaseComparison]) -> list[str]:
    """Why values differ from a report's where one side got more rounds."""
    if not any(each.ref_unused or each.new_unused for each in verdicts):
        return []
    return [UNUSED]


def verdict_counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many cases got each verdict, those that some got, in the order of `Verdict`."""
    counts = Counter(verdicts)
    return {str(name): counts[name] for name in Verdict if counts[name]}


def _run(info: RunInfo) -> dict[str, str | None]:
    label = info.partner.label if info.partner else None
    return {"id": info.id, "started": info.started, "version": info.version, "label": label}


def _label(info: RunInfo) -> str:
    return f"{info.partner.label}, " if info.partner else ""


def verdict_cell(verdict: Verdict) -> Cell:
    """The verdict's word, and how it is to be taken."""
    return Cell((str(verdict),), TONES.get(verdict, Tone.PLAIN))


def evidence(found: CaseComparison | TestResult, unit: str, verdict: Verdict) -> dict[str, Content]:
    """The cells of `COLUMNS`, each empty where it is not known; values are in `unit`.

    A ratio that is no ground for a verdict has a `?`.
    """
    known = found.ref is not None or found.new is not None
    ratio = number(found.ratio, "×", found.low, found.high)
    return {
        "ratio [95 %]": replace(ratio, unsure=verdict is Verdict.INSUFFICIENT and bool(ratio.parts)),
        "ref → new": Cell((_value(found.ref, unit), "→", _value(found.new, unit))) if known else None,
        "p": number(found.p_holm, "p"),
        "MDE": number(found.mde, "%"),
    }


def _value(value: float | None, unit: str) -> Part:
    return "–" if value is None else Number(value, unit)


def moved_alike(found: CommonFactor | None) -> list[str]:
    """A line where nearly every case moved the same way."""
    if found is None:
        return []
    moved = f"{found.moving} of {found.cases} cases moved the same way"
    median = f"{fmt.significant(found.ratio)}× in the median"
    return [f"{moved}, {median}: probably the machine, not the code; measure interleaved (--ab)"]


def imprecise(stopped_by: Sequence[str], metric: str) -> str:
    """A note where sampling ended for another reason than its precision, and it matters to the metric."""
    stops = [stop for stop in stopped_by if stop not in AS_PLANNED]
    return (
        f"less precise than asked (stopped by {' and '.join(stops)})"
        if stops and metric in STEADY_METRICS
        else ""
    )
