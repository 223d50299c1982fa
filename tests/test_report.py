"""The report: one line per alternative, with a reason where there is no number."""

import re
from dataclasses import replace
from typing import Any

import pytest
from inline_snapshot import snapshot

from benchbench.documents.document import Bars
from benchbench.documents.run import RunReport, report_document
from benchbench.documents.run_table import REPORT_COLUMNS, UNSURE, column_names
from benchbench.errors import UsageError
from benchbench.exporters.terminal import render
from benchbench.exporters.text import foot
from benchbench.model.case import Cache, Case, Dtype, Status
from benchbench.model.measurement import Memory, ModelFacts
from benchbench.model.note import NoteKind, note
from benchbench.model.run import Record, Run, Settings
from benchbench.plan.commands import longer_command
from benchbench.store.runs import read_run
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_left_out,
    a_measurement,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.rendering import columns_of, on_a_terminal, rendered
from tests.test_architecture import ROOT

TORCH, TENSORFLOW, JAX = (
    a_case(backend="torch"),
    a_case(backend="tensorflow", mode="function"),
    a_case(backend="jax", mode="jit"),
)


def of_one_work(*records: Record, **over: Any) -> RunReport:
    """A run of `records`, all of one work."""
    report = report_document(a_run(records, **over))
    assert len(report.tables) == 1
    return report


def texts(report: RunReport, column: str, number: int = 0) -> tuple[str, ...]:
    """Texts of a column of a table."""
    return columns_of(report, number)[column]


def verdict_of(report: RunReport) -> dict[str, Any]:
    """The verdict of the only work."""
    (work,) = report.data["works"]
    return dict(work)


def names(report: RunReport, number: int = 0) -> tuple[str, ...]:
    return texts(report, "", number)


def test_each_work_has_a_separate_table() -> None:
    other_cases = [
        a_case(workload="conv2d"),
        a_case(params={"m": 65, "n": 64, "k": 64}),
        a_case(dtype=Dtype.BFLOAT16),
        a_case(suite="full"),
        a_case(cache=Cache.COLD),
    ]
    records = [record for case in (TORCH, *other_cases) for record in some_rounds(0.001, case=case)]
    assert len(report_document(a_run(records)).tables) == 6


def test_a_short_title_has_the_parameters_that_differ() -> None:
    cases = [a_case(params={"batch": 8, "m": size, "n": 64}) for size in (64, 128)]
    cases.append(a_case(workload="conv2d", params={"batch": 8, "height": 28, "width": 28}))
    report = report_document(a_run([record for case in cases for record in some_rounds(1, case=case)]))
    assert [table.short_title for table in report.tables] == [
        "gemm  m=64 … · float32 · cpu",
        "gemm  m=128 … · float32 · cpu",
        "conv2d  batch=8 height=28 … · float32 · cpu",
    ]


def test_devices_of_one_work_are_lines_of_one_table() -> None:
    report = of_one_work(*some_rounds(2, case=TORCH), *some_rounds(1, case=a_case(device="cuda:0")))
    assert report.tables[0].title == "gemm  m=64 n=64 k=64 · float32"
    assert names(report) == ("torch eager cuda:0", "torch eager cpu")


def test_placements_and_environments_of_one_target_have_separate_lines() -> None:
    report = of_one_work(*some_rounds(1, case=TORCH), *some_rounds(2, case=a_case(environment={"A": "1"})))
    assert names(report) == ("torch eager", "torch eager [env:A=1]")


def test_a_short_name_omits_the_only_mode_of_a_target() -> None:
    def short(*cases: Case) -> list[str]:
        report = of_one_work(*[record for case in cases for record in some_rounds(1, case=case)])
        return [str(row[0] and row[0].short) for row in report.tables[0].rows]

    assert short(TORCH, JAX) == ["torch", "jax"]
    assert short(TORCH, JAX, a_case(backend="torch", mode="compile")) == ["", "", ""]


