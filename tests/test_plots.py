"""Plots of a report and their files; plots of a history are tested in test_trend.py."""

import re
from pathlib import Path
from typing import Any

import pytest

from benchbench.documents.document import Bars, Document, Mark, Plot, Spread, Strips, Sweeps
from benchbench.documents.run import report_document
from benchbench.exporters.drawing import colour, enclosing, even_ticks, log_ticks
from benchbench.exporters.panels import is_wide
from benchbench.exporters.plots import figure_of, svg
from benchbench.format import unit_text
from benchbench.model.case import Phase
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Record
from benchbench.registry import entry_names
from benchbench.store import runs
from tests.factories import a_case, a_cost, a_measurement, a_record, a_run, some_rounds
from tests.program import accelbench
from tests.rendering import rendered
from tests.test_exporters import a_typical_run


@pytest.mark.parametrize(
    ("plot", "status"),
    [("throughput", "wrong_result"), ("training", "out_of_memory"), ("latency", "wrong_result")],
)
def test_a_plot_shows_the_status_of_cases_without_a_number(plot: str, status: str) -> None:
    labels = texts(svg(report_document(a_typical_run()))[f"{plot}.svg"])
    assert {status, "torch eager"} <= set(labels)


def plots_of(document: Document) -> list[Plot]:
    """Plots with panels; without ceilings there is no roofline."""
    return [plot for plot in document.plots() if plot.panels]


def texts(svg: bytes) -> list[str]:
    """Texts of a plot, from the comments with which matplotlib labels them."""
    return re.findall(r"<!-- (.*?) -->", svg.decode(), re.DOTALL)


def test_panels_of_one_picture_share_a_unit() -> None:
    copy = {"cost": a_cost(flops=0, bytes=10**9, items=1, item="copy")}
    copy_records = some_rounds(0.02, 0.021, case=a_case(workload="copy", params={"n": 9}), **copy)
    run = a_typical_run()
    plots = plots_of(report_document(a_run([*run.records, *copy_records])))
    units = {plot.name: {getattr(panel, "unit", "s") for panel in plot.panels} for plot in plots}
    assert units == {
        "throughput": {"FLOP/s"},
        "bandwidth": {"B/s"},
        "training": {"image/s"},
        "latency": {"s"},
    }


def test_the_bar_of_a_collective_is_its_link_rate() -> None:
    over_two = Placement(devices=2, strategy=Strategy.COLLECTIVE)
    case = a_case(workload="all_reduce", params={"n": 9}, placement=over_two)
    cost = a_cost(flops=0, bytes=3 * 10**9, link_bytes=10**9, items=1, item="element")
    (bar,) = bars(plots_of(report_document(a_run(some_rounds(0.5, case=case, cost=cost))))[0])
    assert bar.value == pytest.approx(2e9)


def test_the_fastest_is_first_and_cases_without_a_number_are_last() -> None:
    throughput, training, latency = plots_of(report_document(a_typical_run()))
    assert [bar.label for bar in bars(training)] == ["jax jit", "tensorflow function", "torch eager"]
    assert [bar.value for bar in bars(throughput)][-1] is None
    assert isinstance(latency.panels[0], Strips)
    assert [strip.backend for strip in latency.panels[0].marks] == ["torch", "tensorflow", "jax"]


def bars(plot: Plot) -> tuple[Mark, ...]:
    (panel,) = plot.panels
    assert isinstance(panel, Bars)
    return panel.marks


def test_a_plot_has_hardware_versions_and_date() -> None:
    document = report_document(a_typical_run())
    for plot, content in zip(plots_of(document), svg(document).values(), strict=True):
        assert plot.facts[0] == "Example CPU, 2 of 2 threads"
        assert "torch 2.13.0" in plot.facts[1]
        assert plot.facts[2] == "2026-01-02T03:04:05Z, run 20260102-030405-abcd"
        assert set(plot.facts) <= {text.replace("\n", " ") for text in texts(content)}


