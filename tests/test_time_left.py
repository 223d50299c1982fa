"""Accuracy of the time left, on simulated runs of quiet and busy machines and on recorded ones."""

from pathlib import Path

import pytest

from benchbench.documents.plan import Expected, TimeLeft, time_left
from benchbench.store.runs import read_run
from tests.factories import a_case, a_failure, a_record

CASES = [a_case(params={"m": m, "n": 1, "k": 1}) for m in (1, 2)]
IDS = [case.id for case in CASES]
ROUNDS = 3
REFERENCE = Path(__file__).parents[1] / "results" / "reference"


def of_two(**over: float) -> TimeLeft:
    estimates = {IDS[0]: Expected(2.0, 2.0), IDS[1]: Expected(6.0, 4.0)}
    return TimeLeft([estimates], ROUNDS, clock=lambda: 0.0, **over)


def test_the_time_left_begins_with_the_estimates() -> None:
    assert of_two().remaining_s == pytest.approx(6.0 + 14.0)
    assert of_two(preparing_s=30.0).remaining_s == pytest.approx(50.0)
    assert of_two(budget_s=600.0).remaining_s == pytest.approx(600.0)


def test_a_failed_case_costs_no_further_time() -> None:
    estimate = of_two()
    estimate.add(a_record(a_failure(), case=CASES[0], stages_s={"wall": 2.0}))
    assert estimate.remaining_s == pytest.approx(14.0)
    assert estimate.done == ROUNDS


def test_records_of_an_interrupted_run_take_no_time() -> None:
    estimate = of_two(preparing_s=30.0)
    estimate.add(a_record(case=CASES[0], stages_s={"wall": 2.0}), earlier=True)
    assert estimate.remaining_s == pytest.approx(30.0 + 4.0 + 14.0)


def test_rounds_beyond_the_planned_ones_have_no_length() -> None:
    estimate = of_two()
    for number in range(ROUNDS):
        estimate.add(a_record(case=CASES[0], round=number, stages_s={"wall": 2.0}))
        assert not estimate.is_further
    estimate.add(a_record(case=CASES[0], round=ROUNDS, stages_s={"wall": 2.0}))
    assert estimate.is_further


"""Share of a run that is over → the factor that nine of ten expectations are within."""


def test_slow_preparation_raises_the_estimate() -> None:
    now = 0.0
    estimate = TimeLeft([{IDS[0]: Expected(100.0, 100.0)}], ROUNDS, preparing_s=30.0, clock=lambda: now)

    def after(seconds: float) -> float:
        nonlocal now
        now = seconds
        return now + estimate.remaining_s

    expected = [after(seconds) for seconds in (0.0, 30.0, 60.0, 90.0)]
    assert expected[0] == pytest.approx(expected[1]) == pytest.approx(330.0)
    assert expected[1] < expected[2] < expected[3]


@pytest.mark.parametrize("name", ["2026-11-21-cpu-quick", "2026-11-25-cpu-quick"])
def test_the_estimate_fits_recorded_runs(name: str) -> None:
    """Within a third: the number of undecided works, which get further rounds, is known only at the end."""
    run, now = read_run(REFERENCE / name), 0.0
    estimate = time_left([run.info], clock=lambda: now)
    records = sorted(run.records, key=lambda record: record.started)
    began = records[0].started - 25.0
    end = records[-1].started + records[-1].stages_s["wall"] - began
    for record in records:
        now = record.started - began + record.stages_s["wall"]
        estimate.add(record)
        if now > end / 4:
            assert 2 / 3 <= (now + estimate.remaining_s) / end <= 4 / 3
