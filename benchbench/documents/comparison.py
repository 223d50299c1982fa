"""A comparison of two runs as a document: differences, evidence for each case, summary; and a claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Literal

from benchbench import format as fmt
from benchbench.analyse.digest import STEADY_METRICS
from benchbench.analyse.rows import UNITS
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
from benchbench.format import count_of, ratio
from benchbench.judging.comparison import (
    ALPHA,
    MARGIN,
    CaseComparison,
    Claim,
    ClaimVerdict,
    CommonFactor,
    Comparison,
)
from benchbench.judging.significance import TestResult
from benchbench.machine.environment import same_hardware
from benchbench.model.case import Case, Verdict
from benchbench.model.measurement import AS_PLANNED
from benchbench.model.run import Run, RunInfo
from benchbench.plan.commands import interleaved_command

SCHEMA = 1  # of the JSON. 1: first

Order = Literal["ratio", "case"]
FIELDS = tuple(field.name for field in fields(CaseComparison))
MODES = "the processes form clusters, as if cases had two speeds: compare at least five processes"
UNUSED = (
    "n of m processes: only as many rounds as the other run has are compared, since more would bias the "
    "comparison; report uses all rounds, so its values differ"
)
MDE = "MDE: the smallest change detected 4 times in 5"
UNTOLD = "no known difference in code or versions; compare --ab measures two sides in the same minutes"
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
}  # others are plain


UNCOMPARED = {Verdict.NEW, Verdict.GONE}
UNDECIDED = (Verdict.INCONCLUSIVE, Verdict.INSUFFICIENT, Verdict.INCOMPARABLE)


def select_verdicts(comparison: Comparison, only: Collection[Verdict], order: Order) -> list[CaseComparison]:
    """Cases with a verdict in `only` (all if empty), sorted by case id or from worst to best ratio.

    With `ratio`, broken cases are first and cases without a ratio last.
    """
    sign = -1 if comparison.metric.better == "lower" else 1

    def badness(verdict: CaseComparison) -> tuple[bool, bool, float]:
        has_ratio = verdict.ratio is not None
        return verdict.verdict is not Verdict.BROKEN, not has_ratio, sign * (verdict.ratio or 0.0)

    selected = [verdict for verdict in comparison.verdicts if not only or verdict.verdict in only]
    return sorted(selected, key=badness if order == "ratio" else lambda verdict: verdict.case)


def comparison_document(comparison: Comparison, verdicts: Sequence[CaseComparison]) -> Document:
    """Document with a paragraph for each of `verdicts`; the summary counts all cases."""
    names = case_cells(verdict.case for verdict in verdicts)
    rows = [_verdict_row(verdict) | {"case": names[verdict.case]} for verdict in verdicts]
    damaged = {"ref": comparison.ref.damaged, "new": comparison.new.damaged}
    damaged_field = {"damaged": [f"{side}: {text}" for side, texts in damaged.items() for text in texts]}
    return Document(
        name="compare",
        title=f"Comparison of {comparison.new.info.id} with {comparison.ref.info.id}",
        answer=(Cell((comparison_summary(comparison),)),),
        facts=tuple(_facts(comparison)),
        tables=(table(rows, COLUMNS, layout=Layout.PARAGRAPHS),) if rows else (),
        notes=tuple(_summary(comparison)),
        data=_data(comparison, verdicts) | {"damaged": damaged},
        records=Records((*FIELDS, "damaged"), tuple(asdict(verdict) | damaged_field for verdict in verdicts)),
    )


def comparison_summary(comparison: Comparison) -> str:
    """`2 of 14 cases slower, 1 faster; 3 undecided`."""
    counts = Counter(verdict.verdict for verdict in comparison.verdicts)
    if not comparison.verdicts:
        return "nothing could be compared"
    if set(counts) <= UNCOMPARED:
        uncompared = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        return f"nothing is compared: {uncompared}"
    slower = f"{counts[Verdict.SLOWER] or 'none'} of {fmt.count_of(len(comparison.verdicts), 'case')} slower"
    parts = [slower, f"{counts[Verdict.FASTER] or 'none'} faster"]
    parts += [f"{counts[Verdict.BROKEN]} broken"] if counts[Verdict.BROKEN] else []
    undecided = sum(counts[verdict] for verdict in UNDECIDED)
    return ", ".join(parts) + (f"; {undecided} undecided" if undecided else "")


def case_verdict(verdict: CaseComparison) -> CaseVerdict:
    """Verdict for CI systems, with a text such as `latency_s slower: 1.080× …; reason`."""
    text = f"{verdict.metric} {verdict.verdict}: {'; '.join(sentences(verdict))}"
    return CaseVerdict(
        case=verdict.case, verdict=verdict.verdict, ratio=verdict.ratio, text=fmt.visible(text)
    )


def sentences(verdict: CaseComparison) -> list[str]:
    """`1.080× [1.068, 1.093]  1.00 ms → 1.08 ms  p <0.001  MDE 1.76 %  5 v 5 processes`, then the notes."""
    columns = [column for column in COLUMNS if column.line]
    row = _verdict_row(verdict)
    return paragraph(columns, [cell(row.get(column.name)) for column in columns])


def _verdict_row(verdict: CaseComparison) -> dict[str, Content]:
    was_measured = verdict.ref is not None or verdict.new is not None
    sides = (
        _process_count_text(verdict.ref_processes, verdict.ref_unused),
        _process_count_text(verdict.new_processes, verdict.new_unused),
    )
    counts = Cell((f"{' v '.join(sides)} processes",))
    return {
        "verdict": verdict_cell(verdict.verdict),
        "case": verdict.case,
        **evidence(verdict, UNITS[verdict.metric], verdict.verdict),
        "processes": counts if was_measured else None,
        "notes": _notes(verdict),
    }


def _process_count_text(compared: int, unused: int) -> str:
    """`5`, or `5 of 8` if some processes were not compared."""
    return f"{compared} of {compared + unused}" if unused else str(compared)


def _notes(verdict: CaseComparison) -> str:
    """Changes of the work, reason for the verdict, precision, and slower operators."""
    precision = precision_note(verdict.stopped_by, verdict.metric) if verdict.ratio is not None else ""
    operators = f"operators: {', '.join(verdict.operators)}" if verdict.operators else ""
    return "; ".join(filter(None, (verdict.work, verdict.reason, precision, operators)))


def _data(comparison: Comparison, verdicts: Sequence[CaseComparison]) -> dict[str, Any]:
    """JSON form: runs, rule and `verdicts`; absent values are None."""
    return {
        "schema": SCHEMA,
        "ref": _run_fields(comparison.ref.info),
        "new": _run_fields(comparison.new.info),
        "metric": comparison.metric.name,
        "better": comparison.metric.better,
        "threshold": comparison.threshold,
        "alpha": ALPHA,
        "compared": comparison.compared,
        "geomean": comparison.geomean,
        "common_factor": comparison.common and asdict(comparison.common),
        "in_turn": comparison.interleaved,
        "modes": comparison.modes,
        "changes": comparison.changes,
        "apart": comparison.apart and asdict(comparison.apart),
        "interleaved_command": _interleaved_command(comparison),
        "drifts": {side: drift.note.clause for side, drift in comparison.drifts.items()},
        "counts": verdict_counts(verdict.verdict for verdict in comparison.verdicts),
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }


def _facts(comparison: Comparison) -> list[str]:
    """The runs, their differences, and the rule."""
    metric, damaged = comparison.metric, [*comparison.ref.damaged, *comparison.new.damaged]
    worse = "; slower means worse, faster better" if metric.unit in ("B", "J") else ""
    lines = [
        f"ref: {_side_label(comparison.ref.info)}run {comparison.ref.info.id}, {comparison.ref.info.started}",
        f"new: {_side_label(comparison.new.info)}run {comparison.new.info.id}, {comparison.new.info.started}",
        f"{metric.name}, {metric.better} is better{worse}; threshold {fmt.limit(comparison.threshold)}",
    ]
    ref, new = ({case.id for case in _requested_cases(run)} for run in (comparison.ref, comparison.new))
    if comparison.verdicts and not comparison.interleaved and ref.isdisjoint(new):
        is_same_hardware = same_hardware(comparison.ref.info.machine, comparison.new.info.machine)
        elsewhere = "" if is_same_hardware else ", and were made on different hardware"
        lines.insert(0, f"The runs have no case in common{elsewhere}: nothing is compared.")
    lines += ["ref and new are one run"] if comparison.ref.info.id == comparison.new.info.id else []
    lines += ["interleaved: each round has a process of each side"] if comparison.interleaved else []
    lines += [f"changed: {', '.join(comparison.changes)}"] if comparison.changes else []
    lines += [
        f"{side} {drift.note.text}; intervals allow for it" for side, drift in comparison.drifts.items()
    ]
    unfinished = [side for side, run in (("ref", comparison.ref), ("new", comparison.new)) if not run.ended]
    lines += [f"interrupted, or still being measured: {' and '.join(unfinished)}"] if unfinished else []
    lines += _time_apart_lines(comparison)
    lines += [f"damaged, not compared: {'; '.join(damaged)}"] if damaged else []
    return lines


def _requested_cases(run: Run) -> tuple[Case, ...]:
    """Planned cases and those that were left out."""
    return (*run.info.plan, *(out.case for out in run.info.left_out))


def _time_apart_lines(comparison: Comparison) -> list[str]:
    """Time between the runs, whether the intervals include its effect, and the interleaved command."""
    if comparison.apart is None or not comparison.compared:
        return []
    hours = comparison.apart.seconds / 3600
    began = f"began {hours / 24:.3g} days apart" if hours >= 48 else f"began {hours:.3g} hours apart"
    if comparison.apart.spread is None:
        lines = [f"{began}: the intervals do not include the variation between hours"]
    else:
        cases = fmt.count_of(comparison.apart.cases, "case")
        of = "" if comparison.apart.cases == comparison.compared else f" of {cases}"
        spread = f"sessions of this machine differ by {fmt.share(comparison.apart.spread)} in the median case"
        lines = [f"{began}: {spread}, and the intervals{of} include that"]
    command = _interleaved_command(comparison)
    return [*lines, f"to measure both in the same minutes: {command}" if command else UNTOLD]


def _interleaved_command(comparison: Comparison) -> str:
    return interleaved_command(comparison.ref.info, comparison.new.info) if comparison.apart else ""


def _summary(comparison: Comparison) -> list[str]:
    """Geometric mean of the compared cases, counts of the verdicts, and notes on p and MDE."""
    by_verdict = verdict_counts(verdict.verdict for verdict in comparison.verdicts)
    counts = ", ".join(f"{count} {name}" for name, count in by_verdict.items()) or "no case in either run"
    if comparison.geomean is None:
        return [counts, *_unused_rounds_note(comparison.verdicts)]
    compared = fmt.count_of(comparison.compared, "compared case")
    return [
        f"geomean of {compared}: {fmt.significant(comparison.geomean)}×",
        *common_change_lines(comparison.common),
        counts,
        f"p (Holm) and MDE hold for {fmt.count_of(comparison.compared, 'case')} together; {MDE}",
        *([MODES] if comparison.modes else []),
        *_unused_rounds_note(comparison.verdicts),
    ]


def _unused_rounds_note(verdicts: Sequence[CaseComparison]) -> list[str]:
    """Note that values differ from a report's if rounds were left out."""
    if not any(verdict.ref_unused or verdict.new_unused for verdict in verdicts):
        return []
    return [UNUSED]


