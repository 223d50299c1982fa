"""JUnit XML: a test per case. Regressions are failures, crashes errors, undecided cases skipped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import ClassVar

from benchbench.documents.run import RunReport
from benchbench.exporters.base import RunExporter
from benchbench.exporters.ci._outcomes import Outcome, Severity, outcomes
from benchbench.format import visible

TAGS = {
    Severity.FAILURE: "failure",
    Severity.ERROR: "error",
    Severity.UNDECIDED: "skipped",  # JUnit has no better word
    Severity.SKIPPED: "skipped",
}
NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2


class Junit(RunExporter):
    """Test suite per suite; `time` is the latency of a step in seconds."""

    extension: ClassVar[str] = "xml"

    def export(self, report: RunReport) -> dict[str, bytes]:
        results = outcomes(report)
        root = ET.Element("testsuites", {"name": "accelbench", **_counts(results)})
        for name in dict.fromkeys(outcome.suite for outcome in results):
            cases = [outcome for outcome in results if outcome.suite == name]
            facts = {
                "name": _clean(name) or "accelbench",
                "timestamp": _clean(visible(report.run.info.started)),
            }
            suite = ET.SubElement(root, "testsuite", facts | _counts(cases))
            for outcome in cases:
                _add(suite, outcome)
            if report.run.damaged:
                lines = "\n".join(map(visible, report.run.damaged))
                ET.SubElement(suite, "system-err").text = _clean(f"damaged, not in this report:\n{lines}")
        ET.indent(root)
        return {"report.xml": ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"}


def _counts(results: Sequence[Outcome]) -> dict[str, str]:
    tags = [TAGS.get(outcome.level) for outcome in results]
    counts = {f"{tag}s": tags.count(tag) for tag in ("failure", "error")}
    counts |= {"skipped": tags.count("skipped"), "tests": len(tags)}
    return {name: str(count) for name, count in counts.items()}


def _add(suite: ET.Element, outcome: Outcome) -> None:
    latency = outcome.row.value("latency_s") if outcome.row else None
    workload = outcome.row.case.workload if outcome.row else ""
    facts = {"name": _clean(outcome.case), "classname": _clean(visible(workload or "accelbench"))}
    if latency is not None:
        facts["time"] = f"{latency:.9f}"
    case = ET.SubElement(suite, "testcase", facts)
    text = _clean("\n".join(outcome.texts))
    if tag := TAGS.get(outcome.level):
        message = _clean(outcome.texts[0] if outcome.texts else outcome.word)
        ET.SubElement(case, tag, {"type": outcome.word, "message": message}).text = text
    elif text:
        ET.SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    return NOT_XML.sub("", text)
