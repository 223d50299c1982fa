"""Series of stored runs: values, order, and notes."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from benchbench.analyse.metrics import METRICS, metric_named
from benchbench.analyse.rows import flatten, rows
from benchbench.documents.history import NOTHING, history_document, largest_changes, sparkline
from benchbench.errors import UsageError
from benchbench.exporters.site import site_files
from benchbench.exporters.text import csv_file
from benchbench.judging.comparison import compare_runs
from benchbench.judging.series import FAILED, UNDECIDED, Trend, shared_changes, trends
from benchbench.model.case import Verdict
from benchbench.model.measurement import Memory, RankSamples
from benchbench.model.options import Allocator, Isolation
from benchbench.model.run import Record, Run, Settings
from benchbench.store import runs as store
from tests.factories import (
    a_case,
    a_cost,
    a_failure,
    a_hostile_run,
    a_machine,
    a_record,
    a_run,
    a_telemetry,
    a_watched,
    some_rounds,
)
from tests.program import accelbench
from tests.rendering import picture, rendered
from tests.test_architecture import ROOT

LATENCY = metric_named("latency_s")
NOISE = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.998, 1.001]


def a_run_at(number: int, seconds: float, **over: Any) -> Run:
    return numbered_run(number, some_rounds(seconds, seconds * 1.01, seconds * 0.99, case=a_case()), **over)


def stepped() -> list[Run]:
    """Sixteen runs, a tenth slower from the ninth on."""
    levels = [1e-3] * 8 + [1.1e-3] * 8
    return [a_run_at(i, level * NOISE[i % 8]) for i, level in enumerate(levels)]


def test_a_step_is_located_between_two_runs() -> None:
    (trend,) = trends(stepped(), LATENCY)
    (change,) = trend.history.changes
    assert change.index == 8
    assert change.direction == "slower"
    assert change.low < 1.1 < change.high
    (data,) = json.loads(rendered(history_document([trend]), "json"))
    assert (data["changes"][0]["run"], data["changes"][0]["after_run"]) == ("run08", "run07")
    assert len(data["points"]) == 16
    text = csv_file(history_document([trend]))["history.csv"].decode()
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [row["run"] for row in lines] == [f"run{number:02d}" for number in range(16)]
    assert [row["run"] for row in lines if row["change"]] == ["run08"]
    assert float(lines[8]["change"]) == pytest.approx(1.1, rel=0.01)
    assert rendered(history_document([trend])) in (ROOT / "docs/history.md").read_text()


def test_too_few_runs_get_a_note_with_the_number_needed() -> None:
    def answer(count: int) -> tuple[str, str]:
        document = history_document(trends(stepped()[:count], LATENCY), " --results mine")
        return "".join(
            part for cell in document.answer for part in cell.parts if isinstance(part, str)
        ), "".join(document.notes)

    headline, note = answer(1)
    assert headline == "too few runs to detect a change in 1 case"
    assert note.startswith("to detect a change takes 6 runs that can be compared, and there is one: ")
    assert note.endswith("accelbench report run00 --results mine")
    assert answer(2)[1].endswith("accelbench compare run00 run01 --results mine")
    assert answer(6) == ("no change in 1 case", "")


def test_an_unknown_case_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError, match=r"^No stored run has a case named 'gem2'\.") as refused:
        trends(stepped(), LATENCY, ["gemm", "gem2"])
    assert refused.value.hint == "Did you mean 'gemm'?"
    with pytest.raises(UsageError, match="nosuch") as refused:
        trends(stepped(), LATENCY, ["nosuch"])
    assert refused.value.hint == "Known workloads and targets: gemm, torch."


def test_a_case_name_without_values_of_the_metric_is_accepted() -> None:
    all_trends = trends(stepped(), metric_named("energy_j"), ["gemm*"])
    assert (all_trends, NOTHING in history_document(all_trends).notes) == ([], True)


def numbered_run(number: int, records: list[Record], **over: Any) -> Run:
    """Run `number` of a daily series."""
    started = f"2026-01-{number + 1:02d}T00:00:00+00:00"
    return a_run(records, **({"id": f"run{number:02d}", "started": started} | over))


def stepping(*starts: int, count: int = 16) -> list[Run]:
    """Runs of a case for each start, in which it becomes a tenth slower."""
    source = np.random.default_rng(6)

    def seconds(start: int, number: int) -> float:
        return float((1.1e-3 if number >= start else 1e-3) * np.exp(source.normal(0, 0.003)))

    return [
        numbered_run(
            number,
            [
                record
                for case, start in enumerate(starts, start=1)
                for record in some_rounds(*[seconds(start, number)] * 3, case=a_case(params={"m": case}))
            ],
        )
        for number in range(count)
    ]


FOUR_OF_FIVE = (8, 8, 8, 8, 99)
TWO_OF_FIVE = (8, 8, 99, 99, 99)


def test_several_cases_that_change_on_one_day_are_one_event() -> None:
    all_trends = trends(stepping(*FOUR_OF_FIVE), LATENCY)
    (event,) = shared_changes(all_trends)
    assert (event.day, event.direction, len(event.cases)) == ("2026-01-09", "slower", 4)
    assert event.ratio == pytest.approx(1.1, rel=0.01)
    assert history_document(all_trends).notes[0] == snapshot(
        "2026-01-09: 4 of 5 cases became slower, 1.10× in the median: one event, perhaps of the machine"
    )
    assert (
        rendered(history_document(all_trends)).count("between run07 and run08: the event of 2026-01-09") == 4
    )
    all_trends = trends(stepping(*TWO_OF_FIVE), LATENCY)
    assert shared_changes(all_trends) == []
    assert "the event of" not in rendered(history_document(all_trends))


def test_changes_a_day_apart_are_one_event_and_a_week_apart_are_two() -> None:
    near = trends(stepping(8, 9, 10, count=20), LATENCY)
    assert [(event.day, len(event.cases)) for event in shared_changes(near)] == [("2026-01-09", 3)]
    assert shared_changes(trends(stepping(6, 6, 13, count=20), LATENCY)) == []
    two = trends(stepping(6, 6, 6, 13, 13, 13, count=20), LATENCY)
    days = [(event.day, len(event.cases)) for event in shared_changes(two)]
    assert days == [("2026-01-07", 3), ("2026-01-14", 3)]


def test_changes_of_several_machines_or_directions_are_no_event() -> None:
    def on(machine: int, trend: Trend) -> Trend:
        points = tuple(replace(point, hardware=str(machine)) for point in trend.points)
        return replace(trend, case=f"{trend.case} {machine}", points=points)

    def of(machine: int, case_trends: list[Trend]) -> list[Trend]:
        return [on(machine, trend) for trend in case_trends]

    def turned(trend: Trend) -> Trend:
        changes = tuple(replace(change, direction="faster") for change in trend.history.changes)
        return replace(trend, history=replace(trend.history, changes=changes))

    two, slower = trends(stepping(8, 8), LATENCY), trends(stepping(8, 8, 8), LATENCY)
    assert shared_changes([*of(1, two), *of(2, two)]) == []
    assert len(shared_changes([*of(1, two), *of(1, two[:1]), *of(1, slower)])) == 1
    faster = [turned(trend) for trend in two]
    assert shared_changes([*of(1, two), *of(3, faster)]) == []
    mixed = [replace(trend, case=f"{trend.case} also") for trend in faster]
    assert shared_changes([*two, *mixed]) == []


def test_more_cases_need_a_clearer_change() -> None:
    source = np.random.default_rng(1)
    noise = np.exp(np.repeat([0.0, 0.05], 5) + source.normal(0, 0.015, 10))
    (alone,) = trends([a_run_at(number, 1e-3 * value) for number, value in enumerate(noise)], LATENCY)
    (change,) = alone.history.changes
    cases = int(1e-3 / change.p) + 1
    still = [
        record for m in range(1, cases) for record in some_rounds(1e-3, 1e-3, case=a_case(params={"m": m}))
    ]
    runs = [
        numbered_run(number, [*some_rounds(*[1e-3 * value] * 2, case=a_case(params={"m": 0})), *still])
        for number, value in enumerate(noise)
    ]
    assert not any(trend.history.changes for trend in trends(runs, LATENCY))


def test_a_run_without_a_start_time_is_part_of_no_event() -> None:
    undated = [replace(run, info=replace(run.info, started="?")) for run in stepping(*FOUR_OF_FIVE)]
    all_trends = trends(undated, LATENCY)
    assert sum(len(trend.history.changes) for trend in all_trends) == 4
    assert shared_changes(all_trends) == []


def contended_run(number: int, seconds: float) -> Run:
    busy = a_telemetry(busy_s=tuple(0.2 * number for number in range(11)))
    outcomes = [a_watched(busy, block_s=(factor * seconds,), iterations=1) for factor in (1.0, 1.01, 0.99)]
    return numbered_run(number, [a_record(outcome, round=at) for at, outcome in enumerate(outcomes)])


def test_contended_runs_are_shown_but_not_judged() -> None:
    runs = stepped()
    slow = [contended_run(index, 2e-3) for index in (3, 4, 5, 8)]
    runs = [next((busy for busy in slow if busy.info.id == run.info.id), run) for run in runs]
    (trend,) = trends(runs, LATENCY)
    assert [point.run for point in trend.points if point.contended] == ["run03", "run04", "run05", "run08"]
    (change,) = trend.history.changes
    assert (change.index, trend.sides(change)[0].run) == (9, "run07")
    assert [(segment.start, segment.stop) for segment in trend.history.segments] == [(0, 8), (9, 16)]
    text = rendered(history_document([trend]))
    assert "between run07 and run09" in text
    assert text.count("which is not judged: other processes used") == 4


def undecided_run(number: int) -> Run:
    """A run whose processes disagree."""
    return numbered_run(number, some_rounds(0.001, 0.01, 0.1))


def broken(number: int) -> Run:
    """A run in which the case crashed."""
    return numbered_run(number, [a_record(a_failure())])


def test_a_run_without_a_value_is_listed_with_the_reason() -> None:
    runs = [*stepped(), undecided_run(16), broken(17)]
    (trend,) = trends(runs, LATENCY)
    assert trend.history == trends(stepped(), LATENCY)[0].history
    assert [(gap.run, gap.event) for gap in trend.missing] == [("run16", UNDECIDED), ("run17", FAILED)]
    document = history_document([trend])
    text = rendered(document)
    assert "18 runs, 1 undecided, 1 failed" in text
    assert "processes disagree: 1.00, 10.0, 100 ms" in text
    assert [gap["run"] for gap in document.data[0]["missing"]] == ["run16", "run17"]
    (content,) = csv_file(document).values()
    lines = csv.DictReader(io.StringIO(content.decode()))
    assert [line["run"] for line in lines if line["missing"]] == ["run16", "run17"]


def test_a_case_whose_runs_are_all_undecided_is_shown_without_a_value() -> None:
    (trend,) = trends([undecided_run(0), undecided_run(1)], metric_named("items_per_s"))
    assert (trend.points, len(trend.missing)) == ((), 2)
    document = history_document([trend])
    assert "2 runs, 2 undecided" in rendered(document)
    assert document.plots()[0].panels == ()
    assert b"undecided" in b"".join(
        content for _, content in site_files([undecided_run(0), undecided_run(1)], [trend])
    )
    assert trends([broken(0)], LATENCY) == []


def test_disagreeing_runs_of_one_tag_are_undecided() -> None:
    tagged = [a_run_at(number, seconds, tags={"commit": "a"}) for number, seconds in enumerate((0.001, 0.1))]
    (trend,) = trends([*tagged, a_run_at(2, 0.001, tags={"commit": "b"})], LATENCY, by="commit")
    assert [point.tag for point in trend.points] == ["b"]
    assert [gap.runs for gap in trend.missing] == [("run00", "run01")]


def test_an_undecided_run_has_the_tag_of_its_point() -> None:
    undecided = replace(undecided_run(1), info=replace(undecided_run(1).info, tags={"commit": "b"}))
    (trend,) = trends([*commits("a"), undecided, undecided_run(2)], LATENCY, by="commit")
    assert [(gap.run, gap.tag) for gap in trend.missing] == [("run01", "b")]


def test_contended_runs_of_a_tag_do_not_count_beside_others() -> None:
    slow = contended_run(1, 2e-3)
    slow = replace(slow, info=replace(slow.info, tags={"commit": "a"}))
    quiet = a_run_at(0, 1e-3, tags={"commit": "a"})
    (trend,) = trends([quiet, slow], LATENCY, by="commit")
    assert [(point.runs, bool(point.contended)) for point in trend.points] == [(("run00",), False)]
    assert trend.points[0].value == pytest.approx(1e-3, rel=1e-3)
    (trend,) = trends([slow], LATENCY, by="commit")
    assert [(point.runs, bool(point.contended)) for point in trend.points] == [(("run01",), True)]


def test_a_metric_where_more_is_better_reverses_the_direction() -> None:
    (trend,) = trends(stepped(), metric_named("items_per_s"))
    assert [(change.index, change.direction) for change in trend.history.changes] == [(8, "slower")]


def test_runs_are_sorted_by_time() -> None:
    assert trends(reversed(stepped()), LATENCY) == trends(stepped(), LATENCY)


@pytest.mark.parametrize(
    ("info", "record", "reason"),
    [
        ({"settings": Settings(threads=1)}, {}, "threads 2 → 1"),
        ({"settings": Settings(threads=2, allocator=Allocator.SYSTEM)}, {}, "allocator steady → system"),
        ({"settings": Settings(threads=2, isolation=Isolation.SPAWN)}, {}, "isolation fork → spawn"),
        ({"machine": a_machine(cpu="Another CPU")}, {}, "CPU Example CPU → Another CPU"),
        ({}, {"workload_version": 2}, "workload version 1 → 2"),
        ({}, {"precision": {"matmul": "high"}}, "matmul highest → high"),
    ],
)
def test_incomparable_runs_have_own_series(info: dict[str, Any], record: dict[str, Any], reason: str) -> None:
    runs = [a_run_at(2 * i, 1e-3 * NOISE[i]) for i in range(8)]
    for i in range(8):
        records = some_rounds(*(2e-3 * NOISE[i] * factor for factor in (1, 1.01, 0.99)), **record)
        start = f"2026-01-{2 * i + 2:02d}T00:00:00+00:00"
        runs.append(a_run(records, id=f"other{i}", started=start, **info))
    assert compare_runs(runs[0], runs[8]).verdicts[0].verdict is Verdict.INCOMPARABLE
    (trend,) = trends(runs, LATENCY)
    assert not trend.history.changes
    assert (trend.boundaries, trend.boundary_reasons) == ((8,), (reason,))
    (data,) = json.loads(rendered(history_document([trend]), "json"))
    assert data["boundaries"] == [{"run": "other0", "reason": reason}]
    assert f"not comparable        from other0: {reason}" in rendered(history_document([trend]))


def test_alternating_machines_have_separate_histories() -> None:
    machines = [(a_machine(), 1.0), (a_machine(cpu="Another CPU"), 0.5)]
    runs = [
        a_run_at(2 * i + offset, factor * (1.3e-3 if i >= 6 else 1e-3) * NOISE[i % 8], machine=machine)
        for i in range(12)
        for offset, (machine, factor) in enumerate(machines)
    ]
    (trend,) = trends(runs, LATENCY)
    assert trend.boundaries == (12,)
    assert [change.index for change in trend.history.changes] == [6, 18]
    assert [point.run for point in trend.points[11:13]] == ["run22", "run01"]
    assert "run00" in labels(draw([trend]))  # runs, since days would go back and forth


def test_cases_are_chosen_by_a_part_of_their_id_or_a_pattern() -> None:
    assert len(trends(stepped(), LATENCY, ["gemm"])) == 1
    assert len(trends(stepped(), LATENCY, ["gemm*torch:cpu"])) == 1
    conv = a_run(some_rounds(1e-3, case=a_case(workload="conv2d")), id="other")
    assert len(trends([*stepped(), conv], LATENCY, ["conv2d"])) == 1


def test_an_unknown_metric_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="'latency'") as caught:
        metric_named("latency")
    assert caught.value.hint == "Did you mean 'latency_s'?"


def test_a_sparkline_has_a_height_per_value_and_ends_at_the_last() -> None:
    assert sparkline([1, 2, 4, 8]) == "▁▃▆█"
    assert sparkline([3.0]) == "▁"
    assert len(sparkline(list(range(1, 200)))) == 60


def commits(*order: str, **over: Any) -> list[Run]:
    """A daily run of each commit, a tenth slower from the letter m on."""
    seconds = [1.1e-3 if letter >= "m" else 1e-3 for letter in order]
    return [
        a_run_at(i, duration * NOISE[i % 8], tags={"commit": commit}, **over)
        for i, (duration, commit) in enumerate(zip(seconds, order, strict=True))
    ]


def test_runs_of_one_commit_are_a_point_of_all_their_processes() -> None:
    (trend,) = trends(commits(*"aabcdmno", "c"), LATENCY, by="commit")
    assert [point.tag for point in trend.points] == list("abcdmno")
    first, _, third = trend.points[:3]
    assert (first.run, first.runs, len(first.processes)) == ("run00", ("run00", "run01"), 6)
    assert third.runs == ("run03", "run08")
    (series_trend,) = trends([a_run(some_rounds(*first.processes))], LATENCY)
    assert first.value == pytest.approx(series_trend.points[0].value)


def test_a_change_is_located_between_two_commits() -> None:
    runs = [*commits(*"aabcdmno"), a_run_at(30, 1e-3)]
    (trend,) = trends(runs, LATENCY, by="commit")
    assert rendered(history_document([trend])) == snapshot("""\
