"""The documents of all verbs in all formats: no fact is lost, and hostile text has no effect."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import groupby, product
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from benchbench.analyse.digest import digest
from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.analyse.pricing import Prices
from benchbench.choosing.choice import compare_hardware
from benchbench.cli import formats
from benchbench.diagnosis.checks import Finding, Level
from benchbench.documents.bisection import bisection_document
from benchbench.documents.comparison import comparison_document
from benchbench.documents.doctor import ceilings_document, findings_document
from benchbench.documents.document import (
    Cell,
    Column,
    Content,
    Document,
    Layout,
    Number,
    cell,
    paragraph,
    table,
)
from benchbench.documents.gate import Gate, baseline_document, baselines_document, check_document
from benchbench.documents.hardware import hardware_document
from benchbench.documents.history import history_document
from benchbench.documents.lists import devices_document, environments_document, list_document
from benchbench.documents.plan import plan_document
from benchbench.documents.profile import differences_document, profile_document
from benchbench.documents.run import report_document
from benchbench.documents.run_list import runs_document
from benchbench.environments.interpreters import EnvironmentState
from benchbench.exporters import FORMATS, Format, export
from benchbench.exporters.terminal import render
from benchbench.exporters.text import cell_text, escape_markdown, marks
from benchbench.judging.bisection import Estimate, SearchEnd, SearchResult, SearchRules, Span, VersionPair
from benchbench.judging.case_tests import GatePolicy
from benchbench.judging.check import decide
from benchbench.judging.comparison import compare_runs
from benchbench.judging.series import trends
from benchbench.plan.revision import Version
from benchbench.profiling import difference, operator_table
from benchbench.running.bisecting import Bisection, EndsOfCase
from benchbench.store import runs
from tests.factories import (
    a_case,
    a_failure,
    a_hostile_run,
    a_left_out,
    a_probe,
    a_profile,
    a_profiled,
    a_record,
    a_run,
    a_run_info,
    an_operator,
    some_rounds,
)
from tests.program import accelbench
from tests.rendering import TEXTS, commands_in, rendered
from tests.test_architecture import ROOT
from tests.test_roofline import a_ceiling

LATENCY = metric_named("latency_s")
Make = Callable[[str, Path], Document]
BuildDocument = Callable[[str, str], Document]


def the_comparison(name: str, _: Path) -> Document:
    comparison = compare_runs(a_run(some_rounds(1e-3, 1e-3, 1e-3)), a_hostile_run(name))
    return comparison_document(comparison, comparison.verdicts)


def the_check(name: str, _: Path) -> Document:
    cases = [a_case(), a_case(workload=name)]
    failure = a_record(a_failure(message=name), case=a_case(mode=name))
    session, run = (
        replace(
            digest(a_run([*(r for c in cases for r in some_rounds(*[step] * 3, case=c)), failure])),
            id=f"{name}R",
            frameworks={name: f"{name}{step}"},
        )
        for step in (1e-3, 1.2e-3)
    )
    result = decide([session], run, GatePolicy(metrics=METRICS[:2], confirm=False))
    return check_document(Gate(name=name, result=result, note=name))


def the_profile(name: str, _: Path) -> Document:
    profile = a_profile(an_operator(name, 0.05), profiler=name, traces=(name,))
    tables = [
        operator_table(a_profiled(profile, case=a_case(target=target)), profile, None)
        for target in (name, "other")
    ]
    return profile_document(tables, 5, Path(name))


def the_difference(name: str, _: Path) -> Document:
    profiles = [a_profile(an_operator(name, seconds)) for seconds in (0.05, 0.08)]
    ref, new = (operator_table(a_profiled(profile), profile, None) for profile in profiles)
    return differences_document([difference(ref, new)], 5)


def the_findings(name: str, _: Path) -> Document:
    findings = [
        Finding(check="load", status=level, seen=name, value=1.0, unit="", effect=name, remedy=name)
        for level in Level
    ]
    return findings_document(findings)


def the_history(name: str, _: Path) -> Document:
    levels = [1e-3] * 8 + [1.1e-3] * 8
    history_runs = [
        a_run(
            some_rounds(level, level * 1.001, case=a_case(workload=name)),
            id=f"{name}{number:02}",
            started=f"2026-01-{number + 1:02}",
        )
        for number, level in enumerate(levels)
    ]
    return history_document(trends(history_runs, LATENCY))


def the_bisection(name: str, _: Path) -> Document:
    ends = (EndsOfCase(case=name, changes=(0.05, 0.05), end=SearchEnd.NAMED),)
    estimate = Estimate(0.05, 0.04, 0.06)
    result = SearchResult(end=SearchEnd.NAMED, pairs=2, whole=estimate, span=Span(1, 2, 0.96), step=estimate)
    return bisection_document(
        Bisection(
            id=name,
            versions=tuple(Version(label=f"{name}{number}", about=name) for number in range(3)),
            metric=LATENCY,
            rules=SearchRules(versions=3),
            ends=ends,
            case=f"{name}!",
            result=result,
            pairs=(VersionPair(version=2, beside=0, change=0.05),),
            runs={0: name, 2: name},
            skipped={1: name},
            profiled=True,
        )
    )


def the_hardware(name: str, _: Path) -> Document:
    hardware_runs = [
        a_run(
            [
                replace(record, device_model=f"{name}{number // 3}")
                for record in some_rounds(step, step, step, case=a_case(workload=name, target=name))
            ],
            id=f"{name}{number}",
            tags={"machine": f"{name}{number}"},
        )
        for number, step in enumerate([1e-3, 1e-3, 3e-3, 9e-3])
    ]
    prices = Prices(currency=name, per_hour={"*": 2.0})
    return hardware_document(compare_hardware(hardware_runs, prices))


def the_runs(name: str, results: Path) -> Document:
    runs.store_run(results, a_run(command=(name,), plan=(a_case(),)))
    return runs_document(results)


@cache
def a_list(subject: str) -> Document:
    """Document of a list of accelbench itself, without user-defined texts."""
    return list_document(subject)


DOCUMENTS: dict[str, Make] = {
    "report": lambda name, _: report_document(a_hostile_run(name)),
    "compare": the_comparison,
    "check": the_check,
    "profile": the_profile,
    "profile of two": the_difference,
    "doctor": the_findings,
    "doctor --ceilings": lambda name, _: ceilings_document(
        [a_ceiling(device=name, case=name, measured=name)], [name]
    ),
    "history": the_history,
    "bisect": the_bisection,
    "hardware": the_hardware,
    "list workloads": lambda _name, _results: a_list("workloads"),
    "list backends": lambda _name, _results: a_list("backends"),
    "list suites": lambda _name, _results: a_list("suites"),
    "list metrics": lambda _name, _results: a_list("metrics"),
    "list runs": the_runs,
    "devices": lambda name, _: devices_document([a_probe(version=name, missing=(("cuda", name),))]),
    "run --dry-run": lambda name, _: plan_document(a_run_info(left_out=(a_left_out(reason=name),))),
    "env list": lambda name, _: environments_document(
        [EnvironmentState(name="x@old", backend="x", record=None, health="incomplete", reason=name)]
    ),
    "baseline list": lambda name, _: baselines_document({name: {"machine": [digest(a_hostile_run(name))]}}),
    "baseline show": lambda name, _: baseline_document(
        name, {"machine": [digest(a_hostile_run(name))]}, LATENCY
    ),
}
every_document = pytest.mark.parametrize("verb", DOCUMENTS)


@pytest.fixture(scope="module")
def build_document(tmp_path_factory: pytest.TempPathFactory) -> BuildDocument:
    """Function that builds the document of a verb with `name` in all its texts; results are cached."""
    return cache(lambda verb, name: DOCUMENTS[verb](name, tmp_path_factory.mktemp("documents")))


EVERY_FORMAT = {name: kind for name, kind in FORMATS.items() if not kind.of_run}


@pytest.mark.real
@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_every_document_can_be_rendered_in_every_format(name: str, build_document: BuildDocument) -> None:
    for verb in DOCUMENTS:
        document = build_document(verb, "name")
        files = export(document, name)
        extension = EVERY_FORMAT[name].extension
        if EVERY_FORMAT[name].pictures:
            drawn_plots = [plot for plot in document.plots() if plot.panels] or document.plots()
            assert list(files) == [f"{plot.name}.{extension}" for plot in drawn_plots], verb
        else:
            assert list(files) == [f"{document.name}.{extension}"], verb
        assert all(files.values()), verb


@every_document
def test_terminal_and_markdown_have_all_texts(verb: str, build_document: BuildDocument) -> None:
    document = build_document(verb, "name")
    footnote_marks = marks(document)
    cells = [cell_text(cell, footnote_marks) for table in document.tables for cell in table.cells]
    lines = [line for table in document.tables for line in (table.title, *table.facts, *table.notes)]
    lines += [*document.facts, *document.notes, *document.footnotes, *map(str, document.answer)]
    assert cells or lines
    terminal_text, markdown = render(document, 10_000), rendered(document, "markdown")
    aligned = re.sub(" +", " ", terminal_text)  # numbers are aligned
    for text in (*cells, *lines):
        assert re.sub(" +", " ", text) in aligned
        assert escape_markdown(text) in markdown


@every_document
def test_json_has_the_data_and_csv_rows_have_one_length(verb: str, build_document: BuildDocument) -> None:
    document = build_document(verb, "name")
    assert json.loads(rendered(document, "json")) == json.loads(json.dumps(document.data))
    csv_rows = list(csv.reader(io.StringIO(rendered(document, "csv"))))
    lengths = {len(row) for row in csv_rows if len(row) > 1}
    tables = {len(table.columns) for table in document.tables if table.columns}
    assert lengths == ({len(document.records.names)} if document.records else tables)


HOSTILE = (
    "=1+1 \x1b[31m \u202egnp a\nb <script> a|b [/red] x\n::error::x ##[add-mask]x ##vso[task.x]",
    "::add-mask::x",
)


@pytest.mark.parametrize("name", ["terminal", "markdown", "csv", "json", "html"])
def test_hostile_text_has_no_effect(name: str, build_document: BuildDocument) -> None:
    for verb, text in product(DOCUMENTS, HOSTILE):
        output = rendered(build_document(verb, text), name)
        assert not {"\x1b", "\u202e"} & set(output), verb
        assert not commands_in(output), verb
        if name == "markdown":
            assert "<script>" not in output, verb
            for is_table, lines in groupby(output.splitlines(), lambda line: line.startswith("|")):
                assert not is_table or len({line.replace("\\|", "").count("|") for line in lines}) == 1, verb
        if name == "csv":
            fields = [field for line in csv.reader(io.StringIO(output)) for field in line]
            assert not [field for field in fields if field.startswith(("=", "@"))], verb


@pytest.mark.parametrize("width", [60, 100])
def test_no_line_is_wider_than_the_terminal(width: int, build_document: BuildDocument) -> None:
    for verb in DOCUMENTS:
        lines = render(build_document(verb, "name"), width).splitlines()
        assert max(map(cell_len, lines)) <= width, verb


def test_only_requested_colour_is_used(build_document: BuildDocument) -> None:
    for verb in DOCUMENTS:
        document = build_document(verb, "name")
        assert "\x1b" in render(document, 100, color=True), verb
        assert "\x1b" not in render(document, 100), verb


@pytest.mark.real
@pytest.mark.parametrize(
    ("force", "no", "coloured"), [("", "", False), ("1", "", True), ("1", "1", False), ("", "1", False)]
)
def test_environment_variables_control_colour(force: str, no: str, coloured: bool, tmp_path: Path) -> None:
    process = accelbench("list", "metrics", cwd=tmp_path, FORCE_COLOR=force, NO_COLOR=no)
    assert ("\x1b[" in process.stdout) == coloured


@pytest.mark.parametrize(("step_s", "coloured"), [(2e-3, "\x1b[31mslower"), (0.5e-3, "\x1b[32mfaster")])
def test_verdicts_have_colours(step_s: float, coloured: str) -> None:
    ref, new = (a_run(some_rounds(step, step * 1.01, step)) for step in (1e-3, step_s))
    comparison = compare_runs(ref, new)
    assert coloured in render(comparison_document(comparison, comparison.verdicts), 100, color=True)


def test_the_document_module_imports_no_heavy_library() -> None:
    code = "import sys, benchbench.documents.document; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert not {"rich", "numpy", "pandas", "matplotlib", "scipy", "typer"} & set(loaded)


# Cells and tables


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        (3, "3"),
        (Number(0.0012, "s", 0.0011, 0.0013), "1.20 ms [1.10, 1.30]"),
        (Number(1.08, "×", 1.068, 1.093), "1.080× [1.068, 1.093]"),
        (Number(1.08, "×"), "1.08×"),
        (Number(0.05, "%", exact=True), "5%"),
        (Number(30.0, "%"), ">1000 %"),
        (Number(0.0001, "p"), "<0.001"),
        (Number(-0.003, "s", signed=True), "−3.00 ms"),
        (Cell((Number(1.5, "×"),), unsure=True), "1.50× ?"),
        (Cell((Number(1, "s"), "→", Number(2, "s"))), "1.00 s → 2.00 s"),
    ],
)
def test_the_text_of_a_cell(content: Cell | Number | str | int | None, text: str) -> None:
    assert str(cell(content)) == text


def test_a_paragraph_omits_the_labels_of_empty_cells() -> None:
    columns = [Column("ratio", line=1), Column("p", line=1, label="p"), Column("notes", line=2)]
    assert paragraph(columns, [cell("1.1×"), cell(Number(0.2, "p")), cell("why")]) == ["1.1×  p 0.200", "why"]
    assert paragraph(columns, [cell("1.1×"), None, Cell()]) == ["1.1×"]


def test_an_empty_list_is_reported_in_every_text_format() -> None:
    document = Document(name="runs", title="Runs", tables=(table([]),), data=[])
    assert {name: rendered(document, name) for name in TEXTS} == {
        "terminal": "none\n",
        "markdown": "## Runs\n\nnone\n",
        "csv": "\n",
        "json": "[]\n",
    }


def test_csv_columns_of_one_unit_are_numbers_and_mixed_ones_are_texts() -> None:
    rows: list[dict[str, Content]] = [
        {"time": Number(0.5, "s"), "mixed": Number(1, "s")},
        {"time": None, "mixed": "–"},
    ]
    document = Document(name="x", title="x", tables=(table(rows),))
    assert rendered(document, "csv") == "time [s],mixed\n0.5,1.00 s\n,–\n"


def two_alternatives() -> Document:
    columns = (Column(""), Column("latency"), Column("rate"))
    rows: list[dict[str, Content]] = [
        {"": "torch", "latency": Number(0.5, "s"), "rate": Number(2, "image/s")},
        {"": "jax", "latency": "unsupported: no builder for this one"},
    ]
    tables = [table(rows, columns, layout=Layout.ALTERNATIVES, title=title) for title in ("one", "two")]
    return Document(name="x", title="x", tables=tuple(tables))


def test_alternatives_with_the_same_columns_are_one_markdown_table() -> None:
    markdown = rendered(two_alternatives(), "markdown")
    assert markdown.count("| latency |") == 1
    assert "| **one** |  |  |\n| torch | 500 ms | 2.00 image/s |" in markdown


def test_one_line_adds_a_format(build_document: BuildDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    def org(document: Document) -> dict[str, bytes]:
        return {f"{document.name}.org": f"* {document.title}\n".encode()}

    monkeypatch.setitem(FORMATS, "org", Format("org", "org:org"))
    monkeypatch.setitem(sys.modules, "benchbench.exporters.org", SimpleNamespace(org=org))
    assert formats.format_of(Path("found.org")) == formats.checked_text("org") == "org"
    for verb in DOCUMENTS:
        assert rendered(build_document(verb, "name"), "org").startswith("* "), verb
