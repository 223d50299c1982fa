"""The appearance of every format, and the escaping of text from data."""

import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot
from markdown_it import MarkdownIt
from rich.cells import cell_len

from benchbench.analyse.rows import COLUMNS
from benchbench.documents.comparison import comparison_document
from benchbench.documents.document import Column, Content, Document, number, table
from benchbench.documents.plan import plan_document
from benchbench.documents.run import RunReport, report_document
from benchbench.documents.short_names import case_cells, short_params, varying_params
from benchbench.exporters import FORMATS, export
from benchbench.exporters.plots import png, svg
from benchbench.exporters.terminal import fold_line, narrow_table, render
from benchbench.exporters.text import csv_file, escape_latex, escape_markdown, json_file
from benchbench.judging.comparison import compare_runs
from benchbench.model.case import Phase, Status
from benchbench.model.run import Run
from benchbench.store.validation import schema_faults
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_hostile_run,
    a_left_out,
    a_machine,
    a_measurement,
    a_record,
    a_run,
    a_run_info,
    some_rounds,
)
from tests.rendering import commands_in, rendered

PICTURES = ["png", "svg"]
TEXTS = [name for name in FORMATS if name not in PICTURES]
DRAWN_AS = {  # elements of a picture and of matplotlib's metadata
    *("svg", "g", "defs", "path", "use", "rect", "clipPath", "style", "image"),
    *("metadata", "RDF", "Work", "type", "format", "creator", "Agent", "title"),
}
OWN_COMMANDS = ("::error title=", "::warning title=", "::notice title=")
COMMANDS = ["::add-mask::x", "a\n::error::x", "##[add-mask]x", "##vso[task.x]"]  # of CI services
CLOSING = "--><script>alert(1)</script><!--"  # a comment
HOSTILE = [
    *("[red]markup[/red]", "[/red]", "a|b|c", "`code`", "**bold** _it_"),
    "[link](http://example.com) ![image](http://example.com/x.png)",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    *("\x1b]0;title\x07\x1b[31mred", "\u202egnp.exe", "line\nbreak\r\n::error::x"),
    *(r"$\frac{$", "$x$ and $y$", "=cmd()", "+1", "-1", "@sum", "\t=1", "\r=1", "数字 😀", ""),
]


def a_typical_run() -> Run:
    """Two works on three backends, with a wrong result, a case out of memory and a noisy case."""
    torch, tensorflow, jax = (
        {"backend": "torch", "mode": "eager"},
        {"backend": "tensorflow", "mode": "function"},
        {"backend": "jax", "mode": "jit"},
    )
    train: dict[str, Any] = {"workload": "resnet50", "params": {"batch": 64}, "phase": Phase.TRAIN}
    wrong_result = a_failure(status=Status.WRONG_RESULT, message="relative error 1 > 1e-05")
    full = a_failure(
        status=Status.OUT_OF_MEMORY,
        message="worker killed by signal 9: needs about 31 GiB, limit 23 GiB; try batch=32",
    )
    gemm = {"cost": a_cost(flops=2_147_483_648, bytes=12_582_912)}
    images = {"cost": a_cost(flops=1_570_000_000_000, bytes=2_000_000_000, items=64, item="image")}
    return a_run(
        [
            *some_rounds(0.0181, 0.0184, 0.0187, case=a_case(**torch), **gemm),
            *some_rounds(0.0191, 0.0190, 0.0188, case=a_case(**tensorflow), **gemm, steady=False),
            *(a_record(wrong_result, case=a_case(**jax), round=number) for number in range(3)),
            a_record(full, case=a_case(**train, **torch)),
            *some_rounds(13.3, 13.2, 13.1, case=a_case(**train, **tensorflow), **images, cold_s=21.0),
            *some_rounds(9.8, 9.9, 10.0, case=a_case(**train, **jax), **images, cold_s=31.0),
        ],
        left_out=(a_left_out(), a_left_out(case=a_case(device="cuda:0", **train))),
    )


def csv_of(run: Run) -> list[dict[str, str]]:
    text = csv_file(report_document(run))["report.csv"].decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def json_of(run: Run) -> dict[str, Any]:
    def refuse(text: str) -> float:
        raise AssertionError(f"{text} is no JSON")

    content = json_file(report_document(run))["report.json"]
    return dict(json.loads(content, parse_constant=refuse))


