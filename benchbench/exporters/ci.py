"""Formats for CI services and other benchmark tools: GitHub Actions, JUnit, github-action-benchmark, and
pytest-benchmark.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import xml.etree.ElementTree as ET
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from benchbench.analyse.metrics import METRICS
from benchbench.analyse.rows import MEASURED_STATUSES, UNTRUSTED_STATUSES, Row
from benchbench.documents.run import CaseVerdict, RunReport
from benchbench.exporters.text import escape_markdown, json_text
from benchbench.format import interval, visible
from benchbench.model.case import Status, Verdict
from benchbench.model.device import Machine
from benchbench.model.measurement import Measurement
from benchbench.model.run import Record
from benchbench.store.disk import COMMIT, DIRTY, HASH


class Severity(IntEnum):
    """Severity, worst first."""

    FAILURE = 0  # a regression or a wrong result
    ERROR = 1  # no result
    UNDECIDED = 2  # neither a regression nor the absence of one was shown
    SKIPPED = 3
    PASSED = 4


LEFT_OUT = (Status.UNAVAILABLE, Status.UNSUPPORTED, Status.SKIPPED)
LEVELS = {
    Verdict.SLOWER: Severity.FAILURE,
    Verdict.BROKEN: Severity.ERROR,
    Verdict.PROVISIONAL: Severity.UNDECIDED,
    Verdict.INCONCLUSIVE: Severity.UNDECIDED,
    Verdict.INSUFFICIENT: Severity.UNDECIDED,
    Verdict.INCOMPARABLE: Severity.UNDECIDED,
    Verdict.GONE: Severity.UNDECIDED,
}  # other verdicts pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of a case; `row` is None if the run did not plan it. All texts except the row's are safe to
    show.
    """

    case: str
    suite: str
    level: Severity
    word: str  # the worst status or verdict: `slower`, `out_of_memory`, `ok`
    texts: tuple[str, ...]
    row: Row | None
    judged: tuple[CaseVerdict, ...]


def outcomes(report: RunReport) -> list[Outcome]:
    """Outcomes of all cases of the run, and of cases with only a verdict; worst first."""
    judged: dict[str, list[CaseVerdict]] = {}
    for verdict in report.verdicts:
        judged.setdefault(verdict.case, []).append(verdict)
    results = [_outcome(row.case.id, row, judged.get(row.case.id, [])) for row in report.rows]
    case_ids = {row.case.id for row in report.rows}
    results += [_outcome(case, None, verdicts) for case, verdicts in judged.items() if case not in case_ids]
    return sorted(results, key=_rank)


def _rank(outcome: Outcome) -> tuple[Severity, float]:
    """Sort key: the largest regression first, then the planned order."""
    if outcome.level is not Severity.FAILURE:
        return outcome.level, 0.0
    ratios = [
        verdict.ratio for verdict in outcome.judged if verdict.verdict is Verdict.SLOWER and verdict.ratio
    ]
    return outcome.level, -max((abs(math.log(ratio)) for ratio in ratios), default=0.0)


def _outcome(case: str, row: Row | None, judged: list[CaseVerdict]) -> Outcome:
    levels = [(_level(row.status), str(row.status))] if row else []
    levels += [(LEVELS.get(item.verdict, Severity.PASSED), str(item.verdict)) for item in judged]
    level = min(item for item, _ in levels)
    words = [word for item, word in levels if item is level]
    message = visible(_doubt(row)) if row else ""
    is_repeated = any(message in item.text for item in judged)
    row_texts = (
        (message if row.ok else f"{row.status}: {message}",) if row and message and not is_repeated else ()
    )
    verdicts = tuple(item.text for item in judged)
    return Outcome(
        case=visible(case),
        suite=visible(row.case.suite) if row else "",
        level=level,
        word=words[-1] if level is Severity.PASSED else words[0],
        texts=(*verdicts, *row_texts) if row and row.ok else (*row_texts, *verdicts),
        row=row,
        judged=tuple(judged),
    )


def _doubt(row: Row) -> str:
    """Reason for a missing latency, or a doubt about it."""
    latency = row.metric("latency_s")
    missing_reason = latency.reason if row.ok and latency.value is None else ""
    return row.message or missing_reason or (f"contended: {row.contended}" if row.contended else "")


