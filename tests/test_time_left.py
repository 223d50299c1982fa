"""Accuracy of the time left, on simulated runs of quiet and busy machines and on recorded ones."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchbench.documents.plan import Expected, TimeLeft, time_left
from benchbench.store.runs import read_run
from tests.factories import a_case, a_failure, a_record

CASES = [a_case(params={"m": m, "n": 1, "k": 1}) for m in (1, 2)]
IDS = [case.id for case in CASES]
PREPARING_S = 30.0
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


Speed = Callable[[float], float]  # share of completed work → slowdown at that time


def simulated(seed: int, slower: Speed) -> dict[float, float]:
    """Share of elapsed time → expected length at that time divided by the true length.

    Estimates of works are off by a third, those of cases and of preparation by a fourth.
    """
    source, now, done = random.Random(seed), 0.0, 0.0
    works = {m: source.lognormvariate(0, 0.3) for m in range(1, 9)}
    cases = [a_case(params={"m": m, "n": 1, "k": 1}, target=f"torch@{b}") for m in works for b in range(4)]
    estimates, true_s = {}, {}
    for case in cases:
        first_s = source.choice([1.5, 2.0, 3.0, 6.0])
        estimates[case.id] = Expected(first_s, first_s * source.uniform(0.5, 1.0))
        true_s[case.id] = works[int(case.params["m"])] * source.lognormvariate(0, 0.25)
    preparing_s = PREPARING_S * source.lognormvariate(0, 0.25)
    whole_s = preparing_s + sum(ROUNDS * estimates[name].later_s * factor for name, factor in true_s.items())
    estimate = TimeLeft([estimates], ROUNDS, preparing_s=PREPARING_S, clock=lambda: now)
    estimates_seen = []

    def work(seconds: float) -> None:
        nonlocal now, done
        for _ in range(20):
            now += seconds / 20 * slower(done / whole_s)
            done += seconds / 20
            estimates_seen.append((now, estimate.remaining_s))

    work(0.3 * preparing_s)  # the smallest work is timed before all is prepared
    for number in range(ROUNDS):
        for m in source.sample(list(works), len(works)):
            for case in (case for case in cases if case.params["m"] == m):
                kind, began = estimates[case.id], now
                seconds = kind.later_s if number else kind.first_s
                work(seconds * true_s[case.id] * source.lognormvariate(0, 0.1))
                estimate.add(a_record(case=case, round=number, stages_s={"wall": now - began}))
            if estimate.done == 4:
                work(0.7 * preparing_s)

    def expected(share: float) -> float:
        over_s, left_s = min(estimates_seen, key=lambda point: abs(point[0] - share * now))
        return (over_s + left_s) / now

    return {share: expected(share) for share in WITHIN}


MACHINES: dict[str, Speed] = {
    "quiet": lambda share: 1.0,
    "busy all the time": lambda share: 3.0,
    "busy soon after it began": lambda share: 3.0 if share > 0.05 else 1.0,
    "busy now and then": lambda share: 2.0 if int(20 * share) % 2 else 1.0,
}
WITHIN = {0.1: 2.0, 0.25: 1.3, 0.5: 1.2, 0.75: 1.1}
"""Share of a run that is over → the factor that nine of ten expectations are within."""


@pytest.mark.real
@pytest.mark.parametrize("machine", MACHINES)
def test_the_expected_length_becomes_more_accurate_during_the_run(machine: str) -> None:
    runs = [simulated(seed, MACHINES[machine]) for seed in range(40)]
    for share, factor in WITHIN.items():
        off = sorted(max(run[share], 1 / run[share]) for run in runs)
        assert off[35] <= factor, (share, off[35])


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