@cache
def hostile_report() -> RunReport:
    """The report of a run whose cases, command and machine have every hostile text."""
    texts = [*HOSTILE, *COMMANDS, CLOSING]
    records = [record for text in texts for record in a_hostile_run(text).records[:2]]
    machine = a_machine(cpu=" ".join(texts), os=" ".join(texts))
    left_out = tuple(a_left_out(case=a_case(device=f"{text}2"), reason=text) for text in texts)
    return report_document(
        a_run(records, machine=machine, left_out=left_out, damaged=tuple(texts), command=tuple(texts))
    )


@cache
def hostile_plots() -> list[str]:
    """The plots of one run with every hostile text; a run per text would take too long."""
    texts = [*HOSTILE, *COMMANDS, CLOSING]
    machine = a_machine(cpu=" ".join(texts), os=" ".join(texts))
    run = a_run([a_hostile_run(text).records[0] for text in texts], machine=machine)
    return [content.decode() for content in svg(report_document(run)).values()]


@pytest.mark.parametrize("name", TEXTS)
def test_text_from_data_is_never_a_ci_command(name: str) -> None:
    files = dict(export(hostile_report(), name))
    assert any(files.values())
    annotations = files.pop("annotations.txt", b"").decode()
    assert not [line for line in commands_in(annotations) if not line.startswith(OWN_COMMANDS)]
    assert not [line for content in files.values() for line in commands_in(content.decode())]


@pytest.mark.real
def test_x5_text_of_a_plot_is_never_a_ci_command() -> None:
    assert not [line for plot in hostile_plots() for line in commands_in(plot)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.real] if name in PICTURES else []) for name in FORMATS]
)
def test_a_run_without_numbers_can_be_rendered_in_every_format(name: str) -> None:
    all_left_out = a_run([], left_out=(a_left_out(),))
    not_begun = a_run([], plan=(a_case(),))
    for run in (a_run([]), all_left_out, a_run([a_record(a_failure())]), not_begun):
        assert any(export(report_document(run), name).values())


def test_the_terminal_lists_backends_by_speed() -> None:
    report = report_document(a_typical_run())
    text = render(report, 120)
    assert render(report, 200) == text  # no wider than needed
    assert text.split("\n\n", 2)[2] == snapshot("""\
                            latency   speed                           rate       FLOP/s    memory    cold  ratio
gemm  m=64 n=64 k=64 · float32 · cpu
  torch eager          18.4 ms ±2 %   ████████████████████  54.4 product/s  117 GFLOP/s  62.0 MiB  250 ms  1.00× ?
  tensorflow function  19.0 ms ±2 %¹  ███████████████████▍  52.7 product/s  113 GFLOP/s  62.0 MiB  250 ms  1.03× ?
  jax jit              wrong_result: relative error 1 > 1e-05

resnet50  batch=64 · float32 · cpu
  jax jit               9.90 s ±2 %   ████████████████████    6.46 image/s  159 GFLOP/s  62.0 MiB  31.0 s  1.00×
  tensorflow function   13.2 s ±2 %   ███████████████         4.85 image/s  119 GFLOP/s  62.0 MiB  21.0 s  1.33×
  torch eager          out_of_memory²

¹ still warming up when measured, in 3 of 3 rounds
² out_of_memory: worker killed by signal 9: needs about 31 GiB, limit 23 GiB; try batch=32
? not significant: rounds, other programs or warm-up may explain the difference
left out 2×: torch cuda:0 eager: unavailable, this torch is a CPU build
""")  # noqa: E501


def test_a_title_that_does_not_fit_is_shortened() -> None:
    params = dict.fromkeys(("batch", "channels", "height", "width", "filters", "padding"), 64)
    report = report_document(a_run(some_rounds(0.001, case=a_case(workload="conv2d", params=params))))
    assert "conv2d  batch=64 channels=64 … · float32 · cpu\n" in render(report, 60)
    assert "filters=64 padding=64 · float32 · cpu\n" in render(report, 100)