def _level(status: Status) -> Severity:
    if status in MEASURED_STATUSES:
        return Severity.PASSED
    if status in LEFT_OUT:
        return Severity.SKIPPED
    return Severity.FAILURE if status in UNTRUSTED_STATUSES else Severity.ERROR


ANNOTATIONS = 10  # per kind and step, docs.github.com
SUMMARY_LIMIT = 2**20  # bytes; a longer summary is not shown
TEXT_LIMIT = 1000  # characters of an annotation
KINDS = ("error", "warning", "notice")


def github(report: RunReport, room: int = SUMMARY_LIMIT) -> dict[str, bytes]:
    """Annotations, to be printed as workflow commands, and the summary, to append to $GITHUB_STEP_SUMMARY.

    Regressions and errors become errors, undecided cases warnings, faster cases notices. `room`: bytes left
    in the summary.
    """
    results = outcomes(report)
    return {
        "annotations.txt": "".join(f"{line}\n" for line in _annotations(report, results)).encode(),
        "summary.md": _summary(report, results, room),
    }


def _annotations(report: RunReport, results: list[Outcome]) -> Iterator[str]:
    damaged = _damaged(report)
    for kind in KINDS:
        of_kind = [outcome for outcome in results if _kind(outcome) == kind]
        room = ANNOTATIONS - 1 if damaged and kind == "warning" else ANNOTATIONS
        if room < ANNOTATIONS:
            yield _command(kind, "accelbench", damaged)
        listed = of_kind if len(of_kind) <= room else of_kind[: room - 1]
        yield from (_command(kind, f"{o.word}: {o.case}", "\n".join(o.texts)) for o in listed)
        if len(of_kind) > len(listed):
            yield _command(kind, "accelbench", f"{len(of_kind) - len(listed)} more: see the job's summary")


def _kind(outcome: Outcome) -> str:
    if outcome.level in (Severity.FAILURE, Severity.ERROR):
        return "error"
    if outcome.level is Severity.UNDECIDED:
        return "warning"
    return "notice" if outcome.word == Verdict.FASTER else ""


def _damaged(report: RunReport) -> str:
    """Sentence about unreadable lines, if there are any."""
    lines = visible("; ".join(report.run.damaged))
    return f"damaged, not in this report: {lines}" if lines else ""


def _command(kind: str, title: str, text: str) -> str:
    """Workflow command, with its special characters escaped (actions/toolkit)."""
    title, text = (_escape_command(part[:TEXT_LIMIT]) for part in (title, text or title))
    return f"::{kind} title={title.replace(':', '%3A').replace(',', '%2C')}::{text}"


