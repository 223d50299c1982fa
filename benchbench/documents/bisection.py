"""A bisection as a document: the version that brought the step, what was measured of each; and as a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchbench import format as fmt
from benchbench.documents.document import Cell, Content, Document, Number, Tone, number, table, without_empty
from benchbench.format import count_of
from benchbench.judging.bisection import Estimate, SearchEnd, Span, estimate
from benchbench.plan.versions import Version
from benchbench.running.bisect_plan import BisectPlan
from benchbench.running.bisecting import Bisection

SCHEMA = 1  # of the JSON. 1: first
QUIETER = "a quieter machine (accelbench doctor) would tell"


def bisection_document(found: Bisection, where: str = "") -> Document:
    """The answer, and a row for each version that was measured or cannot be. `where`: ` --results …`."""
    rules, versions = found.rules, found.versions
    limits = f"threshold {fmt.limit(rules.threshold)}, confidence {fmt.limit(rules.confidence)}"
    row = f"{count_of(len(versions), 'version')}, {versions[0].label} … {versions[-1].label}"
    return Document(
        name="bisection",
        title=f"Bisection {found.id}",
        answer=(Cell((answer(found),), _tone(found)),),
        facts=(
            f"bisection {found.id}: {row}; {count_of(found.found.pairs, 'pair')}",
            f"{found.case}; {found.metric.name}, {found.metric.better} is better; {limits}",
        ),
        tables=(table(without_empty(list(_rows(found)))),),
        notes=tuple(_notes(found, where)),
        data=_data(found),
    )


def answer(found: Bisection) -> str:
    """What came of it in a sentence."""
    end, ends = found.found, (found.versions[0].label, found.versions[-1].label)
    whole = _ratio(end.whole) if end.whole else ""
    count = count_of(end.pairs, "pair")
    if end.end is SearchEnd.NO_DIFFERENCE:
        least = fmt.limit(found.rules.threshold)
        return f"no difference of {least} or more between {ends[0]} and {ends[1]}: {whole} in {count}"
    if end.end is SearchEnd.UNDECIDED:
        untold = f"{ends[0]} and {ends[1]} cannot be told apart: {whole} in {count}"
        return f"{untold}; {QUIETER}, or a larger --threshold"
    if end.span is None:
        place = 0 if 0 in found.skipped else len(found.versions) - 1
        return f"{found.versions[place].label} cannot be measured: {found.skipped.get(place, '')}"
    if end.end is SearchEnd.RANGE:
        certain = f"{end.span.probability:.0%}"
        return f"not named within {count}: {_span(found, end.span)} ({certain}); more (--most) or {QUIETER}"
    assert end.step
    before = found.versions[end.span.first - 1].label
    step = f"is {_word(found, end.step)} than {before}: {_ratio(end.step)}"
    if end.span.first < end.span.last:
        return f"{_span(found, end.span)} {step}; those between cannot be measured"
    return f"{_called(found.versions[end.span.last])} {step}, confirmed beside it"


def _tone(found: Bisection) -> Tone:
    return Tone.WARNING if found.found.exit_code else Tone.PLAIN


def _called(version: Version) -> str:
    return f"{version.label} ({version.about})" if version.about else version.label


def _span(found: Bisection, span: Span) -> str:
    """`one of 2.10, 2.11`, or with the ends of many."""
    labels = [version.label for version in found.versions[span.first : span.last + 1]]
    if len(labels) == 1:
        return labels[0]
    return f"one of {', '.join(labels)}" if len(labels) <= 4 else f"one of {labels[0]} … {labels[-1]}"


def _ratio(found: Estimate) -> str:
    return str(Number(math.exp(found.mid), "×", math.exp(found.low), math.exp(found.high)))


def _word(found: Bisection, step: Estimate) -> str:
    """`slower`; of what is no time `larger`."""
    rises = step.mid > 0
    if found.metric.unit == "s":
        return "slower" if rises else "faster"
    return f"{'larger' if rises else 'smaller'} in {found.metric.name}"


def _rows(found: Bisection) -> Iterator[dict[str, Content]]:
    beside: dict[int, list[float]] = {}
    for pair in found.pairs:
        if pair.beside == 0:
            beside.setdefault(pair.version, []).append(pair.change)
    for place, version in enumerate(found.versions):
        changes = beside.get(place, [])
        if not (changes or place in found.skipped or place in found.runs):
            continue
        yield {
            "version": version.label,
            "is": version.about,
            "beside the first": _beside(changes),
            "pairs": len(changes) or None,
            "": _mark(found, place),
            "run": ", ".join(found.runs.get(place, ())),
        }


def _beside(changes: list[float]) -> Content:
    if len(changes) < 2:
        return number(math.exp(changes[0]) if changes else None, "×")
    between = estimate(changes, 0.95)
    return number(math.exp(between.mid), "×", math.exp(between.low), math.exp(between.high))


def _mark(found: Bisection, place: int) -> Content:
    span, end = found.found.span, found.found.end
    if place in found.skipped:
        return Cell((f"cannot be measured: {found.skipped[place]}",), Tone.WARNING)
    if span and end is SearchEnd.NAMED and place == span.last:
        return Cell(("the step",), Tone.BAD if _is_worse(found) else Tone.GOOD)
    return None


def _is_worse(found: Bisection) -> bool:
    step = found.found.step
    return step is not None and (step.mid > 0) == (found.metric.better == "lower")


def _notes(found: Bisection, where: str) -> Iterator[str]:
    end = found.found
    if found.work:
        yield found.work
    if end.whole and end.span:
        yield f"between the ends: {_ratio(end.whole)}"
    if end.second:
        yield f"there is a second, smaller step: {_span(found, end.second)} ({end.second.probability:.0%})"
    others = [each for each in found.ends if each.case != found.case]
    for each in others:
        told = each.end.value if each.end else "not told"
        size = f", {_ratio(estimate(each.changes, 0.95))}" if len(each.changes) > 1 else ""
        what = "differs, too" if each.end is SearchEnd.NAMED else told
        yield f"{each.case} between the ends: {what}{size}"
    if found.disturbed:
        yield f"beside {found.disturbed} of {count_of(end.pairs, 'pair')} other programs computed"
    if found.profiled and end.span:
        runs = [found.runs[place][-1] for place in (end.span.first - 1, end.span.last)]
        yield f"next: accelbench profile {runs[0]} {runs[1]}{where} shows the operators behind the step"


def _data(found: Bisection) -> dict[str, Any]:
    end = found.found
    return {
        "schema": SCHEMA,
        "id": found.id,
        "exit_code": end.exit_code,
        "end": end.end.value,
        "answer": answer(found),
        "versions": [
            asdict(version)
            | {"skipped": found.skipped.get(place, ""), "runs": list(found.runs.get(place, ()))}
            | {"framework": found.frameworks.get(place, "")}
            for place, version in enumerate(found.versions)
        ],
        "case": found.case,
        "metric": found.metric.name,
        "better": found.metric.better,
        "rules": asdict(found.rules),
        "whole": _estimate_fields(end.whole),
        "step": _estimate_fields(end.step),
        "span": end.span and asdict(end.span),
        "second": end.second and asdict(end.second),
        "ends": [{"case": each.case, "pairs": len(each.changes), "end": each.end} for each in found.ends],
        "pairs": [
            {"version": each.version, "beside": each.beside, "ratio": math.exp(each.change)}
            for each in found.pairs
        ],
        "disturbed": found.disturbed,
        "work": found.work,
    }


def _estimate_fields(found: Estimate | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"ratio": math.exp(found.mid), "low": math.exp(found.low), "high": math.exp(found.high)}


def bisect_plan_document(planned: BisectPlan) -> Document:
    """The versions with what each takes to download, and how many pairs a step would take."""
    versions: list[dict[str, Content]] = [
        {
            "version": each.version.label,
            "is": each.version.about,
            "download": number(each.download.download.remote_bytes if each.download else None, "B"),
            "on disk": number(each.download.download.disk_bytes if each.download else None, "B"),
            "": each.reason,
        }
        for each in planned.versions
    ]
    pairs: list[dict[str, Content]] = [
        {
            "step": number(each.step, "%"),
            "noise of a pair": number(each.deviation, "%"),
            "pairs, half of the searches": each.middle,
            "nine of ten": each.most,
        }
        for each in planned.pairs
    ]
    downloads = [each.download.download for each in planned.versions if each.download]
    total = fmt.size(sum(each.remote_bytes for each in downloads))
    probed = min(len(downloads), 2 + math.ceil(math.log2(max(len(planned.versions), 2))))
    lines = [f"{count_of(len(downloads), 'environment')} to build, {total} in all; about {probed} are needed"]
    if planned.deviation is None:
        lines.append("no stored run of this machine tells how much this work's processes vary")
    return Document(
        name="bisect-plan",
        title="What would be measured",
        tables=(
            table(without_empty(versions), notes=lines if downloads else []),
            table(pairs, title="Pairs expected, by simulation", notes=lines[1:]),
        ),
        data={
            "versions": [
                asdict(each.version)
                | {"reason": each.reason}
                | {
                    "download_bytes": each.download.download.remote_bytes if each.download else 0,
                    "disk_bytes": each.download.download.disk_bytes if each.download else 0,
                }
                for each in planned.versions
            ],
            "rules": asdict(planned.rules),
            "deviation": planned.deviation,
            "pairs": [asdict(each) for each in planned.pairs],
        },
    )
