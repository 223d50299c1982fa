"""Plots of a report and their files; plots of a history are tested in test_trend.py."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from benchbench.documents.document import (
    MAX_PANELS,
    Bars,
    Document,
    Mark,
    Panel,
    Plot,
    Roofline,
    Spread,
    Strips,
    Sweeps,
)
from benchbench.documents.run import RunReport, report_document
from benchbench.exporters.drawing import colour, date_names, enclosing, even_ticks, log_ticks
from benchbench.exporters.panels import is_wide
from benchbench.exporters.plots import figure_of, png, svg
from benchbench.format import unit_text
from benchbench.model.case import Dtype, Phase
from benchbench.model.note import NoteKind, note
from benchbench.model.placement import Placement, Strategy
from benchbench.model.run import Record
from benchbench.registry import entry_names
from benchbench.store import runs
from tests.factories import a_case, a_cost, a_measurement, a_record, a_run, some_rounds
from tests.program import accelbench
from tests.rendering import rendered
from tests.test_exporters import a_typical_run
from tests.test_roofline import H100, a_ceiling


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


def test_a_picture_has_room_for_every_panel() -> None:
    def height(count: int) -> float:
        cases = [a_case(params={"m": number}) for number in range(count)]
        run = a_run([record for case in cases for record in some_rounds(0.001, case=case)])
        return float(figure_of(plots_of(report_document(run))[0]).get_size_inches()[1])

    assert height(1) < height(3)  # in one column
    assert height(4) < height(6)


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
    assert (panel.marks[0].value, panel.marks[0].status) == (None, "processes disagree: 1.00, 200, 210 ms")
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


# Charts of sizes and rooflines

PEAK = 1e11  # FLOP/s
SIZES = (64, 128, 256, 512, 1024, 2048)
SVG = "{http://www.w3.org/2000/svg}"


def saturating(backend: str, half: float, peak: float = PEAK, sizes: Sequence[int] = SIZES) -> list[Record]:
    """GEMM records in three similar rounds, with half of the peak rate at the size `half`."""
    records: list[Record] = []
    for size in sizes:
        flops = 2 * size**3
        step_s = flops * (1 + (half / size) ** 3) / peak
        case = a_case(backend=backend, params={"m": size, "n": size, "k": size})
        cost = a_cost(flops=flops, bytes=12 * size**2)
        records += some_rounds(step_s, 1.001 * step_s, 0.999 * step_s, case=case, cost=cost)
    return records


def test_runs_of_one_day_are_labelled_with_their_times() -> None:
    days = ["2026-01-01T10:00:00+00:00", "2026-01-02T10:00:00+00:00"]
    assert date_names(days) == ["2026-01-01", "2026-01-02"]
    assert date_names([days[0], "2026-01-01T14:05:00+00:00"]) == ["01-01 10:00", "01-01 14:05"]


def panel_of(records: Sequence[Record]) -> Sweeps:
    (panel,) = panels(report_document(a_run(records)))
    assert isinstance(panel, Sweeps)
    return panel


def panels(report: RunReport, name: str = "sizes") -> list[Panel]:
    return [panel for plot in report.plots() if plot.name == name for panel in plot.panels]


def knees(panel: Sweeps) -> Mapping[str, tuple[float, bool] | None]:
    """Size of each alternative's knee, and whether it may be smaller; None without a knee."""
    return {
        sweep.label: (sweep.knee.size, sweep.knee.is_undecided) if sweep.knee else None
        for sweep in panel.sweeps
    }


def test_the_summary_names_the_fastest_at_each_size() -> None:
    """torch saturates early, jax later and higher."""
    panel = panel_of([*saturating("torch", 50), *saturating("jax", 500, 2 * PEAK)])
    assert panel.summary == "over m = n = k, torch is fastest up to 256, jax from 512"
    assert knees(panel) == {"jax eager": None, "torch eager": (256, False)}
    assert panel.details == "the rate stops rising at 256 for torch eager, beyond 2,048 for jax eager"


def test_undecided_sizes_have_no_winner_and_hollow_marks() -> None:
    records: list[Record] = []
    for size in SIZES:
        for backend, rounds in (("torch", (1, 1.4, 0.7)), ("jax", (1.1, 0.8, 1.2))):
            records += some_rounds(*rounds, case=a_case(backend=backend, params={"m": size}))
    panel = panel_of(records)
    assert panel.summary == "over m, undecided at every size"
    assert all(point.is_undecided for sweep in panel.sweeps for point in sweep.points)


def test_the_summary_of_a_single_alternative_is_its_knee_and_fall() -> None:
    summary = panel_of(saturating("torch", 50)).summary
    assert summary == "over m = n = k, the rate stops rising at 256 for torch eager"
    level = panel_of(saturating("torch", 1))
    assert knees(level) == {"torch eager": (64, True)}  # a smaller size may reach it, too
    assert "at 64 or less" in level.summary
    falling = panel_of([*saturating("torch", 1), *saturating("torch", 1, PEAK / 4, [4096])])
    assert falling.summary.endswith("; at 4,096 it has fallen to 25 % for torch eager")


@pytest.mark.parametrize("half", [1, 50, 300, 3000])
def test_chart_marks_are_at_the_measured_values(half: float) -> None:
    report = report_document(a_run([*saturating("torch", half), *saturating("jax", 500, 2 * PEAK)]))
    (panel,) = panels(report)
    assert isinstance(panel, Sweeps)
    axes = drawn(panel)
    points = [point for sweep in panel.sweeps for point in sweep.points]
    assert {(point.size, point.value, point.is_undecided) for point in points} == marks(axes)
    assert {point.value for point in points} <= {row.value("flops_per_s") for row in report.rows}
    rings = {tuple(map(float, offset)) for ring in axes.collections for offset in ring.get_offsets()}
    assert rings == {(sweep.knee.size, sweep.knee.value) for sweep in panel.sweeps if sweep.knee}