def test_device_memory_is_preferred_to_host_memory() -> None:
    on_device = a_measurement(peak_device=Memory(bytes=2**30), peak_host=Memory(bytes=2**20))
    nowhere = a_measurement(peak_host=Memory(bytes=None, reason="no /proc"))
    report = of_one_work(
        a_record(on_device, case=TORCH),
        a_record(case=TENSORFLOW),
        a_record(nowhere, case=JAX),
        a_record(case=a_case(device="cuda:0")),
    )
    assert texts(report, "memory") == ("1.00 GiB", "62.0 MiB", "", "62.0 MiB host")


@pytest.mark.parametrize(
    ("dtype", "flops", "text"),
    [
        (Dtype.FLOAT32, 0, "12.0 MB/s"),
        (Dtype.FLOAT32, 2_000, "12.0 MB/s"),  # b + s c: three elements, a product and a sum
        (Dtype.FLOAT32, 47_000, "12.0 MB/s"),
        (Dtype.FLOAT32, 48_000, "48.0 MFLOP/s"),
        (Dtype.BFLOAT16, 95_000, "12.0 MB/s"),
        (Dtype.FLOAT64, 25_000, "25.0 MFLOP/s"),
    ],
)
def test_memory_bound_work_is_reported_in_bytes_everywhere(dtype: Dtype, flops: int, text: str) -> None:
    cost = a_cost(flops=flops, bytes=12_000)
    report = of_one_work(a_record(a_measurement(cost=cost), case=a_case(dtype=dtype)))
    assert texts(report, "FLOP/s") == (text,)
    (plot,) = (plot for plot in report.plots() if plot.name in ("throughput", "bandwidth"))
    (panel,) = plot.panels
    assert isinstance(panel, Bars)
    assert text.endswith(panel.unit)
    assert panel.marks[0].value == pytest.approx(12e6 if panel.unit == "B/s" else flops * 1e3)


@pytest.mark.parametrize(
    ("first_times", "second_times", "ratios"),
    [
        ((0.99, 1.00, 1.01), (1.49, 1.50, 1.51), ("1.00×", "1.50×")),
        ((0.90, 1.00, 1.10), (1.40, 1.50, 1.60), ("1.00×", "1.50×")),
        ((0.90, 1.00, 1.10), (1.13, 1.03, 0.95), ("1.00× ?", "1.04× ?")),
        ((1.00,), (1.50,), ("1.00× ?", "1.50× ?")),
        ((1.00, 0.99, 1.01), (1.50,), ("1.00× ?", "1.50× ?")),
    ],
    ids=["apart", "apart in each round", "across", "one round", "one round of both"],
)
def test_a_difference_that_is_not_significant_has_a_question_mark(
    first_times: tuple[float, ...], second_times: tuple[float, ...], ratios: tuple[str, ...]
) -> None:
    for first, second in ((first_times, second_times), (second_times, first_times)):
        names = (TORCH, JAX) if first is first_times else (JAX, TORCH)
        pairs = zip((first, second), names, strict=True)
        report = of_one_work(*[r for rounds, case in pairs for r in some_rounds(*rounds, case=case)])
        assert texts(report, "ratio") == ratios
        assert (UNSURE in report.notes) == ("?" in ratios[1])


def disturbed(step_s: float, case: Case) -> list[Record]:
    """Three rounds beside a program that used half a core."""
    telemetry = a_telemetry(busy_s=tuple(0.2 * number for number in range(11)))
    measurement = a_watched(telemetry, block_s=(10 * step_s,) * 5)
    return [a_record(measurement, case=case, round=number) for number in range(3)]


def test_processes_that_disagree_have_a_rank_and_an_undecided_ratio() -> None:
    wild = some_rounds(3.55e-3, 0.216, 0.213, case=TORCH)
    report = of_one_work(*wild, *some_rounds(1, case=JAX))
    assert texts(report, "latency") == ("processes disagree: 3.55, 216, 213 ms", "1.00 s¹")
    assert texts(report, "rate") == ("", "1.00 product/s")
    assert texts(report, "ratio") == ("1.00× ?", "282× ?")