1 of 1 case became slower, none faster, by the last change of each

gemm(m=64,n=64,k=64)/float32/eager@torch:cpu  latency_s, 7 values of commit in 8 runs
▁▁▁▁███  1.00 ms → 1.10 ms
EVENT   SIZE                   WHERE
slower  1.101× [1.095, 1.106]  between d and m
left out: 1 run without the tag commit
""")
    (parsed,) = json.loads(rendered(history_document([trend]), "json"))
    assert parsed["by"] == "commit"
    assert parsed["untagged"] == ["run30"]
    assert [point["tag"] for point in parsed["points"]] == list("abcdmno")
    assert [(change["after_tag"], change["tag"]) for change in parsed["changes"]] == [("d", "m")]


def test_commits_are_ordered_by_their_first_run_on_any_machine() -> None:
    other_machine = a_machine(cpu="Another CPU")
    runs = commits(*"abcm")
    later = [
        replace(
            run, info=replace(run.info, id=f"later{i}", started=f"2026-02-0{9 - i}", machine=other_machine)
        )
        for i, run in enumerate(commits(*"abcm"))
    ]
    (trend,) = trends([*later, *runs], LATENCY, by="commit")
    assert [point.tag for point in trend.points] == list("abcmabcm")
    assert trend.boundaries == (4,)


def test_an_unknown_tag_suggests_a_known_one() -> None:
    with pytest.raises(UsageError, match="'comit'") as caught:
        trends(commits("a"), LATENCY, by="comit")
    assert caught.value.hint == "Did you mean 'commit'?"


@given(st.lists(st.sampled_from("abcdmnop"), min_size=1, max_size=12), st.randoms())
@settings(max_examples=40, deadline=None)
def test_no_process_is_lost_or_counted_twice_by_a_tag(order: list[str], random: Random) -> None:
    runs = commits(*order)
    shuffled = random.sample(runs, len(runs))
    (trend,) = trends(shuffled, LATENCY, by="commit")
    assert [trend] == trends(runs, LATENCY, by="commit")
    assert [point.tag for point in trend.points] == list(dict.fromkeys(order))
    assert sorted(run for point in trend.points for run in point.runs) == sorted(r.info.id for r in runs)
    assert sum(len(point.processes) for point in trend.points) == 3 * len(runs)


def a_rank(block_s: float, entry_s: float) -> RankSamples:
    unknown = Memory(bytes=None, reason="not told")
    return RankSamples(
        host=0,
        device="cpu",
        warmup_block_s=(block_s,),
        block_s=(block_s,) * 5,
        cold_s=None,
        peak_device=unknown,
        peak_host=unknown,
        entry_s=(entry_s,) * 5,
    )


@pytest.mark.parametrize("metric", [metric.name for metric in METRICS])
def test_a_point_has_the_number_that_a_report_has(metric: str) -> None:
    energy, times, idle = (tuple(step * n for n in range(30)) for step in (9.0, 0.1, 0.0))
    telemetry = a_telemetry(energy_j=energy, at_s=times, busy_s=idle, own_s=idle)
    run = a_run(
        [
            a_record(
                a_watched(
                    telemetry,
                    length_s=3.0,
                    block_s=(0.01 * factor,) * 5,
                    cold_s=factor,
                    cost=a_cost(link_bytes=4096),
                    ranks=(a_rank(0.009 * factor, 0.0), a_rank(0.01 * factor, 2e-6)),
                    compile_cache="warm" if metric == "warm_s" else "empty",
                    compiled=2,
                    graph_breaks=1,
                    peak_device=Memory(bytes=round(1000 * factor)),
                    peak_host=Memory(bytes=round(900 * factor)),
                ),
                round=n,
            )
            for n, factor in enumerate((1.0, 1.2, 1.1))
        ]
    )
    (row,) = map(flatten, rows(run))
    (trend,) = trends([run], metric_named(metric))
    assert trend.points[0].value == pytest.approx(row[metric])
    assert trend.points[0].value > 0


def test_the_command_shows_the_history_of_stored_runs(tmp_path: Path) -> None:
    for run in commits(*"aabcdmno"):
        store.store_run(tmp_path / "results", run)
    refused = accelbench("history", "gem", "nosuch", cwd=tmp_path, code=2).stderr
    assert "error: No stored run has a case named 'nosuch'.\nhint: " in refused
    output = accelbench("history", "gemm", cwd=tmp_path).stdout
    assert "slower  1.10" in output
    parsed = json.loads(accelbench("history", "--format", "json", cwd=tmp_path).stdout)
    assert len(parsed) == 1
    assert accelbench("history", "-o", "out/found.json", cwd=tmp_path).stdout == ""
    assert json.loads((tmp_path / "out/found.json").read_text()) == parsed
    assert "between d and m" in accelbench("history", "--by", "commit", cwd=tmp_path).stdout


def test_a_history_without_runs_is_an_error(tmp_path: Path) -> None:
    assert "no runs" in accelbench("history", cwd=tmp_path, code=5).stderr


def draw(all_of: list[Trend]) -> str:
    return picture(history_document(all_of))


def labels(svg: str) -> list[str]:
    """Texts of a plot, from matplotlib's comments on texts drawn as shapes."""
    return re.findall(r"<!-- (.*?) -->", svg, re.DOTALL)