def test_numbers_are_never_broken_across_lines() -> None:
    report = report_document(a_typical_run())
    words = set(render(report, 400).split())
    for width in (24, 40, 60, 70, 80, 90, 100, 120, 200):
        text = render(report, width)
        assert max(map(cell_len, text.splitlines())) <= width
        body = text.split("\n\n", 2)[2].partition("\n¹")[0]
        if width >= 60:
            assert {word for word in body.split() if word[0] not in "█▏▎▍▌▋▊▉…"} <= words


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """Type and content of the tokens of a Markdown document (CommonMark with tables)."""
    for block in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        yield block.type, block.content
        for part in block.children or ():
            yield part.type, part.content


@pytest.mark.real
def test_x1_a_plot_contains_only_drawing_elements() -> None:
    """Browsers show the other formats as text, except the page (tests/test_page.py)."""
    assert {kind.extension for kind in FORMATS.values()} == {
        *("csv", "html", "json", "md", "png", "svg", "tex", "txt", "xml")
    }
    for plot in hostile_plots():
        elements = list(ET.fromstring(plot).iter())
        assert {plain(element.tag) for element in elements} <= DRAWN_AS
        attributes = [(plain(name), value) for element in elements for name, value in element.items()]
        assert not [name for name, _ in attributes if name.lower().startswith("on")]
        assert all(
            value.startswith(("#", "data:image/png;base64,")) for name, value in attributes if name == "href"
        )


def plain(name: str) -> str:
    return name.rpartition("}")[2]


@given(st.text(st.sampled_from("ab1 _*`~|[]()!<>&\\#@$:/.-+=^"), max_size=20))
@settings(max_examples=300)
def test_x3_escaped_text_reads_back_unchanged(text: str) -> None:
    text = " ".join(text.split())
    rendered = [
        content
        for kind, content in tokens(f"| x |\n| --- |\n| a {escape_markdown(text)} a |\n")
        if kind not in ("inline", "html_inline", "code_inline") and content not in ("", "x")
    ]
    assert "".join(rendered).replace("\u200b", "") == f"a {text} a"


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("@someone", "@\u200bsomeone"),
        ("#12", "#\u200b12"),
        ("GH-12", "GH-\u200b12"),
        ("https://example.com", "https://\u200bexample.com"),
        ("www.example.com", "www.\u200bexample.com"),
    ],
)
def test_x3_text_that_github_would_link_is_split(text: str, broken: str) -> None:
    assert escape_markdown(text) == broken


def test_a_share_in_csv_is_a_fraction() -> None:
    row: dict[str, Content] = {"part": "gemm", "share": number(0.25, "%"), "p": number(0.5, "p")}
    row |= {"self": number(2.0, "s")}
    document = Document(name="parts", title="Parts", tables=(table([row]),), data=[])
    text = csv_file(document)["parts.csv"].decode()
    assert text == "part,share [fraction],p,self [s]\ngemm,0.25,0.5,2.0\n"


def test_x2_no_field_of_csv_begins_like_a_formula() -> None:
    report = hostile_report()
    content = csv_file(report)["report.csv"].decode()
    lines = list(csv.reader(io.StringIO(content, newline="")))
    formula = ("=", "+", "-", "@", "\t", "\r")
    assert not [field for line in lines for field in line if field.startswith(formula)]
    assert len(content.splitlines()) == len(lines) == 1 + len(report.rows)


def test_x2_texts_in_csv_are_quoted_and_numbers_are_untouched() -> None:
    case = a_case(params={"shift": -3}, workload="=cmd()")
    (row,) = csv_of(a_run([a_record(a_measurement(relative_error=-3e-7), case=case)]))
    assert tuple(row) == (*COLUMNS, "damaged")
    assert (row["workload"], row["relative_error"], row["params"]) == ("'=cmd()", "-3e-07", "shift=-3")
    assert "; energy_j: not measured; items_per_j: energy_j is not known" in row["notes"]


def test_json_has_the_published_form() -> None:
    assert list(schema_faults("report", json_of(a_typical_run()))) == []


def test_s7_json_never_contains_nan_or_infinity() -> None:
    for value in (math.nan, math.inf):
        wrong = a_failure(status=Status.WRONG_RESULT, relative_error=value)
        assert json_of(a_run([a_record(wrong)]))["rows"][0]["relative_error"] is None


@pytest.mark.real
def test_svg_is_reproducible_and_has_no_date() -> None:
    report = report_document(a_typical_run())
    assert svg(report) == svg(report)
    assert not [text for text in svg(report).values() if b"dc:date" in text]