@pytest.mark.parametrize(
    ("busy_s", "calm_s", "ratios", "standing"),
    [
        (1.0, 1.5, {"torch eager": "1.00×", "jax jit": "1.50×"}, "won"),
        (1.5, 1.0, {"torch eager": "1.50× ?", "jax jit": "1.00× ?"}, "open"),
    ],
)
def test_contention_matters_only_for_the_slower_case_and_is_always_reported(
    busy_s: float, calm_s: float, ratios: dict[str, str], standing: str
) -> None:
    calm = some_rounds(0.999 * calm_s, calm_s, 1.001 * calm_s, case=JAX)
    report = of_one_work(*disturbed(busy_s, TORCH), *calm)
    latencies = dict(zip(names(report), texts(report, "latency"), strict=True))
    assert latencies["torch eager"].endswith(" contended¹")
    assert dict(zip(names(report), texts(report, "ratio"), strict=True)) == ratios
    prefix = "contended: 1 of 2 cases; at worst "
    assert f"{prefix}other processes used 0.5 of a core" in report.facts
    assert verdict_of(report)["standing"] == standing


@pytest.mark.parametrize(("fall", "winner"), [(1.05, "jax"), (2.0, None)])
def test_an_unsteady_case_is_slower_beyond_its_warm_up(fall: float, winner: str | None) -> None:
    warming = [
        a_record(a_measurement(block_s=(15.0 * fall, 15.0, 15.0), steady=False), case=TORCH, round=number)
        for number in range(3)
    ]
    report = of_one_work(*warming, *some_rounds(0.999, 1.0, 1.001, case=JAX))
    footnotes = {text for cell in report.tables[0].cells for text in cell.footnotes}
    assert "still warming up when measured, in 3 of 3 rounds" in footnotes
    assert (UNSURE in report.notes) == (winner is None)
    assert verdict_of(report)["winner"] == winner


def test_an_unranked_case_has_the_reason_and_no_ratio() -> None:
    footnotes = note(NoteKind.UNRANKED, reason="interpreted")
    rounds = [
        a_record(a_measurement(block_s=(5.0,) * 5, notes=(footnotes,)), case=TORCH, round=number)
        for number in range(3)
    ]
    slower = [*some_rounds(0.99, 1, 1.01, case=TENSORFLOW), *some_rounds(1.99, 2, 2.01, case=JAX)]
    report = of_one_work(*rounds, *slower)
    assert names(report) == ("tensorflow function", "jax jit", "torch eager")
    assert texts(report, "ratio") == ("1.00×", "2.00×", "")
    assert verdict_of(report)["winner"] == "tensorflow"
    assert "not ranked: interpreted" in [text for cell in report.tables[0].cells for text in cell.footnotes]
    bars = [panel.marks for plot in report.plots() for panel in plot.panels if isinstance(panel, Bars)]
    assert {bar.label for bar in bars[0]} == {"tensorflow function", "jax jit"}


def test_processes_that_disagree_decide_nothing_unless_all_are_slower() -> None:
    separate = [*some_rounds(0.99, 1, 1.01, case=TORCH), *some_rounds(1.99, 2, 2.01, case=JAX)]
    wild = of_one_work(*separate, *some_rounds(0.1, 3.0, 2.0, case=TENSORFLOW))
    assert verdict_of(wild)["standing"] == "open"
    slow = of_one_work(*separate, *some_rounds(900, 3000, 2000, case=TENSORFLOW))
    assert verdict_of(slow)["winner"] == "torch"


def test_a_single_result_is_not_compared() -> None:
    report = of_one_work(a_record(case=TORCH), a_record(a_failure(), case=JAX))
    assert not {"ratio", "speed"} & columns_of(report).keys()
    assert report.answer == ()


def test_long_reasons_are_footnotes_without_duplicates() -> None:
    long = a_failure(status=Status.OUT_OF_MEMORY, message="needs about 31 GiB, the limit is 23 GiB")
    report = of_one_work(
        a_record(long, case=TORCH),
        a_record(long, case=TENSORFLOW),
        a_record(a_measurement(steady=False), case=JAX),
    )
    assert texts(report, "latency") == ("1.00 ms¹ ²", "out_of_memory³", "out_of_memory³")
    assert tuple(foot(report)) == (
        "¹ 1 of 3 rounds",
        "² still warming up when measured, in 1 of 1 round",
        "³ out_of_memory: needs about 31 GiB, the limit is 23 GiB",
    )