def test_a_backend_has_one_colour_in_every_plot() -> None:
    shades = [colour(name) for name in entry_names("benchbench.backends")]
    assert len(set(shades)) == len(shades)
    assert colour("mine") == "#882255"
    assert colour("mine") not in shades
    pictures = svg(report_document(a_typical_run()))
    assert colour("torch").lower() in pictures["throughput.svg"].decode()
    assert colour("jax").lower() in pictures["training.svg"].decode()  # in the first panel with it


def sized(*sizes: int, **over: Any) -> list[Record]:
    cases = [a_case(params={"m": size, "n": size, "k": over.get("k", size)}) for size in sizes]
    return [record for case in cases for record in some_rounds(1e-6 * case.params["m"], case=case)]  # type: ignore[operator]


@pytest.mark.real
@pytest.mark.parametrize(
    ("records", "axes"),
    [
        (sized(8, 16), []),
        (sized(8, 16, 32), [("gemm · float32", "m = n = k", [8, 16, 32])]),
        (sized(32, 8, 16, k=4), [("gemm  k=4 · float32", "m = n", [8, 16, 32])]),
    ],
)
def test_works_that_differ_only_in_size_are_one_line(records: list[Record], axes: list[object]) -> None:
    document = report_document(a_run(records))
    panels = [panel for plot in document.plots() for panel in plot.panels if isinstance(panel, Sweeps)]
    assert [
        (panel.title, panel.axis, [point.size for point in panel.sweeps[0].points]) for panel in panels
    ] == axes
    assert all(svg(document).values())


def test_many_panels_are_split_into_pictures() -> None:
    cases = [a_case(params={"m": number + 1, "n": (number * 7) % 50}) for number in range(50)]
    run = a_run([record for case in cases for record in some_rounds(0.001, 0.002, case=case)])
    plots = [plot for plot in report_document(run).plots() if plot.name.startswith("latency")]
    assert [(plot.name, len(plot.panels)) for plot in plots] == [
        *(("latency", 24), ("latency-2", 24), ("latency-3", 2))
    ]
    assert plots[1].title == "Latency of a step (less is better), page 2 of 3"


def test_a_case_without_a_headline_shows_its_samples() -> None:
    strip = Mark(label="torch", backend="torch", status="no headline", processes=((0.1, 0.2), (0.4, 0.5)))
    panel = Strips(title="x", marks=(strip,))
    plot = Plot(name="p", title="t", facts=(), reading="", empty="", panels=(panel,))
    (content,) = svg(Document(name="d", title="t", plots=lambda: (plot,))).values()
    assert "no headline" in texts(content)
    assert b"<image" in content


def test_the_title_names_the_fastest_and_undecided_bars_are_hollow() -> None:
    jax = a_case(backend="jax", mode="jit")
    decided = report_document(a_run([*some_rounds(1, 1.001, 0.999), *some_rounds(2, 2.001, 2, case=jax)]))
    undecided = report_document(a_run([*some_rounds(1, 1.3, 0.8), *some_rounds(0.9, 1.2, 1.1, case=jax)]))
    for document, is_undecided in ((decided, False), (undecided, True)):
        for plot in plots_of(document):
            assert "torch" in plot.title
            assert plot.shared.endswith("(less is better) · float32 · cpu") or plot.name != "latency"
            assert [panel.title for panel in plot.panels] == ["gemm  m=64 n=64 k=64"]
            bars = [bar for panel in plot.panels if isinstance(panel, Bars | Strips) for bar in panel.marks]
            assert [bar.is_undecided for bar in bars] == [is_undecided] * 2


