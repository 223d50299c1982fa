"""What CI systems read: each format as its reader takes it, within its limits, whatever the names."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.documents import comparison
from benchbench.documents.run import CaseVerdict, report_document
from benchbench.exporters.base import RunExporter
from benchbench.exporters.ci.github import Github
from benchbench.judging.comparison import Comparison, compare_runs
from benchbench.model.case import Case
from benchbench.model.record import Record
from benchbench.model.run import Run
from benchbench.model.status import Status
from benchbench.registry import load_class
from benchbench.store import runs
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_left_out,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.program import accelbench

STEADY = (1.000e-3, 1.001e-3, 0.999e-3)
anything = st.text(max_size=30)


def exported(name: str, run: Run, found: Comparison | None = None) -> dict[str, str]:
    exporter = load_class("benchbench.exporters", name, RunExporter)()  # type: ignore[type-abstract]
    files = exporter.export(report_document(run, judgements(found) if found else ()))
    return {file: content.decode() for file, content in files.items()}


def judgements(found: Comparison) -> list[CaseVerdict]:
    return [comparison.case_verdict(verdict) for verdict in found.verdicts]


def only(files: Mapping[str, str]) -> str:
    (text,) = files.values()
    return text


def times(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def a_case_of(kind: str, **over: Any) -> Case:
    return a_case(**({"params": {"kind": kind}} | over))


def one_of_each(**over: Any) -> Comparison:
    """Twice slower, faster, the same, unsure, out of memory, wrong, gone, and left out in both."""
    kinds = ("slower", "slowest", "faster", "same", "unsure", "full", "wrong", "gone")
    case = {kind: a_case_of(kind, **over) for kind in kinds}
    full = a_failure(status=Status.OUT_OF_MEMORY, message="needs 31 GiB")
    wrong = a_failure(status=Status.WRONG_RESULT, message="relative error 1 > 1e-05")
    new = [
        *some_rounds(*times(1.1), case=case["slower"]),
        *some_rounds(*times(1.5), case=case["slowest"]),
        *some_rounds(*times(0.8), case=case["faster"]),
        *some_rounds(*STEADY, case=case["same"]),
        *some_rounds(1e-3, 1.4e-3, 0.8e-3, case=case["unsure"]),
        a_record(full, case=case["full"]),
        a_record(wrong, case=case["wrong"]),
    ]
    ref = [record for each in case.values() for record in some_rounds(*STEADY, case=each)]
    left_out = (a_left_out(case=a_case_of("left out", device="cuda:0", **over)),)
    return compare_runs(a_run(ref, id="REF", left_out=left_out), a_run(new, id="NEW", left_out=left_out))


def many(count: int, factor: float) -> Comparison:
    cases = [a_case_of(f"{number:03}") for number in range(count)]
    ref = [record for case in cases for record in some_rounds(*STEADY, case=case)]
    new = [
        record
        for number, case in enumerate(cases)
        for record in some_rounds(*times(factor * (1 + number / 1000)), case=case)
    ]
    return compare_runs(a_run(ref), a_run(new))


def a_named_run(text: str) -> Comparison:
    """`text` in every name, one case slower and one crashed."""
    over: dict[str, Any] = {"workload": text, "target": text, "backend": text, "mode": text, "suite": text}
    cases = [a_case_of(kind, **over) for kind in ("slower", "crashed", text)]
    ref = [r for case in cases for r in some_rounds(*STEADY, case=case)]
    new: list[Record] = [
        *some_rounds(*times(1.2), case=cases[0], cost=a_cost(item=text)),
        a_record(a_failure(message=text), case=cases[1]),
        *some_rounds(*times(1.2), case=cases[2]),
    ]
    return compare_runs(a_run(ref), a_run(new))


# JUnit


def judged(text: str) -> dict[str, tuple[str, str]]:
    """Kind of case → tag and type below its test case."""
    found = {}
    for case in ET.fromstring(text).iter("testcase"):
        kind = re.search(r"kind=([^)]*)", case.attrib["name"])
        below = [(child.tag, child.attrib.get("type", "")) for child in case if child.tag != "system-out"]
        found[kind[1] if kind else ""] = below[0] if below else ("", "")
    return found


def test_junit_has_failures_errors_and_skipped_cases() -> None:
    found = one_of_each()
    assert judged(only(exported("junit", found.new, found))) == {
        "slower": ("failure", "slower"),
        "slowest": ("failure", "slower"),
        "wrong": ("failure", "wrong_result"),
        "full": ("error", "out_of_memory"),
        "unsure": ("skipped", "inconclusive"),
        "gone": ("skipped", "gone"),
        "left out": ("skipped", "unavailable"),
        "faster": ("", ""),
        "same": ("", ""),
    }


def test_junit_of_a_run_alone_fails_nothing_that_has_a_number() -> None:
    found = one_of_each()
    tags = {kind: tag for kind, (tag, _) in judged(only(exported("junit", found.new))).items()}
    assert tags["slower"] == ""
    assert tags["full"] == "error"


def test_junit_has_the_notes_of_a_doubtful_case() -> None:
    busy = a_watched(a_telemetry(busy_s=tuple(0.2 * number for number in range(11))))
    disturbed = [a_record(busy, case=a_case_of("busy"), round=number) for number in range(3)]
    wild = some_rounds(3.55e-3, 0.216, 0.213, case=a_case_of("wild"))
    text = only(exported("junit", a_run([*disturbed, *wild])))
    assert ">contended: other processes used 0.5 of a core" in text
    assert ">processes disagree: 3.55, 216, 213 ms" in text


def test_junit_counts_add_up_and_its_text_says_why() -> None:
    case = a_case_of("slower")
    ref, new = a_run(some_rounds(*STEADY, case=case)), a_run(some_rounds(*times(1.1), case=case))
    assert only(exported("junit", new, compare_runs(ref, new))) == snapshot("""\