def test_notes_that_differ_in_numbers_share_a_footnote_and_marks_are_sorted() -> None:
    def stopped(count: int, case: Case) -> list[Record]:
        stops = ["time"] * count + ["precision"] * (3 - count)
        return [
            a_record(a_measurement(stop_reason=stop, steady=count > 1), case=case, round=number)
            for number, stop in enumerate(stops)
        ]

    report = of_one_work(*stopped(3, TORCH), *stopped(1, JAX))

    assert report.footnotes == (
        "less precise than asked in 1–3 of 3 rounds (stopped by time)",
        "still warming up when measured, in 3 of 3 rounds",
    )
    assert [latency.partition("%")[2] for latency in texts(report, "latency")] == ["¹", "¹ ²"]


def test_reasons_without_a_speed_are_never_merged() -> None:
    failed = [a_failure(message=f"worker killed by signal {n}, in one of several places") for n in (9, 11)]
    cases = zip(failed, (TORCH, JAX), strict=True)
    report = of_one_work(*[a_record(failure, case=case) for failure, case in cases])
    assert len(report.footnotes) == 2


def test_reasons_of_empty_cells_are_not_footnotes() -> None:
    assert tuple(foot(report_document(a_run()))) == ()  # although energy, p99 and device memory are empty


def test_an_omitted_case_is_a_row_if_its_target_has_other_cases() -> None:
    omission = a_left_out(case=JAX, status=Status.UNSUPPORTED, reason="no builder")
    elsewhere = a_case(backend="jax", mode="jit", workload="conv2d")
    report = report_document(
        a_run([*some_rounds(0.001, case=TORCH), *some_rounds(0.001, case=elsewhere)], left_out=(omission,))
    )
    assert texts(report, "latency")[1] == "unsupported: no builder"
    assert names(report, 1) == ("jax jit",)


# The fastest


def a_contest(*seconds: tuple[float, float]) -> RunReport:
    """torch and jax in a work each, with these seconds to half a percent."""
    records = [
        record
        for number, pair in enumerate(seconds)
        for case, step in zip((TORCH, JAX), pair, strict=True)
        for record in some_rounds(step, step * 1.001, step, case=replace(case, params={"m": number}))
    ]
    return report_document(a_run(records))


def test_answer_counts_wins_and_has_a_line_for_each_work() -> None:
    report = a_contest((1, 2), (1, 1), (1, 2), (2, 1))
    works = report.data["works"]
    assert [work["winner"] for work in works] == ["torch", None, "torch", "jax"]
    assert [work["standing"] for work in works] == ["won", "tied", "won", "won"]
    count, *lines = map(str, report.answer)
    assert re.findall(r"torch in (\d)|jax in (\d)|in (\d) work", count) == [
        ("2", "", ""),
        ("", "1", ""),
        ("", "", "1"),
    ]
    assert len(lines) == 4
    assert all(line.endswith(work["answer"]) for line, work in zip(lines, works, strict=True))
    assert len(a_contest((1, 2)).answer) == 1  # nothing to count


def test_code_of_the_fastest_backend_is_printed_unbroken() -> None:
    code = f"import torch\n{'x' * 90} = torch\nwith x:\n    x < y"
    facts = ModelFacts(inputs=(), outputs=(), parameters=0, code=code)
    records = [
        *some_rounds(1.0, 1.001, 1.0, case=TORCH, model=facts),
        *some_rounds(2.0, 2.001, 2.0, case=JAX),
    ]
    report = report_document(a_run(records))
    assert f"to use gemm with torch eager:\n{code}\n" in on_a_terminal(report, 60)
    assert "```python\n  import torch\n" in rendered(report, "markdown")
    assert "    x &lt; y</code></pre>" in rendered(report, "html")


CLOSE = [*some_rounds(1.0, 1.1, 0.9, case=TORCH), *some_rounds(1.1, 1.15, 1.1, case=JAX)]