def verdict_counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """Number of cases for each verdict that occurs, in the order of `Verdict`."""
    counts = Counter(verdicts)
    return {str(name): counts[name] for name in Verdict if counts[name]}


def _run_fields(info: RunInfo) -> dict[str, str | None]:
    label = info.partner.label if info.partner else None
    return {"id": info.id, "started": info.started, "version": info.version, "label": label}


def _side_label(info: RunInfo) -> str:
    return f"{info.partner.label}, " if info.partner else ""


def verdict_cell(verdict: Verdict) -> Cell:
    """Cell with the verdict and its tone."""
    return Cell((str(verdict),), TONES.get(verdict, Tone.PLAIN))


def evidence(result: CaseComparison | TestResult, unit: str, verdict: Verdict) -> dict[str, Content]:
    """Cells of the evidence columns; None for what was not measured. Values are in `unit`.

    The ratio of an insufficient case has a `?`.
    """
    was_measured = result.ref is not None or result.new is not None
    ratio = number(result.ratio, "×", result.low, result.high)
    return {
        "ratio [95 %]": replace(ratio, unsure=verdict is Verdict.INSUFFICIENT and bool(ratio.parts)),
        "ref → new": Cell((_value_part(result.ref, unit), "→", _value_part(result.new, unit)))
        if was_measured
        else None,
        "p": number(result.p_holm, "p"),
        "MDE": number(result.mde, "%"),
    }


