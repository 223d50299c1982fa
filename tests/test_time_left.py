"""Estimates of a run's duration, and the time left, compared with recorded runs."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchbench.documents.plan import PRIOR_S, TimeLeft, time_left
from benchbench.model.case import Case, Phase
from benchbench.model.device import DeviceClass
from benchbench.plan.estimates import process_s, run_estimate
from benchbench.store.runs import read_run
from benchbench.timing.policy import ACCELERATOR_S, POLICIES
from tests.factories import a_case, a_failure, a_record

CASES = [a_case(params={"m": m, "n": 1, "k": 1}) for m in (1, 2)]
IDS = [case.id for case in CASES]
ROUNDS = 3
REFERENCE = Path(__file__).parents[1] / "results" / "reference"


def of_two(**over: float) -> TimeLeft:
    estimates = {IDS[0]: 2.0, IDS[1]: 4.0}
    return TimeLeft([estimates], ROUNDS, clock=lambda: 0.0, **over)


def test_the_time_left_begins_with_the_estimates() -> None:
    assert of_two().remaining_s == pytest.approx(6.0 + 12.0)
    assert of_two(preparing_s=30.0).remaining_s == pytest.approx(48.0)
    assert of_two(budget_s=600.0).remaining_s == pytest.approx(600.0)


def test_a_failed_case_costs_no_further_time() -> None:
    estimate = of_two()
    estimate.add(a_record(a_failure(), case=CASES[0], stages_s={"wall": 2.0}))
    assert estimate.remaining_s == pytest.approx(12.0)
    assert estimate.done == ROUNDS


def test_records_of_an_interrupted_run_take_no_time() -> None:
    estimate = of_two(preparing_s=30.0)
    estimate.add(a_record(case=CASES[0], stages_s={"wall": 2.0}), earlier=True)
    assert estimate.remaining_s == pytest.approx(30.0 + 4.0 + 12.0 - 2.0)


def test_rounds_beyond_the_planned_ones_have_no_length() -> None:
    estimate = of_two()
    for number in range(ROUNDS):
        estimate.add(a_record(case=CASES[0], round=number, stages_s={"wall": 2.0}))
        assert not estimate.is_further
    estimate.add(a_record(case=CASES[0], round=ROUNDS, stages_s={"wall": 2.0}))
    assert estimate.is_further


def test_slow_processes_raise_the_estimate_of_the_other_cases() -> None:
    estimate = of_two()
    estimate.add(a_record(case=CASES[0], stages_s={"wall": 20.0}))
    level = (PRIOR_S + 20.0) / (PRIOR_S + 2.0)
    assert estimate.remaining_s == pytest.approx(2 * 20.0 + level * 12.0)


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


CLASSES = {
    (target, "cpu"): DeviceClass.CPU
    for target in ("torch", "tensorflow", "jax", "onnxruntime", "torch_xla", "fake")
}
QUICK = POLICIES["quick"]


def test_a_first_process_takes_longer_if_compiled_programs_are_cached() -> None:
    cached, uncached = a_case(backend="jax", mode="jit"), a_case(backend="torch")
    assert process_s(cached, QUICK, CLASSES, first=True) > process_s(cached, QUICK, CLASSES)
    assert process_s(uncached, QUICK, CLASSES, first=True) == process_s(uncached, QUICK, CLASSES)


def test_the_warm_up_of_an_accelerator_is_included() -> None:
    case, longer = a_case(backend="torch", params={"m": 64}), replace(QUICK, warmup_min_s=ACCELERATOR_S)
    on_device = {("torch", "cpu"): DeviceClass.ACCELERATOR}
    assert process_s(case, QUICK, on_device) == process_s(case, longer, on_device)
    assert process_s(case, QUICK, CLASSES) < process_s(case, longer, CLASSES)


def test_more_layers_rounds_time_and_profiles_take_longer() -> None:
    def network(depth: int) -> Case:
        params = {"batch": 2, "length": 64, "width": 256, "depth": depth, "heads": 4, "vocabulary": 8192}
        return a_case(workload="gpt2_train", params=params, phase=Phase.TRAIN, backend="jax", mode="jit")

    runs = [
        run_estimate([network(2)], replace(QUICK, rounds=1), CLASSES),
        run_estimate([network(2)], QUICK, CLASSES),
        run_estimate([network(12)], QUICK, CLASSES),
        run_estimate([network(12)], POLICIES["default"], CLASSES),
        run_estimate([network(12)], POLICIES["default"], CLASSES, profile=True),
    ]
    assert all(less.total < more.total for less, more in pairwise(runs))


def test_a_budget_is_used_up() -> None:
    assert run_estimate([a_case()], replace(QUICK, budget_s=1000.0), CLASSES).measuring == 1000.0


def test_virtual_time_is_not_counted() -> None:
    assert run_estimate([a_case(backend="fake")], POLICIES["rigorous"], CLASSES).total < 10
