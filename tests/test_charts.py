"""Charts of a report: what they say of sizes, and that their marks stand where the rows' numbers are."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import unescape
from itertools import product

import pytest

from benchbench.documents.document import MAX_PANELS, Panel, Roofline, Sweeps
from benchbench.documents.run import RunReport, report_document
from benchbench.exporters._charts import chart
from benchbench.exporters.png import Png
from benchbench.model.case import Dtype
from benchbench.model.note import NoteKind, note
from benchbench.model.record import Record
from tests.factories import a_case, a_cost, a_run, some_rounds
from tests.rendering import rendered
from tests.test_roofline import H100, a_ceiling

PEAK = 1e11  # FLOP/s
SIZES = (64, 128, 256, 512, 1024, 2048)
Scale = Callable[[float], float]
UNITS = {"FLOP/s": 1.0, "kFLOP/s": 1e3, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12}


def saturating(backend: str, half: float, peak: float = PEAK, sizes: Sequence[int] = SIZES) -> list[Record]:
    """Products whose rate is half of the highest at a size of `half`, in three rounds that hardly differ."""
    found: list[Record] = []
    for size in sizes:
        flops = 2 * size**3
        step_s = flops * (1 + (half / size) ** 3) / peak
        case = a_case(backend=backend, params={"m": size, "n": size, "k": size})
        cost = a_cost(flops=flops, bytes=12 * size**2)
        found += some_rounds(step_s, 1.001 * step_s, 0.999 * step_s, case=case, cost=cost)
    return found


def panel_of(records: Sequence[Record]) -> Sweeps:
    (found,) = panels(report_document(a_run(records)))
    assert isinstance(found, Sweeps)
    return found


def panels(report: RunReport, name: str = "sizes") -> list[Panel]:
    return [panel for plot in report.plots if plot.name == name for panel in plot.panels]


def knees(panel: Sweeps) -> Mapping[str, tuple[float, bool] | None]:
    """The size of each alternative's knee, and whether it may be smaller."""
    return {
        sweep.label: (sweep.knee.size, sweep.knee.is_undecided) if sweep.knee else None
        for sweep in panel.sweeps
    }


def test_the_finding_over_sizes_is_who_is_fastest_at_which() -> None:
    """torch is quick to saturate, jax slower and higher; they meet where the run cannot tell."""
    panel = panel_of([*saturating("torch", 50), *saturating("jax", 500, 2 * PEAK)])
    assert panel.summary == "over m = n = k, torch is fastest up to 256, jax from 512"
    assert knees(panel) == {"jax eager": None, "torch eager": (256, False)}
    assert panel.details == "the rate stops rising at 256 for torch eager, beyond 2,048 for jax eager"


def test_where_the_run_cannot_tell_no_size_has_a_winner_and_its_marks_are_hollow() -> None:
    records: list[Record] = []
    for size in SIZES:
        for backend, rounds in (("torch", (1, 1.4, 0.7)), ("jax", (1.1, 0.8, 1.2))):
            records += some_rounds(*rounds, case=a_case(backend=backend, params={"m": size}))
    panel = panel_of(records)
    assert panel.summary == "over m, undecided at every size"
    assert all(point.is_undecided for sweep in panel.sweeps for point in sweep.points)
    assert all(fill == "none" for _, _, fill in marks(chart(panel)))


def test_one_alternative_alone_is_judged_by_its_knee() -> None:
    assert panel_of(saturating("torch", 50)).summary == (
        "over m = n = k, the rate stops rising at 256 for torch eager"
    )


def test_a_knee_that_a_smaller_size_may_reach_is_open() -> None:
    level = panel_of(saturating("torch", 1))
    assert knees(level) == {"torch eager": (64, True)}
    assert "at 64 or less" in level.summary
    assert chart(level).count("<circle") == chart(level).count('stroke-dasharray="3,2"') == 1


def test_a_rate_that_falls_at_the_largest_size_is_told() -> None:
    big = saturating("torch", 1, PEAK / 4, [4096])
    panel = panel_of([*saturating("torch", 1), *big])
    assert panel.summary.endswith("; at 4,096 it has fallen to 25 % for torch eager")


@pytest.mark.parametrize("half", [1, 50, 300, 3000])
def test_what_a_chart_draws_is_what_was_measured(half: float) -> None:
    report = report_document(a_run([*saturating("torch", half), *saturating("jax", 500, 2 * PEAK)]))
    (panel,) = panels(report)
    assert isinstance(panel, Sweeps)
    drawn = chart(panel)
    across, up = scale(drawn, "middle"), scale(drawn, "end")
    wanted = [point for sweep in panel.sweeps for point in sweep.points]
    by_row = {row.value("flops_per_s") for row in report.rows}
    for point, (x, y, fill) in zip(wanted, marks(drawn), strict=True):
        assert abs(x - across(point.size)) <= 1
        assert abs(y - up(point.value)) <= 1
        assert point.value in by_row
        assert (fill == "none") == point.is_undecided
    rings = re.findall(r'<circle[^>]* cx="([\d.]+)" cy="([\d.]+)"', drawn)
    found = [sweep.knee for sweep in panel.sweeps if sweep.knee]
    for ring, (x, y) in zip(found, rings, strict=True):
        assert abs(float(x) - across(ring.size)) <= 1
        assert abs(float(y) - up(ring.value)) <= 1