def test_an_open_work_has_candidates_slower_cases_and_a_deciding_command() -> None:
    slow = some_rounds(9.0, 9.1, 9.0, case=TENSORFLOW)
    report = of_one_work(*CLOSE, *slow, command=("run", "--suite", "hello"))
    work = verdict_of(report)
    assert (work["standing"], work["winner"]) == ("open", None)
    assert {rival["case"].partition("@")[2]: rival["slower"] for rival in work["rivals"]} == {
        "jax:cpu": False,
        "tensorflow:cpu": True,
    }
    candidates, slower = work["answer"].split(";")
    assert "torch" in candidates
    assert "jax" in candidates
    assert "tensorflow" not in candidates
    assert "tensorflow" in slower
    assert "accelbench run --suite hello --heats " in str(report.answer[-1])


@pytest.mark.parametrize(
    ("arguments", "of_gemm", "of_all"),
    [
        ("--suite hello", "--suite hello -w gemm", "--suite hello"),
        ("-w gemm,conv2d --rounds=3 --tag a", "-w gemm", "-w gemm,conv2d"),
        ("-w gemm,conv2d --heats 3", "-w gemm", "-w gemm,conv2d"),
        ("--quick --results r", "--quick -w gemm", "--quick"),
    ],
)
def test_the_deciding_command_repeats_open_workloads(arguments: str, of_gemm: str, of_all: str) -> None:
    plan = (TORCH, replace(TORCH, workload="conv2d", params={}))
    info = a_run([], plan=plan, command=("run", *arguments.split())).info
    assert longer_command(info, ["gemm"], 9) == f"accelbench run {of_gemm} --heats 9"
    assert longer_command(info, ["conv2d", "gemm"], 9) == f"accelbench run {of_all} --heats 9"
    assert longer_command(replace(info, command=("check", "--ab", "rev:HEAD")), ["gemm"], 9) == ""


def test_two_equally_fast_modes_of_one_backend_have_a_winner() -> None:
    compiled = a_case(backend="torch", mode="compile")
    rounds = [(TORCH, 1.0), (compiled, 1.0), (JAX, 2.0)]
    records = [record for case, step in rounds for record in some_rounds(step, step * 1.001, step, case=case)]
    assert verdict_of(of_one_work(*records))["winner"] == "torch"
    only = [record for record in records if record.case.target == "torch"]
    assert verdict_of(of_one_work(*only))["standing"] == "tied"


# Columns asked for, and values side by side


MODES, DEVICES = ("eager", "compile"), ("cpu", "cuda:0")


def report_with(*names: str, by: str = "", run: Run | None = None) -> RunReport:
    return report_document(run or a_run(), columns=names, by=by)


@pytest.mark.parametrize("name", column_names())
def test_every_number_of_a_row_can_be_a_column(name: str) -> None:
    report = report_with(name)
    (name_shown, *_) = [column for column in columns_of(report) if column] or ["none"]
    assert name_shown in (name, "none", *REPORT_COLUMNS)
    assert not [cell for cell in report.tables[0].cells if str(cell) == "None"]


