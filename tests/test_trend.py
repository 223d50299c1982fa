"""Series of stored runs: which values, in which order, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot

from benchbench import store
from benchbench.errors import UsageError
from benchbench.model import Run
from benchbench.trend import fields, metric_named, sparkline, text, trends
from tests.factories import a_case, a_machine, a_run, some_rounds
from tests.program import accelbench

LATENCY = metric_named("latency_s")
NOISE = [1.0, 1.004, 0.997, 1.002, 0.999, 1.003, 0.998, 1.001]


def a_run_at(number: int, seconds: float, **over: Any) -> Run:
    records = some_rounds(seconds, seconds * 1.01, seconds * 0.99, case=a_case())
    return a_run(records, id=f"run{number:02d}", started=f"2026-01-{number + 1:02d}T00:00:00+00:00", **over)


def stepped() -> list[Run]:
    """Sixteen runs, a tenth slower from the ninth on."""
    levels = [1e-3] * 8 + [1.1e-3] * 8
    return [a_run_at(i, level * NOISE[i % 8]) for i, level in enumerate(levels)]


def test_a_step_is_found_between_the_runs_where_it_happened() -> None:
    (found,) = trends(stepped(), LATENCY)
    (change,) = found.history.changes
    assert change.index == 8
    assert change.direction == "slower"
    assert change.low < 1.1 < change.high
    assert text([found]) == snapshot("""\
gemm(m=64,n=64,k=64)/float32/eager@torch:cpu  latency_s, 16 runs
  ▁▁▁▁▁▁▁▁████████  1.00 ms → 1.10 ms
  slower: 1.10× [1.097, 1.103] between run07 and run08
""")


def test_a_metric_where_more_is_better_turns_the_direction_and_keeps_the_place() -> None:
    (found,) = trends(stepped(), metric_named("items_per_s"))
    assert [(change.index, change.direction) for change in found.history.changes] == [(8, "slower")]


def test_runs_are_ordered_by_their_time_whatever_order_they_come_in() -> None:
    assert trends(reversed(stepped()), LATENCY) == trends(stepped(), LATENCY)


def test_other_hardware_is_a_boundary_and_no_change() -> None:
    faster = a_machine(cpu="Another CPU")
    runs = [a_run_at(i, 1e-3 * NOISE[i]) for i in range(8)]
    runs += [a_run_at(8 + i, 5e-4 * NOISE[i], machine=faster) for i in range(8)]
    (found,) = trends(runs, LATENCY)
    assert not found.history.changes
    assert "other hardware from run08" in text([found])


def test_cases_are_chosen_by_a_part_of_their_id_or_a_pattern() -> None:
    assert len(trends(stepped(), LATENCY, ["gemm"])) == 1
    assert len(trends(stepped(), LATENCY, ["gemm*torch:cpu"])) == 1
    assert not trends(stepped(), LATENCY, ["conv2d"])


def test_an_unknown_metric_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="'latency'") as caught:
        metric_named("latency")
    assert caught.value.hint == "Did you mean 'latency_s'?"


def test_a_sparkline_has_a_height_per_value_and_ends_at_the_last() -> None:
    assert sparkline([1, 2, 4, 8]) == "▁▃▆█"
    assert sparkline([3.0]) == "▁"
    assert len(sparkline(list(range(1, 200)))) == 60


def test_programs_get_runs_and_changes() -> None:
    (found,) = json.loads(json.dumps(fields(trends(stepped(), LATENCY))))
    assert found["changes"][0]["run"] == "run08"
    assert found["changes"][0]["after_run"] == "run07"
    assert len(found["points"]) == 16


def test_the_program_tells_the_history_of_stored_runs(tmp_path: Path) -> None:
    for run in stepped():
        with store.create(tmp_path / "results", run.info) as writer:
            for record in run.records:
                writer.append(record)
    shown = accelbench("history", "gemm", cwd=tmp_path).stdout
    assert "slower: 1.10×" in shown
    parsed = json.loads(accelbench("history", "--format", "json", cwd=tmp_path).stdout)
    assert len(parsed) == 1
    done = accelbench("history", "--metric", "latenzy", cwd=tmp_path, code=2)
    assert "latency_s" in done.stderr


def test_without_runs_there_is_no_history(tmp_path: Path) -> None:
    assert "no runs" in accelbench("history", cwd=tmp_path, code=5).stderr