def test_a_page_shows_as_many_charts_as_can_be_looked_at_and_says_how_many_more_there_are() -> None:
    records = [
        each
        for one, other in product(range(1, 31), (8, 16, 32))
        for each in some_rounds(1e-3 * one, case=a_case(params={"m": 100 + one, "n": other}))
    ]
    report = report_document(a_run(records))
    found = panels(report, "sizes") + panels(report, "sizes-2")
    assert len(found) == 33  # over n at each m, over m at each n
    shown = rendered(report, "html")
    assert shown.count("<figure") == MAX_PANELS
    assert f"{33 - MAX_PANELS} more" in shown


CEILINGS = (a_ceiling(rate=1.2e11), a_ceiling("memory", 1e10))


@pytest.mark.parametrize("half", [1, 50, 300])
def test_what_a_roofline_draws_is_what_was_measured(half: float) -> None:
    crowded = (note(NoteKind.OTHER_PROCESSES, cores=1.5),)
    cost = {"cost": a_cost(flops=1000, bytes=10_000), "notes": crowded}
    busy = some_rounds(1e-6, 1e-6, case=a_case(workload="softmax"), **cost)
    report = report_document(a_run([*saturating("torch", half), *busy]), ceilings=CEILINGS)
    (panel,) = panels(report, "roofline")
    assert isinstance(panel, Roofline)
    drawn = chart(panel)
    across, up = scale(drawn, "middle"), scale(drawn, "end")
    rows = [(row.position.flops_per_byte, row.value("flops_per_s"), bool(row.doubts)) for row in report.rows]
    for (per_byte, rate, doubted), (x, y, fill) in zip(rows, marks(drawn), strict=True):
        assert per_byte
        assert rate
        assert abs(x - across(per_byte)) <= 1
        assert abs(y - up(rate)) <= 1
        assert (fill == "none") == doubted
    (roof,) = re.findall(r'stroke-width="1.5" d="M([\d.]+),([\d.]+)L([\d.]+),([\d.]+)H', drawn)
    x, y, bend, top = map(float, roof)
    assert abs(bend - across(12)) <= 1
    assert abs(top - up(1.2e11)) <= 1
    slope = (across(10) - across(1)) / (up(1e11) - up(1e10))  # a decade of both, along memory's roof
    assert (bend - x) / (top - y) == pytest.approx(slope, rel=0.02)


def test_the_finding_of_a_roofline_is_who_comes_closest() -> None:
    report = report_document(a_run(saturating("torch", 50)), ceilings=CEILINGS)
    (plot,) = (plot for plot in report.plots if plot.name == "roofline")
    assert plot.title == (
        "torch eager comes closest to the roof, with 83 % of it in gemm m=2048 n=2048 k=2048; "
        "memory bounds 1 of 6 works"
    )


def test_where_no_roof_is_known_none_is_drawn_and_the_page_says_why() -> None:
    report = report_document(a_run(saturating("torch", 50)))
    (plot,) = (plot for plot in report.plots if plot.name == "roofline")
    assert plot.panels == ()
    assert (
        "no roofline: float32 · Example CPU, 2 threads: no ceiling of float32 was measured here"
        in rendered(report, "html")
    )
    assert "roofline.png" not in Png().export(report)
    (asked,) = Png().export(replace(report, plots=(plot,)))
    assert asked == "roofline.png"


def test_a_roof_that_is_known_for_one_dtype_is_drawn_and_what_lacks_the_others_is_said() -> None:
    wide = a_case(dtype=Dtype.BFLOAT16)
    report = report_document(
        a_run([*saturating("torch", 50), *some_rounds(1e-5, 1.1e-5, case=wide)]), ceilings=CEILINGS
    )
    (plot,) = (plot for plot in report.plots if plot.name == "roofline")
    assert [panel.title for panel in plot.panels] == ["float32 · Example CPU, 2 threads"]
    assert "Not drawn: bfloat16 · Example CPU, 2 threads: no ceiling of bfloat16" in plot.reading


def test_the_maker_s_roof_is_drawn_where_nothing_was_measured() -> None:
    case = a_case(device="cuda:0")
    records = [replace(each, device_model=H100) for each in some_rounds(1e-5, 1.1e-5, case=case)]
    (panel,) = panels(report_document(a_run(records)), "roofline")
    assert isinstance(panel, Roofline)
    assert [(roof.label, roof.flops_per_s, roof.bytes_per_s) for roof in panel.roofs] == [
        ("datasheet", 67e12, 3.35e12)
    ]


def marks(drawn: str) -> list[tuple[float, float, str]]:
    """Where each mark of a chart stands, and what fills it."""
    found = re.findall(r'<path fill="([^"]+)"[^>]*? transform="translate\(([\d.]+),([\d.]+)\)', drawn)
    return [(float(x), float(y), fill) for fill, x, y in found]


def scale(drawn: str, anchor: str) -> Scale:
    """An axis of a chart by its names alone; `anchor`: how these are written."""
    texts = re.findall(rf'<text x="([\d.]+)" y="([\d.]+)"[^>]*text-anchor="{anchor}"[^>]*>([^<]+)<', drawn)
    places = [float(x) if anchor == "middle" else float(y) - 4 for x, y, _ in texts]
    return along([(place, number(unescape(text))) for place, (*_, text) in zip(places, texts, strict=True)])


def along(ticks: Sequence[tuple[float, float | None]]) -> Scale:
    """A logarithmic axis, by the first and the last of its ticks."""
    named = [(place, math.log(value)) for place, value in ticks if value]
    (first, low), (last, high) = named[0], named[-1]
    return lambda value: first + (last - first) * (math.log(value) - low) / (high - low)


def number(text: str) -> float | None:
    """A size or a rate; None of what is none, as the name of an axis."""
    found = re.fullmatch(r"([\d.,]+)(?: (\S+))?", text)
    return float(found[1].replace(",", "")) * UNITS.get(found[2] or "FLOP/s", math.nan) if found else None
