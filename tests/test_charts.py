"""Charts of sizes and rooflines: their summaries, and the values of their marks."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any
from urllib.parse import unquote

import pytest

from benchbench.documents.document import MAX_PANELS, Panel, Plot, Roofline, Sweeps
from benchbench.documents.run import RunReport, report_document
from benchbench.exporters.drawing import date_names
from benchbench.exporters.plots import figure_of, png
from benchbench.model.case import Dtype
from benchbench.model.note import NoteKind, note
from benchbench.model.run import Record
from tests.factories import a_case, a_cost, a_run, some_rounds
from tests.rendering import rendered
from tests.test_roofline import H100, a_ceiling

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


def test_the_summary_of_a_single_alternative_is_its_knee() -> None:
    assert panel_of(saturating("torch", 50)).summary == (
        "over m = n = k, the rate stops rising at 256 for torch eager"
    )


def test_a_knee_that_a_smaller_size_may_reach_is_undecided() -> None:
    level = panel_of(saturating("torch", 1))
    assert knees(level) == {"torch eager": (64, True)}
    assert "at 64 or less" in level.summary


def test_a_rate_that_falls_at_the_largest_size_is_reported() -> None:
    big = saturating("torch", 1, PEAK / 4, [4096])
    panel = panel_of([*saturating("torch", 1), *big])
    assert panel.summary.endswith("; at 4,096 it has fallen to 25 % for torch eager")


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