@pytest.mark.real
@pytest.mark.parametrize("step", [2.048e-9, 8.192e-9, 1.1e-5])
def test_a_bar_can_have_an_interval_of_zero_width(step: float) -> None:
    assert png(report_document(a_run(some_rounds(step, step, step))))


def test_x6_no_text_of_a_plot_is_parsed_as_maths() -> None:
    picture = svg(report_document(a_hostile_run(r"$\frac{$")))["throughput.svg"].decode()
    assert r"<!-- $\frac{$ $\frac{$ -->" in picture


def test_a_line_is_folded_between_cells_words_or_parts_of_an_id() -> None:
    assert fold_line("1.34×  967 µs → 1.30 ms  3 v 3 processes", 26) == [
        "1.34×  967 µs → 1.30 ms",
        "3 v 3 processes",
    ]
    assert fold_line("lstm(length=50)/float32/function@tensorflow:cpu", 26) == [
        "lstm(length=50)/float32/",
        "function@tensorflow:cpu",
    ]
    assert fold_line("寸寸寸寸", 4) == ["寸寸", "寸寸"]


def test_a_grid_that_is_too_wide_loses_empty_columns_first() -> None:
    row = {"run": "R", "tags": "", "command": "run --suite quick"}
    document = Document(name="runs", title="Runs", tables=(table([row]),))
    assert render(document, 32).splitlines()[0].split() == ["RUN", "TAGS", "COMMAND"]
    assert render(document, 25).splitlines()[0].split() == ["RUN", "COMMAND"]


# LaTeX

OURS = {
    *(
        "newcommand",
        "accelbench",
        "accelbenchtables",
        "expandafter",
        "def",
        "csname",
        "endcsname",
        "ifcsname",
    ),
    *("else", "fi", "begin", "end", "centering", "small", "caption", "toprule", "midrule", "bottomrule"),
    *("textbackslash", "textasciicircum", "textasciitilde", "textless", "textgreater", "textbar", "textbf"),
    *("textquotedbl", "times", "pm", "cdot", "to", "mu", "usepackage"),
}


def latex(run: Run) -> str:
    return rendered(report_document(run), "latex")


def test_cells_have_macros_by_table_row_and_column() -> None:
    jax = a_case(backend="jax", mode="jit")
    text = latex(a_run([*some_rounds(1e-3, 1e-3, 1e-3), *some_rounds(2e-3, 2e-3, 2e-3, case=jax)]))
    macros = dict(re.findall(r"\\def\\csname accelbench@([^\\]*)\\endcsname\{(.*)\}", text))
    assert macros["gemm-m-64-n-64-k-64-float32-cpu@torch-eager@latency"].startswith("1.00 ms")
    assert macros["gemm-m-64-n-64-k-64-float32-cpu@jax-jit@ratio"] == r"2.00$\times$"
    assert text.count(r"\toprule") == text.count(r"\end{tabular}") == 1


@pytest.mark.parametrize(
    "name", [r"\input{/etc/passwd}", "a%b#c&d_e^f~g$h{i}", "]\\\\[", "\x1b[31m\u202e", "^^M"]
)
def test_names_are_escaped(name: str) -> None:
    text = latex(a_hostile_run(name))
    assert {*re.findall(r"\\([A-Za-z]+)", text)} <= OURS
    assert not {"\x1b", "\u202e"} & set(text)


@given(st.text())
def test_escaped_text_has_balanced_braces_and_no_special_characters(text: str) -> None:
    escaped = escape_latex(text)
    bare = re.sub(r"\\[{}$&#_%]|\\[a-z]+\{\}|\$(?:\\[a-z]+|-)\$", "", escaped)
    assert not set(r"\{}$&#_%^~") & set(bare)


# Short names of cases

SIZES = {"batch": 8, "channels": 64, "height": 28, "width": 28, "filters": 64, "kernel": 3, "padding": 1}