def test_columns_are_in_the_requested_order() -> None:
    assert columns_of(report_with("p90", "latency", "rate", "relative_error", "p99")) == snapshot(
        {
            "": ("torch eager",),
            "p90": ("1.02 ms",),
            "latency": ("1.00 ms ±5 %",),
            "rate": ("1.00k product/s",),
            "relative_error": ("1e-07",),
            "p99": ("–¹",),
        }
    )
    assert report_with("p99").footnotes == ("no p99: 15 samples, needs 662",)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"columns": ["latancy"]}, "No column named 'latancy'", "Did you mean 'latency'?"),
        ({"by": "dtypes"}, "Cases have no 'dtypes'", "Did you mean 'dtype'?"),
    ],
)
def test_an_unknown_column_or_axis_has_a_hint(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        report_document(a_run(), **options)
    assert caught.value.hint == hint


def test_values_of_an_axis_are_columns() -> None:
    narrow = {"dtype": Dtype.BFLOAT16}
    run = a_run(
        [
            *some_rounds(0.001, 0.00101, 0.00099, case=TORCH),
            *some_rounds(0.0005, 0.00051, 0.00049, case=a_case(**narrow)),
            *some_rounds(0.002, 0.00201, 0.00199, case=JAX),
            a_record(a_failure(), case=a_case(backend="jax", mode="jit", **narrow)),
        ]
    )
    report = report_with(by="dtype", run=run)
    assert [table.title for table in report.tables] == ["gemm  m=64 n=64 k=64 · cpu"]
    assert columns_of(report) == snapshot(
        {
            "": ("torch eager", "jax jit"),
            "float32": ("1.00 ms ±2 %", "2.00 ms ±2 %"),
            "bfloat16": ("500 µs ±2 %", "crashed¹"),
            "ratio": ("0.500×", ""),
        }
    )


@pytest.mark.parametrize(
    ("by", "columns", "names"),
    [
        ("mode", MODES, ("torch cpu", "torch cuda:0")),
        ("device", DEVICES, ("torch eager", "torch compile")),
        ("target", ("torch eager", "torch compile"), DEVICES),
        ("m", ("m=64",), tuple(f"torch {mode} {device}" for device in DEVICES for mode in MODES)),
    ],
)
def test_every_axis_can_be_columns(by: str, columns: tuple[str, ...], names: tuple[str, ...]) -> None:
    cases = [a_case(mode=mode, device=device) for device in DEVICES for mode in MODES]
    run = a_run([record for step, case in enumerate(cases, 1) for record in some_rounds(step, case=case)])
    columns_by_name = columns_of(report_with(by=by, run=run))
    assert tuple(name for name in columns_by_name if name not in ("", "ratio")) == columns
    assert columns_by_name[""] == names


def test_the_ratio_refers_to_the_first_requested_column() -> None:
    run = a_run([record for size in (1, 2) for record in some_rounds(size, case=a_case(params={"m": size}))])
    columns_by_name = columns_of(report_with("memory", "rate", by="m", run=run))
    assert columns_by_name["ratio"] == ("1.00×",)
    assert list(columns_by_name) == ["", "m=1", "rate", "m=2", "ratio"]


def test_an_unknown_version_is_filled_in_from_another_case() -> None:
    dead = a_record(a_failure(), framework_version=None)
    alive = a_record(case=a_case(workload="conv2d"), framework_version="2.13.0")
    assert "backends: torch 2.13.0 eager" in report_document(a_run([dead, alive])).facts


def test_an_empty_plan_still_has_a_report() -> None:
    report = report_document(a_run([], left_out=(a_left_out(),)))
    assert report.tables == ()
    assert len(report.notes) == 1


def test_the_head_shows_the_number_of_used_threads() -> None:
    report = report_document(a_run([a_record()], settings=Settings(threads=1)))
    assert "machine: Example CPU, 1 of 2 threads, Linux 6.8" in report.facts


def test_the_page_on_environments_shows_a_real_report() -> None:
    def rounds(target: str, *seconds: float) -> list[Record]:
        case = a_case(params={"m": 256, "n": 512, "k": 512}, target=target, backend="jax", mode="jit")
        return some_rounds(*seconds, case=case, cost=a_cost(flops=2 * 256 * 512 * 512))

    run = a_run([*rounds("jax", 675e-6, 687e-6, 699e-6), *rounds("jax@0.9", 721e-6, 731e-6, 742e-6)])
    text = rendered(report_document(run)).split("\n\n")[2]
    assert text in (ROOT / "docs/environments.md").read_text()


def test_the_documented_table_matches_the_stored_run() -> None:
    document = (ROOT / "docs/cli.md").read_text()
    example = document[document.index("## The report's table") :].split("```\n")[1]
    run = read_run(ROOT / "results/reference/2026-11-21-cpu-quick")
    assert example in render(report_document(run), 120)


def test_variables_of_the_shell_are_among_the_facts() -> None:
    line = "variables: CC=gcc-13 XLA_FLAGS=--x"
    variables = {"CC": "gcc-13", "XLA_FLAGS": "--x"}
    assert line in report_document(a_run(variables=variables)).facts
    assert not any("variables" in fact for fact in report_document(a_run(variables={})).facts)