<?xml version='1.0' encoding='utf-8'?>
<testsuites name="accelbench" failures="1" errors="0" skipped="0" tests="1">
  <testsuite name="quick" timestamp="2026-01-02T03:04:05Z" failures="1" errors="0" skipped="0" tests="1">
    <testcase name="gemm(kind=slower)/float32/eager@torch:cpu" classname="gemm" time="0.001100000">
      <failure type="slower" message="latency_s slower: 1.100× [1.098, 1.102]  1.00 ms → 1.10 ms  p &lt;0.001  MDE 3.08 %  3 v 3 processes">latency_s slower: 1.100× [1.098, 1.102]  1.00 ms → 1.10 ms  p &lt;0.001  MDE 3.08 %  3 v 3 processes</failure>
    </testcase>
  </testsuite>
</testsuites>
""")  # noqa: E501
    found = one_of_each()
    root = ET.fromstring(only(exported("junit", found.new, found)))
    for level in (root, *root.iter("testsuite")):
        cases = list(level.iter("testcase"))
        assert int(level.attrib["tests"]) == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(level.attrib[name]) == sum(case.find(tag) is not None for case in cases)


@given(anything)
@settings(max_examples=60)
def test_junit_is_xml_whatever_the_names(text: str) -> None:
    found = a_named_run(text)
    document = only(exported("junit", found.new, found))
    assert len(list(ET.fromstring(document).iter("testcase"))) == len(found.verdicts)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", document)


# GitHub


def commands(text: str) -> list[tuple[str, str, str]]:
    """Kind, title and message, unescaped as actions/runner does it."""
    found = []
    for line in text.splitlines():
        parts = re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line)
        assert parts, line
        values = [part.replace("%0D", "\r").replace("%0A", "\n") for part in parts.groups()]
        values = [part.replace("%3A", ":").replace("%2C", ",").replace("%25", "%") for part in values]
        found.append((values[0], values[1], values[2]))
    return found


def test_github_annotates_regressions_first_and_unjudged_cases_as_warnings() -> None:
    found = one_of_each()
    annotated = commands(exported("github", found.new, found)["annotations.txt"])
    assert [(kind, title.partition("/")[0]) for kind, title, _ in annotated] == [
        ("error", "slower: gemm(kind=slowest)"),
        ("error", "slower: gemm(kind=slower)"),
        ("error", "wrong_result: gemm(kind=wrong)"),
        ("error", "out_of_memory: gemm(kind=full)"),
        ("warning", "inconclusive: gemm(kind=unsure)"),
        ("warning", "gone: gemm(kind=gone)"),
        ("notice", "faster: gemm(kind=faster)"),
    ]
    assert "1.500×" in annotated[0][2]


def test_github_gets_ten_annotations_of_a_kind_and_the_tenth_counts_the_rest() -> None:
    annotated = commands(exported("github", many(10, 1.2).new, many(10, 1.2))["annotations.txt"])
    assert len(annotated) == 10
    found = many(25, 1.2)
    annotated = commands(exported("github", found.new, found)["annotations.txt"])
    assert len(annotated) == 10
    assert annotated[0][1] == "slower: gemm(kind=024)/float32/eager@torch:cpu"
    assert annotated[-1][2] == "16 more: see the job's summary"


@given(anything)
@settings(max_examples=60)
def test_github_reads_one_command_a_case_whatever_the_names(text: str) -> None:
    found = a_named_run(text)
    files = exported("github", found.new, found)
    assert len(commands(files["annotations.txt"])) == len(found.verdicts)
    table = [line for line in files["summary.md"].splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(found.verdicts)
    assert {line.replace("\\|", "").count("|") for line in table} == {5}


def test_the_summary_lists_the_worst_first() -> None:
    found = one_of_each()
    summary = exported("github", found.new, found)["summary.md"]
    assert summary.startswith("### accelbench: 2 slower, 1 wrong_result, 1 out_of_memory, 1 inconclusive, ")
    results = [line.split(" | ")[1] for line in summary.splitlines() if line.startswith("| gemm")]
    assert results[:4] == ["slower", "slower", "wrong_result", "out_of_memory"]
    assert results[-3:] == ["unavailable", "faster", "same"]


@pytest.mark.parametrize("room", [0, 100, 500, 2_000, 10_000, 2**20])
def test_the_summary_fits_into_what_is_left_of_the_step_and_counts_what_does_not(room: int) -> None:
    found = many(25, 1.2)
    summary = Github(room).export(report_document(found.new, judgements(found)))["summary.md"]
    assert len(summary) <= room
    if summary:
        shown = summary.decode().count("\n| gemm")
        assert (f"… and {25 - shown} more" in summary.decode()) == (shown < 25)


# github-action-benchmark


def test_smaller_and_bigger_is_better_are_two_files() -> None:
    files = exported("gha_benchmark", a_run(some_rounds(*STEADY)))
    smaller, bigger = (json.loads(files[f"{size}-is-better.json"]) for size in ("smaller", "bigger"))
    assert [entry["name"].partition("cpu ")[2] for entry in smaller] == [
        "latency",
        "cold start",
        "peak host memory",
    ]
    assert bigger == [
        {
            "name": "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu throughput",
            "unit": "product/s",
            "value": pytest.approx(1e3, rel=1e-3),
            "range": "95 %: 997.5 to 1002",
            "extra": "torch 2.13.0 on Example CPU\nprocesses: 3, samples: 15",
        }
    ]
    for entry in smaller + bigger:
        assert entry.keys() <= {"name", "unit", "value", "range", "extra"}
        assert {"name", "unit", "value"} <= entry.keys()


def test_the_same_case_in_two_suites_keeps_two_series() -> None:
    records = [r for suite in ("a", "b") for r in some_rounds(*STEADY, case=a_case(suite=suite))]
    entries = json.loads(exported("gha_benchmark", a_run(records))["smaller-is-better.json"])
    assert {entry["name"].partition(":")[0] for entry in entries} == {"a", "b"}


# From outside


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    found = one_of_each()
    for name, run in (("A1", found.ref), ("B2", found.new)):
        runs.store_run(tmp_path / "results", replace(run, info=replace(run.info, id=name)))
    return tmp_path


def test_compare_writes_every_requested_output(two_runs: Path) -> None:
    wanted = "github,junit=out/junit.xml,gha-benchmark=out/gha"
    summary = two_runs / "summary.md"
    summary.write_text("before\n")
    done = accelbench(
        *("compare", "A1", "B2", "--format", "json", "--out", wanted),
        cwd=two_runs,
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert json.loads(done.stdout)["counts"]["slower"] == 2  # the annotations do not spoil it
    assert done.stderr.count("::error title=") == 4
    assert summary.read_text().startswith("before\n### accelbench: ")
    assert judged((two_runs / "out/junit.xml").read_text())["slower"] == ("failure", "slower")
    assert sorted(path.name for path in (two_runs / "out").rglob("*.*")) == [
        *("bigger-is-better.json", "junit.xml", "smaller-is-better.json")
    ]


def test_the_summary_of_a_step_stays_within_its_mebibyte(two_runs: Path) -> None:
    summary = two_runs / "summary.md"
    summary.write_bytes(b"x" * (2**20 - 700))
    accelbench("compare", "A1", "B2", "--out", "github", cwd=two_runs, GITHUB_STEP_SUMMARY=str(summary))
    assert 2**20 - 700 < summary.stat().st_size <= 2**20


@pytest.mark.parametrize("wrong", ["junit", "junit=", "juni=x", "markdown=x", "=x"])
def test_an_output_that_is_typed_wrong_is_a_usage_error(two_runs: Path, wrong: str) -> None:
    assert "hint: " in accelbench("compare", "A1", "B2", "--out", wrong, cwd=two_runs, code=2).stderr


def test_a_summary_that_cannot_be_written_is_code_6(two_runs: Path) -> None:
    accelbench(
        *("compare", "A1", "B2", "--out", "github"), cwd=two_runs, code=6, GITHUB_STEP_SUMMARY=str(two_runs)
    )


def test_export_writes_one_text_to_the_screen_and_several_files_to_a_folder(two_runs: Path) -> None:
    shown = accelbench("export", "B2", "--to", "junit", cwd=two_runs).stdout
    assert ET.fromstring(shown).tag == "testsuites"
    accelbench("export", "B2", "--to", "junit", "-o", "report.xml", cwd=two_runs)
    assert ET.parse(two_runs / "report.xml").getroot().tag == "testsuites"
    accelbench("export", "B2", "--to", "gha-benchmark", cwd=two_runs)
    accelbench("report", "B2", "--format", "gha-benchmark", "-o", "here", cwd=two_runs)
    for place in ("results/runs/B2/exports", "here"):
        assert len(list((two_runs / place).glob("*-is-better.json"))) == 2


@pytest.mark.parametrize("command", [("export", "B2", "--to"), ("report", "B2", "--format")])
def test_a_format_that_is_not_there_is_a_usage_error_with_the_nearest(
    two_runs: Path, command: tuple[str, ...]
) -> None:
    done = accelbench(*command, "gha-benchmrk", cwd=two_runs, code=2)
    assert "Did you mean 'gha-benchmark'?" in done.stderr