def test_a_page_shows_a_limited_number_of_charts_and_counts_the_others() -> None:
    records = [
        record
        for m, n in product(range(1, 31), (8, 16, 32))
        for record in some_rounds(1e-3 * m, case=a_case(params={"m": 100 + m, "n": n}))
    ]
    report = report_document(a_run(records))
    all_panels = panels(report, "sizes") + panels(report, "sizes-2")
    assert len(all_panels) == 33  # over n at each m, over m at each n
    page = rendered(report, "html")
    assert page.count("<figure") == MAX_PANELS
    assert f"{33 - MAX_PANELS} more" in page


CEILINGS = (a_ceiling(rate=1.2e11), a_ceiling("memory", 1e10))


@pytest.mark.parametrize("half", [1, 50, 300])
def test_roofline_marks_are_at_the_measured_values(half: float) -> None:
    crowded = (note(NoteKind.OTHER_PROCESSES, cores=1.5),)
    cost = {"cost": a_cost(flops=1000, bytes=10_000), "notes": crowded}
    busy = some_rounds(1e-6, 1e-6, case=a_case(workload="softmax"), **cost)
    report = report_document(a_run([*saturating("torch", half), *busy]), ceilings=CEILINGS)
    (panel,) = panels(report, "roofline")
    assert isinstance(panel, Roofline)
    axes = drawn(panel)
    rows = {(row.position.flops_per_byte, row.value("flops_per_s"), bool(row.doubts)) for row in report.rows}
    assert rows == marks(axes)
    (roof,) = (line for line in axes.lines if line.get_label() == panel.roofs[0].label)
    xs, ys = list(roof.get_xdata()), list(roof.get_ydata())
    assert (xs[1], ys[1]) == (12, 1.2e11)
    assert ys[0] / xs[0] == pytest.approx(1e10)  # memory's rate
    assert ys[2] == 1.2e11


def test_the_title_of_a_roofline_is_the_case_closest_to_the_roof() -> None:
    report = report_document(a_run(saturating("torch", 50)), ceilings=CEILINGS)
    (plot,) = (plot for plot in report.plots() if plot.name == "roofline")
    assert plot.title == (
        "torch eager comes closest to the roof, with 83 % of it in gemm m=2048 n=2048 k=2048; "
        "memory bounds 1 of 6 works"
    )


def test_a_page_without_a_known_roof_has_the_reason_instead() -> None:
    report = report_document(a_run(saturating("torch", 50)))
    (plot,) = (plot for plot in report.plots() if plot.name == "roofline")
    assert plot.panels == ()
    assert (
        "no roofline: float32 · Example CPU, 2 threads: no ceiling of float32 was measured here"
        in rendered(report, "html")
    )
    assert "roofline.png" not in png(report)
    (name,) = png(replace(report, plots=lambda: (plot,)))
    assert name == "roofline.png"


def test_a_roof_known_for_one_dtype_is_drawn_and_the_missing_ones_are_listed() -> None:
    wide = a_case(dtype=Dtype.BFLOAT16)
    report = report_document(
        a_run([*saturating("torch", 50), *some_rounds(1e-5, 1.1e-5, case=wide)]), ceilings=CEILINGS
    )
    (plot,) = (plot for plot in report.plots() if plot.name == "roofline")
    assert [panel.title for panel in plot.panels] == ["float32 · Example CPU, 2 threads"]
    assert "Not drawn: bfloat16 · Example CPU, 2 threads: no ceiling of bfloat16" in plot.reading


def test_the_datasheet_roof_is_drawn_without_measured_ceilings() -> None:
    case = a_case(device="cuda:0")
    records = [replace(record, device_model=H100) for record in some_rounds(1e-5, 1.1e-5, case=case)]
    (panel,) = panels(report_document(a_run(records)), "roofline")
    assert isinstance(panel, Roofline)
    assert [(roof.label, roof.flops_per_s, roof.bytes_per_s) for roof in panel.roofs] == [
        ("datasheet", 67e12, 3.35e12)
    ]


def drawn(panel: Panel) -> Any:
    """Axes of the panel in a picture."""
    plot = Plot(name="p", title="t", facts=(), reading="", empty="", panels=(panel,))
    (axes,) = figure_of(plot).axes
    return axes


def marks(axes: Any) -> set[tuple[float, float, bool]]:
    """Position of each mark, and whether it is hollow."""
    return {
        (float(x), float(y), line.get_markerfacecolor() == "white")
        for line in axes.lines
        if line.get_linestyle() == "None"
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }


@pytest.mark.parametrize("name", ["sizes", "roofline"])
def test_a_page_shows_charts_as_pictures_with_their_texts(name: str) -> None:
    report = report_document(a_run(saturating("torch", 50)), ceilings=CEILINGS)
    (plot,) = (plot for plot in report.plots() if plot.name == name)
    (address,) = re.findall(
        r'src="data:image/svg\+xml,([^"]+)"', rendered(replace(report, plots=lambda: (plot,)), "html")
    )
    texts = ["".join(text.itertext()) for text in ET.fromstring(unquote(address)).iter(f"{SVG}text")]
    assert "torch eager" in texts