def _escape_command(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _summary(report: RunReport, results: list[Outcome], room: int) -> bytes:
    """Table of outcomes, worst first, and the number of rows without room."""
    counts = Counter(outcome.word for outcome in results)
    title = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no case"
    head = (
        f"### accelbench: {escape_markdown(title)}\n\nRun {escape_markdown(visible(report.run.info.id))}\n\n"
    )
    if damaged := _damaged(report)[:TEXT_LIMIT]:
        head += f"{escape_markdown(damaged)}\n\n"
    head += "| case | result | latency [95 %] | notes |\n| --- | --- | --- | --- |\n"
    rows = [_summary_row(outcome).encode() for outcome in results]
    last = f"\n… and {len(rows)} more\n".encode()
    row_count, used = 0, len(head.encode()) + len(last)
    while row_count < len(rows) and used + len(rows[row_count]) <= room:
        used += len(rows[row_count])
        row_count += 1
    tail = f"\n… and {len(rows) - row_count} more\n" if row_count < len(rows) else "\n"
    text = head.encode() + b"".join(rows[:row_count]) + tail.encode()
    return text if len(text) <= room else b""


def _summary_row(outcome: Outcome) -> str:
    estimate = outcome.row.metric("latency_s") if outcome.row else None
    latency = (
        interval(estimate.low, estimate.value, estimate.high)
        if estimate and estimate.value is not None
        else ""
    )
    cells = (outcome.case, outcome.word, latency, "; ".join(outcome.texts))
    return f"| {' | '.join(escape_markdown(cell) for cell in cells)} |\n"


TAGS = {
    Severity.FAILURE: "failure",
    Severity.ERROR: "error",
    Severity.UNDECIDED: "skipped",  # JUnit has no better word
    Severity.SKIPPED: "skipped",
}
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2


def junit(report: RunReport) -> dict[str, bytes]:
    """JUnit XML: a test per case, whose `time` is the latency of a step in seconds.

    Regressions are failures, crashes errors, undecided cases skipped.
    """
    results = outcomes(report)
    root = ET.Element("testsuites", {"name": "accelbench", **_junit_counts(results)})
    for name in dict.fromkeys(outcome.suite for outcome in results):
        cases = [outcome for outcome in results if outcome.suite == name]
        facts = {
            "name": _xml_text(name) or "accelbench",
            "timestamp": _xml_text(visible(report.run.info.started)),
        }
        suite = ET.SubElement(root, "testsuite", facts | _junit_counts(cases))
        for outcome in cases:
            _add_test(suite, outcome)
        if report.run.damaged:
            lines = "\n".join(map(visible, report.run.damaged))
            ET.SubElement(suite, "system-err").text = _xml_text(f"damaged, not in this report:\n{lines}")
    ET.indent(root)
    return {"report.xml": ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"}


def _junit_counts(results: Sequence[Outcome]) -> dict[str, str]:
    tags = [TAGS.get(outcome.level) for outcome in results]
    counts = {f"{tag}s": tags.count(tag) for tag in ("failure", "error")}
    counts |= {"skipped": tags.count("skipped"), "tests": len(tags)}
    return {name: str(count) for name, count in counts.items()}


def _add_test(suite: ET.Element, outcome: Outcome) -> None:
    latency = outcome.row.value("latency_s") if outcome.row else None
    workload = outcome.row.case.workload if outcome.row else ""
    facts = {"name": _xml_text(outcome.case), "classname": _xml_text(visible(workload or "accelbench"))}
    if latency is not None:
        facts["time"] = f"{latency:.9f}"
    case = ET.SubElement(suite, "testcase", facts)
    text = _xml_text("\n".join(outcome.texts))
    if tag := TAGS.get(outcome.level):
        message = _xml_text(outcome.texts[0] if outcome.texts else outcome.word)
        ET.SubElement(case, tag, {"type": outcome.word, "message": message}).text = text
    elif text:
        ET.SubElement(case, "system-out").text = text


def _xml_text(text: str) -> str:
    return NOT_XML.sub("", text)


GHA_FILES = {"lower": "smaller-is-better.json", "higher": "bigger-is-better.json"}


def gha_benchmark(report: RunReport) -> dict[str, bytes]:
    """Lists of `{name, unit, value, range, extra}` for benchmark-action/github-action-benchmark.

    customSmallerIsBetter has latency, cold start, memory and energy, customBiggerIsBetter throughput.
    """
    entries: dict[str, list[dict[str, Any]]] = {better: [] for better in GHA_FILES}
    counts = Counter(row.case.id for row in report.rows)
    for row in report.rows:
        case = row.case.id if counts[row.case.id] == 1 else f"{row.case.suite}: {row.case.id}"
        for metric in METRICS:
            estimate = row.metric(metric.name)
            if not metric.exported or estimate.value is None:
                continue
            entry: dict[str, Any] = {
                "name": f"{visible(case)} {metric.label}",
                "unit": metric.unit.replace("item", visible(row.item or "item"), 1),
                "value": estimate.value,
            }
            if estimate.low is not None and estimate.high is not None:
                entry["range"] = f"95 %: {estimate.low:.4g} to {estimate.high:.4g}"
            entries[metric.better].append(entry | {"extra": _gha_description(row)})
    return {
        name: f"{json.dumps(entries[better], indent=2, allow_nan=False, ensure_ascii=False)}\n".encode()
        for better, name in GHA_FILES.items()
    }


def _gha_description(row: Row) -> str:
    about = f"{row.case.backend} {row.framework_version or ''} on {row.device_name or row.case.device}"
    return f"{visible(about)}\nprocesses: {row.rounds}, samples: {row.samples}"


PYTEST_BENCHMARK = "5.1.0"  # the version of the JSON format, unless the run was imported
NO_COMMIT = {"id": "unversioned", "time": None, "author_time": None, "dirty": False, "branch": "(unknown)"}


def pytest_benchmark(report: RunReport) -> dict[str, bytes]:
    """Files for `pytest-benchmark compare`, with all samples: `0001_accelbench.json` and so on.

    Each round has a file, since a file represents one process. Cases without a measurement are left out.
    """
    rounds = sorted({record.round for record in report.run.records}) or [0]
    return {
        f"{number + 1:04}_accelbench.json": _round_file(
            report, [r for r in report.run.records if r.round == number]
        )
        for number in rounds
    }


def _round_file(report: RunReport, records: Sequence[Record]) -> bytes:
    measurements = [(record, o) for record in records if isinstance(o := record.outcome, Measurement)]
    versions = [record.framework_version for record in records if record.case.backend == "pytest-benchmark"]
    started = min((record.started for record in records), default=0.0)
    content = {
        "machine_info": _machine_info(report.run.info.machine),
        "commit_info": {**_commit_info(report.run.info.tags), "project": ""},
        "benchmarks": [_benchmark(record, outcome) for record, outcome in measurements],
        "datetime": datetime.fromtimestamp(started, UTC).isoformat(),
        "version": next(iter(versions), PYTEST_BENCHMARK),
    }
    return json_text(content, indent=4)


def _commit_info(tags: Mapping[str, str]) -> dict[str, Any]:
    name = tags.get(COMMIT, "").removesuffix(DIRTY)
    return {**NO_COMMIT, "id": name, "dirty": tags[COMMIT] != name} if HASH.fullmatch(name) else NO_COMMIT


def _machine_info(machine: Machine) -> dict[str, Any]:
    system, _, release = machine.os.partition(" ")
    return {
        "node": "",
        "processor": "",
        "machine": machine.architecture,
        "python_version": machine.python,
        "system": system,
        "release": release,
        "cpu": {"brand_raw": machine.cpu, "count": machine.threads},
    }


def _benchmark(record: Record, measurement: Measurement) -> dict[str, Any]:
    fullname = record.case.workload if record.case.dtype is None else record.case.id
    name = fullname.rpartition("::")[2]
    param = name[name.index("[") + 1 : -1] if "[" in name and name.endswith("]") else None
    return {
        "group": None,
        "name": name,
        "fullname": fullname,
        "params": None,
        "param": param,
        "extra_info": {},
        "options": {"timer": measurement.timer},
        "stats": {
            **benchmark_statistics(measurement.steps_s),
            "data": measurement.steps_s,
            "iterations": measurement.iterations,
        },
    }


def benchmark_statistics(data: Sequence[float]) -> dict[str, Any]:
    """Statistics of pytest-benchmark 5.3, by the same formulas, so that its comparisons are valid."""
    ordered, mean, total = sorted(data), statistics.mean(data), sum(data)
    deviation = statistics.stdev(data) if len(data) > 1 else 0
    q1, q3 = _quartiles(ordered)
    low, high = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    outside = sum(value < mean - deviation or value > mean + deviation for value in data)
    tukey = sum(value < low or value > high for value in data)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": deviation,
        "rounds": len(data),
        "median": statistics.median(data),
        "iqr": q3 - q1,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": tukey,
        "stddev_outliers": outside,
        "outliers": f"{outside};{tukey}",
        "ld15iqr": ordered[bisect_left(ordered, low)],
        "hd15iqr": ordered[bisect_right(ordered, high) - 1],
        "ops": len(data) / total if total else 0,
        "total": total,
    }


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Medians of the halves; for odd counts method 3 of en.wikipedia.org/wiki/Quartile."""
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2]), statistics.median(ordered[count // 2 :])
    n = count // 4
    if count % 4 == 1:
        return (
            0.25 * ordered[n - 1] + 0.75 * ordered[n],
            0.75 * ordered[3 * n] + 0.25 * ordered[3 * n + 1],
        )
    return (
        0.75 * ordered[n] + 0.25 * ordered[n + 1],
        0.25 * ordered[3 * n + 1] + 0.75 * ordered[3 * n + 2],
    )
