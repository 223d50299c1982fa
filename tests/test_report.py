"""The comparison table: backends side by side, and the reason where there is no number."""

from typing import Any

import pytest
from inline_snapshot import snapshot

from benchbench.documents.document import Table
from benchbench.documents.plots import Bars, Strips
from benchbench.documents.run import RunReport, report_document
from benchbench.exporters._text import foot
from benchbench.model.case import Case, Dtype
from benchbench.model.measurement import Memory
from benchbench.model.record import Record
from benchbench.model.status import Status
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_hostile_run,
    a_left_out,
    a_measurement,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.rendering import lines_of, rendered

TORCH, TENSORFLOW, JAX = (
    a_case(backend="torch"),
    a_case(backend="tensorflow", mode="function"),
    a_case(backend="jax", mode="jit"),
)


def side_by_side(*records: Record, **over: Any) -> RunReport:
    """A run of `records`, all of one work."""
    made = report_document(a_run(records, **over))
    assert len(made.tables) == 1
    return made


def texts(made: RunReport, label: str, number: int = 0) -> tuple[str, ...]:
    """What a table shows in the line of that label."""
    return lines_of(made, number)[label]


def headings(table: Table) -> list[str]:
    return [column.name for column in table.columns[1:]]


def test_backends_stand_side_by_side_in_the_order_of_the_plan() -> None:
    made = report_document(
        a_run([*some_rounds(0.001, case=TORCH), *some_rounds(1, case=TENSORFLOW), *some_rounds(1, case=JAX)])
    )

    assert headings(made.tables[0]) == [
        "torch 2.13.0\ncpu eager",
        "tensorflow 2.21.0\ncpu function",
        "jax 0.10.2\ncpu jit",
    ]
    assert [table.title for table in made.tables] == ["gemm m=64 n=64 k=64, float32, forward"]


def test_a_group_shows_the_numbers_of_each_case() -> None:
    group = side_by_side(*some_rounds(0.00099, 0.001, 0.00101, case=TORCH))

    assert lines_of(group) == snapshot(
        {
            "latency": ("1.00 ms [0.975, 1.03]",),
            "rate": ("1.00k product/s",),
            "FLOP/s": ("524 MFLOP/s",),
            "memory": ("62.0 MiB host",),
            "cold start": ("250 ms",),
        }
    )


def test_different_work_is_never_in_one_group() -> None:
    others = [
        a_case(workload="conv2d"),
        a_case(params={"m": 65, "n": 64, "k": 64}),
        a_case(dtype=Dtype.BFLOAT16),
        a_case(suite="full"),
    ]
    records = [record for case in (TORCH, *others) for record in some_rounds(0.001, case=case)]

    assert len(report_document(a_run(records)).tables) == 5


def test_the_memory_of_the_device_goes_before_that_of_the_host() -> None:
    on_device = a_measurement(peak_device=Memory(bytes=2**30), peak_host=Memory(bytes=2**20))
    nowhere = a_measurement(peak_host=Memory(bytes=None, reason="no /proc"))

    group = side_by_side(
        a_record(on_device, case=TORCH),
        a_record(case=TENSORFLOW),
        a_record(nowhere, case=JAX),
    )

    assert texts(group, "memory") == ("1.00 GiB device", "62.0 MiB host", "")


def test_work_without_flops_shows_bytes() -> None:
    group = side_by_side(a_record(a_measurement(cost=a_cost(flops=0))))

    assert "FLOP/s" not in lines_of(group)
    assert texts(group, "bytes/s") == ("49.2 MB/s",)


def disturbed(step_s: float, case: Case) -> list[Record]:
    """Three rounds beside a program that used half a core."""
    telemetry = a_telemetry(busy_s=tuple(0.2 * number for number in range(11)))
    measured = a_watched(telemetry, block_s=(10 * step_s,) * 5)
    return [a_record(measured, case=case, round=number) for number in range(3)]


def test_processes_that_disagree_have_no_number_anywhere_in_a_report() -> None:
    wild = some_rounds(3.55e-3, 0.216, 0.213, case=TORCH)
    made = report_document(a_run([*wild, *some_rounds(1, case=JAX)]))

    assert texts(made, "latency") == ("processes disagree: 3.55, 216, 213 ms", "1.00 s¹")
    assert texts(made, "rate") == ("", "1.00 product/s")
    assert "vs fastest" not in lines_of(made)  # one speed is not compared
    panels = [panel for plot in made.plots for panel in plot.panels]
    drawn = [panel.strips if isinstance(panel, Strips) else panel.bars for panel in panels]  # type: ignore[union-attr]
    assert [(bars[0].value, bars[0].status) for bars in drawn] == [
        (None, "processes disagree: 3.55, 216, 213 ms")
    ] * 2