def test_disagreeing_processes_are_drawn_one_by_one() -> None:
    document = report_document(a_run(some_rounds(0.001, 0.2, 0.21)))
    (latency,) = (plot for plot in document.plots() if plot.name == "latency")
    (panel,) = latency.panels
    assert isinstance(panel, Strips)
    assert panel.marks[0].value is None
    assert [process[0] for process in panel.marks[0].processes] == pytest.approx([0.001, 0.2, 0.21])
    spreads = [part for cell in document.tables[0].cells for part in cell.parts if isinstance(part, Spread)]
    assert [mark.value for spread in spreads for mark in spread.marks] == [None]
    page = rendered(document, "html")
    assert "processes disagree: 1.00, 200, 210 ms" in page
    assert page.count("<svg") == 3  # the backend, the axis, the lanes


def test_a_picture_has_one_kind_of_scale_and_titles_on_one_line() -> None:
    wide = some_rounds(0.001, 0.2, 0.21, case=a_case(workload="a" * 200))
    document = report_document(a_run([*some_rounds(1, 1.1, 1.2), *wide]))
    for plot in plots_of(document):
        titles = [axes.get_title("left") for axes in figure_of(plot).axes]
        assert len(titles) == len(plot.panels)
        assert not any("\n" in title for title in titles)
    assert [is_wide(panel) for panel in plot.panels] == [False, True]
    assert "logarithmic" in " ".join(texts(svg(document)["latency.svg"]))


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.1), (0.9, 12.0), (3.0, 5000.0), (0.033, 0.075), (1e-9, 2.0), (7.0, 7.3)]
)
@pytest.mark.parametrize("logarithmic", [True, False])
def test_an_axis_has_a_tick_on_both_sides_of_the_data(low: float, high: float, logarithmic: bool) -> None:
    ends = enclosing(low, high, logarithmic=logarithmic)
    ticks = log_ticks(*ends) if logarithmic else even_ticks(*ends)
    assert ticks[0] <= low * (1 + 1e-6)
    assert ticks[-1] * (1 + 1e-6) >= high
    assert 3 <= len(ticks) <= 9


def test_a_plot_names_the_works_that_other_plots_show() -> None:
    train = a_case(workload="mlp_train", params={"batch": 2}, phase=Phase.TRAIN)
    records = [a_record(a_measurement()), a_record(a_measurement(), case=train)]
    readings = {plot.name: plot.reading for plot in report_document(a_run(records)).plots()}
    assert "Not in this plot: mlp_train (plot training)." in readings["throughput"]
    assert "Not in this plot: gemm (plot throughput)." in readings["training"]


@pytest.mark.parametrize(
    ("unit", "power", "text"),
    [
        ("token/s", 3, "thousand tokens/s"),
        ("image or token/s", 0, "images or tokens/s"),
        ("image/EUR", 6, "million images/EUR"),
        ("FLOP/s", 9, "GFLOP/s"),
        ("s", -3, "ms"),
        ("×", 0, "×"),
    ],
)
def test_units_of_axes_read_naturally(unit: str, power: int, text: str) -> None:
    assert unit_text(unit, power) == text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    runs.store_run(folder / "results", a_run(some_rounds(0.018, 0.019)))
    return folder


@pytest.mark.parametrize(
    ("name", "start"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml"), ("x.md", b"## Run"), ("x", b"run ")]
)
def test_the_extension_of_the_file_selects_the_format(folder: Path, name: str, start: bytes) -> None:
    accelbench("report", "--plot", "latency", "-o", name, cwd=folder)
    assert (folder / name).read_bytes().startswith(start)


def test_a_single_file_for_several_plots_is_refused(folder: Path) -> None:
    process = accelbench("report", "--format", "png", "-o", "single.png", cwd=folder, code=2)
    assert process.stderr.splitlines()[-2:] == [
        "error: single.png would be 2 files: throughput.png, latency.png.",
        "hint: Name a folder, as in -o single, or one plot: accelbench report --plot latency -o single.png.",
    ]
    assert not (folder / "single.png").exists()


def test_an_unknown_plot_has_a_suggestion(folder: Path) -> None:
    process = accelbench("report", "--plot", "latencies", cwd=folder, code=2)
    assert "hint: Did you mean 'latency'?" in process.stderr
