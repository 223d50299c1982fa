"""Formats of CI systems, parsed as these systems do, with their limits and with any names."""

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
from benchbench.exporters import export
from benchbench.judging.comparison import Comparison, compare_runs
from benchbench.model.case import Case, Status
from benchbench.model.run import Record, Run
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


def exported(name: str, run: Run, compared: Comparison | None = None) -> dict[str, str]:
    files = export(report_document(run, judgements(compared) if compared else ()), name)
    return {file: content.decode() for file, content in files.items()}


def judgements(compared: Comparison) -> list[CaseVerdict]:
    return [comparison.case_verdict(verdict) for verdict in compared.verdicts]


def only(files: Mapping[str, str]) -> str:
    (text,) = files.values()
    return text


def times(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


def a_case_of(kind: str, **over: Any) -> Case:
    return a_case(**({"params": {"kind": kind}} | over))


def one_of_each(**over: Any) -> Comparison:
    """A comparison with a case for each result; two cases are slower."""
    kinds = ("slower", "slowest", "faster", "same", "unsure", "full", "wrong", "gone")
    case = {kind: a_case_of(kind, **over) for kind in kinds}
    full = a_failure(status=Status.OUT_OF_MEMORY, message="needs 31 GiB")
    wrong_result = a_failure(status=Status.WRONG_RESULT, message="relative error 1 > 1e-05")
    new = [
        *some_rounds(*times(1.1), case=case["slower"]),
        *some_rounds(*times(1.5), case=case["slowest"]),
        *some_rounds(*times(0.8), case=case["faster"]),
        *some_rounds(*STEADY, case=case["same"]),
        *some_rounds(1e-3, 1.4e-3, 0.8e-3, case=case["unsure"]),
        a_record(full, case=case["full"]),
        a_record(wrong_result, case=case["wrong"]),
    ]
    ref = [record for one_case in case.values() for record in some_rounds(*STEADY, case=one_case)]
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
    """A comparison with `text` in every name; two cases are slower and one crashed."""
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
    """Kind of case → tag and type in its test case."""
    results = {}
    for case in ET.fromstring(text).iter("testcase"):
        kind = re.search(r"kind=([^)]*)", case.attrib["name"])
        below = [(child.tag, child.attrib.get("type", "")) for child in case if child.tag != "system-out"]
        results[kind[1] if kind else ""] = below[0] if below else ("", "")
    return results


def test_junit_has_failures_errors_and_skipped_cases() -> None:
    compared = one_of_each()
    assert judged(only(exported("junit", compared.new, compared))) == {
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


def test_junit_of_a_single_run_has_no_failures_for_measured_cases() -> None:
    compared = one_of_each()
    tags = {kind: tag for kind, (tag, _) in judged(only(exported("junit", compared.new))).items()}
    assert tags["slower"] == ""
    assert tags["full"] == "error"


def test_junit_has_the_notes_of_a_doubtful_case() -> None:
    busy = a_watched(a_telemetry(busy_s=tuple(0.2 * number for number in range(11))))
    disturbed = [a_record(busy, case=a_case_of("busy"), round=number) for number in range(3)]
    wild = some_rounds(3.55e-3, 0.216, 0.213, case=a_case_of("wild"))
    text = only(exported("junit", a_run([*disturbed, *wild])))
    assert ">contended: other processes used 0.5 of a core" in text
    assert ">processes disagree: 3.55, 216, 213 ms" in text


def test_junit_has_counts_and_reasons() -> None:
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
    compared = one_of_each()
    root = ET.fromstring(only(exported("junit", compared.new, compared)))
    for level in (root, *root.iter("testsuite")):
        cases = list(level.iter("testcase"))
        assert int(level.attrib["tests"]) == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(level.attrib[name]) == sum(case.find(tag) is not None for case in cases)


@given(anything)
@settings(max_examples=60)
def test_junit_is_xml_with_any_names(text: str) -> None:
    compared = a_named_run(text)
    document = only(exported("junit", compared.new, compared))
    assert len(list(ET.fromstring(document).iter("testcase"))) == len(compared.verdicts)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", document)


# GitHub


def commands(text: str) -> list[tuple[str, str, str]]:
    """Kind, title and message, unescaped as actions/runner does it."""
    parsed = []
    for line in text.splitlines():
        parts = re.fullmatch(r"::(error|warning|notice) title=([^:,]*)::(.*)", line)
        assert parts, line
        values = [part.replace("%0D", "\r").replace("%0A", "\n") for part in parts.groups()]
        values = [part.replace("%3A", ":").replace("%2C", ",").replace("%25", "%") for part in values]
        parsed.append((values[0], values[1], values[2]))
    return parsed


def test_github_annotations_are_ordered_by_severity() -> None:
    compared = one_of_each()
    annotated = commands(exported("github", compared.new, compared)["annotations.txt"])
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


def test_github_gets_at_most_ten_annotations_of_a_kind() -> None:
    annotated = commands(exported("github", many(10, 1.2).new, many(10, 1.2))["annotations.txt"])
    assert len(annotated) == 10
    compared = many(25, 1.2)
    annotated = commands(exported("github", compared.new, compared)["annotations.txt"])
    assert len(annotated) == 10
    assert annotated[0][1] == "slower: gemm(kind=024)/float32/eager@torch:cpu"
    assert annotated[-1][2] == "16 more: see the job's summary"


@given(anything)
@settings(max_examples=60)
def test_github_reads_one_command_per_case_with_any_names(text: str) -> None:
    compared = a_named_run(text)
    files = exported("github", compared.new, compared)
    assert len(commands(files["annotations.txt"])) == len(compared.verdicts)
    table = [line for line in files["summary.md"].splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(compared.verdicts)
    assert {line.replace("\\|", "").count("|") for line in table} == {5}


def test_the_summary_lists_the_worst_first() -> None:
    compared = one_of_each()
    summary = exported("github", compared.new, compared)["summary.md"]
    assert summary.startswith("### accelbench: 2 slower, 1 wrong_result, 1 out_of_memory, 1 inconclusive, ")
    results = [line.split(" | ")[1] for line in summary.splitlines() if line.startswith("| gemm")]
    assert results[:4] == ["slower", "slower", "wrong_result", "out_of_memory"]
    assert results[-3:] == ["unavailable", "faster", "same"]


@pytest.mark.parametrize("room", [0, 100, 500, 2_000, 10_000, 2**20])
def test_the_summary_fits_into_the_space_left_and_counts_omitted_cases(room: int) -> None:
    compared = many(25, 1.2)
    report = report_document(compared.new, judgements(compared))
    summary = export(report, "github", room=room)["summary.md"]
    assert len(summary) <= room
    if summary:
        row_count = summary.decode().count("\n| gemm")
        assert (f"… and {25 - row_count} more" in summary.decode()) == (row_count < 25)


# github-action-benchmark


def test_github_action_benchmark_gets_two_files() -> None:
    files = exported("gha-benchmark", a_run(some_rounds(*STEADY)))
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


def test_a_case_in_two_suites_has_two_series() -> None:
    records = [r for suite in ("a", "b") for r in some_rounds(*STEADY, case=a_case(suite=suite))]
    entries = json.loads(exported("gha-benchmark", a_run(records))["smaller-is-better.json"])
    assert {entry["name"].partition(":")[0] for entry in entries} == {"a", "b"}


# Command line


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    compared = one_of_each()
    for name, run in (("A1", compared.ref), ("B2", compared.new)):
        runs.store_run(tmp_path / "results", replace(run, info=replace(run.info, id=name)))
    return tmp_path


def test_compare_writes_every_requested_output(two_runs: Path) -> None:
    outputs = "github,junit=out/junit.xml,gha-benchmark=out/gha"
    summary = two_runs / "summary.md"
    summary.write_text("before\n")
    process = accelbench(
        *("compare", "A1", "B2", "--format", "json", "--out", outputs),
        cwd=two_runs,
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert json.loads(process.stdout)["counts"]["slower"] == 2  # without annotations
    assert process.stderr.count("::error title=") == 4
    assert summary.read_text().startswith("before\n### accelbench: ")
    assert judged((two_runs / "out/junit.xml").read_text())["slower"] == ("failure", "slower")
    assert sorted(path.name for path in (two_runs / "out").rglob("*.*")) == [
        *("bigger-is-better.json", "junit.xml", "smaller-is-better.json")
    ]


def test_the_summary_of_a_step_stays_below_a_mebibyte(two_runs: Path) -> None:
    summary = two_runs / "summary.md"
    summary.write_bytes(b"x" * (2**20 - 700))
    accelbench("compare", "A1", "B2", "--out", "github", cwd=two_runs, GITHUB_STEP_SUMMARY=str(summary))
    assert 2**20 - 700 < summary.stat().st_size <= 2**20


@pytest.mark.parametrize("output", ["junit", "junit=", "juni=x", "markdown=x", "=x"])
def test_an_invalid_output_is_a_usage_error(two_runs: Path, output: str) -> None:
    assert "hint: " in accelbench("compare", "A1", "B2", "--out", output, cwd=two_runs, code=2).stderr


def test_a_summary_that_cannot_be_written_has_exit_code_6(two_runs: Path) -> None:
    command = ("compare", "A1", "B2", "--out", "github")
    accelbench(*command, cwd=two_runs, code=6, GITHUB_STEP_SUMMARY=str(two_runs))


def test_export_prints_a_single_file_and_writes_several_to_a_folder(two_runs: Path) -> None:
    text = accelbench("export", "B2", "--to", "junit", cwd=two_runs).stdout
    assert ET.fromstring(text).tag == "testsuites"
    accelbench("export", "B2", "--to", "junit", "-o", "report.xml", cwd=two_runs)
    assert ET.parse(two_runs / "report.xml").getroot().tag == "testsuites"
    accelbench("export", "B2", "--to", "gha-benchmark", cwd=two_runs)
    accelbench("report", "B2", "--format", "gha-benchmark", "-o", "here", cwd=two_runs)
    for folder in ("results/runs/B2/exports", "here"):
        assert len(list((two_runs / folder).glob("*-is-better.json"))) == 2


@pytest.mark.parametrize("command", [("export", "B2", "--to"), ("report", "B2", "--format")])
def test_an_unknown_format_is_an_error_with_a_suggestion(two_runs: Path, command: tuple[str, ...]) -> None:
    process = accelbench(*command, "gha-benchmrk", cwd=two_runs, code=2)
    assert "Did you mean 'gha-benchmark'?" in process.stderr