@pytest.mark.parametrize(("busy_s", "calm_s"), [(1.0, 1.5), (1.5, 1.0)])
def test_others_on_the_device_are_told_in_the_cell_at_the_top_and_in_the_plots(
    busy_s: float, calm_s: float
) -> None:
    calm = some_rounds(0.999 * calm_s, calm_s, 1.001 * calm_s, case=JAX)
    made = report_document(a_run([*disturbed(busy_s, TORCH), *calm]))

    assert texts(made, "latency")[0].endswith(" contended¹")
    assert all(each.endswith(" ?") for each in texts(made, "vs fastest")) == (busy_s < calm_s)
    assert texts(made, "vs fastest")[0].endswith(" ?")
    told = "contended: 1 of 2 cases, not to be relied on; at worst "
    assert f"{told}other processes used 0.5 of a core" in made.facts
    bars = [panel.bars for plot in made.plots for panel in plot.panels if isinstance(panel, Bars)]
    assert [bar.label for bar in bars[0]] == ["torch cpu eager, contended", "jax cpu jit"]


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ((0.99, 1.00, 1.01), (1.49, 1.50, 1.51), ("1.00×", "1.50×")),
        ((1.49, 1.50, 1.51), (0.99, 1.00, 1.01), ("1.50×", "1.00×")),
        ((0.90, 1.00, 1.10), (0.95, 1.03, 1.13), ("1.00×", "1.04× ?")),
        ((1.00,), (1.50,), ("1.00×", "1.50× ?")),
        ((0.99, 1.00, 1.01), (1.50,), ("1.00×", "1.50× ?")),
    ],
    ids=["apart", "apart the other way", "overlap", "no interval", "one interval"],
)
def test_a_difference_the_intervals_do_not_carry_is_questioned(
    one: tuple[float, ...], other: tuple[float, ...], shown: tuple[str, ...]
) -> None:
    made = report_document(a_run([*some_rounds(*one, case=TORCH), *some_rounds(*other, case=JAX)]))

    assert texts(made, "vs fastest") == shown
    assert ("? intervals overlap or are missing: cannot tell" in made.notes) == ("?" in shown[1])


def test_one_number_is_compared_with_nothing() -> None:
    group = side_by_side(a_record(case=TORCH), a_record(a_failure(), case=JAX))

    assert "vs fastest" not in lines_of(group)


def test_a_short_reason_stands_where_the_number_would() -> None:
    wrong = a_failure(status=Status.WRONG_RESULT, message="relative error 1 > 1e-05")

    group = side_by_side(a_record(case=TORCH), a_record(wrong, case=JAX))

    assert texts(group, "latency")[1] == "wrong_result: relative error 1 > 1e-05"
    assert {found[1] for label, found in lines_of(group).items() if label != "latency"} == {""}


def test_long_reasons_are_footnotes_and_the_same_one_is_told_once() -> None:
    long = a_failure(status=Status.OUT_OF_MEMORY, message="needs about 31 GiB, the limit is 23 GiB")

    made = report_document(
        a_run(
            [
                a_record(long, case=TORCH),
                a_record(long, case=TENSORFLOW),
                a_record(a_measurement(steady=False), case=JAX),
            ]
        )
    )

    assert texts(made, "latency") == ("out_of_memory¹", "out_of_memory¹", "1.00 ms² ³")
    assert tuple(foot(made)) == (
        "¹ out_of_memory: needs about 31 GiB, the limit is 23 GiB",
        "² 1 of 3 rounds",
        "³ still warming up when measured, in 1 of 1 rounds",
    )


def test_the_reason_of_an_empty_cell_is_no_footnote() -> None:
    assert tuple(foot(report_document(a_run()))) == ()  # though energy, p99 and device memory are empty


def test_a_case_left_out_is_a_cell_where_its_column_is_shown() -> None:
    missing = a_left_out(case=JAX, status=Status.UNSUPPORTED, reason="no builder")
    elsewhere = a_case(backend="jax", mode="jit", workload="conv2d")

    made = report_document(
        a_run([*some_rounds(0.001, case=TORCH), *some_rounds(0.001, case=elsewhere)], left_out=(missing,))
    )

    assert texts(made, "latency")[1] == "unsupported: no builder"
    assert made.tables[1].rows[0][1] is None


def test_columns_without_a_planned_case_are_told_below_the_table() -> None:
    missing = [a_left_out(), a_left_out(case=a_case(device="cuda:0", workload="conv2d"))]

    made = report_document(a_run(left_out=tuple(missing)))

    assert headings(made.tables[0]) == ["torch 2.13.0\ncpu eager"]
    assert len(made.tables) == 1
    assert made.notes == ("left out 2×: torch cuda:0 eager: unavailable, this torch is a CPU build",)


def test_the_head_says_what_was_run_where_and_what_flops_are() -> None:
    on_gpu = a_record(case=a_case(device="cuda:0"), device_model="Example GPU")

    head = report_document(
        a_run(
            [*some_rounds(0.001, case=a_case(suite="conv")), on_gpu],
            left_out=(a_left_out(),),
            damaged=("records.jsonl:7",),
        )
    ).facts

    assert head == snapshot(
        (
            "run 20260102-030405-abcd, 2026-01-02T03:04:05Z, accelbench 0.1.0",
            "machine: Example CPU, 2 threads, Linux 6.8",
            "device cuda:0: Example GPU",
            "suites: conv, quick; 3 rounds",
            "cases: 2 ok, 1 unavailable",
            "latency with its 95 % interval over processes; FLOP/s counts 2 per multiply-add",
            "damaged, not in this report: records.jsonl:7",
        )
    )


def test_a_version_unknown_in_one_case_is_taken_from_another() -> None:
    dead = a_record(a_failure(), framework_version=None)
    alive = a_record(case=a_case(workload="conv2d"), framework_version="2.13.0")

    assert headings(report_document(a_run([dead, alive])).tables[0]) == ["torch 2.13.0\ncpu eager"]


def test_a_run_in_which_nothing_could_be_planned_is_still_a_report() -> None:
    made = report_document(a_run([], left_out=(a_left_out(),)))

    assert made.tables == ()
    assert len(made.notes) == 1


HOSTILE = "\x1b[31m\u202e\n"


@pytest.mark.parametrize("name", ["terminal", "markdown", "csv"])
def test_x4_nothing_in_the_table_acts_on_a_terminal(name: str) -> None:
    assert not set(rendered(report_document(a_hostile_run(HOSTILE)), name)) & {"\x1b", "\u202e"}


def test_x4_no_name_begins_a_line_of_a_heading() -> None:
    for heading in headings(report_document(a_hostile_run(HOSTILE)).tables[0]):
        assert heading.count("\n") == 1