def test_a_plot_labels_changes_and_the_unit() -> None:
    runs = stepped()
    all_trends = trends(runs, LATENCY)
    assert all_trends[0].history.changes
    texts = labels(draw(all_trends))
    assert "gemm(m=64,n=64,k=64)/float32/eager@torch:cpu" in texts
    assert "latency_s over time (less is better)" in texts
    assert {"ms", "1.10×"} <= set(texts)
    steady = labels(draw(trends(runs[:8], LATENCY)))
    assert "1.10×" not in steady


def test_a_plot_by_a_tag_names_its_values() -> None:
    long = "0123456789ab" + "c" * 28
    texts = labels(draw(trends(commits("a", "b", f"{long}-dirty"), LATENCY, by="commit")))
    assert "latency_s by commit (less is better)" in texts
    assert {"a", "b", "0123456789ab-dirty"} <= set(texts)


def many(count: int) -> list[Run]:
    """Runs in which later cases grew more."""
    cases = [a_case(params={"m": number}) for number in range(count)]
    return [
        numbered_run(
            i,
            [
                r
                for n, case in enumerate(cases)
                for r in some_rounds(1e-3 * (1 + (i >= 4) * n / 10), case=case)
            ],
        )
        for i in range(8)
    ]


@pytest.mark.real
def test_a_plot_of_many_cases_shows_the_twenty_that_changed_most() -> None:
    all_trends = trends(many(23), LATENCY)
    assert [largest_change.case for largest_change in largest_changes(all_trends)] == [
        trend.case for trend in reversed(all_trends[3:])
    ]
    assert any(
        "20 of 23 cases, the biggest changes first" in label.replace("\n", " ")
        for label in labels(draw(all_trends))
    )
    assert largest_changes(all_trends[:20]) == all_trends[:20]