def _value_part(value: float | None, unit: str) -> Part:
    return "–" if value is None else Number(value, unit)


def common_change_lines(common: CommonFactor | None) -> list[str]:
    """Warning if nearly all cases changed in the same direction."""
    if common is None:
        return []
    moved = f"{common.moving} of {common.cases} cases moved the same way"
    median = f"{fmt.significant(common.ratio)}× in the median"
    return [f"{moved}, {median}: probably the machine, not the code; measure interleaved (--ab)"]


def precision_note(stopped_by: Sequence[str], metric: str) -> str:
    """Note that sampling stopped before the requested precision; empty if that does not affect the metric."""
    stops = [stop for stop in stopped_by if stop not in AS_PLANNED]
    return (
        f"less precise than asked (stopped by {' and '.join(stops)})"
        if stops and metric in STEADY_METRICS
        else ""
    )


CLAIM_SCHEMA = 1  # of the JSON. 1: first
CLAIM_TONES = {
    ClaimVerdict.CONFIRMED: Tone.GOOD,
    ClaimVerdict.REFUTED: Tone.BAD,
    ClaimVerdict.UNDECIDED: Tone.WARNING,
}
EXIT_CODES = {ClaimVerdict.CONFIRMED: 0, ClaimVerdict.REFUTED: 10, ClaimVerdict.UNDECIDED: 13}


