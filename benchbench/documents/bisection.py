"""A bisection as a document: the version that changed the speed, and all measured versions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchbench import format as fmt
from benchbench.documents.document import Cell, Content, Document, Number, Tone, number, table, without_empty
from benchbench.format import count_of
from benchbench.judging.bisection import Estimate, SearchEnd, Span, estimate
from benchbench.plan.revision import Version
from benchbench.running.bisecting import Bisection

SCHEMA = 1  # of the JSON. 1: first
QUIETER = "a quieter machine (accelbench doctor) would help"


def bisection_document(bisection: Bisection, results_option: str = "") -> Document:
    """Result with a row per measured or skipped version. `results_option`: ` --results FOLDER`, or empty."""
    rules, versions = bisection.rules, bisection.versions
    limits = f"threshold {fmt.limit(rules.threshold)}, confidence {fmt.limit(rules.confidence)}"
    row = f"{count_of(len(versions), 'version')}, {versions[0].label} … {versions[-1].label}"
    return Document(
        name="bisection",
        title=f"Bisection {bisection.id}",
        answer=(Cell((answer(bisection),), Tone.WARNING if bisection.result.exit_code else Tone.PLAIN),),
        facts=(
            f"bisection {bisection.id}: {row}; {count_of(bisection.result.pairs, 'pair')}",
            f"{bisection.case}; {bisection.metric.name}, {bisection.metric.better} is better; {limits}",
        ),
        tables=(table(without_empty(list(_rows(bisection)))),),
        notes=tuple(_notes(bisection, results_option)),
        data=_data(bisection),
    )


def answer(bisection: Bisection) -> str:
    """Result of the search as one sentence."""
    result, ends = bisection.result, (bisection.versions[0].label, bisection.versions[-1].label)
    whole = _ratio_text(result.whole) if result.whole else ""
    count = count_of(result.pairs, "pair")
    if result.end is SearchEnd.NO_DIFFERENCE:
        least = fmt.limit(bisection.rules.threshold)
        return f"no difference of {least} or more between {ends[0]} and {ends[1]}: {whole} in {count}"
    if result.end is SearchEnd.UNDECIDED:
        text = f"{ends[0]} and {ends[1]} do not differ significantly: {whole} in {count}"
        return f"{text}; {QUIETER}, or a larger --threshold"
    if result.span is None:
        index = 0 if 0 in bisection.skipped else len(bisection.versions) - 1
        return f"{bisection.versions[index].label} cannot be measured: {bisection.skipped.get(index, '')}"
    if result.end is SearchEnd.RANGE:
        candidates = f"{_span_text(bisection, result.span)} ({result.span.probability:.0%})"
        return f"not named within {count}: {candidates}; more (--most) or {QUIETER}"
    assert result.step
    before = bisection.versions[result.span.first - 1].label
    step = f"is {_direction_text(bisection, result.step)} than {before}: {_ratio_text(result.step)}"
    if result.span.first < result.span.last:
        return f"{_span_text(bisection, result.span)} {step}; the versions in between cannot be measured"
    return f"{_version_text(bisection.versions[result.span.last])} {step}, confirmed beside it"


def _version_text(version: Version) -> str:
    """`2.11`, or with a description `1f3c9a2 (Fuse the two kernels)`."""
    return f"{version.label} ({version.about})" if version.about else version.label


def _span_text(bisection: Bisection, span: Span) -> str:
    """`one of 2.10, 2.11`; a long list is shortened to its ends."""
    labels = [version.label for version in bisection.versions[span.first : span.last + 1]]
    if len(labels) == 1:
        return labels[0]
    return f"one of {', '.join(labels)}" if len(labels) <= 4 else f"one of {labels[0]} … {labels[-1]}"


def _ratio_text(ratio: Estimate) -> str:
    return str(Number(math.exp(ratio.mid), "×", math.exp(ratio.low), math.exp(ratio.high)))


def _direction_text(bisection: Bisection, step: Estimate) -> str:
    """`slower` or `faster` for times, `larger in METRIC` or `smaller in METRIC` otherwise."""
    rises = step.mid > 0
    if bisection.metric.unit == "s":
        return "slower" if rises else "faster"
    return f"{'larger' if rises else 'smaller'} in {bisection.metric.name}"


def _rows(bisection: Bisection) -> Iterator[dict[str, Content]]:
    changes_by_version: dict[int, list[float]] = {}
    for pair in bisection.pairs:
        if pair.beside == 0:
            changes_by_version.setdefault(pair.version, []).append(pair.change)
    for index, version in enumerate(bisection.versions):
        changes = changes_by_version.get(index, [])
        if not (changes or index in bisection.skipped or index in bisection.runs):
            continue
        yield {
            "version": version.label,
            "is": version.about,
            "beside the first": _ratio_to_first(changes),
            "pairs": len(changes) or None,
            "": _remark_cell(bisection, index),
            "run": bisection.runs.get(index, ""),
        }


def _ratio_to_first(changes: list[float]) -> Content:
    """Ratio to the first version, with its 95 % interval if there are at least two pairs."""
    if len(changes) < 2:
        return number(math.exp(changes[0]) if changes else None, "×")
    between = estimate(changes, 0.95)
    return number(math.exp(between.mid), "×", math.exp(between.low), math.exp(between.high))


def _remark_cell(bisection: Bisection, index: int) -> Content:
    """`the step`, or the reason why the version cannot be measured; None for other versions."""
    span, end = bisection.result.span, bisection.result.end
    if index in bisection.skipped:
        return Cell((f"cannot be measured: {bisection.skipped[index]}",), Tone.WARNING)
    if span and end is SearchEnd.NAMED and index == span.last:
        return Cell(("the step",), Tone.BAD if _is_regression(bisection) else Tone.GOOD)
    return None


def _is_regression(bisection: Bisection) -> bool:
    """True if the step made the metric worse."""
    step = bisection.result.step
    return step is not None and (step.mid > 0) == (bisection.metric.better == "lower")


def _notes(bisection: Bisection, results_option: str) -> Iterator[str]:
    result = bisection.result
    if bisection.work:
        yield bisection.work
    if result.whole and result.span:
        yield f"between the ends: {_ratio_text(result.whole)}"
    if result.second:
        second = f"{_span_text(bisection, result.second)} ({result.second.probability:.0%})"
        yield f"there is a second, smaller step: {second}"
    for other in bisection.ends:
        if other.case == bisection.case:
            continue
        ending = other.end.value if other.end else "not told"
        size = f", {_ratio_text(estimate(other.changes, 0.95))}" if len(other.changes) > 1 else ""
        text = "differs, too" if other.end is SearchEnd.NAMED else ending
        yield f"{other.case} between the ends: {text}{size}"
    if bisection.disturbed:
        yield f"other programs ran during {bisection.disturbed} of {count_of(result.pairs, 'pair')}"
    if bisection.profiled and result.span:
        runs = [bisection.runs[index] for index in (result.span.first - 1, result.span.last)]
        command = f"accelbench profile {runs[0]} {runs[1]}{results_option}"
        yield f"next: {command} shows the operators behind the step"


def _data(bisection: Bisection) -> dict[str, Any]:
    result = bisection.result
    return {
        "schema": SCHEMA,
        "id": bisection.id,
        "exit_code": result.exit_code,
        "end": result.end.value,
        "answer": answer(bisection),
        "versions": [
            asdict(version)
            | {
                "skipped": bisection.skipped.get(index, ""),
                "runs": [bisection.runs[index]] if index in bisection.runs else [],
            }
            | {"framework": bisection.frameworks.get(index, "")}
            for index, version in enumerate(bisection.versions)
        ],
        "case": bisection.case,
        "metric": bisection.metric.name,
        "better": bisection.metric.better,
        "rules": asdict(bisection.rules),
        "whole": _estimate_fields(result.whole),
        "step": _estimate_fields(result.step),
        "span": result.span and asdict(result.span),
        "second": result.second and asdict(result.second),
        "ends": [{"case": end.case, "pairs": len(end.changes), "end": end.end} for end in bisection.ends],
        "pairs": [
            {"version": pair.version, "beside": pair.beside, "ratio": math.exp(pair.change)}
            for pair in bisection.pairs
        ],
        "disturbed": bisection.disturbed,
        "work": bisection.work,
    }


def _estimate_fields(ratio: Estimate | None) -> dict[str, float] | None:
    if ratio is None:
        return None
    return {"ratio": math.exp(ratio.mid), "low": math.exp(ratio.low), "high": math.exp(ratio.high)}