def test_the_legend_of_a_plot_names_only_marks_that_occur() -> None:
    (plot,) = history_document(trends(stepped()[:2], LATENCY)).plots()
    assert "circle" in plot.reading
    assert not any(word in plot.reading for word in ("cross", "dashed", "dotted"))
    (plot,) = history_document(trends(stepped(), LATENCY)).plots()
    assert "A dashed line with a triangle is a change" in plot.reading


@pytest.mark.parametrize(("minutes", "has_names"), [(60 * 24, False), (1, True)])
def test_crowded_runs_are_drawn_at_equal_distances(minutes: int, has_names: bool) -> None:
    """Without this, eight runs on one day and eight a year later would be two dots."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = [start + timedelta(days=365 * (i // 8) * has_names, minutes=minutes * i) for i in range(16)]
    runs = [
        a_run(run.records, id=run.info.id, started=time.isoformat())
        for run, time in zip(stepped(), times, strict=True)
    ]
    assert any(label.startswith("2027-01-01 ") for label in labels(draw(trends(runs, LATENCY)))) == has_names


def test_equal_heights_of_sparklines_are_equal_ratios() -> None:
    flat, doubling = (a_case(params={"m": number}) for number in range(2))
    runs = [
        numbered_run(i, [*some_rounds(1e-3, case=flat), *some_rounds(1e-3 * 2 ** (i / 7), case=doubling)])
        for i in range(8)
    ]
    output = rendered(history_document(trends(runs, LATENCY)))
    assert "▁▁▁▁▁▁▁▁ " in output
    assert "▁▂▃▄▅▆▇█ " in output
    assert "sparklines share one logarithmic scale: from ▁ to █ it is 2.00×" in output


@pytest.mark.real
@pytest.mark.parametrize("name", [metric.name for metric in METRICS])
def test_every_metric_can_be_plotted(name: str) -> None:
    assert draw(trends(stepped()[6:10], metric_named(name)))


@pytest.mark.real
@pytest.mark.parametrize("started", ["2026-01-01T00:00:00", "2026-01-01", "yesterday", ""])
def test_runs_at_equal_or_unknown_times_can_be_plotted(started: str) -> None:
    runs = [a_run(id=f"run{number}", started=started) for number in range(3)]
    for trend_list in (trends(runs, LATENCY), trends(runs[:1], LATENCY), []):
        assert draw(trend_list) == draw(trend_list)


@pytest.mark.parametrize("text_", [r"$\frac{$", "\x1b[31m", "<script>", "a\nb", "\u202e", "数字 😀"])
def test_names_are_escaped_in_plots_and_texts(text_: str) -> None:
    runs = [
        replace(run, info=replace(run.info, tags={"t": f"{text_}{i}"}))
        for i, run in enumerate([a_hostile_run(text_)] * 2)
    ]
    all_trends = trends(runs, LATENCY, by="t")
    assert all_trends
    ET.fromstring(draw(all_trends))
    assert "\x1b" not in rendered(history_document(all_trends))
    assert len(rendered(history_document(all_trends)).splitlines()) == 6  # answer, title, sparkline, notes


def test_a_plot_spanning_decades_has_a_logarithmic_axis() -> None:
    all_trends = trends([a_run_at(i, 10.0 ** (i - 6)) for i in range(6)], LATENCY)
    assert {"0.01", "1", "100"} <= set(labels(draw(all_trends)))


@pytest.mark.real
def test_the_program_plots_by_the_ending_or_the_format(tmp_path: Path) -> None:
    for run in many(21):
        store.store_run(tmp_path / "results", run)
    process = accelbench("history", "-o", "found.png", cwd=tmp_path)
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert "the 20 of 21 cases that changed most" in process.stderr
    accelbench("history", "m=1)", "--format", "svg", cwd=tmp_path)
    assert ET.parse(tmp_path / "results/history.svg").getroot().tag.endswith("svg")