def claim_document(claim: Claim) -> Document:
    """Document whose first lines are the verdict and the agreement of the results."""
    comparison = comparison_document(claim.comparison, claim.comparison.verdicts)
    verdict, (ref, new) = claim.verdict, _function_names(claim)
    answer = (
        Cell((f"{verdict}: {_speed_up(claim)}",), CLAIM_TONES[verdict]),
        Cell((_agreement_text(claim),), Tone.BAD if claim.agreement.equal is False else Tone.PLAIN),
    )
    return replace(
        comparison,
        name="claim",
        title=f"Claim that {new} is {ratio(claim.speedup)} as fast as {ref}",
        answer=answer,
        notes=(f"confirmed: the whole interval is above the claim, or below it by less than {MARGIN:.0%}",),
        data=_claim_data(claim),
        records=None,
    )


def _function_names(claim: Claim) -> tuple[str, str]:
    first, second = (run.info.plan[0].workload for run in (claim.comparison.ref, claim.comparison.new))
    return first, second


def _speed_up(claim: Claim) -> str:
    ref, new = _function_names(claim)
    claimed = f"claimed: {ratio(claim.speedup)}"
    if claim.interval is None:
        return f"the speed-up of {new} is not known ({claim.measured.reason or 'too few values'}); {claimed}"
    speedup, low, high = map(ratio, claim.interval)
    text = f"{new} is {speedup} as fast as {ref} (95 %: {low} to {high}); {claimed}"
    return f"{text}. More heats would narrow the interval: --heats 30" if _needs_heats(claim) else text


def _needs_heats(claim: Claim) -> bool:
    return claim.verdict is ClaimVerdict.UNDECIDED and claim.agreement.equal is True


def _agreement_text(claim: Claim) -> str:
    agreement = claim.agreement
    if agreement.equal is None:
        return f"the results could not be compared: {agreement.reason}"
    if not agreement.equal:
        return f"the results differ: {agreement.reason}"
    return f"the results are the same for {count_of(agreement.inputs, 'set')} of inputs: {agreement.reason}"


def _claim_data(claim: Claim) -> dict[str, Any]:
    speedup, low, high = claim.interval or (None, None, None)
    ref, new = _function_names(claim)
    return {
        "schema": CLAIM_SCHEMA,
        "verdict": claim.verdict,
        "ref": ref,
        "new": new,
        "claimed": claim.speedup,
        "speedup": speedup,
        "low": low,
        "high": high,
        "results": asdict(claim.agreement),
        "runs": [claim.comparison.ref.info.id, claim.comparison.new.info.id],
    }