def test_a_short_id_has_the_parameters_that_differ() -> None:
    ids = [a_case(workload="conv2d", params={**SIZES, "kernel": kernel}).id for kernel in (1, 3)]
    ids += [a_case(workload="lone", params=SIZES).id, a_case(params={"m": 8}).id, "pytest::a_test"]
    assert [cell.short for cell in case_cells(ids).values()] == [
        "conv2d(kernel=1,…)/float32/eager@torch:cpu",
        "conv2d(kernel=3,…)/float32/eager@torch:cpu",
        "lone(batch=8,channels=64,…)/float32/eager@torch:cpu",
        "gemm(m=8)/float32/eager@torch:cpu",
        "",
    ]


params = st.dictionaries(st.sampled_from("mnkb"), st.integers(1, 3), min_size=1)


@given(st.lists(st.tuples(st.sampled_from(["gemm", "conv2d"]), params), max_size=8))
def test_different_cases_have_different_short_ids(cases_drawn: list[tuple[str, dict[str, int]]]) -> None:
    names = sorted({name for _, sizes in cases_drawn for name in sizes})
    cases = [(workload, {name: sizes.get(name, 0) for name in names}) for workload, sizes in cases_drawn]
    ids = {a_case(workload=workload, params=sizes).id for workload, sizes in cases}
    assert len({cell.short for cell in case_cells(ids).values()}) == len(ids)


def test_a_narrow_comparison_has_short_ids() -> None:
    cases = [a_case(workload="conv2d", params={**SIZES, "kernel": kernel}) for kernel in (1, 3)]
    ref, new = (
        a_run([record for case in cases for record in some_rounds(step, 1.01 * step, step, case=case)])
        for step in (1.0, 2.0)
    )
    comparison = compare_runs(ref, new)
    document = comparison_document(comparison, comparison.verdicts)
    assert "slower  conv2d(kernel=1,…)/float32/eager@torch:cpu\n" in render(document, 80)
    assert f"slower  {cases[0].id}\n" in render(document, 120)


def test_a_narrow_plan_has_short_ids() -> None:
    case = a_case(workload="resnet50_infer", params={"batch": 1, "image": 224, "depth": 50})
    document = plan_document(a_run_info(plan=(case,)))
    assert "resnet50_infer(batch=1,image=224,…)/float32/eager@torch:cpu  " in render(document, 70)
    assert f"{case.id}  " in render(document, 90)


def rows_of_words(*words: str) -> Document:
    return Document(name="x", title="x", tables=(table([{f"c{n}": word for n, word in enumerate(words)}]),))


def test_no_word_of_a_grid_is_broken() -> None:
    words = ("attention_backward", "optimizer=momentum of the network", "scaled dot-product attention")
    output = render(rows_of_words(*words), 60)
    assert max(map(len, output.splitlines())) <= 60
    assert set(" ".join(words).split()) <= set(output.split())


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=2, max_size=6), st.integers(1, 80))
def test_columns_of_high_rank_are_dropped_first_and_named(fields: list[tuple[int, int]], width: int) -> None:
    columns = [Column(f"c{number}", rank=rank) for number, (_, rank) in enumerate(fields)]
    row = {f"c{number}": "x" * length for number, (length, _) in enumerate(fields)}
    wide = table([row], columns)
    narrow = narrow_table(wide, {}, width)
    dropped_ranks = [column.rank for column in columns if column not in narrow.columns]
    assert all(column.rank < min(dropped_ranks, default=9) for column in narrow.columns)
    assert {column for column in columns if column.rank == 0} <= set(narrow.columns)
    needed_width = sum(max(2, len(str(row[column.name]))) + 2 for column in narrow.columns) - 2
    assert needed_width <= width or not any(column.rank for column in narrow.columns)
    text = render(Document(name="x", title="x", tables=(wide,)), width)
    assert ("noroomfor" in "".join(text.split())) == bool(dropped_ranks)


def test_words_wrap_if_they_do_not_fit() -> None:
    assert render(rows_of_words("a" * 20, "b" * 20, ""), 30) == f"{'a' * 20}\n  c1: {'b' * 20}\n"


def test_a_parameter_that_some_sizes_lack_varies() -> None:
    """Parameters with a default that is left out, such as `streams`."""
    sizes = [("infer", {"batch": 2, "image": 64}), ("infer", {"batch": 2, "image": 64, "streams": 2})]
    varying = varying_params(sizes)
    assert varying == {("infer", "streams")}
    assert [short_params(*size, varying) for size in sizes] == [{"batch": 2, "image": 64}, {"streams": 2}]
